//! Round-trip time of the path of a transfer, smoothed as in RFC 6298.

use std::time::Duration;

/// Round-trip times, from packets of which every transmission has a number of its own.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rtt {
    smoothed: Duration,
    variation: Duration,
    is_measured: bool,
    /// The smallest one since `since`, and that of the period before.
    min: [Duration; 2],
    since: Duration,
}

/// How long a smallest round-trip time holds, once to twice: a path may change.
const MIN_PERIOD: Duration = Duration::from_secs(10);

impl Rtt {
    /// Begins with `guess`, until there is a measurement.
    pub(super) fn new(guess: Duration) -> Self {
        let min = [Duration::MAX; 2];
        Self { smoothed: guess, variation: guess / 2, is_measured: false, min, since: Duration::ZERO }
    }

    /// Adds a measurement.
    pub(super) fn measured(&mut self, now: Duration, rtt: Duration) {
        if now >= self.since + MIN_PERIOD {
            (self.min, self.since) = ([Duration::MAX, self.min[0]], now);
        }
        self.min[0] = self.min[0].min(rtt);
        if !self.is_measured {
            (self.smoothed, self.variation, self.is_measured) = (rtt, rtt / 2, true);
            return;
        }
        self.variation = (self.variation * 3 + self.smoothed.abs_diff(rtt)) / 4;
        self.smoothed = (self.smoothed * 7 + rtt) / 8;
    }

    pub(super) fn get(&self) -> Duration {
        self.smoothed
    }

    /// The smallest of the last ten to twenty seconds, if there was a measurement.
    pub(super) fn min(&self) -> Option<Duration> {
        self.is_measured.then(|| self.min[0].min(self.min[1]))
    }

    pub(super) fn is_measured(&self) -> bool {
        self.is_measured
    }

    /// After this time without an acknowledgement, packets or acknowledgements are lost. A receiver may wait for `delay`
    /// before it acknowledges.
    pub(super) fn overdue(&self, delay: Duration) -> Duration {
        self.smoothed + (4 * self.variation).max(Duration::from_millis(10)) + delay
    }
}
