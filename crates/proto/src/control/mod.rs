//! Rate and congestion control for protocols of numbered packets over UDP ([`udt`](crate::udt) and others): the pacing
//! rate, and the number of packets in flight.
//!
//! A [`Controller`] belongs to one connection, or to several that share it. It processes the connection's acknowledgements, loss reports and
//! time-outs, and determines the [`Pace`]. A configuration holds a [`Factory`], which makes one controller for each
//! connection. [`Delivery`] measures the delivery rate that controllers follow. A [`Pacer`] spaces packets by a pace.
//!
//! - [`Native`]: UDT's own control, DAIMD, for circuits with little loss. Every episode of loss costs at least a ninth
//!   of the rate.
//! - [`Fixed`]: a fixed rate, independent of loss.
//! - [`AtMost`]: another one within a rate.
//! - [`Tolerant`]: grows until more than a tolerated share is lost.
//! - [`Model`]: follows the delivery rate of the path and ignores loss without a queue. [`Resumed`] begins it on a known path.
//!
//! A [`SharedControl`] makes one controller serve several connections on one path.

mod at_most;
mod delivery;
mod fixed;
mod model;
mod native;
mod pacer;
mod shared;
mod tolerant;

pub use at_most::AtMost;
pub use delivery::{Delivery, Snapshot};
pub use fixed::Fixed;
pub use model::{KnownPath, Model, Resumed};
pub use native::Native;
pub use pacer::Pacer;
pub use shared::{Arrival, Share, SharedControl};
pub use tolerant::{Reaction, Tolerant};

use std::fmt::Debug;
use std::time::Duration;

/// A measurement of the delivery rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeliverySample {
    /// Packets that were delivered in [`interval`](Self::interval).
    pub delivered: u32,
    /// The longer one of the time to send the packets and the time in which their acknowledgements arrived.
    pub interval: Duration,
    /// Packets delivered since the control began, at the time when the measured packet was sent.
    pub delivered_before: u64,
    /// Whether the application had too little data to send in that time.
    pub app_limited: bool,
}

/// Makes a controller for each connection.
pub trait Factory: Debug + Send + Sync {
    /// The control's name in configurations.
    fn name(&self) -> &'static str;

    /// A controller for a connection that has just been opened.
    fn build(&self, now: Duration, path: &Path) -> Box<dyn Controller>;
}

/// Controls the sending rate of one connection.
pub trait Controller: Debug + Send {
    /// Packets have arrived, according to an acknowledgement or to a loss report that names a gap before them.
    fn on_ack(&mut self, now: Duration, path: &Path, ack: &Ack);

    /// The peer has reported packets lost that were not reported before, or that were lost again.
    fn on_loss(&mut self, now: Duration, path: &Path, loss: &Loss);

    /// Nothing was received from the peer for several round trips, with packets in flight.
    fn on_timeout(&mut self, now: Duration, path: &Path) {
        let _ = (now, path);
    }

    /// The peer has reported that its delay is growing. UDT 4 does not send this, earlier versions did.
    fn on_delay_warning(&mut self, now: Duration, path: &Path) {
        let _ = (now, path);
    }

    /// The pace after the last event.
    fn pace(&self) -> Pace;

    /// The rate of the path, in packets per second, once it was found out.
    fn path_rate(&self) -> Option<f64> {
        None
    }
}

/// Pacing interval and congestion window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// Nanoseconds per full packet.
    pub interval: f64,
    /// Most packets in flight.
    pub window: u32,
}

/// What the connection knows of the path.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Path {
    /// Largest IP packet, in bytes.
    pub mss: u32,
    /// The smaller one of the peer's receive buffer and this end's send buffer, in packets.
    pub window_max: u32,
    /// Smoothed round-trip time.
    pub rtt: Duration,
    /// Whether the round-trip time was measured yet.
    pub rtt_measured: bool,
    /// Arrival rate that the peer reports, in packets per second; 16 before the first report, as in UDT.
    pub receiving: f64,
    /// Capacity that the peer reports, in packets per second; 1 before the first report.
    pub capacity: f64,
    /// Number of the next new packet. Numbers grow by one for each packet and never wrap.
    pub next: u64,
    /// Packets in flight, without retransmissions.
    pub in_flight: u32,
    /// How the receiver acknowledges.
    pub acknowledgements: Acknowledgements,
    /// A random seed that differs between connections and is reproducible in a simulation.
    pub seed: u64,
}

/// How long a receiver collects packets before it acknowledges them: until one of these limits is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acknowledgements {
    /// Longest time from the arrival of a packet to its acknowledgement.
    pub interval: Duration,
    /// Most packets that one acknowledgement waits for.
    pub packets: u32,
}

/// Newly acknowledged packets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ack {
    /// Number of packets.
    pub count: u32,
    /// Measured delivery rate; `None` if all packets were retransmissions.
    pub sample: Option<DeliverySample>,
    /// Packets delivered since the control began, to all connections that share it.
    pub delivered: u64,
    /// Round-trip time measured with this acknowledgement, by this end or by the peer.
    pub rtt: Option<Duration>,
}

/// A loss report.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Loss {
    /// Number of the first packet in the report.
    pub first: u64,
    /// Number of packets that are newly marked as lost.
    pub count: u32,
}

/// Bits of a full packet, including its IP header.
pub(crate) fn packet_bits(mss: u32) -> f64 {
    f64::from(mss) * 8.0
}

/// Nanoseconds per full packet at `bits_per_second`.
pub(crate) fn interval_of(bits_per_second: u64, mss: u32) -> f64 {
    packet_bits(mss) * 1e9 / bits_per_second.max(1) as f64
}
