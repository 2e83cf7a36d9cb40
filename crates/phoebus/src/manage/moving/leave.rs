//! How the source of a file that was copied is removed. It is put aside first, under a name that nobody knows, and what was put aside is
//! looked at: whoever replaces the source at that moment replaces what has its name, and not what is removed.

use super::{Carried, sum_of};
use crate::place::shown;
use phoebus_files::key::Key;
use phoebus_files::range::Extent;
use phoebus_files::store::{Kind, Meta, Store, Time};
use phoebus_files::sum::{Algorithm, Sum};
use phoebus_files::{Error, Sort, moved_name};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{RwLock, Semaphore};
use tokio::task::JoinSet;

/// For how long before the copy begins a file may have been changed once more without another time, in seconds: by the clock of this
/// machine, and of those who tell fractions of a second.
const CLOSE: i64 = 2;

/// The same of servers that tell whole seconds, by clocks that may be wrong by hours.
const CLOSE_FAR: i64 = 24 * 3600;

/// What is said of a source that is not what was copied.
const CHANGED: &str = "it was changed while it was moved";

/// How many sources leave at the same time where one end is a server: each takes some four round trips.
const AHEAD: usize = 32;

/// How many of those are compared at the same time that have more than [`LONG`] bytes: disks are read fastest in few places.
const LONG_AT_ONCE: u32 = 4;

/// See [`LONG_AT_ONCE`].
const LONG: u64 = 1 << 20;

/// Why a source stays where it is.
#[derive(Debug)]
pub(super) struct Stays {
    pub(super) error: Error,
    /// Whether its copy is what the source was.
    pub(super) is_copied: bool,
}

impl From<Error> for Stays {
    fn from(error: Error) -> Self {
        Self { error, is_copied: false }
    }
}

/// What removes the sources of a move.
pub(super) struct Leaving {
    pub(super) source: Arc<dyn Store>,
    pub(super) dest: Arc<dyn Store>,
    /// Whether sources and copies were compared by checksums.
    pub(super) summed: bool,
    /// When the move began.
    pub(super) began: Time,
    /// Directories of the source and of the destination that were seen to be two, and not one by two names.
    apart: Mutex<HashSet<(Key, Key)>>,
    /// So much can be compared at the same time.
    comparing: Semaphore,
}

/// What has been put aside is removed, or gets its name again, whoever waits for it.
struct Going<T: 'static>(JoinSet<T>);

impl<T> Drop for Going<T> {
    fn drop(&mut self) {
        self.0.detach_all();
    }
}

impl Leaving {
    pub(super) fn new(source: Arc<dyn Store>, dest: Arc<dyn Store>, summed: bool, began: Time) -> Self {
        Self { source, dest, summed, began, apart: Mutex::default(), comparing: Semaphore::new(AHEAD) }
    }

    /// Removes the sources of `moved`, by what they have become, as far as each is still what was copied; several at the same time. `left`
    /// hears of each. Those that are under way when this is dropped come to their end, and have `gate` for reading until then.
    pub(super) async fn leave_all(
        self,
        moved: Vec<(Key, Carried)>,
        gate: &Arc<RwLock<()>>,
        mut left: impl FnMut(Result<(), Stays>),
    ) {
        let most = if self.source.is_far() || self.dest.is_far() { AHEAD } else { 1 };
        let leaving = Arc::new(self);
        // The first of two directories goes alone: what it shows of them spares the others from being asked for.
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
        let mut going = Going(JoinSet::new());
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
                    // Those that are ready have their turn first, so that as many directories as can be are begun.
                    ready.extend(waiting.remove(&dirs).flatten().into_iter().flatten());
                }
                Err(error) => {
                    let (name, reason) = (leaving.source.name(), error.to_string());
                    left(Err(Error::Store { name, reason, sort: Sort::Other }.into()));
                    // Whose it was is not known: nobody waits for it any more.
                    ready.extend(waiting.drain().filter_map(|(_, others)| others).flatten());
                }
            }
        }
    }

    fn apart(&self) -> MutexGuard<'_, HashSet<(Key, Key)>> {
        self.apart.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the source of a file that is at `to`, if it is still what was copied, and another file than its copy.
    pub(super) async fn leave(&self, carried: &Carried, to: &Key) -> Result<(), Stays> {
        let Carried { from, meta, replaced } = carried;
        let now = match self.source.stat(from).await {
            // What it led to has left before it.
            Err(error) if error.sort() == Sort::NotFound && self.leads_nowhere(from).await => {
                return Ok(self.source.remove(from).await?);
            }
            now => now?,
        };
        // Some file systems give a file another number whenever they read it in: that is a doubt, and no difference.
        let numbered = Meta { identity: now.identity, ..*meta };
        if !is_same(&now, &numbered) {
            // Something else has the size and time that the file had.
            return Err(match (now.size, now.modified) == (meta.size, meta.modified) {
                true => {
                    let to = shown(&*self.dest, to);
                    self.stays(from, &format!("{CHANGED}, or {to} is the same file by another name")).into()
                }
                false => self.changed(from),
            });
        }
        // What a server has is known by its listing, which may leave out names that are there. It is tried once for each directory.
        let dirs = (from.parent(), to.parent());
        // One directory may be reached by two mounts, of which one did not show the file before the copy: then the copy has taken its place,
        // and the file has another number.
        let is_renumbered = !is_same(&now, meta);
        let may_be_one = *replaced || is_renumbered || (self.dest.is_far() && !self.apart().contains(&dirs));
        let doubted = self.is_doubtful(meta, &now) || is_renumbered;
        let aside = match moved_name(from) {
            Ok(aside) => aside,
            Err(error) if may_be_one => return Err(self.stays(from, &error.to_string()).into()),
            // A name with no room for more.
            Err(_) => return self.remove_by_name(carried, &numbered, to).await,
        };
        // Nobody has such a name, so that none has to be kept: not all file systems and servers can rename so.
        if let Err(error) = self.source.rename(from, &aside, true).await {
            // What may not be renamed here may not be removed either.
            let is_refused = !self.source.is_far() && is_refusal(&error);
            if may_be_one || is_refused || error.may_pass() {
                return Err(error.into());
            }
            // Where nothing can be renamed it may yet be removed.
            return self.remove_by_name(carried, &numbered, to).await;
        }
        let looked = async {
            let put_aside = match self.source.stat(&aside).await {
                Err(error) if error.sort() == Sort::NotFound && self.leads_nowhere(&aside).await => return Ok(()),
                put_aside => put_aside?,
            };
            // Some file systems make the number of the name.
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
                // What it leads to has left meanwhile.
                Err(stays) if stays.error.sort() == Sort::NotFound && self.leads_nowhere(&aside).await => Ok(()),
                compared => compared,
            }
        };
        match looked.await {
            Ok(()) => {
                if may_be_one && from.name() == to.name() {
                    self.apart().insert(dirs);
                }
                Ok(self.source.remove(&aside).await?)
            }
            Err(Stays { error, is_copied }) => match self.put_back(&aside, from).await {
                Ok(()) => Err(Stays { error, is_copied }),
                Err(taken) => {
                    let aside = shown(&*self.source, &aside);
                    let reason =
                        format!("{error}; what it was is {aside}, for it could not get its name again: {taken}");
                    let error = Error::Store { name: shown(&*self.source, from), reason, sort: error.sort() };
                    Err(Stays { error, is_copied })
                }
            },
        }
    }

    /// Whether `key` is a symbolic link to what is not there.
    async fn leads_nowhere(&self, key: &Key) -> bool {
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

    /// Removes a source that cannot be put aside, if it has the bytes of its copy and still looks as it did before they were compared, `as_found`:
    /// there is no time between looking and removing that could be shorter.
    async fn remove_by_name(&self, carried: &Carried, as_found: &Meta, to: &Key) -> Result<(), Stays> {
        let from = &carried.from;
        self.compare(carried, from, to).await?;
        match is_same(&self.source.stat(from).await?, as_found) {
            true => Ok(self.source.remove(from).await?),
            false => Err(self.changed(from)),
        }
    }

    /// Gives what was put aside its name again, unless another has it by now.
    async fn put_back(&self, aside: &Key, from: &Key) -> Result<(), Error> {
        match self.source.rename(aside, from, false).await {
            Err(error) if error.sort() != Sort::Exists => match self.source.stat_link(from).await {
                // It is not kept: not all file systems can rename so.
                Err(free) if free.sort() == Sort::NotFound => self.source.rename(aside, from, true).await,
                _ => Err(error),
            },
            renamed => renamed,
        }
    }

    fn stays(&self, from: &Key, reason: &str) -> Error {
        let reason = format!("{reason}; it stays where it is");
        Error::Store { name: shown(&*self.source, from), reason, sort: Sort::Request }
    }

    fn changed(&self, from: &Key) -> Stays {
        Stays { error: self.stays(from, CHANGED), is_copied: true }
    }

    /// Whether a file may have been changed while it was copied although it looks `now` as it did before, as `meta`.
    fn is_doubtful(&self, meta: &Meta, now: &Meta) -> bool {
        let Some(modified) = meta.modified.filter(|_| self.summed) else { return true };
        let close = if self.source.is_far() && modified.nanos == 0 { CLOSE_FAR } else { CLOSE };
        // Whoever sets a time back does not set back when that was done. With a hard link that is removed it changes, too.
        let touched = meta.identity.map(|identity| identity.changed) != now.identity.map(|identity| identity.changed);
        touched || modified.seconds >= self.began.seconds.saturating_sub(close)
    }

    /// Compares the bytes of a source, which is `at` now, and its copy: by checksums that both ends compute, or by reading both.
    async fn compare(&self, carried: &Carried, at: &Key, to: &Key) -> Result<(), Stays> {
        let (source, dest, from) = (&*self.source, &*self.dest, &carried.from);
        let much = if carried.meta.size.unwrap_or(u64::MAX) > LONG { AHEAD as u32 / LONG_AT_ONCE } else { 1 };
        // Nobody closes it.
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
            Err(error) if error.sort() != Sort::NotFound => return Err(error),
            _ => return Ok(false),
        }
        if !from.name().eq_ignore_ascii_case(to.name()) {
            return Ok(true);
        }
        // Whoever reaches the directory over NFS may remember the name that it had; nobody can remember the one that it has now.
        let Ok(there) = to.parent().join(aside.name()) else { return Ok(true) };
        match self.dest.stat(&there).await {
            Ok(_) => Ok(false),
            Err(error) if error.sort() == Sort::NotFound => Ok(true),
            Err(error) => Err(error),
        }
    }
}

/// Whether both are one file that was not changed, as far as that shows.
fn is_same(one: &Meta, other: &Meta) -> bool {
    let numbers = |meta: &Meta| meta.identity.map(|identity| (identity.device, identity.number));
    (one.kind, one.size, one.modified, numbers(one)) == (other.kind, other.size, other.modified, numbers(other))
        && one.kind == Kind::File
}

/// Whether the system said that this may not be done here, or that it is not there.
fn is_refusal(error: &Error) -> bool {
    use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<std::io::Error>());
    matches!(error.sort(), Sort::Denied | Sort::NotFound)
        || source.is_some_and(|source| matches!(source.kind(), PermissionDenied | ReadOnlyFilesystem))
}

/// The checksum that `store` tells of all of `key`.
async fn told(store: &dyn Store, key: &Key, algorithm: Algorithm) -> Result<Sum, Error> {
    let object = store.open(key).await?;
    object.checksum(algorithm, Extent::first(object.meta().size.unwrap_or(0))).await
}
