//! Drafts and files under a quota, which take space as they grow.

use super::Claim;
use phoebus_files::Error;
use phoebus_files::key::Key;
use phoebus_files::store::{Bound, Boxed, Draft, Fallible};
use std::sync::atomic::Ordering;

/// The space of a draft.
#[derive(Debug)]
pub(super) struct QuotaDraft {
    pub(super) claim: Claim,
    pub(super) key: Key,
}

/// The space of a file that is changed in place, for growth beyond its first `had` bytes.
#[derive(Debug)]
pub(super) struct QuotaEdit {
    pub(super) had: u64,
    pub(super) claim: Claim,
}

impl Bound for QuotaDraft {
    fn reach(&self, end: u64) -> Result<(), Error> {
        self.claim.reach(end)
    }

    fn publish<'a>(&'a self, draft: &'a dyn Draft, size: u64) -> Fallible<'a, ()> {
        Box::pin(async move {
            self.claim.reach(size)?;
            let of = &self.claim.of;
            let touched = of.touch(&self.key);
            let replaced = of.there(&self.key).await;
            // The file may have been published although an error was returned.
            draft.publish(size).await.inspect_err(|_| of.used().doubt())?;
            let mut used = of.used();
            used.add(size, 1);
            if let Some(bytes) = replaced {
                used.gone(&touched.path, bytes);
            }
            self.claim.settled.store(true, Ordering::Relaxed);
            Ok(())
        })
    }

    fn abandon<'a>(&'a self, draft: &'a dyn Draft, keep: bool) -> Boxed<'a, ()> {
        Box::pin(async move {
            draft.abandon(keep).await;
            if self.claim.settled.swap(true, Ordering::Relaxed) {
                return;
            }
            // The rest, kept for another attempt, counts.
            let left = match draft.capabilities().place {
                Some(place) => self.claim.of.there(&place).await,
                None => None,
            };
            self.claim.leaves(left);
        })
    }
}

impl Bound for QuotaEdit {
    fn reach(&self, end: u64) -> Result<(), Error> {
        self.claim.reach(end.saturating_sub(self.had))
    }

    fn publish<'a>(&'a self, draft: &'a dyn Draft, size: u64) -> Fallible<'a, ()> {
        draft.publish(size)
    }

    fn abandon<'a>(&'a self, draft: &'a dyn Draft, keep: bool) -> Boxed<'a, ()> {
        draft.abandon(keep)
    }
}

impl Drop for QuotaEdit {
    fn drop(&mut self) {
        // Claimed space was written, or was about to be.
        let (bytes, files) = self.claim.size();
        self.claim.of.used().add(bytes, files);
    }
}
