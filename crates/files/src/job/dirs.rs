//! Creates directories for objects. At a remote destination, several are created at a time, each after its parent, with
//! retries. A directory that is private at the source is private before anything is in it.

use super::one::{is_refused, shown};
use super::{Event, Job, Run};
use crate::error::{Error, ErrorKind};
use crate::key::Key;
use crate::local::unmasked;
use crate::spawned::Spawned;
use crate::store::{Attributes, Kind, Meta};
use tokio::sync::watch;

/// A directory that is being created.
#[derive(Debug)]
pub(super) struct Making {
    task: Spawned<Result<CreatedDir, Error>>,
    /// The result, once known.
    ended: watch::Receiver<Option<End>>,
}

/// An existing directory.
#[derive(Debug)]
struct CreatedDir {
    /// Whether it is new.
    is_new: bool,
    /// Why it could not be made private although it should.
    open: Option<Error>,
}

/// What objects in a directory need to know about it.
#[derive(Debug, Clone, Copy)]
enum End {
    /// Whether it exists shows when something is created in it.
    Tried,
    /// It could not be made private.
    Open(ErrorKind),
}

impl Run<'_> {
    /// Starts to create the directory `key` at a remote destination, for the source directory `meta`.
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
            // The parent failed, or is created in its own turn.
            None => return,
        };
        let (sender, ended) = watch::channel(None);
        let (job, dir, private) = (job.clone(), key.clone(), self.private_mode(meta));
        let task = Spawned::new(async move {
            if let Some(mut above) = above
                && let Ok(ended) = above.wait_for(Option::is_some).await
                && let Some(End::Open(kind)) = *ended
            {
                sender.send_replace(Some(End::Open(kind)));
                return Err(is_open(&job, &dir.parent(), kind));
            }
            let made = make(&job, &dir, private).await;
            let open = made.as_ref().ok().and_then(|made| made.open.as_ref());
            sender.send_replace(Some(open.map_or(End::Tried, |error| End::Open(error.kind()))));
            made
        });
        self.making.insert(key, Making { task, ended });
    }

    /// Creates the directory `key` for the source directory `meta`, unless it exists.
    pub(super) async fn make_dir(&mut self, key: Key, meta: Meta) -> Result<(), Error> {
        let attributes = Attributes {
            mode: meta.mode.filter(|_| self.job.how.modes),
            modified: meta.modified.filter(|_| self.job.how.times),
        };
        self.job.watcher.saw(&Event::Dir { key: &key });
        self.report.dirs += 1;
        if !self.job.dry_run {
            if let Some(error) = self.is_in_closed(&key) {
                self.closed.insert(key, error.kind());
                return Err(error);
            }
            self.must_be_apart(&key).await?;
            let open = self.ensure_dir(&key, self.private_mode(&meta)).await?;
            self.dirs.push((key.clone(), attributes));
            self.report.modes_unknown += u64::from(meta.mode.is_none() && self.new.contains(&key));
            if !self.job.dest.is_far() && !self.new.contains(&key) {
                self.note_draft_dir(&key);
            }
            if let Some(error) = open {
                self.closed.insert(key, error.kind());
                return Err(error);
            }
        } else if !key.is_root()
            && let Ok(meta) = self.job.dest.stat(&key).await
            && meta.kind != Kind::Dir
        {
            // Creating it would fail.
            return Err(Error::Exists { name: shown(&*self.job.dest, &key) });
        }
        Ok(())
    }

    /// Creates missing ancestors of `key`.
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

    /// Records a directory for drafts that an earlier run may have left in `dir`. Sources never contribute its name.
    pub(super) fn note_draft_dir(&self, dir: &Key) {
        if let Some(name) = &self.job.filter.never
            && let Ok(drafts) = dir.join(name)
        {
            self.job.dest.note_draft_dir(&drafts);
        }
    }

    /// Why nothing may be put at `key`: its directory should be private and is not.
    pub(super) fn is_in_closed(&self, key: &Key) -> Option<Error> {
        let dir = key.parent();
        self.closed.get(&dir).map(|kind| is_open(self.job, &dir, *kind))
    }

    /// The initial mode of a private directory. Its final mode comes at the end, because it may forbid writing.
    fn private_mode(&self, meta: &Meta) -> Option<u32> {
        let private = meta.mode.filter(|mode| mode & 0o055 != 0o055);
        private.map(|mode| 0o700 | if self.job.how.modes { mode } else { unmasked(mode) })
    }

    /// Creates the directory `key`, or waits for it. Returns why it could not be made private, if it should be.
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

/// The error for everything that would be in the directory `dir`.
fn is_open(job: &Job, dir: &Key, kind: ErrorKind) -> Error {
    let reason = "it is to be private and could not be made so: nothing is put in it".to_owned();
    Error::Store { name: shown(&*job.dest, dir), reason, kind }
}

/// Creates the directory `key` with this mode. An existing one keeps its own, unless modes are preserved.
async fn make(job: &Job, key: &Key, private: Option<u32>) -> Result<CreatedDir, Error> {
    let is_new = make_once(job, key).await?;
    let Some(mode) = private.filter(|_| (is_new || job.how.modes) && job.dest.sets_modes()) else {
        return Ok(CreatedDir { is_new, open: None });
    };
    let mode = Attributes { mode: Some(mode), modified: None };
    let open = match job.persist(key, || job.dest.set(key, mode)).await {
        // For existing directories this is reported at the end. If modes cannot be set at all, the report says so.
        Err(error) if is_new && !is_refused(&error) => Some(error),
        _ => None,
    };
    Ok(CreatedDir { is_new, open })
}

/// Creates the directory `key`. False if it existed.
async fn make_once(job: &Job, key: &Key) -> Result<bool, Error> {
    let mut attempt = 1;
    loop {
        let Err(error) = job.dest.make_dir(key).await else { return Ok(true) };
        // Remote stores report this in many ways. What counts is whether a directory exists.
        let error = match job.dest.stat_to_write(key).await {
            Ok(meta) if meta.kind == Kind::Dir => return Ok(false),
            // A link to a directory is not followed.
            Err(refused @ Error::Denied { .. }) if matches!(error, Error::Exists { .. }) => refused,
            Err(_) if error.kind() == ErrorKind::NotFound && !key.is_root() => match job.dest.stat(&key.parent()).await
            {
                Err(absent) if absent.kind() == ErrorKind::NotFound => Error::NoParent { name: shown(&*job.dest, key) },
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
