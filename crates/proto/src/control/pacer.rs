//! Packet pacing.
//!
//! Every packet has an earliest departure time. Sending it advances the time of the next packet by its duration at the
//! current rate. A batch consists of the packets whose times have passed, so that it never exceeds the rate. To make
//! batches possible, the sender is woken a [quantum](Pacer::new) later, and not for every packet. A driver that is late
//! may make up for the missed time, up to a bound.

use std::time::Duration;

/// Paces one connection. Times are kept in units of 2⁻¹⁶ ns, so that rounding does not change rates.
#[derive(Debug)]
pub struct Pacer {
    /// Earliest departure time of the next packet.
    next: u128,
    quantum: u128,
    catch_up: u128,
    /// Whether there was nothing to send. Such a pause is not made up for.
    is_resting: bool,
}

const FRACTION_BITS: u32 = 16;

/// A wait that nobody notices: the rates of a usual path change by less in each packet.
const SHORT: Duration = Duration::from_millis(10);

fn fixed(time: Duration) -> u128 {
    time.as_nanos() << FRACTION_BITS
}

impl Pacer {
    /// A pacer that batches the packets of `quantum` and makes up for delays of up to `catch_up`.
    pub fn new(quantum: Duration, catch_up: Duration) -> Self {
        Self { next: 0, quantum: fixed(quantum), catch_up: fixed(catch_up.max(2 * quantum)), is_resting: false }
    }

    /// Records that there is nothing to send although the pacer is ready.
    pub fn rest(&mut self) {
        self.is_resting = true;
    }

    /// Whether a packet may be sent now.
    pub fn is_ready(&self, now: Duration) -> bool {
        self.next <= fixed(now)
    }

    /// Accounts for a packet. `interval` is the duration of a full packet in nanoseconds, `part` the packet's fraction
    /// of it.
    pub fn charge(&mut self, now: Duration, interval: f64, part: f64) {
        let cost = interval * part * f64::from(1u32 << FRACTION_BITS);
        let missed = if std::mem::take(&mut self.is_resting) { 2 * self.quantum } else { self.catch_up };
        self.next = self.next.max(fixed(now).saturating_sub(missed)) + cost as u128;
    }

    /// Shortens the wait for the next packet to 10 ms and what `interval` permits, so that a rate much higher than
    /// before applies soon. At a constant rate it changes nothing, since a packet is sent only when it is due.
    pub fn hasten(&mut self, now: Duration, interval: f64) {
        // A pair is charged at once.
        let most = 2.0 * interval * f64::from(1u32 << FRACTION_BITS);
        self.next = self.next.min(fixed(now + SHORT).saturating_add(most as u128));
    }

    /// When to send the next batch. Call it after [`is_ready`](Self::is_ready) was false.
    pub fn wakeup(&self, interval: f64) -> Duration {
        let interval = ((interval * f64::from(1u32 << FRACTION_BITS)) as u128).max(1);
        let collected = self.next + self.quantum / interval * interval;
        // Round up, so that the packet may be sent at that time.
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

    /// Sends for a second with a driver that is `late`. Returns the number of packets and the largest batch.
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
    fn higher_rate_applies_at_once() {
        let mut pacer = Pacer::new(us(100), us(500));
        // A packet in 1000 s, then one in a millisecond.
        pacer.charge(us(5), 1e12, 1.0);
        pacer.hasten(us(10), 1e12);
        assert!(!pacer.is_ready(us(900_000_000)));
        pacer.hasten(us(10), 1e6);
        assert!(!pacer.is_ready(us(12_000)) && pacer.is_ready(us(12_010)));
        // It delays nothing.
        pacer.hasten(us(12_000), 1e12);
        assert!(pacer.is_ready(us(12_010)));
    }

    #[test]
    fn rate_is_kept_with_a_late_driver_and_batches_are_bounded() {
        for late in [us(0), us(100), us(2000)] {
            let (sent, largest) = second(12_000.5, late);
            let expected = 1e9 / 12_000.5;
            assert!((f64::from(sent) / expected - 1.0).abs() < 0.01, "{sent} packets instead of {expected}");
            assert!(largest <= (4_000_000.0 / 12_000.5) as u32 + 1);
        }
        // Packets longer than a quantum are sent one by one, except for the catch-up at the start.
        assert_eq!(second(3_000_000.0, us(0)).1, 2);
    }

    #[test]
    fn pause_without_data_is_not_made_up_for() {
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
    fn wakeup_is_never_too_early() {
        let mut pacer = Pacer::new(us(0), us(0));
        for interval in [0.3, 1.0, 999.9, 1e6] {
            pacer.charge(us(5), interval, 1.0);
            assert!(pacer.is_ready(pacer.wakeup(interval)));
        }
    }
}
