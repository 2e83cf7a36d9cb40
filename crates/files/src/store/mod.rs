//! The interface between transfers and storage: stores, objects in them, and drafts of objects that are being written.
//!
//! ```text
//!   Store::open ───► Object ──flow──► Flow ──next──► Block ──write──► Draft ──publish──► an object ◄─── Store::create
//!                       └─────read (random, vectors of ranges)
//! ```
//!
//! **The unit is a range of bytes of an object**, never a whole file: a flow gives the blocks of any set of ranges in
//! any order, and a draft accepts them in any order. So a disk, a GridFTP server with eight streams, objects over UDP
//! (L2, L5), remote open files (R1) and containers of ranges of several objects (L13) are all stores.
//!
//! **A store is local or remote.** Bytes from a remote object have crossed a network, and only the other end knows what
//! they should be. Verification compares the two (`transfer`).
//!
//! **Only published objects exist.** A draft has another name until [`Draft::publish`]. How a store keeps and finds a
//! cut draft is its own affair.
//!
//! **A draft states its capabilities in one place** ([`Draft::capabilities`]), without a default. So a wrapper
//! ([`Bounded`], a container) can neither lose one nor let bytes pass unnoticed.

mod bounded;
mod direct;
mod draft;
mod object;
mod short;

pub use crate::meta::{Attributes, Entry, FileId, Kind, Meta, STICKY, Time};
pub use bounded::{Bound, Bounded};
pub use direct::{DirectWriter, claimed_by};
pub use draft::{Begun, Capabilities, Draft, Drain, Fetch, Spec, TakeFileRange, TakeHole};
pub(crate) use object::unasked;
pub use object::{BytesFlow, Flow, Object, Shape};
pub use short::{Batches, OnThread, ShortObject, on_this_thread, run_on_this_thread};

use crate::dir_nature::{DirNature, OwnDirs};
use crate::error::{Error, ErrorKind};
use crate::key::Key;
use crate::sum::Algorithm;
use std::collections::HashSet;
use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;

/// A boxed future, for traits that are used as objects.
pub type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A boxed future that may fail.
pub type Fallible<'a, T> = Boxed<'a, Result<T, Error>>;

/// A collection of named objects: a local directory, or one on a server.
pub trait Store: Debug + Send + Sync {
    /// Name in errors and journals, without credentials: `file:///data`, `gsiftp://host/data`.
    fn name(&self) -> String;

    /// Whether it is remote.
    fn is_far(&self) -> bool;

    /// Checksum algorithms that it computes, the cheapest first.
    fn algorithms(&self) -> &[Algorithm];

    /// Whether times can be set. Otherwise a copy has the time of its creation.
    fn sets_times(&self) -> bool {
        true
    }

    /// Whether permissions can be set, as far as known.
    fn sets_modes(&self) -> bool {
        true
    }

    /// Whether it has refused requested permissions of `key`, or may have. Then `key` has its default ones.
    fn is_without_mode(&self, _key: &Key) -> bool {
        false
    }

    /// Metadata of `key`. Follows symbolic links as far as the store allows.
    fn stat<'a>(&'a self, key: &'a Key) -> Fallible<'a, Meta>;

    /// Permissions of `key`, whose metadata `meta` lack them, for a copy. `among`: other entries of its directory will
    /// be asked for too. `None` if unavailable.
    fn mode<'a>(&'a self, key: &'a Key, meta: &'a Meta, among: bool) -> Fallible<'a, Option<u32>> {
        let _ = (key, among);
        Box::pin(async { Ok(meta.mode) })
    }

    /// Metadata of what a write to `key` would change. Follows the same symbolic links as [`Self::create`].
    fn stat_to_write<'a>(&'a self, key: &'a Key) -> Fallible<'a, Meta> {
        self.stat(key)
    }

    /// Metadata of `key` itself: of a symbolic link, if the store has links.
    fn stat_link<'a>(&'a self, key: &'a Key) -> Fallible<'a, Meta> {
        self.stat(key)
    }

    /// Whether the store says that `key` does not exist, for callers that then remove something.
    ///
    /// # Errors
    /// It cannot tell.
    fn is_absent<'a>(&'a self, key: &'a Key) -> Fallible<'a, bool> {
        Box::pin(async move {
            match self.stat_link(key).await {
                Ok(_) => Ok(false),
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
                Err(error) => Err(error),
            }
        })
    }

    /// Whether symbolic links can be read and made.
    fn has_links(&self) -> bool {
        false
    }

    /// The target of the symbolic link `key`.
    fn read_link<'a>(&'a self, key: &'a Key) -> Fallible<'a, Vec<u8>> {
        Box::pin(async move {
            Err(Error::Unsupported { name: format!("{}/{key}", self.name()), what: "reading a symbolic link" })
        })
    }

    /// Makes the symbolic link `key` to `target`; with `replace`, in place of a file or link. `modified` is the link's
    /// own time.
    fn make_link<'a>(
        &'a self,
        key: &'a Key,
        target: &'a [u8],
        modified: Option<Time>,
        replace: bool,
    ) -> Fallible<'a, ()> {
        let _ = (target, modified, replace);
        Box::pin(async move {
            Err(Error::Unsupported { name: format!("{}/{key}", self.name()), what: "making a symbolic link" })
        })
    }

    /// The directory `dir` as a store that no symbolic link leads out of, whoever makes one meanwhile. `None` if the
    /// store cannot guarantee that. After changes, settle the returned store.
    fn confined<'a>(&'a self, dir: &'a Key) -> Fallible<'a, Option<Arc<dyn Store>>> {
        let _ = dir;
        Box::pin(async { Ok(None) })
    }

    /// Lists the directory `key`.
    fn list<'a>(&'a self, key: &'a Key) -> Fallible<'a, Box<dyn Listing>>;

    /// The same with drafts and journals ([`is_ours`](crate::is_ours)), which [`Self::list`] omits.
    fn list_all<'a>(&'a self, key: &'a Key) -> Fallible<'a, Box<dyn Listing>> {
        self.list(key)
    }

    /// Whether [`Self::stat_link`] distinguishes symbolic links.
    fn tells_links(&self) -> bool {
        !self.is_far()
    }

    /// Whether writing overwrites in place.
    fn writes_in_place(&self) -> bool {
        false
    }

    /// Whether `key`, which is no directory, is a symbolic link. `None` if unknown.
    fn is_link<'a>(&'a self, key: &'a Key) -> Fallible<'a, Option<bool>> {
        Box::pin(async move { Ok(Some(self.stat_link(key).await?.kind == Kind::Link)) })
    }

    /// Whether both names are one file. `None` if unknown.
    fn are_one<'a>(&'a self, one: &'a Key, other: &'a Key) -> Fallible<'a, Option<bool>> {
        Box::pin(async move {
            let (one, other) = (self.stat(one).await?.identity, self.stat(other).await?.identity);
            Ok(one.zip(other).map(|(one, other)| one == other))
        })
    }

    /// Which entries of `key` that are listed as directories are real ones, for callers that remove their content.
    fn own_dirs<'a>(&'a self, key: &'a Key) -> Fallible<'a, OwnDirs> {
        let _ = key;
        Box::pin(async { Ok(OwnDirs::all(DirNature::Yes)) })
    }

    /// Whether names are always kept unaltered. If unknown, [`Self::kept_names`] tells.
    fn keeps_names(&self) -> bool {
        true
    }

    /// The names in the directory `key`, to check whether they were kept. `None` if they always are.
    fn kept_names<'a>(&'a self, _key: &'a Key) -> Fallible<'a, Option<HashSet<Vec<u8>>>> {
        Box::pin(async { Ok(None) })
    }

    /// Opens the object `key` for reading.
    fn open<'a>(&'a self, key: &'a Key) -> Fallible<'a, Arc<dyn Object>>;

    /// Starts the object `key`, or resumes an earlier attempt with the same `spec`.
    fn create<'a>(&'a self, key: &'a Key, spec: Spec) -> Fallible<'a, Begun>;

    /// Opens `key` for changes in place, without a draft: for random writes, and protocols that require it. Creates it
    /// if missing.
    fn edit<'a>(&'a self, key: &'a Key) -> Fallible<'a, Arc<dyn Draft>>;

    /// Opens `key` as [`Self::edit`] does, to write behind what it has. Returns the bytes that it has, too. Until the
    /// draft is dropped, nobody else appends to the same file.
    ///
    /// # Errors
    /// [`Error::Busy`] if somebody else appends to it.
    fn append<'a>(&'a self, key: &'a Key) -> Fallible<'a, (Arc<dyn Draft>, u64)>;

    /// Creates the directory `key` in an existing directory.
    fn make_dir<'a>(&'a self, key: &'a Key) -> Fallible<'a, ()>;

    /// Removes something that is no directory.
    fn remove<'a>(&'a self, key: &'a Key) -> Fallible<'a, ()>;

    /// Removes a draft or journal, unless a transfer is writing it or it was changed after `before`, as far as the
    /// store can tell.
    ///
    /// # Errors
    /// [`Error::Busy`] in these cases.
    fn discard<'a>(&'a self, key: &'a Key, before: Option<Time>) -> Fallible<'a, ()> {
        let _ = before;
        self.remove(key)
    }

    /// Removes an empty directory.
    fn remove_dir<'a>(&'a self, key: &'a Key) -> Fallible<'a, ()>;

    /// Removes `key` if it is an empty directory, or tells what it is: a symbolic link to a directory is no directory.
    ///
    /// # Errors
    /// The store does not answer.
    fn try_dir<'a>(&'a self, key: &'a Key) -> Fallible<'a, TriedDir> {
        Box::pin(async move {
            Ok(match self.remove_dir(key).await {
                Ok(()) => TriedDir::Removed,
                Err(_) => TriedDir::Refused,
            })
        })
    }

    /// Renames `from` to `to`; with `replace`, over an existing object.
    fn rename<'a>(&'a self, from: &'a Key, to: &'a Key, replace: bool) -> Fallible<'a, ()>;

    /// Sets times and modes of `key`.
    fn set<'a>(&'a self, key: &'a Key, attributes: Attributes) -> Fallible<'a, ()>;

    /// The same store for work that is polled on the current thread alone, and may block it: its calls are then made
    /// there. `None` if the store waits for a network.
    fn on_this_thread(&self) -> Option<Arc<dyn ThreadStore>> {
        None
    }

    /// How it carries many short objects in one exchange, if it can.
    fn batches(&self) -> Option<&dyn Batches> {
        None
    }

    /// Whether drafts in the directory `dir` can safely be renamed to another directory: it is no link, and nobody else
    /// can rename in it.
    fn is_for_drafts<'a>(&'a self, dir: &'a Key) -> Fallible<'a, bool> {
        let _ = dir;
        Box::pin(async { Ok(true) })
    }

    /// Records that `dir` may be a directory for drafts, for [`Self::remove_draft_dirs`]: an earlier run may have left
    /// it.
    fn note_draft_dir(&self, _dir: &Key) {}

    /// Removes empty directories for drafts. Others stay.
    fn remove_draft_dirs(&self) -> Boxed<'_, ()> {
        Box::pin(async {})
    }

    /// Returns when all changes so far would survive power loss.
    fn settle(&self) -> Fallible<'_, ()>;
}

/// A store whose calls are made on the thread that polls them, and whose drafts are published together. Waking another
/// thread for each call would cost more than the call. On any other thread it behaves as the usual store.
pub trait ThreadStore: Store {
    /// Syncs all drafts that wait to be published. Until then, no future of [`Draft::publish`] ends. Returns whether
    /// there were any.
    fn sync_drafts(&self) -> bool;
}

/// The result of [`Store::try_dir`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TriedDir {
    /// It was an empty directory, and is removed.
    Removed,
    /// It is a nonempty directory.
    NotEmpty,
    /// It is no directory.
    NotDir,
    /// It stays for an unknown reason.
    Refused,
}

/// A listing, in batches.
pub trait Listing: Debug + Send {
    /// More entries in any order. Empty at the end.
    fn more(&mut self) -> Fallible<'_, Vec<Entry>>;
}
