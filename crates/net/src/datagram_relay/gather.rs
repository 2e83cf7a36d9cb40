//! For how long datagrams gather before they are relayed.
//!
//! On a fast path, a thread that wakes for each datagram spends more on waking than on datagrams. So the time that it waits for more
//! follows the rate of all flows: about as many arrive as one system call sends.

use std::time::{Duration, Instant};

/// Bytes that are to gather: what one system call sends.
const BATCH: f64 = 64e3;
/// The rate, in bytes per second, below which nothing gathers: in the longest wait, three datagrams would come.
const FAST: f64 = 4e6;
/// The longest wait. Only flows above [`FAST`] wait at all, and the wait shrinks as the rate grows.
const LONGEST: Duration = Duration::from_millis(1);
/// The longest wait, as a share of a path's round trip: the ends take a longer round trip for a queue.
const OF_RTT: u32 = 20;
/// The shortest wait: the slack of the kernel's timers.
const SHORTEST: Duration = Duration::from_micros(50);
/// How often the rate is determined.
const INTERVAL: Duration = Duration::from_millis(10);

/// Measures the rate.
#[derive(Debug)]
pub(super) struct Gather {
    since: Instant,
    bytes: u64,
    /// In bytes per second.
    rate: f64,
    /// The shortest round trip of the flows of this interval and of the one before.
    rtts: [Duration; 2],
}

impl Gather {
    pub(super) fn new(now: Instant) -> Self {
        Self { since: now, bytes: 0, rate: 0.0, rtts: [Duration::MAX; 2] }
    }

    /// Bytes of a flow on a path with this round trip are relayed.
    pub(super) fn has_flow(&mut self, rtt: Duration) {
        self.rtts[0] = self.rtts[0].min(rtt);
    }

    /// So many bytes were relayed by `now`. Returns for how long more are to gather.
    pub(super) fn relayed(&mut self, bytes: usize, now: Instant) -> Duration {
        self.bytes += bytes as u64;
        let passed = now.saturating_duration_since(self.since);
        if passed >= INTERVAL {
            self.rate = self.bytes as f64 / passed.as_secs_f64();
            (self.since, self.bytes, self.rtts) = (now, 0, [Duration::MAX, self.rtts[0]]);
        }
        let longest = LONGEST.min(self.rtts[0].min(self.rtts[1]) / OF_RTT);
        if self.rate < FAST || longest < SHORTEST {
            return Duration::ZERO;
        }
        Duration::from_secs_f64(BATCH / self.rate).min(longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The wait at a rate, in bytes per second, once that is known, on a path with this round trip.
    fn wait_at(rate: f64, rtt: Duration) -> Duration {
        let start = Instant::now();
        let mut gather = Gather::new(start);
        let each = Duration::from_micros(500);
        let waits = (1..100).map(|n| {
            gather.has_flow(rtt);
            gather.relayed((rate * each.as_secs_f64()) as usize, start + each * n)
        });
        waits.last().unwrap()
    }

    #[test]
    fn faster_flows_gather_for_a_shorter_time_and_slow_ones_not_at_all() {
        let ms = Duration::from_millis;
        assert_eq!(wait_at(1e6, ms(75)), Duration::ZERO);
        assert_eq!(wait_at(10e6, ms(75)), LONGEST);
        let fast = wait_at(1e9, ms(75)).as_secs_f64();
        assert!((60e-6..70e-6).contains(&fast), "{fast}");
        // On a short path, the wait would be most of the round trip.
        assert_eq!([wait_at(10e6, ms(4)), wait_at(10e6, Duration::from_micros(300))], [ms(4) / OF_RTT, Duration::ZERO]);
    }

    #[test]
    fn rate_before_a_pause_does_not_count_after_it() {
        let start = Instant::now();
        let mut gather = Gather::new(start);
        gather.relayed(10_000_000, start + INTERVAL);
        assert_eq!(gather.relayed(100, start + Duration::from_secs(5)), Duration::ZERO);
    }
}
