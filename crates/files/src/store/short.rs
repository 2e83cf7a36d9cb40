//! Many short objects in one exchange with a store.

use super::{Attributes, Draft, Fallible, Spec, Store, ThreadStore};
use crate::block::Block;
use crate::error::Error;
use crate::key::Key;
use crate::store::Begun;
use crate::sum::{Algorithm, Combining, Sum};
use bytes::Bytes;
use std::fmt::Debug;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::Poll;

/// A short object with all that it has.
#[derive(Debug, Clone)]
pub struct ShortObject {
    /// Where it is, or is to be.
    pub key: Key,
    /// Its content.
    pub bytes: Bytes,
    /// The CRC-32C of the content, as the end that has read it has computed it.
    pub sum: u32,
    /// Its attributes.
    pub attributes: Attributes,
    /// Permissions beyond which it gets none if it is new.
    pub at_most: Option<u32>,
}

/// A remote store that carries many short objects in one exchange.
pub trait Batches: Debug + Send + Sync {
    /// Most objects of an exchange.
    fn most(&self) -> usize;

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
}

impl ShortObject {
    /// Whether the content is what the sender has read.
    pub fn is_whole(&self) -> bool {
        Combining::Crc32c.of(&self.bytes) == self.sum
    }

    /// Stores it in the local store `dest`, over any existing object. The content that was written is read again and
    /// compared.
    ///
    /// # Errors
    /// It could not be stored, or the two differ. Nothing is left behind.
    pub async fn store(self, dest: &dyn Store) -> Result<Sum, Error> {
        let expected = Sum::combined(Combining::Crc32c, self.sum);
        let size = self.bytes.len() as u64;
        let spec = Spec {
            size: Some(size),
            attributes: self.attributes,
            at_most: self.at_most,
            replace: true,
            ..Spec::default()
        };
        let Begun::Draft(draft) = dest.create(&self.key, spec).await? else { return Ok(expected) };
        let stored = fill(&*draft, self.bytes, &expected).await;
        if stored.is_err() {
            draft.abandon(false).await;
        }
        stored.map(|()| expected)
    }
}

async fn fill(draft: &dyn Draft, bytes: Bytes, expected: &Sum) -> Result<(), Error> {
    let size = bytes.len() as u64;
    if size > 0 {
        draft.write(Block { offset: 0, body: bytes, sum: None }).await?;
    }
    let found = draft.checksum(Algorithm::Crc32c).await?;
    if found != *expected {
        return Err(Error::Mismatch { name: draft.name(), expected: expected.clone(), found });
    }
    draft.publish(size).await
}

/// Work on one thread.
pub type OnThread<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Does all of `work` on the current thread, and has `syncs` sync the drafts of all that wait for that. Returns the
/// results in order, `None` for what had not ended when `wanted` was gone: then all ends early, as an aborted task would.
pub async fn together<T>(work: Vec<OnThread<T>>, syncs: Option<&dyn ThreadStore>, wanted: &Weak<()>) -> Vec<Option<T>> {
    let mut results: Vec<Option<T>> = work.iter().map(|_| None).collect();
    let mut under_way: Vec<(usize, OnThread<T>)> = work.into_iter().enumerate().collect();
    // The budget of a task, which others on the thread would need, would only interrupt it.
    tokio::task::unconstrained(std::future::poll_fn(|cx| {
        loop {
            under_way.retain_mut(|(at, one)| {
                if wanted.strong_count() > 0
                    && let Poll::Ready(result) = one.as_mut().poll(cx)
                {
                    results[*at] = Some(result);
                    return false;
                }
                true
            });
            if under_way.is_empty() || wanted.strong_count() == 0 {
                return Poll::Ready(());
            }
            // The others wait for something else, such as the next attempt.
            if !syncs.is_some_and(ThreadStore::sync_drafts) {
                return Poll::Pending;
            }
        }
    }))
    .await;
    results
}

/// The stores of a batch that is carried on the current thread: `store` itself, if it waits for a network.
pub fn on_this_thread(store: &Arc<dyn Store>) -> (Arc<dyn Store>, Option<Arc<dyn ThreadStore>>) {
    match store.on_this_thread() {
        Some(here) => (here.clone(), Some(here)),
        None => (store.clone(), None),
    }
}
