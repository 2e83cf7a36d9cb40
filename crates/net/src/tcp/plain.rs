//! TCP connections that belong to no runtime: a session as a program holds it, which reads and writes by itself.

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

/// How many strangers may come in between before [`Plain::pair`] gives up.
const STRANGERS: usize = 16;

/// An open TCP connection with the linger discipline in force: dropped, it is reset, as soon as no other process holds it too.
/// It blocks, unless its owner has made its descriptor one that does not.
#[derive(Debug)]
pub struct Plain(TcpStream);

impl Stream {
    /// The connection without a runtime, where its bytes are those of a TCP socket as they are; otherwise it is reset.
    ///
    /// # Errors
    /// `Unsupported` where they are not, or when there is no descriptor left.
    pub fn into_plain(self) -> io::Result<Plain> {
        let socket = self.socket().ok_or(io::ErrorKind::Unsupported)?;
        // The runtime lets go of its descriptor, which leaves the connection as it is.
        Plain::new(socket.as_fd().try_clone_to_owned()?)
    }
}

impl Plain {
    /// A connection from elsewhere.
    ///
    /// # Errors
    /// When the kernel does not let it be set up.
    pub(crate) fn new(connection: OwnedFd) -> io::Result<Self> {
        let connection = TcpStream::from(connection);
        connection.set_nonblocking(false)?;
        socket2::SockRef::from(&connection).set_linger(Some(Duration::ZERO))?;
        Ok(Self(connection))
    }

    /// Both ends of a connection within this process, over loopback.
    ///
    /// # Errors
    /// When loopback cannot be used.
    pub fn pair() -> io::Result<[Self; 2]> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let near = TcpStream::connect(listener.local_addr()?)?;
        let own = near.local_addr()?;
        // Anyone on this host may have come in between.
        for _ in 0..STRANGERS {
            let (far, from) = listener.accept()?;
            if from == own {
                for end in [&near, &far] {
                    end.set_nodelay(true)?;
                }
                return Ok([Self::new(near.into())?, Self::new(far.into())?]);
            }
        }
        Err(io::Error::other("strangers keep connecting to the port of a connection within this process"))
    }

    /// Reads what is there; 0 at the end of the peer's stream.
    ///
    /// # Errors
    /// How the connection failed; `WouldBlock` where it does not block.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let (n, _) = rustix::net::recv(&self.0, buffer, RecvFlags::empty())?;
        Ok(n)
    }

    /// Writes as much as fits. Nobody gets a signal.
    ///
    /// # Errors
    /// How the connection failed; `WouldBlock` where it does not block.
    pub fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::net::send(&self.0, bytes, SendFlags::NOSIGNAL)?)
    }

    /// Ends this side's stream; the peer's goes on.
    ///
    /// # Errors
    /// When the connection has failed.
    pub fn shutdown_write(&self) -> io::Result<()> {
        self.0.shutdown(Shutdown::Write)
    }

    /// Ends this side's stream, and waits until the other end has acknowledged all of it. The peer's stream has to have been read
    /// to its end.
    ///
    /// # Errors
    /// `InvalidInput` if it has not been; `TimedOut` when nothing more is acknowledged for as long as `patience`; `NotConnected`
    /// when both streams had ended and were acknowledged before; or how the connection failed.
    pub fn settle(&self, patience: Duration) -> io::Result<()> {
        match rustix::net::recv(&self.0, &mut [0u8; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((0, _)) => {}
            Ok(_) | Err(rustix::io::Errno::AGAIN) => {
                let why = "the session was finished before the other end's stream had been read to its end";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
            }
            Err(error) => return Err(error.into()),
        }
        self.shutdown_write()?;
        self.delivered(patience)
    }

    /// How the connection failed, if it has and nobody was told.
    ///
    /// # Errors
    /// That.
    pub fn check(&self) -> io::Result<()> {
        self.0.take_error()?.map_or(Ok(()), Err)
    }

    /// Closes in peace what has [settled](Self::settle).
    pub fn close(self) {
        // Failing to disarm leaves the reset in place, which is the safe side.
        let _ = socket2::SockRef::from(&self.0).set_linger(None);
    }

    /// As [`Stream::delivered`](crate::Stream::delivered).
    fn delivered(&self, patience: Duration) -> io::Result<()> {
        let mut waiting = Waiting::new(patience);
        loop {
            self.check()?;
            let Some(pause) = waiting.next(sys::unacknowledged(self.0.as_fd())?)? else { return Ok(()) };
            // Not poll(2): once both streams have ended, it has something to say of the connection at once and always.
            std::thread::sleep(pause);
        }
    }

    /// What the kernel knows about the connection.
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn stats(&self) -> io::Result<Stats> {
        info::stats(&self.0)
    }

    /// The other end.
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.0.peer_addr()
    }

    /// The same connection under the watch of the caller's runtime.
    ///
    /// # Errors
    /// When the runtime has no room for it.
    pub fn into_stream(self) -> io::Result<crate::Stream> {
        self.0.set_nonblocking(true)?;
        Ok(super::Connection::new(tokio::net::TcpStream::from_std(self.0)?, None).into())
    }

    /// The descriptor, for whoever goes on without the discipline that this type keeps.
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
    fn ends_in_peace_only_when_both_directions_have() {
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
