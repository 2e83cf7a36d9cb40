//! Model-based control for long paths that lose packets. It continuously measures the bottleneck's rate and the
//! round-trip time without a queue, and keeps about their product, the bandwidth-delay product, in flight.
//!
//! The design and its gains are BBR's (Cardwell et al., "BBR: congestion-based congestion control", 2016). The signals
//! are UDT's, and the response to loss differs. A control that takes every loss for congestion cannot fill such a path:
//! at 100 ms and 0.1 % loss it would react many times in every round trip. Here a loss counts only together with a
//! queue. When the round-trip time is well above its minimum, and a round loses [`LOSS_TOLERATED`] more than most
//! rounds do, the bottleneck's buffer overflows. The amount in flight is then kept below the amount at that time. Loss
//! without a queue costs nothing but the lost packets.
//!
//! A standing queue that persists even after this flow's own pause belongs to competing flows. It is counted as part of
//! the path ([`Control::packets_with_standing_queue`]), so that this flow keeps its share beside them. Little more than
//! that is kept in flight, because any excess overflows the queue and costs the other flows packets, too.

use super::{Ack, Acknowledgements, Controller, Factory, Loss, Pace, Path, packet_bits};
use std::time::Duration;

/// Model-based control.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Model;

/// The same for a path that has carried a known rate lately. It begins with a part of that rate, once the first round trip
/// has shown that the path is like the known one, and falls back to the usual start if that loses (RFC 9959).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resumed {
    /// The path.
    pub known: KnownPath,
}

/// What is known of a path from an earlier transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownPath {
    /// Its rate, in bits per second with IP headers.
    pub bits_per_second: u64,
    /// Its smallest round-trip time.
    pub rtt: Duration,
    /// Of a million packets, so many are lost.
    pub loss_per_million: u32,
}

/// Fraction of loss in one round, above the loss of most rounds, that is tolerated even with a queue.
const LOSS_TOLERATED: f64 = 0.02;
/// Length of the filters, in rounds: a cycle of cruising (8 rounds) and a margin.
const ROUNDS: usize = 10;

impl Factory for Model {
    fn name(&self) -> &'static str {
        "model"
    }

    fn build(&self, now: Duration, path: &Path) -> Box<dyn Controller> {
        Box::new(Control::new(now, path, None))
    }
}

impl Factory for Resumed {
    fn name(&self) -> &'static str {
        "model"
    }

    fn build(&self, now: Duration, path: &Path) -> Box<dyn Controller> {
        Box::new(Control::new(now, path, Some(self.known)))
    }
}

/// A jump to a part of a known path's rate.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Jump {
    /// The first measured round-trip time decides about it.
    Possible(KnownPath),
    /// It takes the place of a measured rate, in packets per second, for so many rounds: until what was sent at this rate is
    /// acknowledged.
    Tried {
        rate: f64,
        rounds: u32,
    },
    None,
}

impl Control {
    fn new(now: Duration, path: &Path, known: Option<KnownPath>) -> Self {
        let min_rtt = path.rtt.max(Self::RTT_MIN);
        let mut control = Self {
            phase: Phase::Startup,
            rate: MaxFilter::default(),
            min_rtt,
            min_rtt_at: now,
            min_rtt_measured: path.rtt_measured,
            min_rtt_next: Duration::MAX,
            round: 0,
            round_ends: 0,
            is_app_limited: true,
            last_ack_at: now,
            plateau: (0.0, 0),
            lost: 0,
            acked: 0,
            min_rtts: [Duration::MAX; ROUNDS],
            losses: [0.0; ROUNDS],
            window_limit: f64::INFINITY,
            random: path.seed,
            window_max: path.window_max,
            pace: Pace { interval: 0.0, window: 0 },
            jump: known.map_or(Jump::None, Jump::Possible),
        };
        control.update_pace(path);
        control
    }
}

#[derive(Debug)]
struct Control {
    phase: Phase,
    /// The highest delivery rate of the last rounds, in packets per second.
    rate: MaxFilter,
    min_rtt: Duration,
    min_rtt_at: Duration,
    min_rtt_measured: bool,
    /// The smallest round-trip time since the current measurement of the minimum began.
    min_rtt_next: Duration,
    /// Number of the current round. Rounds without a usable sample do not count.
    round: u64,
    /// The current round ends when a packet is acknowledged that was sent after this many packets were delivered.
    round_ends: u64,
    /// Whether all samples of this round were limited by the application, and not by the path.
    is_app_limited: bool,
    /// When packets were last known to have arrived.
    last_ack_at: Duration,
    /// In startup: the rate that was not exceeded by a quarter, and for how many rounds.
    plateau: (f64, u32),
    /// Packets lost in this round.
    lost: u64,
    /// Packets acknowledged in this round.
    acked: u64,
    /// The smallest round-trip time of each of the last rounds.
    min_rtts: [Duration; ROUNDS],
    /// The fraction of loss of each of the last rounds.
    losses: [f64; ROUNDS],
    /// Upper limit of the window after an overflow of the bottleneck's buffer, in packets.
    window_limit: f64,
    random: u64,
    window_max: u32,
    pace: Pace,
    jump: Jump,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    /// The rate doubles every round, until the delivery rate stops growing.
    Startup,
    /// The queue that startup has built is drained.
    Drain,
    /// Steady state. Every cycle of eight round trips has one step that probes for more bandwidth, and a pause after
    /// it.
    Cruise { step: usize, since: Duration },
    /// The window is so small that the minimum round-trip time can be measured (ProbeRTT in BBR).
    Probe { until: Duration },
}

/// A windowed maximum over the last [`ROUNDS`] rounds.
#[derive(Debug, Default)]
struct MaxFilter {
    best: [f64; ROUNDS],
}

impl MaxFilter {
    fn sample(&mut self, round: u64, rate: f64) {
        let best = &mut self.best[round as usize % ROUNDS];
        *best = best.max(rate);
    }

    /// Begins a round, which replaces the oldest one.
    fn advance(&mut self, round: u64) {
        self.best[round as usize % ROUNDS] = 0.0;
    }

    fn get(&self) -> f64 {
        self.best.iter().copied().fold(0.0, f64::max)
    }
}

impl Control {
    /// Shortest round-trip time that is believed.
    const RTT_MIN: Duration = Duration::from_micros(100);
    /// Pacing gain in startup: 2 / ln 2, with which the delivery rate doubles every round.
    const STARTUP: f64 = 2.885;
    /// Window gain in startup: the amount in flight that this gain needs. More would only queue once the bottleneck's
    /// rate is reached.
    const STARTUP_WINDOW: f64 = 2.0;
    /// Pacing gains of the steps of a cruise cycle.
    const CRUISE: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
    /// Window gains of these steps, for the packets on the path without a queue. The larger one of both windows
    /// applies.
    const CRUISE_WINDOW: [f64; 8] = [1.35, 0.95, 1.15, 1.15, 1.15, 1.15, 1.15, 1.15];
    /// Window gains of these steps, for the packets on the path including the standing queue of competing flows.
    const STANDING_WINDOW: [f64; 8] = [1.2, 0.0, 1.05, 1.05, 1.05, 1.05, 1.05, 1.05];
    /// A cycle leaves out a random number of steps below this.
    const SKIPPED: usize = 3;
    /// Upper limit of path and standing queue, as a multiple of the path without a queue: a queue of one round trip, as
    /// in BBR.
    const STANDING_MAX: f64 = 2.0;
    /// Upper limit of the loss that is attributed to the path. In startup, less loss is not an overflow: sending at
    /// twice the bottleneck's rate loses more, whereas varying round-trip times look like a queue and would end startup
    /// on a lossy path.
    const LOSS_MAX: f64 = 0.1;
    /// Smallest window, in packets.
    const WINDOW_MIN: f64 = 16.0;
    /// Initial window, in packets, paced over the first round trip: 150 kB, which saves three round trips of startup
    /// compared with TCP's ten packets. It is the lower bound throughout startup, so that a pause of the application
    /// does not reduce it.
    const WINDOW_INITIAL: f64 = 100.0;
    /// Time span of the packets that a driver sends or receives together.
    const BATCH: Duration = Duration::from_millis(2);
    /// Age at which the minimum round-trip time is measured again.
    const MIN_RTT_AGE: Duration = Duration::from_secs(10);
    /// Shortest duration of that measurement.
    const PROBE_TIME: Duration = Duration::from_millis(200);
    /// After this time without acknowledgements, no packets are in flight any more.
    const PAUSE: Duration = Duration::from_secs(1);
    /// A round-trip time a quarter above the minimum indicates a queue. The margin is at least `QUEUED_MIN`, the normal
    /// variation of round-trip times, and at most `QUEUED_MAX`: a router's buffer may be much shorter than the path.
    const QUEUED_MIN: Duration = Duration::from_millis(2);
    const QUEUED_MAX: Duration = Duration::from_millis(5);

    /// The part of a known path's rate that a jump takes for measured. With the gains of startup, half of what the path
    /// holds is then in flight after a round trip, which RFC 9959 allows at most.
    const JUMP: f64 = 0.25;
    /// A path is like the known one if its round-trip time is at least this part of it, and at most so many times as long.
    const JUMP_RTT: [f64; 2] = [0.5, 10.0];

    /// The rate of the path, in packets per second.
    fn rate(&self) -> f64 {
        match self.jump {
            Jump::Tried { rate, .. } => rate.max(self.rate.get()),
            _ => self.rate.get(),
        }
    }

    /// Packets on the path without a queue: the bandwidth-delay product.
    fn path_packets(&self) -> f64 {
        self.rate() * self.min_rtt.as_secs_f64()
    }

    /// Decides about a jump, by the first measured round-trip time.
    fn consider_jump(&mut self, path: &Path, rtt: Option<Duration>) {
        let (Jump::Possible(known), Some(rtt)) = (self.jump, rtt) else { return };
        let [shortest, longest] = Self::JUMP_RTT.map(|part| known.rtt.mul_f64(part));
        let is_like = self.phase == Phase::Startup && (shortest..=longest).contains(&rtt);
        // A shorter path than the known one holds less.
        let packets = known.bits_per_second as f64 / packet_bits(path.mss)
            * (rtt.as_secs_f64() / known.rtt.as_secs_f64()).min(1.0);
        self.jump = if is_like { Jump::Tried { rate: packets * Self::JUMP, rounds: 2 } } else { Jump::None };
    }

    /// Packets on the path including the standing queue of competing flows. This flow's own queue drains when it
    /// pauses, once in every cycle. A queue that remains even then belongs to others.
    fn packets_with_standing_queue(&self) -> f64 {
        // Rounds without a measurement do not count.
        let min = self.min_rtts.iter().copied().min().filter(|min| *min < Duration::MAX).unwrap_or(self.min_rtt);
        let product = self.path_packets();
        (self.rate() * min.as_secs_f64()).clamp(product, Self::STANDING_MAX * product)
    }

    /// The fraction of loss of the path itself: the median of the last rounds, because a queue overflows in fewer than
    /// half of the rounds.
    fn path_loss(&self) -> f64 {
        let mut losses = self.losses;
        losses.sort_unstable_by(f64::total_cmp);
        losses[ROUNDS / 2].min(Self::LOSS_MAX)
    }

    fn update_rtt(&mut self, now: Duration, path: &Path, rtt: Option<Duration>) {
        // A peer may say that it has held back an acknowledgement for all of the round trip.
        let Some(rtt) = rtt.map(|rtt| rtt.max(Self::RTT_MIN)) else { return };
        let min = &mut self.min_rtts[self.round as usize % ROUNDS];
        *min = rtt.min(*min);
        // After a pause, this connection has no queue, so that the measurement needs no probe.
        if now > self.last_ack_at + Self::PAUSE {
            (self.min_rtt, self.min_rtt_at) = (rtt, now);
        }
        self.min_rtt_next = self.min_rtt_next.min(rtt);
        if !self.min_rtt_measured || rtt <= self.min_rtt {
            (self.min_rtt, self.min_rtt_at, self.min_rtt_measured) = (rtt, now, true);
        } else if rtt <= self.min_rtt + (self.min_rtt / 32).min(Self::QUEUED_MIN) {
            // The minimum is confirmed. A probe would only cost throughput.
            self.min_rtt_at = now;
        } else if now > self.min_rtt_at + Self::MIN_RTT_AGE && !matches!(self.phase, Phase::Probe { .. }) {
            self.phase = Phase::Probe { until: now + Self::PROBE_TIME.max(path.rtt) };
            self.min_rtt_next = rtt;
        }
    }

    /// Whether packets seem to wait in a queue. The queue may be much shorter than the round-trip time.
    fn is_queued(&self, path: &Path) -> bool {
        path.rtt > self.min_rtt + (self.min_rtt / 4).clamp(Self::QUEUED_MIN, Self::QUEUED_MAX)
    }

    /// Limits the window to 85 % of the packets in flight, because the bottleneck's buffer has overflowed with these.
    fn on_overflow(&mut self, path: &Path) {
        let min = self.packets_with_standing_queue().max(Self::WINDOW_MIN);
        self.window_limit = (f64::from(path.in_flight) * 0.85).clamp(min, self.window_limit.max(min));
        if self.phase == Phase::Startup {
            self.phase = Phase::Drain;
        }
    }

    fn end_of_round(&mut self, path: &Path) {
        let loss = self.lost as f64 / (self.lost + self.acked).max(1) as f64;
        let tolerated = if self.phase == Phase::Startup { Self::LOSS_MAX } else { LOSS_TOLERATED + self.path_loss() };
        if loss > tolerated && self.is_queued(path) {
            self.on_overflow(path);
        } else {
            self.window_limit *= 1.1;
        }
        self.losses.rotate_right(1);
        self.losses[0] = loss;
        (self.lost, self.acked) = (0, 0);
        self.jump = match self.jump {
            Jump::Tried { rate, rounds: rounds @ 2.. } => Jump::Tried { rate, rounds: rounds - 1 },
            Jump::Tried { .. } => Jump::None,
            other => other,
        };
        // If the application limits the rate, a plateau says nothing about the path.
        if self.phase == Phase::Startup && !self.is_app_limited {
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
            Phase::Drain if f64::from(path.in_flight) > self.path_packets().max(Self::WINDOW_MIN) => {}
            Phase::Drain => self.cruise(now),
            Phase::Cruise { step, since } => {
                let drained = step == 1 && f64::from(path.in_flight) <= self.path_packets();
                if now > since + self.min_rtt || drained {
                    // Vary the length of cycles: with equal cycles, one flow might always probe in another's pause.
                    let skipped = if step == 2 { self.random() % Self::SKIPPED } else { 0 };
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

    /// Begins cruising at a random step, so that flows do not probe together. Never begins with the probe or the pause.
    fn cruise(&mut self, now: Duration) {
        let step = 2 + self.random() % (Self::CRUISE.len() - 2);
        self.phase = Phase::Cruise { step, since: now };
    }

    fn random(&mut self) -> usize {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as usize
    }

    fn update_pace(&mut self, path: &Path) {
        let initial = Self::WINDOW_INITIAL / self.min_rtt.as_secs_f64();
        let rate = self.rate();
        if rate <= 0.0 {
            // Before the first sample: pace the initial window over one round trip.
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
        // A receiver that reads in batches notices late that there are enough packets for an acknowledgement. Without
        // room for packets that wait for theirs, the window could not grow on a short path.
        let Acknowledgements { interval, packets } = path.acknowledgements;
        let unacked = (rate * interval.as_secs_f64()).min(f64::from(packets) + rate * Self::BATCH.as_secs_f64());
        let product = self.path_packets();
        let window = match self.phase {
            Phase::Startup | Phase::Drain => (product + unacked) * Self::STARTUP_WINDOW,
            Phase::Cruise { step, .. } => {
                let standing = self.packets_with_standing_queue() * Self::STANDING_WINDOW[step];
                (product * Self::CRUISE_WINDOW[step]).max(standing) + unacked
            }
            Phase::Probe { .. } => (product + unacked) * 0.5,
        };
        // The addend is the same for every flow, so that smaller flows grow relative to larger ones.
        let window = (window + Self::WINDOW_MIN).min(self.window_limit);
        let window = if self.phase == Phase::Startup { window.max(Self::WINDOW_INITIAL) } else { window };
        let window = window.min(f64::from(path.window_max.min(self.window_max))) as u32;
        self.pace = Pace { interval: 1e9 / (rate * gain), window };
    }
}

impl Controller for Control {
    fn on_ack(&mut self, now: Duration, path: &Path, ack: &Ack) {
        self.update_rtt(now, path, ack.rtt);
        self.acked += u64::from(ack.count);
        if let Some(sample) = &ack.sample {
            if sample.delivered_before >= self.round_ends {
                self.round_ends = ack.delivered;
                self.end_of_round(path);
                // An application-limited round does not age the filters: a connection may idle and resume at its rate.
                if !std::mem::replace(&mut self.is_app_limited, true) {
                    self.round += 1;
                    self.rate.advance(self.round);
                    self.min_rtts[self.round as usize % ROUNDS] = Duration::MAX;
                }
            }
            // Samples do not count retransmissions, which use the path as well: add them by the path's loss.
            let rate = f64::from(sample.delivered) / sample.interval.as_secs_f64().max(1e-6);
            let rate = rate / (1.0 - self.path_loss());
            // Samples over less than a round trip measure bursts of acknowledgements, not the path.
            let is_long = sample.interval >= self.min_rtt.min(path.rtt);
            if is_long && (!sample.app_limited || rate > self.rate.get()) {
                self.rate.sample(self.round, rate);
            }
            self.is_app_limited &= sample.app_limited || !is_long;
        }
        // The round that may have ended above is not one of the jump's.
        self.consider_jump(path, ack.rtt);
        self.last_ack_at = now;
        self.next_phase(now, path);
        self.update_pace(path);
    }

    fn on_loss(&mut self, _now: Duration, path: &Path, loss: &Loss) {
        self.lost += u64::from(loss.count);
        // In startup, do not wait for the end of the round: every round trip beyond the bottleneck's rate would lose as
        // many packets as the path holds.
        let is_high = self.lost as f64 > Self::LOSS_MAX * f64::from(path.in_flight);
        if is_high && matches!(self.jump, Jump::Tried { .. }) {
            // The path carries less than it did.
            self.jump = Jump::None;
            self.update_pace(path);
        }
        if self.phase == Phase::Startup && is_high && self.is_queued(path) {
            self.on_overflow(path);
            self.update_pace(path);
        }
    }

    fn pace(&self) -> Pace {
        self.pace
    }

    fn path_rate(&self) -> Option<f64> {
        (self.phase != Phase::Startup).then(|| self.rate.get())
    }
}
