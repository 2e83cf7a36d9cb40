//! Statistics of a connection.

use super::Connection;
use std::time::Duration;

/// Counters since the connection began, and current values.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Stats {
    /// Smoothed round-trip time.
    pub rtt: Duration,
    /// Variation of the round-trip time.
    pub rtt_variation: Duration,
    /// Data packets sent, including retransmissions.
    pub packets_sent: u64,
    /// Payload bytes sent, including retransmissions.
    pub bytes_sent: u64,
    /// Payload bytes that the peer has acknowledged.
    pub bytes_acknowledged: u64,
    /// Data packets retransmitted.
    pub packets_resent: u64,
    /// Payload bytes retransmitted.
    pub bytes_resent: u64,
    /// Bytes that the application has written.
    pub bytes_written: u64,
    /// Bytes that the application has written and that were never sent.
    pub bytes_unsent: u64,
    /// Packets lost according to the peer's loss reports or time-outs.
    pub packets_lost: u64,
    /// Data packets received, including duplicates.
    pub packets_received: u64,
    /// Payload bytes received, without duplicates.
    pub bytes_received: u64,
    /// Duplicate data packets received.
    pub packets_duplicate: u64,
    /// Data packets dropped because they did not fit into the receive buffer.
    pub packets_without_room: u64,
    /// Packets that were missing when a later one arrived.
    pub packets_missed: u64,
    /// Loss reports sent.
    pub naks_sent: u64,
    /// Acknowledgements sent.
    pub acks_sent: u64,
    /// Malformed or invalid packets, acknowledgements and loss reports.
    pub ignored: u64,
    /// Messages dropped by this end because their time to live had passed.
    pub messages_dropped: u64,
    /// New packets in flight, without retransmissions.
    pub packets_in_flight: u32,
    /// Lost packets that wait for retransmission.
    pub packets_to_resend: u32,
    /// Congestion window, in packets.
    pub congestion_window: u32,
    /// Room in the peer's receive buffer, in packets.
    pub flow_window: u32,
    /// Pacing rate in bits per second, including IP headers.
    pub sending_rate: f64,
    /// Packets per second that arrive at this end; 0 if not known.
    pub receiving_rate: u32,
    /// Capacity of the path from the peer, in packets per second; 0 if not known.
    pub capacity: u32,
    /// Average of the rates at which the peer reports to receive, in packets per second.
    pub peer_receiving_rate: f64,
    /// Average of the capacities of the path to the peer that the peer reports, in packets per second.
    pub peer_capacity: f64,
    /// The negotiated MSS, in bytes.
    pub mss: u32,
    /// When the last valid packet of the peer arrived.
    pub last_heard: Duration,
    /// Smallest recent round-trip time; zero if none was measured.
    pub min_rtt: Duration,
}

impl Connection {
    /// The current statistics.
    pub fn stats(&self) -> Stats {
        let mut stats = Stats {
            rtt: self.rtt.get(),
            rtt_variation: self.rtt.variation(),
            min_rtt: self.rtt.min().unwrap_or_default(),
            ignored: self.packets_ignored,
            last_heard: self.last_heard,
            ..Stats::default()
        };
        let Some(open) = self.established() else { return stats };
        let (sent, received, pace) = (&open.send.counters, &open.receive.counters, open.pace(self.rate_limit));
        stats.packets_sent = sent.packets;
        stats.bytes_sent = sent.bytes;
        stats.bytes_acknowledged = sent.acked_bytes;
        stats.packets_resent = sent.resent;
        stats.bytes_resent = sent.resent_bytes;
        stats.bytes_written = sent.taken_bytes;
        stats.bytes_unsent = sent.taken_bytes.saturating_sub(sent.bytes - sent.resent_bytes);
        stats.packets_lost = sent.lost;
        stats.packets_received = received.packets;
        stats.bytes_received = received.bytes;
        stats.packets_duplicate = received.duplicates;
        stats.packets_without_room = received.no_room;
        stats.packets_missed = received.lost;
        stats.naks_sent = received.naks;
        stats.acks_sent = received.acks;
        stats.ignored += sent.bogus;
        stats.messages_dropped = sent.dropped_messages;
        stats.packets_in_flight = open.send.in_flight();
        stats.packets_to_resend = open.send.lost();
        stats.congestion_window = pace.window;
        stats.flow_window = open.send.window();
        stats.sending_rate = crate::control::packet_bits(open.mss) * 1e9 / pace.interval.max(1e-3);
        (stats.receiving_rate, stats.capacity) = open.receive.rates();
        (stats.peer_receiving_rate, stats.peer_capacity) = (open.receiving, open.capacity);
        stats.mss = open.mss;
        stats
    }
}
