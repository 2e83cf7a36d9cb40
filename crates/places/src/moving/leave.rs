//! Removes the source of a copied file. It is first put aside under an unpredictable name, and then compared: somebody
//! who replaces the source at that moment replaces the name, and not what is removed.

use super::{Carried, sum_of};
use crate::place::shown;
use phoebus_files::key::Key;
use phoebus_files::range::Extent;
use phoebus_files::store::{Kind, Meta, Store, Time};
use phoebus_files::sum::{Algorithm, Sum};
use phoebus_files::{Error, ErrorKind, moved_name};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{RwLock, Semaphore};
use tokio::task::JoinSet;

/// A file may have been changed again without a new time, up to this many seconds before the copy: by clocks of this
/// machine, and of servers with fractions of a second.
const CLOSE: i64 = 2;

/// The same for servers with whole seconds, whose clocks may be wrong by hours.
const CLOSE_FAR: i64 = 24 * 3600;

/// The message for a source that is not what was copied.
const CHANGED: &str = "it was changed while it was moved";

/// Sources that are removed at a time if one end is a server: each takes four round trips.
const AHEAD: usize = 32;

/// Files of more than [`LONG`] bytes that are compared at a time: disks read fastest at few places.
const LONG_AT_ONCE: u32 = 4;

/// See [`LONG_AT_ONCE`].
const LONG: u64 = 1 << 20;

/// Why a source stays.
#[derive(Debug)]
pub(super) struct Stays {
    pub(super) error: Error,
    /// Whether the copy is what the source was.
    pub(super) is_copied: bool,
}

impl From<Error> for Stays {
    fn from(error: Error) -> Self {
        Self { error, is_copied: false }
    }
}

/// Removes the sources of a move.
pub(super) struct Leaving {
    pub(super) source: Arc<dyn Store>,
    pub(super) dest: Arc<dyn Store>,
    /// Whether sources and copies were compared by checksums.
    pub(super) summed: bool,
    /// Start of the move.
    pub(super) began: Time,
    /// Pairs of directories that are known to be different ones.
    apart: Mutex<HashSet<(Key, Key)>>,
    /// Limit of concurrent comparisons.
    comparing: Semaphore,
}

/// A source that was put aside is removed or renamed back even if the caller is gone.
struct DetachedTasks<T: 'static>(JoinSet<T>);

impl<T> Drop for DetachedTasks<T> {
    fn drop(&mut self) {
        self.0.detach_all();
    }
}

impl Leaving {
    pub(super) fn new(source: Arc<dyn Store>, dest: Arc<dyn Store>, summed: bool, began: Time) -> Self {
        Self { source, dest, summed, began, apart: Mutex::default(), comparing: Semaphore::new(AHEAD) }
    }

    /// Removes the sources of `moved` that are still what was copied, several at a time. Reports each to `left`.
    /// Removals in progress complete after this is dropped, and hold `gate` for reading until then.
    pub(super) async fn leave_all(
        self,
        moved: Vec<(Key, Carried)>,
        gate: &Arc<RwLock<()>>,
        mut left: impl FnMut(Result<(), Stays>),
    ) {
        let most = if self.source.is_far() || self.dest.is_far() { AHEAD } else { 1 };
        let (moved, merged) = self.apart_at_dest(moved).await;
        merged.into_iter().for_each(|stays| left(Err(stays)));
        let leaving = Arc::new(self);
        // The first file of two directories goes alone: its result spares questions about the others.
        let mut ready = VecDeque::new();
        let mut waiting = HashMap::<(Key, Key), Option<Vec<(Key, Carried)>>>::new();
        for (to, carried) in moved {
            match waiting.get_mut(&(carried.from.parent(), to.parent())) {
                Some(others) => others.get_or_insert_default().push((to, carried)),
                None => {
                    waiting.insert((carried.from.parent(), to.parent()), None);
                    ready.push_back((to, carried));
                }
            }
        }
        let mut going = DetachedTasks(JoinSet::new());
        loop {
            while going.0.len() < most
                && let Some((to, carried)) = ready.pop_front()
            {
                let (leaving, under_way) = (leaving.clone(), gate.clone().read_owned().await);
                going.0.spawn(async move {
                    let done = leaving.leave(&carried, &to).await;
                    drop(under_way);
                    (done, (carried.from.parent(), to.parent()))
                });
            }
            let Some(done) = going.0.join_next().await else { return };
            match done {
                Ok((done, dirs)) => {
                    left(done);
                    // Ready files go first, so that as many directories as possible are begun.
                    ready.extend(waiting.remove(&dirs).flatten().into_iter().flatten());
                }
                Err(error) => {
                    let (name, reason) = (leaving.source.name(), error.to_string());
                    left(Err(Error::Store { name, reason, kind: ErrorKind::Other }.into()));
                    // A panicked task's file is unknown.
                    ready.extend(waiting.drain().filter_map(|(_, others)| others).flatten());
                }
            }
        }
    }

    /// Those of `moved` that have a copy of their own at the destination, and why the others stay. A file system may
    /// take the names of two copies for one, and have only the later one. Servers' names were compared before.
    async fn apart_at_dest(&self, moved: Vec<(Key, Carried)>) -> (Vec<(Key, Carried)>, Vec<Stays>) {
        if self.dest.is_far() {
            return (moved, Vec::new());
        }
        let (mut found, mut copies, mut stay) = (Vec::new(), HashMap::new(), Vec::new());
        for (to, carried) in moved {
            match self.dest.stat(&to).await {
                Ok(meta) => {
                    let id = meta.identity.map(|identity| (identity.device, identity.number));
                    *copies.entry(id).or_insert(0) += usize::from(id.is_some());
                    found.push((to, carried, id));
                }
                Err(error) => stay.push(error.into()),
            }
        }
        let mut alone = Vec::new();
        for (to, carried, id) in found {
            if copies.get(&id).is_none_or(|count| *count < 2) {
                alone.push((to, carried));
                continue;
            }
            let to = shown(&*self.dest, &to);
            let reason =
                format!("the destination takes {to} and another name for one, and has the copy of one of them");
            stay.push(self.stays(&carried.from, &reason).into());
        }
        (alone, stay)
    }

    fn apart(&self) -> MutexGuard<'_, HashSet<(Key, Key)>> {
        self.apart.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the source of the file at `to`, if it is still what was copied, and another file than its copy.
    pub(super) async fn leave(&self, carried: &Carried, to: &Key) -> Result<(), Stays> {
        let Carried { from, meta, replaced } = carried;
        let now = match self.source.stat(from).await {
            // A link whose target has been moved before.
            Err(error) if error.kind() == ErrorKind::NotFound && self.leads_nowhere(from, to).await => {
                return Ok(self.source.remove(from).await?);
            }
            now => now?,
        };
        // Some file systems change inode numbers at each read: that is a doubt, not a difference.
        let numbered = Meta { identity: now.identity, ..*meta };
        if !is_same(&now, &numbered) {
            // Another file has the same size and time.
            return Err(match (now.size, now.modified) == (meta.size, meta.modified) {
                true => {
                    let to = shown(&*self.dest, to);
                    self.stays(from, &format!("{CHANGED}, or {to} is the same file by another name")).into()
                }
                false => self.changed(from),
            });
        }
        // A server's listing may omit names. It is read once for each directory.
        let dirs = (from.parent(), to.parent());
        // One directory may be reached by two mounts, one of which did not show the file before the copy: then the copy
        // has replaced it under a new inode number.
        let is_renumbered = !is_same(&now, meta);
        let may_be_one = *replaced || is_renumbered || (self.dest.is_far() && !self.apart().contains(&dirs));
        let doubted = self.is_doubtful(meta, &now) || is_renumbered;
        let aside = match moved_name(from) {
            Ok(aside) => aside,
            Err(error) if may_be_one => return Err(self.stays(from, &error.to_string()).into()),
            // A name without room for a suffix.
            Err(_) => return self.remove_by_name(carried, &numbered, to).await,
        };
        // The name is unpredictable, so no existing file is at risk; not all stores support refusing.
        if let Err(error) = self.source.rename(from, &aside, true).await {
            // Servers look at the target of a link, which has just been moved.
            if error.kind() == ErrorKind::NotFound && self.leads_nowhere(from, to).await {
                return Ok(self.source.remove(from).await?);
            }
            // What may not be renamed here may not be removed either.
            let is_refused = !self.source.is_far() && is_refusal(&error);
            if may_be_one || is_refused || error.may_pass() {
                return Err(error.into());
            }
            // A file that cannot be renamed may still be removable.
            return self.remove_by_name(carried, &numbered, to).await;
        }
        let looked = async {
            let put_aside = match self.source.stat(&aside).await {
                Err(error) if error.kind() == ErrorKind::NotFound && self.leads_nowhere(&aside, to).await => {
                    return Ok(());
                }
                put_aside => put_aside?,
            };
            // Some file systems derive the inode number from the name.
            if !is_same(&put_aside, &Meta { identity: put_aside.identity, ..numbered }) {
                return Err(self.changed(from));
            }
            let doubted = doubted || !is_same(&put_aside, &numbered);
            if may_be_one && !self.are_two(meta, from, &aside, to).await? {
                let reason = format!("{} is the same file by another name", shown(&*self.dest, to));
                return Err(self.stays(from, &reason).into());
            }
            if !doubted {
                return Ok(());
            }
            match self.compare(carried, &aside, to).await {
                // The target has been moved meanwhile.
                Err(stays) if stays.error.kind() == ErrorKind::NotFound && self.leads_nowhere(&aside, to).await => {
                    Ok(())
                }
                compared => compared,
            }
        };
        let Stays { error, is_copied } = match looked.await {
            Ok(()) => {
                if may_be_one && from.name() == to.name() {
                    self.apart().insert(dirs);
                }
                match self.source.remove(&aside).await {
                    Ok(()) => return Ok(()),
                    Err(error) => error.into(),
                }
            }
            Err(stays) => stays,
        };
        match self.put_back(&aside, from).await {
            Ok(()) => Err(Stays { error, is_copied }),
            // It is gone after all.
            Err(taken) if taken.kind() == ErrorKind::NotFound => Err(Stays { error, is_copied }),
            Err(taken) => {
                let aside = shown(&*self.source, &aside);
                let reason = format!("{error}; the source is now {aside}, since it could not be renamed back: {taken}");
                let error = Error::Store { name: shown(&*self.source, from), reason, kind: error.kind() };
                Err(Stays { error, is_copied })
            }
        }
    }

    /// Whether `key` is a dangling symbolic link whose target's copy is at `to`.
    async fn leads_nowhere(&self, key: &Key, to: &Key) -> bool {
        let is_gone = matches!(self.source.stat(key).await, Err(error) if error.kind() == ErrorKind::NotFound);
        if !is_gone || self.dest.stat(to).await.is_err() {
            return false;
        }
        if !self.source.is_far() {
            return matches!(self.source.stat_link(key).await, Ok(meta) if meta.kind == Kind::Link);
        }
        let Ok(mut listing) = self.source.list_all(&key.parent()).await else { return false };
        loop {
            match listing.more().await {
                Ok(page) if !page.is_empty() => {
                    if let Some(entry) = page.iter().find(|entry| entry.name == key.name()) {
                        return entry.meta.kind == Kind::Link;
                    }
                }
                _ => return false,
            }
        }
    }

    /// Removes a source that cannot be put aside, if it has the content of its copy and still looks as before the
    /// comparison (`as_found`). The time between the look and the removal is as short as possible.
    async fn remove_by_name(&self, carried: &Carried, as_found: &Meta, to: &Key) -> Result<(), Stays> {
        let from = &carried.from;
        self.compare(carried, from, to).await?;
        match is_same(&self.source.stat(from).await?, as_found) {
            true => Ok(self.source.remove(from).await?),
            false => Err(self.changed(from)),
        }
    }

    /// Renames back what was put aside, unless the name is taken.
    async fn put_back(&self, aside: &Key, from: &Key) -> Result<(), Error> {
        match self.source.rename(aside, from, false).await {
            Err(error) if error.kind() != ErrorKind::Exists => match self.source.stat_link(from).await {
                // Not all file systems support refusing.
                Err(free) if free.kind() == ErrorKind::NotFound => self.source.rename(aside, from, true).await,
                _ => Err(error),
            },
            renamed => renamed,
        }
    }

    fn stays(&self, from: &Key, reason: &str) -> Error {
        let reason = format!("{reason}; it stays where it is");
        Error::Store { name: shown(&*self.source, from), reason, kind: ErrorKind::Request }
    }

    fn changed(&self, from: &Key) -> Stays {
        Stays { error: self.stays(from, CHANGED), is_copied: true }
    }

    /// Whether a file may have been changed during the copy although `now` equals `meta`.
    fn is_doubtful(&self, meta: &Meta, now: &Meta) -> bool {
        let Some(modified) = meta.modified.filter(|_| self.summed) else { return true };
        let close = if self.source.is_far() && modified.nanos == 0 { CLOSE_FAR } else { CLOSE };
        // Setting a time back leaves the change time. Removing a hard link also changes it.
        let touched = meta.identity.map(|identity| identity.changed) != now.identity.map(|identity| identity.changed);
        touched || modified.seconds >= self.began.seconds.saturating_sub(close)
    }

    /// Compares a source, now at `at`, with its copy: by checksums of both ends, or by reading both.
    async fn compare(&self, carried: &Carried, at: &Key, to: &Key) -> Result<(), Stays> {
        let (source, dest, from) = (&*self.source, &*self.dest, &carried.from);
        let much = if carried.meta.size.unwrap_or(u64::MAX) > LONG { AHEAD as u32 / LONG_AT_ONCE } else { 1 };
        // The semaphore is never closed.
        let _comparing = self.comparing.acquire_many(much).await;
        let common = Algorithm::ALL
            .into_iter()
            .find(|algorithm| [source, dest].iter().all(|store| store.algorithms().contains(algorithm)));
        match common.filter(|_| self.summed) {
            Some(algorithm) => {
                let (before, after) = tokio::try_join!(told(source, at, algorithm), told(dest, to, algorithm))?;
                if before == after { Ok(()) } else { Err(self.changed(from)) }
            }
            None => {
                let (expected, found) = tokio::try_join!(sum_of(source, at), sum_of(dest, to))?;
                let name = shown(dest, to);
                if expected == found { Ok(()) } else { Err(Error::Mismatch { name, expected, found }.into()) }
            }
        }
    }

    /// Whether `to` is another file than `from`, which is `meta` and has been put `aside`.
    async fn are_two(&self, meta: &Meta, from: &Key, aside: &Key, to: &Key) -> Result<bool, Error> {
        match self.dest.stat(to).await {
            Ok(there) if there.size == meta.size => {}
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => return Ok(false),
        }
        if !from.name().eq_ignore_ascii_case(to.name()) {
            return Ok(true);
        }
        // NFS clients may cache the old name; nobody can have cached the new one.
        let Ok(there) = to.parent().join(aside.name()) else { return Ok(true) };
        match self.dest.stat(&there).await {
            Ok(_) => Ok(false),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
            Err(error) => Err(error),
        }
    }
}

/// Whether both are one unchanged file, as far as that shows.
fn is_same(one: &Meta, other: &Meta) -> bool {
    let numbers = |meta: &Meta| meta.identity.map(|identity| (identity.device, identity.number));
    (one.kind, one.size, one.modified, numbers(one)) == (other.kind, other.size, other.modified, numbers(other))
        && one.kind == Kind::File
}

/// Whether the system refused it or found nothing.
fn is_refusal(error: &Error) -> bool {
    use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<std::io::Error>());
    matches!(error.kind(), ErrorKind::Denied | ErrorKind::NotFound)
        || source.is_some_and(|source| matches!(source.kind(), PermissionDenied | ReadOnlyFilesystem))
}

/// The checksum of all of `key` in `store`.
async fn told(store: &dyn Store, key: &Key, algorithm: Algorithm) -> Result<Sum, Error> {
    let object = store.open(key).await?;
    object.checksum(algorithm, Extent::first(object.meta().size.unwrap_or(0))).await
}
