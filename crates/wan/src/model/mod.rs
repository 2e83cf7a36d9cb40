//! The model of a link, without sockets, threads or clocks: a packet goes in at a time, packets come out, and the model
//! says when it wants to be asked again.
//!
//! A packet takes the way that it would take through a router's port and the cable behind it:
//!
//! ```text
//!  push ─▶ MTU ─▶ queue ─▶ transmitter ─▶ loss ─▶ delay ± jitter ─▶ poll
//!        too big    full     at the rate    at random
//! ```
//!
//! Loss follows the transmitter, as on a real cable: what is lost has used its share of the rate. Everything is counted in
//! MTU-sized segments, also when an offloading host hands over 64 KiB at once: of such a [`Packet`] the queue takes the
//! segments that fit, the wire loses single segments, and the runs in between travel on together. The last byte of a run
//! leaves the link when it would on a real one; a run that would keep the transmitter busy for longer than [`GRAIN`] is cut,
//! so that its first bytes are not kept waiting for its last.
//!
//! Times are durations since an origin that the caller chooses. One before the latest that was given counts as that. A model
//! that is asked late behaves as if it had been asked in time.

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

/// What Ethernet adds to every IP packet on the wire: header 14, checksum 4, preamble 8, gap 12.
pub const FRAMING_BYTES: u64 = 38;

/// What a link carries: an IP packet, or several of the same flow that a host hands over as one to save work.
pub trait Packet: Sized {
    /// Number of segments that the wire would carry; at least 1.
    fn segments(&self) -> u32;

    /// Bytes of the first segment from its IP header on. All but the last segment are of this size, which is no larger.
    fn segment_bytes(&self) -> u32;

    /// Bytes of all segments together, each with its own headers from the IP header on.
    fn bytes(&self) -> u64;

    /// Keeps the first `at` segments and returns the others, both complete packets. `at` lies within `1..segments()`.
    fn split_off(&mut self, at: u32) -> Self;

    /// What the packet takes of a wire's capacity.
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

    /// When [`OneWay::poll`] of either direction may have something next.
    pub fn next_wakeup(&self) -> Option<Duration> {
        self.ways.iter().filter_map(OneWay::next_wakeup).min()
    }

    /// Loses everything in both directions, what is under way included, until [`Self::heal`].
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
