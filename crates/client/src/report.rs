//! What a session got, hop by hop (S20, R12; invariant 4: everything not granted as asked is reported).

use phoebus_proto::session::message::HopReport;
use serde::Serialize;
use std::fmt;

/// The report of an open session.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Report {
    /// The session's identifier; empty for a direct connection.
    pub session: String,
    /// The destination.
    pub destination: String,
    /// The hops, starting at this host.
    pub hops: Vec<Hop>,
    /// Sum of the hops' round trips, in microseconds.
    pub rtt_us: u64,
    /// Duration of the opening, in microseconds.
    pub opened_in_us: u64,
    /// Why the connection is direct although gateways were set, or why it uses other gateways; empty without a
    /// remark.
    pub note: String,
}

impl Report {
    /// Adds the properties of the first hop's connection; `own` has the measurements.
    pub fn describe(&mut self, own: Hop) {
        if let Some(first) = self.hops.first_mut() {
            let Hop { congestion_control, rtt_us, send_buffer, receive_buffer, note, .. } = own;
            *first = Hop { congestion_control, rtt_us, send_buffer, receive_buffer, note, ..std::mem::take(first) };
        }
        self.rtt_us = self.hops.iter().fold(0, |sum, hop| sum.saturating_add(hop.rtt_us));
    }
}

/// A hop of a session.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Hop {
    /// The end that opened it: a gateway's name, or `client`.
    pub from: String,
    /// The end that it leads to: a gateway's name or the destination's address.
    pub to: String,
    /// `tcp`, `tls`, `quic`, `udt`.
    pub transport: String,
    /// Congestion control in force at the start.
    pub congestion_control: String,
    /// `none`, `auth` or `encrypt`.
    pub security: String,
    /// Round trip in microseconds, 0 if unknown.
    pub rtt_us: u64,
    /// Send buffer in force, in bytes.
    pub send_buffer: u64,
    /// Receive buffer in force, in bytes.
    pub receive_buffer: u64,
    /// Whether its connection has carried a session before.
    pub warm: bool,
    /// Maximum number of connections in the hop.
    pub streams: u16,
    /// Limit of the session's sending rate, in bits per second; 0 without a limit.
    pub rate: u64,
    /// What was not granted as asked; empty if nothing.
    pub note: String,
}

impl From<HopReport<'_>> for Hop {
    fn from(hop: HopReport) -> Self {
        Self {
            from: hop.from.to_owned(),
            to: hop.to.to_owned(),
            transport: hop.transport.to_owned(),
            congestion_control: hop.congestion_control.to_owned(),
            security: hop.security.to_owned(),
            rtt_us: hop.rtt_us,
            send_buffer: hop.send_buffer,
            receive_buffer: hop.receive_buffer,
            warm: hop.warm,
            streams: hop.streams.max(1),
            rate: hop.rate,
            note: hop.note.to_owned(),
        }
    }
}

/// For people: `client –8.1ms tcp/bbr→ pg1 –100.2ms tcp*8/cubic warm→ pg2 –8.0ms tcp/cubic→ 10.0.0.4:80`.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for hop in &self.hops {
            let warm = if hop.warm { " warm" } else { "" };
            let rtt = hop.rtt_us as f64 / 1000.0;
            write!(f, "{} –{rtt:.1}ms {}", hop.from, hop.transport)?;
            if hop.streams > 1 {
                write!(f, "*{}", hop.streams)?;
            }
            write!(f, "/{}{warm}→ ", hop.congestion_control)?;
        }
        f.write_str(self.hops.last().map_or(&self.destination, |hop| &hop.to))?;
        let notes = self.hops.iter().map(|hop| &hop.note).chain([&self.note]);
        notes.filter(|note| !note.is_empty()).try_for_each(|note| write!(f, "; {note}"))
    }
}
