//! A simplified model of TCP's BBR, version 1, as in Linux: congestion window and pacing, without a response to loss.

use super::tcp::AckInfo;
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    Startup,
    Drain,
    /// The step of [`Bbr::GAINS`], and when it began.
    Cruise(usize, Duration),
    /// Measures the minimum round-trip time. The end is set once the queue has drained.
    Probe(Option<Duration>),
}

/// The congestion control of one flow.
pub(crate) struct Bbr {
    phase: Phase,
    /// The highest delivery rate of each of the last rounds, in packets per second.
    rates: [f64; 10],
    round: usize,
    round_ends: u64,
    plateau: (f64, u32),
    rtt_min: Duration,
    rtt_min_at: Duration,
    in_flight: f64,
}

impl Bbr {
    const STARTUP: f64 = 2.885;
    const GAINS: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
    const AGE: Duration = Duration::from_secs(10);
    const PROBE: Duration = Duration::from_millis(200);

    pub(crate) fn new() -> Self {
        Self {
            phase: Phase::Startup,
            rates: [0.0; 10],
            round: 0,
            round_ends: 0,
            plateau: (0.0, 0),
            rtt_min: Duration::MAX,
            rtt_min_at: Duration::ZERO,
            in_flight: 0.0,
        }
    }

    fn rate(&self) -> f64 {
        self.rates.iter().copied().fold(0.0, f64::max)
    }

    fn product(&self) -> f64 {
        if self.rtt_min == Duration::MAX { 0.0 } else { self.rate() * self.rtt_min.as_secs_f64() }
    }

    pub(crate) fn window(&self) -> f64 {
        match self.phase {
            Phase::Probe(_) => 4.0,
            Phase::Startup | Phase::Drain => (Self::STARTUP * self.product()).max(10.0),
            Phase::Cruise(..) => (2.0 * self.product() + 3.0).max(4.0),
        }
    }

    /// Pacing interval between two packets.
    pub(crate) fn interval(&self) -> Duration {
        let gain = match self.phase {
            Phase::Startup => Self::STARTUP,
            Phase::Drain => 1.0 / Self::STARTUP,
            Phase::Cruise(step, _) => Self::GAINS[step],
            Phase::Probe(_) => 1.0,
        };
        Duration::from_secs_f64(1.0 / (0.99 * gain * self.rate()).max(250.0))
    }

    pub(crate) fn acknowledged(&mut self, now: Duration, ack: &AckInfo) {
        self.in_flight = ack.in_flight as f64;
        let is_old = now > self.rtt_min_at + Self::AGE;
        if ack.rtt <= self.rtt_min || is_old {
            (self.rtt_min, self.rtt_min_at) = (ack.rtt, now);
        }
        if ack.stamp.delivered >= self.round_ends {
            self.round_ends = ack.delivered;
            self.end_of_round();
            self.round += 1;
            self.rates[self.round % 10] = 0.0;
        }
        let interval = now.saturating_sub(ack.stamp.delivered_at).as_secs_f64();
        let rate = (ack.delivered - ack.stamp.delivered) as f64 / interval.max(1e-6);
        if interval >= self.rtt_min.as_secs_f64() {
            let best = &mut self.rates[self.round % 10];
            *best = best.max(rate);
        }
        if is_old && !matches!(self.phase, Phase::Probe(_)) {
            self.phase = Phase::Probe(None);
        }
        self.next_phase(now, ack.lost > 0);
    }

    fn end_of_round(&mut self) {
        if self.phase != Phase::Startup {
            return;
        }
        if self.rate() > self.plateau.0 * 1.25 {
            self.plateau = (self.rate(), 0);
        } else {
            self.plateau.1 += 1;
            if self.plateau.1 >= 3 {
                self.phase = Phase::Drain;
            }
        }
    }

    fn next_phase(&mut self, now: Duration, lost: bool) {
        match self.phase {
            Phase::Drain if self.in_flight <= self.product() => self.cruise(now),
            Phase::Cruise(step, since) => {
                let is_over = now > since + self.rtt_min;
                let next = match step {
                    0 => is_over && (lost || self.in_flight >= 1.25 * self.product()),
                    1 => is_over || self.in_flight <= self.product(),
                    _ => is_over,
                };
                if next {
                    self.phase = Phase::Cruise((step + 1) % 8, now);
                }
            }
            Phase::Probe(None) if self.in_flight <= 4.0 => {
                self.phase = Phase::Probe(Some(now + Self::PROBE.max(self.rtt_min)));
            }
            Phase::Probe(Some(until)) if now >= until => self.cruise(now),
            _ => {}
        }
    }

    fn cruise(&mut self, now: Duration) {
        // Begin at a pseudo-random step other than the pause.
        let step = (now.as_micros() % 7) as usize;
        self.phase = Phase::Cruise(if step == 1 { 7 } else { step }, now);
    }
}
