//! UDT's own control: additive increase that depends on the spare capacity, multiplicative decrease on loss (DAIMD; Gu
//! and Grossman, "UDT: UDP-based data transfer for high-speed wide area networks", 2007; constants of UDT 4.11).
//!
//! The peer reports the arrival rate and the capacity of the path. In slow start the window grows by the number of
//! acknowledged packets. The first loss, or the largest window, ends slow start with the reported arrival rate as the
//! sending rate. From then on, the rate grows every [`PERIOD`] by a step that depends on the spare capacity, and each
//! episode of loss reduces it by a ninth, or more if loss reports continue. libudt 4.11 inverts the formula for the
//! first rate if the arrival rate is not known; this implementation uses the intended formula.

use super::{Ack, Controller, Factory, Loss, Pace, Path, packet_bits};
use std::time::Duration;

/// UDT's period of rate adaptation.
const PERIOD: Duration = Duration::from_millis(10);

/// UDT's own control, DAIMD.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Native;

impl Factory for Native {
    fn name(&self) -> &'static str {
        "native"
    }

    fn build(&self, now: Duration, path: &Path) -> Box<dyn Controller> {
        Box::new(Control {
            period: Control::PERIOD_MIN,
            window: 16.0,
            window_max: path.window_max,
            slow_start: true,
            updated: now,
            lost: false,
            period_at_decrease: Control::PERIOD_MIN,
            decreased_before: path.next,
            naks: 0,
            naks_average: 0.0,
            naks_per_decrease: 1,
            decreases: 0,
            random: path.seed,
        })
    }
}

#[derive(Debug)]
struct Control {
    /// Microseconds per packet.
    period: f64,
    window: f64,
    window_max: u32,
    slow_start: bool,
    /// Time of the last rate update.
    updated: Duration,
    /// Whether a loss was reported since the last update.
    lost: bool,
    /// The period before the last episode of loss.
    period_at_decrease: f64,
    /// The first packet sent after the last decrease. Its loss, or that of a later packet, begins a new episode.
    decreased_before: u64,
    /// Loss reports in this episode.
    naks: u32,
    /// Average number of loss reports per episode.
    naks_average: f64,
    /// Number of loss reports in this episode that cause one more decrease.
    naks_per_decrease: u32,
    /// Decreases in this episode.
    decreases: u32,
    random: u64,
}

impl Control {
    /// Initial period, in microseconds per packet.
    const PERIOD_MIN: f64 = 1.0;
    /// Longest period: loss never reduces the rate below one packet per second.
    const PERIOD_MAX: f64 = 1e6;
    /// Factor of the period for one decrease.
    const DECREASE: f64 = 1.125;
    /// Most decreases in an episode: 1.125⁻⁵ = 0.55, so that an episode at most about halves the rate.
    const DECREASES_MAX: u32 = 5;
    /// Smallest increase, in packets per period.
    const INCREASE_MIN: f64 = 0.01;

    fn end_slow_start(&mut self, path: &Path) {
        self.slow_start = false;
        self.period = if path.receiving > 0.0 { 1e6 / path.receiving } else { micros(path.rtt + PERIOD) / self.window };
    }

    fn increase(&mut self, path: &Path) {
        let mut spare = path.capacity - 1e6 / self.period;
        if self.period > self.period_at_decrease {
            spare = spare.min(path.capacity / 9.0);
        }
        let increase = if spare <= 0.0 {
            Self::INCREASE_MIN
        } else {
            let bits = spare * packet_bits(path.mss);
            (power_of_ten_above(bits) * 1.5e-6 / f64::from(path.mss)).max(Self::INCREASE_MIN)
        };
        let syn = micros(PERIOD);
        self.period = self.period * syn / (self.period * increase + syn);
    }

    fn decrease(&mut self, path: &Path) {
        self.period = (self.period * Self::DECREASE).ceil().min(Self::PERIOD_MAX);
        self.decreased_before = path.next;
    }
}

impl Controller for Control {
    fn on_ack(&mut self, now: Duration, path: &Path, ack: &Ack) {
        if self.slow_start {
            self.window += f64::from(ack.count);
        }
        if now < self.updated + PERIOD {
            return;
        }
        self.updated = now;
        if !self.slow_start {
            self.window = path.receiving * (path.rtt + PERIOD).as_secs_f64() + 16.0;
        } else if self.window > f64::from(self.window_max) {
            self.end_slow_start(path);
        } else {
            return;
        }
        if !std::mem::take(&mut self.lost) {
            self.increase(path);
        }
    }

    fn on_loss(&mut self, _now: Duration, path: &Path, loss: &Loss) {
        if self.slow_start {
            self.end_slow_start(path);
            if path.receiving > 0.0 {
                return;
            }
        }
        self.lost = true;
        if loss.first >= self.decreased_before {
            self.period_at_decrease = self.period;
            self.decrease(path);
            self.naks_average = (self.naks_average * 0.875 + f64::from(self.naks) * 0.125).ceil();
            (self.naks, self.decreases) = (1, 1);
            // Randomize further decreases, so that flows that lose packets at the same time do not slow down in step.
            self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let fraction = (self.random >> 33) as f64 / (1u64 << 31) as f64;
            self.naks_per_decrease = ((self.naks_average * fraction).ceil() as u32).max(1);
            return;
        }
        if self.decreases < Self::DECREASES_MAX {
            self.decreases += 1;
            self.naks += 1;
            if self.naks.is_multiple_of(self.naks_per_decrease) {
                self.decrease(path);
            }
        }
    }

    fn on_timeout(&mut self, _now: Duration, path: &Path) {
        if self.slow_start {
            self.end_slow_start(path);
        }
    }

    fn on_delay_warning(&mut self, _now: Duration, path: &Path) {
        self.decrease(path);
    }

    fn pace(&self) -> Pace {
        Pace { interval: self.period * 1000.0, window: self.window.clamp(16.0, f64::from(self.window_max)) as u32 }
    }
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// The smallest power of ten that is at least `value`. Exact, unlike logarithms.
fn power_of_ten_above(value: f64) -> f64 {
    let mut power = 1.0;
    while power < value {
        power *= 10.0;
    }
    power
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{Acknowledgements, DeliverySample};

    fn path() -> Path {
        Path {
            mss: 1500,
            window_max: 25_600,
            rtt: Duration::from_millis(100),
            rtt_measured: true,
            receiving: 10_000.0,
            capacity: 80_000.0,
            next: 5000,
            in_flight: 1000,
            acknowledgements: Acknowledgements { interval: PERIOD, packets: 64 },
            seed: 1,
        }
    }

    fn ack(count: u32) -> Ack {
        let interval = Duration::from_millis(100);
        let sample = DeliverySample { delivered: count, interval, delivered_before: 0, app_limited: false };
        Ack { count, sample: Some(sample), delivered: 0, rtt: None }
    }

    fn loss(first: u64) -> Loss {
        Loss { first, count: 1 }
    }

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn slow_start_ends_with_the_reported_arrival_rate() {
        let mut control = Native.build(ms(0), &path());
        control.on_ack(ms(10), &path(), &ack(100));
        assert_eq!(control.pace(), Pace { interval: 1000.0, window: 116 });
        control.on_loss(ms(11), &path(), &loss(5));
        assert_eq!(control.pace().interval, 100_000.0);
    }

    #[test]
    fn each_decrease_lengthens_the_period_by_an_eighth() {
        let mut control = Native.build(ms(0), &path());
        control.on_loss(ms(1), &path(), &loss(5));
        control.on_loss(ms(2), &path(), &loss(5000));
        assert_eq!(control.pace().interval, 113_000.0);
        // Further reports in the same episode cause at most four more decreases.
        (0..100).for_each(|n| control.on_loss(ms(3), &path(), &loss(100 + n)));
        assert_eq!(control.pace().interval, 183_000.0);
    }

    #[test]
    fn increase_depends_on_the_spare_capacity() {
        let mut control = Native.build(ms(0), &path());
        control.on_loss(ms(1), &path(), &loss(5));
        control.on_ack(ms(20), &path(), &ack(1));
        // 70 000 packets per second are spare, 840 Mbit/s: 10⁹ · 1.5e-6 / 1500 = 1 packet per PERIOD.
        assert!((control.pace().interval - 100_000.0 * 10.0 / 10.1).abs() < 0.1);
        assert_eq!(control.pace().window, 1116);
        // The rate grows only once in a period.
        let before = control.pace().interval;
        control.on_ack(ms(25), &path(), &ack(1));
        assert_eq!(control.pace().interval, before);
    }
}
