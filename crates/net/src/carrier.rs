//! Moves bytes from stream to stream through pipes, so that the kernel passes pages on and copies nothing.
//!
//! A pipe costs two descriptors and its pages; thousands of idle sessions must not hold one each. So a [`PipePool`] lends
//! them, and a [`Carrier`] is held only while it contains bytes. When all are lent, to sessions whose receivers do not
//! read, a carrier copies through a small buffer instead: slower, but no session waits for another.
//!
//! A carrier is filled only when it is empty. A pipe has a limited number of slots and one short segment takes up a whole
//! one, so that `EAGAIN` from a pipe that is not empty could mean either end.

use crate::stream::Stream;
use rustix::pipe::PipeFlags;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// What a carrier without a pipe holds: 32 KiB is one large segment, and little where memory is what is short.
const COPY_SIZE: usize = 32 * 1024;
/// A pipe that the kernel makes smaller than this (to an unprivileged user who has many) is not worth its system calls.
const PIPE_MIN: usize = 64 * 1024;

/// Pipes that are used again and again; at most `max` exist at a time.
#[derive(Debug)]
pub struct PipePool {
    idle: Mutex<Vec<Pipe>>,
    existing: AtomicUsize,
    max: usize,
    capacity: usize,
}

impl PipePool {
    /// A pool of at most `max` pipes of `capacity` bytes (the kernel rounds up to a power of two of pages).
    pub fn new(max: usize, capacity: usize) -> Arc<Self> {
        Arc::new(Self { idle: Mutex::new(Vec::new()), existing: AtomicUsize::new(0), max, capacity })
    }

    /// An empty carrier, with a pipe if one can be had.
    pub fn carrier(self: &Arc<Self>) -> Carrier {
        Carrier(match self.take() {
            Some(pipe) => Kind::Pipe { pipe: Some(pipe), len: 0, pool: self.clone() },
            None => Kind::Copy { buffer: vec![0; COPY_SIZE].into(), start: 0, end: 0 },
        })
    }

    /// Pipes that exist, and how many of them are idle.
    pub fn usage(&self) -> (usize, usize) {
        (self.existing.load(Ordering::Relaxed), self.idle().len())
    }

    fn take(&self) -> Option<Pipe> {
        if let Some(pipe) = self.idle().pop() {
            return Some(pipe);
        }
        let reserve = |n| if n < self.max { Some(n + 1) } else { None };
        self.existing.fetch_update(Ordering::Relaxed, Ordering::Relaxed, reserve).ok()?;
        let pipe = Pipe::new(self.capacity).ok();
        if pipe.is_none() {
            self.existing.fetch_sub(1, Ordering::Relaxed);
        }
        pipe
    }

    fn put(&self, pipe: Pipe) {
        self.idle().push(pipe);
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Pipe>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
pub(crate) struct Pipe {
    pub(crate) read: OwnedFd,
    pub(crate) write: OwnedFd,
}

impl Pipe {
    fn new(capacity: usize) -> io::Result<Self> {
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // A refusal leaves the default of 16 pages.
        let _ = rustix::pipe::fcntl_setpipe_size(&write, capacity);
        if rustix::pipe::fcntl_getpipe_size(&write)? < PIPE_MIN.min(capacity) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        Ok(Self { read, write })
    }
}

/// Bytes on their way from one stream to another.
#[derive(Debug)]
pub struct Carrier(Kind);

#[derive(Debug)]
enum Kind {
    /// `pipe` is only absent once the carrier has been dropped.
    Pipe {
        pipe: Option<Pipe>,
        len: usize,
        pool: Arc<PipePool>,
    },
    Copy {
        buffer: Box<[u8]>,
        start: usize,
        end: usize,
    },
}

impl Carrier {
    /// How many bytes it holds.
    pub fn len(&self) -> usize {
        match &self.0 {
            Kind::Pipe { len, .. } => *len,
            Kind::Copy { start, end, .. } => end - start,
        }
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes up to `max` bytes from `stream` and returns how many; 0 when the peer's stream has ended. Only for an empty
    /// carrier and a `max` above 0.
    ///
    /// # Errors
    /// `WouldBlock` when nothing is there yet; otherwise the connection has failed.
    pub fn fill(&mut self, stream: &Stream, max: usize) -> io::Result<usize> {
        debug_assert!(self.is_empty() && max > 0);
        match &mut self.0 {
            Kind::Pipe { pipe, len, .. } => {
                let Some(pipe) = pipe else { return Err(io::ErrorKind::BrokenPipe.into()) };
                *len = stream.try_splice_in(pipe, max)?;
                Ok(*len)
            }
            Kind::Copy { buffer, start, end } => {
                let max = max.min(buffer.len());
                (*start, *end) = (0, 0);
                *end = stream.try_read(&mut buffer[..max])?;
                Ok(*end)
            }
        }
    }

    /// Gives what it holds to `stream`, as much as fits, and returns how many bytes that was.
    ///
    /// # Errors
    /// `WouldBlock` when nothing fits; otherwise the connection has failed.
    pub fn drain(&mut self, stream: &Stream) -> io::Result<usize> {
        match &mut self.0 {
            Kind::Pipe { pipe, len, .. } => {
                let Some(pipe) = pipe else { return Err(io::ErrorKind::BrokenPipe.into()) };
                let n = stream.try_splice_out(pipe, *len)?;
                *len -= n;
                Ok(n)
            }
            Kind::Copy { buffer, start, end } => {
                let n = stream.try_write(&buffer[*start..*end], false)?;
                *start += n;
                Ok(n)
            }
        }
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        if let Kind::Pipe { pipe, len, pool } = &mut self.0
            && let Some(pipe) = pipe.take()
        {
            // One that still holds bytes of a failed session must not give them to the next.
            if *len == 0 {
                pool.put(pipe);
            } else {
                pool.existing.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}
