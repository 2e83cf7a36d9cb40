//! Another control within a rate, such as a share of a link that its owner has granted.

use super::{Ack, Controller, Factory, Loss, Pace, Path, interval_of};
use std::time::Duration;

/// Follows `control`, at `bits_per_second` at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AtMost<F> {
    /// The control that decides below that.
    pub control: F,
    /// Bits per second, including IP headers.
    pub bits_per_second: u64,
}

impl<F: Factory> Factory for AtMost<F> {
    fn name(&self) -> &'static str {
        self.control.name()
    }

    fn build(&self, now: Duration, path: &Path) -> Box<dyn Controller> {
        let least = interval_of(self.bits_per_second, path.mss);
        Box::new(Control { inner: self.control.build(now, path), least })
    }
}

#[derive(Debug)]
struct Control {
    inner: Box<dyn Controller>,
    /// Nanoseconds per full packet, at least.
    least: f64,
}

impl Controller for Control {
    fn on_ack(&mut self, now: Duration, path: &Path, ack: &Ack) {
        self.inner.on_ack(now, path, ack);
    }

    fn on_loss(&mut self, now: Duration, path: &Path, loss: &Loss) {
        self.inner.on_loss(now, path, loss);
    }

    fn on_timeout(&mut self, now: Duration, path: &Path) {
        self.inner.on_timeout(now, path);
    }

    fn on_delay_warning(&mut self, now: Duration, path: &Path) {
        self.inner.on_delay_warning(now, path);
    }

    fn pace(&self) -> Pace {
        let Pace { interval, window } = self.inner.pace();
        Pace { interval: interval.max(self.least), window }
    }

    fn path_rate(&self) -> Option<f64> {
        self.inner.path_rate()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Acknowledgements, Fixed, packet_bits};
    use super::*;

    #[test]
    fn lower_one_of_both_rates_holds() {
        let acknowledgements = Acknowledgements { interval: Duration::from_millis(10), packets: 64 };
        let rtt = Duration::from_millis(50);
        let (mss, window_max, seed) = (1500, 1000, 0);
        let path = Path {
            mss,
            window_max,
            rtt,
            rtt_measured: true,
            receiving: 16.0,
            capacity: 1.0,
            next: 0,
            in_flight: 0,
            acknowledgements,
            seed,
        };
        for (inner, most, holds) in [(9_000_000, 5_000_000, 5e6), (3_000_000, 5_000_000, 3e6)] {
            let factory = AtMost { control: Fixed { bits_per_second: inner }, bits_per_second: most };
            let Pace { interval, window } = factory.build(Duration::ZERO, &path).pace();
            assert!((packet_bits(mss) * 1e9 / interval - holds).abs() < 1.0 && window == window_max, "{interval}");
            assert_eq!(factory.name(), "fixed");
        }
    }
}
