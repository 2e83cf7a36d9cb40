//! A connected TCP stream: reads, writes, ends of either side, errors while nobody reads, statistics (S19).

use crate::carrier::Pipe;
use crate::socket::Note;
use crate::stats::TcpStats;
use crate::sys;
use rustix::net::{RecvFlags, SendFlags};
use rustix::pipe::SpliceFlags;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::AsFd;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::TcpStream;

/// A connection. Dropped, it is reset, unless it was [disarmed](Stream::disarm).
#[derive(Debug)]
pub struct Stream {
    io: TcpStream,
    note: Note,
}

impl Stream {
    pub(crate) fn new(io: TcpStream, note: Note) -> Self {
        Self { io, note }
    }

    /// The same connection on the runtime of the caller: readiness then needs no word between threads.
    ///
    /// # Errors
    /// When the runtime has no room for it; the connection is reset.
    pub fn rehome(self) -> io::Result<Self> {
        Ok(Self { io: TcpStream::from_std(self.io.into_std()?)?, note: self.note })
    }

    /// What the profile asked for and the kernel did not grant, as a sentence.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// The other end.
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.io.peer_addr()
    }

    /// This end.
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.io.local_addr()
    }

    /// What the kernel knows about the connection.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn stats(&self) -> io::Result<TcpStats> {
        TcpStats::of(&self.io)
    }

    /// Reads what is there; 0 at the end of the peer's stream.
    ///
    /// # Errors
    /// `WouldBlock` when nothing is there yet; otherwise the connection has failed.
    pub fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.io.try_read(buffer)
    }

    /// Writes as much as fits. With `more`, the kernel waits for what follows before it sends a short segment.
    ///
    /// # Errors
    /// `WouldBlock` when nothing fits; otherwise the connection has failed.
    pub fn try_write(&self, bytes: &[u8], more: bool) -> io::Result<usize> {
        let flags = SendFlags::NOSIGNAL | if more { SendFlags::MORE } else { SendFlags::empty() };
        self.io.try_io(Interest::WRITABLE, || Ok(rustix::net::send(&self.io, bytes, flags)?))
    }

    /// Whether bytes, an end or an error are there to be read, without reading: the state of an idle connection.
    ///
    /// # Errors
    /// When the connection has failed.
    pub fn is_quiet(&self) -> io::Result<bool> {
        match rustix::net::recv(&self.io, &mut [0u8; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok(_) => Ok(false),
            Err(rustix::io::Errno::AGAIN) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) fn try_splice_in(&self, pipe: &Pipe, max: usize) -> io::Result<usize> {
        const FLAGS: SpliceFlags = SpliceFlags::MOVE.union(SpliceFlags::NONBLOCK);
        self.io.try_io(Interest::READABLE, || Ok(rustix::pipe::splice(&self.io, None, &pipe.write, None, max, FLAGS)?))
    }

    pub(crate) fn try_splice_out(&self, pipe: &Pipe, len: usize) -> io::Result<usize> {
        const FLAGS: SpliceFlags = SpliceFlags::MOVE.union(SpliceFlags::NONBLOCK);
        self.io.try_io(Interest::WRITABLE, || Ok(rustix::pipe::splice(&pipe.read, None, &self.io, None, len, FLAGS)?))
    }

    /// Ready when a read may find something. One task at a time may wait so.
    pub fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.poll_read_ready(cx)
    }

    /// Ready when a write may find room. One task at a time may wait so.
    pub fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.poll_write_ready(cx)
    }

    /// Waits until a read may find something; cancel safe.
    ///
    /// # Errors
    /// When the runtime shuts down.
    pub async fn readable(&self) -> io::Result<()> {
        self.io.readable().await
    }

    /// Waits until a write may find room; cancel safe.
    ///
    /// # Errors
    /// When the runtime shuts down.
    pub async fn writable(&self) -> io::Result<()> {
        self.io.writable().await
    }

    /// Waits until the connection fails, and says how. Nothing else ends this wait: not data, not the end of a stream.
    /// This is how a reset passes a relay that is not reading, because the other side is full.
    pub async fn failed(&self) -> io::Error {
        loop {
            if let Err(error) = self.io.ready(Interest::ERROR).await {
                return error;
            }
            match self.io.take_error() {
                Ok(Some(error)) | Err(error) => return error,
                // Whoever reads or writes got the error instead. The connection is as dead to this caller.
                Ok(None) if self.stats().is_ok_and(|stats| stats.closed) => {
                    return io::Error::from_raw_os_error(libc::ECONNRESET);
                }
                Ok(None) => {}
            }
            // What woke us was not an error of the connection: forget it, wait for the next.
            let _ = self.io.try_io(Interest::ERROR, || Err::<(), _>(io::ErrorKind::WouldBlock.into()));
        }
    }

    /// Ends this side's stream; the peer's goes on (half-close).
    ///
    /// # Errors
    /// When the connection has failed.
    pub fn shutdown_write(&self) -> io::Result<()> {
        socket2::SockRef::from(&self.io).shutdown(Shutdown::Write)
    }

    /// How many bytes the peer has not acknowledged, the end of the stream counting as one.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn unacknowledged(&self) -> io::Result<usize> {
        sys::unacknowledged(self.io.as_fd())
    }

    /// Waits until the peer has acknowledged all bytes and the end of the stream; gives up when `patience` passes
    /// without an acknowledgement of more. A peer that has stopped reading may start again much later, so a relay has
    /// `Duration::MAX`. Cancel safe.
    ///
    /// # Errors
    /// `TimedOut`, or how the connection failed.
    pub async fn delivered(&self, patience: Duration) -> io::Result<()> {
        // The kernel has no event for an empty send queue, so that this asks, ever more rarely.
        const FIRST: Duration = Duration::from_millis(1);
        const LONGEST: Duration = Duration::from_millis(200);
        let (mut pause, mut least, mut silent) = (FIRST, usize::MAX, Duration::ZERO);
        loop {
            if let Some(error) = self.io.take_error()? {
                return Err(error);
            }
            let left = self.unacknowledged()?;
            if left == 0 {
                return Ok(());
            }
            silent = if left < least { Duration::ZERO } else { silent + pause };
            least = left.min(least);
            if silent > patience {
                return Err(io::ErrorKind::TimedOut.into());
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST);
        }
    }

    /// Lets the connection end in peace when it is dropped. Only for one whose both directions have ended and were
    /// forwarded, or which carries no session: bytes that are still to be acknowledged go on being delivered by the kernel.
    pub fn disarm(&self) {
        // Failing to disarm leaves the reset in place, which is the safe side.
        let _ = socket2::SockRef::from(&self.io).set_linger(None);
    }

    /// [Disarms](Stream::disarm) and drops.
    pub fn close(self) {
        self.disarm();
    }
}
