//! Where the system calls of a store run.

use crate::disk::Linux;
use crate::draft::BatchSync;
use std::sync::Arc;
use std::thread::ThreadId;

/// Where they run.
#[derive(Clone)]
pub(super) enum Calls {
    /// Each on a thread of the runtime's blocking pool.
    Pool,
    /// On this thread, if they are polled there, and otherwise in the pool. Drafts are synced together.
    Thread(ThreadId, Arc<BatchSync<Linux>>),
}

impl Calls {
    /// On the current thread.
    pub(super) fn here() -> Self {
        Self::Thread(std::thread::current().id(), Arc::default())
    }

    /// Whether calls may be made on the current thread.
    pub(super) fn are_here(&self) -> bool {
        matches!(self, Self::Thread(thread, _) if *thread == std::thread::current().id())
    }

    /// The drafts that the current thread syncs together.
    pub(super) fn batch_sync(&self) -> Option<&BatchSync<Linux>> {
        match self {
            Self::Thread(_, batch_sync) if self.are_here() => Some(batch_sync),
            _ => None,
        }
    }
}
