//! A sketch of TCP's BBR, version 1, as Linux has it: what it keeps under way and how it paces; it does not answer loss.

use super::tcp::News;
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    Startup,
    Drain,
    /// The step of [`Bbr::GAINS`], and since when.
    Cruise(usize, Duration),
    /// The least round trip is measured, until then once the queue is gone.
    Probe(Option<Duration>),
}

/// The control of one flow.
pub(crate) struct Bbr {
    phase: Phase,
    /// The highest rates of the last rounds, in packets per second.
    rates: [f64; 10],
    round: usize,
    round_ends: u64,
    plateau: (f64, u32),
    rtt_min: Duration,
    rtt_min_at: Duration,
    under_way: f64,
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
            under_way: 0.0,
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

    /// Between two packets.
    pub(crate) fn interval(&self) -> Duration {
        let gain = match self.phase {
            Phase::Startup => Self::STARTUP,
            Phase::Drain => 1.0 / Self::STARTUP,
            Phase::Cruise(step, _) => Self::GAINS[step],
            Phase::Probe(_) => 1.0,
        };
        Duration::from_secs_f64(1.0 / (0.99 * gain * self.rate()).max(250.0))
    }

    pub(crate) fn acknowledged(&mut self, now: Duration, news: &News) {
        self.under_way = news.under_way as f64;
        let is_old = now > self.rtt_min_at + Self::AGE;
        if news.rtt <= self.rtt_min || is_old {
            (self.rtt_min, self.rtt_min_at) = (news.rtt, now);
        }
        if news.stamp.delivered >= self.round_ends {
            self.round_ends = news.delivered;
            self.end_of_round();
            self.round += 1;
            self.rates[self.round % 10] = 0.0;
        }
        let interval = now.saturating_sub(news.stamp.delivered_at).as_secs_f64();
        let rate = (news.delivered - news.stamp.delivered) as f64 / interval.max(1e-6);
        if interval >= self.rtt_min.as_secs_f64() {
            let best = &mut self.rates[self.round % 10];
            *best = best.max(rate);
        }
        if is_old && !matches!(self.phase, Phase::Probe(_)) {
            self.phase = Phase::Probe(None);
        }
        self.next_phase(now, news.lost > 0);
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
            Phase::Drain if self.under_way <= self.product() => self.cruise(now),
            Phase::Cruise(step, since) => {
                let is_over = now > since + self.rtt_min;
                let next = match step {
                    0 => is_over && (lost || self.under_way >= 1.25 * self.product()),
                    1 => is_over || self.under_way <= self.product(),
                    _ => is_over,
                };
                if next {
                    self.phase = Phase::Cruise((step + 1) % 8, now);
                }
            }
            Phase::Probe(None) if self.under_way <= 4.0 => {
                self.phase = Phase::Probe(Some(now + Self::PROBE.max(self.rtt_min)));
            }
            Phase::Probe(Some(until)) if now >= until => self.cruise(now),
            _ => {}
        }
    }

    fn cruise(&mut self, now: Duration) {
        // Any step but the pause, by chance.
        let step = (now.as_micros() % 7) as usize;
        self.phase = Phase::Cruise(if step == 1 { 7 } else { step }, now);
    }
}
