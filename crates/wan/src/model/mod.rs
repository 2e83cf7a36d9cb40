//! The model of a link, without sockets, threads or clocks: packets go in one at a time, packets come out,
//! and the model tells when it must be polled again.
//!
//! A packet takes the path through a router's port and the cable behind it:
//!
//! ```text
//!  push ─▶ MTU ─▶ queue ─▶ transmitter ─▶ loss ─▶ delay ± jitter ─▶ poll
//!        too big    full     at the rate    at random
//! ```
//!
//! Loss comes after the transmitter, as on a real cable: a lost packet has used its share of the rate.
//! Everything is counted in MTU-sized segments, also when an offloading host passes 64 KiB at once: of such a
//! [`Packet`] the queue accepts the segments that fit, the wire loses single segments, and the runs in
//! between stay together. The last byte of a run leaves the link at the same time as on a real one; a run
//! that would occupy the transmitter longer than [`GRAIN`] is split, so that its first bytes do not wait for
//! its last.
//!
//! Times are durations since an origin that the caller chooses. A time before the latest one given counts as
//! the latest. A model that is polled late behaves as if it had been polled in time.

mod config;
mod counters;
mod loss;
mod one_way;
mod rng;

pub use config::{Direction, DirectionConfig, DirectionUpdate, GilbertElliott, LinkConfig, Loss, Rate, SettingError};
pub use counters::{Amount, DirectionCounters, LinkCounters};
pub use loss::LossProcess;
pub use one_way::{GRAIN, OneWay};
pub use rng::Rng;

use std::time::Duration;

/// Bytes that Ethernet adds to every IP packet on the wire: header 14, checksum 4, preamble 8, gap 12.
pub const FRAMING_BYTES: u64 = 38;

/// The payload of a link: an IP packet, or several of one flow that a host passes as one (offload).
pub trait Packet: Sized {
    /// Number of segments on the wire; at least 1.
    fn segments(&self) -> u32;

    /// Length of the first segment, from its IP header on. All others have the same length, except the last,
    /// which may be shorter.
    fn segment_bytes(&self) -> u32;

    /// Total length of all segments, each from its own IP header on.
    fn bytes(&self) -> u64;

    /// Keeps the first `at` segments and returns the others, both complete packets. `at` lies within `1..segments()`.
    fn split_off(&mut self, at: u32) -> Self;

    /// The segments and bytes that the packet occupies on a wire.
    fn amount(&self) -> Amount {
        let segments = u64::from(self.segments());
        Amount { segments, bytes: self.bytes() + segments * FRAMING_BYTES }
    }
}

/// A link: one [`OneWay`] per direction.
#[derive(Debug)]
pub struct Link<P> {
    ways: [OneWay<P>; 2],
}

impl<P: Packet> Link<P> {
    /// An idle link.
    pub fn new(config: &LinkConfig) -> Self {
        let mut seeds = Rng::new(config.seed);
        let forward = OneWay::new(config.forward.clone(), config.mtu, seeds.next_u64());
        let backward = OneWay::new(config.backward.clone(), config.mtu, seeds.next_u64());
        Self { ways: [forward, backward] }
    }

    /// The model of one direction.
    pub fn way(&mut self, direction: Direction) -> &mut OneWay<P> {
        &mut self.ways[direction as usize]
    }

    /// When [`OneWay::poll`] of either direction may next return a packet.
    pub fn next_wakeup(&self) -> Option<Duration> {
        self.ways.iter().filter_map(OneWay::next_wakeup).min()
    }

    /// Drops everything in both directions, packets in flight included, until [`Self::heal`].
    pub fn cut(&mut self, now: Duration) {
        self.ways.iter_mut().for_each(|way| way.cut(now));
    }

    /// Ends a cut.
    pub fn heal(&mut self) {
        self.ways.iter_mut().for_each(OneWay::heal);
    }

    /// The counters as of `now`.
    pub fn counters(&mut self, now: Duration) -> LinkCounters {
        let [forward, backward] = &mut self.ways;
        LinkCounters { cut: forward.is_cut(), forward: forward.counters(now), backward: backward.counters(now) }
    }
}

#[cfg(test)]
mod tests;
