//! Moves bytes from stream to stream. Where both streams are plain sockets, the bytes go through a pipe, and
//! the kernel passes pages on without copying; otherwise they go through a buffer.
//!
//! A pipe costs two descriptors and its pages, and thousands of idle sessions must not hold one each. So a
//! [`PipePool`] lends pipes, and a [`Carrier`] exists only while it contains bytes. When all pipes are lent,
//! to sessions whose receivers do not read, a carrier copies: slower, but no session waits for another.
//!
//! A carrier is filled only when it is empty. A pipe has a limited number of slots and one short segment
//! occupies a whole slot, so `EAGAIN` on a pipe that is not empty could mean that either end is not ready.

use crate::memory::{PageOffset, PageOffsetBuffer};
use crate::stream::Stream;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, SpliceFlags};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::io::Interest;

/// Buffer size, in bytes, of a carrier that got no pipe: 32 KiB holds one large segment, and costs little
/// where memory is short.
const SPARE_SIZE: usize = 32 * 1024;
/// Buffer size, in bytes, of a carrier between streams that cannot be spliced: several large segments or TLS
/// records, within a processor's cache.
const COPY_SIZE: usize = 128 * 1024;
/// Most idle buffers of [`COPY_SIZE`] that the pool keeps for reuse.
const COPY_IDLE: usize = 64;
/// A pipe that the kernel makes smaller than this (to an unprivileged user who has many) is not worth its system calls.
const PIPE_MIN: usize = 64 * 1024;

/// Pipes and buffers for reuse; at most `max` pipes exist at a time.
#[derive(Debug)]
pub struct PipePool {
    idle: Mutex<Vec<Pipe>>,
    buffers: Mutex<Vec<PageOffsetBuffer>>,
    existing: AtomicUsize,
    max: usize,
    capacity: usize,
}

impl PipePool {
    /// Creates a pool of at most `max` pipes of `capacity` bytes (the kernel rounds up to a power of two of
    /// pages).
    pub fn new(max: usize, capacity: usize) -> Arc<Self> {
        Arc::new(Self {
            idle: Mutex::default(),
            buffers: Mutex::default(),
            existing: AtomicUsize::new(0),
            max,
            capacity,
        })
    }

    /// Creates an empty carrier from one stream to another.
    pub fn carrier(self: &Arc<Self>, from: &Stream, to: &Stream) -> Carrier {
        if from.socket().is_none() || to.socket().is_none() {
            let idle = lock(&self.buffers).pop();
            return self.copying(idle.unwrap_or_else(|| PageOffsetBuffer::new(COPY_SIZE, PageOffset::Carried)));
        }
        match self.take() {
            Some(pipe) => Carrier { kind: Kind::Pipe { pipe: Some(pipe), len: 0 }, pool: self.clone() },
            None => self.copying(PageOffsetBuffer::new(SPARE_SIZE, PageOffset::Carried)),
        }
    }

    fn copying(self: &Arc<Self>, buffer: PageOffsetBuffer) -> Carrier {
        Carrier { kind: Kind::Copy { buffer, start: 0, end: 0 }, pool: self.clone() }
    }

    /// The number of existing pipes, and how many of them are idle.
    pub fn usage(&self) -> (usize, usize) {
        (self.existing.load(Ordering::Relaxed), lock(&self.idle).len())
    }

    fn take(&self) -> Option<Pipe> {
        if let Some(pipe) = lock(&self.idle).pop() {
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
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
pub(crate) struct Pipe {
    pub(crate) read: OwnedFd,
    pub(crate) write: OwnedFd,
}

impl Pipe {
    pub(crate) fn new(capacity: usize) -> io::Result<Self> {
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // If the kernel refuses, the pipe keeps its default of 16 pages.
        let _ = rustix::pipe::fcntl_setpipe_size(&write, capacity);
        if rustix::pipe::fcntl_getpipe_size(&write)? < PIPE_MIN.min(capacity) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        Ok(Self { read, write })
    }
}

/// Bytes on their way from one stream to another.
#[derive(Debug)]
pub struct Carrier {
    kind: Kind,
    pool: Arc<PipePool>,
}

#[derive(Debug)]
enum Kind {
    /// `pipe` is `None` only after the carrier was dropped.
    Pipe {
        pipe: Option<Pipe>,
        len: usize,
    },
    Copy {
        buffer: PageOffsetBuffer,
        start: usize,
        end: usize,
    },
}

impl Carrier {
    /// The number of bytes that the carrier holds.
    pub fn len(&self) -> usize {
        match &self.kind {
            Kind::Pipe { len, .. } => *len,
            Kind::Copy { start, end, .. } => end - start,
        }
    }

    /// Whether the carrier holds no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the carrier can be filled from and drained to `stream`. A pipe cannot be while the stream's
    /// bytes are not those of its socket.
    pub fn suits(&self, stream: &Stream) -> bool {
        matches!(self.kind, Kind::Copy { .. }) || stream.socket().is_some()
    }

    /// Takes up to `max` bytes from `stream` and returns their number; 0 at the end of the peer's stream. The
    /// carrier must be empty, and `max` above 0.
    ///
    /// # Errors
    /// `WouldBlock` when nothing has arrived yet; otherwise the connection has failed.
    pub fn fill(&mut self, stream: &Stream, max: usize) -> io::Result<usize> {
        debug_assert!(self.is_empty() && max > 0);
        match &mut self.kind {
            Kind::Pipe { pipe, len, .. } => {
                let Some(pipe) = pipe else { return Err(io::ErrorKind::BrokenPipe.into()) };
                *len = splice_in(stream, pipe, max)?;
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

    /// Writes as much of its content to `stream` as fits, and returns the number of bytes written.
    ///
    /// # Errors
    /// `WouldBlock` when nothing fits; otherwise the connection has failed.
    pub fn drain(&mut self, stream: &Stream) -> io::Result<usize> {
        match &mut self.kind {
            Kind::Pipe { pipe, len, .. } => {
                let Some(pipe) = pipe else { return Err(io::ErrorKind::BrokenPipe.into()) };
                let n = splice_out(stream, pipe, *len)?;
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
        match &mut self.kind {
            Kind::Pipe { pipe, len } => {
                let Some(pipe) = pipe.take() else { return };
                // A pipe that still holds bytes of a failed session must not pass them to the next session.
                if *len == 0 {
                    lock(&self.pool.idle).push(pipe);
                } else {
                    self.pool.existing.fetch_sub(1, Ordering::Relaxed);
                }
            }
            Kind::Copy { buffer, .. } => {
                let mut idle = lock(&self.pool.buffers);
                if buffer.len() == COPY_SIZE && idle.len() < COPY_IDLE {
                    idle.push(std::mem::take(buffer));
                }
            }
        }
    }
}

const SPLICE: SpliceFlags = SpliceFlags::MOVE.union(SpliceFlags::NONBLOCK);

fn splice_in(from: &Stream, pipe: &Pipe, max: usize) -> io::Result<usize> {
    let Some(socket) = from.socket() else { return Err(io::ErrorKind::Unsupported.into()) };
    socket.try_io(Interest::READABLE, || Ok(rustix::pipe::splice(socket, None, &pipe.write, None, max, SPLICE)?))
}

fn splice_out(to: &Stream, pipe: &Pipe, len: usize) -> io::Result<usize> {
    let Some(socket) = to.socket() else { return Err(io::ErrorKind::Unsupported.into()) };
    let len = to.room(len)?;
    let sent =
        socket.try_io(Interest::WRITABLE, || Ok(rustix::pipe::splice(&pipe.read, None, socket, None, len, SPLICE)?))?;
    // One call sends several times. If the connection is reset between two of them, the kernel takes the error from the
    // socket and returns the number of bytes before it; a read would then find the end of the stream, as if the peer had
    // ended it (`splice_to_socket` in fs/splice.c, Linux 6.18).
    if sent < len && is_hung_up(socket)? {
        return Err(io::ErrorKind::ConnectionReset.into());
    }
    Ok(sent)
}

/// Whether both directions of `socket` are over (POLLHUP). If this end has not shut down its own, the connection was reset
/// or given up. Holds for MPTCP too, whose TCP_INFO is that of one subflow.
fn is_hung_up(socket: &impl AsFd) -> io::Result<bool> {
    let mut polled = [PollFd::new(socket, PollFlags::empty())];
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    Ok(polled[0].revents().contains(PollFlags::HUP))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use super::*;
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::time::Duration;

    #[test]
    fn reset_hangs_up_and_an_end_of_the_peer_s_stream_does_not() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        assert!(!is_hung_up(&near).unwrap());
        far.shutdown(Shutdown::Write).unwrap();
        assert_eq!(near.peek(&mut [0]).unwrap(), 0);
        assert!(!is_hung_up(&near).unwrap());
        socket2::SockRef::from(&far).set_linger(Some(Duration::ZERO)).unwrap();
        drop(far);
        assert!(is_hung_up(&near).unwrap());
        // Also after a call has taken the error.
        assert!(near.take_error().unwrap().is_some());
        assert!(is_hung_up(&near).unwrap());
    }
}
