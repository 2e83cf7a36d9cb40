//! The current rate and the remaining time, from recent counts.

use std::collections::VecDeque;
use std::time::Duration;

/// Window of the current rate.
const NOW: Duration = Duration::from_secs(1);

/// Window of the remaining time: long enough to be steady.
const LATELY: Duration = Duration::from_secs(10);

/// Recent counts.
#[derive(Debug, Default)]
pub(super) struct Rate {
    samples: VecDeque<(Duration, u64)>,
}

impl Rate {
    /// Records that `bytes` in total had moved at `at`, which never decreases.
    pub(super) fn push(&mut self, at: Duration, bytes: u64) {
        self.samples.push_back((at, bytes));
        // The last count before the window is its start.
        while self.samples.get(1).is_some_and(|(then, _)| at - *then >= LATELY) {
            self.samples.pop_front();
        }
    }

    /// Bytes per second over the last second.
    pub(super) fn now(&self) -> f64 {
        self.over(NOW)
    }

    /// Time for `bytes` more, if anything moves.
    pub(super) fn left(&self, bytes: u64) -> Option<Duration> {
        let rate = self.over(LATELY);
        (rate >= 1.0).then(|| Duration::from_secs_f64((bytes as f64 / rate).min(1e9)))
    }

    fn over(&self, window: Duration) -> f64 {
        let Some(&(at, bytes)) = self.samples.back() else { return 0.0 };
        let before = self.samples.iter().rev().find(|(then, _)| at - *then >= window).or(self.samples.front());
        match before {
            Some(&(then, less)) if at > then => bytes.saturating_sub(less) as f64 / (at - then).as_secs_f64(),
            _ => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_recent() {
        let mut rate = Rate::default();
        assert_eq!((rate.now(), rate.left(5)), (0.0, None));
        for tenth in 0..=600u64 {
            // 1000 B/s for half a minute, and 3000 B/s after it.
            let bytes = if tenth <= 300 { tenth * 100 } else { 30_000 + (tenth - 300) * 300 };
            rate.push(Duration::from_millis(tenth * 100), bytes);
            if tenth == 300 {
                assert_eq!(rate.now().round(), 1000.0);
            }
            if tenth == 350 {
                assert_eq!(rate.now().round(), 3000.0);
                assert_eq!(rate.left(2000), Some(Duration::from_secs(1)), "five seconds of each");
            }
        }
        assert_eq!(rate.left(30_000), Some(Duration::from_secs(10)));
        assert!(rate.samples.len() <= 102);
    }
}
