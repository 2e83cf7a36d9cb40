//! What a connection tells about itself.

use super::Connection;
use std::time::Duration;

/// Counters since the connection began, and the state of things.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Stats {
    /// Smoothed round-trip time and its variation.
    pub rtt: Duration,
    /// See [`rtt`](Self::rtt).
    pub rtt_variation: Duration,
    /// Data packets sent, those sent again included, and their payload.
    pub packets_sent: u64,
    /// See [`packets_sent`](Self::packets_sent).
    pub bytes_sent: u64,
    /// Bytes that the peer has acknowledged.
    pub bytes_acknowledged: u64,
    /// Data packets sent again.
    pub packets_resent: u64,
    /// Their payload.
    pub bytes_resent: u64,
    /// Bytes that the application gave, and of those, the ones that were never sent.
    pub bytes_written: u64,
    /// See [`bytes_written`](Self::bytes_written).
    pub bytes_unsent: u64,
    /// Packets that the peer, or a time-out, has shown to be lost.
    pub packets_lost: u64,
    /// Data packets received, and the payload of those that were new.
    pub packets_received: u64,
    /// See [`packets_received`](Self::packets_received).
    pub bytes_received: u64,
    /// Data packets that were there already.
    pub packets_duplicate: u64,
    /// Data packets for which there was no room.
    pub packets_without_room: u64,
    /// Packets that were passed over by later ones.
    pub packets_missed: u64,
    /// Loss reports sent.
    pub naks_sent: u64,
    /// Acknowledgements sent.
    pub acks_sent: u64,
    /// Packets, acknowledgements and loss reports that made no sense.
    pub ignored: u64,
    /// Messages given up.
    pub messages_dropped: u64,
    /// New packets of which nothing is known yet, and packets that are lost and wait to go again.
    pub packets_under_way: u32,
    /// See [`packets_under_way`](Self::packets_under_way).
    pub packets_to_resend: u32,
    /// Packets that the control lets be under way.
    pub congestion_window: u32,
    /// Packets that the peer has room for.
    pub flow_window: u32,
    /// Bits per second at which full packets go, from the IP header on.
    pub sending_rate: f64,
    /// Packets per second that arrive here, and that the path could carry; 0 if not known.
    pub receiving_rate: u32,
    /// See [`receiving_rate`](Self::receiving_rate).
    pub capacity: u32,
    /// The same as the peer reports it, averaged: of what this end sends.
    pub peer_receiving_rate: f64,
    /// See [`peer_receiving_rate`](Self::peer_receiving_rate).
    pub peer_capacity: f64,
    /// The MSS in force.
    pub mss: u32,
    /// When anything was last heard of the peer.
    pub last_heard: Duration,
    /// The least round-trip time that was measured; zero if none was.
    pub min_rtt: Duration,
}

impl Connection {
    /// The statistics as of now.
    pub fn stats(&self) -> Stats {
        let mut stats = Stats {
            rtt: self.rtt.get(),
            rtt_variation: self.rtt.variation(),
            min_rtt: self.rtt.min().unwrap_or_default(),
            ignored: self.packets_ignored,
            last_heard: self.last_heard,
            ..Stats::default()
        };
        let Some(open) = self.rest() else { return stats };
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
        stats.packets_under_way = open.send.under_way();
        stats.packets_to_resend = open.send.lost();
        stats.congestion_window = pace.window;
        stats.flow_window = open.send.window();
        stats.sending_rate = super::control::packet_bits(open.mss) * 1e9 / pace.interval.max(1e-3);
        (stats.receiving_rate, stats.capacity) = open.receive.rates();
        (stats.peer_receiving_rate, stats.peer_capacity) = (open.receiving, open.capacity);
        stats.mss = open.mss;
        stats
    }
}
