//! Sessions that are being opened, one for each socket. A caller that a signal interrupts may call again, and another
//! thread may connect the same socket: both wait for the same attempt.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// Most sessions that are being opened at once: as many as a gateway's listener has room for by default. Each takes two
/// descriptors and some kilobytes here.
const MOST: usize = 4096;

/// How an attempt has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The session is open.
    Open,
    /// The connection is to be direct.
    Direct,
    /// There is none, for this error.
    Failed(i32),
}

/// An attempt in progress, for one who waits for it.
#[derive(Debug, Clone)]
pub(super) struct Attempt {
    outcome: watch::Receiver<Option<Outcome>>,
    task: AbortHandle,
    /// Counts who waits, and identifies the attempt.
    count: Arc<()>,
}

/// All attempts, by the socket's cookie.
#[derive(Debug, Clone, Default)]
pub(super) struct Attempts(Arc<Mutex<HashMap<u64, Attempt>>>);

/// An attempt's entry, for its task. It goes with the task, whatever ends that.
#[derive(Debug)]
pub(super) struct Entry {
    attempts: Attempts,
    cookie: u64,
    count: Weak<()>,
    outcome: watch::Sender<Option<Outcome>>,
}

impl Attempts {
    /// The attempt on a socket.
    pub(super) fn find(&self, cookie: u64) -> Option<Attempt> {
        self.lock().get(&cookie).cloned()
    }

    /// Whether there is room for another one.
    pub(super) fn has_room(&self) -> bool {
        self.lock().len() < MOST
    }

    /// Enters an attempt, whose task `begin` starts.
    pub(super) fn enter(&self, cookie: u64, begin: impl FnOnce(Entry) -> AbortHandle) -> Attempt {
        let (sender, outcome) = watch::channel(None);
        let count = Arc::new(());
        let entry = Entry { attempts: self.clone(), cookie, count: Arc::downgrade(&count), outcome: sender };
        let mut attempts = self.lock();
        let attempt = Attempt { outcome, task: begin(entry), count };
        attempts.insert(cookie, attempt.clone());
        attempt
    }

    /// Gives an attempt up, if there is one. When this returns, it has let go of the socket.
    pub(super) async fn give_up(&self, cookie: u64) {
        let given_up = self.lock().remove(&cookie);
        if let Some(attempt) = given_up {
            attempt.stop().await;
        }
    }

    /// Waits for an attempt no longer. It is given up if nobody else waits for it.
    pub(super) async fn leave(&self, cookie: u64, attempt: Attempt) {
        let is_last = {
            let mut attempts = self.lock();
            let same = attempts.get(&cookie).filter(|entered| Arc::ptr_eq(&entered.count, &attempt.count));
            // One count is the table's, and one is this caller's.
            let is_last = same.is_some_and(|entered| Arc::strong_count(&entered.count) <= 2);
            if is_last {
                attempts.remove(&cookie);
            }
            is_last
        };
        if is_last {
            attempt.stop().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Attempt>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Attempt {
    /// Waits for the outcome. `None`: another caller has given the attempt up.
    pub(super) async fn outcome(&mut self) -> Option<Outcome> {
        self.outcome.wait_for(Option::is_some).await.ok().and_then(|outcome| *outcome)
    }

    async fn stop(mut self) {
        self.task.abort();
        while self.outcome.changed().await.is_ok() {}
    }
}

impl Entry {
    /// Tells the outcome to all who wait.
    pub(super) fn end(self, outcome: Outcome) {
        self.remove();
        let _ = self.outcome.send(Some(outcome));
    }

    /// Removes it, unless the socket has another attempt by now.
    fn remove(&self) {
        let mut attempts = self.attempts.lock();
        if attempts.get(&self.cookie).is_some_and(|entered| Arc::as_ptr(&entered.count) == self.count.as_ptr()) {
            attempts.remove(&self.cookie);
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.remove();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;

    fn endless(attempts: &Attempts) -> Attempt {
        attempts.enter(1, |entry| {
            tokio::spawn(async move {
                pending::<()>().await;
                entry.end(Outcome::Open);
            })
            .abort_handle()
        })
    }

    #[tokio::test]
    async fn attempt_goes_with_the_last_who_waits() {
        let attempts = Attempts::default();
        let first = endless(&attempts);
        let second = attempts.find(1).unwrap();
        attempts.leave(1, first).await;
        assert!(attempts.find(1).is_some(), "the second one waits");
        let outcome = second.outcome.clone();
        attempts.leave(1, second).await;
        assert!(attempts.find(1).is_none() && outcome.has_changed().is_err());
        // One that was given up already concerns nobody.
        let old = endless(&attempts);
        attempts.give_up(1).await;
        let new = endless(&attempts);
        attempts.leave(1, old).await;
        assert!(attempts.find(1).is_some());
        drop(new);
    }

    #[tokio::test]
    async fn attempt_that_panics_leaves_the_table() {
        let attempts = Attempts::default();
        let mut attempt = attempts.enter(1, |entry| {
            tokio::spawn(async move {
                let _entry = entry;
                panic!("this one does");
            })
            .abort_handle()
        });
        assert_eq!(attempt.outcome().await, None);
        assert!(attempts.find(1).is_none());
    }
}
