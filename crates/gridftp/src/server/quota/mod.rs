//! Quotas: how much a user may have beneath his root.
//!
//! What counts is what `find` sees there: every file and directory below the root is one file, and the bytes are the lengths of the
//! regular files, whoever put them there; the drafts of transfers that were cut and can go on are among them. It is counted when
//! somebody first wants to write, again after ten minutes, and after whatever cannot be told by adding and subtracting; between, what
//! this server does is added and subtracted. A tree that takes long to count is counted at most for a tenth of the time. What is being
//! received has its room from the beginning, if its length was announced, and otherwise as it arrives; a file that is being replaced counts
//! until it is, and a draft that is gone on with until it is known that it is. Where two things happen at once, as while it is counted, what
//! may be there counts.
//!
//! The tree is counted by the process itself, as a file system counts: a user could hide from himself what he has in directories that
//! nobody may read. All else is done as the user.
//!
//! A file system's own quotas need no counting and hold for everybody; these are for where there are none.

mod claim;
mod fill;
mod used;

use claim::Claim;
use fill::{Filling, Growing};
use phoebus_files::key::Key;
use phoebus_files::local::Local;
use phoebus_files::store::{Attributes, Begun, Draft, Fallible, Listing, Meta, Object, Spec, Store, Time};
use phoebus_files::sum::Algorithm;
use phoebus_files::{Error, Sort, draft_of};
use phoebus_proto::units::ByteSize;
use serde::Deserialize;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;
use used::{Touched, Used, counted};

/// How much a user may have. Without either of the two there is no bound to it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Quota {
    /// The lengths of his files, all together.
    pub bytes: Option<ByteSize>,
    /// How many files and directories they are.
    pub files: Option<u64>,
}

/// A store of which no more is filled than the quota says.
#[derive(Debug, Clone)]
pub(super) struct Limited(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Local,
    /// Where its names begin: at what is counted, or beneath.
    base: PathBuf,
    /// What is counted.
    root: PathBuf,
    quota: Quota,
    used: Arc<Mutex<Used>>,
    /// Held by whoever counts.
    counting: Arc<tokio::sync::Mutex<()>>,
}

impl Limited {
    /// One with this `quota`; what is counted is shared with the one `before`, if it is of the same directory.
    pub(super) fn new(store: Local, root: &Path, quota: Quota, before: Option<&Self>) -> Self {
        let before = before.filter(|before| before.0.root == root);
        let (used, counting) =
            before.map_or_else(Default::default, |before| (before.0.used.clone(), before.0.counting.clone()));
        let (base, root) = (root.to_owned(), root.to_owned());
        Self(Arc::new(Inner { store, base, root, quota, used, counting }))
    }

    /// The same over `store`, which is the same directory.
    pub(super) fn of(&self, store: Local) -> Self {
        self.at(store, self.0.base.clone())
    }

    /// The same over `store`, which is the directory `base`, the same or one beneath.
    fn at(&self, store: Local, base: PathBuf) -> Self {
        let Inner { root, quota, used, counting, .. } = &*self.0;
        let (root, quota, used, counting) = (root.clone(), *quota, used.clone(), counting.clone());
        Self(Arc::new(Inner { store, base, root, quota, used, counting }))
    }

    /// Whether so many bytes more have room.
    pub(super) async fn room(&self, bytes: u64) -> Result<(), Error> {
        self.0.count().await?;
        Claim::new(&self.0, bytes, 0, None).map(drop)
    }
}

impl Inner {
    fn used(&self) -> MutexGuard<'_, Used> {
        used::lock(&self.used)
    }

    fn path(&self, key: &Key) -> PathBuf {
        self.base.join(OsStr::from_bytes(key.as_bytes()))
    }

    /// Says that something is about to be done to what has this name, before that is looked at.
    fn touch(&self, key: &Key) -> Touched {
        Touched::new(&self.used, self.path(key))
    }

    /// Counts, unless the last count still holds.
    async fn count(&self) -> Result<(), Error> {
        let alone = self.counting.clone().lock_owned().await;
        if self.used().holds(Instant::now()) {
            return Ok(());
        }
        let (root, used) = (self.root.clone(), self.used.clone());
        // Whoever has asked may be gone before it is done. Then nobody else begins with it meanwhile.
        let counted = tokio::task::spawn_blocking(move || {
            let _alone = alone;
            used::lock(&used).begin();
            let begun = Instant::now();
            let counted = counted(&root, &used)?;
            used::lock(&used).end(counted, begun.elapsed());
            Ok(())
        });
        let counted = counted.await.unwrap_or_else(|_| Err(io::ErrorKind::Interrupted.into()));
        counted.map_err(|source| Error::Io { name: "/".to_owned(), act: "count what is in", source })
    }

    fn over(&self, what: &str, most: String) -> Error {
        let reason = format!("the quota of {most} for {what} is used up");
        Error::Store { name: "quota".to_owned(), reason, sort: Sort::NoSpace }
    }

    /// What is under a name itself, as the count has it.
    async fn there(&self, key: &Key) -> Option<u64> {
        // Where it cannot be looked at nothing can be done to it either.
        let meta = self.store.itself(key).await.ok()??;
        Some(meta.size.unwrap_or(0))
    }

    /// Has `removal` remove the file `key`, and counts it no more.
    async fn take_away(&self, key: &Key, removal: Fallible<'_, ()>) -> Result<(), Error> {
        let touched = self.touch(key);
        let bytes = self.there(key).await;
        removal.await?;
        match bytes {
            Some(bytes) => drop(self.used().gone(&touched.path, bytes)),
            None => self.used().doubt(),
        }
        Ok(())
    }
}

impl Store for Limited {
    fn name(&self) -> String {
        self.0.store.name()
    }

    fn is_far(&self) -> bool {
        self.0.store.is_far()
    }

    fn algorithms(&self) -> &[Algorithm] {
        self.0.store.algorithms()
    }

    fn sets_times(&self) -> bool {
        self.0.store.sets_times()
    }

    fn sets_modes(&self) -> bool {
        self.0.store.sets_modes()
    }

    fn stat<'a>(&'a self, key: &'a Key) -> Fallible<'a, Meta> {
        self.0.store.stat(key)
    }

    fn stat_link<'a>(&'a self, key: &'a Key) -> Fallible<'a, Meta> {
        self.0.store.stat_link(key)
    }

    fn has_links(&self) -> bool {
        self.0.store.has_links()
    }

    fn read_link<'a>(&'a self, key: &'a Key) -> Fallible<'a, Vec<u8>> {
        self.0.store.read_link(key)
    }

    fn make_link<'a>(
        &'a self,
        key: &'a Key,
        target: &'a [u8],
        modified: Option<Time>,
        replace: bool,
    ) -> Fallible<'a, ()> {
        Box::pin(async move {
            self.0.count().await?;
            let touched = self.0.touch(key);
            let replaced = self.0.there(key).await;
            let _claim = Claim::new(&self.0, 0, u64::from(replaced.is_none()), None)?;
            self.0.store.make_link(key, target, modified, replace).await?;
            let mut used = self.0.used();
            used.add(0, 1);
            if let Some(bytes) = replaced {
                used.gone(&touched.path, bytes);
            }
            Ok(())
        })
    }

    fn confined<'a>(&'a self, dir: &'a Key) -> Fallible<'a, Option<Arc<dyn Store>>> {
        Box::pin(async move {
            let store = self.0.store.beneath(dir).await?;
            Ok(Some(Arc::new(self.at(store, self.0.path(dir))) as Arc<dyn Store>))
        })
    }

    fn list<'a>(&'a self, key: &'a Key) -> Fallible<'a, Box<dyn Listing>> {
        self.0.store.list(key)
    }

    fn list_all<'a>(&'a self, key: &'a Key) -> Fallible<'a, Box<dyn Listing>> {
        self.0.store.list_all(key)
    }

    fn open<'a>(&'a self, key: &'a Key) -> Fallible<'a, Arc<dyn Object>> {
        self.0.store.open(key)
    }

    fn create<'a>(&'a self, key: &'a Key, spec: Spec) -> Fallible<'a, Begun> {
        Box::pin(async move {
            let key = self.0.store.resolve(key).await?;
            self.0.count().await?;
            let usual = draft_of(&key).ok();
            let touched = usual.as_ref().map(|usual| self.0.touch(usual));
            // What an earlier attempt left counts until this one has it, and then with this one.
            let left = match (&usual, &touched) {
                (Some(usual), Some(touched)) if !self.0.used().drafts.contains(&touched.path) => {
                    self.0.there(usual).await
                }
                _ => None,
            };
            let claim = Arc::new(Claim::new(&self.0, spec.size.unwrap_or(0), 1, left)?);
            let begun = self.0.store.create(&key, spec).await;
            let Ok(Begun::Draft(draft)) = begun else {
                // What was there may have been taken away first.
                left.iter().for_each(|_| self.0.used().doubt());
                return begun;
            };
            let at = draft.place();
            let mut old = left.zip(touched.as_ref()).map(|(bytes, touched)| (touched.path.clone(), bytes));
            let mut found = None;
            if at != usual {
                if let Some(usual) = usual.as_ref().filter(|_| old.is_some())
                    && self.0.there(usual).await.is_some()
                {
                    old = None;
                }
                if let Some(at) = at.as_ref().filter(|_| !draft.kept().is_empty() && old.is_none()) {
                    // It is as long as it was: who goes on with a draft knows its size.
                    found = Some(self.0.touch(at));
                    old = self.0.there(at).await.map(|bytes| (self.0.path(at), bytes));
                }
            }
            let taken = claim.is_in(at.map(|at| self.0.path(&at)), old);
            drop(found);
            let filling = Filling { draft, claim, key };
            if let Err(error) = taken {
                filling.abandon(true).await;
                return Err(error);
            }
            Ok(Begun::Draft(Arc::new(filling)))
        })
    }

    fn edit<'a>(&'a self, key: &'a Key) -> Fallible<'a, Arc<dyn Draft>> {
        Box::pin(async move {
            self.0.count().await?;
            let there = self.0.there(key).await;
            let claim = Claim::new(&self.0, 0, u64::from(there.is_none()), None)?;
            let draft = self.0.store.edit(key).await?;
            // What it has already is counted already.
            let had = there.unwrap_or(0);
            Ok(Arc::new(Growing { draft, had, claim: Arc::new(claim) }) as _)
        })
    }

    fn make_dir<'a>(&'a self, key: &'a Key) -> Fallible<'a, ()> {
        Box::pin(async move {
            self.0.count().await?;
            let _claim = Claim::new(&self.0, 0, 1, None)?;
            self.0.store.make_dir(key).await?;
            self.0.used().add(0, 1);
            Ok(())
        })
    }

    fn remove<'a>(&'a self, key: &'a Key) -> Fallible<'a, ()> {
        Box::pin(self.0.take_away(key, self.0.store.remove(key)))
    }

    fn discard<'a>(&'a self, key: &'a Key, before: Option<Time>) -> Fallible<'a, ()> {
        Box::pin(self.0.take_away(key, self.0.store.discard(key, before)))
    }

    fn remove_dir<'a>(&'a self, key: &'a Key) -> Fallible<'a, ()> {
        Box::pin(async move {
            self.0.store.remove_dir(key).await?;
            self.0.used().subtract(0, 1);
            Ok(())
        })
    }

    fn rename<'a>(&'a self, from: &'a Key, to: &'a Key, replace: bool) -> Fallible<'a, ()> {
        Box::pin(async move {
            if from == to {
                return self.0.store.rename(from, to, replace).await;
            }
            let (_from, touched) = (self.0.touch(from), self.0.touch(to));
            let replaced = self.0.there(to).await;
            self.0.store.rename(from, to, replace).await?;
            let mut used = self.0.used();
            used.moved();
            if let Some(bytes) = replaced {
                used.gone(&touched.path, bytes);
            }
            Ok(())
        })
    }

    fn set<'a>(&'a self, key: &'a Key, attributes: Attributes) -> Fallible<'a, ()> {
        self.0.store.set(key, attributes)
    }

    fn is_for_drafts<'a>(&'a self, dir: &'a Key) -> Fallible<'a, bool> {
        self.0.store.is_for_drafts(dir)
    }

    fn settle(&self) -> Fallible<'_, ()> {
        self.0.store.settle()
    }
}

#[cfg(test)]
mod tests;
