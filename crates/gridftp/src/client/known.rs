//! What the client has learnt about a server, beyond what the server says of itself.

use phoebus_files::key::Key;
use phoebus_files::store::{Kind, Meta, Spec};
use phoebus_files::sum::Sum;
use phoebus_proto::gridftp::reply::Reply;
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::OnceCell;

/// Smallest file that is resumed, in bytes.
pub(super) const RESUME_FROM: u64 = 16 << 20;

/// Most names of refusals that are kept.
const MAX_NAMES: usize = 1000;

/// How a server without MLSD lists: `LIST -a` includes names that begin with a dot, but some servers take `-a` for a
/// path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lists {
    /// `LIST -a` lists everything, including the directory itself.
    Itself,
    /// `LIST -a` lists everything.
    All,
    /// `LIST -a` does not work, and LIST lists everything.
    Plain,
}

/// What is known about names.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// Whether the server removes bytes that are not printable ASCII, once known.
    pub(super) ascii_alone: OnceCell<bool>,
    /// Kinds of odd characters that it keeps, and combinations that it alters.
    pub(super) seen: tokio::sync::Mutex<(BTreeSet<Odd>, Vec<BTreeSet<Odd>>)>,
}

/// A kind of odd characters in a name, which some servers alter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Odd {
    /// A control character.
    Control(u8),
    /// UTF-8 beyond ASCII.
    NotAscii,
    /// Invalid UTF-8.
    NotUtf8,
    /// A leading blank.
    Leading,
    /// A trailing blank or dot.
    Trailing(u8),
}

/// Refusals: their number, and the names of the first ones.
#[derive(Debug, Default)]
pub(super) struct Refused(u64, BTreeSet<String>);

impl Refused {
    /// Records `name`. A kept name counts once.
    pub(super) fn note(&mut self, name: String) {
        if self.1.contains(&name) {
            return;
        }
        self.0 += 1;
        if self.1.len() < MAX_NAMES {
            self.1.insert(name);
        }
    }

    /// Whether `name` may be among them. Names that were not kept may be any.
    pub(super) fn may_have(&self, name: &str) -> bool {
        self.1.contains(name) || self.0 > self.1.len() as u64
    }

    pub(super) fn told(&self) -> (u64, Vec<String>) {
        (self.0, self.1.iter().cloned().collect())
    }
}

/// Metadata that were read; `None` if the file did not exist.
#[derive(Debug)]
pub(super) struct Looked {
    pub(super) key: Key,
    pub(super) meta: Option<Meta>,
    pub(super) at: Instant,
}

/// A file whose rename may or may not have happened.
#[derive(Debug, Clone)]
pub(super) struct Unsure {
    /// The name before.
    pub(super) part: Key,
    /// The name after.
    pub(super) key: Key,
    /// The source.
    pub(super) spec: Spec,
    /// Size in bytes.
    pub(super) size: u64,
    /// Metadata of what had the new name, if they were read.
    pub(super) before: Option<Option<Meta>>,
    /// Checksum, if known.
    pub(super) sum: Option<Sum>,
}

/// Directories of drafts, each once it exists.
#[derive(Debug, Default)]
pub(super) struct PartialDirs(Mutex<HashMap<Key, Arc<OnceCell<Whose>>>>);

/// Origin of such a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    /// This client created it.
    Ours,
    /// It existed before, and may be somebody else's.
    Anybodys,
}

impl PartialDirs {
    pub(super) fn all(&self) -> MutexGuard<'_, HashMap<Key, Arc<OnceCell<Whose>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks the existing `dir` for removal at the end if it is empty.
    pub(super) fn note(&self, dir: &Key) {
        self.all().entry(dir.clone()).or_default();
    }

    /// Forgets that `dir` exists: another client may have removed it.
    pub(super) fn forget(&self, dir: &Key) {
        // It is still removed at the end.
        if let Some(made) = self.all().get_mut(dir) {
            *made = Arc::default();
        }
    }
}

/// Names that did not exist before this client wrote them in place.
#[derive(Debug, Default)]
pub(super) struct New(Mutex<HashSet<Key>>);

impl New {
    fn all(&self) -> MutexGuard<'_, HashSet<Key>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What existed at `key` before this client. `before` is the current state, which may be left from this client's
    /// earlier attempt.
    pub(super) fn before(&self, key: &Key, before: Option<Option<Meta>>) -> Option<Option<Meta>> {
        if matches!(before, Some(None)) {
            self.all().insert(key.clone());
        }
        if self.all().contains(key) { Some(None) } else { before }
    }

    pub(super) fn forget(&self, key: &Key) {
        self.all().remove(key);
    }
}

/// Permissions known from listings.
#[derive(Debug, Default)]
pub(super) struct SourceModes {
    /// Listed directories, the last used first.
    pub(super) listed: tokio::sync::Mutex<VecDeque<ListedModes>>,
    /// Whether LIST fails.
    pub(super) unlisted: AtomicBool,
    /// Whether STAT is refused.
    pub(super) statless: AtomicBool,
}

/// Permissions of the entries of a directory.
#[derive(Debug)]
pub(super) struct ListedModes {
    pub(super) dir: Key,
    pub(super) at: Instant,
    pub(super) modes: HashMap<Vec<u8>, (Kind, u32)>,
}

/// How files can be made private at a server.
#[derive(Debug, Default)]
pub(super) struct Privacy {
    /// Whether nothing can be set during a transfer before its first byte.
    pub(super) no_side_command: AtomicBool,
    /// Whether existing files cannot be overwritten, not even new empty ones.
    pub(super) writes_once: AtomicBool,
    /// Whether a data port of the server has been reached.
    pub(super) has_data: AtomicBool,
    /// Whether two attempts at a data port have failed.
    pub(super) no_data: AtomicBool,
}

impl Privacy {
    /// Whether no data port can be reached, as far as known. One success outweighs all failures.
    pub(super) fn is_without_data(&self) -> bool {
        self.no_data.load(Ordering::Relaxed) && !self.has_data.load(Ordering::Relaxed)
    }
}

/// Code of the server's refusal to make a file private before its first byte.
#[derive(Debug, Clone, Default)]
pub(super) struct EarlyRefusal(Arc<Mutex<Option<u16>>>);

impl EarlyRefusal {
    /// Records a refusal.
    pub(super) fn note(&self, reply: Reply) {
        if !reply.is_success() {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(reply.code);
        }
    }

    /// Takes the recorded code.
    pub(super) fn take(&self) -> Option<u16> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
