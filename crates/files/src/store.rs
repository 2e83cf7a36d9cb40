//! The seam between transfers and what bytes are in: stores, the objects in them, and drafts of objects that are being
//! written.
//!
//! ```text
//!   Store::open ───► Object ──flow──► Flow ──next──► Block ──write──► Draft ──publish──► an object ◄─── Store::create
//!                       └─────read (random, vectors of ranges)
//! ```
//!
//! **The unit is a range of bytes of an object**, never a whole file: a flow gives the blocks of any set of ranges in
//! whatever order they come, a draft takes them in whatever order. So a disk, a GridFTP server with eight streams, objects
//! over UDP (L2, L5), open remote files (R1) and containers made of ranges of several objects (L13) are all stores.
//!
//! **A store is near or far.** What is read from a near object is what is in it; what is read from a far one has crossed a
//! network, and only the other end can say what it should have been. Verification compares the two (`transfer`).
//!
//! **Only what is published exists.** A draft is invisible under its name until [`Draft::publish`]; what a store keeps of a
//! draft that was cut short, and how a later one finds it, is the store's affair.

pub use crate::meta::{Attributes, Entry, FileId, Kind, Meta, Time};

use crate::block::{Block, Pool};
use crate::error::{Error, Sort};
use crate::key::Key;
use crate::own::{Own, OwnDirs};
use crate::range::{Extent, Ranges};
use crate::sum::{Algorithm, Combining, Sum};
use crate::user_file::UserFile;
use bytes::Bytes;
use std::any::Any;
use std::collections::HashSet;
use std::fmt::{self, Debug};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// A future behind a pointer, for traits that stand behind one.
pub type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The same that may fail.
pub type Fallible<'a, T> = Boxed<'a, Result<T, Error>>;

/// A place with objects in it, under names: a directory of a disk, a directory of a server.
pub trait Store: Debug + Send + Sync {
    /// As errors and journals name it, without credentials: `file:///data`, `gsiftp://host/data`.
    fn name(&self) -> String;

    /// Whether its bytes cross a network on their way here.
    fn is_far(&self) -> bool;

    /// The checksums that its objects can be asked for, those first that it computes most readily.
    fn algorithms(&self) -> &[Algorithm];

    /// Whether the times of what is in it can be set. Where they cannot, a copy is as old as it is.
    fn sets_times(&self) -> bool {
        true
    }

    /// Whether the permissions of what is in it can be set, as far as is known.
    fn sets_modes(&self) -> bool {
        true
    }

    /// What there is under `key`. Symbolic links are followed as far as the store allows.
    fn stat<'a>(&'a self, key: &'a Key) -> Fallible<'a, Meta>;

    /// What there is to be written under `key`: symbolic links are followed as [`Self::create`] follows them, and no others.
    fn stat_to_write<'a>(&'a self, key: &'a Key) -> Fallible<'a, Meta> {
        self.stat(key)
    }

    /// What there is under `key` itself: a symbolic link is one, where the store has links.
    fn stat_link<'a>(&'a self, key: &'a Key) -> Fallible<'a, Meta> {
        self.stat(key)
    }

    /// Whether the store itself says that there is nothing under `key`, for those who remove something since it is not there.
    ///
    /// # Errors
    /// It cannot tell.
    fn is_absent<'a>(&'a self, key: &'a Key) -> Fallible<'a, bool> {
        Box::pin(async move {
            match self.stat_link(key).await {
                Ok(_) => Ok(false),
                Err(error) if error.sort() == Sort::NotFound => Ok(true),
                Err(error) => Err(error),
            }
        })
    }

    /// Whether symbolic links can be read and made in it.
    fn has_links(&self) -> bool {
        false
    }

    /// The path that the symbolic link `key` holds.
    fn read_link<'a>(&'a self, key: &'a Key) -> Fallible<'a, Vec<u8>> {
        Box::pin(async move {
            Err(Error::Unsupported { name: format!("{}/{key}", self.name()), what: "reading a symbolic link" })
        })
    }

    /// Makes the symbolic link `key`, which holds the path `target`, in place of the file or link of that name if `replace`; `modified`
    /// is its own time.
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

    /// The directory `dir` as a store of its own, out of which no symbolic link leads, whoever makes one meanwhile; none if this
    /// store cannot promise that. Whoever changes something in it settles it, and not this one.
    fn confined<'a>(&'a self, dir: &'a Key) -> Fallible<'a, Option<Arc<dyn Store>>> {
        let _ = dir;
        Box::pin(async { Ok(None) })
    }

    /// The entries of the directory `key`.
    fn list<'a>(&'a self, key: &'a Key) -> Fallible<'a, Box<dyn Listing>>;

    /// The same with drafts and their journals ([`is_ours`](crate::is_ours)), which [`Self::list`] leaves out.
    fn list_all<'a>(&'a self, key: &'a Key) -> Fallible<'a, Box<dyn Listing>> {
        self.list(key)
    }

    /// Whether [`Self::stat_link`] tells a symbolic link from what it leads to.
    fn tells_links(&self) -> bool {
        !self.is_far()
    }

    /// Which of what is listed as directories in the directory `key` are directories themselves, for those who remove what is in them.
    fn own_dirs<'a>(&'a self, key: &'a Key) -> Fallible<'a, OwnDirs> {
        let _ = key;
        Box::pin(async { Ok(OwnDirs::all(Own::Yes)) })
    }

    /// Whether everything has the name that was said when it was put there. Where that is not known, [`Self::kept_names`] tells.
    fn keeps_names(&self) -> bool {
        true
    }

    /// The names in the directory `key`, for those who look whether what they have put there is called so; none, if it always is.
    fn kept_names<'a>(&'a self, _key: &'a Key) -> Fallible<'a, Option<HashSet<Vec<u8>>>> {
        Box::pin(async { Ok(None) })
    }

    /// Opens the object `key` to be read.
    fn open<'a>(&'a self, key: &'a Key) -> Fallible<'a, Arc<dyn Object>>;

    /// Begins the object `key`, or goes on with what an earlier attempt at the same `spec` left.
    fn create<'a>(&'a self, key: &'a Key, spec: Spec) -> Fallible<'a, Begun>;

    /// Opens `key` to be changed where it stands, without a draft: for writes at random and for peers whose protocol has it
    /// so. It is made if it is absent.
    fn edit<'a>(&'a self, key: &'a Key) -> Fallible<'a, Arc<dyn Draft>>;

    /// Makes the directory `key`, whose parent exists.
    fn make_dir<'a>(&'a self, key: &'a Key) -> Fallible<'a, ()>;

    /// Removes what is no directory.
    fn remove<'a>(&'a self, key: &'a Key) -> Fallible<'a, ()>;

    /// Removes a draft or a journal, unless a transfer is writing it, or it was changed after `before`, as far as the store can tell.
    ///
    /// # Errors
    /// [`Error::Busy`] if one of these is so.
    fn discard<'a>(&'a self, key: &'a Key, before: Option<Time>) -> Fallible<'a, ()> {
        let _ = before;
        self.remove(key)
    }

    /// Removes an empty directory.
    fn remove_dir<'a>(&'a self, key: &'a Key) -> Fallible<'a, ()>;

    /// Removes `key` if it is an empty directory, and tells otherwise what the store says of it: a symbolic link to a directory is none.
    ///
    /// # Errors
    /// There is no answer.
    fn try_dir<'a>(&'a self, key: &'a Key) -> Fallible<'a, TriedDir> {
        Box::pin(async move {
            Ok(match self.remove_dir(key).await {
                Ok(()) => TriedDir::Removed,
                Err(_) => TriedDir::Refused,
            })
        })
    }

    /// Gives `from` the name `to`, in place of what has it if `replace`.
    fn rename<'a>(&'a self, from: &'a Key, to: &'a Key, replace: bool) -> Fallible<'a, ()>;

    /// Sets times and modes of what there is under `key`.
    fn set<'a>(&'a self, key: &'a Key, attributes: Attributes) -> Fallible<'a, ()>;

    /// Whether drafts may be in the directory `dir` that are to be renamed to another one: it is no link, and nobody else can give names there.
    fn is_for_drafts<'a>(&'a self, dir: &'a Key) -> Fallible<'a, bool> {
        let _ = dir;
        Box::pin(async { Ok(true) })
    }

    /// Notes that `dir` may be a directory in which drafts were, for [`Self::remove_draft_dirs`]: an earlier run that was killed leaves one.
    fn note_draft_dir(&self, _dir: &Key) {}

    /// Removes the directories that were made for drafts alone and in which nothing is any more. What stays is in nobody's way.
    fn remove_draft_dirs(&self) -> Boxed<'_, ()> {
        Box::pin(async {})
    }

    /// Returns when everything that was published, made or removed before would survive a loss of power.
    fn settle(&self) -> Fallible<'_, ()>;
}

/// What came of [`Store::try_dir`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TriedDir {
    /// It was an empty directory, and is gone.
    Removed,
    /// It is a directory with something in it.
    NotEmpty,
    /// It is no directory.
    NotDir,
    /// It stays, and why is not told.
    Refused,
}

/// The entries of a directory, some at a time.
pub trait Listing: Debug + Send {
    /// More entries in no particular order, and an empty list at the end.
    fn more(&mut self) -> Fallible<'_, Vec<Entry>>;
}

/// An object that can be read.
pub trait Object: Debug + Send + Sync {
    /// As errors name it.
    fn name(&self) -> String;

    /// What was known of it when it was opened.
    fn meta(&self) -> &Meta;

    /// A flow of the bytes `wanted`, all of which the object must have.
    fn flow(&self, wanted: Ranges, shape: Shape) -> Fallible<'_, Arc<dyn Flow>>;

    /// The bytes of several ranges at once, each as far as the object goes: one round trip where there is a network (R1, R2).
    fn read<'a>(&'a self, wanted: &'a [Extent]) -> Fallible<'a, Vec<Bytes>>;

    /// The checksum of `extent`, by those who have the bytes. It may take as long as reading them.
    fn checksum(&self, algorithm: Algorithm, extent: Extent) -> Fallible<'_, Sum>;

    /// Fails with [`Error::Changed`] if the object is no longer what [`Self::meta`] says.
    fn unchanged(&self) -> Fallible<'_, ()>;

    /// The open file, where it is one of this machine: for those who have to know which it is.
    fn file(&self) -> Option<&UserFile> {
        None
    }

    /// Itself, for drafts of the same kind of store, which may know how to fetch it ([`Draft::fetch`]).
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }
}

/// Blocks on their way out of an object. Several tasks may take from one flow; once it has failed, one of them hears why, and the
/// others hear it, too, or get nothing more.
pub trait Flow: Debug + Send + Sync {
    /// The next block, and none when all were given. What a dropped future would have given is not lost.
    fn next(&self) -> Fallible<'_, Option<Block>>;
}

/// How [`Store::create`] begins.
#[derive(Debug)]
pub enum Begun {
    /// There is something to write, if only the last step.
    Draft(Arc<dyn Draft>),
    /// An earlier attempt at the same had published it, and was interrupted before it could say so.
    Done,
}

/// An object that is being written. Several tasks may write.
pub trait Draft: Debug + Send + Sync {
    /// As errors name it: the name that it will have.
    fn name(&self) -> String;

    /// Where in its store the bytes are until it is published, if they are under another name: those who share the disk can write there.
    fn place(&self) -> Option<Key> {
        None
    }

    /// What an earlier attempt left, which need not be written again.
    fn kept(&self) -> Ranges;

    /// Whether blocks have to come in ascending order, since what carries them away is a stream. What [`Self::kept`] says is left
    /// out of them.
    fn is_ordered(&self) -> bool {
        false
    }

    /// Fetches the bytes `missing` of `object` without their coming by here, if the two are on servers that can do so, and says
    /// whether that was done; if not, nothing was. Tells `moved` how many bytes have gone so far.
    fn fetch<'a>(
        &'a self,
        object: &'a dyn Object,
        missing: &'a Ranges,
        moved: &'a (dyn Fn(u64) + Send + Sync),
    ) -> Fallible<'a, bool> {
        let _ = (object, missing, moved);
        Box::pin(async { Ok(false) })
    }

    /// Whether it takes blocks whose bytes are still in a file ([`Shape::lend`]).
    fn takes_lent(&self) -> bool {
        false
    }

    /// Whether it takes blocks that are holes ([`Shape::holes`]).
    fn takes_holes(&self) -> bool {
        false
    }

    /// Where whoever has its bytes first can put them without handing them on: for receiving without copying, and for hashing
    /// and writing while bytes are at hand. Where this is none, blocks come by [`Self::write`].
    fn landing(&self) -> Option<Arc<dyn Landing>> {
        None
    }

    /// Whether a later attempt at the same goes on from the last checkpoint.
    fn is_resumable(&self) -> bool {
        false
    }

    /// Takes all blocks of `flow` by itself, where it has tasks of its own for that, and adds to `moved` how many bytes have gone;
    /// where this is none, blocks come by [`Self::write`]. Once it returns all were taken, though some may be on their way
    /// ([`Self::flush`]). The future may be dropped at any time; the draft is then to be abandoned.
    fn drain(&self, flow: &Arc<dyn Flow>, moved: &Arc<AtomicU64>) -> Option<Fallible<'_, ()>> {
        let _ = (flow, moved);
        None
    }

    /// Writes a block, or accepts it to be written in its time. Bytes that it has are not written again; the first ones stay.
    fn write(&self, block: Block) -> Fallible<'_, ()>;

    /// Returns when nothing is read any more of blocks that were lent.
    fn flush(&self) -> Fallible<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    /// Makes sure that what was written is not lost if either end is killed now, and says what that is.
    fn checkpoint(&self) -> Fallible<'_, Ranges>;

    /// The checksum of the bytes it was given, those of earlier attempts included, if it is complete with `size` bytes and
    /// was asked to keep one.
    fn given(&self, size: u64) -> Option<Sum>;

    /// The checksum of what it has become, by those who have the bytes: read again, not remembered.
    fn checksum(&self, algorithm: Algorithm) -> Fallible<'_, Sum>;

    /// Gives it its name, times and modes, if all of `size` bytes are there. Until then nothing had this name that was not
    /// complete, and from then on it is durable, or is once [`Store::settle`] has returned.
    fn publish(&self, size: u64) -> Fallible<'_, ()>;

    /// Gives it up. What was written so far is kept for a later attempt if `keep` and the store can.
    fn abandon(&self, keep: bool) -> Boxed<'_, ()>;
}

/// The open file of a draft, for threads that write to it by themselves.
pub trait Landing: Debug + Send + Sync {
    /// What of `extent` is to be written: what nobody has written or is writing. The caller then has to, or to fail.
    ///
    /// # Errors
    /// The draft has no such bytes, or takes nothing more.
    fn claim(&self, extent: Extent) -> Result<Ranges, Error>;

    /// The file, and as whom it is written.
    fn file(&self) -> &UserFile;

    /// The checksum that [`Self::wrote`] has to be told.
    fn sum(&self) -> Option<Combining> {
        None
    }

    /// Notes that `extent`, which was claimed, has been written, and its checksum if one is kept.
    ///
    /// # Errors
    /// There are more gaps between what was written than are held.
    fn wrote(&self, extent: Extent, sum: u32) -> Result<(), Error>;

    /// The error for a write that failed, after which the draft takes nothing more.
    fn failed(&self, error: std::io::Error) -> Error;
}

/// `landing` with another word on what is to be written, which is asked in its place and may ask it.
pub fn claimed_by<F>(landing: Arc<dyn Landing>, claim: F) -> Arc<dyn Landing>
where
    F: Fn(&dyn Landing, Extent) -> Result<Ranges, Error> + Send + Sync + 'static,
{
    Arc::new(Claimed { landing, claim })
}

struct Claimed<F> {
    landing: Arc<dyn Landing>,
    claim: F,
}

impl<F: Fn(&dyn Landing, Extent) -> Result<Ranges, Error> + Send + Sync> Landing for Claimed<F> {
    fn claim(&self, extent: Extent) -> Result<Ranges, Error> {
        (self.claim)(&*self.landing, extent)
    }

    fn file(&self) -> &UserFile {
        self.landing.file()
    }

    fn sum(&self) -> Option<Combining> {
        self.landing.sum()
    }

    fn wrote(&self, extent: Extent, sum: u32) -> Result<(), Error> {
        self.landing.wrote(extent, sum)
    }

    fn failed(&self, error: std::io::Error) -> Error {
        self.landing.failed(error)
    }
}

impl<F> Debug for Claimed<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Claimed").field(&self.landing).finish()
    }
}

/// How a flow is to come.
#[derive(Debug, Clone)]
pub struct Shape {
    /// Its buffers. No block is longer than they are.
    pub pool: Pool,
    /// How many blocks are read at once, where that makes sense.
    pub readers: usize,
    /// In ascending order, as streams need it. Reading is then one block after the other, ahead of whoever takes them.
    pub ordered: bool,
    /// The checksum to compute of each block while its bytes are at hand.
    pub sum: Option<Combining>,
    /// Whether blocks may be places in a file of this machine, where nothing has to be read to be hashed.
    pub lend: bool,
    /// Whether blocks may be holes of a file of this machine, which are then not read. They may be of any length.
    pub holes: bool,
    /// Where bytes that cross a network may be put as they come, hashed as it says.
    pub into: Option<Arc<dyn Landing>>,
}

/// What is to be written, and of what source: an earlier attempt is continued only if all of this is the same.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Spec {
    /// How many bytes it will have, if that is known.
    pub size: Option<u64>,
    /// The source: its name, without credentials, and when it was modified, or no time where somebody else answers for its being the
    /// same, such as a server's client. None if it cannot be read a second time, or may be another one by then.
    pub source: Option<(String, Option<Time>)>,
    /// The checksum that is kept of its blocks.
    pub sum: Option<Combining>,
    /// What it shall have beside its bytes.
    pub attributes: Attributes,
    /// The permissions of the source, where it shall not have the same: what is new has none that this lacks.
    pub at_most: Option<u32>,
    /// Whether it may take the place of what has its name.
    pub replace: bool,
    /// Whether zeros are left out where the store can: no space is taken beforehand then.
    pub sparse: bool,
    /// Whether it is a draft of somebody else ([`is_part`](crate::is_part)), who does more about it before it has its name: then it is its
    /// owner's alone until permissions are set or it is renamed to what is no draft, which gives it those that it would have now.
    pub held: bool,
}
