//! One object of a job: whether it is carried, and how often that is tried.

use super::{Event, Job, Retry};
use crate::error::Error;
use crate::key::Key;
use crate::plan::{Decision, Existing, Reason};
use crate::range::Extent;
use crate::store::{Meta, Store};
use crate::sum::Algorithm;
use crate::transfer::{Done, How, transfer};
use std::time::Duration;

pub(super) struct One {
    pub(super) job: Job,
    pub(super) from: Key,
    pub(super) to: Key,
    pub(super) meta: Meta,
    /// What the destination has, if that is known already.
    pub(super) known: Option<Option<Meta>>,
}

/// What came of it.
pub(super) enum Came {
    Carried(Done),
    Skipped,
    /// It would be carried: so many bytes.
    Planned(u64),
}

impl One {
    pub(super) async fn run(self) -> (Key, Result<Came, Error>) {
        let came = self.decide_and_carry().await;
        (self.to, came)
    }

    async fn decide_and_carry(&self) -> Result<Came, Error> {
        let watcher = &self.job.watcher;
        match self.persist(|| self.decide()).await? {
            Ok(reason) => {
                watcher.saw(&Event::Carry { from: &self.from, to: &self.to, meta: &self.meta, reason });
                if self.job.dry_run {
                    return Ok(Came::Planned(self.meta.size.unwrap_or(0)));
                }
                let done = self.persist(|| self.carry()).await?;
                watcher.saw(&Event::Carried { to: &self.to, done: &done });
                Ok(Came::Carried(done))
            }
            Err(reason) => {
                watcher.saw(&Event::Skipped { to: &self.to, meta: &self.meta, reason });
                Ok(Came::Skipped)
            }
        }
    }

    /// Does `work`, and where it fails in a way that may pass, again, as often as that is tried.
    async fn persist<T, F: Future<Output = Result<T, Error>>>(&self, work: impl Fn() -> F) -> Result<T, Error> {
        let mut attempt = 1;
        loop {
            match work().await {
                Err(error) if error.may_pass() && attempt < self.job.retry.attempts => {
                    let wait = self.job.retry.wait(attempt);
                    self.job.watcher.saw(&Event::Again { to: &self.to, error: &error, wait });
                    tokio::time::sleep(wait).await;
                    attempt += 1;
                }
                other => return other,
            }
        }
    }

    /// Why it is to be carried, or why not.
    async fn decide(&self) -> Result<Result<Reason, Reason>, Error> {
        let dest = match self.known {
            Some(known) => known,
            None => match self.job.dest.stat(&self.to).await {
                Ok(meta) => Some(meta),
                Err(Error::NotFound { .. }) => None,
                Err(error) => return Err(error),
            },
        };
        Ok(match self.job.existing.decide(&self.meta, dest.as_ref()) {
            Decision::Carry(reason) => Ok(reason),
            Decision::Skip(reason) => Err(reason),
            Decision::Refuse => {
                return Err(Error::Exists { name: format!("{}/{}", self.job.dest.name(), self.to) });
            }
            Decision::Compare if self.same().await? => Err(Reason::Same),
            Decision::Compare => Ok(Reason::Checksum),
        })
    }

    /// Whether both ends have the same bytes, by the first checksum that both compute.
    async fn same(&self) -> Result<bool, Error> {
        let (source, dest) = (&*self.job.source, &*self.job.dest);
        let knows = |store: &dyn Store, a: &Algorithm| store.algorithms().contains(a);
        let common = Algorithm::ALL.into_iter().find(|a| knows(source, a) && knows(dest, a));
        let Some(algorithm) = common else {
            let reason = "the two ends compute no checksum in common".to_owned();
            return Err(Error::Unverifiable { name: format!("{}/{}", dest.name(), self.to), reason });
        };
        let (ours, theirs) = (source.open(&self.from).await?, dest.open(&self.to).await?);
        let whole = Extent::first(self.meta.size.unwrap_or(0));
        let (ours, theirs) = tokio::join!(ours.checksum(algorithm, whole), theirs.checksum(algorithm, whole));
        Ok(ours? == theirs?)
    }

    async fn carry(&self) -> Result<Done, Error> {
        let job = &self.job;
        let how =
            How { replace: job.existing != Existing::Refuse && job.existing != Existing::Keep, ..job.how.clone() };
        transfer(&*job.source, &self.from, &*job.dest, &self.to, &how).await
    }
}

impl Retry {
    /// How long is waited after attempt number `attempt`.
    pub fn wait(&self, attempt: u32) -> Duration {
        let factor = 1u32.checked_shl(attempt.saturating_sub(1)).unwrap_or(u32::MAX);
        self.first.saturating_mul(factor).min(self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_bound() {
        let waits: Vec<_> = [1, 2, 3, 5, 6, 40].map(|n| Retry::default().wait(n).as_secs()).into();
        assert_eq!(waits, [1, 2, 4, 16, 30, 30]);
    }
}
