//! The store that everything begins or ends in: a directory of this machine.
//!
//! Calls of the system block, so each runs on a thread of the runtime's blocking pool, so many at a time; whoever waits for
//! them does not block. Paths cannot lead out of the root (`disk`), and what is written is a draft until it is published
//! (`draft`).

mod draft;
mod lending;
mod read;
mod rename;
mod turns;

use crate::disk::{Disk, DiskFile, Entries, Links, Linux, LinuxFile, Stat};
use crate::draft::{JOURNAL_FROM, Start, Work, draft_beside, draft_home, hash, is_draft, is_ours, is_part, link_part};
use crate::error::{Error, Sort};
pub use crate::identity::Identity;
use crate::key::Key;
use crate::range::Extent;
use crate::store::{
    Attributes, Begun, Boxed, Draft, Entry, Fallible, FileId, Kind, Listing, Meta, Object, Spec, Store, Time,
};
use crate::sum::{Algorithm, Hasher, Sum};
pub use crate::user_file::UserFile;
use draft::{Edit, LocalDraft};
use read::LocalObject;
use rename::{leave_other_link, release};
use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Semaphore;
pub use turns::{STEP as CHECKSUM_STEP, Share, Turns, at_once as checksums_at_once};

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
    /// The name of the directory that drafts have beside each destination, if they have one.
    partial_dir: Option<Key>,
    calls: Arc<Semaphore>,
    /// When one of them may compute a step of a checksum of a whole file.
    checksums: Share,
    /// Whose calls they are, if not the process's.
    identity: Option<Arc<Identity>>,
    /// Directories whose names changed and were not synced.
    unsynced: Mutex<BTreeSet<Key>>,
    /// Directories in which drafts are.
    partial_dirs: Mutex<BTreeSet<Key>>,
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
            partial_dir: None,
            calls: Arc::new(Semaphore::new(DISK_CALLS)),
            checksums: Share::default(),
            identity: None,
            unsynced: Mutex::default(),
            partial_dirs: Mutex::default(),
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

    /// The same, where drafts are in a directory of this name beside each destination, which is made when it is needed and removed when
    /// the store is [settled](Store::settle) and nothing is in it. It has one component.
    pub fn with_partial_dir(self, name: Key) -> Self {
        self.with(|inner| inner.partial_dir = Some(name))
    }

    fn with(self, change: impl FnOnce(&mut Inner)) -> Self {
        let old = &*self.0;
        let mut inner = Inner {
            disk: old.disk.clone(),
            root: old.root.clone(),
            mask: old.mask,
            journal_from: old.journal_from,
            partial_dir: old.partial_dir.clone(),
            calls: old.calls.clone(),
            checksums: old.checksums.clone(),
            identity: old.identity.clone(),
            unsynced: Mutex::default(),
            partial_dirs: Mutex::default(),
        };
        change(&mut inner);
        Self(Arc::new(inner))
    }

    /// The same, where all that is done with files is done as `identity`. The root itself was opened by the process.
    pub fn acting_as(self, identity: Identity) -> Self {
        self.with(|inner| inner.identity = Some(Arc::new(identity)))
    }

    /// The same, where checksums of whole files are computed by this share of turns.
    pub fn with_checksums(self, share: Share) -> Self {
        self.with(|inner| inner.checksums = share)
    }

    /// The same, called `name` in errors: for those who are not to know where it is.
    pub fn called(self, name: impl Into<PathBuf>) -> Self {
        self.with(|inner| inner.root = name.into())
    }

    /// What `key` is itself, where a link is a link; none if nothing has that name.
    ///
    /// # Errors
    /// It cannot be looked at.
    pub async fn itself(&self, key: &Key) -> Result<Option<Meta>, Error> {
        let found = self.call(key, "look at", |disk, key| match disk.stat(key, false) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            other => other.map(Some),
        });
        Ok(found.await?.as_ref().map(meta_of))
    }

    /// What is written where `key` is: what it leads to, if it is a symbolic link, and otherwise itself.
    ///
    /// # Errors
    /// It leads nowhere, or out of the store, or somebody else has made it where others can.
    pub async fn resolve(&self, key: &Key) -> Result<Key, Error> {
        if self.itself(key).await?.is_none_or(|meta| meta.kind != Kind::Link) {
            return Ok(key.clone());
        }
        let lost = |is| Error::Kind { name: self.label(key), is, expected: "a file" };
        match self.call(key, "follow", Linux::target).await {
            Ok(Some(target)) => Ok(target),
            Ok(None) => Err(lost("a symbolic link that leads out of the directory that is written to")),
            Err(Error::NotFound { .. }) => Err(lost("a symbolic link that leads nowhere")),
            Err(error) => Err(error),
        }
    }

    /// Refuses to write bytes to `key`, which is of this `kind`, where it stands.
    fn takes_bytes(&self, key: &Key, kind: Kind) -> Result<(), Error> {
        match kind {
            Kind::File | Kind::Device => Ok(()),
            kind => Err(Error::Kind { name: self.label(key), is: kind.described(), expected: "a file" }),
        }
    }

    /// See [`Store::confined`].
    ///
    /// # Errors
    /// It cannot be opened.
    pub async fn beneath(&self, dir: &Key) -> Result<Self, Error> {
        let disk = self.call(dir, "open", Linux::confined).await?;
        let root = PathBuf::from(self.label(dir));
        Ok(self.clone().with(|inner| (inner.disk, inner.root) = (Arc::new(disk), root)))
    }

    /// What drafts of `key` are beside of, in a directory that is there, and in which nobody else can give names.
    fn draft_home(&self, key: &Key) -> Result<Key, Error> {
        let home = draft_home(key, self.0.partial_dir.as_ref())
            .map_err(|error| Error::io(self.label(key), "name the draft of", std::io::Error::other(error)))?;
        if home == *key {
            return Ok(home);
        }
        let (disk, dir) = (&self.0.disk, home.parent());
        let failed = |act, error| self.error(&home.parent(), act, error);
        match disk.make_dir(&dir, 0o700) {
            Ok(()) => {
                self.changed(key.parent());
                // Refused or not, it goes again once nothing is in it.
                self.note_draft_dir(&dir);
            }
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed("make the directory for drafts", error)),
        }
        let (there, above) = (disk.stat(&dir, false), disk.stat(&key.parent(), true));
        let (there, above) = (there.map_err(|e| failed("look at", e))?, above.map_err(|e| failed("look at", e))?);
        let refused = |reason: &str| {
            let reason = format!("drafts cannot be there: {reason}");
            Err(Error::Store { name: self.label(&dir), reason, sort: Sort::Denied })
        };
        if there.kind != Kind::Dir || there.device != above.device {
            return refused("it has to be a directory of the file system that their files are to be on");
        }
        // Who can give names there could have his file published in the place of the draft.
        if disk.is_shared(&dir).map_err(|e| failed("look at", e))? {
            return refused("it has to be one's own or root's, and nobody else may write to it");
        }
        self.note_draft_dir(&dir);
        Ok(home)
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

    /// The checksum of `extent` of `file`, which errors call `name`, computed in steps: between any two of them others have their turn, and
    /// when the future is dropped no further one begins.
    async fn checksum(
        &self,
        (name, act): (&str, &'static str),
        file: &LinuxFile,
        algorithm: Algorithm,
        extent: Extent,
    ) -> Result<Sum, Error> {
        let mut hasher = Hasher::new(algorithm);
        let (mut at, most) = (extent.start(), self.0.checksums.step().max(1));
        while let Some(rest) = Extent::between(at, extent.end()).filter(|rest| !rest.is_empty()) {
            let turn = self.0.checksums.turn().await;
            let file = file.clone();
            let hashed = self.run(move |_| {
                let _turn = turn;
                Ok(hash(&mut hasher, &file, rest, most).map(|next| (hasher, next)))
            });
            (hasher, at) = hashed.await?.map_err(|error| Error::io(name, act, error))?;
        }
        Ok(hasher.finish())
    }

    /// What is in a directory, and with `drafts` those, too.
    async fn listing(&self, key: &Key, drafts: bool) -> Result<Box<dyn Listing>, Error> {
        let entries = self.call(key, "list", Linux::entries).await?;
        Ok(Box::new(LocalListing { store: self.clone(), key: key.clone(), entries: Some(entries), drafts }))
    }

    /// `file` for those who use it by themselves, as the user of this store.
    fn user_file(&self, file: &LinuxFile) -> UserFile {
        UserFile::new(file.0.clone(), self.0.identity.clone())
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

    fn stat_to_write<'a>(&'a self, key: &'a Key) -> Fallible<'a, Meta> {
        Box::pin(async move { Ok(meta_of(&self.call(key, "follow", Linux::stat_to_write).await?)) })
    }

    fn stat_link<'a>(&'a self, key: &'a Key) -> Fallible<'a, Meta> {
        Box::pin(async move { Ok(meta_of(&self.call(key, "look at", |disk, key| disk.stat(key, false)).await?)) })
    }

    fn has_links(&self) -> bool {
        true
    }

    fn read_link<'a>(&'a self, key: &'a Key) -> Fallible<'a, Vec<u8>> {
        Box::pin(self.call(key, "read the symbolic link", Linux::read_link))
    }

    fn make_link<'a>(
        &'a self,
        key: &'a Key,
        target: &'a [u8],
        modified: Option<Time>,
        replace: bool,
    ) -> Fallible<'a, ()> {
        Box::pin(async move {
            let target = target.to_vec();
            let made = self.call(key, "make the symbolic link", move |disk, key| {
                // A link takes another's place as a file does: it is made under a hidden name and renamed. Nobody knows that name
                // beforehand, since where others can make names they could have it first, or change what has it.
                let part = link_part(key)?;
                disk.make_link(&part, &target)?;
                let set = modified.map_or(Ok(()), |time| disk.set_link(&part, time));
                set.and_then(|()| disk.rename(&part, key, replace)).inspect_err(|_| drop(disk.unlink(&part)))
            });
            made.await?;
            self.changed(key.parent());
            Ok(())
        })
    }

    fn confined<'a>(&'a self, dir: &'a Key) -> Fallible<'a, Option<Arc<dyn Store>>> {
        Box::pin(async move { Ok(Some(Arc::new(self.beneath(dir).await?) as Arc<dyn Store>)) })
    }

    fn list<'a>(&'a self, key: &'a Key) -> Fallible<'a, Box<dyn Listing>> {
        Box::pin(self.listing(key, false))
    }

    fn list_all<'a>(&'a self, key: &'a Key) -> Fallible<'a, Box<dyn Listing>> {
        Box::pin(self.listing(key, true))
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

    fn create<'a>(&'a self, key: &'a Key, spec: Spec) -> Fallible<'a, Begun> {
        Box::pin(async move {
            let itself = self.itself(key).await?.map(|meta| meta.kind);
            let is = match itself {
                Some(Kind::Link) => self.stat(key).await.ok().map(|meta| meta.kind),
                kind => kind,
            };
            if is == Some(Kind::Device) {
                return Ok(Begun::Draft(self.edit(key).await?));
            }
            let key = if itself == Some(Kind::Link) { self.resolve(key).await? } else { key.clone() };
            let mode = spec.at_most.map_or(0o666, |mode| mode & 0o777) & !self.0.mask;
            let start = self.run(move |store| {
                let named = (store.label(&key), mode);
                let home = store.draft_home(&key)?;
                let begin =
                    |spec: Spec| Work::begin(&store.0.disk, (&key, &home), named.clone(), spec, store.0.journal_from);
                let start = match begin(spec.clone()) {
                    // Another process has removed the directory, in which nothing was.
                    Err(error) if home != key && error.sort() == Sort::NotFound => {
                        store.draft_home(&key)?;
                        begin(spec)
                    }
                    start => start,
                };
                start.map(|start| (key, start))
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
            let place = key.clone();
            let opened = self.run(move |store| {
                let (disk, key) = (&store.0.disk, &place);
                let failed = |error| store.error(key, "open", error);
                // Whoever reads a pipe is not to see that it was opened.
                let file = match disk.stat_to_write(key) {
                    Ok(there) => {
                        store.takes_bytes(key, there.kind)?;
                        disk.edit(key)
                    }
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => disk.create(key, mode),
                    Err(error) => Err(error),
                };
                let file = file.map_err(failed)?;
                let kind = file.stat().map_err(failed)?.kind;
                store.takes_bytes(key, kind)?;
                Ok((kind, file))
            });
            let (kind, file) = opened.await?;
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

    fn discard<'a>(&'a self, key: &'a Key, before: Option<Time>) -> Fallible<'a, ()> {
        Box::pin(async move {
            let draft = draft_beside(key);
            let gone = self.call(key, "remove", move |disk, key| disk.discard(key, draft.as_ref(), before));
            if !gone.await? {
                return Err(Error::Busy { name: self.label(key) });
            }
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
            let (new, mask) = (to.clone(), self.0.mask);
            let renamed = self.call(from, "rename", move |disk, from| {
                // Who can give names beside the draft of a client could have his own file published in its place.
                if is_draft(from.name()) && from.parent() != new.parent() && disk.is_shared(&from.parent())? {
                    let why = "it is a draft in a directory that others may write to";
                    return Err(std::io::Error::new(std::io::ErrorKind::PermissionDenied, why));
                }
                let held = if is_part(new.name()) { None } else { release(disk, from, &new, mask)? };
                // What keeps its name is as private as it was.
                disk.rename(from, &new, replace).inspect_err(|_| drop(held.map(|file| file.hold())))?;
                if replace { leave_other_link(disk, from, &new) } else { Ok(()) }
            });
            renamed.await.map_err(|error| match error {
                // For this the system has no words of its own.
                Error::Io { source, .. } if replace && source.kind() == std::io::ErrorKind::InvalidInput => {
                    Error::IntoItself { name: self.label(from), to: self.label(to) }
                }
                error => error,
            })?;
            self.changed(from.parent());
            self.changed(to.parent());
            Ok(())
        })
    }

    fn set<'a>(&'a self, key: &'a Key, attributes: Attributes) -> Fallible<'a, ()> {
        let key = key.clone();
        Box::pin(self.run(move |store| {
            let (disk, failed) = (&store.0.disk, |error| store.error(&key, "set times and mode of", error));
            let kind = disk.stat_to_write(&key).map_err(failed)?.kind;
            if !matches!(kind, Kind::File | Kind::Dir) {
                return Err(Error::Kind {
                    name: store.label(&key),
                    is: kind.described(),
                    expected: "a file or a directory",
                });
            }
            disk.set(&key, &attributes).map_err(failed)
        }))
    }

    fn is_for_drafts<'a>(&'a self, dir: &'a Key) -> Fallible<'a, bool> {
        Box::pin(
            self.call(
                dir,
                "look at",
                |disk, dir| Ok(disk.stat(dir, false)?.kind == Kind::Dir && !disk.is_shared(dir)?),
            ),
        )
    }

    fn note_draft_dir(&self, dir: &Key) {
        self.0.partial_dirs.lock().unwrap_or_else(PoisonError::into_inner).insert(dir.clone());
    }

    fn remove_draft_dirs(&self) -> Boxed<'_, ()> {
        Box::pin(async move {
            let used = std::mem::take(&mut *self.0.partial_dirs.lock().unwrap_or_else(PoisonError::into_inner));
            for dir in used {
                // With a draft in it, it stays.
                if self.call(&dir, "remove the directory", Linux::remove_dir).await.is_ok() {
                    self.changed(dir.parent());
                }
            }
        })
    }

    fn settle(&self) -> Fallible<'_, ()> {
        Box::pin(async move {
            let dirs = std::mem::take(&mut *self.0.unsynced.lock().unwrap_or_else(PoisonError::into_inner));
            let mut dirs = dirs.into_iter();
            while let Some(dir) = dirs.next() {
                let synced = self.call(&dir, "sync the directory", |disk, dir| match disk.sync_dir(dir) {
                    // One that was removed since is synced with its parent.
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
                    other => other,
                });
                if let Err(error) = synced.await {
                    // What is not synced is for whoever asks next.
                    std::iter::once(dir).chain(dirs).for_each(|dir| self.changed(dir));
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
    /// Whether drafts are among what is given.
    drafts: bool,
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
            let drafts = self.drafts;
            let read = self.store.call(&self.key, "list", move |_, _| {
                let mut page = Vec::new();
                while page.len() < PAGE {
                    let Some(entry) = entries.next() else { break };
                    let (name, stat) = entry?;
                    if drafts || !is_ours(&name) {
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
        identity: Some(FileId { device: stat.device, number: stat.id, links: stat.links, changed: stat.changed }),
    }
}

/// What of the permissions `mode` new things get by the process's umask.
pub fn unmasked(mode: u32) -> u32 {
    mode & 0o777 & !umask()
}

/// The process's umask, which can only be read without changing it from `/proc`; the usual one where that is not mounted.
fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    line.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok()).unwrap_or(0o022)
}
