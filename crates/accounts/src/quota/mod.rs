//! Quotas: limits on what a user has below a root.
//!
//! What counts is what `find` shows: each file and directory below the root is one file, and the bytes are the lengths
//! of regular files, whoever put them there, including resumable drafts. The tree is counted before the first write,
//! again after ten minutes, before a refusal if the last count is older than five seconds, and after changes whose
//! effect is unknown. In between, this server's changes are added and subtracted. Counting takes at most a tenth of the
//! time. An upload reserves space at its beginning if its length is announced, and otherwise as it arrives. A replaced
//! file counts until it is replaced, and a resumed draft until the resumption is certain. In doubt, as during a count,
//! files count.
//!
//! The process itself counts, since users could hide files from their own account in unreadable directories. Everything
//! else is done as the user. Directories of other users that the process may not read, as on NFS where root counts as
//! nobody, do not count; the log says so.
//!
//! Prefer quotas of the file system where they exist: they need no counting, and they apply to all processes.

mod claim;
mod counted;
mod fill;
mod used;

use claim::Claim;
use counted::counted;
use fill::{QuotaDraft, QuotaEdit};
use phoebus_files::key::Key;
use phoebus_files::local::Local;
use phoebus_files::store::{
    Attributes, Begun, Bounded, Boxed, Draft, Fallible, Listing, Meta, Object, Spec, Store, ThreadStore, Time,
};
use phoebus_files::sum::Algorithm;
use phoebus_files::{Error, ErrorKind, draft_of};
use phoebus_proto::units::ByteSize;
use serde::Deserialize;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;
use used::{Touched, Used};

/// A user's limits. `None`: no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table such as { bytes = \"10GB\", files = 100000 }")]
pub struct Quota {
    /// Bytes of all files.
    pub bytes: Option<ByteSize>,
    /// Number of files and directories.
    pub files: Option<u64>,
}

/// A store within a quota.
#[derive(Debug, Clone)]
pub struct Limited(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Local,
    /// The store's directory: the counted root, or below.
    base: PathBuf,
    /// The counted root.
    root: PathBuf,
    /// Its device and inode when it was opened.
    id: Option<(u64, u64)>,
    quota: Quota,
    used: Arc<Mutex<Used>>,
    /// Held during a count.
    counting: Arc<tokio::sync::Mutex<()>>,
}

impl Limited {
    /// A store within `quota`. Shares the count of `before` if that has the same directory.
    pub fn new(store: Local, root: &Path, quota: Quota, before: Option<&Self>) -> Self {
        let id = std::fs::metadata(root).ok().map(|meta| (meta.dev(), meta.ino()));
        let before = before.filter(|before| before.0.root == root && before.0.id == id);
        let (used, counting) =
            before.map_or_else(Default::default, |before| (before.0.used.clone(), before.0.counting.clone()));
        let (base, root) = (root.to_owned(), root.to_owned());
        Self(Arc::new(Inner { store, base, root, id, quota, used, counting }))
    }

    /// The same over another `store` of the same directory.
    pub fn of(&self, store: Local) -> Self {
        self.at(store, self.0.base.clone())
    }

    /// The same over `store`, which is the directory `base` at or below the root.
    fn at(&self, store: Local, base: PathBuf) -> Self {
        let Inner { root, id, quota, used, counting, .. } = &*self.0;
        let (root, id, quota, used, counting) = (root.clone(), *id, *quota, used.clone(), counting.clone());
        Self(Arc::new(Inner { store, base, root, id, quota, used, counting }))
    }

    /// Whether there is space for `bytes` of a file with an unknown name. It may be a cut upload, whose draft of that
    /// length would be resumed. The upload itself is checked again.
    ///
    /// # Errors
    /// There is no space, or the tree cannot be counted.
    pub async fn room(&self, bytes: u64) -> Result<(), Error> {
        self.0.count().await?;
        let resumed = self.0.used().draft_lengths.contains(&bytes).then_some(bytes);
        self.0.claim(bytes, 0, resumed).await.map(drop)
    }
}

impl Inner {
    fn used(&self) -> MutexGuard<'_, Used> {
        used::lock(&self.used)
    }

    fn path(&self, key: &Key) -> PathBuf {
        self.base.join(OsStr::from_bytes(key.as_bytes()))
    }

    /// Announces a change of the name, before it is looked at.
    fn touch(&self, key: &Key) -> Touched {
        Touched::new(&self.used, self.path(key))
    }

    /// Reserves space as [`Claim::new`]. Counts again before a refusal, if the last count is old.
    async fn claim(self: &Arc<Self>, bytes: u64, files: u64, instead: Option<u64>) -> Result<Claim, Error> {
        if let Ok(claim) = Claim::new(self, bytes, files, instead) {
            return Ok(claim);
        }
        self.count().await?;
        Claim::new(self, bytes, files, instead)
    }

    /// Counts, unless the last count is valid.
    async fn count(&self) -> Result<(), Error> {
        let alone = self.counting.clone().lock_owned().await;
        if self.used().holds(Instant::now()) {
            return Ok(());
        }
        let (root, used) = (self.root.clone(), self.used.clone());
        // The client may be gone before the end. Then nobody else starts another count meanwhile.
        let counted = tokio::task::spawn_blocking(move || {
            let _alone = alone;
            used::lock(&used).begin();
            let begun = Instant::now();
            let count = counted(&root, &used)?;
            let mut used = used::lock(&used);
            used.found_drafts(count.draft_lengths);
            used.end((count.bytes, count.files), begun.elapsed());
            let was_partial = std::mem::replace(&mut used.is_partial, count.unknown.is_some());
            drop(used);
            if let Some((path, error)) = count.unknown.filter(|_| !was_partial) {
                let why = io::Error::from(error);
                tracing::warn!(?root, ?path, %why, "a quota does not count what is in directories that cannot be read");
            }
            Ok(())
        });
        let counted = counted.await.unwrap_or_else(|_| Err(io::ErrorKind::Interrupted.into()));
        counted.map_err(|source| Error::Io { name: "/".to_owned(), act: "count what is in", source })
    }

    fn over(&self, what: &str, most: String) -> Error {
        let reason = format!("the quota of {most} for {what} is used up");
        Error::Store { name: "quota".to_owned(), reason, kind: ErrorKind::NoSpace }
    }

    /// Metadata of a name itself, as the count sees it.
    async fn there(&self, key: &Key) -> Option<u64> {
        // What cannot be looked at cannot be changed either.
        let meta = self.store.itself(key).await.ok()??;
        Some(meta.size.unwrap_or(0))
    }

    /// Runs `removal` of the file `key`, and subtracts it.
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
            let _claim = self.0.claim(0, u64::from(replaced.is_none()), None).await?;
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
            // The earlier draft counts until this one has taken it over.
            let left = match (&usual, &touched) {
                (Some(usual), Some(touched)) if !self.0.used().drafts.contains(&touched.path) => {
                    self.0.there(usual).await
                }
                _ => None,
            };
            // In directories where others make names, only the store finds a draft.
            let dir = key.parent();
            let found = match spec.size.filter(|size| left.is_none() && self.0.used().draft_lengths.contains(size)) {
                Some(size) if !self.0.store.is_for_drafts(&dir).await.unwrap_or(true) => Some(size),
                _ => None,
            };
            let claim = self.0.claim(spec.size.unwrap_or(0), 1, left.or(found)).await;
            let is_written = || touched.as_ref().is_some_and(|touched| self.0.used().drafts.contains(&touched.path));
            let claim = claim.map_err(|error| match is_written() {
                // The draft has its own reservation.
                true => Error::Busy { name: format!("/{key}") },
                false => error,
            })?;
            let begun = self.0.store.create(&key, spec).await;
            let Ok(Begun::Draft(draft)) = begun else {
                // The existing file may have been removed first.
                left.iter().for_each(|_| self.0.used().doubt());
                return begun;
            };
            let at = draft.capabilities().place;
            let mut old = left.zip(touched.as_ref()).map(|(bytes, touched)| (touched.path.clone(), bytes));
            let mut found = None;
            if at != usual {
                if let Some(usual) = usual.as_ref().filter(|_| old.is_some())
                    && self.0.there(usual).await.is_some()
                {
                    old = None;
                }
                if let Some(at) = at.as_ref().filter(|_| !draft.kept().is_empty() && old.is_none()) {
                    // It keeps its length: a resuming client knows the size.
                    found = Some(self.0.touch(at));
                    old = self.0.there(at).await.map(|bytes| (self.0.path(at), bytes));
                }
            }
            let taken = claim.is_in(at.map(|at| self.0.path(&at)), old);
            drop(found);
            let filling = Bounded::new(draft, QuotaDraft { claim, key });
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
            let claim = self.0.claim(0, u64::from(there.is_none()), None).await?;
            let draft = self.0.store.edit(key).await?;
            // What it has is counted already.
            let had = there.unwrap_or(0);
            Ok(Arc::new(Bounded::new(draft, QuotaEdit { had, claim })) as _)
        })
    }

    fn append<'a>(&'a self, key: &'a Key) -> Fallible<'a, (Arc<dyn Draft>, u64)> {
        Box::pin(async move {
            self.0.count().await?;
            let is_new = self.0.there(key).await.is_none();
            let claim = self.0.claim(0, u64::from(is_new), None).await?;
            let (draft, had) = self.0.store.append(key).await?;
            Ok((Arc::new(Bounded::new(draft, QuotaEdit { had, claim })) as _, had))
        })
    }

    fn make_dir<'a>(&'a self, key: &'a Key) -> Fallible<'a, ()> {
        Box::pin(async move {
            self.0.count().await?;
            let _claim = self.0.claim(0, 1, None).await?;
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
            let to = &self.0.store.renamed_to(from, to).await?;
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

    fn stat_to_write<'a>(&'a self, key: &'a Key) -> Fallible<'a, Meta> {
        self.0.store.stat_to_write(key)
    }

    fn on_this_thread(&self) -> Option<Arc<dyn ThreadStore>> {
        Some(Arc::new(self.at(self.0.store.here(), self.0.base.clone())))
    }

    fn note_draft_dir(&self, dir: &Key) {
        self.0.store.note_draft_dir(dir);
    }

    fn remove_draft_dirs(&self) -> Boxed<'_, ()> {
        self.0.store.remove_draft_dirs()
    }

    fn settle(&self) -> Fallible<'_, ()> {
        self.0.store.settle()
    }
}

impl ThreadStore for Limited {
    fn sync_drafts(&self) -> bool {
        self.0.store.sync_drafts()
    }
}

#[cfg(test)]
mod tests;
