//! Round-trip time of the path of a transfer, smoothed as in RFC 6298.

use std::time::Duration;

/// Round-trip times, from packets of which every transmission has a number of its own.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rtt {
    smoothed: Duration,
    variation: Duration,
    is_measured: bool,
}

impl Rtt {
    /// Begins with `guess`, until there is a measurement.
    pub(super) fn new(guess: Duration) -> Self {
        Self { smoothed: guess, variation: guess / 2, is_measured: false }
    }

    /// Adds a measurement.
    pub(super) fn measured(&mut self, rtt: Duration) {
        if !self.is_measured {
            *self = Self { smoothed: rtt, variation: rtt / 2, is_measured: true };
            return;
        }
        self.variation = (self.variation * 3 + self.smoothed.abs_diff(rtt)) / 4;
        self.smoothed = (self.smoothed * 7 + rtt) / 8;
    }

    pub(super) fn get(&self) -> Duration {
        self.smoothed
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
