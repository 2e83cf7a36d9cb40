//! A connection to another process of this host over a socket pair that the process has as its standard input
//! and output: for programs that carry bytes elsewhere, such as `ssh`.
//!
//! The end of such a stream is ambiguous: a process that was killed ends it just as one that has sent
//! everything. Where the other end is part of this program and carries the bytes over a protocol with an
//! authenticated close, [`Ends`] distinguish the two.

use crate::duplex::OtherEnd;
use crate::stats::Stats;
use crate::stream::Stream;
use crate::transport::{Boxed, Change, Duplex, DuplexControl, DuplexIo, DuplexTelemetry};
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

/// This end of a socket pair, not yet in use.
pub struct Pair(UnixStream);

impl Pair {
    /// Creates a pair and returns the other end for a process. Must be called within the runtime that is to
    /// watch this end.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn new() -> io::Result<(Self, OwnedFd)> {
        let (one, other) = std::os::unix::net::UnixStream::pair()?;
        one.set_nonblocking(true)?;
        Ok((Self(UnixStream::from_std(one)?), other.into()))
    }

    /// Creates a pair and returns the other end for another task of this program, which carries the bytes
    /// elsewhere. Must be called within the runtime that is to watch both.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn in_process() -> io::Result<(Self, UnixStream)> {
        let (one, other) = UnixStream::pair()?;
        Ok((Self(one), other))
    }

    /// Unwraps the socket.
    pub fn into_inner(self) -> UnixStream {
        self.0
    }

    /// Waits for input or the end of the stream, and returns whether there is input. Cancel safe.
    ///
    /// # Errors
    /// When the pair has failed.
    pub async fn has_input(&self) -> io::Result<bool> {
        Ok(self.peek(&mut [0]).await? > 0)
    }

    /// Waits for input and peeks at it: copies what fits into `room` without consuming it, and returns the
    /// number of bytes; 0 at the end of the stream. Cancel safe.
    ///
    /// # Errors
    /// When the pair has failed.
    pub async fn peek(&self, room: &mut [u8]) -> io::Result<usize> {
        loop {
            self.0.readable().await?;
            let seen = self.0.try_io(tokio::io::Interest::READABLE, || {
                Ok(rustix::net::recv(&self.0, &mut *room, RecvFlags::PEEK | RecvFlags::DONTWAIT)?)
            });
            match seen {
                Ok((len, _)) => return Ok(len),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Converts the pair into a stream whose addresses are `local` and `peer`. The stream owns `held` until
    /// it is dropped.
    pub fn into_stream(
        self,
        (local, peer): (SocketAddr, SocketAddr),
        held: impl fmt::Debug + Send + Sync + 'static,
    ) -> Stream {
        Connection { io: self.0, local, peer, ends: None, held: Box::new(held) }.into()
    }

    /// As [`Pair::into_stream`]. Both sides use `ends` to tell each other which end of stream is a clean
    /// close.
    pub fn into_stream_with_ends(self, (local, peer): (SocketAddr, SocketAddr), ends: Arc<Ends>) -> Stream {
        Connection { io: self.0, local, peer, ends: Some(ends), held: Box::new(()) }.into()
    }
}

impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pair").finish_non_exhaustive()
    }
}

/// Marks which ends of stream on a pair are a clean close and which are a cut.
#[derive(Debug, Default)]
pub struct Ends {
    ours: AtomicBool,
    theirs: AtomicBool,
}

impl Ends {
    /// Whether the stream was closed in order: the bytes read from it up to its end are complete. If not, the
    /// stream was dropped early.
    pub fn closed_in_order(&self) -> bool {
        self.ours.load(Ordering::Acquire)
    }

    /// Marks the next end of stream that the stream reads as a clean close. Must be called before that end is
    /// sent.
    pub fn mark_clean_close(&self) {
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
    /// Records that this end has sent everything.
    fn finish(&self) {
        if let Some(ends) = &self.ends {
            ends.ours.store(true, Ordering::Release);
        }
    }
}

impl DuplexIo for Connection {
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

    fn shutdown_write(&self) -> io::Result<()> {
        self.finish();
        socket2::SockRef::from(&self.io).shutdown(Shutdown::Write)
    }

    /// Written bytes are in the peer's socket buffer at once.
    fn unacknowledged(&self) -> io::Result<usize> {
        Ok(0)
    }
}

impl DuplexControl for Connection {
    fn other_end(&self) -> Option<OtherEnd> {
        other_end(&self.io)
    }

    /// A socket pair does not fail: it only ends.
    fn failed(&self) -> Boxed<'_, io::Error> {
        Box::pin(std::future::pending())
    }

    /// A pair has no reset: an end without the mark in [`Ends`] stands for one.
    fn disarm(&self) {
        self.finish();
    }

    fn set(&self, _change: Change) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn move_to_runtime(self: Box<Self>) -> io::Result<Box<dyn Duplex>> {
        let Self { io, local, peer, ends, held } = *self;
        Ok(Box::new(Self { io: UnixStream::from_std(io.into_std()?)?, local, peer, ends, held }))
    }
}

impl DuplexTelemetry for Connection {
    fn stats(&self) -> io::Result<Stats> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.local)
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[tokio::test]
    async fn pair_delivers_a_process_s_output_and_then_its_end() {
        let addr = "192.0.2.1:1".parse().unwrap();
        let (pair, other) = Pair::new().unwrap();
        let mut other = std::os::unix::net::UnixStream::from(other);
        other.write_all(b"hello").unwrap();
        assert!(pair.has_input().await.unwrap());
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
        assert!(!pair.has_input().await.unwrap());
    }

    #[tokio::test]
    async fn ends_distinguish_a_cut_from_a_clean_close() {
        let addr = "192.0.2.1:1".parse().unwrap();
        for all in [true, false] {
            let (pair, other) = Pair::in_process().unwrap();
            let ends = Arc::new(Ends::default());
            let stream = pair.into_stream_with_ends((addr, addr), ends.clone());
            if all {
                ends.mark_clean_close();
            }
            drop(other);
            stream.readable().await.unwrap();
            let read = stream.try_read(&mut [0; 9]);
            match all {
                true => assert_eq!(read.unwrap(), 0),
                false => assert_eq!(read.unwrap_err().kind(), io::ErrorKind::ConnectionReset),
            }
            assert!(!ends.closed_in_order());
            if all {
                stream.disarm();
                assert!(ends.closed_in_order());
            }
        }
    }
}
