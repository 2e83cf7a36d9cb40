//! Moves between stores or file systems: each file is copied as by `phoebus cp`, and its source is removed only after
//! the copy is published, verified and durable, and only if the source has not changed.

mod aside;
mod behind;
mod counterpart;
mod exposed_copies;
mod leave;
mod same;

pub use aside::put_back_one;
pub use same::must_not_lead_to;

use crate::listing;
use crate::outcomes::Outcomes;
use crate::place::shown;
use behind::SymlinkDetector;
use counterpart::{Counterparts, is_marker, not_there};
use exposed_copies::ExposedCopies;
use leave::{Leaving, Stays};
use phoebus_files::job::{Event, Job, Watcher};
use phoebus_files::key::Key;
use phoebus_files::plan::{Existing, Filter, Reason};
use phoebus_files::range::Extent;
use phoebus_files::store::{Kind, Meta, Store, Time, TriedDir};
use phoebus_files::sum::{Algorithm, Hasher, Sum};
use phoebus_files::{Check, DirNature, Error, ErrorKind, Side, TransferOptions, Verify, drain, is_engines};
use std::collections::{HashMap, HashSet};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::SystemTime;
use tokio::io::AsyncWrite;
use tokio::sync::RwLock;

/// Moves `from` in `source` to `to` in `dest`; with `replace`, over existing files. Each removal of a source holds
/// `leaving` for reading, also after this is dropped. Reports each file and directory to `outcomes`.
pub async fn move_by_copy(
    source: &Arc<dyn Store>,
    from: &Key,
    dest: &Arc<dyn Store>,
    to: &Key,
    replace: bool,
    leaving: &Arc<RwLock<()>>,
    outcomes: &mut impl Outcomes,
) {
    aside::put_back_one(&**source, from, outcomes).await;
    let mut behind = SymlinkDetector::new(source.clone(), from.clone());
    let own = match source.stat_link(from).await {
        Ok(meta) if meta.kind == Kind::Dir => behind.of_top().await,
        Ok(meta) if meta.kind == Kind::Link => Ok(DirNature::Link),
        // The copy reports a missing or unreadable source.
        _ => Ok(DirNature::Yes),
    };
    // The target of a link would be copied and removed, which nobody has asked for.
    let stays = match &own {
        Ok(DirNature::Yes | DirNature::Likely) => None,
        Ok(DirNature::Link) => {
            let reason = "a symbolic link cannot be moved there, and stays where it is".to_owned();
            Some(Error::Store { name: shown(&**source, from), reason, kind: ErrorKind::Request })
        }
        Ok(DirNature::Unknown) => Some(Error::MayBeLink { name: shown(&**source, from) }),
        Err(error) => Some(error.again()),
    };
    if let Some(error) = stays {
        outcomes.check::<()>(Err(error));
        return;
    }
    let (noted, began) = (Arc::new(Noted::default()), Time::from(SystemTime::now()));
    // The source will not be there to compare with: without checksums of servers, both are read again.
    let sums = Check::choose(Verify::Flight(None), &(&**source).into(), &Side::from(&**dest)).is_ok();
    let verify = if sums { Verify::Flight(None) } else { Verify::Possible };
    let mut filter = Filter::default();
    // It is renamed back, and has another copy at the destination.
    let _ = filter.exclude(aside::PATTERN);
    let job = Job {
        how: TransferOptions { verify, times: true, modes: true, ..TransferOptions::default() },
        existing: if replace { Existing::Replace } else { Existing::Refuse },
        filter: Arc::new(filter),
        watcher: noted.clone(),
        ..Job::new(source.clone(), dest.clone())
    };
    let report = job.run([(from.clone(), to.clone())]).await;
    outcomes.modes_unknown(report.modes_unknown);
    for (_, error) in report.failures {
        outcomes.check::<()>(Err(error));
    }
    for (key, kind) in std::mem::take(&mut noted.state().left) {
        let what = match kind {
            Kind::Other => "a socket, a pipe or a disk",
            kind => kind.described(),
        };
        let reason = format!("{what} cannot be copied, and stays where it is");
        let name = shown(&**source, &key);
        outcomes.check::<()>(Err(Error::Store { name, reason, kind: ErrorKind::Request }));
    }
    let State { moved, failed, gone, unlisted, .. } = std::mem::take(&mut *noted.state());
    for (dir, reason) in &unlisted {
        let reason = format!("the sources of files copied to it stay, because it could not be listed: {reason}");
        outcomes.check::<()>(Err(Error::Store { name: shown(&**dest, dir), reason, kind: ErrorKind::Other }));
    }
    for key in &gone {
        let reason = "it disappeared right after it was copied, and its source stays where it is".to_owned();
        outcomes.check::<()>(Err(Error::Store { name: shown(&**dest, key), reason, kind: ErrorKind::Other }));
    }
    if report.unsettled {
        let reason = "it stays where it is, since its copy could not be made durable".to_owned();
        outcomes.check::<()>(Err(Error::Store { name: shown(&**source, from), reason, kind: ErrorKind::Other }));
        return;
    }
    let mut counterparts = Counterparts::new((source, from), (dest, to), &moved, failed.clone(), leaving);
    // The question whether a directory is a link removes an empty one, which would be removed at the end anyway.
    if matches!(own, Ok(DirNature::Likely)) && !moved.iter().any(|(_, carried)| carried.from == *from) {
        if moved.is_empty() && outcomes.has_failed() {
            return;
        }
        // The question removes no directory with something in it.
        if outcomes.check(counterparts.must_be_two(!moved.is_empty()).await).is_none() {
            return;
        }
        let name = shown(&**source, from);
        let stays = match source.try_dir(from).await {
            Ok(TriedDir::Removed | TriedDir::NotEmpty) => None,
            Ok(TriedDir::NotDir) => {
                let reason = "it is a symbolic link: what it leads to was copied, and stays".to_owned();
                Some(Error::Store { name, reason, kind: ErrorKind::Request })
            }
            Ok(TriedDir::Refused) => Some(Error::MayBeLink { name }),
            Err(error) => Some(error),
        };
        if let Some(error) = stays {
            outcomes.done(moved.len() as u64);
            outcomes.check::<()>(Err(error));
            return;
        }
    }
    let stays = |to: &Key| failed.contains(to) || gone.contains(to) || unlisted.contains_key(&to.parent());
    let (mut own, mut open) = (Vec::new(), ExposedCopies::new(&**source, &**dest, from));
    for (to, carried) in moved.into_iter().filter(|(to, _)| !stays(to)) {
        if let Some(error) = open.why_stays(&carried, &to).await {
            outcomes.done(1);
            outcomes.check::<()>(Err(error));
            continue;
        }
        // A single file is its own top.
        match carried.from == *from || behind.is_own(&carried.from.parent()).await {
            true => own.push((to, carried)),
            false => outcomes.done(1),
        }
    }
    let mut is_apart = false;
    let left = |left: Result<(), Stays>| {
        is_apart |= left.is_ok();
        let is_copied = left.as_ref().err().is_some_and(|stays| stays.is_copied);
        // A source that stays has a copy all the same.
        outcomes.done(u64::from(is_copied));
        outcomes.note(left.map_err(|stays| stays.error));
    };
    Leaving::new(source.clone(), dest.clone(), sums, began).leave_all(own, leaving, left).await;
    match source.stat(from).await {
        Ok(meta) if meta.kind == Kind::Dir => match outcomes.check(counterparts.must_be_two(is_apart).await) {
            Some(()) => remove_dirs(&**source, from, &mut counterparts, &mut behind, outcomes).await,
            None => remove_markers(&**source, from).await,
        },
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => drop(outcomes.check::<()>(Err(error))),
    }
    for error in counterparts.restore().await {
        outcomes.check::<()>(Err(error));
    }
    for error in behind.stays {
        outcomes.check::<()>(Err(error));
    }
    outcomes.check(source.settle().await);
}

/// A file at the destination.
#[derive(Debug)]
struct Carried {
    from: Key,
    /// The source as it was found, before it was opened.
    meta: Meta,
    /// Whether the destination existed before.
    replaced: bool,
}

/// The events of a job that concern sources.
#[derive(Debug, Default)]
struct Noted(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// By destination.
    begun: HashMap<Key, Carried>,
    moved: Vec<(Key, Carried)>,
    left: Vec<(Key, Kind)>,
    /// Carried objects that are missing under their names.
    failed: HashSet<Key>,
    /// Carried objects that somebody has removed.
    gone: HashSet<Key>,
    /// Directories whose names were not checked, and why.
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
    drain(&object, whole, &mut summing, "a checksum", None, &TransferOptions::default()).await?;
    Ok(summing.0.finish())
}

/// Everything written is hashed.
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

/// A directory whose content should be gone.
struct Emptied {
    key: Key,
    /// Drafts and their journals.
    drafts: Vec<Key>,
    /// Whether it has nothing else but directories.
    alone: bool,
}

/// Removes the emptied directories of a tree. Other content came meanwhile, or could not be moved. Unused drafts are
/// removed with a directory that has nothing else. Possible links stay. Files that an earlier move has put aside are
/// renamed back.
async fn remove_dirs(
    store: &dyn Store,
    top: &Key,
    counterparts: &mut Counterparts<'_>,
    behind: &mut SymlinkDetector,
    outcomes: &mut impl Outcomes,
) {
    let (mut dirs, mut to_read, mut staying) = (Vec::new(), vec![top.clone()], HashSet::new());
    while let Some(dir) = to_read.pop() {
        let entries = match listing::entries(store, &dir, true).await {
            // The question whether it is a link may have removed an empty one.
            Err(error) if error.kind() == ErrorKind::NotFound && dir != *top => continue,
            entries => entries,
        };
        let Some(entries) = outcomes.check(entries) else {
            staying.insert(dir.parent());
            continue;
        };
        let mut emptied = Emptied { key: dir.clone(), drafts: Vec::new(), alone: true };
        for entry in entries {
            let Some(key) = outcomes.check(listing::join(store, &dir, &entry)) else { continue };
            match entry.meta.kind {
                Kind::Dir if is_marker(&dir, &entry.name) && store.remove_dir(&key).await.is_ok() => {}
                Kind::Dir => {
                    let has = outcomes.check(counterparts.has(&key).await);
                    if has == Some(true) && behind.is_own(&key).await {
                        if !behind.was_removed(&key) {
                            to_read.push(key);
                        }
                        continue;
                    }
                    // Another reason has been reported.
                    if has == Some(false) {
                        outcomes.check::<()>(Err(not_there(store, &key)));
                        remove_markers(store, &key).await;
                    }
                    emptied.alone = false;
                    staying.insert(dir.clone());
                }
                // Whether other engines' drafts are in use is unknown.
                _ if is_engines(&entry.name) => emptied.drafts.push(key),
                _ => {
                    emptied.alone = false;
                    aside::put_back(store, &key, outcomes).await;
                }
            }
        }
        dirs.push(emptied);
    }
    for dir in dirs.iter().rev() {
        if dir.alone && !staying.contains(&dir.key) {
            for draft in &dir.drafts {
                match store.discard(draft, None).await {
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    discarded => drop(outcomes.check(discarded)),
                }
            }
        }
        let removed = store.remove_dir(&dir.key).await;
        if removed.is_err() {
            staying.insert(dir.key.parent());
        }
        outcomes.note(removed);
    }
}

/// Removes the markers of killed moves in `dir`, which stays.
async fn remove_markers(store: &dyn Store, dir: &Key) {
    // A marker that stays is an empty directory, which does no harm.
    for entry in listing::entries(store, dir, true).await.unwrap_or_default() {
        if entry.meta.kind == Kind::Dir
            && is_marker(dir, &entry.name)
            && let Ok(key) = dir.join(&entry.name)
        {
            let _ = store.remove_dir(&key).await;
        }
    }
}

#[cfg(test)]
mod tests;
