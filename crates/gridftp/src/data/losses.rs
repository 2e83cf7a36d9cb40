//! What paths cost: packets that were sent again, and whether datagrams get through at all.

use phoebus_net::Stats;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Sums over connections and transfers.
#[derive(Debug, Default)]
pub struct Losses {
    sent: AtomicU64,
    again: AtomicU64,
    objects: Mutex<ObjectTotals>,
    /// Why no datagrams get through, as a sentence.
    no_datagrams: OnceLock<String>,
}

/// What transfers as objects have cost, over all that have ended well.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ObjectTotals {
    /// Number of transfers.
    pub transfers: u64,
    /// Packets of all chunks.
    pub needed: u64,
    /// Packets sent; at the receiving end, as far as their numbers tell.
    pub sent: u64,
    /// Packets sent again because they were lost. Only the sending end knows.
    pub repairs: u64,
    /// Packets repeated at the end of a transfer, or to ask a silent peer. Only the sending end knows.
    pub repeats: u64,
    /// Parity packets, from which missing ones are computed at the end of a transfer.
    pub parity: u64,
    /// Buffers of datagrams for which the receiver's socket had no room.
    pub drops: u64,
    /// The rate in force at the end of the latest transfer, in bits per second with all headers. Only the sending end knows.
    pub rate: f64,
    /// The rate that the path was last found to carry, in bits per second with all headers. 0 before that. Only the sending end
    /// finds it, in transfers that are long enough.
    pub path_rate: f64,
    /// The round-trip time of the latest transfer, in seconds. Only the sending end knows.
    pub rtt: f64,
}

impl ObjectTotals {
    /// Packets sent beyond those that were needed, as a fraction of these.
    pub fn waste(&self) -> f64 {
        self.sent.saturating_sub(self.needed) as f64 / self.needed.max(1) as f64
    }

    /// The totals of both.
    pub fn and(self, other: Self) -> Self {
        let latest = if other.transfers > 0 { other } else { self };
        Self {
            // Some of them are what a peer says.
            transfers: self.transfers.saturating_add(other.transfers),
            needed: self.needed.saturating_add(other.needed),
            sent: self.sent.saturating_add(other.sent),
            repairs: self.repairs.saturating_add(other.repairs),
            repeats: self.repeats.saturating_add(other.repeats),
            parity: self.parity.saturating_add(other.parity),
            drops: self.drops.saturating_add(other.drops),
            rate: latest.rate,
            path_rate: if latest.path_rate > 0.0 { latest.path_rate } else { self.path_rate },
            rtt: latest.rtt,
        }
    }
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

    /// Adds a transfer as objects.
    pub(super) fn add_objects(&self, totals: ObjectTotals) {
        let mut objects = self.objects.lock().unwrap_or_else(PoisonError::into_inner);
        *objects = objects.and(totals);
    }

    /// Records that no datagrams get through.
    pub(super) fn note_no_datagrams(&self, why: &str) {
        // The first reason stays.
        let _ = self.no_datagrams.set(why.to_owned());
    }

    /// Why no datagrams get through, if that was found.
    pub fn no_datagrams(&self) -> Option<String> {
        self.no_datagrams.get().cloned()
    }

    /// What transfers as objects have cost.
    pub fn objects(&self) -> ObjectTotals {
        *self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
