//! What went through a link, and what became of the rest.
//!
//! Nothing is lost without a trace: for every direction, at any time,
//! `in = out + random_drops + queue_drops + cut_drops + oversize_drops + held` in segments and in bytes.

use serde::{Deserialize, Serialize};
use std::ops::{AddAssign, SubAssign};

/// Counters of a link since it began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkCounters {
    /// From `a` to `b`.
    pub forward: DirectionCounters,
    /// From `b` to `a`.
    pub backward: DirectionCounters,
    /// Whether the link is cut now.
    pub cut: bool,
}

/// Counters of one direction. Bytes are those of the wire: every segment with its headers and Ethernet framing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectionCounters {
    /// Packets that came in; an offloaded packet of many segments is one.
    pub packets_in: u64,
    /// Packets that came out; the runs left of a packet that lost segments count one each.
    pub packets_out: u64,
    /// What came in.
    pub entered: Amount,
    /// What came out.
    pub delivered: Amount,
    /// Lost at random on the wire.
    pub random_drops: Amount,
    /// Did not fit in the queue.
    pub queue_drops: Amount,
    /// Lost because the link was cut.
    pub cut_drops: Amount,
    /// Larger than the link's MTU.
    pub oversize_drops: Amount,
    /// Waiting or on the wire now.
    pub held: Amount,
    /// Packets that the sending host dropped since the emulator did not read them in time (live links only).
    pub overruns: u64,
    /// Packets that the receiving host refused, its interface being down, say (live links only).
    pub refused: u64,
    /// Bytes that wait in the queue now, the unsent part of the segment under way included.
    pub queue_bytes: u64,
    /// The most bytes that ever waited in the queue.
    pub queue_bytes_max: u64,
}

/// A number of segments and their bytes on the wire.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amount {
    /// MTU-sized segments.
    pub segments: u64,
    /// Bytes, headers and framing of every segment included.
    pub bytes: u64,
}

impl DirectionCounters {
    /// All that was dropped, for whatever reason.
    pub fn dropped(&self) -> Amount {
        let mut sum = self.random_drops;
        for part in [self.queue_drops, self.cut_drops, self.oversize_drops] {
            sum += part;
        }
        sum
    }
}

impl AddAssign for Amount {
    fn add_assign(&mut self, other: Self) {
        self.segments += other.segments;
        self.bytes += other.bytes;
    }
}

impl SubAssign for Amount {
    fn sub_assign(&mut self, other: Self) {
        self.segments = self.segments.saturating_sub(other.segments);
        self.bytes = self.bytes.saturating_sub(other.bytes);
    }
}
