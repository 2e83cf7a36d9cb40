//! Whether commands may be pipelined.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a server accepts pipelined commands. Clones share the state.
#[derive(Debug, Clone)]
pub(super) struct Ahead(Arc<AtomicBool>);

impl Ahead {
    pub(super) fn new() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }

    pub(super) fn is_taken(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Records that the server closed the connection while several commands waited.
    pub(super) fn refuse(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}
