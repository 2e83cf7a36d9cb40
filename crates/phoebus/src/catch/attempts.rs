//! Sessions that are being opened, one for each socket. A caller that a signal interrupts may call again, and another
//! thread may connect the same socket: both wait for the same attempt.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
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

/// An attempt in progress.
#[derive(Debug, Clone)]
pub(super) struct Attempt {
    outcome: watch::Receiver<Option<Outcome>>,
    task: AbortHandle,
}

/// All attempts, by the socket's cookie.
#[derive(Debug, Default)]
pub(super) struct Attempts(Mutex<HashMap<u64, Attempt>>);

impl Attempts {
    /// The attempt on a socket.
    pub(super) fn find(&self, cookie: u64) -> Option<Attempt> {
        self.lock().get(&cookie).cloned()
    }

    /// Whether there is room for another one.
    pub(super) fn has_room(&self) -> bool {
        self.lock().len() < MOST
    }

    /// Enters an attempt, which `begin` starts; it gets the sender of the outcome.
    pub(super) fn enter(
        &self,
        cookie: u64,
        begin: impl FnOnce(watch::Sender<Option<Outcome>>) -> AbortHandle,
    ) -> Attempt {
        let (sender, outcome) = watch::channel(None);
        let mut attempts = self.lock();
        let attempt = Attempt { outcome, task: begin(sender) };
        attempts.insert(cookie, attempt.clone());
        attempt
    }

    /// Removes an attempt that has ended.
    pub(super) fn remove(&self, cookie: u64) {
        self.lock().remove(&cookie);
    }

    /// Gives an attempt up, if there is one. When this returns, it has let go of the socket.
    pub(super) async fn give_up(&self, cookie: u64) {
        let given_up = self.lock().remove(&cookie);
        if let Some(mut attempt) = given_up {
            attempt.task.abort();
            while attempt.outcome.changed().await.is_ok() {}
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
}
