//! TCP connections without a runtime: a session as an application holds it, which reads and writes by itself.

use super::info;
use crate::stats::Stats;
use crate::stream::Stream;
use crate::sys;
use crate::waiting::Waiting;
use rustix::net::{RecvFlags, SendFlags};
use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Number of foreign connections after which [`Plain::pair`] gives up.
const FOREIGN_CONNECTIONS_MAX: usize = 16;

/// An open TCP connection under the linger discipline: dropping it resets it, once no other process holds a
/// copy of the descriptor. It blocks, unless its owner has made the descriptor non-blocking.
#[derive(Debug)]
pub struct Plain(TcpStream);

impl Stream {
    /// Takes the connection out of its runtime, if its bytes are exactly those of a TCP socket; otherwise
    /// resets it.
    ///
    /// # Errors
    /// `Unsupported` if they are not; otherwise an error if no descriptor is left.
    pub fn into_plain(self) -> io::Result<Plain> {
        let socket = self.socket().ok_or(io::ErrorKind::Unsupported)?;
        // Dropping the runtime's descriptor leaves the connection open through the clone.
        Plain::new(socket.as_fd().try_clone_to_owned()?)
    }
}

impl Plain {
    /// Adopts an existing connection.
    ///
    /// # Errors
    /// When the kernel refuses the options.
    pub(crate) fn new(connection: OwnedFd) -> io::Result<Self> {
        let connection = TcpStream::from(connection);
        connection.set_nonblocking(false)?;
        socket2::SockRef::from(&connection).set_linger(Some(Duration::ZERO))?;
        Ok(Self(connection))
    }

    /// Makes both ends of a connection within this process, over loopback.
    ///
    /// # Errors
    /// When loopback is not available.
    pub fn pair() -> io::Result<[Self; 2]> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let near = TcpStream::connect(listener.local_addr()?)?;
        let own = near.local_addr()?;
        // Another process of this host may have connected first.
        for _ in 0..FOREIGN_CONNECTIONS_MAX {
            let (far, from) = listener.accept()?;
            if from == own {
                for end in [&near, &far] {
                    end.set_nodelay(true)?;
                }
                return Ok([Self::new(near.into())?, Self::new(far.into())?]);
            }
        }
        Err(io::Error::other("other programs keep connecting to the port of a connection within this process"))
    }

    /// Reads what has arrived; 0 at the end of the peer's stream.
    ///
    /// # Errors
    /// The failure of the connection; `WouldBlock` on a non-blocking descriptor.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let (n, _) = rustix::net::recv(&self.0, buffer, RecvFlags::empty())?;
        Ok(n)
    }

    /// Writes as much as fits. Never raises SIGPIPE.
    ///
    /// # Errors
    /// The failure of the connection; `WouldBlock` on a non-blocking descriptor.
    pub fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::net::send(&self.0, bytes, SendFlags::NOSIGNAL)?)
    }

    /// Ends this side's stream; the peer's stays open (half-close).
    ///
    /// # Errors
    /// When the connection has failed.
    pub fn shutdown_write(&self) -> io::Result<()> {
        self.0.shutdown(Shutdown::Write)
    }

    /// Ends this side's stream and waits until the peer has acknowledged all of it. The caller must have read
    /// the peer's stream to its end.
    ///
    /// # Errors
    /// `InvalidInput` if it has not; `TimedOut` when nothing more is acknowledged for as long as `time_limit`;
    /// `NotConnected` when both streams had already ended and were acknowledged; or the failure of the
    /// connection.
    pub fn settle(&self, time_limit: Duration) -> io::Result<()> {
        match rustix::net::recv(&self.0, &mut [0u8; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((0, _)) => {}
            Ok(_) | Err(rustix::io::Errno::AGAIN) => {
                let why = "the session was finished before the other end's stream had been read to its end";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
            }
            Err(error) => return Err(error.into()),
        }
        self.shutdown_write()?;
        self.delivered(time_limit)
    }

    /// Returns the connection's pending error, if no call has returned it yet.
    ///
    /// # Errors
    /// The pending error.
    pub fn check(&self) -> io::Result<()> {
        self.0.take_error()?.map_or(Ok(()), Err)
    }

    /// Closes a connection in order after it has [settled](Self::settle).
    pub fn close(self) {
        // If disarming fails, a drop resets the connection, which is the safe outcome.
        let _ = socket2::SockRef::from(&self.0).set_linger(None);
    }

    /// As [`Stream::delivered`](crate::Stream::delivered).
    fn delivered(&self, time_limit: Duration) -> io::Result<()> {
        let mut waiting = Waiting::new(time_limit);
        loop {
            self.check()?;
            let Some(pause) = waiting.next(sys::unacknowledged(self.0.as_fd())?)? else { return Ok(()) };
            // Not `poll(2)`: once both streams have ended, it always returns at once.
            std::thread::sleep(pause);
        }
    }

    /// The kernel's statistics of the connection.
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn stats(&self) -> io::Result<Stats> {
        info::stats(&self.0)
    }

    /// The peer's address.
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.0.peer_addr()
    }

    /// Registers the connection with the caller's runtime.
    ///
    /// # Errors
    /// When the runtime cannot register it.
    pub fn into_stream(self) -> io::Result<crate::Stream> {
        self.0.set_nonblocking(true)?;
        Ok(super::Connection::new(tokio::net::TcpStream::from_std(self.0)?, None).into())
    }

    /// Returns the descriptor to a caller that closes it without the discipline of this type.
    pub fn into_fd(self) -> OwnedFd {
        self.0.into()
    }
}

impl AsFd for Plain {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_closes_in_order_only_after_both_directions_ended() {
        let [near, far] = Plain::pair().unwrap();
        near.write(b"one").unwrap();
        near.shutdown_write().unwrap();
        let mut got = [0; 8];
        assert_eq!((far.read(&mut got).unwrap(), far.read(&mut got[3..]).unwrap()), (3, 0));
        far.write(b"two").unwrap();
        far.settle(Duration::from_secs(30)).unwrap();
        far.close();
        assert_eq!((near.read(&mut got).unwrap(), near.read(&mut got[3..]).unwrap()), (3, 0));
        let before = near.settle(Duration::from_secs(30)).unwrap_err();
        assert_eq!(before.kind(), io::ErrorKind::NotConnected);
        near.close();

        let [near, far] = Plain::pair().unwrap();
        far.write(b"unread").unwrap();
        assert_eq!(near.settle(Duration::from_secs(30)).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        drop(near);
        assert_eq!(far.read(&mut got).unwrap_err().kind(), io::ErrorKind::ConnectionReset);

        let [near, far] = Plain::pair().unwrap();
        drop(near);
        assert_eq!(far.read(&mut got).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    }
}
