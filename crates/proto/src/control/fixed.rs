//! A fixed rate, for reserved circuits (S17). Loss does not change the rate, and retransmissions count towards it.

use super::{Ack, Controller, Factory, Loss, Pace, Path, interval_of};
use std::time::Duration;

/// Sends at a fixed rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fixed {
    /// Bits per second, including IP headers.
    pub bits_per_second: u64,
}

impl Factory for Fixed {
    fn name(&self) -> &'static str {
        "fixed"
    }

    fn build(&self, _now: Duration, path: &Path) -> Box<dyn Controller> {
        let interval = interval_of(self.bits_per_second, path.mss);
        Box::new(Control(Pace { interval, window: path.window_max }))
    }
}

#[derive(Debug)]
struct Control(Pace);

impl Controller for Control {
    fn on_ack(&mut self, _now: Duration, _path: &Path, _ack: &Ack) {}

    fn on_loss(&mut self, _now: Duration, _path: &Path, _loss: &Loss) {}

    fn pace(&self) -> Pace {
        self.0
    }
}
