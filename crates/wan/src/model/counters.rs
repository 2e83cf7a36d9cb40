//! Counters of a link.
//!
//! Every packet is accounted for: for each direction, at any time, `in = out + random_drops + queue_drops +
//! cut_drops + oversize_drops + held` in segments and in bytes.

use serde::{Deserialize, Serialize};
use std::ops::{AddAssign, SubAssign};

/// Counters of a link since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkCounters {
    /// From `a` to `b`.
    pub forward: DirectionCounters,
    /// From `b` to `a`.
    pub backward: DirectionCounters,
    /// Whether the link is cut now.
    pub cut: bool,
}

/// Counters of one direction. Bytes are wire bytes: every segment with its headers and Ethernet framing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectionCounters {
    /// Packets that entered; an offloaded packet of many segments counts as one.
    pub packets_in: u64,
    /// Packets that left; each run that remains of a packet with lost segments counts as one.
    pub packets_out: u64,
    /// Segments and bytes that entered.
    pub entered: Amount,
    /// Segments and bytes that left.
    pub delivered: Amount,
    /// Random loss on the wire.
    pub random_drops: Amount,
    /// Drops because the queue was full.
    pub queue_drops: Amount,
    /// Drops because the link was cut.
    pub cut_drops: Amount,
    /// Drops because the packet exceeded the link's MTU.
    pub oversize_drops: Amount,
    /// Currently in the queue or on the wire.
    pub held: Amount,
    /// Packets that the sending host dropped because the emulator did not read them in time (live links
    /// only).
    pub overruns: u64,
    /// Packets that the receiving host refused because its interface was down, for example (live links only).
    pub refused: u64,
    /// Bytes currently in the queue, with the unsent part of the segment in transmission.
    pub queue_bytes: u64,
    /// The largest queue so far, in bytes.
    pub queue_bytes_max: u64,
}

/// A number of segments and their bytes on the wire.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amount {
    /// MTU-sized segments.
    pub segments: u64,
    /// Wire bytes, with the headers and framing of every segment.
    pub bytes: u64,
}

impl DirectionCounters {
    /// All drops, for whatever reason.
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
