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
}
