//! TCP's CUBIC (RFC 9438). Slow start ends by HyStart's increase of delay (RFC 9406, section 4.2, without CSS).

use super::tcp::AckInfo;
use std::time::Duration;

/// The congestion control of one flow. Names in parentheses are those of RFC 9438.
pub(crate) struct Cubic {
    /// The window was already reduced for losses before this packet.
    recovery_end: u64,
    /// All packets before this one are accounted for.
    seen: u64,
    window: f64,
    threshold: f64,
    /// Window before the last reduction (W_max).
    window_max: f64,
    /// Window that Reno would have (W_est).
    reno: f64,
    /// When congestion avoidance began.
    since: Option<Duration>,
    /// Seconds until the window reaches `window_max` again (K).
    plateau_after: f64,
    rtt: Duration,
    rtt_min: Duration,
    /// The minimum round-trip time of this round of slow start, its number of samples, and the packet that ends the
    /// round.
    round: (Duration, u32, u64),
}

impl Cubic {
    /// Multiplicative decrease (beta_cubic).
    const BETA: f64 = 0.7;
    /// The constant C.
    const C: f64 = 0.4;

    pub(crate) fn new() -> Self {
        Self {
            recovery_end: 0,
            seen: 0,
            window: 10.0,
            threshold: f64::INFINITY,
            window_max: 0.0,
            reno: 0.0,
            since: None,
            plateau_after: 0.0,
            rtt: Duration::ZERO,
            rtt_min: Duration::MAX,
            round: (Duration::MAX, 0, 0),
        }
    }

    pub(crate) fn window(&self) -> f64 {
        self.window
    }

    pub(crate) fn acknowledged(&mut self, now: Duration, ack: &AckInfo) {
        let in_recovery = self.seen < self.recovery_end;
        self.seen = ack.seen;
        self.rtt = ack.rtt;
        self.rtt_min = self.rtt_min.min(self.rtt);
        if ack.lost > 0 && !in_recovery {
            self.congested(ack.next);
        } else if ack.seen > self.recovery_end {
            self.grow(now, ack);
        }
    }

    pub(crate) fn timed_out(&mut self, next: u64) {
        (self.seen, self.recovery_end) = (next, next);
        (self.threshold, self.window, self.since) = ((self.window * Self::BETA).max(2.0), 2.0, None);
    }

    fn congested(&mut self, next: u64) {
        self.recovery_end = next;
        self.window_max =
            if self.window < self.window_max { self.window * (1.0 + Self::BETA) / 2.0 } else { self.window };
        self.window = (self.window * Self::BETA).max(2.0);
        (self.threshold, self.since) = (self.window, None);
    }

    fn grow(&mut self, now: Duration, ack: &AckInfo) {
        let count = ack.arrived as f64;
        if self.window < self.threshold {
            self.window += count;
            self.check_delay(ack.next);
            return;
        }
        let since = *self.since.get_or_insert_with(|| {
            self.window_max = self.window_max.max(self.window);
            self.plateau_after = ((self.window_max - self.window) / Self::C).cbrt();
            self.reno = self.window;
            now
        });
        let passed = (now - since + self.rtt).as_secs_f64();
        let target = self.window_max + Self::C * (passed - self.plateau_after).powi(3);
        let target = target.clamp(self.window, self.window * 1.5);
        self.window += (target - self.window) / self.window * count;
        let step = if self.reno < self.window_max { 3.0 * (1.0 - Self::BETA) / (1.0 + Self::BETA) } else { 1.0 };
        self.reno += step * count / self.window;
        self.window = self.window.max(self.reno);
    }

    /// HyStart: ends slow start when the delay grows.
    fn check_delay(&mut self, next: u64) {
        let (min, count, end) = self.round;
        self.round = (min.min(self.rtt), count + 1, end);
        let grown = (self.rtt_min / 8).clamp(Duration::from_millis(4), Duration::from_millis(16));
        if count >= 8 && self.round.0 >= self.rtt_min + grown {
            self.threshold = self.window;
        }
        if self.seen > end {
            self.round = (Duration::MAX, 0, next);
        }
    }
}
