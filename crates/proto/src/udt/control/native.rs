//! UDT's own control: additive increase by what is left of the capacity, multiplicative decrease at loss (DAIMD; Gu and
//! Grossman, "UDT: UDP-based data transfer for high-speed wide area networks", 2007; constants of UDT 4.11).
//!
//! The sender learns from the peer at which rate packets arrive and could arrive. It starts with a window that grows by what
//! is acknowledged; the first loss, or the largest window, ends that with the rate at which packets arrive. From then on the
//! rate grows every [`SYN`] by 1 to 100 000 packets' worth of what the capacity leaves, and each episode of loss takes a
//! ninth of it. Where libudt 4.11 computes the first rate from the window upside down, the intended formula is used.

use super::{Ack, Controller, Factory, Loss, Pace, Path, packet_bits};
use crate::udt::SYN;
use crate::udt::seq::Seq;
use std::time::Duration;

/// UDT's own control.
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
            decreased_at: path.next.minus(1),
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
    /// When the rate grew, or could have, last.
    updated: Duration,
    /// Whether there was loss since.
    lost: bool,
    /// The period before the last decrease, and the last packet sent by then.
    period_at_decrease: f64,
    decreased_at: Seq,
    /// Loss reports in this episode, their average over episodes, and how many make one more decrease.
    naks: u32,
    naks_average: f64,
    naks_per_decrease: u32,
    decreases: u32,
    random: u64,
}

impl Control {
    const PERIOD_MIN: f64 = 1.0;
    /// Slower than a packet in a second makes no sense of a loss.
    const PERIOD_MAX: f64 = 1e6;
    /// What a decrease multiplies the period by.
    const DECREASE: f64 = 1.125;
    /// 0.875⁵ = 0.51: an episode at most halves the rate.
    const DECREASES_MAX: u32 = 5;
    /// The least increase, in packets per SYN.
    const INCREASE_MIN: f64 = 0.01;

    fn end_slow_start(&mut self, path: &Path) {
        self.slow_start = false;
        self.period = if path.receiving > 0.0 { 1e6 / path.receiving } else { micros(path.rtt + SYN) / self.window };
    }

    fn increase(&mut self, path: &Path) {
        let mut left = path.capacity - 1e6 / self.period;
        if self.period > self.period_at_decrease {
            left = left.min(path.capacity / 9.0);
        }
        let increase = if left <= 0.0 {
            Self::INCREASE_MIN
        } else {
            let bits = left * packet_bits(path.mss);
            (power_of_ten_above(bits) * 1.5e-6 / f64::from(path.mss)).max(Self::INCREASE_MIN)
        };
        let syn = micros(SYN);
        self.period = self.period * syn / (self.period * increase + syn);
    }

    fn decrease(&mut self, path: &Path) {
        self.period = (self.period * Self::DECREASE).ceil().min(Self::PERIOD_MAX);
        self.decreased_at = path.next.minus(1);
    }
}

impl Controller for Control {
    fn on_ack(&mut self, now: Duration, path: &Path, ack: &Ack) {
        if self.slow_start {
            self.window += f64::from(ack.count);
        }
        if now < self.updated + SYN {
            return;
        }
        self.updated = now;
        if !self.slow_start {
            self.window = path.receiving * (path.rtt + SYN).as_secs_f64() + 16.0;
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
        if self.decreased_at.is_before(loss.first) {
            self.period_at_decrease = self.period;
            self.decrease(path);
            self.naks_average = (self.naks_average * 0.875 + f64::from(self.naks) * 0.125).ceil();
            (self.naks, self.decreases) = (1, 1);
            // Flows that lose together are not to slow down together.
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

/// The least power of ten that is not below `value`. Exact, unlike logarithms.
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
    use crate::udt::control::DeliverySample;

    fn path() -> Path {
        Path {
            mss: 1500,
            window_max: 25_600,
            rtt: Duration::from_millis(100),
            rtt_measured: true,
            receiving: 10_000.0,
            capacity: 80_000.0,
            next: Seq::new(5000),
            under_way: 1000,
            seed: 1,
        }
    }

    fn ack(count: u32) -> Ack {
        let interval = Duration::from_millis(100);
        let sample = DeliverySample { delivered: count, interval, delivered_before: 0, app_limited: false };
        Ack { count, sample: Some(sample), delivered: 0, rtt: None }
    }

    fn loss(first: u32) -> Loss {
        Loss { first: Seq::new(first), count: 1 }
    }

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn slow_start_ends_with_the_rate_that_arrives() {
        let mut control = Native.build(ms(0), &path());
        control.on_ack(ms(10), &path(), &ack(100));
        assert_eq!(control.pace(), Pace { interval: 1000.0, window: 116 });
        control.on_loss(ms(11), &path(), &loss(5));
        assert_eq!(control.pace().interval, 100_000.0);
    }

    #[test]
    fn an_eighth_more_time_per_packet_for_an_episode_of_loss() {
        let mut control = Native.build(ms(0), &path());
        control.on_loss(ms(1), &path(), &loss(5));
        control.on_loss(ms(2), &path(), &loss(5000));
        assert_eq!(control.pace().interval, 113_000.0);
        // Of the same episode: at most four times more, however many there are.
        (0..100).for_each(|n| control.on_loss(ms(3), &path(), &loss(100 + n)));
        assert_eq!(control.pace().interval, 183_000.0);
    }

    #[test]
    fn the_increase_follows_what_the_capacity_leaves() {
        let mut control = Native.build(ms(0), &path());
        control.on_loss(ms(1), &path(), &loss(5));
        control.on_ack(ms(20), &path(), &ack(1));
        // 70 000 packets per second are left, 840 Mbit/s: 10⁹ · 1.5e-6 / 1500 = 1 packet per SYN.
        assert!((control.pace().interval - 100_000.0 * 10.0 / 10.1).abs() < 0.1);
        assert_eq!(control.pace().window, 1116);
        // Not twice in a SYN, and not after loss.
        let before = control.pace().interval;
        control.on_ack(ms(25), &path(), &ack(1));
        assert_eq!(control.pace().interval, before);
    }
}
