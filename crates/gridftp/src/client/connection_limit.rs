//! The limit on control connections in use.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Counts control connections in use for one purpose.
#[derive(Debug)]
pub(super) struct ConnectionLimit {
    free: Arc<Semaphore>,
    /// The limit. Decreases when the server says that it has too many.
    most: AtomicUsize,
    waiting: AtomicUsize,
}

impl ConnectionLimit {
    pub(super) fn new(most: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(most)), most: AtomicUsize::new(most), waiting: AtomicUsize::new(0) }
    }

    /// Waits for a place. `None` if there will be none.
    pub(super) async fn wait(&self) -> Option<OwnedSemaphorePermit> {
        if let Some(place) = self.take() {
            return Some(place);
        }
        let _waiting = Waiting::begin(&self.waiting);
        self.free.clone().acquire_owned().await.ok()
    }

    /// Takes a place, if one is free.
    pub(super) fn take(&self) -> Option<OwnedSemaphorePermit> {
        self.free.clone().try_acquire_owned().ok()
    }

    /// Connections in use.
    pub(super) fn in_use(&self) -> usize {
        self.most.load(Ordering::Relaxed).saturating_sub(self.free.available_permits())
    }

    /// Tasks that wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Removes a place, whose holder must forget it. False if it is the last one in use.
    pub(super) fn one_less(&self) -> bool {
        let less = |most: usize| (most > 1 && self.in_use() > 1).then(|| most - 1);
        self.most.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }
}

/// Counts a waiting task.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn begin(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn last_connection_is_kept() {
        let limit = ConnectionLimit::new(2);
        let one = limit.wait().await.unwrap();
        assert!(!limit.one_less(), "nobody else has one");
        let two = limit.take().unwrap();
        assert_eq!((limit.in_use(), limit.take().is_none()), (2, true));
        assert!(limit.one_less());
        two.forget();
        assert_eq!(limit.in_use(), 1);
        let waits = limit.wait();
        tokio::pin!(waits);
        assert!(tokio::time::timeout(std::time::Duration::from_millis(1), &mut waits).await.is_err());
        assert_eq!(limit.waiting(), 1);
        drop(one);
        assert!(waits.await.is_some() && limit.waiting() == 0);
    }
}
