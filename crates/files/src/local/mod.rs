//! The store that everything begins or ends in: a directory of this machine.
//!
//! Calls of the system block, so each runs on a thread of the runtime's blocking pool, so many at a time; whoever waits for
//! them does not block. Paths cannot lead out of the root (`disk`), and what is written is a draft until it is published
//! (`draft`).

mod draft;
mod identity;
mod lending;
mod read;

use crate::disk::{Disk, DiskFile, Entries, Links, Linux, Stat};
use crate::draft::{JOURNAL_FROM, Start, Work, is_ours};
use crate::error::Error;
use crate::key::Key;
use crate::store::{Attributes, Begun, Draft, Entry, Fallible, Kind, Listing, Meta, Object, Spec, Store};
use crate::sum::Algorithm;
use draft::{Edit, LocalDraft};
pub use identity::Identity;
use read::LocalObject;
use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Semaphore;

/// How many calls of the system a store has at work at once, unless told otherwise: enough for many short files, whose
/// opening and syncing waits for the disk, and far below what the runtime's pool has threads for (512).
pub const DISK_CALLS: usize = 64;

/// How many entries of a directory are read at a time.
const PAGE: usize = 1024;

/// A directory of this machine. Clones are the same store.
#[derive(Clone)]
pub struct Local(Arc<Inner>);

struct Inner {
    disk: Arc<Linux>,
    root: PathBuf,
    /// What new files and directories are not allowed: the process's umask.
    mask: u32,
    journal_from: u64,
    calls: Arc<Semaphore>,
    /// Whose calls they are, if not the process's.
    identity: Option<Identity>,
    /// Directories whose names changed and were not synced.
    unsynced: Mutex<BTreeSet<Key>>,
}

impl Local {
    /// The directory `root`, found as any path is; `links` says where symbolic links below it may lead.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn new(root: impl AsRef<Path>, links: Links) -> Result<Self, Error> {
        let root = root.as_ref();
        let disk = Linux::new(root, links).map_err(|error| Error::io(root.display(), "open", error))?;
        let root = std::path::absolute(root).unwrap_or_else(|_| root.to_owned());
        Ok(Self(Arc::new(Inner {
            disk: Arc::new(disk),
            root,
            mask: umask(),
            journal_from: JOURNAL_FROM,
            calls: Arc::new(Semaphore::new(DISK_CALLS)),
            identity: None,
            unsynced: Mutex::default(),
        })))
    }

    /// The same with at most `calls` calls of the system at work at once.
    pub fn with_calls(self, calls: usize) -> Self {
        self.with(|inner| inner.calls = Arc::new(Semaphore::new(calls.clamp(1, Semaphore::MAX_PERMITS))))
    }

    /// The same, where objects of at least `bytes` are continued after they were cut, and not only those of 16 MiB.
    pub fn with_journal_from(self, bytes: u64) -> Self {
        self.with(|inner| inner.journal_from = bytes)
    }

    fn with(self, change: impl FnOnce(&mut Inner)) -> Self {
        let old = &*self.0;
        let mut inner = Inner {
            disk: old.disk.clone(),
            root: old.root.clone(),
            mask: old.mask,
            journal_from: old.journal_from,
            calls: old.calls.clone(),
            identity: old.identity.clone(),
            unsynced: Mutex::default(),
        };
        change(&mut inner);
        Self(Arc::new(inner))
    }

    /// The same, where all that is done with files is done as `identity`. The root itself was opened by the process.
    pub fn acting_as(self, identity: Identity) -> Self {
        self.with(|inner| inner.identity = Some(identity))
    }

    /// The same, called `name` in errors: for those who are not to know where it is.
    pub fn called(self, name: impl Into<PathBuf>) -> Self {
        self.with(|inner| inner.root = name.into())
    }

    /// As errors call `key`: its path.
    fn label(&self, key: &Key) -> String {
        let root = self.0.root.display().to_string();
        let above = root.trim_end_matches('/');
        if key.is_root() && !root.is_empty() { root } else { format!("{above}/{key}") }
    }

    /// The error for what the system said when `act` was done to `key`.
    fn error(&self, key: &Key, act: &'static str, error: std::io::Error) -> Error {
        if error.raw_os_error() == Some(rustix::io::Errno::XDEV.raw_os_error()) && act != "rename" {
            // Those who are not to know where the root is know it as a slash.
            let root = self.0.root.display().to_string();
            return Error::Escapes { name: self.label(key), root: if root.is_empty() { "/".to_owned() } else { root } };
        }
        Error::io(self.label(key), act, error)
    }

    /// Runs `call` on a thread that may block.
    async fn run<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Self) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        // The semaphore is never closed.
        let permit = self.0.calls.clone().acquire_owned().await.ok();
        let store = self.clone();
        let done = tokio::task::spawn_blocking(move || {
            let result = match &store.0.identity {
                Some(identity) => identity
                    .act(|| call(&store))
                    .unwrap_or_else(|error| Err(Error::io(store.0.root.display(), "become the user of", error))),
                None => call(&store),
            };
            drop(permit);
            result
        });
        done.await
            .unwrap_or_else(|error| Err(Error::io(self.0.root.display(), "work in", std::io::Error::other(error))))
    }

    /// The same for a call about `key` that does one thing.
    async fn call<T: Send + 'static>(
        &self,
        key: &Key,
        act: &'static str,
        call: impl FnOnce(&Linux, &Key) -> std::io::Result<T> + Send + 'static,
    ) -> Result<T, Error> {
        let key = key.clone();
        self.run(move |store| call(&store.0.disk, &key).map_err(|error| store.error(&key, act, error))).await
    }

    /// Remembers that names in `dir` changed.
    fn changed(&self, dir: Key) {
        self.0.unsynced.lock().unwrap_or_else(PoisonError::into_inner).insert(dir);
    }
}

impl Store for Local {
    fn name(&self) -> String {
        format!("file://{}", self.0.root.display().to_string().trim_end_matches('/'))
    }

    fn is_far(&self) -> bool {
        false
    }

    fn algorithms(&self) -> &[Algorithm] {
        &Algorithm::ALL
    }

    fn stat<'a>(&'a self, key: &'a Key) -> Fallible<'a, Meta> {
        Box::pin(async move { Ok(meta_of(&self.call(key, "look at", |disk, key| disk.stat(key, true)).await?)) })
    }

    fn list<'a>(&'a self, key: &'a Key) -> Fallible<'a, Box<dyn Listing>> {
        Box::pin(async move {
            let entries = self.call(key, "list", Linux::entries).await?;
            Ok(Box::new(LocalListing { store: self.clone(), key: key.clone(), entries: Some(entries) }) as _)
        })
    }

    fn open<'a>(&'a self, key: &'a Key) -> Fallible<'a, Arc<dyn Object>> {
        Box::pin(async move {
            let opened = self.call(key, "open", |disk, key| {
                let file = disk.open(key)?;
                Ok((file.stat()?, file))
            });
            let (stat, file) = opened.await?;
            match stat.kind {
                Kind::File | Kind::Device => Ok(Arc::new(LocalObject::new(self.clone(), key.clone(), file, stat)) as _),
                kind => Err(Error::Kind { name: self.label(key), is: kind.described(), expected: "a file" }),
            }
        })
    }

    fn create<'a>(&'a self, key: &'a Key, mut spec: Spec) -> Fallible<'a, Begun> {
        Box::pin(async move {
            let found = self.call(key, "look at", |disk, key| match disk.stat(key, true) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
                other => other.map(Some),
            });
            if found.await?.is_some_and(|stat| stat.kind == Kind::Device) {
                return Ok(Begun::Draft(self.edit(key).await?));
            }
            spec.attributes.mode.get_or_insert(0o666 & !self.0.mask);
            let key = key.clone();
            let start = self.run(move |store| {
                Work::begin(&store.0.disk, &key, store.label(&key), spec, store.0.journal_from)
                    .map(|start| (key, start))
            });
            Ok(match start.await? {
                (key, Start::Work(work)) => {
                    Begun::Draft(Arc::new(LocalDraft { store: self.clone(), dir: key.parent(), work: Arc::from(work) }))
                }
                (_, Start::Done) => Begun::Done,
            })
        })
    }

    fn edit<'a>(&'a self, key: &'a Key) -> Fallible<'a, Arc<dyn Draft>> {
        Box::pin(async move {
            let mode = 0o666 & !self.0.mask;
            let opened = self.call(key, "open", move |disk, key| {
                let file = match disk.edit(key) {
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => disk.create(key, mode)?,
                    other => other?,
                };
                Ok((file.stat()?.kind, file))
            });
            let (kind, file) = opened.await?;
            if !matches!(kind, Kind::File | Kind::Device) {
                return Err(Error::Kind { name: self.label(key), is: kind.described(), expected: "a file" });
            }
            self.changed(key.parent());
            Ok(Arc::new(Edit::new(self.clone(), self.label(key), file, kind)) as _)
        })
    }

    fn make_dir<'a>(&'a self, key: &'a Key) -> Fallible<'a, ()> {
        Box::pin(async move {
            let mode = 0o777 & !self.0.mask;
            self.call(key, "make the directory", move |disk, key| disk.make_dir(key, mode)).await?;
            self.changed(key.parent());
            Ok(())
        })
    }

    fn remove<'a>(&'a self, key: &'a Key) -> Fallible<'a, ()> {
        Box::pin(async move {
            self.call(key, "remove", |disk, key| disk.unlink(key)).await?;
            self.changed(key.parent());
            Ok(())
        })
    }

    fn remove_dir<'a>(&'a self, key: &'a Key) -> Fallible<'a, ()> {
        Box::pin(async move {
            self.call(key, "remove the directory", Linux::remove_dir).await?;
            self.changed(key.parent());
            Ok(())
        })
    }

    fn rename<'a>(&'a self, from: &'a Key, to: &'a Key, replace: bool) -> Fallible<'a, ()> {
        Box::pin(async move {
            let new = to.clone();
            self.call(from, "rename", move |disk, from| disk.rename(from, &new, replace)).await?;
            self.changed(from.parent());
            self.changed(to.parent());
            Ok(())
        })
    }

    fn set<'a>(&'a self, key: &'a Key, attributes: Attributes) -> Fallible<'a, ()> {
        Box::pin(self.call(key, "set times and mode of", move |disk, key| disk.set(key, &attributes)))
    }

    fn settle(&self) -> Fallible<'_, ()> {
        Box::pin(async move {
            let dirs = std::mem::take(&mut *self.0.unsynced.lock().unwrap_or_else(PoisonError::into_inner));
            for dir in dirs {
                let synced = self.call(&dir, "sync the directory", |disk, dir| match disk.sync_dir(dir) {
                    // One that was removed since is synced with its parent.
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
                    other => other,
                });
                if let Err(error) = synced.await {
                    self.changed(dir);
                    return Err(error);
                }
            }
            Ok(())
        })
    }
}

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Local").field(&self.0.root).finish()
    }
}

struct LocalListing {
    store: Local,
    key: Key,
    /// None while they are being read, and for ever if that was given up.
    entries: Option<Entries>,
}

impl Listing for LocalListing {
    fn more(&mut self) -> Fallible<'_, Vec<Entry>> {
        Box::pin(async move {
            let Some(mut entries) = self.entries.take() else {
                return Err(Error::Unsupported {
                    name: self.store.label(&self.key),
                    what: "listing after it was given up",
                });
            };
            let read = self.store.call(&self.key, "list", move |_, _| {
                let mut page = Vec::new();
                while page.len() < PAGE {
                    let Some(entry) = entries.next() else { break };
                    let (name, stat) = entry?;
                    if !is_ours(&name) {
                        page.push(Entry { name, meta: meta_of(&stat) });
                    }
                }
                Ok((page, entries))
            });
            let (page, entries) = read.await?;
            self.entries = Some(entries);
            Ok(page)
        })
    }
}

impl fmt::Debug for LocalListing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LocalListing").field(&self.key).finish()
    }
}

fn meta_of(stat: &Stat) -> Meta {
    let size = (stat.kind == Kind::File).then_some(stat.size);
    Meta {
        kind: stat.kind,
        size,
        modified: Some(stat.modified),
        mode: Some(stat.mode),
        sparse: stat.kind == Kind::File && stat.sparse,
    }
}

/// The process's umask, which can only be read without changing it from `/proc`; the usual one where that is not mounted.
fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    line.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok()).unwrap_or(0o022)
}
