//! What is to carry a segment, from what was measured of it (S1, S12): figures in, a decision and its reason out.
//!
//! [`RULES`] is the table, [`choose`] goes through it; [`in_order`] does without. Nothing here knows of connections or clocks:
//! `crate::survey` keeps the figures, `crate::pool` does what was decided.

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
/// Windows that QUIC and UDT have when nothing is said; below that there is nothing to choose.
const WINDOW_LEAST: f64 = (64 << 20) as f64;
/// The largest window that a profile may have.
const WINDOW_MAX: u64 = 1 << 30;

/// What was measured of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Figures {
    /// The round trip of an empty path.
    pub(crate) round_trip: Option<Duration>,
    /// The share of what was sent that was lost, if enough was sent to tell.
    pub(crate) loss: Option<f64>,
    /// The highest rate at which data was delivered, in bits per second.
    pub(crate) rate: Option<f64>,
}

/// A transport that may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Candidate<'a> {
    pub(crate) transport: &'a str,
    /// Whether it is to be had, as far as anybody knows.
    pub(crate) can: bool,
}

/// All that a decision depends on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Situation<'a> {
    pub(crate) figures: Figures,
    /// What the segment can carry, in bits per second, where the profile says so.
    pub(crate) capacity: Option<BitRate>,
    /// Whether this process may send by bbr.
    pub(crate) bbr: bool,
    /// What the profile asks for; anything but `Auto` stands.
    pub(crate) control: CongestionControl,
    /// What may be used, the preferred one first; at least one.
    pub(crate) candidates: &'a [Candidate<'a>],
}

/// What is to carry the segment.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Decision {
    /// The rule that would count if everything allowed were to be had, and its way: places in [`RULES`] (its end, where order
    /// counts) and among the candidates.
    pub(crate) wished: (usize, usize),
    /// The rule that counts.
    pub(crate) rule: &'static Rule,
    /// Place among the candidates.
    pub(crate) way: usize,
    pub(crate) control: CongestionControl,
    /// Connections of one hop.
    pub(crate) streams: u16,
    /// For both directions, where the profile leaves them to the transport.
    pub(crate) buffer: Buffer,
}

/// What is to carry the segment, where the rule at `held` was wished for before. That one stays until its bounds are left by a
/// margin, or one before it holds with a margin, so that figures near a bound change nothing.
pub(crate) fn choose(situation: &Situation, held: Option<usize>) -> Decision {
    let fits = |rule: usize, margin: f64, all: bool| {
        let holds = RULES[rule].when.iter().all(|when| when.holds(situation, margin));
        if holds { situation.way(RULES[rule].carry, all).map(|way| (rule, way)) } else { None }
    };
    let kept = held.and_then(|held| fits(held, MARGIN, true));
    // The last rule asks for nothing, and takes what there is.
    let last = (RULES.len() - 1, 0);
    let wished = match kept {
        Some(kept) => (0..kept.0).find_map(|rule| fits(rule, 1.0 / MARGIN, true)).unwrap_or(kept),
        None => (0..RULES.len()).find_map(|rule| fits(rule, 1.0, true)).unwrap_or(last),
    };
    let (rule, way) = (wished.0..RULES.len()).find_map(|rule| fits(rule, MARGIN, false)).unwrap_or(last);
    situation.decision(wished, &RULES[rule], way)
}

/// The first candidate that is to be had, whatever was measured.
pub(crate) fn in_order(situation: &Situation) -> Decision {
    let way = situation.way(PREFERRED.carry, false).unwrap_or(0);
    situation.decision((RULES.len() - 1, 0), &PREFERRED, way)
}

impl Situation<'_> {
    /// That `rule` counts, and takes this way.
    fn decision(&self, wished: (usize, usize), rule: &'static Rule, way: usize) -> Decision {
        let transport = self.candidates.get(way).map_or("", |candidate| candidate.transport);
        Decision {
            wished,
            rule,
            way,
            control: match (self.control, rule.carry) {
                (CongestionControl::Auto, _) if transport != "tcp" => CongestionControl::Model,
                (CongestionControl::Auto, Carry::Tcp(control)) if control != CongestionControl::Auto => control,
                // What `auto` comes to, so that connections are not made anew for another word.
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

    /// The way that is taken by what a rule wants carried so, among `all` or those that are to be had.
    fn way(&self, carry: Carry, all: bool) -> Option<usize> {
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

    /// Twice what is under way at the rate that the segment carries: so much again is there while a loss is repaired.
    fn window(&self) -> Buffer {
        let (Some(round_trip), Some(rate)) = (self.figures.round_trip, self.figures.rate) else { return Buffer::Auto };
        let window = 2.0 * rate / 8.0 * round_trip.as_secs_f64();
        match window.partial_cmp(&WINDOW_LEAST) {
            Some(Ordering::Greater) if self.capacity.is_none() => {
                Buffer::Bytes(ByteSize((window as u64).min(WINDOW_MAX / 2).next_power_of_two()))
            }
            // Where a capacity is given, transports make their windows of that.
            _ => Buffer::Auto,
        }
    }
}

impl When {
    /// With a `margin` above 1 also a little beyond its bound, below 1 only well within it.
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

/// As the guide writes it.
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
