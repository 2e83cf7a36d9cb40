//! Estimates the arrival rate and the capacity of the path, by median filters as in UDT.
//!
//! The arrival rate is measured over the last arrivals. The capacity is measured by packet pairs: the sender sends the
//! packet after one whose number is a multiple of 16 at once, so that the interval of the two on arrival is the time
//! that the bottleneck needs for one packet. Packets received by one system call share one arrival time. They count for
//! the rate as if they had been spread over the time since the packets before them, and give no sample of the capacity.

use crate::udt::PAIR_EVERY;
use crate::udt::seq::Seq;
use std::time::Duration;

/// How a datagram was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// Alone: the time is its own arrival time.
    Alone,
    /// Together with others, by UDP_GRO or in one system call: they share one time.
    Batched,
}

/// The measurements.
#[derive(Debug)]
pub(super) struct Arrivals {
    /// Nanoseconds between packets, and number of packets with this interval.
    intervals: Window<(u64, u32), 16>,
    /// Arrival time of the batch before the last one.
    before: Duration,
    /// Arrival time of the last batch.
    last: Duration,
    /// Number of packets in the last batch.
    count: u32,
    /// Nanoseconds between the packets of a pair.
    pairs: Window<u64, 64>,
    /// The first packet of a pair, if it was the last packet to arrive and arrived alone.
    pair: Option<Seq>,
}

/// The last `N` samples.
#[derive(Debug)]
struct Window<T, const N: usize> {
    samples: [T; N],
    len: usize,
    at: usize,
}

impl Arrivals {
    pub(super) fn new(now: Duration) -> Self {
        Self { intervals: Window::new(), before: now, last: now, count: 0, pairs: Window::new(), pair: None }
    }

    /// Records the arrival of a packet.
    pub(super) fn arrived(&mut self, now: Duration, seq: Seq, arrival: Arrival) {
        let since_last = now.saturating_sub(self.last);
        if since_last.is_zero() {
            self.count += 1;
        } else {
            if self.count > 0 {
                let nanos = (self.last - self.before).as_nanos() as u64;
                self.intervals.push((nanos / u64::from(self.count), self.count));
            }
            (self.before, self.last, self.count) = (self.last, now, 1);
        }
        let first = self.pair.take();
        if arrival == Arrival::Alone {
            if first.is_some_and(|first| first.plus(1) == seq) && !since_last.is_zero() {
                self.pairs.push(since_last.as_nanos() as u64);
            }
            self.pair = seq.get().is_multiple_of(PAIR_EVERY).then_some(seq);
        }
    }

    /// Arrival rate in packets per second; 0 if too few packets have arrived, or too unevenly.
    pub(super) fn rate(&self) -> u32 {
        let samples = self.intervals.get();
        let Some(median) = median(samples.iter().map(|(nanos, _)| *nanos)) else { return 0 };
        let (mut nanos, mut packets, mut counted) = (0, 0, 0);
        for (interval, count) in samples.iter().filter(|(interval, _)| is_near(*interval, median)) {
            nanos += interval * u64::from(*count);
            packets += u64::from(*count);
            counted += 1;
        }
        if counted > self.intervals.samples.len() / 2 { per_second(packets, nanos) } else { 0 }
    }

    /// Capacity of the path in packets per second, at least the arrival rate; 0 if not known.
    pub(super) fn capacity(&self) -> u32 {
        let samples = self.pairs.get();
        let median = median(samples.iter().copied()).unwrap_or_default();
        let (mut nanos, mut pairs) = (median, 1);
        for interval in samples.iter().filter(|interval| is_near(**interval, median)) {
            nanos += interval;
            pairs += 1;
        }
        per_second(pairs, nanos).max(self.rate())
    }
}

fn median(samples: impl Iterator<Item = u64>) -> Option<u64> {
    let mut sorted = [0; 64];
    let len = sorted.iter_mut().zip(samples).map(|(slot, sample)| *slot = sample).count();
    let sorted = &mut sorted[..len];
    (len > 0).then(|| *sorted.select_nth_unstable(len / 2).1)
}

/// Whether an interval is not an outlier: within a factor of 8 of the median.
fn is_near(interval: u64, median: u64) -> bool {
    interval > median / 8 && interval < median.saturating_mul(8)
}

fn per_second(count: u64, nanos: u64) -> u32 {
    (count * 1_000_000_000).checked_div(nanos).map_or(0, |rate| u32::try_from(rate).unwrap_or(u32::MAX))
}

impl<T: Copy + Default, const N: usize> Window<T, N> {
    fn new() -> Self {
        Self { samples: [T::default(); N], len: 0, at: 0 }
    }

    fn push(&mut self, sample: T) {
        self.samples[self.at] = sample;
        self.at = (self.at + 1) % N;
        self.len = N.min(self.len + 1);
    }

    fn get(&self) -> &[T] {
        &self.samples[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    #[test]
    fn pairs_give_the_capacity_and_intervals_the_rate() {
        let mut arrivals = Arrivals::new(us(0));
        let mut now = us(0);
        for n in 0..400 {
            // 1000 packets per second, pairs 50 µs apart, and a delay of 90 ms at every 50th packet.
            let interval = if n % 16 == 1 { us(50) } else { us(1000) };
            now += if n % 50 == 49 { us(90_000) } else { interval };
            arrivals.arrived(now, Seq::new(n), Arrival::Alone);
        }
        assert_eq!(arrivals.capacity(), 20_000);
        assert!((1000..=1100).contains(&arrivals.rate()), "{}", arrivals.rate());
    }

    #[test]
    fn batches_count_for_the_rate_only() {
        let mut arrivals = Arrivals::new(us(0));
        let mut seq = Seq::new(0);
        for batch in 1..100 {
            for _ in 0..40 {
                arrivals.arrived(us(batch * 400), seq, Arrival::Batched);
                seq = seq.plus(1);
            }
        }
        assert_eq!((arrivals.rate(), arrivals.pairs.len), (100_000, 0));
        assert_eq!(arrivals.capacity(), 100_000);
    }

    #[test]
    fn too_few_packets_give_no_estimate() {
        let mut arrivals = Arrivals::new(us(0));
        arrivals.arrived(us(5), Seq::new(3), Arrival::Alone);
        assert_eq!((arrivals.rate(), arrivals.capacity()), (0, 0));
        // None of these are a pair: it needs consecutive packets that arrive at different times.
        for (at, seq) in [(10, 16), (20, 18), (30, 17), (40, 32), (40, 33)] {
            arrivals.arrived(us(at), Seq::new(seq), Arrival::Alone);
        }
        assert_eq!(arrivals.pairs.len, 0);
    }
}
