//! The store of a local directory.
//!
//! System calls block, so each runs on a thread of the runtime's blocking pool, within a limit; those for many short
//! files all run on one such thread (`calls`). Paths cannot leave the
//! root (`disk`), and files are drafts until they are published (`draft`).

mod as_store;
mod calls;
mod draft;
mod lending;
mod listing;
mod read;
mod rename;
mod turns;
mod unsynced;

use crate::disk::{Disk, Links, Linux, LinuxFile, Stat};
use crate::draft::{JOURNAL_FROM, draft_home, hash, is_part};
use crate::error::{Error, ErrorKind};
pub use crate::identity::Identity;
use crate::key::Key;
use crate::range::Extent;
use crate::store::{FileId, Kind, Meta, Store};
use crate::sum::{Algorithm, Hasher, Sum};
pub use crate::user_file::UserFile;
use calls::Calls;
use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Semaphore;
pub use turns::{STEP as CHECKSUM_STEP, Share, Turn, Turns, at_once as checksums_at_once};

/// Default limit of concurrent system calls: enough for many short files, whose opening and syncing waits for the disk,
/// and far below the runtime's threads (512).
pub const DISK_CALLS: usize = 64;

/// A local directory. Clones are the same store.
#[derive(Clone)]
pub struct Local(Arc<Inner>, Calls);

struct Inner {
    disk: Arc<Linux>,
    root: PathBuf,
    /// The process's umask.
    mask: u32,
    journal_from: u64,
    /// Name of the directory for drafts beside each destination, if they have one.
    partial_dir: Option<Key>,
    calls: Arc<Semaphore>,
    /// Scheduler of checksum steps.
    checksums: Share,
    /// The user of the calls, if not the process's.
    identity: Option<Arc<Identity>>,
    /// Directories with unsynced changes of names.
    unsynced: Mutex<BTreeSet<Key>>,
    /// Held while they are synced.
    settling: tokio::sync::Mutex<()>,
    /// Directories for drafts.
    partial_dirs: Mutex<BTreeSet<Key>>,
}

impl Local {
    /// The directory `root`. `links` says where symbolic links below it may lead.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn new(root: impl AsRef<Path>, links: Links) -> Result<Self, Error> {
        let root = root.as_ref();
        let disk = Linux::new(root, links).map_err(|error| Error::io(root.display(), "open", error))?;
        let root = std::path::absolute(root).unwrap_or_else(|_| root.to_owned());
        let inner = Inner {
            disk: Arc::new(disk),
            root,
            mask: umask(),
            journal_from: JOURNAL_FROM,
            partial_dir: None,
            calls: Arc::new(Semaphore::new(DISK_CALLS)),
            checksums: Share::default(),
            identity: None,
            unsynced: Mutex::default(),
            settling: tokio::sync::Mutex::default(),
            partial_dirs: Mutex::default(),
        };
        Ok(Self(Arc::new(inner), Calls::Pool))
    }

    /// The same with at most `calls` concurrent system calls.
    pub fn with_calls(self, calls: usize) -> Self {
        self.with(|inner| inner.calls = Arc::new(Semaphore::new(calls.clamp(1, Semaphore::MAX_PERMITS))))
    }

    /// The same, where objects of at least `bytes` can be resumed, instead of 16 MiB.
    pub fn with_journal_from(self, bytes: u64) -> Self {
        self.with(|inner| inner.journal_from = bytes)
    }

    /// The same, with drafts in a directory of this name, one component, beside each destination. It is created on
    /// demand, and removed when the store is [settled](Store::settle) if it is empty.
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
            settling: tokio::sync::Mutex::default(),
            partial_dirs: Mutex::default(),
        };
        change(&mut inner);
        Self(Arc::new(inner), Calls::Pool)
    }

    /// The same, acting as `identity`. The process itself has opened the root.
    pub fn acting_as(self, identity: Identity) -> Self {
        self.with(|inner| inner.identity = Some(Arc::new(identity)))
    }

    /// The same for work on the current thread ([`Store::on_this_thread`]).
    pub fn here(&self) -> Self {
        Self(self.0.clone(), Calls::here())
    }

    /// The share of the checksum scheduler.
    pub fn checksums(&self) -> &Share {
        &self.0.checksums
    }

    /// The same, with this share of the checksum scheduler.
    pub fn with_checksums(self, share: Share) -> Self {
        self.with(|inner| inner.checksums = share)
    }

    /// The same, called `name` in errors, for users who may not know its path.
    pub fn called(self, name: impl Into<PathBuf>) -> Self {
        self.with(|inner| inner.root = name.into())
    }

    /// Metadata of `key` itself, not of a link's target. `None` if it does not exist.
    ///
    /// # Errors
    /// It cannot be read.
    pub async fn itself(&self, key: &Key) -> Result<Option<Meta>, Error> {
        let found = self.call(key, "look at", |disk, key| match disk.stat(key, false) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            other => other.map(Some),
        });
        Ok(found.await?.as_ref().map(meta_of))
    }

    /// The file that a write to `key` changes: a link's target, or `key`.
    ///
    /// # Errors
    /// The link dangles or leads out of the store, or another user has made it where others can.
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

    /// The name that a rename of `from` to `to` gives. If `from` is the draft of a client, this publishes it: then a link at
    /// `to` stays, as when the store itself publishes a draft.
    ///
    /// # Errors
    /// As [`Self::resolve`], or `to` is neither a file nor such a link.
    pub async fn renamed_to(&self, from: &Key, to: &Key) -> Result<Key, Error> {
        let is_draft = is_part(from.name()) && !is_part(to.name());
        if !is_draft || self.itself(from).await?.is_none_or(|meta| meta.kind != Kind::File) {
            return Ok(to.clone());
        }
        match self.itself(to).await? {
            Some(Meta { kind: Kind::Link, .. }) => self.resolve(to).await,
            Some(Meta { kind: kind @ (Kind::Other | Kind::Device), .. }) => {
                Err(Error::Kind { name: self.label(to), is: kind.described(), expected: "a file" })
            }
            _ => Ok(to.clone()),
        }
    }

    /// Refuses to write in place to `key` of this `kind`.
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

    /// The key that names drafts of `key`, in an existing directory where nobody else can rename.
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
                // Refused or not, the directory is removed once it is empty.
                self.note_draft_dir(&dir);
            }
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed("make the directory for drafts", error)),
        }
        let (there, above) = (disk.stat(&dir, false), disk.stat(&key.parent(), true));
        let (there, above) = (there.map_err(|e| failed("look at", e))?, above.map_err(|e| failed("look at", e))?);
        let refused = |reason: &str| {
            let reason = format!("drafts cannot be there: {reason}");
            Err(Error::Store { name: self.label(&dir), reason, kind: ErrorKind::Denied })
        };
        if there.kind != Kind::Dir || there.device != above.device {
            return refused("it has to be a directory of the file system that their files are to be on");
        }
        // A user who can rename there could have another file published in place of the draft.
        if disk.is_shared(&dir).map_err(|e| failed("look at", e))? {
            return refused("it has to be one's own or root's, and nobody else may write to it");
        }
        self.note_draft_dir(&dir);
        Ok(home)
    }

    /// Name of `key` in errors: its path.
    fn label(&self, key: &Key) -> String {
        let root = self.0.root.display().to_string();
        let above = root.trim_end_matches('/');
        if key.is_root() && !root.is_empty() { root } else { format!("{above}/{key}") }
    }

    /// The error for a failed `act` on `key`.
    fn error(&self, key: &Key, act: &'static str, error: std::io::Error) -> Error {
        if error.raw_os_error() == Some(rustix::io::Errno::XDEV.raw_os_error()) && act != "rename" {
            // Users who may not know the root's path see a slash.
            let root = self.0.root.display().to_string();
            return Error::Escapes { name: self.label(key), root: if root.is_empty() { "/".to_owned() } else { root } };
        }
        Error::io(self.label(key), act, error)
    }

    /// Runs `call` where the calls of this store run.
    async fn run<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Self) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        if self.1.are_here() {
            return self.act(call);
        }
        // The semaphore is never closed.
        let permit = self.0.calls.clone().acquire_owned().await.ok();
        let store = self.clone();
        let done = tokio::task::spawn_blocking(move || {
            let result = store.act(call);
            drop(permit);
            result
        });
        done.await
            .unwrap_or_else(|error| Err(Error::io(self.0.root.display(), "work in", std::io::Error::other(error))))
    }

    /// Runs `call` as this store's user.
    fn act<T>(&self, call: impl FnOnce(&Self) -> Result<T, Error>) -> Result<T, Error> {
        match &self.0.identity {
            Some(identity) => identity
                .act(|| call(self))
                .unwrap_or_else(|error| Err(Error::io(self.0.root.display(), "become the user of", error))),
            None => call(self),
        }
    }

    /// The same for one call about `key`.
    async fn call<T: Send + 'static>(
        &self,
        key: &Key,
        act: &'static str,
        call: impl FnOnce(&Linux, &Key) -> std::io::Result<T> + Send + 'static,
    ) -> Result<T, Error> {
        let key = key.clone();
        self.run(move |store| call(&store.0.disk, &key).map_err(|error| store.error(&key, act, error))).await
    }

    /// The checksum of `extent` of `file`, called `name` in errors, in steps. Between steps, others take turns, and a
    /// dropped future starts no further one.
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
            // Turns are for those who wait for threads of the pool.
            let turn = if self.1.are_here() { None } else { self.0.checksums.turn().await };
            let file = file.clone();
            let hashed = self.run(move |_| {
                let _turn = turn;
                Ok(hash(&mut hasher, &file, rest, most).map(|next| (hasher, next)))
            });
            (hasher, at) = hashed.await?.map_err(|error| Error::io(name, act, error))?;
        }
        Ok(hasher.finish())
    }

    /// `file` for direct use, as this store's user.
    fn user_file(&self, file: &LinuxFile) -> UserFile {
        UserFile::new(file.0.clone(), self.0.identity.clone())
    }

    /// Records unsynced names in `dir`.
    fn changed(&self, dir: Key) {
        self.0.unsynced.lock().unwrap_or_else(PoisonError::into_inner).insert(dir);
    }
}

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Local").field(&self.0.root).finish()
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

/// The permissions of new files that the umask leaves of `mode`.
pub fn unmasked(mode: u32) -> u32 {
    mode & 0o777 & !umask()
}

/// The process's umask from `/proc`, the only place where it can be read without a change; the usual one if `/proc` is
/// not mounted.
fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    line.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok()).unwrap_or(0o022)
}
