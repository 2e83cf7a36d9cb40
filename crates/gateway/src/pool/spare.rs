//! How many connections more than configured are kept ready, because sessions have found none.
//!
//! A framed connection is free again only when both ends of its session have confirmed the end, which takes a round trip of the
//! segment (`docs/protocol/session.md` §6.2); replacing one takes three or four. Sessions that follow each other faster than
//! that need as many connections as begin meanwhile. How many that is shows when one finds none: from then on there is one
//! more, until nobody has missed any for a while.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What was missed lately.
#[derive(Debug, Default)]
pub(super) struct Spare(Mutex<Missed>);

#[derive(Debug, Default)]
struct Missed {
    count: usize,
    /// When the last one was.
    last: Option<Instant>,
}

impl Spare {
    /// A session has found no connection. Counts up to `most`.
    pub(super) fn missed(&self, now: Instant, most: usize) {
        let mut missed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *missed = Missed { count: (missed.count + 1).min(most), last: Some(now) };
    }

    /// How many more there should be. Nothing once the last miss is longer ago than `memory`.
    pub(super) fn wanted(&self, now: Instant, memory: Duration) -> usize {
        let mut missed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if missed.last.is_some_and(|last| now.saturating_duration_since(last) > memory) {
            *missed = Missed::default();
        }
        missed.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_missed_is_kept_ready_until_it_is_forgotten() {
        let (spare, start, memory) = (Spare::default(), Instant::now(), Duration::from_secs(300));
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(spare.wanted(start, memory), 0);
        for second in [0, 1, 2, 100] {
            spare.missed(at(second), 3);
        }
        assert_eq!((spare.wanted(at(101), memory), spare.wanted(at(400), memory)), (3, 3));
        assert_eq!(spare.wanted(at(401), memory), 0);
        spare.missed(at(402), 3);
        assert_eq!(spare.wanted(at(403), memory), 1);
    }
}
