//! A connection to another process of this machine, by a pair of sockets of which it has one as its standard input and output:
//! programs that carry bytes elsewhere, such as `ssh`.
//!
//! Its ends are whatever that process makes of them: one that is killed ends it as one does that has said all. Where the other end is
//! this program's own, which carries the bytes by a protocol that has ends, [`Ends`] tell the two apart.

use crate::duplex::OtherEnd;
use crate::stats::Stats;
use crate::stream::Stream;
use crate::transport::{Boxed, Change, Duplex};
use crate::waiting::other_end;
use rustix::net::RecvFlags;
use std::fmt;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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

    /// One, and the other end, for a part of this program that carries what is said here elsewhere. Called within the runtime that is
    /// to watch both.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub fn within() -> io::Result<(Self, UnixStream)> {
        let (one, other) = UnixStream::pair()?;
        Ok((Self(one), other))
    }

    /// The socket itself.
    pub fn into_inner(self) -> UnixStream {
        self.0
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
        Connection { io: self.0, local, peer, ends: None, held: Box::new(held) }.into()
    }

    /// The same where whoever has the other end says by `ends` which end is one, and is told so by them.
    pub fn into_stream_with_ends(self, (local, peer): (SocketAddr, SocketAddr), ends: Arc<Ends>) -> Stream {
        Connection { io: self.0, local, peer, ends: Some(ends), held: Box::new(()) }.into()
    }
}

impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pair").finish_non_exhaustive()
    }
}

/// Which ends of a pair are those of somebody who has said all, and not of somebody who was cut off.
#[derive(Debug, Default)]
pub struct Ends {
    ours: AtomicBool,
    theirs: AtomicBool,
}

impl Ends {
    /// Whether what comes from the stream to its end is all that was to be said. If not, the stream was dropped before.
    pub fn has_said_all(&self) -> bool {
        self.ours.load(Ordering::Acquire)
    }

    /// The next end that the stream meets is that of somebody who has said all. Called before it is ended.
    pub fn all_has_come(&self) {
        self.theirs.store(true, Ordering::Release);
    }
}

trait Held: fmt::Debug + Send + Sync {}

impl<T: fmt::Debug + Send + Sync> Held for T {}

#[derive(Debug)]
struct Connection {
    io: UnixStream,
    local: SocketAddr,
    peer: SocketAddr,
    ends: Option<Arc<Ends>>,
    held: Box<dyn Held>,
}

impl Connection {
    /// Notes that this end has said all.
    fn finish(&self) {
        if let Some(ends) = &self.ends {
            ends.ours.store(true, Ordering::Release);
        }
    }
}

impl Duplex for Connection {
    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.io.try_read(buffer) {
            Ok(0)
                if !buffer.is_empty()
                    && self.ends.as_ref().is_some_and(|ends| !ends.theirs.load(Ordering::Acquire)) =>
            {
                Err(io::ErrorKind::ConnectionReset.into())
            }
            read => read,
        }
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

    fn other_end(&self) -> Option<OtherEnd> {
        other_end(&self.io)
    }

    /// A pair does not fail: it ends.
    fn failed(&self) -> Boxed<'_, io::Error> {
        Box::pin(std::future::pending())
    }

    fn shutdown_write(&self) -> io::Result<()> {
        self.finish();
        socket2::SockRef::from(&self.io).shutdown(Shutdown::Write)
    }

    /// What was written is the other end's already.
    fn unacknowledged(&self) -> io::Result<usize> {
        Ok(0)
    }

    /// There are no resets but those that ends tell.
    fn disarm(&self) {
        self.finish();
    }

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
        let Self { io, local, peer, ends, held } = *self;
        Ok(Box::new(Self { io: UnixStream::from_std(io.into_std()?)?, local, peer, ends, held }))
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

    #[tokio::test]
    async fn ends_tell_who_was_cut_off() {
        let addr = "192.0.2.1:1".parse().unwrap();
        for all in [true, false] {
            let (pair, other) = Pair::within().unwrap();
            let ends = Arc::new(Ends::default());
            let stream = pair.into_stream_with_ends((addr, addr), ends.clone());
            if all {
                ends.all_has_come();
            }
            drop(other);
            stream.readable().await.unwrap();
            let read = stream.try_read(&mut [0; 9]);
            match all {
                true => assert_eq!(read.unwrap(), 0),
                false => assert_eq!(read.unwrap_err().kind(), io::ErrorKind::ConnectionReset),
            }
            assert!(!ends.has_said_all());
            if all {
                stream.disarm();
                assert!(ends.has_said_all());
            }
        }
    }
}
