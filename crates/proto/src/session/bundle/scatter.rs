//! The sending half of a bundle: assigns bytes to lanes and bounds the unsent queue of each lane.
//!
//! Lanes of one path differ widely: each has its own losses and its own congestion window. Bytes that were handed to a
//! lane stay on that lane, and the receiver reads the stream in order. So the lane with the longest queue sets the
//! pace, unless all queues are short, measured in time and not in bytes. Each lane may therefore have a fixed share of
//! its window unsent, which is the same share of a round trip on fast and on slow lanes. Among the lanes with room, the
//! one that is expected to deliver the next frame first gets it.

use crate::session::frame::{FrameError, FrameState, HEADER_LEN};

/// Largest frame in bytes: large enough that headers and system calls cost little.
const FRAME_MAX: usize = 128 << 10;
/// Smallest frame in bytes, if that much data is available: what a lane with the smallest window sends in a round trip.
const FRAME_MIN: usize = 4 << 10;
/// A frame is 1/8 of the window, so that sending it takes 1/8 of a round trip.
const FRAME_SHARE: u64 = 8;
/// Besides, 1/4 of the window may wait unsent. That keeps the lane busy when acknowledgements arrive in bursts or the
/// sender is scheduled late.
const UNSENT_SHARE: u64 = 4;
/// Lower bound of the unsent bytes: the largest segment that kernels hand to the network card at a time (64 KiB).
const UNSENT_MIN: u64 = 64 << 10;
/// Upper bound of the unsent bytes, which stops a bogus window from removing the limit.
const UNSENT_MAX: u64 = 1 << 30;

/// How much data a lane has queued, by its transport's counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Load {
    /// Congestion window in bytes; 0: not known.
    pub window: u64,
    /// Round-trip time in microseconds; 0: not known.
    pub round_trip: u64,
    /// Bytes that were handed to the lane and that the peer has not acknowledged.
    pub ahead: u64,
}

impl Load {
    /// Most bytes that may wait in the transport before they are sent for the first time.
    pub fn unsent_max(&self) -> u64 {
        (self.window / UNSENT_SHARE).clamp(UNSENT_MIN, UNSENT_MAX)
    }

    /// The best size of the lane's next frame, in bytes.
    pub fn frame(&self) -> usize {
        if self.window == 0 {
            return FRAME_MAX;
        }
        usize::try_from(self.window / FRAME_SHARE).map_or(FRAME_MAX, |bytes| bytes.clamp(FRAME_MIN, FRAME_MAX))
    }

    /// Estimated time in microseconds until the lane has delivered all its queued bytes and `more`; 0 if the window is
    /// not known.
    pub fn due(&self, more: usize) -> u64 {
        let bytes = u128::from(self.ahead) + more as u128;
        let due = bytes.saturating_mul(self.round_trip.into()) / u128::from(self.window.max(1));
        if self.window == 0 { 0 } else { u64::try_from(due).unwrap_or(u64::MAX) }
    }
}

/// The sending half: assigns the bytes of the stream to lanes.
#[derive(Debug, Clone, Default)]
pub struct Scatter {
    position: u64,
    /// The lane after the one chosen last, for round robin.
    turn: usize,
}

impl Scatter {
    /// The stream offset of the bytes that are assigned next.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Chooses the lane for the next bytes, out of `lanes` many. `ready` returns a lane's estimated delivery time
    /// ([`Load::due`]), or `None` if the lane cannot accept bytes. The lane with the earliest time is chosen. Lanes
    /// with equal times take turns.
    pub fn choose(&mut self, lanes: usize, mut ready: impl FnMut(usize) -> Option<u64>) -> Option<usize> {
        let numbered = (0..lanes).map(|n| (self.turn + n) % lanes);
        let (_, found) = numbered.filter_map(|lane| Some((ready(lane)?, lane))).min_by_key(|(due, _)| *due)?;
        self.turn = found + 1;
        Some(found)
    }

    /// The header of a DATA frame on `lane` for the next `len` bytes. The caller sends the bytes after it.
    ///
    /// # Errors
    /// As [`FrameState::data`].
    pub fn data(&mut self, lane: &mut FrameState, len: u32) -> Result<[u8; HEADER_LEN], FrameError> {
        let header = lane.data_at(self.position, len)?;
        self.position += u64::from(len);
        Ok(header)
    }

    /// The SHUTDOWN frame of `lane`. Every lane needs one. No DATA may be sent on any lane after the first SHUTDOWN.
    ///
    /// # Errors
    /// As [`FrameState::shutdown`].
    pub fn shutdown(&self, lane: &mut FrameState) -> Result<[u8; HEADER_LEN], FrameError> {
        lane.shutdown_at(self.position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lane_with_the_earliest_delivery_gets_the_next_frame() {
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
            "a slow lane needs long for a large frame"
        );
        assert_eq!(scatter.choose(3, |lane| (lane == 2).then(|| due(10_000)[2])), Some(2));
        assert_eq!(scatter.choose(3, |_| None), None);
        assert_eq!(scatter.choose(0, |_| Some(0)), None);
    }

    #[test]
    fn lanes_with_unknown_windows_take_turns() {
        let mut scatter = Scatter::default();
        let unknown = Load { ahead: 1 << 20, ..Load::default() };
        let taken: Vec<_> = (0..5).map(|_| scatter.choose(3, |n| (n != 1).then(|| unknown.due(1 << 20)))).collect();
        assert_eq!(taken, [Some(0), Some(2), Some(0), Some(2), Some(0)]);
        assert_eq!(unknown.frame(), FRAME_MAX);
    }

    #[test]
    fn frame_and_unsent_limits_are_shares_of_the_window() {
        let of = |window| Load { window, round_trip: 1, ahead: 0 };
        assert_eq!((of(14_000).frame(), of(14_000).unsent_max()), (FRAME_MIN, UNSENT_MIN));
        assert_eq!((of(800_000).frame(), of(800_000).unsent_max()), (100_000, 200_000));
        assert_eq!((of(u64::MAX).frame(), of(u64::MAX).unsent_max()), (FRAME_MAX, UNSENT_MAX));
        assert_eq!(Load { ahead: u64::MAX, round_trip: u64::MAX, window: 1 }.due(usize::MAX), u64::MAX);
    }
}
