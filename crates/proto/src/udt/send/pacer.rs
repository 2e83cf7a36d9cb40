//! When packets may go.
//!
//! Every packet has a time before which it does not go; sending one moves the time of the next by what the packet takes at
//! the rate in force. A batch is the packets whose times have come, so that it never exceeds what the rate allows. To have
//! batches at all, a sender that has nothing more to send is woken a [quantum](Pacer::new) later rather than for the next
//! packet; and a driver that comes late finds what it missed, up to a bound.

use std::time::Duration;

/// Paces one connection. Times are kept in 2⁻¹⁶ ns, so that rounding does not change rates.
#[derive(Debug)]
pub(in crate::udt) struct Pacer {
    /// When the next packet may go.
    next: u128,
    quantum: u128,
    catch_up: u128,
    /// There was nothing to send: what was not sent meanwhile was not missed.
    is_resting: bool,
}

const FRACTION_BITS: u32 = 16;

fn fixed(time: Duration) -> u128 {
    time.as_nanos() << FRACTION_BITS
}

impl Pacer {
    /// Collects packets for `quantum`, and makes up for lateness of up to `catch_up`.
    pub(in crate::udt) fn new(quantum: Duration, catch_up: Duration) -> Self {
        Self { next: 0, quantum: fixed(quantum), catch_up: fixed(catch_up.max(2 * quantum)), is_resting: false }
    }

    /// Nothing may be sent, though it is time.
    pub(in crate::udt) fn rest(&mut self) {
        self.is_resting = true;
    }

    /// Whether a packet may go.
    pub(in crate::udt) fn is_ready(&self, now: Duration) -> bool {
        self.next <= fixed(now)
    }

    /// A packet goes that takes `part` of the `interval`, in nanoseconds, of a full one.
    pub(in crate::udt) fn charge(&mut self, now: Duration, interval: f64, part: f64) {
        let cost = interval * part * f64::from(1u32 << FRACTION_BITS);
        let missed = if std::mem::take(&mut self.is_resting) { 2 * self.quantum } else { self.catch_up };
        self.next = self.next.max(fixed(now).saturating_sub(missed)) + cost as u128;
    }

    /// When to come for the next packets, after the last answer that none may go.
    pub(in crate::udt) fn wakeup(&self, interval: f64) -> Duration {
        let interval = ((interval * f64::from(1u32 << FRACTION_BITS)) as u128).max(1);
        let collected = self.next + self.quantum / interval * interval;
        // Rounded up: at that time the packet may go.
        let nanos = (collected + (1 << FRACTION_BITS) - 1) >> FRACTION_BITS;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    /// Sends for a second with a driver that comes `late`, and returns packets and the largest batch.
    fn second(interval: f64, late: Duration) -> (u32, u32) {
        let mut pacer = Pacer::new(us(1000), us(4000));
        let (mut now, mut sent, mut largest) = (us(1_000_000), 0, 0);
        while now < us(2_000_000) {
            let mut batch = 0;
            while pacer.is_ready(now) {
                pacer.charge(now, interval, 1.0);
                batch += 1;
            }
            (sent, largest) = (sent + batch, largest.max(batch));
            now = pacer.wakeup(interval) + late;
        }
        (sent, largest)
    }

    #[test]
    fn the_rate_holds_with_a_late_driver_and_batches_stay_in_the_budget() {
        for late in [us(0), us(100), us(2000)] {
            let (sent, largest) = second(12_000.5, late);
            let expected = 1e9 / 12_000.5;
            assert!((f64::from(sent) / expected - 1.0).abs() < 0.01, "{sent} packets instead of {expected}");
            assert!(largest <= (4_000_000.0 / 12_000.5) as u32 + 1);
        }
        // What takes longer than a quantum goes packet by packet, but for what was missed before the start.
        assert_eq!(second(3_000_000.0, us(0)).1, 2);
    }

    #[test]
    fn a_pause_is_not_made_up_for() {
        let mut pacer = Pacer::new(us(1000), us(20_000));
        pacer.charge(us(1_000_000), 100_000.0, 1.0);
        let batch = |pacer: &mut Pacer, at| {
            let mut count = 0;
            while pacer.is_ready(at) {
                pacer.charge(at, 100_000.0, 1.0);
                count += 1;
            }
            count
        };
        batch(&mut pacer, us(1_000_000));
        pacer.rest();
        assert_eq!(batch(&mut pacer, us(2_000_000)), 21);
        assert_eq!(batch(&mut pacer, us(3_000_000)), 201);
    }

    #[test]
    fn a_wakeup_is_never_too_early() {
        let mut pacer = Pacer::new(us(0), us(0));
        for interval in [0.3, 1.0, 999.9, 1e6] {
            pacer.charge(us(5), interval, 1.0);
            assert!(pacer.is_ready(pacer.wakeup(interval)));
        }
    }
}
