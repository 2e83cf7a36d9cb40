//! Rate control: how fast packets go, and how many may be under way.
//!
//! A [`Controller`] belongs to one connection and hears what the connection hears; it answers with a [`Pace`]. A
//! [`Factory`] makes one for each connection, and is what a configuration holds.
//!
//! - [`Native`]: UDT's own, DAIMD. Made for circuits with little loss; every loss costs it an eighth of its rate.
//! - [`Fixed`]: a rate that was agreed on, whatever happens.
//! - [`Model`]: follows what the path delivers and ignores loss that comes without a queue.

mod fixed;
mod model;
mod native;

pub use fixed::Fixed;
pub use model::Model;
pub use native::Native;

use super::seq::Seq;
use std::fmt::Debug;
use std::time::Duration;

/// A measurement of the delivery rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeliverySample {
    /// Packets that were delivered in [`interval`](Self::interval).
    pub delivered: u32,
    /// The time that it took, seen from the sender's or the receiver's side, whichever is longer.
    pub interval: Duration,
    /// Packets delivered since the connection began, when the packet that was measured was sent.
    pub delivered_before: u64,
    /// Whether the application had too little to send in that time.
    pub app_limited: bool,
}

/// Makes a controller for each connection.
pub trait Factory: Debug + Send + Sync {
    /// The name that configurations use.
    fn name(&self) -> &'static str;

    /// A controller for a connection that has just been opened.
    fn build(&self, now: Duration, path: &Path) -> Box<dyn Controller>;
}

/// Decides how fast one connection sends.
pub trait Controller: Debug + Send {
    /// Packets are known to have arrived, by an acknowledgement or behind the gap of a loss report.
    fn on_ack(&mut self, now: Duration, path: &Path, ack: &Ack);

    /// The peer reports packets missing that it has not reported before.
    fn on_loss(&mut self, now: Duration, path: &Path, loss: &Loss);

    /// Nothing was heard of the peer for several round trips, with packets under way.
    fn on_timeout(&mut self, now: Duration, path: &Path) {
        let _ = (now, path);
    }

    /// The peer says that its delay is growing. UDT 4 never does, its ancestors did.
    fn on_delay_warning(&mut self, now: Duration, path: &Path) {
        let _ = (now, path);
    }

    /// The decision as of the last event.
    fn pace(&self) -> Pace;
}

/// What a controller decides.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// Nanoseconds per full packet.
    pub interval: f64,
    /// Packets that may be under way.
    pub window: u32,
}

/// What is known of the path.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Path {
    /// Largest IP packet, in bytes.
    pub mss: u32,
    /// Most packets that the peer's buffer, and this end's, can hold.
    pub window_max: u32,
    /// Smoothed round-trip time, and whether it was measured yet.
    pub rtt: Duration,
    /// See [`rtt`](Self::rtt).
    pub rtt_measured: bool,
    /// Packets per second that the peer says it receives; 16 before it does, like in UDT.
    pub receiving: f64,
    /// Packets per second that the peer says it could receive; 1 before it does.
    pub capacity: f64,
    /// The packet that will be the next new one.
    pub next: Seq,
    /// Packets sent of which nothing is known yet.
    pub under_way: u32,
    /// A number that differs from connection to connection, and is the same with every run of a simulation.
    pub seed: u64,
}

/// Word of packets that have arrived.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ack {
    /// How many.
    pub count: u32,
    /// The delivery rate that it shows; none if all it tells of are repairs.
    pub sample: Option<DeliverySample>,
    /// Packets delivered since the connection began.
    pub delivered: u64,
    /// A round-trip time that was measured with it, by this end or the peer.
    pub rtt: Option<Duration>,
}

/// A loss report.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Loss {
    /// The first packet that it names.
    pub first: Seq,
    /// How many it names.
    pub count: u32,
}

/// Bits of a full packet, from its IP header on.
pub(super) fn packet_bits(mss: u32) -> f64 {
    f64::from(mss) * 8.0
}

/// Nanoseconds per full packet at `bits_per_second`.
pub(super) fn interval_of(bits_per_second: u64, mss: u32) -> f64 {
    packet_bits(mss) * 1e9 / bits_per_second.max(1) as f64
}
