//! The choice of a transport for a segment from what was measured of it (S1, S12): figures in, a decision and its
//! reason out.
//!
//! [`RULES`] is the table and [`choose`] applies it; [`in_order`] does without. This module knows no connections or
//! clocks: `crate::path_metrics` keeps the figures, and `crate::pool` applies the decision.

mod rules;
#[cfg(test)]
mod tests;

pub(crate) use rules::{Carry, Figure, PREFERRED, RULES, Rule, STREAMS_MAX, Streams, When};

use phoebus_net::{Buffer, CongestionControl};
use phoebus_proto::units::{BitRate, ByteSize};
use rules::{CARRIES, LEAST_LOSS, MARGIN};
use std::cmp::Ordering;
use std::fmt;
use std::time::Duration;

/// The payload of a usual segment, in bits.
const SEGMENT: f64 = 1448.0 * 8.0;
/// The default window of QUIC and UDT, in bytes. There is no need to choose a smaller one.
const WINDOW_LEAST: f64 = (64 << 20) as f64;
/// The largest window of a profile, in bytes.
const WINDOW_MAX: u64 = 1 << 30;

/// What was measured of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Figures {
    /// The round trip of an empty path.
    pub(crate) round_trip: Option<Duration>,
    /// The share of sent packets that was lost, if enough was sent to tell.
    pub(crate) loss: Option<f64>,
    /// The highest rate at which data was delivered, in bits per second.
    pub(crate) rate: Option<f64>,
}

/// A transport that may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Candidate<'a> {
    pub(crate) transport: &'a str,
    /// Whether it is available, as far as known.
    pub(crate) can: bool,
}

/// All that a decision depends on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Situation<'a> {
    pub(crate) figures: Figures,
    /// The capacity of the segment, where the profile gives it.
    pub(crate) capacity: Option<BitRate>,
    /// Whether this process may use bbr.
    pub(crate) bbr: bool,
    /// The profile's congestion control; anything but `Auto` is final.
    pub(crate) control: CongestionControl,
    /// The allowed transports, the preferred one first; at least one.
    pub(crate) candidates: &'a [Candidate<'a>],
}

/// What carries the segment.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Decision {
    /// The rule that would apply if every allowed transport were available, and its transport: indexes into [`RULES`]
    /// (the last, for [`in_order`]) and the candidates.
    pub(crate) wished: (usize, usize),
    /// The rule that applies.
    pub(crate) rule: &'static Rule,
    /// Index into the candidates.
    pub(crate) candidate: usize,
    pub(crate) control: CongestionControl,
    /// Connections of one hop.
    pub(crate) streams: u16,
    /// The buffer of each direction, where the profile leaves it to the transport.
    pub(crate) buffer: Buffer,
}

/// Applies the rules, where the rule at `held` was wished for before. That rule stays until the figures leave its
/// bounds by a margin, or an earlier rule holds with a margin, so that figures near a bound change nothing.
pub(crate) fn choose(situation: &Situation, held: Option<usize>) -> Decision {
    let fits = |rule: usize, margin: f64, all: bool| {
        let holds = RULES[rule].when.iter().all(|when| when.holds(situation, margin));
        if holds { situation.candidate_for(RULES[rule].carry, all).map(|index| (rule, index)) } else { None }
    };
    let kept = held.and_then(|held| fits(held, MARGIN, true));
    // The last rule has no conditions, and accepts any transport.
    let last = (RULES.len() - 1, 0);
    let wished = match kept {
        Some(kept) => {
            // An earlier rule with the same bounds would have come first at any figures, so its transport was not
            // allowed then.
            let margin = |rule: usize| if RULES[rule].when == RULES[kept.0].when { MARGIN } else { 1.0 / MARGIN };
            (0..kept.0).find_map(|rule| fits(rule, margin(rule), true)).unwrap_or(kept)
        }
        None => (0..RULES.len()).find_map(|rule| fits(rule, 1.0, true)).unwrap_or(last),
    };
    let (rule, index) = (wished.0..RULES.len()).find_map(|rule| fits(rule, MARGIN, false)).unwrap_or(last);
    situation.decision(wished, &RULES[rule], index)
}

/// The first available candidate, whatever was measured.
pub(crate) fn in_order(situation: &Situation) -> Decision {
    let index = situation.candidate_for(PREFERRED.carry, false).unwrap_or(0);
    situation.decision((RULES.len() - 1, 0), &PREFERRED, index)
}

impl Situation<'_> {
    /// The decision for `rule` and the candidate at `index`.
    fn decision(&self, wished: (usize, usize), rule: &'static Rule, index: usize) -> Decision {
        let transport = self.candidates.get(index).map_or("", |candidate| candidate.transport);
        Decision {
            wished,
            rule,
            candidate: index,
            control: match (self.control, rule.carry) {
                (CongestionControl::Auto, _) if transport != "tcp" => CongestionControl::Model,
                (CongestionControl::Auto, Carry::Tcp(control)) if control != CongestionControl::Auto => control,
                // Resolve `auto` here, so that connections are not replaced only because it has another name.
                (CongestionControl::Auto, _) if self.bbr => CongestionControl::Bbr,
                (CongestionControl::Auto, _) => CongestionControl::System,
                (configured, _) => configured,
            },
            streams: match rule.streams {
                Streams::One => 1,
                Streams::Needed => (self.need().ceil() as u16).clamp(1, STREAMS_MAX),
            },
            buffer: if transport == "tcp" { Buffer::Auto } else { self.window() },
        }
    }

    /// The first candidate that suits `carry`, among `all` or the available ones.
    fn candidate_for(&self, carry: Carry, all: bool) -> Option<usize> {
        let suits = |transport: &str| match carry {
            Carry::Whatever => true,
            Carry::Tcp(_) => transport == "tcp",
            Carry::Modelled => transport != "tcp",
        };
        self.candidates.iter().position(|candidate| (all || candidate.can) && suits(candidate.transport))
    }

    fn may_bbr(&self) -> bool {
        self.bbr && matches!(self.control, CongestionControl::Auto | CongestionControl::Bbr)
    }

    fn figure(&self, figure: Figure) -> Option<f64> {
        match figure {
            Figure::RoundTrip => self.figures.round_trip.map(|span| span.as_secs_f64()),
            Figure::Loss => Some(self.figures.loss.unwrap_or(0.0)),
            Figure::Need => self.figures.round_trip.map(|_| self.need()),
        }
    }

    /// See [`Figure::Need`].
    fn need(&self) -> f64 {
        let wanted = match self.capacity {
            Some(BitRate(bits)) => bits as f64,
            None => self.figures.rate.unwrap_or(0.0).max(CARRIES),
        };
        let round_trip = self.figures.round_trip.unwrap_or_default().as_secs_f64();
        let loss = self.figures.loss.unwrap_or(0.0).max(LEAST_LOSS);
        wanted * round_trip * loss.sqrt() / (SEGMENT * 1.5_f64.sqrt())
    }

    /// Twice the bandwidth-delay product: the second half fills while a loss is repaired.
    fn window(&self) -> Buffer {
        let (Some(round_trip), Some(rate)) = (self.figures.round_trip, self.figures.rate) else { return Buffer::Auto };
        let window = 2.0 * rate / 8.0 * round_trip.as_secs_f64();
        match window.partial_cmp(&WINDOW_LEAST) {
            Some(Ordering::Greater) if self.capacity.is_none() => {
                Buffer::Bytes(ByteSize((window as u64).min(WINDOW_MAX / 2).next_power_of_two()))
            }
            // With a given capacity, transports size their windows by that.
            _ => Buffer::Auto,
        }
    }
}

impl When {
    /// Whether the condition holds. A `margin` above 1 extends its bound; one below 1 narrows it.
    fn holds(self, situation: &Situation, margin: f64) -> bool {
        match self {
            Self::Unmeasured => situation.figures.round_trip.is_none(),
            Self::Bbr(wanted) => situation.may_bbr() == wanted,
            Self::Below(figure, bound) => situation.figure(figure).is_some_and(|value| value < bound * margin),
            Self::From(figure, bound) => situation.figure(figure).is_some_and(|value| value >= bound / margin),
        }
    }
}

/// For the log and `phoebus status`: `rtt 100.0 ms, loss 0.010 %, 827 Mbit/s`.
impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(round_trip) = self.round_trip else { return f.write_str("nothing was measured") };
        write!(f, "rtt {:.1} ms", round_trip.as_secs_f64() * 1e3)?;
        if let Some(loss) = self.loss {
            write!(f, ", loss {:.3} %", loss * 100.0)?;
        }
        if let Some(rate) = self.rate {
            write!(f, ", {:.0} Mbit/s", rate / 1e6)?;
        }
        Ok(())
    }
}

/// In the guide's notation.
impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |figure: Figure, bound: f64| match figure {
            Figure::RoundTrip => ("round trip", format!("{} ms", bound * 1e3)),
            Figure::Loss => ("loss", format!("{} %", bound * 100.0)),
            Figure::Need => ("need", format!("{bound}")),
        };
        match *self {
            Self::Unmeasured => f.write_str("nothing measured"),
            Self::Bbr(true) => f.write_str("bbr"),
            Self::Bbr(false) => f.write_str("no bbr"),
            Self::Below(figure, bound) => {
                let (name, bound) = number(figure, bound);
                write!(f, "{name} < {bound}")
            }
            Self::From(figure, bound) => {
                let (name, bound) = number(figure, bound);
                write!(f, "{name} ≥ {bound}")
            }
        }
    }
}
