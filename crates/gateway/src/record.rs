//! The line that a session leaves in the log: who, where, which way, how much, how fast, how it ended and where.

use crate::failure::{Failure, Side};
use crate::refusal::Refusal;
use crate::relay::Broken;
use crate::sessions::{ActiveSession, SessionInfo};
use phoebus_net::Stats;
use phoebus_proto::entry::Entry;
use phoebus_proto::session::Code;
use std::time::Duration;

/// How a session went.
#[derive(Debug)]
pub(crate) struct Record<'a> {
    facts: &'a SessionInfo,
    duration: Duration,
    bytes_up: u64,
    bytes_down: u64,
    stats: [Stats; 2],
    /// Connections of which each hop has consisted.
    streams: [usize; 2],
    clean: bool,
    /// Why it ended before its time.
    code: Code,
    /// At which hop; empty for this gateway.
    hop: String,
    /// Why, as a sentence.
    reason: String,
}

impl<'a> Record<'a> {
    /// Of `live`, which has `ended`; `stats` are those of the client's and the destination's side since it began.
    pub(crate) fn new(live: &'a ActiveSession, ended: &Result<(), Broken>, stats: [Stats; 2]) -> Self {
        let facts = &live.facts;
        let (bytes_up, bytes_down) = live.bytes();
        let (code, hop, reason) = match ended {
            Ok(()) => (Code::Unknown(0), String::new(), String::new()),
            Err(broken) => failed_hop(facts, broken),
        };
        Self {
            facts,
            duration: live.since.elapsed(),
            bytes_up,
            bytes_down,
            stats,
            streams: [Side::First, Side::Second].map(|side| live.stream_count(side)),
            clean: ended.is_ok(),
            code,
            hop,
            reason,
        }
    }

    /// Why it failed, as the other hops are told.
    pub(crate) fn refusal(self) -> Refusal {
        Refusal::at(self.hop, self.code, self.reason)
    }

    /// What has carried the hops: `tcp,tcp*8` where the second consisted of eight connections.
    fn transports(&self) -> String {
        let hop = |(transport, streams): (&str, usize)| match streams {
            1 => transport.to_owned(),
            streams => format!("{transport}*{streams}"),
        };
        self.facts.transports.iter().map(AsRef::as_ref).zip(self.streams).map(hop).collect::<Vec<_>>().join(",")
    }

    /// Whom the session came from, and how, if not by the session protocol: the line has no room for another field.
    fn from(&self) -> String {
        let SessionInfo { from, entry, .. } = self.facts;
        if *entry == Entry::Session { from.clone() } else { format!("{from} via {entry}") }
    }

    /// Writes the line.
    pub(crate) fn log(&self) {
        let Self { facts, stats: [first, second], .. } = self;
        let seconds = self.duration.as_secs_f64();
        let rate = |bytes: u64| if seconds > 0.0 { (bytes as f64 * 8.0 / seconds) as u64 } else { 0 };
        // tracing takes at most 32 fields.
        tracing::info!(
            target: "phoebus::session",
            session = %facts.session,
            from = self.from(),
            origin = facts.origin,
            principal = facts.principal.to_string(),
            destination = facts.destination,
            visited = facts.visited,
            next = facts.next,
            transports = self.transports(),
            warm = facts.warm,
            opening_ms = millis(facts.opening),
            duration_ms = millis(self.duration),
            bytes_up = self.bytes_up,
            bytes_down = self.bytes_down,
            bits_per_s_up = rate(self.bytes_up),
            bits_per_s_down = rate(self.bytes_down),
            first_rtt_us = first.rtt_us,
            first_retransmits = first.retransmits,
            first_loss = first.loss(),
            first_congestion_control = first.congestion_control,
            first_send_buffer = first.send_buffer,
            first_receive_buffer = first.receive_buffer,
            second_rtt_us = second.rtt_us,
            second_retransmits = second.retransmits,
            second_loss = second.loss(),
            second_congestion_control = second.congestion_control,
            second_send_buffer = second.send_buffer,
            second_receive_buffer = second.receive_buffer,
            note = facts.note,
            code = if self.clean { 0 } else { self.code.number() },
            hop = self.hop,
            reason = self.reason,
            "session {}",
            if self.clean { "ended" } else { "failed" },
        );
    }
}

/// Which hop failed, and why.
fn failed_hop(facts: &SessionInfo, broken: &Broken) -> (Code, String, String) {
    let neighbour = match broken.side {
        Some(Side::First) => facts.from.clone(),
        Some(Side::Second) => facts.next.clone(),
        None => String::new(),
    };
    let code = broken.failure.code();
    match &broken.failure {
        Failure::Reported { hop, .. } if !hop.is_empty() => (code, hop.clone(), broken.failure.to_string()),
        failure => {
            let said = failure.to_string();
            let reason = if said.is_empty() { code.to_string() } else { said };
            (code, neighbour, reason)
        }
    }
}

fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}
