//! Bytes between a TCP connection and an open file, moved by a thread that may block: the kernel passes pages on and copies
//! nothing where it can, and there is no word between threads as long as the other end keeps up.
//!
//! Reading a file may wait for a disk, so this is no work for a runtime's own threads; and a thread that waits for a slow
//! connection is lost to others. So each call here waits for the connection itself, but not for long ([`PATIENCE`]), and then says
//! `WouldBlock`: the thread goes, and the runtime waits ([`Bulk::into_stream`]).
//!
//! Meanwhile no runtime watches the connection. It would be woken by each segment that comes and each acknowledgement, beside the
//! thread and for nothing: on loopback that cost the other end a third of its throughput, since it is who has to wake.

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

/// How long a call waits for the connection before it gives the thread back: far longer than a peer on the same machine or in the
/// same room needs, and no longer than giving up may take to be noticed.
pub const PATIENCE: Duration = Duration::from_millis(10);

/// How long what comes is left to gather once there was nothing: some of the kernel's own delays of a timer, and little for any
/// buffer. Whoever takes bytes faster than they come would be woken for each segment, and the sender is who has to wake.
const GATHERING: Duration = Duration::from_micros(10);

/// What a [`Siphon`] holds: enough for a wake-up not to count. The kernel gives an unprivileged user 64 of them.
const SIPHON: usize = 1 << 20;

/// A connection whose bytes are those of its socket, under the watch of no runtime, for a thread that may block. Dropped, it is
/// reset.
#[derive(Debug)]
pub struct Bulk(Plain);

impl Stream {
    /// Whether its bytes are those of a TCP socket as they are, so that it can be [made](Self::into_bulk) one for a thread.
    pub fn is_bulk(&self) -> bool {
        self.socket().is_some()
    }

    /// Itself for a thread that may block. If that cannot be it is reset.
    ///
    /// # Errors
    /// `Unsupported` where it is [not](Self::is_bulk) one of these, or when there is no descriptor left.
    pub fn into_bulk(self) -> io::Result<Bulk> {
        let plain = self.into_plain()?;
        // What sends files waits for the connection otherwise, for as long as it takes.
        rustix::io::ioctl_fionbio(&plain, true)?;
        Ok(Bulk(plain))
    }
}

impl Bulk {
    /// Under the watch of the caller's runtime again.
    ///
    /// # Errors
    /// When the runtime has no room for it; it is reset.
    pub fn into_stream(self) -> io::Result<Stream> {
        self.0.into_stream()
    }

    /// Reads what is there; 0 at the end of the peer's stream.
    ///
    /// # Errors
    /// `WouldBlock` when nothing came for a while; otherwise the connection has failed.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.patiently(PollFlags::IN, || Ok(rustix::net::recv(&self.0, &mut *buffer, RecvFlags::DONTWAIT)?.0))
    }

    /// Writes as much as fits. With `more`, what follows may be waited for before a short segment is sent.
    ///
    /// # Errors
    /// `WouldBlock` when nothing fitted for a while; otherwise the connection has failed.
    pub fn write(&self, bytes: &[u8], more: bool) -> io::Result<usize> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT | if more { SendFlags::MORE } else { SendFlags::empty() };
        self.patiently(PollFlags::OUT, || rustix::net::send(&self.0, bytes, flags))
    }

    /// Writes up to `len` bytes of `file` from `at` on, without reading them into memory; 0 if the file ends there. What is changed
    /// in the file before the peer has acknowledged it may be sent as it has become.
    ///
    /// # Errors
    /// `WouldBlock` when nothing fitted for a while; otherwise the connection or the file has failed.
    pub fn send_file(&self, file: &File, at: u64, len: usize) -> io::Result<usize> {
        self.patiently(PollFlags::OUT, || rustix::fs::sendfile(&self.0, file, Some(&mut { at }), len))
    }

    /// Tries until it is done, or the connection has not been ready for it for too long.
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

    /// Waits until something can be done, though not for long; whether it can.
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

/// A pipe through which bytes come from a connection into a file. It holds some only between [`Siphon::fill`] and what takes them
/// all; one that was not emptied is not used again.
#[derive(Debug)]
pub struct Siphon {
    pipe: Pipe,
    len: usize,
}

impl Siphon {
    /// An empty one.
    ///
    /// # Errors
    /// The kernel has no descriptors left, or makes it too small for its system calls to be worth it, as it does to an unprivileged
    /// user who has many.
    pub fn new() -> io::Result<Self> {
        Ok(Self { pipe: Pipe::new(SIPHON)?, len: 0 })
    }

    /// Takes up to `max` bytes from `from`, and returns how many; 0 at the end of the peer's stream. Only for one that is empty.
    ///
    /// # Errors
    /// As [`Bulk::read`].
    pub fn fill(&mut self, from: &Bulk, max: usize) -> io::Result<usize> {
        debug_assert!(self.len == 0 && max > 0);
        let max = max.min(SIPHON);
        let (socket, into) = (&from.0, &self.pipe.write);
        self.len = from
            .patiently(PollFlags::IN, || rustix::pipe::splice(socket, None, into, None, max, SpliceFlags::NONBLOCK))?;
        Ok(self.len)
    }

    /// Writes all that it holds to `file`, from `at` on; or nothing, and says so, if that is of a kind that takes nothing out of pipes.
    ///
    /// # Errors
    /// What the file's system says.
    pub fn drain(&mut self, file: &File, mut at: u64) -> io::Result<bool> {
        let all = self.len;
        while self.len > 0 {
            // Moves `at` on by itself.
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

    /// All that it holds, in memory.
    ///
    /// # Errors
    /// When it cannot be read.
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
