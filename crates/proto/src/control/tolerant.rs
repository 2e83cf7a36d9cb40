//! Control by loss alone: the rate grows until more than a tolerated share of the packets is lost (L4).
//!
//! FOBS took up to 1 % of loss for the path's own. Its authors later compared two reactions to more than that, and so does
//! this module: one looks at the history of losses, the other at a state that a single round of loss does not change.
//! Unlike [`Model`](super::Model), this control fills the queue of the bottleneck, and yields to nobody below the tolerated
//! share: it is for paths whose owner wants that.

use super::{Ack, Controller, Factory, Loss, Pace, Path};
use std::time::Duration;

/// Tolerates a share of loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tolerant {
    /// The share of packets that may be lost, between 0 and 1.
    pub share: f64,
    /// How more than that is answered.
    pub reaction: Reaction,
}

/// How the rate follows losses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reaction {
    /// By the smoothed share of loss of all rounds.
    #[default]
    History,
    /// By states: a round with little loss lets the rate grow, one with much lets it stay, two in a row let it fall.
    State,
}

impl Factory for Tolerant {
    fn name(&self) -> &'static str {
        "loss"
    }

    fn build(&self, _now: Duration, path: &Path) -> Box<dyn Controller> {
        let min_rtt = path.rtt.max(Control::RTT_MIN);
        let mut control = Control {
            tolerant: *self,
            rate: Control::PACKETS_INITIAL / min_rtt.as_secs_f64(),
            is_starting: true,
            min_rtt,
            is_measured: path.rtt_measured,
            round_ends: None,
            path_rate: 0.0,
            lost: 0,
            acked: 0,
            delivered: 0.0,
            is_limited: true,
            average: 0.0,
            high_rounds: 0,
            pace: Pace { interval: 0.0, window: 0 },
        };
        control.update_pace(path);
        Box::new(control)
    }
}

#[derive(Debug)]
struct Control {
    tolerant: Tolerant,
    /// Packets per second.
    rate: f64,
    /// Whether the rate doubles with each round.
    is_starting: bool,
    min_rtt: Duration,
    is_measured: bool,
    /// The round ends when a packet is acknowledged that was sent after so many had been delivered. `None` before the first
    /// acknowledgement: rounds begin with it.
    round_ends: Option<u64>,
    /// The delivery rate of the last round that asked the path for more.
    path_rate: f64,
    /// Packets of this round.
    lost: u64,
    acked: u64,
    /// The highest delivery rate of this round, in packets per second.
    delivered: f64,
    /// Whether the application had too little to send in all of this round.
    is_limited: bool,
    /// The smoothed share of loss.
    average: f64,
    /// Rounds in a row that lost more than is tolerated.
    high_rounds: u32,
    pace: Pace,
}

impl Control {
    const RTT_MIN: Duration = Duration::from_micros(100);
    /// Packets of the first round trip, as with [`Model`](super::Model).
    const PACKETS_INITIAL: f64 = 100.0;
    /// Growth in a round once the start is over. The share that it loses at a full queue is about as large, so it has to be
    /// less than what is usually tolerated.
    const GROWTH: f64 = 1.0 / 128.0;
    /// The weight of the last round in the average.
    const WEIGHT: f64 = 0.25;
    /// A start is over when less than this part of what is sent is delivered.
    const DELIVERED_MIN: f64 = 0.8;
    /// The rate after a fall, as a part of the delivery rate: less than the path carries, so that the queue drains.
    const FALL: f64 = 0.95;
    /// The lowest rate, in packets per round trip.
    const PACKETS_MIN: f64 = 4.0;
    /// Packets in flight, as a multiple of the rate and the smallest round trip, besides those that wait for an
    /// acknowledgement: a full queue is as long as the path.
    const WINDOW: f64 = 2.5;

    fn end_of_round(&mut self) {
        let loss = self.lost as f64 / (self.lost + self.acked).max(1) as f64;
        self.average += (loss - self.average) * Self::WEIGHT;
        let is_high = loss > self.tolerant.share;
        self.high_rounds = if is_high { self.high_rounds + 1 } else { 0 };
        let (delivered, is_limited) = (self.delivered, self.is_limited);
        (self.lost, self.acked, self.delivered, self.is_limited) = (0, 0, 0.0, true);
        if is_limited {
            // The path was not asked for more.
            return;
        }
        self.path_rate = delivered;
        if self.is_starting {
            if is_high || delivered < self.rate * Self::DELIVERED_MIN / 2.0 {
                self.is_starting = false;
                self.fall(delivered);
            } else {
                self.rate *= 2.0;
            }
            return;
        }
        // The peer's host takes no more, whatever it says about losses, or this one sends no more.
        let is_stuck = delivered > 0.0 && delivered < self.rate * Self::DELIVERED_MIN;
        let is_over = match self.tolerant.reaction {
            _ if is_stuck => true,
            Reaction::History => self.average > self.tolerant.share,
            Reaction::State => self.high_rounds >= 2,
        };
        let may_grow = match self.tolerant.reaction {
            Reaction::History => true,
            Reaction::State => loss <= self.tolerant.share / 2.0,
        };
        if is_over {
            self.fall(delivered);
        } else if may_grow {
            self.rate *= 1.0 + Self::GROWTH;
        }
    }

    /// Lowers the rate to somewhat less than what arrives.
    fn fall(&mut self, delivered: f64) {
        if delivered > 0.0 {
            self.rate = self.rate.min(delivered * Self::FALL);
        }
        // What it was lost by is answered now.
        (self.average, self.high_rounds) = (self.average.min(self.tolerant.share), 0);
    }

    fn update_pace(&mut self, path: &Path) {
        let rtt = self.min_rtt.as_secs_f64();
        self.rate = self.rate.max(Self::PACKETS_MIN / rtt);
        let unacked = self.rate * path.acknowledgements.interval.as_secs_f64();
        let window = Self::WINDOW * self.rate * rtt
            + unacked.min(f64::from(path.acknowledgements.packets))
            + Self::PACKETS_INITIAL;
        self.pace = Pace { interval: 1e9 / self.rate, window: (window as u32).min(path.window_max) };
    }
}

impl Controller for Control {
    fn on_ack(&mut self, _now: Duration, path: &Path, ack: &Ack) {
        if let Some(rtt) = ack.rtt {
            self.min_rtt = if self.is_measured { self.min_rtt.min(rtt) } else { rtt }.max(Self::RTT_MIN);
            self.is_measured = true;
        }
        self.acked += u64::from(ack.count);
        if let Some(sample) = &ack.sample {
            let rate = f64::from(sample.delivered) / sample.interval.as_secs_f64().max(1e-6);
            // Shorter samples measure bursts of acknowledgements.
            if sample.interval >= self.min_rtt / 2 {
                self.delivered = self.delivered.max(rate);
            }
            self.is_limited &= sample.app_limited;
            match self.round_ends {
                Some(end) if sample.delivered_before < end => {}
                ends => {
                    self.round_ends = Some(ack.delivered);
                    if ends.is_some() {
                        self.end_of_round();
                    }
                }
            }
        }
        self.update_pace(path);
    }

    fn on_loss(&mut self, _now: Duration, _path: &Path, loss: &Loss) {
        self.lost += u64::from(loss.count);
    }

    fn on_timeout(&mut self, _now: Duration, path: &Path) {
        // Nothing arrives: the path may be another one.
        self.rate /= 2.0;
        self.update_pace(path);
    }

    fn pace(&self) -> Pace {
        self.pace
    }

    fn path_rate(&self) -> Option<f64> {
        (!self.is_starting && self.path_rate > 0.0).then_some(self.path_rate)
    }
}
