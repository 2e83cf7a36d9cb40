//! Bundles: one session over several connections of a hop, where one alone would not fill the path (P9, P13, S1;
//! `docs/protocol/session.md` §6.7).
//!
//! Each connection of a bundle is a lane: a framed connection with an [`Exchange`](super::frame::Exchange) of its own,
//! [striped](super::frame::Exchange::striped), its own SHUTDOWN, acknowledgement and RESET, and free for the next session as
//! soon as its own exchange says so. What the lanes share is where the stream stands:
//!
//! ```text
//!             ┌─► lane 0: [0, 100) ········· [300, 400) ─► SHUTDOWN 500 ─┐
//!   Scatter ──┼─► lane 1: ········ [100, 200) ·········· ─► SHUTDOWN 500 ─┼─► Gather
//!             └─► lane 2: ········ [200, 300) [400, 500) ─► SHUTDOWN 500 ─┘
//! ```
//!
//! [`Scatter`] gives the next bytes of the stream to the lane that will have delivered them first. So offsets ascend on every lane, and the bytes
//! that are next in the stream are always the first on one of them: those before them on that lane lie before them in the
//! stream, and have been taken. [`Gather`] therefore needs no memory to put the stream together: it reads every lane up to the
//! header of its next frame, and goes on with the one that continues the stream. What lies ahead stays where the transport keeps
//! it, within the transport's bounds, and holds up its sender there. That cannot come to a standstill: the lane that the stream
//! waits for is read, so that its sender can go on; and a sender that gives a lane a frame finishes it before all later ones.
//!
//! Nor may it come near one: every byte that waits on a slow lane holds up all lanes, for as long as their transports have room
//! for what is ahead. So nothing is given to a lane before its turn is near ([`Load`]).
//!
//! Nothing here knows sockets, so that any end of a hop can use it.

mod scatter;

pub use scatter::{Load, Scatter};

/// Most connections that anyone may ask for in one bundle: more than the slowest control needs on the longest path.
pub const STREAMS_MAX: u16 = 64;
/// Bytes of a [`super::message::Opened::token`]: too many to guess.
pub const TOKEN_LEN: usize = 16;

/// How a peer broke the rules of a bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BundleError {
    /// A connection carries again what another one carried, or what lies behind the end.
    #[error("a frame at offset {got} of a bundle; expected one from {expected} on and before the end")]
    Overlap {
        /// The frame's offset.
        got: u64,
        /// Where the stream stands.
        expected: u64,
    },
    /// No connection carries the next bytes, and none can any more.
    #[error("a bundle of connections without the bytes from offset {0} on")]
    Gap(u64),
    /// Connections do not agree about the end.
    #[error("ends of a bundle at offsets {got} and {expected}")]
    End {
        /// What one says.
        got: u64,
        /// What another one has said, or how far the stream has come already.
        expected: u64,
    },
}

/// The receiving half: which lane continues the stream.
#[derive(Debug, Clone, Default)]
pub struct Gather {
    position: u64,
    end: Option<u64>,
    lanes: Vec<Lane>,
    /// The lane that was read last.
    last: usize,
}

/// What is next on a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lane {
    /// A header that has not arrived yet.
    Unknown,
    /// Bytes of the stream.
    Data { offset: u64, left: u32 },
    /// Nothing more.
    Ended,
    /// Nothing more: it has failed.
    Gone,
}

/// What a bundle brings next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Bytes of the stream: `len` on `lane`.
    Payload {
        /// Where they are.
        lane: usize,
        /// How many, at least 1.
        len: u32,
    },
    /// The end of the stream.
    End,
    /// Nothing before more headers have arrived, on lanes for which [`Gather::wants`] them.
    Wait,
}

impl Gather {
    /// Adds a lane, and returns its number: 0 for the first, and so on.
    pub fn join(&mut self) -> usize {
        self.lanes.push(Lane::Unknown);
        self.lanes.len() - 1
    }

    /// Where the stream stands: how many of its bytes were taken.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Whether the next header on `lane` is to be read: what was there before was taken, and was not the end.
    pub fn wants(&self, lane: usize) -> bool {
        self.lanes.get(lane) == Some(&Lane::Unknown)
    }

    /// Whether SHUTDOWN has arrived on `lane`.
    pub fn has_ended(&self, lane: usize) -> bool {
        self.lanes.get(lane) == Some(&Lane::Ended)
    }

    /// Whether bytes that were announced on `lane` were not taken yet.
    pub fn awaits(&self, lane: usize) -> bool {
        matches!(self.lanes.get(lane), Some(Lane::Data { .. }))
    }

    /// Says that nothing more comes on `lane`, which has failed. Where it was to bring the next bytes, [`Gather::next`] says so once no
    /// other lane can.
    pub fn leave(&mut self, lane: usize) {
        self.set(lane, Lane::Gone);
    }

    /// Says that the header of a DATA frame has arrived on `lane`: `len` bytes from `offset` on.
    ///
    /// # Errors
    /// [`BundleError::Overlap`] where they can be no part of the stream.
    pub fn data(&mut self, lane: usize, offset: u64, len: u32) -> Result<(), BundleError> {
        let behind = self.end.is_some_and(|end| offset.saturating_add(len.into()) > end);
        if behind || offset < self.position || len == 0 {
            return Err(BundleError::Overlap { got: offset, expected: self.position });
        }
        self.set(lane, Lane::Data { offset, left: len });
        Ok(())
    }

    /// Says that SHUTDOWN has arrived on `lane`: the stream ends at `offset`.
    ///
    /// # Errors
    /// [`BundleError::End`] where it cannot.
    pub fn shutdown(&mut self, lane: usize, offset: u64) -> Result<(), BundleError> {
        let known = |lane: &Lane| match lane {
            Lane::Data { offset, left } => offset.saturating_add((*left).into()),
            Lane::Unknown | Lane::Ended | Lane::Gone => 0,
        };
        let least = self.lanes.iter().map(known).max().unwrap_or(0).max(self.position);
        match self.end {
            Some(end) if end != offset => return Err(BundleError::End { got: offset, expected: end }),
            None if offset < least => return Err(BundleError::End { got: offset, expected: least }),
            _ => self.end = Some(offset),
        }
        self.set(lane, Lane::Ended);
        Ok(())
    }

    /// What continues the stream. `complete` says that no lane will be added any more.
    ///
    /// # Errors
    /// [`BundleError::Overlap`] where a lane brings again what was taken; [`BundleError::Gap`] where nothing that could still come
    /// continues the stream.
    pub fn next(&self, complete: bool) -> Result<Next, BundleError> {
        if self.end == Some(self.position) {
            return Ok(Next::End);
        }
        let mut open = !complete;
        // The lane that was read last often has more of the same frame.
        let (before, from) = self.lanes.split_at(self.last.min(self.lanes.len()));
        let numbered = (self.last..).zip(from).chain((0..).zip(before));
        for (lane, state) in numbered {
            match *state {
                Lane::Data { offset, left } if offset == self.position => return Ok(Next::Payload { lane, len: left }),
                Lane::Data { offset, .. } if offset < self.position => {
                    return Err(BundleError::Overlap { got: offset, expected: self.position });
                }
                Lane::Unknown => open = true,
                Lane::Data { .. } | Lane::Ended | Lane::Gone => {}
            }
        }
        if open { Ok(Next::Wait) } else { Err(BundleError::Gap(self.position)) }
    }

    /// Says that `n` bytes were taken from `lane`, of those that [`Gather::next`] told of.
    pub fn took(&mut self, lane: usize, n: u32) {
        let Some(Lane::Data { offset, left }) = self.lanes.get_mut(lane) else { return };
        let n = n.min(*left);
        *offset += u64::from(n);
        *left -= n;
        self.position += u64::from(n);
        self.last = lane;
        if *left == 0 {
            self.set(lane, Lane::Unknown);
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
    fn the_lane_that_continues_the_stream_is_next() {
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
    fn a_lane_that_has_gone_takes_nothing_with_it_or_leaves_a_gap() {
        let mut gather = gather(2);
        gather.data(0, 0, 10).unwrap();
        assert!(gather.awaits(0) && !gather.awaits(1));
        gather.leave(1);
        assert!(!gather.wants(1) && !gather.has_ended(1));
        gather.took(0, 10);
        assert_eq!(gather.next(true), Ok(Next::Wait));
        let mut ends_early = gather.clone();
        ends_early.shutdown(0, 20).unwrap();
        assert_eq!(ends_early.next(true), Err(BundleError::Gap(10)), "what it had is missing");
        gather.shutdown(0, 10).unwrap();
        assert_eq!(gather.next(true), Ok(Next::End));
    }

    #[test]
    fn what_is_no_stream_is_told() {
        let mut overlap = gather(2);
        overlap.data(0, 0, 10).unwrap();
        overlap.data(1, 5, 10).unwrap();
        overlap.took(0, 10);
        assert_eq!(overlap.next(true), Err(BundleError::Overlap { got: 5, expected: 10 }));
        assert_eq!(overlap.data(0, 9, 1), Err(BundleError::Overlap { got: 9, expected: 10 }));

        let mut gap = gather(2);
        gap.data(0, 10, 1).unwrap();
        gap.data(1, 20, 1).unwrap();
        assert_eq!(gap.next(false), Ok(Next::Wait), "another lane may bring it");
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
