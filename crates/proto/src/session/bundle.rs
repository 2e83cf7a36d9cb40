//! Bundles: one session over several parallel connections of a hop, for paths that a single connection does not fill
//! (P9, P13, S1; `docs/protocol/session.md` §6.7).
//!
//! Each connection of a bundle is a lane: a framed connection with its own [striped](super::frame::FrameState::striped)
//! frame state ([`FrameState`](super::frame::FrameState)), SHUTDOWN, ACK and RESET. A lane is free for the next session as
//! soon as its own frame state says so. The lanes share the offsets of the stream:
//!
//! ```text
//!             ┌─► lane 0: [0, 100) ········· [300, 400) ─► SHUTDOWN 500 ─┐
//!   Scatter ──┼─► lane 1: ········ [100, 200) ·········· ─► SHUTDOWN 500 ─┼─► Gather
//!             └─► lane 2: ········ [200, 300) [400, 500) ─► SHUTDOWN 500 ─┘
//! ```
//!
//! [`Scatter`] assigns the next bytes of the stream to the lane that is expected to deliver them first. Offsets
//! therefore ascend on every lane, and the next bytes of the stream are always the first unread bytes of some lane:
//! everything before them on that lane lies earlier in the stream and was read already. So [`Gather`] needs no
//! reordering buffer. It reads every lane up to the header of its next frame, and then reads the payload that continues
//! the stream. Later data stays in the transport's bounded buffers, whose back-pressure stops its sender.
//!
//! This cannot deadlock: the receiver reads the lane that the stream waits for, so that its sender can go on, and a
//! sender finishes a frame that it has begun on a lane before any later frame. But every byte that waits on a slow lane
//! holds up all other lanes once their transports' buffers are full. The sender therefore keeps the queue of every lane
//! short ([`Load`]).

mod scatter;

pub use scatter::{Load, Scatter};

/// Most connections in one bundle: more than the slowest congestion control needs on the longest path.
pub const STREAMS_MAX: u16 = 64;
/// Length of [`super::message::Opened::token`] in bytes: 128 random bits cannot be guessed.
pub const TOKEN_LEN: usize = 16;

/// How a peer broke the rules of a bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BundleError {
    /// A lane carries bytes that were received already, or bytes after the end of the stream.
    #[error("a frame at offset {got} of a bundle; expected one from {expected} on and before the end")]
    Overlap {
        /// The frame's offset.
        got: u64,
        /// The offset of the next byte of the stream.
        expected: u64,
    },
    /// No connection carries the next bytes, and none can any more.
    #[error("a bundle in which no connection carries the bytes from offset {0} on")]
    Gap(u64),
    /// Lanes disagree about the end of the stream.
    #[error("an end of a bundle's stream at offset {got}; expected {expected}")]
    End {
        /// The end according to this lane.
        got: u64,
        /// The end according to another lane, or the end of the data announced so far.
        expected: u64,
    },
}

/// The receiving half: tells which lane continues the stream.
#[derive(Debug, Clone, Default)]
pub struct Gather {
    position: u64,
    end: Option<u64>,
    lanes: Vec<Lane>,
    /// The lane that was read last.
    last: usize,
}

/// What comes next on a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lane {
    /// A header that has not arrived yet.
    AwaitsHeader,
    /// `left` bytes of the stream from `offset` on.
    Data { offset: u64, left: u32 },
    /// Nothing: SHUTDOWN has arrived.
    Ended,
    /// Nothing: the lane has failed.
    Failed,
}

/// What the receiver does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Read the next bytes of the stream.
    Payload {
        /// The lane to read from.
        lane: usize,
        /// Most bytes to read, at least 1.
        len: u32,
    },
    /// The stream has ended.
    End,
    /// Wait for headers on the lanes for which [`Gather::wants`] is true.
    Wait,
}

impl Gather {
    /// Adds a lane and returns its index, counted from 0.
    pub fn join(&mut self) -> usize {
        self.lanes.push(Lane::AwaitsHeader);
        self.lanes.len() - 1
    }

    /// Number of bytes of the stream that were read.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Whether to read the next header on `lane`: the payload before it was read, and the lane has neither ended nor
    /// failed.
    pub fn wants(&self, lane: usize) -> bool {
        self.lanes.get(lane) == Some(&Lane::AwaitsHeader)
    }

    /// Whether SHUTDOWN has arrived on `lane`.
    pub fn has_ended(&self, lane: usize) -> bool {
        self.lanes.get(lane) == Some(&Lane::Ended)
    }

    /// Whether `lane` has announced bytes that were not read yet.
    pub fn has_unread(&self, lane: usize) -> bool {
        matches!(self.lanes.get(lane), Some(Lane::Data { .. }))
    }

    /// Records that `lane` has failed. If the stream cannot continue without it, [`Gather::next`] returns an error once
    /// no other lane can deliver the missing bytes.
    pub fn leave(&mut self, lane: usize) {
        self.set(lane, Lane::Failed);
    }

    /// Records a DATA header on `lane`: `len` bytes from `offset` on.
    ///
    /// # Errors
    /// [`BundleError::Overlap`] if the bytes lie before the current position or after the end of the stream.
    pub fn data(&mut self, lane: usize, offset: u64, len: u32) -> Result<(), BundleError> {
        let beyond_end = self.end.is_some_and(|end| offset.saturating_add(len.into()) > end);
        if beyond_end || offset < self.position || len == 0 {
            return Err(BundleError::Overlap { got: offset, expected: self.position });
        }
        self.set(lane, Lane::Data { offset, left: len });
        Ok(())
    }

    /// Records SHUTDOWN on `lane`: the stream ends at `offset`.
    ///
    /// # Errors
    /// [`BundleError::End`] if another lane gave another end, or if data after `offset` was announced.
    pub fn shutdown(&mut self, lane: usize, offset: u64) -> Result<(), BundleError> {
        let announced = |lane: &Lane| match lane {
            Lane::Data { offset, left } => offset.saturating_add((*left).into()),
            Lane::AwaitsHeader | Lane::Ended | Lane::Failed => 0,
        };
        let least = self.lanes.iter().map(announced).max().unwrap_or(0).max(self.position);
        match self.end {
            Some(end) if end != offset => return Err(BundleError::End { got: offset, expected: end }),
            None if offset < least => return Err(BundleError::End { got: offset, expected: least }),
            _ => self.end = Some(offset),
        }
        self.set(lane, Lane::Ended);
        Ok(())
    }

    /// Tells what continues the stream. `complete` means that no lane will be added any more.
    ///
    /// # Errors
    /// [`BundleError::Overlap`] if a lane repeats bytes that were read; [`BundleError::Gap`] if no lane can deliver the
    /// next bytes any more.
    pub fn next(&self, complete: bool) -> Result<Next, BundleError> {
        if self.end == Some(self.position) {
            return Ok(Next::End);
        }
        let mut open = !complete;
        // Start with the lane that was read last: it often has more of the same frame.
        let (before, from) = self.lanes.split_at(self.last.min(self.lanes.len()));
        let numbered = (self.last..).zip(from).chain((0..).zip(before));
        for (lane, state) in numbered {
            match *state {
                Lane::Data { offset, left } if offset == self.position => return Ok(Next::Payload { lane, len: left }),
                Lane::Data { offset, .. } if offset < self.position => {
                    return Err(BundleError::Overlap { got: offset, expected: self.position });
                }
                Lane::AwaitsHeader => open = true,
                Lane::Data { .. } | Lane::Ended | Lane::Failed => {}
            }
        }
        if open { Ok(Next::Wait) } else { Err(BundleError::Gap(self.position)) }
    }

    /// Records that `n` bytes of the payload that [`Gather::next`] returned were read from `lane`.
    pub fn took(&mut self, lane: usize, n: u32) {
        let Some(Lane::Data { offset, left }) = self.lanes.get_mut(lane) else { return };
        let n = n.min(*left);
        *offset += u64::from(n);
        *left -= n;
        self.position += u64::from(n);
        self.last = lane;
        if *left == 0 {
            self.set(lane, Lane::AwaitsHeader);
        }
    }

    fn set(&mut self, lane: usize, state: Lane) {
        if let Some(place) = self.lanes.get_mut(lane) {
            *place = state;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gather(lanes: usize) -> Gather {
        let mut gather = Gather::default();
        (0..lanes).for_each(|lane| assert_eq!(gather.join(), lane));
        gather
    }

    #[test]
    fn lane_that_continues_the_stream_is_read_next() {
        let mut gather = gather(2);
        gather.data(1, 10, 5).unwrap();
        assert_eq!(gather.next(true), Ok(Next::Wait));
        gather.data(0, 0, 10).unwrap();
        assert_eq!(gather.next(true), Ok(Next::Payload { lane: 0, len: 10 }));
        gather.took(0, 4);
        assert_eq!(gather.next(true), Ok(Next::Payload { lane: 0, len: 6 }));
        gather.took(0, 6);
        assert!(gather.wants(0) && !gather.wants(1));
        assert_eq!(gather.next(true), Ok(Next::Payload { lane: 1, len: 5 }));
        gather.took(1, 5);
        gather.shutdown(1, 15).unwrap();
        assert_eq!((gather.next(true), gather.position()), (Ok(Next::End), 15));
        assert!(gather.has_ended(1) && gather.wants(0));
        assert!(gather.shutdown(0, 15).is_ok());
    }

    #[test]
    fn failed_lane_ends_the_stream_only_if_its_bytes_are_missing() {
        let mut gather = gather(2);
        gather.data(0, 0, 10).unwrap();
        assert!(gather.has_unread(0) && !gather.has_unread(1));
        gather.leave(1);
        assert!(!gather.wants(1) && !gather.has_ended(1));
        gather.took(0, 10);
        assert_eq!(gather.next(true), Ok(Next::Wait));
        let mut ends_early = gather.clone();
        ends_early.shutdown(0, 20).unwrap();
        assert_eq!(ends_early.next(true), Err(BundleError::Gap(10)), "the failed lane's bytes are missing");
        gather.shutdown(0, 10).unwrap();
        assert_eq!(gather.next(true), Ok(Next::End));
    }

    #[test]
    fn overlaps_gaps_and_contradictory_ends_are_errors() {
        let mut overlap = gather(2);
        overlap.data(0, 0, 10).unwrap();
        overlap.data(1, 5, 10).unwrap();
        overlap.took(0, 10);
        assert_eq!(overlap.next(true), Err(BundleError::Overlap { got: 5, expected: 10 }));
        assert_eq!(overlap.data(0, 9, 1), Err(BundleError::Overlap { got: 9, expected: 10 }));

        let mut gap = gather(2);
        gap.data(0, 10, 1).unwrap();
        gap.data(1, 20, 1).unwrap();
        assert_eq!(gap.next(false), Ok(Next::Wait), "a lane that joins later may deliver the bytes");
        assert_eq!(gap.next(true), Err(BundleError::Gap(0)));
        assert_eq!(gap.shutdown(0, 20), Err(BundleError::End { got: 20, expected: 21 }));

        let mut ends = gather(2);
        ends.shutdown(0, 7).unwrap();
        assert_eq!(ends.data(1, 5, 3), Err(BundleError::Overlap { got: 5, expected: 0 }));
        assert_eq!(ends.shutdown(1, 8), Err(BundleError::End { got: 8, expected: 7 }));
        ends.shutdown(1, 7).unwrap();
        assert_eq!(ends.next(true), Err(BundleError::Gap(0)), "a truncated stream is no end");
    }
}
