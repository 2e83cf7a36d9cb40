//! Level-triggered readiness, as the kernel provides it, on quinn's streams, which only wake their last
//! poller.
//!
//! quinn remembers one waker per stream and direction: that of the last task that found nothing. Here,
//! several tasks may poll: the relay that reads, a status page, one that waits for a failure. So all of them
//! pass quinn the same [`ReadySignal`] as waker, which remembers that it was given and wakes all waiting tasks.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use tokio::sync::Notify;

/// A shared waker; see the module documentation.
#[derive(Debug)]
pub(super) struct ReadySignal {
    /// Whether an attempt may succeed.
    ready: AtomicBool,
    /// The task that reads or writes.
    task: Mutex<Option<Waker>>,
    /// Tasks that wait for every signal.
    watchers: Notify,
}

impl Wake for ReadySignal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ready.store(true, SeqCst);
        if let Some(task) = lock(&self.task).take() {
            task.wake();
        }
        self.watchers.notify_waiters();
    }
}

impl ReadySignal {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { ready: AtomicBool::new(true), task: Mutex::new(None), watchers: Notify::new() })
    }

    /// Polls an operation that gives this signal once another poll may succeed. Clears the earlier signal.
    pub(super) fn poll_clearing<T>(self: &Arc<Self>, poll: impl FnOnce(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
        // Cleared before the poll: a signal during the poll must stay set.
        self.ready.store(false, SeqCst);
        let waker = Waker::from(self.clone());
        let result = poll(&mut Context::from_waker(&waker));
        if result.is_ready() {
            self.ready.store(true, SeqCst);
        }
        result
    }

    /// Polls an operation that gives this signal, without clearing the readiness of the main operation.
    pub(super) fn watch<T>(self: &Arc<Self>, poll: impl FnOnce(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
        let waker = Waker::from(self.clone());
        poll(&mut Context::from_waker(&waker))
    }

    /// Whether an attempt may succeed.
    pub(super) fn is_ready(&self) -> bool {
        self.ready.load(SeqCst)
    }

    /// Ready when an attempt may succeed. Only one task at a time may wait.
    pub(super) fn poll_ready(&self, cx: &Context<'_>) -> Poll<()> {
        if self.is_ready() {
            return Poll::Ready(());
        }
        let mut task = lock(&self.task);
        match &mut *task {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        drop(task);
        // The signal may have been given before the waker was stored.
        if self.is_ready() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Notified of every signal from the call on.
    pub(super) fn watchers(&self) -> &Notify {
        &self.watchers
    }

    /// Gives the signal.
    pub(super) fn signal(self: &Arc<Self>) {
        self.wake_by_ref();
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
