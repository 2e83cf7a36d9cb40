//! Batches of short objects between local stores. One thread carries a batch: each object up to its sync, then one sync for
//! all, then their names. Handing each of some forty calls to another thread costs several times what the calls do.

use super::one::{Came, One};
use super::{Job, SHORT};
use crate::error::Error;
use crate::key::Key;
use crate::store::{Kind, Store, ThreadStore};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::Poll;

/// Batches that are carried at a time: while one waits for the disk, others have something to do.
pub(super) const AT_ONCE: usize = 3;

/// Most objects of a batch. Each has two open files, and systems usually grant 1024 to a process.
const OBJECTS: usize = 128;

/// Most bytes of a batch, so that its sync is short.
const BYTES: u64 = 16 << 20;

/// The batch that is being gathered.
pub(super) struct Batches {
    /// Whether both stores can be used on one thread.
    possible: bool,
    ones: Vec<One>,
    bytes: u64,
    /// Batches end early once it is dropped, with the job.
    job_runs: Arc<()>,
}

impl Batches {
    pub(super) fn of(job: &Job) -> Self {
        let on_thread = |store: &Arc<dyn Store>| store.on_this_thread().is_some();
        // A throttled batch would hold up the files behind it.
        let possible = on_thread(&job.source) && on_thread(&job.dest) && job.how.throttle.is_none();
        Self { possible, ones: Vec::new(), bytes: 0, job_runs: Arc::default() }
    }

    /// Whether `one` belongs to a batch.
    pub(super) fn take(&self, one: &One) -> bool {
        self.possible && one.meta.kind == Kind::File && one.meta.size.is_some_and(|size| size <= SHORT)
    }

    /// Adds `one`. Returns the batch if it is full.
    pub(super) fn push(&mut self, one: One) -> Option<Vec<One>> {
        self.bytes += one.meta.size.unwrap_or(0);
        self.ones.push(one);
        if self.ones.len() >= OBJECTS || self.bytes >= BYTES { self.rest() } else { None }
    }

    /// Lasts as long as the job.
    pub(super) fn job_runs(&self) -> Weak<()> {
        Arc::downgrade(&self.job_runs)
    }

    /// The batch as it is. `None` if it is empty.
    pub(super) fn rest(&mut self) -> Option<Vec<One>> {
        self.bytes = 0;
        Some(std::mem::take(&mut self.ones)).filter(|ones| !ones.is_empty())
    }
}

/// Carries a batch on the current thread, which it blocks. Ends early, as an aborted task would, if `job_runs` is gone.
pub(super) async fn carry(mut batch: Vec<One>, job_runs: Weak<()>) -> Vec<(Key, Result<Came, Error>)> {
    let Some(job) = batch.first().map(|one| one.job.clone()) else { return Vec::new() };
    let stores = (job.source.on_this_thread(), job.dest.on_this_thread());
    let syncs = match stores {
        (Some(source), Some(dest)) => {
            for one in &mut batch {
                (one.job.source, one.job.dest) = (source.clone(), dest.clone());
            }
            Some(dest)
        }
        // They do without.
        _ => None,
    };
    let under_way = batch.into_iter().map(|one| Some(Box::pin(one.run()) as _)).collect();
    Carrying { under_way, ended: Vec::new(), job_runs }.run(syncs).await
}

type UnderWay = Pin<Box<dyn Future<Output = (Key, Result<Came, Error>)> + Send>>;

/// The objects of a batch.
struct Carrying {
    under_way: Vec<Option<UnderWay>>,
    ended: Vec<(Key, Result<Came, Error>)>,
    job_runs: Weak<()>,
}

impl Carrying {
    /// Lets each object do what it can, and syncs those that wait for that, until all have ended.
    async fn run(mut self, syncs: Option<Arc<dyn ThreadStore>>) -> Vec<(Key, Result<Came, Error>)> {
        // The budget of a task, which others on the thread would need, would only interrupt it.
        tokio::task::unconstrained(std::future::poll_fn(|cx| {
            loop {
                for slot in &mut self.under_way {
                    if self.job_runs.strong_count() == 0 {
                        return Poll::Ready(());
                    }
                    if let Some(one) = slot
                        && let Poll::Ready(ended) = one.as_mut().poll(cx)
                    {
                        self.ended.push(ended);
                        *slot = None;
                    }
                }
                self.under_way.retain(Option::is_some);
                if self.under_way.is_empty() {
                    return Poll::Ready(());
                }
                // The others wait for something else, such as the next attempt.
                if !syncs.as_ref().is_some_and(|dest| dest.sync_drafts()) {
                    return Poll::Pending;
                }
            }
        }))
        .await;
        self.ended
    }
}
