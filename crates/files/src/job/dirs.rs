//! The directories that objects go to: at a far destination several are made at the same time, each after the one that it is in,
//! and again where that fails in a way that may pass.

use super::{Event, Job, Run};
use crate::error::Error;
use crate::key::Key;
use crate::spawned::Spawned;
use crate::store::Kind;
use tokio::sync::watch;

/// A directory that is being made.
#[derive(Debug)]
pub(super) struct Making {
    /// Whether it was not there before.
    task: Spawned<Result<bool, Error>>,
    /// Whether that has ended.
    ended: watch::Receiver<bool>,
}

impl Run<'_> {
    /// Begins to make the directory `key` of a far destination.
    pub(super) fn begin_dir(&mut self, key: Key) {
        let job = self.job;
        if job.dry_run || !job.dest.is_far() || self.made.contains(&key) || self.making.contains_key(&key) {
            return;
        }
        let parent = key.parent();
        let above = match self.making.get(&parent) {
            Some(making) => Some(making.ended.clone()),
            None if parent.is_root() || self.made.contains(&parent) => None,
            // The one that it is in could not be made, or is made in its own turn.
            None => return,
        };
        let (sender, ended) = watch::channel(false);
        let (job, dir) = (job.clone(), key.clone());
        let task = Spawned::new(async move {
            if let Some(mut above) = above {
                // Whether it is there is found by making what is in it.
                let _ = above.wait_for(|ended| *ended).await;
            }
            let made = make(&job, &dir).await;
            sender.send_replace(true);
            made
        });
        self.making.insert(key, Making { task, ended });
    }

    /// Makes the directory `key`, unless it is there, or waits for it.
    pub(super) async fn ensure_dir(&mut self, key: &Key) -> Result<(), Error> {
        if key.is_root() || self.made.contains(key) {
            return Ok(());
        }
        let failed = |error| Err(Error::io(self.job.dest.name(), "make a directory of", std::io::Error::other(error)));
        let is_new = match self.making.remove(key) {
            Some(making) => making.task.end().await.unwrap_or_else(failed)?,
            None => make(self.job, key).await?,
        };
        if is_new {
            self.new.insert(key.clone());
        }
        self.made.insert(key.clone());
        Ok(())
    }
}

/// Makes the directory `key`; false if it was there.
async fn make(job: &Job, key: &Key) -> Result<bool, Error> {
    let mut attempt = 1;
    loop {
        let Err(error) = job.dest.make_dir(key).await else { return Ok(true) };
        // Far stores have many words for it: what counts is whether one is there.
        let error = match job.dest.stat_to_write(key).await {
            Ok(meta) if meta.kind == Kind::Dir => return Ok(false),
            // A link leads to one, and is not followed.
            Err(refused @ Error::Denied { .. }) if matches!(error, Error::Exists { .. }) => refused,
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
