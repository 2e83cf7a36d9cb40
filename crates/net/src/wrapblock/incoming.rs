//! The receive buffer: a thread fills chunks from the library, and a task empties them.
//!
//! Chunks are handed over by ownership, so that bytes are copied only once. Their number is fixed: when all
//! are full, the thread stops reading, and the library's own flow control stops the peer.

use super::fault::Fault;
use super::wake;
use std::collections::VecDeque;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// The buffer between a reading thread and a task.
#[derive(Debug)]
pub(super) struct Incoming {
    state: Mutex<State>,
    changed: Condvar,
    chunk: usize,
    chunks: usize,
}

#[derive(Debug, Default)]
struct State {
    full: VecDeque<Chunk>,
    spare: Vec<Vec<u8>>,
    made: usize,
    /// How the stream ended behind the chunks, if it has.
    end: Option<Result<(), Fault>>,
    closed: bool,
    waker: Option<Waker>,
}

/// `bytes[start..end]` is unread. `bytes` keeps its full length.
#[derive(Debug)]
struct Chunk {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Incoming {
    /// Creates a buffer of `chunks` chunks of `chunk` bytes, at least two: one to fill and one to empty.
    pub(super) fn new(chunk: usize, chunks: usize) -> Self {
        Self { state: Mutex::default(), changed: Condvar::new(), chunk, chunks: chunks.max(2) }
    }

    /// Capacity in bytes.
    pub(super) fn size(&self) -> usize {
        self.chunk * self.chunks
    }

    // The task's side.

    /// Copies available bytes; 0 at the end of the stream.
    pub(super) fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut state = self.lock();
        let mut read = 0;
        while read < buffer.len() {
            let Some(chunk) = state.full.front_mut() else { break };
            let n = (chunk.end - chunk.start).min(buffer.len() - read);
            buffer[read..read + n].copy_from_slice(&chunk.bytes[chunk.start..chunk.start + n]);
            chunk.start += n;
            read += n;
            if chunk.start == chunk.end
                && let Some(chunk) = state.full.pop_front()
            {
                state.spare.push(chunk.bytes);
                self.changed.notify_one();
            }
        }
        match &state.end {
            _ if read > 0 || buffer.is_empty() => Ok(read),
            None => Err(io::ErrorKind::WouldBlock.into()),
            Some(Ok(())) => Ok(0),
            Some(Err(fault)) => Err(fault.clone().into()),
        }
    }

    /// Ready when [`try_read`](Self::try_read) would not block.
    pub(super) fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        if !state.full.is_empty() || state.end.is_some() {
            return Poll::Ready(());
        }
        match &mut state.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// Whether there is neither a byte nor an end.
    pub(super) fn is_quiet(&self) -> bool {
        let state = self.lock();
        state.full.is_empty() && state.end.is_none()
    }

    // The thread's side.

    /// Waits for an empty chunk, and calls `check` every `pause` meanwhile. `None` when nobody reads any
    /// more.
    pub(super) fn blank(
        &self,
        pause: Duration,
        check: impl Fn() -> Result<(), Fault>,
    ) -> Result<Option<Vec<u8>>, Fault> {
        let mut state = self.lock();
        loop {
            if state.closed {
                return Ok(None);
            }
            if let Some(chunk) = state.spare.pop() {
                return Ok(Some(chunk));
            }
            if state.made < self.chunks {
                state.made += 1;
                // The allocator returns untouched pages, which cost nothing until the library writes to them.
                return Ok(Some(vec![0; self.chunk]));
            }
            let (next, waited) = self.changed.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner);
            state = next;
            if waited.timed_out() {
                drop(state);
                check()?;
                state = self.lock();
            }
        }
    }

    /// Appends the first `len` bytes of a chunk. A few bytes are copied behind those in the last chunk, so
    /// that a library that reads packet by packet does not use up the chunks.
    pub(super) fn push(&self, chunk: Vec<u8>, len: usize) {
        let mut state = self.lock();
        let len = len.min(chunk.len());
        match state.full.back_mut() {
            Some(last) if len <= (last.bytes.len() - last.end).min(self.chunk / 4) => {
                last.bytes[last.end..last.end + len].copy_from_slice(&chunk[..len]);
                last.end += len;
                state.spare.push(chunk);
            }
            _ => state.full.push_back(Chunk { bytes: chunk, start: 0, end: len }),
        }
        wake(state, |state| &mut state.waker);
    }

    /// Marks the end of the stream behind the chunks. Only the first call has an effect.
    pub(super) fn end(&self, how: Result<(), Fault>) {
        let mut state = self.lock();
        state.end.get_or_insert(how);
        wake(state, |state| &mut state.waker);
    }

    /// Waits until every byte was read; returns false if that takes longer than `limit`.
    pub(super) fn is_taken_within(&self, limit: Duration) -> bool {
        let began = Instant::now();
        let mut state = self.lock();
        while !state.full.is_empty() && !state.closed {
            let left = limit.saturating_sub(began.elapsed());
            if left.is_zero() {
                return false;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Records that nobody reads any more.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_millis(1);

    fn blank(incoming: &Incoming) -> Vec<u8> {
        incoming.blank(PAUSE, || Ok(())).unwrap().unwrap()
    }

    #[test]
    fn bytes_keep_their_order_before_the_end() {
        let incoming = Incoming::new(64, 4);
        let mut sent = Vec::new();
        for n in [3, 64, 1, 1, 40] {
            let mut chunk = blank(&incoming);
            for (i, byte) in chunk[..n].iter_mut().enumerate() {
                *byte = (sent.len() + i) as u8;
            }
            sent.extend_from_slice(&chunk[..n]);
            incoming.push(chunk, n);
        }
        incoming.end(Ok(()));
        incoming.end(Err(Fault::canceled()));
        let (mut got, mut buffer) = (Vec::new(), [0; 7]);
        loop {
            match incoming.try_read(&mut buffer).unwrap() {
                0 => break,
                n => got.extend_from_slice(&buffer[..n]),
            }
        }
        assert_eq!(got, sent);
    }

    #[test]
    fn full_buffer_blocks_the_thread_and_keeps_checking_the_connection() {
        let incoming = Incoming::new(8, 2);
        for _ in 0..2 {
            let chunk = blank(&incoming);
            incoming.push(chunk, 8);
        }
        let dead = Fault::new(libc::ECONNRESET, "");
        assert_eq!(incoming.blank(PAUSE, || Err(dead.clone())), Err(dead.clone()));
        assert!(!incoming.is_taken_within(PAUSE));
        // Bytes that arrived before the failure can still be read.
        incoming.end(Err(dead));
        assert_eq!(incoming.try_read(&mut [0; 99]).unwrap(), 16);
        assert!(incoming.is_taken_within(PAUSE));
        assert_eq!(incoming.try_read(&mut [0; 99]).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        incoming.close();
        assert_eq!(incoming.blank(PAUSE, || Ok(())), Ok(None));
    }

    #[test]
    fn small_pieces_share_one_chunk() {
        let incoming = Incoming::new(64, 2);
        for _ in 0..64 {
            let chunk = blank(&incoming);
            incoming.push(chunk, 1);
        }
        assert_eq!(incoming.try_read(&mut [0; 99]).unwrap(), 64);
    }
}
