//! `phoebus mv` from one store to another, and from one file system to another: each file is copied as `phoebus cp` does it, and its source
//! is removed only once the copy is published under its name, verified and durable, and only if nothing has changed the source since.

use super::{Tally, ls};
use crate::place::shown;
use phoebus_files::job::{Event, Job, Watcher};
use phoebus_files::key::Key;
use phoebus_files::plan::{Existing, Reason};
use phoebus_files::range::Extent;
use phoebus_files::store::{Kind, Meta, Store};
use phoebus_files::sum::{Algorithm, Hasher, Sum};
use phoebus_files::{Check, Error, How, Side, Sort, Verify, drain, is_engines};
use std::collections::{HashMap, HashSet};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use tokio::io::AsyncWrite;

/// What a source is called while it is looked whether its copy is another file: where what is at the destination vanishes with it, the two
/// are one file by two names.
const ASIDE: &str = "phoebus-moved";

/// Moves `from` in `source` to `to` in `dest`, replacing what is there if `replace`.
pub(super) async fn move_by_copy(
    source: &Arc<dyn Store>,
    from: &Key,
    dest: &Arc<dyn Store>,
    to: &Key,
    replace: bool,
    tally: &mut Tally,
) {
    if matches!(source.stat_link(from).await, Ok(meta) if meta.kind == Kind::Link) {
        // What it leads to would be copied and removed, of which nobody has spoken.
        let reason = "a symbolic link cannot be moved there, and stays where it is".to_owned();
        tally.check::<()>(Err(Error::Store { name: shown(&**source, from), reason, sort: Sort::Request }));
        return;
    }
    let noted = Arc::new(Noted::default());
    // The source will not be there to compare with: where servers compute no checksums, both are read again.
    let sums = Check::choose(Verify::Flight(None), &(&**source).into(), &Side::from(&**dest)).is_ok();
    let verify = if sums { Verify::Flight(None) } else { Verify::Possible };
    let job = Job {
        how: How { verify, times: true, modes: true, ..How::default() },
        existing: if replace { Existing::Replace } else { Existing::Refuse },
        watcher: noted.clone(),
        ..Job::new(source.clone(), dest.clone())
    };
    let report = job.run([(from.clone(), to.clone())]).await;
    for (_, error) in report.failures {
        tally.check::<()>(Err(error));
    }
    for (key, kind) in std::mem::take(&mut noted.state().left) {
        let kind = format!("{kind:?}").to_lowercase();
        let reason = format!("a {kind} cannot be copied, and stays where it is");
        // Keys of what is left begin at the top of the tree.
        let name = shown(&**source, &from.beneath(&key).unwrap_or(key));
        tally.check::<()>(Err(Error::Store { name, reason, sort: Sort::Request }));
    }
    let (moved, failed) = {
        let mut state = noted.state();
        (std::mem::take(&mut state.moved), std::mem::take(&mut state.failed))
    };
    if report.unsettled {
        let reason = "it stays where it is, since its copy could not be made durable".to_owned();
        tally.check::<()>(Err(Error::Store { name: shown(&**source, from), reason, sort: Sort::Other }));
        return;
    }
    let mut apart = Apart::new();
    for (to, carried) in moved.into_iter().filter(|(to, _)| !failed.contains(to)) {
        let removed = leave(&**source, &carried, &**dest, &to, sums, &mut apart).await;
        tally.note(removed);
    }
    if matches!(source.stat(from).await, Ok(meta) if meta.kind == Kind::Dir) {
        remove_dirs(&**source, from, tally).await;
    }
    tally.check(source.settle().await);
}

/// A file that is at the destination.
#[derive(Debug)]
struct Carried {
    from: Key,
    /// The source when it was found, which was before it was opened.
    meta: Meta,
    /// Whether something was at the destination before.
    replaced: bool,
}

/// What a job tells, as far as sources are concerned.
#[derive(Debug, Default)]
struct Noted(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// By what they become.
    begun: HashMap<Key, Carried>,
    moved: Vec<(Key, Carried)>,
    left: Vec<(Key, Kind)>,
    /// What was carried, and does not have its name.
    failed: HashSet<Key>,
}

impl Noted {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watcher for Noted {
    fn saw(&self, event: &Event<'_>) {
        let mut state = self.state();
        match event {
            Event::Carry { from, to, meta, reason } => {
                let replaced = *reason != Reason::New;
                state.begun.insert((*to).clone(), Carried { from: (*from).clone(), meta: **meta, replaced });
            }
            Event::Carried { to, .. } => {
                if let Some(carried) = state.begun.remove(to) {
                    state.moved.push(((*to).clone(), carried));
                }
            }
            Event::Failed { key, .. } => drop(state.failed.insert((*key).clone())),
            Event::Left { key, kind } => state.left.push(((*key).clone(), *kind)),
            _ => {}
        }
    }
}

/// Removes the source of a file that is at `to`, if it is still what was copied; `summed`: the two were compared by checksums.
async fn leave(
    source: &dyn Store,
    carried: &Carried,
    dest: &dyn Store,
    to: &Key,
    summed: bool,
    apart: &mut Apart,
) -> Result<(), Error> {
    // Where no times are told, only the bytes say whether the source was changed since.
    if !summed || carried.meta.modified.is_none() {
        compare(source, carried, dest, to).await?;
    }
    remove(source, carried, dest, to, apart).await
}

/// Compares the bytes of a source and its copy by reading both.
async fn compare(source: &dyn Store, carried: &Carried, dest: &dyn Store, to: &Key) -> Result<(), Error> {
    let (expected, found) = tokio::try_join!(sum_of(source, &carried.from), sum_of(dest, to))?;
    if expected == found { Ok(()) } else { Err(Error::Mismatch { name: shown(dest, to), expected, found }) }
}

async fn sum_of(store: &dyn Store, key: &Key) -> Result<Sum, Error> {
    let object = store.open(key).await?;
    let whole = Extent::first(object.meta().size.unwrap_or(0));
    let mut summing = Summing(Hasher::new(Algorithm::Crc32c));
    drain(&object, whole, &mut summing, "a checksum", None, &How::default()).await?;
    Ok(summing.0.finish())
}

/// Whatever is written goes into a checksum.
struct Summing(Hasher);

impl AsyncWrite for Summing {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.update(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Directories of the source and of the destination that were seen to be two, and not one by two names.
type Apart = HashSet<(Key, Key)>;

/// Removes the source of a file that is at `to`, unless the two are one.
async fn remove(
    source: &dyn Store,
    carried: &Carried,
    dest: &dyn Store,
    to: &Key,
    apart: &mut Apart,
) -> Result<(), Error> {
    let Carried { from, meta, replaced } = carried;
    let stays = |reason: &str| {
        let name = shown(source, from);
        Error::Store { name, reason: format!("{reason}; it stays where it is"), sort: Sort::Request }
    };
    let now = source.stat(from).await?;
    if (now.kind, now.size, now.modified) != (meta.kind, meta.size, meta.modified) {
        return Err(stays("it was changed while it was copied"));
    }
    // What a server has is known by its listing, which may leave out names that are there. It is tried once for each directory.
    let dirs = (from.parent(), to.parent());
    if !replaced && (!dest.is_far() || apart.contains(&dirs)) {
        return source.remove(from).await;
    }
    let mut name = b".".to_vec();
    name.extend_from_slice(from.name());
    name.extend_from_slice(format!(".{ASIDE}").as_bytes());
    let aside = from.parent().join(&name).map_err(|error| stays(&error.to_string()))?;
    source.rename(from, &aside, false).await?;
    match dest.stat(to).await {
        Ok(there) if there.size == meta.size => {
            if from.name() == to.name() {
                apart.insert(dirs);
            }
            source.remove(&aside).await
        }
        other => {
            source.rename(&aside, from, false).await?;
            Err(match other {
                Err(error) if error.sort() != Sort::NotFound => error,
                _ => stays(&format!("{} is the same file by another name", shown(dest, to))),
            })
        }
    }
}

/// Removes the directories of a tree, of which nothing else is left; what is in them came meanwhile, or could not be moved. Drafts that no
/// transfer is writing go with the directory that has nothing else.
async fn remove_dirs(store: &dyn Store, top: &Key, tally: &mut Tally) {
    let (mut dirs, mut to_read) = (Vec::new(), vec![top.clone()]);
    while let Some(dir) = to_read.pop() {
        let Some(entries) = tally.check(ls::entries(store, &dir, true).await) else { continue };
        for entry in entries.iter().filter(|entry| entry.meta.kind == Kind::Dir) {
            to_read.extend(tally.check(ls::join(store, &dir, entry)));
        }
        // Who writes the drafts of other engines is not known.
        if entries.iter().all(|entry| entry.meta.kind == Kind::Dir || is_engines(&entry.name)) {
            for entry in entries.iter().filter(|entry| entry.meta.kind != Kind::Dir) {
                let Some(key) = tally.check(ls::join(store, &dir, entry)) else { continue };
                match store.discard(&key, None).await {
                    Err(error) if error.sort() == Sort::NotFound => {}
                    discarded => drop(tally.check(discarded)),
                }
            }
        }
        dirs.push(dir);
    }
    for dir in dirs.iter().rev() {
        tally.note(store.remove_dir(dir).await);
    }
}

#[cfg(test)]
mod tests;
