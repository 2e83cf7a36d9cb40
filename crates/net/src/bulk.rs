//! Moves bytes between a TCP connection and an open file on a thread that may block. The kernel passes pages
//! on without copying where it can, and threads exchange no wake-ups as long as the peer keeps up.
//!
//! Reading a file may wait for a disk, so this work does not belong on a runtime's own threads. A thread that
//! waits for a slow connection is lost to other work. So each call here waits for the connection itself, but
//! only for [`PATIENCE`], and then returns `WouldBlock`: the thread is released, and the runtime waits for
//! readiness ([`Bulk::into_stream`]).
//!
//! No runtime watches the connection meanwhile. Each segment and each acknowledgement would otherwise wake
//! the runtime for nothing, in addition to the thread. On loopback this cost the peer a third of its
//! throughput, because the sender's side performs the wake-up.

use crate::carrier::Pipe;
use crate::stream::Stream;
use crate::tcp::Plain;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustix::pipe::SpliceFlags;
use std::fs::File;
use std::io;
use std::time::Duration;

/// Longest wait for the connection before a call releases its thread. A peer on the same machine or in the
/// same room answers far sooner, and a cancelled transfer is still noticed without a visible delay.
pub const PATIENCE: Duration = Duration::from_millis(10);

/// Pause before polling for input, in which arriving segments gather: about the kernel's own timer slack, and
/// little for any buffer. A receiver that is faster than the sender would otherwise be woken for each
/// segment, and the sender's side pays for each wake-up.
const GATHERING: Duration = Duration::from_micros(10);

/// Capacity of a [`SplicePipe`], in bytes: large enough to make wake-ups negligible. The kernel grants an
/// unprivileged user 64 pipes of this size.
const PIPE_CAPACITY: usize = 1 << 20;

/// A connection whose bytes are those of its socket, not registered with any runtime, for a thread that may
/// block. Dropping it resets the connection.
#[derive(Debug)]
pub struct Bulk(Plain);

impl Stream {
    /// Whether the stream's bytes are exactly those of a TCP socket, so that [`into_bulk`](Self::into_bulk)
    /// can succeed.
    pub fn is_bulk(&self) -> bool {
        self.socket().is_some()
    }

    /// Converts the stream for use by a thread that may block. A failure resets the connection.
    ///
    /// # Errors
    /// `Unsupported` if [`is_bulk`](Self::is_bulk) is false; otherwise an error if no descriptor is left.
    pub fn into_bulk(self) -> io::Result<Bulk> {
        let plain = self.into_plain()?;
        // `sendfile` has no per-call flag for non-blocking mode: on a blocking socket it would wait without
        // limit.
        rustix::io::ioctl_fionbio(&plain, true)?;
        Ok(Bulk(plain))
    }
}

impl Bulk {
    /// Registers the connection with the caller's runtime again.
    ///
    /// # Errors
    /// When the runtime cannot register the socket; the connection is reset.
    pub fn into_stream(self) -> io::Result<Stream> {
        self.0.into_stream()
    }

    /// Reads what has arrived; 0 at the end of the peer's stream.
    ///
    /// # Errors
    /// `WouldBlock` when nothing arrived within [`PATIENCE`]; otherwise the connection has failed.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.patiently(PollFlags::IN, || Ok(rustix::net::recv(&self.0, &mut *buffer, RecvFlags::DONTWAIT)?.0))
    }

    /// Writes as much as fits. With `more`, the kernel may hold back a short segment until further bytes
    /// follow.
    ///
    /// # Errors
    /// `WouldBlock` when nothing fitted within [`PATIENCE`]; otherwise the connection has failed.
    pub fn write(&self, bytes: &[u8], more: bool) -> io::Result<usize> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT | if more { SendFlags::MORE } else { SendFlags::empty() };
        self.patiently(PollFlags::OUT, || rustix::net::send(&self.0, bytes, flags))
    }

    /// Writes up to `len` bytes of `file` from offset `at` on, without reading them into memory; 0 at the end
    /// of the file. If the file changes before the peer has acknowledged the bytes, the changed bytes may be
    /// sent.
    ///
    /// # Errors
    /// `WouldBlock` when nothing fitted within [`PATIENCE`]; otherwise the connection or the file has failed.
    pub fn send_file(&self, file: &File, at: u64, len: usize) -> io::Result<usize> {
        self.patiently(PollFlags::OUT, || rustix::fs::sendfile(&self.0, file, Some(&mut { at }), len))
    }

    /// Retries `attempt` until it succeeds. Gives up with `WouldBlock` after one wait for readiness.
    fn patiently(&self, ready: PollFlags, mut attempt: impl FnMut() -> Result<usize, Errno>) -> io::Result<usize> {
        let mut waited = false;
        loop {
            match attempt() {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if waited || !self.wait(ready)? => return Err(io::ErrorKind::WouldBlock.into()),
                Err(Errno::AGAIN) => waited = true,
                other => return Ok(other?),
            }
        }
    }

    /// Waits up to [`PATIENCE`] for readiness, and returns whether the socket became ready.
    fn wait(&self, ready: PollFlags) -> io::Result<bool> {
        if ready == PollFlags::IN {
            std::thread::sleep(GATHERING);
        }
        let limit = Timespec { tv_sec: 0, tv_nsec: i64::from(PATIENCE.subsec_nanos()) };
        match rustix::event::poll(&mut [PollFd::new(&self.0, ready)], Some(&limit)) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }
}

/// A pipe through which bytes move from a connection into a file. It holds bytes only between
/// [`SplicePipe::fill`] and the [`drain`](Self::drain) or [`take`](Self::take) that empties it. A pipe that
/// was not emptied must not be used again.
#[derive(Debug)]
pub struct SplicePipe {
    pipe: Pipe,
    len: usize,
}

impl SplicePipe {
    /// Creates an empty pipe.
    ///
    /// # Errors
    /// When no descriptor is left, or when the kernel grants a pipe too small to be worth its system calls,
    /// as it does to an unprivileged user who owns many.
    pub fn new() -> io::Result<Self> {
        Ok(Self { pipe: Pipe::new(PIPE_CAPACITY)?, len: 0 })
    }

    /// Moves up to `max` bytes from `from` into the empty pipe and returns their number; 0 at the end of the
    /// peer's stream.
    ///
    /// # Errors
    /// As [`Bulk::read`].
    pub fn fill(&mut self, from: &Bulk, max: usize) -> io::Result<usize> {
        debug_assert!(self.len == 0 && max > 0);
        let max = max.min(PIPE_CAPACITY);
        let (socket, into) = (&from.0, &self.pipe.write);
        self.len = from
            .patiently(PollFlags::IN, || rustix::pipe::splice(socket, None, into, None, max, SpliceFlags::NONBLOCK))?;
        Ok(self.len)
    }

    /// Writes everything in the pipe to `file`, from offset `at` on. Returns false, and writes nothing, if
    /// the file does not accept spliced bytes.
    ///
    /// # Errors
    /// Whatever the file system reports.
    pub fn drain(&mut self, file: &File, mut at: u64) -> io::Result<bool> {
        let all = self.len;
        while self.len > 0 {
            // The kernel advances `at`.
            match rustix::pipe::splice(&self.pipe.read, None, file, Some(&mut at), self.len, SpliceFlags::MOVE) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => self.len -= n,
                Err(Errno::INTR) => {}
                Err(Errno::INVAL) if self.len == all => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    /// Reads everything in the pipe into memory.
    ///
    /// # Errors
    /// When the pipe cannot be read.
    pub fn take(&mut self) -> io::Result<Vec<u8>> {
        let (mut bytes, mut done) = (vec![0; self.len], 0);
        while done < bytes.len() {
            match rustix::io::read(&self.pipe.read, &mut bytes[done..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.len = 0;
        Ok(bytes)
    }
}
