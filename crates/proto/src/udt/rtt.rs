//! Round-trip time and its variation, as UDT averages them: 7/8 and 3/4 of the old.

use super::SYN;
use std::time::Duration;

/// A smoothed round-trip time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rtt {
    smoothed: Duration,
    variation: Duration,
    measured: bool,
    /// The least of the last measurements, and of those before them.
    least: [Option<Duration>; 2],
    count: u32,
}

impl Rtt {
    /// What UDT assumes before it has measured anything.
    const INITIAL: Duration = Duration::from_millis(100);
    /// Measurements of which the least is kept together.
    const LEAST_OF: u32 = 256;

    pub(super) fn new() -> Self {
        Self { smoothed: Self::INITIAL, variation: Self::INITIAL / 2, measured: false, least: [None; 2], count: 0 }
    }

    /// Takes in a measurement. The first one counts in full.
    pub(super) fn measured(&mut self, rtt: Duration) {
        self.count += 1;
        if self.count > Self::LEAST_OF {
            (self.least, self.count) = ([None, self.least[0]], 1);
        }
        self.least[0] = Some(self.least[0].map_or(rtt, |least| least.min(rtt)));
        if !self.measured {
            (self.smoothed, self.variation, self.measured) = (rtt, rtt / 2, true);
            return;
        }
        self.variation = (self.variation * 3 + self.smoothed.abs_diff(rtt)) / 4;
        self.smoothed = (self.smoothed * 7 + rtt) / 8;
    }

    /// Takes in what the peer reports, unless it is only what UDT assumes. Returns the report if it counts.
    pub(super) fn reported(&mut self, rtt: u32, variation: u32) -> Option<Duration> {
        let (rtt, variation) = (Duration::from_micros(rtt.into()), Duration::from_micros(variation.into()));
        // A time beyond all satellites is none that was measured.
        if (rtt, variation) == (Self::INITIAL, Self::INITIAL / 2) || rtt.is_zero() || rtt > Duration::from_secs(60) {
            return None;
        }
        self.measured(rtt);
        Some(rtt)
    }

    pub(super) fn get(&self) -> Duration {
        self.smoothed
    }

    /// The least of the last 256 to 512 measurements: of some seconds.
    pub(super) fn min(&self) -> Option<Duration> {
        self.least.into_iter().flatten().min()
    }

    /// Whether packets seem to wait in a queue: round trips take longer than the least by more than a quarter.
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

    /// After how long an answer that comes at once is overdue.
    pub(super) fn overdue(&self) -> Duration {
        self.smoothed + 4 * self.variation
    }

    /// After how long a repair is overdue: while a queue builds up, round trips grow faster than their average, and where they
    /// have not varied before, their variation says nothing.
    pub(super) fn repair_overdue(&self) -> Duration {
        self.overdue().max(self.smoothed + self.smoothed / 4)
    }

    /// After how long an answer that waits for the peer's timer is overdue.
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
    fn the_first_measurement_counts_in_full_and_later_ones_by_their_weights() {
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
    fn the_least_is_of_late() {
        let mut rtt = Rtt::new();
        assert_eq!(rtt.min(), None);
        rtt.measured(ms(10));
        (0..300).for_each(|_| rtt.measured(ms(40)));
        assert_eq!(rtt.min(), Some(ms(10)));
        (0..300).for_each(|_| rtt.measured(ms(50)));
        assert_eq!(rtt.min(), Some(ms(40)));
    }
}
