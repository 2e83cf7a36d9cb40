//! Moves bytes between a TCP connection and an open file on a thread that may block. The kernel passes pages
//! on without copying where it can, and threads exchange no wake-ups as long as the peer keeps up.
//!
//! Reading a file may wait for a disk, so this work does not belong on a runtime's own threads. A thread that
//! waits for a slow connection is lost to other work. So each call here waits for the connection itself, but
//! only for [`WAIT_MAX`], and then returns `WouldBlock`: the thread is released, and the runtime waits for
//! readiness ([`Bulk::into_stream`]).
//!
//! No runtime watches the connection meanwhile. Each segment and each acknowledgement would otherwise wake
//! the runtime for nothing, in addition to the thread. On loopback this cost the peer a third of its
//! throughput, because the sender's side performs the wake-up.

use crate::carrier::Pipe;
use crate::poll_pause::PollPause;
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
pub const WAIT_MAX: Duration = Duration::from_millis(10);

/// Capacity of a [`SplicePipe`], in bytes: large enough to make wake-ups negligible. The kernel grants an
/// unprivileged user 64 pipes of this size.
const PIPE_CAPACITY: usize = 1 << 20;

/// A connection whose bytes are those of its socket, not registered with any runtime, for a thread that may
/// block. Dropping it resets the connection.
#[derive(Debug)]
pub struct Bulk {
    plain: Plain,
    pause: PollPause,
}

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
        Ok(Bulk { plain, pause: PollPause::new() })
    }
}

impl Bulk {
    /// Registers the connection with the caller's runtime again.
    ///
    /// # Errors
    /// When the runtime cannot register the socket; the connection is reset.
    pub fn into_stream(self) -> io::Result<Stream> {
        self.plain.into_stream()
    }

    /// Reads what has arrived; 0 at the end of the peer's stream.
    ///
    /// # Errors
    /// `WouldBlock` when nothing arrived within [`WAIT_MAX`]; otherwise the connection has failed.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.receive(|| Ok(rustix::net::recv(&self.plain, &mut *buffer, RecvFlags::DONTWAIT)?.0))
    }

    /// Writes as much as fits. With `more`, the kernel may hold back a short segment until further bytes
    /// follow.
    ///
    /// # Errors
    /// `WouldBlock` when nothing fitted within [`WAIT_MAX`]; otherwise the connection has failed.
    pub fn write(&self, bytes: &[u8], more: bool) -> io::Result<usize> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT | if more { SendFlags::MORE } else { SendFlags::empty() };
        self.patiently(PollFlags::OUT, || rustix::net::send(&self.plain, bytes, flags))
    }

    /// Writes up to `len` bytes of `file` from offset `at` on, without reading them into memory; 0 at the end
    /// of the file. If the file changes before the peer has acknowledged the bytes, the changed bytes may be
    /// sent.
    ///
    /// # Errors
    /// `WouldBlock` when nothing fitted within [`WAIT_MAX`]; otherwise the connection or the file has failed.
    pub fn send_file(&self, file: &File, at: u64, len: usize) -> io::Result<usize> {
        self.patiently(PollFlags::OUT, || rustix::fs::sendfile(&self.plain, file, Some(&mut { at }), len))
    }

    /// Receives by `attempt`.
    fn receive(&self, attempt: impl FnMut() -> Result<usize, Errno>) -> io::Result<usize> {
        let received = self.patiently(PollFlags::IN, attempt)?;
        self.pause.received(received);
        Ok(received)
    }

    /// Retries `attempt` until it succeeds. Gives up with `WouldBlock` after one wait for readiness.
    fn patiently(&self, ready: PollFlags, mut attempt: impl FnMut() -> Result<usize, Errno>) -> io::Result<usize> {
        let mut has_waited = false;
        loop {
            match attempt() {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if has_waited || !self.wait(ready)? => {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                Err(Errno::AGAIN) => has_waited = true,
                other => return Ok(other?),
            }
        }
    }

    /// Waits up to [`WAIT_MAX`] for readiness, and returns whether the socket became ready.
    fn wait(&self, ready: PollFlags) -> io::Result<bool> {
        if ready == PollFlags::IN {
            let buffer = rustix::net::sockopt::socket_recv_buffer_size(&self.plain).unwrap_or(0);
            std::thread::sleep(self.pause.next(buffer));
        }
        let limit = Timespec { tv_sec: 0, tv_nsec: i64::from(WAIT_MAX.subsec_nanos()) };
        match rustix::event::poll(&mut [PollFd::new(&self.plain, ready)], Some(&limit)) {
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
        let (socket, into) = (&from.plain, &self.pipe.write);
        self.len = from.receive(|| rustix::pipe::splice(socket, None, into, None, max, SpliceFlags::NONBLOCK))?;
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
