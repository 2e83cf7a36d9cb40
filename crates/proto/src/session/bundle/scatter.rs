//! The sending half of a bundle: which lane carries which bytes, and how much of the stream may wait on one.
//!
//! Lanes of one path differ by far: each loses what it loses, and has a window of its own. What the sender hands over is fixed to a
//! lane, and the receiver takes it in order. So the lane with the longest queue sets the pace, unless queues are short everywhere:
//! in time, not in bytes. Each lane may have a fixed share of its window waiting, which is the same share of a round trip on
//! fast lanes and on slow ones, and of those that have room, that one is given the next frame which will have delivered it first.

use crate::session::frame::{Exchange, FrameError, HEADER_LEN};

/// Most bytes of the stream that a lane is given at a time: many enough for headers and system calls to cost little.
const FRAME_MAX: usize = 128 << 10;
/// The least, where there is as much: what a lane sends within a round trip while its window is at its smallest.
const FRAME_MIN: usize = 4 << 10;
/// A frame is this share of the window: so much of a round trip passes from its first byte to its last.
const FRAME_SHARE: u64 = 8;
/// What waits besides is this share of the window. Acknowledgements that come in lumps, and a sender that is called late, find
/// enough there to go on with.
const UNSENT_SHARE: u64 = 4;
/// The least that may wait: a segment of the largest size that kernels send at a time.
const UNSENT_MIN: u64 = 64 << 10;
/// The most: more would be no bound.
const UNSENT_MAX: u64 = 1 << 30;

/// How far behind a lane is, by its transport's counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Load {
    /// Bytes that it may have on their way at a time; 0: not known.
    pub window: u64,
    /// Its round-trip time in microseconds; 0: not known.
    pub round_trip: u64,
    /// Bytes that were handed to it and that the other end has not confirmed.
    pub ahead: u64,
}

impl Load {
    /// How many bytes may wait in the transport without having been sent once.
    pub fn unsent_max(&self) -> u64 {
        (self.window / UNSENT_SHARE).clamp(UNSENT_MIN, UNSENT_MAX)
    }

    /// How many bytes of the stream it is best given at a time.
    pub fn frame(&self) -> usize {
        if self.window == 0 {
            return FRAME_MAX;
        }
        usize::try_from(self.window / FRAME_SHARE).map_or(FRAME_MAX, |bytes| bytes.clamp(FRAME_MIN, FRAME_MAX))
    }

    /// After how many microseconds it will have delivered all that it was handed and `more` bytes; 0 where nothing is known.
    pub fn due(&self, more: usize) -> u64 {
        let bytes = u128::from(self.ahead) + more as u128;
        let due = bytes.saturating_mul(self.round_trip.into()) / u128::from(self.window.max(1));
        if self.window == 0 { 0 } else { u64::try_from(due).unwrap_or(u64::MAX) }
    }
}

/// The sending half: which lane carries which bytes.
#[derive(Debug, Clone, Default)]
pub struct Scatter {
    position: u64,
    /// The lane after the one that was chosen last.
    turn: usize,
}

impl Scatter {
    /// Where the stream stands: the offset of the bytes that are given to a lane next.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The one of `lanes` to give the next bytes to: that which is `ready` to take them and says the least, the time when it will
    /// have delivered them ([`Load::due`]). Those that say the same take turns.
    pub fn choose(&mut self, lanes: usize, mut ready: impl FnMut(usize) -> Option<u64>) -> Option<usize> {
        let numbered = (0..lanes).map(|n| (self.turn + n) % lanes);
        let (_, found) = numbered.filter_map(|lane| Some((ready(lane)?, lane))).min_by_key(|(due, _)| *due)?;
        self.turn = found + 1;
        Some(found)
    }

    /// The header of a DATA frame on `lane` with the next `len` bytes, which are to follow there.
    ///
    /// # Errors
    /// As [`Exchange::data`].
    pub fn data(&mut self, lane: &mut Exchange, len: u32) -> Result<[u8; HEADER_LEN], FrameError> {
        let header = lane.data_at(self.position, len)?;
        self.position += u64::from(len);
        Ok(header)
    }

    /// SHUTDOWN on `lane`. Each lane has one, and nothing is sent on any after the first.
    ///
    /// # Errors
    /// As [`Exchange::shutdown`].
    pub fn shutdown(&self, lane: &mut Exchange) -> Result<[u8; HEADER_LEN], FrameError> {
        lane.shutdown_at(self.position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lane_that_delivers_first_is_given_the_next_frame() {
        let mut scatter = Scatter::default();
        let loads = [(1_000_000, 500_000), (100_000, 20_000), (100_000, 60_000)].map(|(window, ahead)| Load {
            window,
            round_trip: 100_000,
            ahead,
        });
        let due = |frame: usize| loads.map(|load| load.due(frame));
        assert_eq!(due(10_000), [51_000, 30_000, 70_000]);
        assert_eq!(scatter.choose(3, |lane| Some(due(10_000)[lane])), Some(1));
        assert_eq!(
            scatter.choose(3, |lane| Some(due(100_000)[lane])),
            Some(0),
            "a slow lane takes long over a large frame"
        );
        assert_eq!(scatter.choose(3, |lane| (lane == 2).then(|| due(10_000)[2])), Some(2));
        assert_eq!(scatter.choose(3, |_| None), None);
        assert_eq!(scatter.choose(0, |_| Some(0)), None);
    }

    #[test]
    fn lanes_of_which_nothing_is_known_take_turns() {
        let mut scatter = Scatter::default();
        let unknown = Load { ahead: 1 << 20, ..Load::default() };
        let taken: Vec<_> = (0..5).map(|_| scatter.choose(3, |n| (n != 1).then(|| unknown.due(1 << 20)))).collect();
        assert_eq!(taken, [Some(0), Some(2), Some(0), Some(2), Some(0)]);
        assert_eq!(unknown.frame(), FRAME_MAX);
    }

    #[test]
    fn as_much_waits_as_a_share_of_the_window() {
        let of = |window| Load { window, round_trip: 1, ahead: 0 };
        assert_eq!((of(14_000).frame(), of(14_000).unsent_max()), (FRAME_MIN, UNSENT_MIN));
        assert_eq!((of(800_000).frame(), of(800_000).unsent_max()), (100_000, 200_000));
        assert_eq!((of(u64::MAX).frame(), of(u64::MAX).unsent_max()), (FRAME_MAX, UNSENT_MAX));
        assert_eq!(Load { ahead: u64::MAX, round_trip: u64::MAX, window: 1 }.due(usize::MAX), u64::MAX);
    }
}
