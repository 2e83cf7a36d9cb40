//! Many short objects in one exchange with a store.

use super::{Attributes, Begun, Boxed, Draft, Fallible, Meta, Spec, Store, ThreadStore};
use crate::block::Block;
use crate::error::Error;
use crate::key::Key;
use crate::sum::{Algorithm, Combining, Hasher, Sum};
use bytes::Bytes;
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use tokio::sync::watch;

/// A short object with all that it has.
#[derive(Debug, Clone)]
pub struct ShortObject {
    /// Where it is, or is to be.
    pub key: Key,
    /// Its content.
    pub bytes: Bytes,
    /// The checksum of the content, as the end that has read it has computed it.
    pub sum: Sum,
    /// Its attributes.
    pub attributes: Attributes,
    /// Permissions beyond which it gets none if it is new.
    pub at_most: Option<u32>,
    /// What has its name at the destination, if known.
    pub before: Option<Option<Meta>>,
}

/// A remote store that carries many short objects in one exchange.
pub trait Batches: Debug + Send + Sync {
    /// Most objects of an exchange.
    fn most(&self) -> usize;

    /// The algorithm of all checksums.
    fn algorithm(&self) -> Algorithm;

    /// Stores objects, over existing ones. Returns for each whether it is complete under its name, as the store has
    /// confirmed. What is not can be carried alone, which tells why.
    ///
    /// # Errors
    /// The exchange failed. Then some may have been stored.
    fn put<'a>(&'a self, objects: &'a [ShortObject]) -> Fallible<'a, Vec<bool>>;

    /// Gets objects. `None` for those that the store does not send, or whose bytes are not what it read.
    ///
    /// # Errors
    /// The exchange failed.
    fn get<'a>(&'a self, keys: &'a [Key]) -> Fallible<'a, Vec<Option<ShortObject>>>;

    /// Removes what a [`put`](Self::put) of these objects has left, after it was dropped.
    fn abandon<'a>(&'a self, objects: &'a [ShortObject]) -> Boxed<'a, ()>;
}

impl ShortObject {
    /// The checksum of `bytes`.
    pub fn sum_of(bytes: &[u8], algorithm: Algorithm) -> Sum {
        let mut hasher = Hasher::new(algorithm);
        hasher.update(bytes);
        hasher.finish()
    }

    /// The CRC-32C of the content.
    pub fn crc32c(&self) -> u32 {
        let known = self.sum.combined_value().filter(|_| self.sum.algorithm() == Algorithm::Crc32c);
        known.unwrap_or_else(|| Combining::Crc32c.of(&self.bytes))
    }

    /// Whether the content is what the sender has read.
    pub fn is_whole(&self) -> bool {
        Self::sum_of(&self.bytes, self.sum.algorithm()) == self.sum
    }

    /// Stores it in the local store `dest`, over any existing object. The content that was written is read again and
    /// compared.
    ///
    /// # Errors
    /// It could not be stored, or the two differ. Nothing is left behind.
    pub async fn store(self, dest: &dyn Store) -> Result<(), Error> {
        let size = self.bytes.len() as u64;
        let spec = Spec {
            size: Some(size),
            attributes: self.attributes,
            at_most: self.at_most,
            replace: true,
            ..Spec::default()
        };
        let Begun::Draft(draft) = dest.create(&self.key, spec).await? else {
            // Only a draft of a named source is ever gone on with.
            return Err(Error::Unsupported { name: self.key.to_string(), what: "going on with another upload" });
        };
        let stored = fill(&*draft, self.bytes, &self.sum).await;
        if stored.is_err() {
            draft.abandon(false).await;
        }
        stored
    }
}

async fn fill(draft: &dyn Draft, bytes: Bytes, expected: &Sum) -> Result<(), Error> {
    let size = bytes.len() as u64;
    if size > 0 {
        draft.write(Block { offset: 0, body: bytes, sum: None }).await?;
    }
    let found = draft.checksum(expected.algorithm()).await?;
    if found != *expected {
        return Err(Error::Mismatch { name: draft.name(), expected: expected.clone(), found });
    }
    draft.publish(size).await
}

/// Work on one thread.
pub type OnThread<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Does all of `work` on the current thread, at most `most` at a time, and has `syncs` sync the drafts of all that wait for
/// that. Returns the results in order. `None` stands for work that panicked, and for what had not ended when the sender of
/// `wanted` was dropped: then all ends early, as an aborted task would.
pub async fn run_on_this_thread<T>(
    work: Vec<OnThread<T>>,
    most: usize,
    syncs: Option<&dyn ThreadStore>,
    wanted: watch::Receiver<()>,
) -> Vec<Option<T>> {
    let is_unwanted = || wanted.has_changed().is_err();
    let mut results: Vec<Option<T>> = work.iter().map(|_| None).collect();
    let mut waiting = work.into_iter().enumerate();
    let mut under_way: Vec<(usize, OnThread<T>)> = Vec::new();
    // Nothing is ever sent.
    let mut waits = wanted.clone();
    let mut unwanted = pin!(async move { waits.changed().await });
    // The budget of a task, which others on the thread would need, would only interrupt it.
    tokio::task::unconstrained(std::future::poll_fn(|cx| {
        loop {
            if unwanted.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            under_way.extend(waiting.by_ref().take(most.max(1).saturating_sub(under_way.len())));
            let before = under_way.len();
            under_way.retain_mut(|(at, one)| {
                // Each may block for long.
                if is_unwanted() {
                    return true;
                }
                // What has panicked is polled no more.
                let polled = catch_unwind(AssertUnwindSafe(|| one.as_mut().poll(cx)));
                match polled {
                    Ok(Poll::Pending) => true,
                    Ok(Poll::Ready(result)) => {
                        results[*at] = Some(result);
                        false
                    }
                    Err(_) => false,
                }
            });
            if under_way.is_empty() && waiting.len() == 0 {
                return Poll::Ready(());
            }
            if under_way.len() < before && waiting.len() > 0 {
                // More can be begun before the sync.
                continue;
            }
            // Those that do not wait for a sync wait for something else, such as the next attempt.
            if is_unwanted() || !syncs.is_some_and(ThreadStore::sync_drafts) {
                return if is_unwanted() { Poll::Ready(()) } else { Poll::Pending };
            }
        }
    }))
    .await;
    results
}

/// `store` for work on the current thread, and what syncs the drafts that are made in it. It is `store` itself if that waits
/// for a network.
pub fn on_this_thread(store: &Arc<dyn Store>) -> (Arc<dyn Store>, Option<Arc<dyn ThreadStore>>) {
    match store.on_this_thread() {
        Some(here) => (here.clone(), Some(here)),
        None => (store.clone(), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boxed<T>(work: impl Future<Output = T> + Send + 'static) -> OnThread<T> {
        Box::pin(work)
    }

    #[tokio::test(start_paused = true)]
    async fn work_is_limited_and_a_panic_is_the_work_s_own() {
        let (_wanted, still) = watch::channel(());
        let count = Arc::new(std::sync::Mutex::new((0, 0)));
        let work = (0..10).map(|i| {
            let count = count.clone();
            boxed(async move {
                {
                    let mut count = count.lock().unwrap();
                    count.0 += 1;
                    count.1 = count.1.max(count.0);
                }
                tokio::time::sleep(std::time::Duration::from_secs(1)).await;
                count.lock().unwrap().0 -= 1;
                assert!(i != 3, "the fourth");
                i
            })
        });
        let results = run_on_this_thread(work.collect(), 2, None, still).await;
        let expected: Vec<_> = (0..10).map(|i| Some(i).filter(|i| *i != 3)).collect();
        assert_eq!((results, count.lock().unwrap().1), (expected, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn unwanted_work_ends_while_it_waits() {
        let (wanted, still) = watch::channel(());
        let never = boxed(std::future::pending::<()>());
        let ends = run_on_this_thread(vec![never], 1, None, still);
        let (results, ()) = tokio::join!(ends, async {
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
            drop(wanted);
        });
        assert_eq!(results, [None]);
    }
}
