//! Progress counters of transfers.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of bytes.
#[derive(Debug, Default)]
pub struct Progress {
    moved: AtomicU64,
    kept: AtomicU64,
    between: AtomicU64,
}

impl Progress {
    /// Carried bytes, including failed attempts.
    pub fn bytes_moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// Bytes that an earlier run had carried.
    pub fn bytes_kept(&self) -> u64 {
        self.kept.load(Ordering::Relaxed)
    }

    /// Those of [`Self::bytes_moved`] that went directly between servers.
    pub fn bytes_between(&self) -> u64 {
        self.between.load(Ordering::Relaxed)
    }

    pub(super) fn between(&self, bytes: u64) {
        self.between.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn moved(&self, bytes: u64) {
        self.moved.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn kept(&self, bytes: u64) {
        self.kept.fetch_add(bytes, Ordering::Relaxed);
    }
}
