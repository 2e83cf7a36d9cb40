//! Statistics of a connection, the same for all transports (S19, S20, R12).

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A transport's own counters of a connection; 0 where the transport does not count.
///
/// A segment is the unit that the transport sends and may lose: a TCP segment, or a packet of UDT or QUIC.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Stats {
    /// Bytes sent, retransmissions included.
    pub bytes_sent: u64,
    /// Bytes that the peer has acknowledged; our SYN and FIN count as one each.
    pub bytes_acked: u64,
    /// Bytes received, without duplicates.
    pub bytes_received: u64,
    /// Bytes sent more than once.
    pub bytes_retransmitted: u64,
    /// Segments sent more than once.
    pub retransmits: u64,
    /// Segments sent.
    pub segments_sent: u64,
    /// Segments currently believed lost.
    pub lost: u32,
    /// Segments in flight.
    pub in_flight: u32,
    /// Bytes written but not sent yet.
    pub unsent: u32,
    /// Bytes that a writer has, and that a low rate holds back (TCP only).
    pub held_back: u32,
    /// For how long the receiver's window held back bytes so far, in microseconds (TCP only).
    pub receiver_limited_us: u64,
    /// Smoothed round-trip time, in microseconds.
    pub rtt_us: u64,
    /// Its mean deviation, in microseconds.
    pub rtt_var_us: u64,
    /// The minimum round-trip time of a recent period, in microseconds.
    pub min_rtt_us: u64,
    /// Recent delivery rate, in bytes per second.
    pub delivery_rate: u64,
    /// Pacing rate, in bytes per second; 0 without pacing.
    pub pacing_rate: u64,
    /// Congestion window, in segments. On UDT it is no larger than the receiver's window.
    pub congestion_window: u32,
    /// Time between two segments, in nanoseconds, if the transport paces by it; 0 otherwise.
    pub sending_period_ns: u64,
    /// Segment size, in bytes.
    pub segment_size: u32,
    /// Send buffer in force, in bytes.
    pub send_buffer: u64,
    /// Receive buffer in force, in bytes.
    pub receive_buffer: u64,
    /// Congestion control in force.
    pub congestion_control: String,
    /// Time since the peer last acknowledged anything, in milliseconds; 0 if nothing awaits an answer. On
    /// UDT, time since any packet arrived from the peer: UDT itself detects a peer whose packets arrive but
    /// acknowledge nothing, and ends the connection
    /// ([`Profile::idle_timeout`](crate::Profile::idle_timeout)).
    pub last_ack_ms: u32,
    /// Whether the connection has failed or closed.
    pub closed: bool,
}

impl Stats {
    /// Subtracts `start` from all counters that only grow: the result covers one session on a connection that
    /// has carried others.
    #[must_use]
    pub fn since(mut self, start: &Self) -> Self {
        for (now, then) in [
            (&mut self.bytes_sent, start.bytes_sent),
            (&mut self.bytes_acked, start.bytes_acked),
            (&mut self.bytes_received, start.bytes_received),
            (&mut self.bytes_retransmitted, start.bytes_retransmitted),
            (&mut self.retransmits, start.retransmits),
            (&mut self.segments_sent, start.segments_sent),
            (&mut self.receiver_limited_us, start.receiver_limited_us),
        ] {
            *now = now.saturating_sub(then);
        }
        self
    }

    /// Combines two connections that share the bytes of a hop: counters, windows, buffers and rates are
    /// added; times are those of `self`.
    #[must_use]
    pub fn with(mut self, other: &Self) -> Self {
        for (sum, more) in [
            (&mut self.bytes_sent, other.bytes_sent),
            (&mut self.bytes_acked, other.bytes_acked),
            (&mut self.bytes_received, other.bytes_received),
            (&mut self.bytes_retransmitted, other.bytes_retransmitted),
            (&mut self.retransmits, other.retransmits),
            (&mut self.segments_sent, other.segments_sent),
            (&mut self.delivery_rate, other.delivery_rate),
            (&mut self.pacing_rate, other.pacing_rate),
            (&mut self.send_buffer, other.send_buffer),
            (&mut self.receive_buffer, other.receive_buffer),
        ] {
            *sum = sum.saturating_add(more);
        }
        for (sum, more) in [
            (&mut self.lost, other.lost),
            (&mut self.in_flight, other.in_flight),
            (&mut self.unsent, other.unsent),
            (&mut self.held_back, other.held_back),
            (&mut self.congestion_window, other.congestion_window),
        ] {
            *sum = sum.saturating_add(more);
        }
        self
    }

    /// How long the peer has acknowledged nothing although bytes are outstanding. A peer that has stopped
    /// reading still counts as heard: it acknowledges window probes.
    pub fn unheard(&self) -> Duration {
        let waiting = self.in_flight > 0 || self.unsent > 0;
        Duration::from_millis(if waiting { self.last_ack_ms.into() } else { 0 })
    }

    /// The share of sent bytes that were retransmissions, from 0 to 1.
    pub fn loss(&self) -> f64 {
        if self.bytes_sent == 0 { 0.0 } else { self.bytes_retransmitted as f64 / self.bytes_sent as f64 }
    }
}
