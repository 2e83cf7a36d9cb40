//! Drafts that are synced together: one call for many short objects costs little more than one for each of them.

use super::{Work, lock};
use crate::disk::Disk;
use crate::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use tokio::sync::oneshot;

/// Drafts that wait to be synced.
pub(crate) struct BatchSync<D: Disk> {
    waiting: Mutex<Vec<Waiting<D>>>,
    /// The file system, as it was opened before the first draft. `None` inside: each draft is synced alone.
    file_system: OnceLock<Option<D::FileSystem>>,
    /// Whether a call has failed. Its error may have been another draft's, to whom no further call would report it.
    has_failed: AtomicBool,
}

struct Waiting<D: Disk> {
    work: Arc<Work<D>>,
    synced: oneshot::Sender<Result<(), Error>>,
}

impl<D: Disk> Default for BatchSync<D> {
    fn default() -> Self {
        Self { waiting: Mutex::default(), file_system: OnceLock::new(), has_failed: AtomicBool::new(false) }
    }
}

impl<D: Disk> BatchSync<D> {
    /// Opens the file system of `disk`, once. Has to be called before each draft is begun.
    pub(crate) fn open(&self, disk: &D) {
        self.file_system.get_or_init(|| disk.file_system());
    }

    /// Waits until `work` is synced by the next [`Self::sync`], between [`Work::prepare`] and [`Work::give_name`].
    ///
    /// # Errors
    /// It could not be synced.
    pub(crate) async fn wait(&self, work: &Arc<Work<D>>) -> Result<(), Error> {
        let (synced, waits) = oneshot::channel();
        lock(&self.waiting).push(Waiting { work: work.clone(), synced });
        // Whatever happens to this list, a draft is never taken for synced.
        waits.await.unwrap_or_else(|_| work.sync())
    }

    /// Forgets the drafts that were given up.
    pub(crate) fn forget_given_up(&self) {
        lock(&self.waiting).retain(|one| !one.synced.is_closed());
    }

    /// Syncs all drafts that wait, and lets them go on. Returns whether there were any. Blocks.
    pub(crate) fn sync(&self, disk: &D) -> bool {
        self.forget_given_up();
        let waiting = std::mem::take(&mut *lock(&self.waiting));
        let any = !waiting.is_empty();
        let files: Vec<_> = waiting.iter().map(|one| one.work.file()).collect();
        let file_system =
            self.file_system.get().and_then(Option::as_ref).filter(|_| any && !self.has_failed.load(Ordering::Relaxed));
        let all = file_system.is_some_and(|file_system| {
            disk.sync_together(file_system, &files).unwrap_or_else(|_| {
                self.has_failed.store(true, Ordering::Relaxed);
                false
            })
        });
        for Waiting { work, synced } in waiting {
            // The kernel remembers for each open file whether its bytes could be written. Who has given up meanwhile does
            // not wait for the result.
            let _ = synced.send(if all { Ok(()) } else { work.sync() });
        }
        any
    }
}
