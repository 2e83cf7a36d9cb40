//! Directories whose names have changed and are not synced to disk yet.

use crate::key::Key;
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// Directories that a caller syncs. Those that it does not come to, the next caller finds again.
pub(super) struct Unsynced<'a> {
    all: &'a Mutex<BTreeSet<Key>>,
    left: BTreeSet<Key>,
}

impl<'a> Unsynced<'a> {
    pub(super) fn take(all: &'a Mutex<BTreeSet<Key>>) -> Self {
        Self { all, left: std::mem::take(&mut *all.lock().unwrap_or_else(PoisonError::into_inner)) }
    }

    /// One that is left.
    pub(super) fn next(&self) -> Option<&Key> {
        self.left.first()
    }

    pub(super) fn mark_synced(&mut self, dir: &Key) {
        self.left.remove(dir);
    }
}

impl Drop for Unsynced<'_> {
    fn drop(&mut self) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).append(&mut self.left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Links;
    use crate::local::Local;
    use crate::store::Store;
    use std::task::{Context, Waker};

    fn key(text: &str) -> Key {
        Key::parse(text).unwrap()
    }

    #[test]
    fn caller_that_gives_up_leaves_the_rest_to_the_next() {
        let all = Mutex::new(BTreeSet::from(["a", "b", "c"].map(key)));
        let mut first = Unsynced::take(&all);
        assert_eq!(first.next(), Some(&key("a")));
        first.mark_synced(&key("a"));
        drop(first);
        assert_eq!(*all.lock().unwrap(), BTreeSet::from(["b", "c"].map(key)));
    }

    #[tokio::test]
    async fn second_caller_waits_for_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let store = Local::new(dir.path(), Links::Beneath).unwrap();
        store.make_dir(&key("new")).await.unwrap();
        // The first has taken all directories, and is syncing them.
        let first = store.0.settling.lock().await;
        let mut second = store.settle();
        assert!(second.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(first);
        second.await.unwrap();
    }
}
