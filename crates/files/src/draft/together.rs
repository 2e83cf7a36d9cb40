//! Drafts that are synced together: one call for many short objects costs little more than one for each of them.

use super::{Work, lock};
use crate::disk::Disk;
use crate::error::Error;
use std::sync::{Arc, Mutex};
use tokio::sync::oneshot;

/// Drafts that wait to be synced.
pub(crate) struct Together<D: Disk> {
    waiting: Mutex<Vec<Waiting<D>>>,
}

struct Waiting<D: Disk> {
    work: Arc<Work<D>>,
    synced: oneshot::Sender<Result<(), Error>>,
}

impl<D: Disk> Default for Together<D> {
    fn default() -> Self {
        Self { waiting: Mutex::default() }
    }
}

impl<D: Disk> Together<D> {
    /// Waits until `work` is synced by the next [`Self::sync`], between [`Work::prepare`] and [`Work::give_name`].
    ///
    /// # Errors
    /// It could not be synced.
    pub(crate) async fn wait(&self, work: &Arc<Work<D>>) -> Result<(), Error> {
        let (synced, waits) = oneshot::channel();
        lock(&self.waiting).push(Waiting { work: work.clone(), synced });
        // The sender is dropped unused only with all that could sync.
        waits.await.unwrap_or_else(|_| work.sync())
    }

    /// Syncs all drafts that wait, and lets them go on. Returns whether there were any. Blocks.
    pub(crate) fn sync(&self, disk: &D) -> bool {
        let mut waiting = std::mem::take(&mut *lock(&self.waiting));
        // Those that were given up need no sync.
        waiting.retain(|one| !one.synced.is_closed());
        let any = !waiting.is_empty();
        let files: Vec<_> = waiting.iter().map(|one| one.work.file()).collect();
        // After an error, each draft is synced alone, since the error may be another file's. The kernel remembers for
        // each open file whether its bytes could be written.
        let all = any && disk.sync_together(&files).unwrap_or(false);
        for Waiting { work, synced } in waiting {
            // Who has given up meanwhile does not wait for it.
            let _ = synced.send(if all { Ok(()) } else { work.sync() });
        }
        any
    }
}
