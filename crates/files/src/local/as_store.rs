//! A local directory as a store.

use super::draft::LocalDraft;
use super::listing::LocalListing;
use super::read::LocalObject;
use super::rename::{leave_other_link, release};
use super::unsynced::Unsynced;
use super::{Local, meta_of};
use crate::disk::{Disk, DiskFile, Linux};
use crate::draft::{Start, Work, draft_beside, is_draft, is_part, link_part};
use crate::error::{Error, ErrorKind};
use crate::key::Key;
use crate::store::{
    Attributes, Begun, Boxed, Draft, Fallible, Kind, Listing, Meta, Object, Spec, Store, ThreadStore, Time,
};
use crate::sum::Algorithm;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

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
                // A link replaces another as a file does: it is made under a hidden name and renamed. The name is
                // unpredictable, since others could otherwise make it first or change it.
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
        Box::pin(LocalListing::of(self, key, false))
    }

    fn list_all<'a>(&'a self, key: &'a Key) -> Fallible<'a, Box<dyn Listing>> {
        Box::pin(LocalListing::of(self, key, true))
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
            let give_up = Instant::now() + LOCK_WAIT_MAX;
            let start = loop {
                let (key, spec) = (key.clone(), spec.clone());
                match self.run(move |store| store.begin(key, mode, &spec)).await {
                    // Others on this thread go on meanwhile. One of them may have the lock.
                    Err(Error::Busy { .. }) if Instant::now() < give_up => tokio::time::sleep(LOCK_AGAIN).await,
                    start => break start?,
                }
            };
            Ok(match start {
                (key, Start::Work(work)) => {
                    Begun::Draft(Arc::new(LocalDraft { store: self.clone(), dir: key.parent(), work: Arc::from(work) }))
                }
                (_, Start::Done) => Begun::Done,
            })
        })
    }

    fn edit<'a>(&'a self, key: &'a Key) -> Fallible<'a, Arc<dyn Draft>> {
        Box::pin(async move { Ok(Arc::new(self.open_in_place(key, false).await?.0) as _) })
    }

    fn append<'a>(&'a self, key: &'a Key) -> Fallible<'a, (Arc<dyn Draft>, u64)> {
        Box::pin(async move {
            let (edit, size) = self.open_in_place(key, true).await?;
            Ok((Arc::new(edit) as _, size))
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
            let to = &self.renamed_to(from, to).await?;
            let (new, mask) = (to.clone(), self.0.mask);
            let renamed = self.call(from, "rename", move |disk, from| {
                // A user who can rename beside a client's draft could have another file published in its place.
                if is_draft(from.name()) && from.parent() != new.parent() && disk.is_shared(&from.parent())? {
                    let why = "it is a draft in a directory that others may write to";
                    return Err(std::io::Error::new(std::io::ErrorKind::PermissionDenied, why));
                }
                let held = if is_part(new.name()) { None } else { release(disk, from, &new, mask)? };
                // A file that keeps its name stays as private as it was.
                disk.rename(from, &new, replace).inspect_err(|_| drop(held.map(|file| file.hold())))?;
                if replace { leave_other_link(disk, from, &new) } else { Ok(()) }
            });
            renamed.await.map_err(|error| match error {
                // The system has no error of its own for this.
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

    fn on_this_thread(&self) -> Option<Arc<dyn ThreadStore>> {
        Some(Arc::new(self.here()))
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
                // A directory with a draft stays.
                if self.call(&dir, "remove the directory", Linux::remove_dir).await.is_ok() {
                    self.changed(dir.parent());
                }
            }
        })
    }

    fn settle(&self) -> Fallible<'_, ()> {
        Box::pin(async move {
            // Whoever comes second waits: the first may be syncing a change of the second's.
            let _alone = self.0.settling.lock().await;
            let mut unsynced = Unsynced::take(&self.0.unsynced);
            while let Some(dir) = unsynced.next().cloned() {
                let synced = self.call(&dir, "sync the directory", |disk, dir| match disk.sync_dir(dir) {
                    // A directory that was removed since is synced with its parent.
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
                    other => other,
                });
                let synced = synced.await;
                // The next caller tries again what failed, for changes may be its own. A directory that cannot be
                // opened concerns this caller alone.
                if synced.as_ref().is_err_and(|error| error.kind() != ErrorKind::Denied) {
                    return synced;
                }
                unsynced.mark_synced(&dir);
                synced?;
            }
            Ok(())
        })
    }
}

/// Longest wait for a lock: dropped tasks release theirs once their last write returns.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(2);

/// Interval between attempts at the lock.
const LOCK_AGAIN: Duration = Duration::from_millis(20);

impl Local {
    /// Begins the draft of `key`. Returns the key, too.
    fn begin(&self, key: Key, mode: u32, spec: &Spec) -> Result<(Key, Start<Linux>), Error> {
        if let Some(batch_sync) = self.1.batch_sync() {
            batch_sync.open(&self.0.disk);
        }
        let home = self.draft_home(&key)?;
        let begin = || {
            let named = (self.label(&key), mode);
            Work::begin(&self.0.disk, (&key, &home), named, spec.clone(), self.0.journal_from)
        };
        let start = match begin() {
            // Another process has removed the empty directory.
            Err(error) if home != key && error.kind() == ErrorKind::NotFound => {
                self.draft_home(&key)?;
                begin()
            }
            start => start,
        };
        Ok((key, start?))
    }
}

impl ThreadStore for Local {
    fn sync_drafts(&self) -> bool {
        // A sync of open files needs no identity.
        self.1.batch_sync().is_some_and(|batch_sync| batch_sync.sync(&self.0.disk))
    }
}
