//! The directories that objects go to: at a far destination several are made at the same time, each after the one that it is in,
//! and again where that fails in a way that may pass. What is private at the source is private before anything is in it.

use super::one::{is_refused, shown};
use super::{Event, Job, Run};
use crate::error::{Error, Sort};
use crate::key::Key;
use crate::local::unmasked;
use crate::spawned::Spawned;
use crate::store::{Attributes, Kind, Meta};
use tokio::sync::watch;

/// A directory that is being made.
#[derive(Debug)]
pub(super) struct Making {
    task: Spawned<Result<Made, Error>>,
    /// How that has ended, once it has.
    ended: watch::Receiver<Option<End>>,
}

/// A directory that is there.
#[derive(Debug)]
struct Made {
    /// Whether it was not there before.
    is_new: bool,
    /// Why it could not be made private, which it was to be.
    open: Option<Error>,
}

/// What those that come into a directory have to know of it.
#[derive(Debug, Clone, Copy)]
enum End {
    /// Whether it is there is found by making what is in it.
    Tried,
    /// It could not be made private.
    Open(Sort),
}

impl Run<'_> {
    /// Begins to make the directory `key` of a far destination, for one that is `meta`.
    pub(super) fn begin_dir(&mut self, key: Key, meta: &Meta) {
        let job = self.job;
        if job.dry_run || !job.dest.is_far() || self.made.contains(&key) || self.making.contains_key(&key) {
            return;
        }
        let parent = key.parent();
        let above = match self.making.get(&parent) {
            Some(making) => Some(making.ended.clone()),
            None if self.closed.contains_key(&parent) => return,
            None if parent.is_root() || self.made.contains(&parent) => None,
            // The one that it is in could not be made, or is made in its own turn.
            None => return,
        };
        let (sender, ended) = watch::channel(None);
        let (job, dir, private) = (job.clone(), key.clone(), self.private_mode(meta));
        let task = Spawned::new(async move {
            if let Some(mut above) = above
                && let Ok(ended) = above.wait_for(Option::is_some).await
                && let Some(End::Open(sort)) = *ended
            {
                sender.send_replace(Some(End::Open(sort)));
                return Err(is_open(&job, &dir.parent(), sort));
            }
            let made = make(&job, &dir, private).await;
            let open = made.as_ref().ok().and_then(|made| made.open.as_ref());
            sender.send_replace(Some(open.map_or(End::Tried, |error| End::Open(error.sort()))));
            made
        });
        self.making.insert(key, Making { task, ended });
    }

    /// Makes the directory `key` for one that is `meta`, unless it is there.
    pub(super) async fn make_dir(&mut self, key: Key, meta: Meta) -> Result<(), Error> {
        let attributes = Attributes {
            mode: meta.mode.filter(|_| self.job.how.modes),
            modified: meta.modified.filter(|_| self.job.how.times),
        };
        self.job.watcher.saw(&Event::Dir { key: &key });
        self.report.dirs += 1;
        if !self.job.dry_run {
            if let Some(error) = self.is_in_closed(&key) {
                self.closed.insert(key, error.sort());
                return Err(error);
            }
            let open = self.ensure_dir(&key, self.private_mode(&meta)).await?;
            self.dirs.push((key.clone(), attributes));
            if !self.job.dest.is_far() && !self.new.contains(&key) {
                self.note_draft_dir(&key);
            }
            if let Some(error) = open {
                self.closed.insert(key, error.sort());
                return Err(error);
            }
        } else if !key.is_root()
            && let Ok(meta) = self.job.dest.stat(&key).await
            && meta.kind != Kind::Dir
        {
            // Making it would fail.
            return Err(Error::Exists { name: shown(&*self.job.dest, &key) });
        }
        Ok(())
    }

    /// Makes the directories above `key`, unless they are there.
    pub(super) async fn make_parents(&mut self, key: &Key) -> Result<(), Error> {
        let mut above = Vec::new();
        let mut parent = key.parent();
        while !parent.is_root() && !self.made.contains(&parent) {
            above.push(parent.clone());
            parent = parent.parent();
        }
        if !self.job.dry_run {
            for key in above.into_iter().rev() {
                self.ensure_dir(&key, None).await?;
            }
        }
        Ok(())
    }

    /// Notes the directory for drafts that an earlier run may have left in `dir`: its name is never taken from sources.
    pub(super) fn note_draft_dir(&self, dir: &Key) {
        if let Some(name) = &self.job.filter.never
            && let Ok(drafts) = dir.join(name)
        {
            self.job.dest.note_draft_dir(&drafts);
        }
    }

    /// Why nothing is put at `key`: it would be in a directory that should be private and is not.
    pub(super) fn is_in_closed(&self, key: &Key) -> Option<Error> {
        let dir = key.parent();
        self.closed.get(&dir).map(|sort| is_open(self.job, &dir, *sort))
    }

    /// The mode that a directory gets before anything is in it, if it is a private one. Its whole mode comes at the end: it may be one that
    /// cannot be written to.
    fn private_mode(&self, meta: &Meta) -> Option<u32> {
        let private = meta.mode.filter(|mode| mode & 0o055 != 0o055);
        private.map(|mode| 0o700 | if self.job.how.modes { mode } else { unmasked(mode) })
    }

    /// Makes the directory `key`, unless it is there, or waits for it. Gives why it could not be made private, if it was to be.
    async fn ensure_dir(&mut self, key: &Key, private: Option<u32>) -> Result<Option<Error>, Error> {
        if key.is_root() || self.made.contains(key) {
            return Ok(None);
        }
        let failed = |error| Err(Error::io(self.job.dest.name(), "make a directory of", std::io::Error::other(error)));
        let made = match self.making.remove(key) {
            Some(making) => making.task.end().await.unwrap_or_else(failed)?,
            None => make(self.job, key, private).await?,
        };
        if made.is_new {
            self.new.insert(key.clone());
        }
        self.made.insert(key.clone());
        Ok(made.open)
    }
}

/// What is said of things that would be in the directory `dir`.
fn is_open(job: &Job, dir: &Key, sort: Sort) -> Error {
    let reason = "it is to be private and could not be made so: nothing is put in it".to_owned();
    Error::Store { name: shown(&*job.dest, dir), reason, sort }
}

/// Makes the directory `key`, with this mode. One that was there keeps its own, unless modes are preserved.
async fn make(job: &Job, key: &Key, private: Option<u32>) -> Result<Made, Error> {
    let is_new = make_once(job, key).await?;
    let Some(mode) = private.filter(|_| (is_new || job.how.modes) && job.dest.sets_modes()) else {
        return Ok(Made { is_new, open: None });
    };
    let mode = Attributes { mode: Some(mode), modified: None };
    let open = match job.persist(key, || job.dest.set(key, mode)).await {
        // Of one that was there it is said at the end. Where nobody sets modes, none is set at the end either, which is told.
        Err(error) if is_new && !is_refused(&error) => Some(error),
        _ => None,
    };
    Ok(Made { is_new, open })
}

/// Makes the directory `key`; false if it was there.
async fn make_once(job: &Job, key: &Key) -> Result<bool, Error> {
    let mut attempt = 1;
    loop {
        let Err(error) = job.dest.make_dir(key).await else { return Ok(true) };
        // Far stores have many words for it: what counts is whether one is there.
        let error = match job.dest.stat_to_write(key).await {
            Ok(meta) if meta.kind == Kind::Dir => return Ok(false),
            // A link leads to one, and is not followed.
            Err(refused @ Error::Denied { .. }) if matches!(error, Error::Exists { .. }) => refused,
            Err(_) if error.sort() == Sort::NotFound && !key.is_root() => match job.dest.stat(&key.parent()).await {
                Err(absent) if absent.sort() == Sort::NotFound => Error::NoParent { name: shown(&*job.dest, key) },
                _ => error,
            },
            _ => error,
        };
        if !error.may_pass() || attempt >= job.retry.attempts {
            return Err(error);
        }
        let wait = job.retry.wait(attempt);
        job.watcher.saw(&Event::Again { to: key, error: &error, wait });
        tokio::time::sleep(wait).await;
        attempt += 1;
    }
}
