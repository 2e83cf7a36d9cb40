//! Control by a model of the path, for long paths that lose packets: the bottleneck's rate and the round-trip time without a
//! queue are measured all the time, and the sender keeps about their product under way.
//!
//! The idea and its gains are BBR's (Cardwell et al., "BBR: congestion-based congestion control", 2016); the signals are
//! UDT's, and the response to loss differs. Control that takes loss for congestion cannot fill such a path: at 100 ms and
//! 0.1 % loss it is hit many times in every round trip. Here a loss counts only together with a queue: when the round trip
//! is well above its minimum while [`LOSS_TOLERATED`] more was lost in a round than is lost in most, the bottleneck's buffer
//! overflows, and the amount under way is held below what it was then. Loss without a queue costs nothing but the packets.
//!
//! A queue that stands, even after this flow's own pause, is one that others keep. It is counted with the path
//! ([`Control::standing`]), so that the flow holds its share beside them; and little more than that is kept under way, because
//! what is too much there is lost, by the others too.

use super::{Ack, Controller, Factory, Loss, Pace, Path};
use crate::udt::SYN;
use std::time::Duration;

/// Control by a model of the path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Model;

/// Loss in one round that means nothing even when there is a queue, in addition to what most rounds lose.
const LOSS_TOLERATED: f64 = 0.02;
/// Rounds that are remembered: a cycle of cruising and a little.
const ROUNDS: usize = 10;

impl Factory for Model {
    fn name(&self) -> &'static str {
        "model"
    }

    fn build(&self, now: Duration, path: &Path) -> Box<dyn Controller> {
        let min_rtt = path.rtt.max(Duration::from_micros(100));
        let mut control = Control {
            phase: Phase::Startup,
            rate: Filter::default(),
            min_rtt,
            min_rtt_at: now,
            min_rtt_measured: path.rtt_measured,
            min_rtt_next: Duration::MAX,
            round: 0,
            round_ends: 0,
            is_limited: true,
            heard_at: now,
            plateau: (0.0, 0),
            lost: 0,
            acked: 0,
            leasts: [Duration::MAX; ROUNDS],
            losses: [0.0; ROUNDS],
            bound: f64::INFINITY,
            random: path.seed,
            window_max: path.window_max,
            pace: Pace { interval: 0.0, window: 0 },
        };
        control.decide(path);
        Box::new(control)
    }
}

#[derive(Debug)]
struct Control {
    phase: Phase,
    /// The highest delivery rate of the last rounds, packets per second.
    rate: Filter,
    min_rtt: Duration,
    min_rtt_at: Duration,
    min_rtt_measured: bool,
    /// The least round trip while the minimum is measured anew.
    min_rtt_next: Duration,
    /// Rounds since the beginning, and how much is delivered when this one ends.
    round: u64,
    round_ends: u64,
    /// Whether all samples of this round show what the application had, and not what the path gave.
    is_limited: bool,
    /// When anything was last known to have arrived.
    heard_at: Duration,
    /// While starting up: the rate that was not exceeded by a quarter, and for how many rounds.
    plateau: (f64, u32),
    /// Packets lost and acknowledged in this round.
    lost: u64,
    acked: u64,
    /// The least round trip of each of the last rounds, and the fraction that was lost in it.
    leasts: [Duration; ROUNDS],
    losses: [f64; ROUNDS],
    /// Packets under way at which the bottleneck's buffer overflowed.
    bound: f64,
    random: u64,
    window_max: u32,
    pace: Pace,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    /// The rate doubles every round, until it does not help any more.
    Startup,
    /// The queue that this made is let go.
    Drain,
    /// Cruising, with a probe for more and a pause after it in every eight round trips.
    Cruise { step: usize, since: Duration },
    /// So little is under way that the minimum round-trip time shows.
    Probe { until: Duration },
}

/// The maximum of the last [`ROUNDS`] rounds: the best of each.
#[derive(Debug, Default)]
struct Filter {
    best: [f64; ROUNDS],
}

impl Filter {
    fn sample(&mut self, round: u64, rate: f64) {
        let best = &mut self.best[round as usize % ROUNDS];
        *best = best.max(rate);
    }

    /// Begins a round: the one that had its place is forgotten.
    fn advance(&mut self, round: u64) {
        self.best[round as usize % ROUNDS] = 0.0;
    }

    fn get(&self) -> f64 {
        self.best.iter().copied().fold(0.0, f64::max)
    }
}

impl Control {
    /// 2 / ln 2: with it, what is delivered doubles every round.
    const STARTUP: f64 = 2.885;
    /// As much under way as that takes. More would only wait in a queue when the end of the path's rate is reached.
    const STARTUP_WINDOW: f64 = 2.0;
    const CRUISE: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
    /// What may be under way in these steps: of what the path holds without a queue, and with that of others, whichever is more.
    const CRUISE_WINDOW: [f64; 8] = [1.35, 0.95, 1.15, 1.15, 1.15, 1.15, 1.15, 1.15];
    const BESIDE_WINDOW: [f64; 8] = [1.2, 0.0, 1.05, 1.05, 1.05, 1.05, 1.05, 1.05];
    /// Fewer steps than this are left out of a cycle.
    const SKIPPED: usize = 3;
    /// The most that the path and that queue are taken to hold, of what the path holds: a queue of one round trip, as in BBR.
    const STANDING_MAX: f64 = 2.0;
    /// More loss than this is not taken for the path's. While starting up, less is no overflow: that of twice the path's rate
    /// is more, and round trips that vary would pass for a queue, and end the start of a path that loses packets besides.
    const LOSS_MAX: f64 = 0.1;
    /// Packets that may always be under way.
    const WINDOW_MIN: f64 = 16.0;
    /// Packets that go in the first round trip, evenly, and in later ones at least until more is known of the path than what
    /// the application had to say: 150 kB, three round trips less of starting up than with TCP's ten packets.
    const WINDOW_INITIAL: f64 = 100.0;
    /// What is sent, or received, together.
    const BATCH: Duration = Duration::from_millis(2);
    /// After how long the minimum round-trip time is measured again, and how long that takes at least.
    const MIN_RTT_AGE: Duration = Duration::from_secs(10);
    const PROBE_TIME: Duration = Duration::from_millis(200);
    /// After so long without a word of packets, none is under way.
    const PAUSE: Duration = Duration::from_secs(1);
    /// A round trip that is a quarter longer than the least shows a queue; but no less than this, by which round trips differ
    /// anyway, and no more than that: what a router holds may be much shorter than the path.
    const QUEUED_MIN: Duration = Duration::from_millis(2);
    const QUEUED_MAX: Duration = Duration::from_millis(5);

    /// Packets that the path holds without a queue.
    fn path_packets(&self) -> f64 {
        self.rate.get() * self.min_rtt.as_secs_f64()
    }

    /// Packets that the path holds with the queue that others keep. One of this flow's own is gone when it has paused, once in
    /// every cycle; what is there even then is not its own.
    fn standing(&self) -> f64 {
        // Of rounds without a measurement nothing is known.
        let least = self.leasts.iter().copied().min().filter(|least| *least < Duration::MAX).unwrap_or(self.min_rtt);
        let product = self.path_packets();
        (self.rate.get() * least.as_secs_f64()).clamp(product, Self::STANDING_MAX * product)
    }

    /// The fraction that the path loses by itself: what half of the rounds have lost at least. A queue overflows in fewer.
    fn path_loss(&self) -> f64 {
        let mut losses = self.losses;
        losses.sort_unstable_by(f64::total_cmp);
        losses[ROUNDS / 2].min(Self::LOSS_MAX)
    }

    fn take_rtt(&mut self, now: Duration, path: &Path, rtt: Option<Duration>) {
        let Some(rtt) = rtt else { return };
        let least = &mut self.leasts[self.round as usize % ROUNDS];
        *least = rtt.min(*least);
        // What goes after a pause finds no queue of this connection's: there is nothing to be let go to measure.
        if now > self.heard_at + Self::PAUSE {
            (self.min_rtt, self.min_rtt_at) = (rtt, now);
        }
        self.min_rtt_next = self.min_rtt_next.min(rtt);
        if !self.min_rtt_measured || rtt <= self.min_rtt {
            (self.min_rtt, self.min_rtt_at, self.min_rtt_measured) = (rtt, now, true);
        } else if rtt <= self.min_rtt + (self.min_rtt / 32).min(Self::QUEUED_MIN) {
            // It still holds. Measuring it anew would only cost what does not go meanwhile.
            self.min_rtt_at = now;
        } else if now > self.min_rtt_at + Self::MIN_RTT_AGE && !matches!(self.phase, Phase::Probe { .. }) {
            self.phase = Phase::Probe { until: now + Self::PROBE_TIME.max(path.rtt) };
            self.min_rtt_next = rtt;
        }
    }

    /// Whether packets wait somewhere on the path. A queue may be much shorter than the round trip.
    fn is_queued(&self, path: &Path) -> bool {
        path.rtt > self.min_rtt + (self.min_rtt / 4).clamp(Self::QUEUED_MIN, Self::QUEUED_MAX)
    }

    /// The bottleneck's buffer has overflowed with what is under way.
    fn overflowed(&mut self, path: &Path) {
        let least = self.standing().max(Self::WINDOW_MIN);
        self.bound = (f64::from(path.under_way) * 0.85).clamp(least, self.bound.max(least));
        if self.phase == Phase::Startup {
            self.phase = Phase::Drain;
        }
    }

    fn end_of_round(&mut self, path: &Path) {
        let loss = self.lost as f64 / (self.lost + self.acked).max(1) as f64;
        let tolerated = if self.phase == Phase::Startup { Self::LOSS_MAX } else { LOSS_TOLERATED + self.path_loss() };
        if loss > tolerated && self.is_queued(path) {
            self.overflowed(path);
        } else {
            self.bound *= 1.1;
        }
        self.losses.rotate_right(1);
        self.losses[0] = loss;
        (self.lost, self.acked) = (0, 0);
        // An application that has little to send does not show where the path ends.
        if self.phase == Phase::Startup && !self.is_limited {
            let rate = self.rate.get();
            if rate > self.plateau.0 * 1.25 {
                self.plateau = (rate, 0);
            } else {
                self.plateau.1 += 1;
                if self.plateau.1 >= 3 {
                    self.phase = Phase::Drain;
                }
            }
        }
    }

    fn next_phase(&mut self, now: Duration, path: &Path) {
        match self.phase {
            Phase::Startup => {}
            Phase::Drain if f64::from(path.under_way) > self.path_packets().max(Self::WINDOW_MIN) => {}
            Phase::Drain => self.cruise(now),
            Phase::Cruise { step, since } => {
                let drained = step == 1 && f64::from(path.under_way) <= self.path_packets();
                if now > since + self.min_rtt || drained {
                    // Some cycles are shorter: of two as long as each other, one might always probe in the other's pause.
                    let skipped = if step == 2 { self.draw() % Self::SKIPPED } else { 0 };
                    self.phase = Phase::Cruise { step: (step + 1 + skipped) % Self::CRUISE.len(), since: now };
                }
            }
            Phase::Probe { until } if now < until => {}
            Phase::Probe { .. } => {
                (self.min_rtt, self.min_rtt_at) = (self.min_rtt_next, now);
                self.cruise(now);
            }
        }
    }

    /// Begins at a step of its own, so that flows do not probe together, but never with the pause.
    fn cruise(&mut self, now: Duration) {
        let step = 2 + self.draw() % (Self::CRUISE.len() - 2);
        self.phase = Phase::Cruise { step, since: now };
    }

    fn draw(&mut self) -> usize {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as usize
    }

    fn decide(&mut self, path: &Path) {
        let initial = Self::WINDOW_INITIAL / self.min_rtt.as_secs_f64();
        let rate = self.rate.get();
        if rate <= 0.0 {
            // Nothing is known: the first window goes in one round trip.
            self.pace = Pace { interval: 1e9 / initial, window: Self::WINDOW_INITIAL as u32 };
            return;
        }
        let rate = if self.phase == Phase::Startup { rate.max(initial / Self::STARTUP) } else { rate };
        let gain = match self.phase {
            Phase::Startup => Self::STARTUP,
            Phase::Drain => 1.0 / Self::STARTUP,
            Phase::Cruise { step, .. } => Self::CRUISE[step],
            Phase::Probe { .. } => 1.0,
        };
        // What is received waits for an acknowledgement for up to a SYN, or until there are 64 packets, which a receiver
        // that takes them in batches sees late. Without room for it a window could never grow on a short path.
        let held = (rate * SYN.as_secs_f64()).min(64.0 + rate * Self::BATCH.as_secs_f64());
        let product = self.path_packets();
        let window = match self.phase {
            Phase::Startup | Phase::Drain => (product + held) * Self::STARTUP_WINDOW,
            Phase::Cruise { step, .. } => {
                (product * Self::CRUISE_WINDOW[step]).max(self.standing() * Self::BESIDE_WINDOW[step]) + held
            }
            Phase::Probe { .. } => (product + held) * 0.5,
        };
        // The same for every flow: it is what lets the small ones among several grow.
        let window = (window + Self::WINDOW_MIN).min(self.bound);
        let window = if self.phase == Phase::Startup { window.max(Self::WINDOW_INITIAL) } else { window };
        let window = window.min(f64::from(path.window_max.min(self.window_max))) as u32;
        self.pace = Pace { interval: 1e9 / (rate * gain), window };
    }
}

impl Controller for Control {
    fn on_ack(&mut self, now: Duration, path: &Path, ack: &Ack) {
        self.take_rtt(now, path, ack.rtt);
        self.acked += u64::from(ack.count);
        if let Some(sample) = &ack.sample {
            if sample.delivered_before >= self.round_ends {
                self.round_ends = ack.delivered;
                self.end_of_round(path);
                // A round that has shown nothing makes nothing old: a connection may idle, and go on at its rate.
                if !std::mem::replace(&mut self.is_limited, true) {
                    self.round += 1;
                    self.rate.advance(self.round);
                    self.leasts[self.round as usize % ROUNDS] = Duration::MAX;
                }
            }
            // Samples leave repairs out, which take their share of the path as well.
            let rate = f64::from(sample.delivered) / sample.interval.as_secs_f64().max(1e-6);
            let rate = rate / (1.0 - self.path_loss());
            // Samples over less than a round trip see bursts of acknowledgements, not the path.
            let is_long = sample.interval >= self.min_rtt.min(path.rtt);
            if is_long && (!sample.app_limited || rate > self.rate.get()) {
                self.rate.sample(self.round, rate);
            }
            self.is_limited &= sample.app_limited || !is_long;
        }
        self.heard_at = now;
        self.next_phase(now, path);
        self.decide(path);
    }

    fn on_loss(&mut self, _now: Duration, path: &Path, loss: &Loss) {
        self.lost += u64::from(loss.count);
        // While the rate doubles, every round trip that this goes on costs as much as the path holds.
        let is_much = self.lost as f64 > Self::LOSS_MAX * f64::from(path.under_way);
        if self.phase == Phase::Startup && is_much && self.is_queued(path) {
            self.overflowed(path);
            self.decide(path);
        }
    }

    fn pace(&self) -> Pace {
        self.pace
    }
}
