//! A connection to another process of this machine, by a pair of sockets of which it has one as its standard input and output:
//! programs that carry bytes elsewhere, such as `ssh`.
//!
//! Its ends are whatever that process makes of them: one that is killed ends it as one does that has said all.

use crate::stats::Stats;
use crate::stream::Stream;
use crate::transport::{Boxed, Change, Duplex};
use rustix::net::RecvFlags;
use std::fmt;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::OwnedFd;
use std::task::{Context, Poll};
use tokio::net::UnixStream;

/// This end of a pair, not yet in use.
pub struct Pair(UnixStream);

impl Pair {
    /// One, and the other end, to be given to a process. Called within the runtime that is to watch it.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub fn new() -> io::Result<(Self, OwnedFd)> {
        let (one, other) = std::os::unix::net::UnixStream::pair()?;
        one.set_nonblocking(true)?;
        Ok((Self(UnixStream::from_std(one)?), other.into()))
    }

    /// Waits until something has come, or the other end has ended it: whether something has. Cancel safe.
    ///
    /// # Errors
    /// When the pair has failed.
    pub async fn has_come(&self) -> io::Result<bool> {
        loop {
            self.0.readable().await?;
            let seen = self.0.try_io(tokio::io::Interest::READABLE, || {
                Ok(rustix::net::recv(&self.0, &mut [0u8; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT)?)
            });
            match seen {
                Ok((len, _)) => return Ok(len > 0),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// As a connection from `local` to `peer`, which is what it stands for. `held` is kept for as long as it is.
    pub fn into_stream(
        self,
        (local, peer): (SocketAddr, SocketAddr),
        held: impl fmt::Debug + Send + Sync + 'static,
    ) -> Stream {
        Connection { io: self.0, local, peer, held: Box::new(held) }.into()
    }
}

impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pair").finish_non_exhaustive()
    }
}

trait Held: fmt::Debug + Send + Sync {}

impl<T: fmt::Debug + Send + Sync> Held for T {}

#[derive(Debug)]
struct Connection {
    io: UnixStream,
    local: SocketAddr,
    peer: SocketAddr,
    held: Box<dyn Held>,
}

impl Duplex for Connection {
    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.io.try_read(buffer)
    }

    fn try_write(&self, bytes: &[u8], _more: bool) -> io::Result<usize> {
        self.io.try_write(bytes)
    }

    fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.poll_read_ready(cx)
    }

    fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.poll_write_ready(cx)
    }

    fn is_quiet(&self) -> io::Result<bool> {
        match rustix::net::recv(&self.io, &mut [0u8; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok(_) => Ok(false),
            Err(rustix::io::Errno::AGAIN) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// A pair does not fail: it ends.
    fn failed(&self) -> Boxed<'_, io::Error> {
        Box::pin(std::future::pending())
    }

    fn shutdown_write(&self) -> io::Result<()> {
        socket2::SockRef::from(&self.io).shutdown(Shutdown::Write)
    }

    /// What was written is the other end's already.
    fn unacknowledged(&self) -> io::Result<usize> {
        Ok(0)
    }

    /// There are no resets.
    fn disarm(&self) {}

    fn set(&self, _change: Change) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn stats(&self) -> io::Result<Stats> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.local)
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.peer)
    }

    fn rehome(self: Box<Self>) -> io::Result<Box<dyn Duplex>> {
        let Self { io, local, peer, held } = *self;
        Ok(Box::new(Self { io: UnixStream::from_std(io.into_std()?)?, local, peer, held }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[tokio::test]
    async fn what_a_process_says_comes_and_then_its_end() {
        let addr = "192.0.2.1:1".parse().unwrap();
        let (pair, other) = Pair::new().unwrap();
        let mut other = std::os::unix::net::UnixStream::from(other);
        other.write_all(b"hello").unwrap();
        assert!(pair.has_come().await.unwrap());
        let stream = pair.into_stream((addr, addr), "held");
        let mut room = [0; 9];
        assert_eq!((stream.try_read(&mut room).unwrap(), stream.is_quiet().unwrap()), (5, true));
        assert_eq!(stream.try_write(b"you", false).unwrap(), 3);
        stream.shutdown_write().unwrap();
        let mut said = String::new();
        other.read_to_string(&mut said).unwrap();
        drop(other);
        stream.readable().await.unwrap();
        assert_eq!((said.as_str(), stream.try_read(&mut room).unwrap()), ("you", 0));
        let (pair, other) = Pair::new().unwrap();
        drop(other);
        assert!(!pair.has_come().await.unwrap());
    }
}
