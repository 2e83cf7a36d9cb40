//! `phoebus mv` from one store to another, and from one file system to another: each file is copied as `phoebus cp` does it, and its source
//! is removed only once the copy is published under its name, verified and durable, and only if nothing has changed the source since.

pub(super) mod aside;
mod behind;
mod leave;

use super::{Tally, ls};
use crate::place::shown;
use behind::Behind;
use leave::{Leaving, Stays};
use phoebus_files::job::{Event, Job, Watcher};
use phoebus_files::key::Key;
use phoebus_files::plan::{Existing, Filter, Reason};
use phoebus_files::range::Extent;
use phoebus_files::store::{Kind, Meta, Store, Time, TriedDir};
use phoebus_files::sum::{Algorithm, Hasher, Sum};
use phoebus_files::{Check, Error, How, Own, Side, Sort, Verify, drain, is_engines};
use std::collections::{HashMap, HashSet};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::SystemTime;
use tokio::io::AsyncWrite;
use tokio::sync::RwLock;

/// Moves `from` in `source` to `to` in `dest`, replacing what is there if `replace`. Each source that is being removed has `leaving` for
/// reading, also where this is dropped meanwhile.
pub(super) async fn move_by_copy(
    source: &Arc<dyn Store>,
    from: &Key,
    dest: &Arc<dyn Store>,
    to: &Key,
    replace: bool,
    leaving: &Arc<RwLock<()>>,
    tally: &mut Tally,
) {
    aside::put_back_one(&**source, from, tally).await;
    let mut behind = Behind::new(source.clone(), from.clone());
    let own = match source.stat_link(from).await {
        Ok(meta) if meta.kind == Kind::Dir => behind.of_top().await,
        Ok(meta) if meta.kind == Kind::Link => Ok(Own::Link),
        // What is not there, or cannot be asked about, the copy tells of.
        _ => Ok(Own::Yes),
    };
    // What a link leads to would be copied and removed, of which nobody has spoken.
    let stays = match &own {
        Ok(Own::Yes | Own::Likely) => None,
        Ok(Own::Link) => {
            let reason = "a symbolic link cannot be moved there, and stays where it is".to_owned();
            Some(Error::Store { name: shown(&**source, from), reason, sort: Sort::Request })
        }
        Ok(Own::Unknown) => Some(Error::MayBeLink { name: shown(&**source, from) }),
        Err(error) => Some(error.again()),
    };
    if let Some(error) = stays {
        tally.check::<()>(Err(error));
        return;
    }
    let (noted, began) = (Arc::new(Noted::default()), Time::from(SystemTime::now()));
    // The source will not be there to compare with: where servers compute no checksums, both are read again.
    let sums = Check::choose(Verify::Flight(None), &(&**source).into(), &Side::from(&**dest)).is_ok();
    let verify = if sums { Verify::Flight(None) } else { Verify::Possible };
    let mut filter = Filter::default();
    // It gets its name again, and has another copy there.
    let _ = filter.exclude(aside::PATTERN);
    let job = Job {
        how: How { verify, times: true, modes: true, ..How::default() },
        existing: if replace { Existing::Replace } else { Existing::Refuse },
        filter: Arc::new(filter),
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
    let State { moved, failed, gone, unlisted, .. } = std::mem::take(&mut *noted.state());
    for (dir, reason) in &unlisted {
        let reason = format!("what was copied to it stays where it was, since its names were not looked at: {reason}");
        tally.check::<()>(Err(Error::Store { name: shown(&**dest, dir), reason, sort: Sort::Other }));
    }
    for key in &gone {
        let reason = "it was taken away as soon as it was there, and its source stays where it is".to_owned();
        tally.check::<()>(Err(Error::Store { name: shown(&**dest, key), reason, sort: Sort::Other }));
    }
    if report.unsettled {
        let reason = "it stays where it is, since its copy could not be made durable".to_owned();
        tally.check::<()>(Err(Error::Store { name: shown(&**source, from), reason, sort: Sort::Other }));
        return;
    }
    // A directory of which all was copied may go by being asked: it would go at the end.
    if matches!(own, Ok(Own::Likely)) && !moved.iter().any(|(_, carried)| carried.from == *from) {
        if moved.is_empty() && tally.number() != 0 {
            return;
        }
        let name = shown(&**source, from);
        let stays = match source.try_dir(from).await {
            Ok(TriedDir::Removed | TriedDir::NotEmpty) => None,
            Ok(TriedDir::NotDir) => {
                let reason = "it is a symbolic link: what it leads to was copied, and stays".to_owned();
                Some(Error::Store { name, reason, sort: Sort::Request })
            }
            Ok(TriedDir::Refused) => Some(Error::MayBeLink { name }),
            Err(error) => Some(error),
        };
        if let Some(error) = stays {
            tally.done += moved.len() as u64;
            tally.check::<()>(Err(error));
            return;
        }
    }
    let stays = |to: &Key| failed.contains(to) || gone.contains(to) || unlisted.contains_key(&to.parent());
    let mut own = Vec::new();
    for (to, carried) in moved.into_iter().filter(|(to, _)| !stays(to)) {
        // A file by itself is what was named.
        match carried.from == *from || behind.is_own(&carried.from.parent()).await {
            true => own.push((to, carried)),
            false => tally.done += 1,
        }
    }
    let left = |left: Result<(), Stays>| {
        let is_copied = left.as_ref().err().is_some_and(|stays| stays.is_copied);
        // Of a source that stays there is a copy all the same.
        tally.done += u64::from(is_copied);
        tally.note(left.map_err(|stays| stays.error));
    };
    Leaving::new(source.clone(), dest.clone(), sums, began).leave_all(own, leaving, left).await;
    if matches!(source.stat(from).await, Ok(meta) if meta.kind == Kind::Dir) {
        remove_dirs(&**source, from, &mut behind, tally).await;
    }
    for error in behind.stays {
        tally.check::<()>(Err(error));
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
    /// What was carried, and was taken away.
    gone: HashSet<Key>,
    /// The directories whose names were not looked at, and why.
    unlisted: HashMap<Key, String>,
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
            Event::Gone { key } => drop(state.gone.insert((*key).clone())),
            Event::Unlisted { dir, reason } => drop(state.unlisted.insert((*dir).clone(), (*reason).to_owned())),
            Event::Left { key, kind, .. } => state.left.push(((*key).clone(), *kind)),
            _ => {}
        }
    }
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

/// A directory of which nothing should be left.
struct Emptied {
    key: Key,
    /// Drafts and their journals.
    drafts: Vec<Key>,
    /// Whether nothing else is in it but directories.
    alone: bool,
}

/// Removes the directories of a tree, of which nothing else is left; what is in them came meanwhile, or could not be moved. Drafts that no
/// transfer is writing go with the directory that has nothing else. What may be a link stays. What an earlier move has put aside gets its name again.
async fn remove_dirs(store: &dyn Store, top: &Key, behind: &mut Behind, tally: &mut Tally) {
    let (mut dirs, mut to_read, mut staying) = (Vec::new(), vec![top.clone()], HashSet::new());
    while let Some(dir) = to_read.pop() {
        let entries = match ls::entries(store, &dir, true).await {
            // An empty one may have gone when it was asked whether it is a link.
            Err(error) if error.sort() == Sort::NotFound && dir != *top => continue,
            entries => entries,
        };
        let Some(entries) = tally.check(entries) else {
            staying.insert(dir.parent());
            continue;
        };
        let mut emptied = Emptied { key: dir.clone(), drafts: Vec::new(), alone: true };
        for entry in entries {
            let Some(key) = tally.check(ls::join(store, &dir, &entry)) else { continue };
            match entry.meta.kind {
                Kind::Dir if behind.is_own(&key).await => to_read.push(key),
                // It is told of.
                Kind::Dir => emptied.alone = false,
                // Who writes the drafts of other engines is not known.
                _ if is_engines(&entry.name) => emptied.drafts.push(key),
                _ => {
                    emptied.alone = false;
                    aside::put_back(store, &key, tally).await;
                }
            }
        }
        dirs.push(emptied);
    }
    for dir in dirs.iter().rev() {
        if dir.alone && !staying.contains(&dir.key) {
            for draft in &dir.drafts {
                match store.discard(draft, None).await {
                    Err(error) if error.sort() == Sort::NotFound => {}
                    discarded => drop(tally.check(discarded)),
                }
            }
        }
        let removed = store.remove_dir(&dir.key).await;
        if removed.is_err() {
            staying.insert(dir.key.parent());
        }
        tally.note(removed);
    }
}

#[cfg(test)]
mod tests;
