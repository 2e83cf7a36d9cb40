//! How many connections beyond the configured number are kept ready, because sessions have found none.
//!
//! A framed connection is free again only when both ends of its session have acknowledged the end, which takes a round
//! trip of the segment (`docs/protocol/session.md` §6.2); replacing one takes three or four. If sessions follow each
//! other faster, they need as many connections as sessions begin in that time. The number is learned: each session that
//! finds none adds one connection, until no session has missed one for a while.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Recent sessions that found no ready connection.
#[derive(Debug, Default)]
pub(super) struct Spare(Mutex<Missed>);

#[derive(Debug, Default)]
struct Missed {
    count: usize,
    /// When a session last found none.
    last: Option<Instant>,
}

impl Spare {
    /// Records that a session has found no connection. Counts up to `most`.
    pub(super) fn missed(&self, now: Instant, most: usize) {
        let mut missed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *missed = Missed { count: (missed.count + 1).min(most), last: Some(now) };
    }

    /// How many extra connections to keep. 0 once the last miss is longer ago than `memory`.
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
    fn spare_count_follows_misses_until_memory_ends() {
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
