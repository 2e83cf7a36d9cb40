//! How many connections beyond the configured number are kept ready: as many as sessions have used at the same time
//! recently, less those that they use now and will give back.
//!
//! A framed connection is free again only when both ends of its session have acknowledged the end, which takes a round
//! trip of the segment (`docs/protocol/session.md` §6.2); replacing one takes three or four. If connections that come
//! back did not count, each session would make the pool dial a connection, and the return of its own would be one too
//! many.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The connections that sessions use, and used lately.
#[derive(Debug)]
pub(super) struct Demand(Mutex<Counts>);

#[derive(Debug)]
struct Counts {
    in_use: usize,
    /// The most in use at the same time in this period, and in the one before.
    peak: usize,
    peak_before: usize,
    since: Instant,
}

/// The use of one connection by a session, from before it is dialled; it ends on drop.
#[derive(Debug)]
pub(super) struct InUse(Arc<Demand>);

impl Demand {
    pub(super) fn new(now: Instant) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Counts { in_use: 0, peak: 0, peak_before: 0, since: now })))
    }

    /// Records that a session uses a connection.
    pub(super) fn begin(self: &Arc<Self>) -> InUse {
        let mut counts = self.counts();
        counts.in_use += 1;
        counts.peak = counts.peak.max(counts.in_use);
        InUse(self.clone())
    }

    /// The most connections that sessions have used at the same time, and how many they use now. A peak is remembered for
    /// one to two `periods`.
    pub(super) fn peak_and_in_use(&self, now: Instant, period: Duration) -> (usize, usize) {
        let mut counts = self.counts();
        let elapsed = now.saturating_duration_since(counts.since);
        if elapsed > period {
            counts.peak_before = if elapsed > period * 2 { 0 } else { counts.peak };
            (counts.peak, counts.since) = (counts.in_use, now);
        }
        (counts.peak.max(counts.peak_before), counts.in_use)
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.counts().in_use -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_secs(300);

    #[test]
    fn uses_are_counted_and_their_peak_is_remembered() {
        let start = Instant::now();
        let demand = Demand::new(start);
        assert_eq!(demand.peak_and_in_use(start, PERIOD), (0, 0));
        let mut sessions: Vec<_> = (0..16).map(|_| demand.begin()).collect();
        assert_eq!(demand.peak_and_in_use(start, PERIOD), (16, 16));
        sessions.truncate(10);
        sessions.push(demand.begin());
        assert_eq!(demand.peak_and_in_use(start, PERIOD), (16, 11));
    }

    #[test]
    fn peak_is_forgotten_after_one_to_two_periods() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let demand = Demand::new(start);
        drop([demand.begin(), demand.begin(), demand.begin()]);
        assert_eq!(demand.peak_and_in_use(at(300), PERIOD), (3, 0));
        drop([demand.begin(), demand.begin()]);
        assert_eq!(demand.peak_and_in_use(at(301), PERIOD), (3, 0), "the peak of the period before");
        drop(demand.begin());
        assert_eq!(demand.peak_and_in_use(at(602), PERIOD), (1, 0));
        assert_eq!(demand.peak_and_in_use(at(903), PERIOD), (0, 0));

        drop([demand.begin(), demand.begin()]);
        assert_eq!(demand.peak_and_in_use(at(2000), PERIOD), (0, 0), "nobody asked for more than two periods");
    }

    #[test]
    fn short_sessions_beside_long_ones_raise_the_peak() {
        let start = Instant::now();
        let demand = Demand::new(start);
        let long: Vec<_> = (0..100).map(|_| demand.begin()).collect();
        drop((0..5).map(|_| demand.begin()).collect::<Vec<_>>());
        assert_eq!(demand.peak_and_in_use(start, PERIOD), (105, 100));
        drop(long);
        assert_eq!(demand.peak_and_in_use(start, PERIOD), (105, 0));
    }
}
