//! Counts the connections of a library, so that their threads stay bounded.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A counting semaphore for blocking threads.
#[derive(Debug)]
pub(super) struct Permits {
    taken: Mutex<usize>,
    freed: Condvar,
    all: usize,
}

/// A permit. Dropping it releases it.
#[derive(Debug)]
pub(super) struct Permit(Arc<Permits>);

impl Permits {
    pub(super) fn new(all: usize) -> Arc<Self> {
        Arc::new(Self { taken: Mutex::new(0), freed: Condvar::new(), all })
    }

    pub(super) fn all(&self) -> usize {
        self.all
    }

    pub(super) fn taken(&self) -> usize {
        *self.lock()
    }

    /// Takes a place if one is free.
    pub(super) fn take(self: &Arc<Self>) -> Option<Permit> {
        let mut taken = self.lock();
        (*taken < self.all).then(|| {
            *taken += 1;
            Permit(self.clone())
        })
    }

    /// Waits for a free place; `None` once `over` returns true.
    pub(super) fn wait(self: &Arc<Self>, over: impl Fn() -> bool) -> Option<Permit> {
        // How often `over` is checked.
        const LOOK: Duration = Duration::from_millis(100);
        let mut taken = self.lock();
        while *taken >= self.all {
            if over() {
                return None;
            }
            taken = self.freed.wait_timeout(taken, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
        *taken += 1;
        Some(Permit(self.clone()))
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        *self.0.lock() -= 1;
        self.0.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_place_is_free_again() {
        let places = Permits::new(1);
        let first = places.take().unwrap();
        assert!(places.take().is_none() && places.wait(|| true).is_none());
        let waiting = std::thread::spawn({
            let places = places.clone();
            move || places.wait(|| false).is_some()
        });
        drop(first);
        assert!(waiting.join().unwrap());
        assert_eq!(places.taken(), 0);
    }
}
