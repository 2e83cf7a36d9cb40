//! The send buffer: a task fills chunks, and a thread passes them to the library.
//!
//! It also carries the further work of the writing thread, in order: end the stream, deliver and close, or
//! abort.

use super::fault::Fault;
use super::wake;
use std::collections::VecDeque;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// The buffer between a task and a writing thread.
#[derive(Debug)]
pub(super) struct Outgoing {
    state: Mutex<State>,
    changed: Condvar,
    chunk: usize,
    chunks: usize,
}

#[derive(Debug, Default)]
struct State {
    full: VecDeque<Vec<u8>>,
    spare: Vec<Vec<u8>>,
    made: usize,
    /// Bytes in `full`, and those that the thread is writing.
    waiting: usize,
    end: End,
    failed: Option<Fault>,
    close: Option<Close>,
    /// Whether the thread has seen `close`.
    left: bool,
    waker: Option<Waker>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum End {
    #[default]
    Open,
    Asked,
    Made,
}

#[derive(Debug, Clone, Copy)]
enum Close {
    Deliver(Duration),
    Abort,
}

/// The next work of the writing thread.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Job {
    /// Write all of this, then call [`Outgoing::written`].
    Write(Vec<u8>),
    /// End the stream, then call [`Outgoing::ended`].
    ShutDown,
    /// Wait up to this time until everything is delivered, and leave.
    Finish(Duration),
    /// Leave at once.
    Abort,
}

impl Outgoing {
    /// Creates a buffer of `chunks` chunks of `chunk` bytes, at least two: one to fill and one to empty.
    pub(super) fn new(chunk: usize, chunks: usize) -> Self {
        Self { state: Mutex::default(), changed: Condvar::new(), chunk, chunks: chunks.max(2) }
    }

    /// Capacity in bytes.
    pub(super) fn size(&self) -> usize {
        self.chunk * self.chunks
    }

    // The task's side.

    /// Stores as many bytes as fit.
    pub(super) fn try_write(&self, mut bytes: &[u8]) -> io::Result<usize> {
        let all = bytes.len();
        let mut state = self.lock();
        if let Some(fault) = &state.failed {
            return Err(fault.clone().into());
        }
        if state.end != End::Open {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        while !bytes.is_empty() {
            let room = state.full.back().map_or(0, |last| self.chunk - last.len());
            if room == 0 {
                let Some(next) = state.spare.pop().or_else(|| {
                    (state.made < self.chunks).then(|| {
                        state.made += 1;
                        Vec::with_capacity(self.chunk)
                    })
                }) else {
                    break;
                };
                state.full.push_back(next);
                continue;
            }
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            if let Some(last) = state.full.back_mut() {
                last.extend_from_slice(now);
            }
            state.waiting += now.len();
            bytes = later;
        }
        self.changed.notify_all();
        match all - bytes.len() {
            0 if all > 0 => Err(io::ErrorKind::WouldBlock.into()),
            taken => Ok(taken),
        }
    }

    /// Ready when a byte fits, or none ever will.
    pub(super) fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        let room = !state.spare.is_empty()
            || state.made < self.chunks
            || state.full.back().is_some_and(|last| last.len() < self.chunk);
        if room || state.failed.is_some() || state.end != End::Open {
            return Poll::Ready(());
        }
        match &mut state.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// Ends the stream behind the written bytes.
    pub(super) fn shut_down(&self) -> io::Result<()> {
        let mut state = self.lock();
        if let Some(fault) = &state.failed {
            return Err(fault.clone().into());
        }
        if state.end == End::Open {
            state.end = End::Asked;
        }
        self.changed.notify_all();
        Ok(())
    }

    /// Bytes that the library does not have yet; the end of the stream counts as one.
    pub(super) fn waiting(&self) -> usize {
        let state = self.lock();
        state.waiting + usize::from(state.end == End::Asked)
    }

    /// Tells the thread to leave: after delivering everything within `deliver`, or at once.
    pub(super) fn close(&self, deliver: Option<Duration>) {
        self.lock().close = Some(deliver.map_or(Close::Abort, Close::Deliver));
        self.changed.notify_all();
    }

    // The thread's side.

    /// Waits for the next work.
    pub(super) fn next(&self) -> Job {
        let mut state = self.lock();
        loop {
            match state.close {
                Some(Close::Abort) => break,
                Some(_) if state.failed.is_some() => break,
                _ => {}
            }
            if state.failed.is_none() {
                if let Some(chunk) = state.full.pop_front() {
                    return Job::Write(chunk);
                }
                if state.end == End::Asked {
                    return Job::ShutDown;
                }
                if let Some(Close::Deliver(limit)) = state.close {
                    state.left = true;
                    self.changed.notify_all();
                    return Job::Finish(limit);
                }
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.left = true;
        self.changed.notify_all();
        Job::Abort
    }

    /// Records that the library has taken all of a chunk.
    pub(super) fn written(&self, mut chunk: Vec<u8>) {
        let mut state = self.lock();
        state.waiting = state.waiting.saturating_sub(chunk.len());
        chunk.clear();
        state.spare.push(chunk);
        wake(state, |state| &mut state.waker);
    }

    /// Records that the library has ended the stream.
    pub(super) fn ended(&self) {
        self.lock().end = End::Made;
    }

    /// Records that nothing more can be written. Only the first call has an effect.
    pub(super) fn fail(&self, fault: &Fault) {
        let mut state = self.lock();
        state.failed.get_or_insert_with(|| fault.clone());
        state.full.clear();
        wake(state, |state| &mut state.waker);
        self.changed.notify_all();
    }

    /// Whether the thread must leave at once.
    pub(super) fn is_aborted(&self) -> bool {
        matches!(self.lock().close, Some(Close::Abort))
    }

    /// Waits until the thread has written everything and leaves; returns false if that takes longer than
    /// `limit`.
    pub(super) fn is_left_within(&self, limit: Duration) -> bool {
        let began = Instant::now();
        let mut state = self.lock();
        while !state.left {
            let left = limit.saturating_sub(began.elapsed());
            if left.is_zero() {
                return false;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_millis(1);

    #[test]
    fn bytes_are_bounded_and_keep_their_order_before_the_end() {
        let outgoing = Outgoing::new(4, 2);
        assert_eq!(outgoing.try_write(b"abcdefghij").unwrap(), 8);
        assert_eq!(outgoing.try_write(b"ij").unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let Job::Write(chunk) = outgoing.next() else { panic!("a chunk was expected") };
        assert_eq!(chunk, b"abcd");
        assert_eq!(outgoing.try_write(b"ij").unwrap_err().kind(), io::ErrorKind::WouldBlock, "the thread still has it");
        outgoing.written(chunk);
        assert_eq!(outgoing.try_write(b"ij").unwrap(), 2);
        outgoing.shut_down().unwrap();
        assert_eq!(outgoing.waiting(), 7);
        assert_eq!(outgoing.try_write(b"k").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        for expected in [&b"efgh"[..], b"ij"] {
            let Job::Write(chunk) = outgoing.next() else { panic!("a chunk was expected") };
            assert_eq!(chunk, expected);
            outgoing.written(chunk);
        }
        assert_eq!(outgoing.next(), Job::ShutDown);
        outgoing.ended();
        assert_eq!(outgoing.waiting(), 0);
        assert!(!outgoing.is_left_within(LIMIT));
        outgoing.close(Some(LIMIT));
        assert_eq!(outgoing.next(), Job::Finish(LIMIT));
        assert!(outgoing.is_left_within(LIMIT));
    }

    #[test]
    fn failed_buffer_refuses_writes_until_closed() {
        let outgoing = Outgoing::new(4, 2);
        outgoing.try_write(b"abcdef").unwrap();
        outgoing.fail(&Fault::new(libc::ECONNRESET, ""));
        assert_eq!(outgoing.try_write(b"x").unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        assert!(outgoing.shut_down().is_err());
        outgoing.close(Some(LIMIT));
        assert_eq!(outgoing.next(), Job::Abort);
    }
}
