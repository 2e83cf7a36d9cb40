//! Loss of paths, measured by retransmissions.

use phoebus_net::Stats;
use std::sync::atomic::{AtomicU64, Ordering};

/// Sums over connections.
#[derive(Debug, Default)]
pub struct Losses {
    sent: AtomicU64,
    again: AtomicU64,
}

impl Losses {
    /// Fewer segments say nothing about a path.
    const MANY: u64 = 10_000;

    /// Adds the counters of a connection.
    pub(super) fn add(&self, stats: &Stats) {
        self.sent.fetch_add(stats.segments_sent, Ordering::Relaxed);
        self.again.fetch_add(stats.retransmits, Ordering::Relaxed);
    }

    /// The fraction of segments that were retransmitted. 0 before many were sent.
    pub fn rate(&self) -> f64 {
        let (sent, again) = (self.sent.load(Ordering::Relaxed), self.again.load(Ordering::Relaxed));
        if sent < Self::MANY { 0.0 } else { again as f64 / sent as f64 }
    }
}
