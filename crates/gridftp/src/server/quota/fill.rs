//! What is written under a quota: drafts and files that take room as they grow.

use super::Claim;
use phoebus_files::block::Block;
use phoebus_files::key::Key;
use phoebus_files::range::{Extent, Ranges};
use phoebus_files::store::{Boxed, Draft, Fallible, Landing, claimed_by};
use phoebus_files::sum::{Algorithm, Sum};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A draft that has room.
#[derive(Debug)]
pub(super) struct Filling {
    pub(super) draft: Arc<dyn Draft>,
    pub(super) claim: Arc<Claim>,
    pub(super) key: Key,
}

/// A file that is changed where it stands, and has room for what it grows by.
#[derive(Debug)]
pub(super) struct Growing {
    pub(super) draft: Arc<dyn Draft>,
    pub(super) had: u64,
    pub(super) claim: Arc<Claim>,
}

/// Where those put bytes who have them first, as far as there is room for what comes after the `had` bytes that there were.
fn bounded(draft: &dyn Draft, had: u64, claim: &Arc<Claim>) -> Option<Arc<dyn Landing>> {
    let (landing, claim) = (draft.landing()?, claim.clone());
    Some(claimed_by(landing, move |landing, extent| {
        claim.reach(extent.end().saturating_sub(had))?;
        landing.claim(extent)
    }))
}

impl Draft for Filling {
    fn name(&self) -> String {
        self.draft.name()
    }

    fn place(&self) -> Option<Key> {
        self.draft.place()
    }

    fn kept(&self) -> Ranges {
        self.draft.kept()
    }

    fn is_ordered(&self) -> bool {
        self.draft.is_ordered()
    }

    fn takes_lent(&self) -> bool {
        self.draft.takes_lent()
    }

    fn takes_holes(&self) -> bool {
        self.draft.takes_holes()
    }

    fn flush(&self) -> Fallible<'_, ()> {
        self.draft.flush()
    }

    fn is_resumable(&self) -> bool {
        self.draft.is_resumable()
    }

    fn write(&self, block: Block) -> Fallible<'_, ()> {
        match self.claim.reach(block.extent().map_or(u64::MAX, Extent::end)) {
            Ok(()) => self.draft.write(block),
            Err(error) => Box::pin(async { Err(error) }),
        }
    }

    fn landing(&self) -> Option<Arc<dyn Landing>> {
        bounded(&*self.draft, 0, &self.claim)
    }

    fn checkpoint(&self) -> Fallible<'_, Ranges> {
        self.draft.checkpoint()
    }

    fn given(&self, size: u64) -> Option<Sum> {
        self.draft.given(size)
    }

    fn checksum(&self, algorithm: Algorithm) -> Fallible<'_, Sum> {
        self.draft.checksum(algorithm)
    }

    fn publish(&self, size: u64) -> Fallible<'_, ()> {
        Box::pin(async move {
            self.claim.reach(size)?;
            let of = &self.claim.of;
            let touched = of.touch(&self.key);
            let replaced = of.there(&self.key).await;
            // It may have its name all the same.
            self.draft.publish(size).await.inspect_err(|_| of.used().doubt())?;
            let mut used = of.used();
            used.add(size, 1);
            if let Some(bytes) = replaced {
                used.gone(&touched.path, bytes);
            }
            self.claim.settled.store(true, Ordering::Relaxed);
            Ok(())
        })
    }

    fn abandon(&self, keep: bool) -> Boxed<'_, ()> {
        Box::pin(async move {
            self.draft.abandon(keep).await;
            if self.claim.settled.swap(true, Ordering::Relaxed) {
                return;
            }
            // What is left of it, for another attempt, counts.
            let left = match self.draft.place() {
                Some(place) => self.claim.of.there(&place).await,
                None => None,
            };
            self.claim.leaves(left);
        })
    }
}

impl Draft for Growing {
    fn name(&self) -> String {
        self.draft.name()
    }

    fn place(&self) -> Option<Key> {
        self.draft.place()
    }

    fn kept(&self) -> Ranges {
        self.draft.kept()
    }

    fn is_ordered(&self) -> bool {
        self.draft.is_ordered()
    }

    fn takes_lent(&self) -> bool {
        self.draft.takes_lent()
    }

    fn takes_holes(&self) -> bool {
        self.draft.takes_holes()
    }

    fn flush(&self) -> Fallible<'_, ()> {
        self.draft.flush()
    }

    fn is_resumable(&self) -> bool {
        self.draft.is_resumable()
    }

    fn write(&self, block: Block) -> Fallible<'_, ()> {
        let end = block.extent().map_or(u64::MAX, Extent::end);
        match self.claim.reach(end.saturating_sub(self.had)) {
            Ok(()) => self.draft.write(block),
            Err(error) => Box::pin(async { Err(error) }),
        }
    }

    fn landing(&self) -> Option<Arc<dyn Landing>> {
        bounded(&*self.draft, self.had, &self.claim)
    }

    fn checkpoint(&self) -> Fallible<'_, Ranges> {
        self.draft.checkpoint()
    }

    fn given(&self, size: u64) -> Option<Sum> {
        self.draft.given(size)
    }

    fn checksum(&self, algorithm: Algorithm) -> Fallible<'_, Sum> {
        self.draft.checksum(algorithm)
    }

    fn publish(&self, size: u64) -> Fallible<'_, ()> {
        self.draft.publish(size)
    }

    fn abandon(&self, keep: bool) -> Boxed<'_, ()> {
        self.draft.abandon(keep)
    }
}

impl Drop for Growing {
    fn drop(&mut self) {
        // What was claimed was written, or was about to be.
        let (bytes, files) = self.claim.size();
        self.claim.of.used().add(bytes, files);
    }
}
