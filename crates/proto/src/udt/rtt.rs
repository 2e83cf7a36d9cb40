//! Round-trip time and its variation, smoothed as in UDT: the old value weighs 7/8 and 3/4.

use super::SYN;
use std::time::Duration;

/// A smoothed round-trip time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rtt {
    smoothed: Duration,
    variation: Duration,
    measured: bool,
    /// Minimum of the current window of measurements, and of the window before it.
    minima: [Option<Duration>; 2],
    /// Measurements in the current window.
    count: u32,
}

impl Rtt {
    /// UDT's assumption before the first measurement.
    const INITIAL: Duration = Duration::from_millis(100);
    /// Measurements per window of the minimum filter.
    const MIN_WINDOW: u32 = 256;

    pub(super) fn new() -> Self {
        Self { smoothed: Self::INITIAL, variation: Self::INITIAL / 2, measured: false, minima: [None; 2], count: 0 }
    }

    /// Adds a measurement. The first one replaces the initial values.
    pub(super) fn measured(&mut self, rtt: Duration) {
        self.count += 1;
        if self.count > Self::MIN_WINDOW {
            (self.minima, self.count) = ([None, self.minima[0]], 1);
        }
        self.minima[0] = Some(self.minima[0].map_or(rtt, |min| min.min(rtt)));
        if !self.measured {
            (self.smoothed, self.variation, self.measured) = (rtt, rtt / 2, true);
            return;
        }
        self.variation = (self.variation * 3 + self.smoothed.abs_diff(rtt)) / 4;
        self.smoothed = (self.smoothed * 7 + rtt) / 8;
    }

    /// Adds a measurement reported by the peer, and returns it. Ignores reports of UDT's initial values.
    pub(super) fn reported(&mut self, rtt: u32, variation: u32) -> Option<Duration> {
        let (rtt, variation) = (Duration::from_micros(rtt.into()), Duration::from_micros(variation.into()));
        // No path, including satellite links, has a round-trip time of more than a minute.
        if (rtt, variation) == (Self::INITIAL, Self::INITIAL / 2) || rtt.is_zero() || rtt > Duration::from_secs(60) {
            return None;
        }
        self.measured(rtt);
        Some(rtt)
    }

    pub(super) fn get(&self) -> Duration {
        self.smoothed
    }

    /// The minimum of the last 256 to 512 measurements, which span some seconds.
    pub(super) fn min(&self) -> Option<Duration> {
        self.minima.into_iter().flatten().min()
    }

    /// Whether packets seem to wait in a queue: the smoothed round-trip time exceeds the minimum by more than a
    /// quarter, and by more than 2 ms.
    pub(super) fn is_queued(&self) -> bool {
        self.min().is_some_and(|min| self.smoothed > min + (min / 4).max(Duration::from_millis(2)))
    }

    pub(super) fn variation(&self) -> Duration {
        self.variation
    }

    /// Whether anything was measured.
    pub(super) fn is_measured(&self) -> bool {
        self.measured
    }

    /// Time-out for an answer that the peer sends immediately.
    pub(super) fn overdue(&self) -> Duration {
        self.smoothed + 4 * self.variation
    }

    /// Time-out for the answer to a retransmission. The margin is at least a quarter of the round-trip time: while a
    /// queue builds up, the round-trip time grows faster than its average, and the variation of a steady path is near
    /// zero.
    pub(super) fn repair_overdue(&self) -> Duration {
        self.overdue().max(self.smoothed + self.smoothed / 4)
    }

    /// Time-out for an answer that waits for the peer's next [`SYN`] timer.
    pub(super) fn timeout(&self) -> Duration {
        self.repair_overdue() + 2 * SYN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn first_measurement_counts_in_full_and_later_ones_by_weight() {
        let mut rtt = Rtt::new();
        assert_eq!(rtt.reported(100_000, 50_000), None);
        assert_eq!((rtt.get(), rtt.is_measured()), (ms(100), false));
        rtt.measured(ms(40));
        assert_eq!((rtt.get(), rtt.variation()), (ms(40), ms(20)));
        assert_eq!(rtt.reported(80_000, 0), Some(ms(80)));
        assert_eq!((rtt.get(), rtt.variation()), (ms(45), ms(25)));
        assert_eq!(rtt.timeout(), ms(45 + 100 + 20));
        assert_eq!(rtt.reported(u32::MAX, 0), None);
    }

    #[test]
    fn minimum_forgets_old_measurements() {
        let mut rtt = Rtt::new();
        assert_eq!(rtt.min(), None);
        rtt.measured(ms(10));
        (0..300).for_each(|_| rtt.measured(ms(40)));
        assert_eq!(rtt.min(), Some(ms(10)));
        (0..300).for_each(|_| rtt.measured(ms(50)));
        assert_eq!(rtt.min(), Some(ms(40)));
    }
}
