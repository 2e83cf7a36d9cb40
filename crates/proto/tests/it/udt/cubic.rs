//! TCP's CUBIC (RFC 9438). Start is slow start with HyStart's look at delays (RFC 9406, section 4.2, without CSS).

use super::tcp::News;
use std::time::Duration;

/// The control of one flow.
pub(crate) struct Cubic {
    /// Losses before this packet have been answered, and so much is known of.
    answered: u64,
    seen: u64,
    window: f64,
    threshold: f64,
    /// The window of the last congestion, Reno's window since, when it was, and seconds until the first is reached again.
    most: f64,
    reno: f64,
    since: Option<Duration>,
    back: f64,
    rtt: Duration,
    rtt_min: Duration,
    /// The least round trip of this round of slow start, of how many, and the packet that ends it.
    round: (Duration, u32, u64),
}

impl Cubic {
    const LEFT: f64 = 0.7;
    const STEEPNESS: f64 = 0.4;

    pub(crate) fn new() -> Self {
        Self {
            answered: 0,
            seen: 0,
            window: 10.0,
            threshold: f64::INFINITY,
            most: 0.0,
            reno: 0.0,
            since: None,
            back: 0.0,
            rtt: Duration::ZERO,
            rtt_min: Duration::MAX,
            round: (Duration::MAX, 0, 0),
        }
    }

    pub(crate) fn window(&self) -> f64 {
        self.window
    }

    pub(crate) fn acknowledged(&mut self, now: Duration, news: &News) {
        let is_answered = self.seen < self.answered;
        self.seen = news.seen;
        self.rtt = news.rtt;
        self.rtt_min = self.rtt_min.min(self.rtt);
        if news.lost > 0 && !is_answered {
            self.congested(news.next);
        } else if news.seen > self.answered {
            self.grow(now, news);
        }
    }

    pub(crate) fn timed_out(&mut self, next: u64) {
        (self.seen, self.answered) = (next, next);
        (self.threshold, self.window, self.since) = ((self.window * Self::LEFT).max(2.0), 2.0, None);
    }

    fn congested(&mut self, next: u64) {
        self.answered = next;
        self.most = if self.window < self.most { self.window * (1.0 + Self::LEFT) / 2.0 } else { self.window };
        self.window = (self.window * Self::LEFT).max(2.0);
        (self.threshold, self.since) = (self.window, None);
    }

    fn grow(&mut self, now: Duration, news: &News) {
        let count = news.arrived as f64;
        if self.window < self.threshold {
            self.window += count;
            self.look_at_delay(news.next);
            return;
        }
        let since = *self.since.get_or_insert_with(|| {
            self.most = self.most.max(self.window);
            self.back = ((self.most - self.window) / Self::STEEPNESS).cbrt();
            self.reno = self.window;
            now
        });
        let passed = (now - since + self.rtt).as_secs_f64();
        let target = self.most + Self::STEEPNESS * (passed - self.back).powi(3);
        let target = target.clamp(self.window, self.window * 1.5);
        self.window += (target - self.window) / self.window * count;
        let step = if self.reno < self.most { 3.0 * (1.0 - Self::LEFT) / (1.0 + Self::LEFT) } else { 1.0 };
        self.reno += step * count / self.window;
        self.window = self.window.max(self.reno);
    }

    /// Ends slow start when delays grow.
    fn look_at_delay(&mut self, next: u64) {
        let (least, count, end) = self.round;
        self.round = (least.min(self.rtt), count + 1, end);
        let grown = (self.rtt_min / 8).clamp(Duration::from_millis(4), Duration::from_millis(16));
        if count >= 8 && self.round.0 >= self.rtt_min + grown {
            self.threshold = self.window;
        }
        if self.seen > end {
            self.round = (Duration::MAX, 0, next);
        }
    }
}
