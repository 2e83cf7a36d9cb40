//! Readiness as the kernel gives it, on streams that only tell whoever asks.
//!
//! quinn remembers one waker per stream and direction: that of the last who found nothing. Here, several may look: the relay
//! that reads, a status page, one that waits for a failure. So quinn is given a [`Bell`] by all of them, which remembers
//! that it was rung and wakes whoever waits.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use tokio::sync::Notify;

/// See the module.
#[derive(Debug)]
pub(super) struct Bell {
    /// Whether it is worth trying.
    ready: AtomicBool,
    /// The one that reads or writes.
    task: Mutex<Option<Waker>>,
    /// Those that want to know of every ring.
    watchers: Notify,
}

impl Wake for Bell {
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

impl Bell {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { ready: AtomicBool::new(true), task: Mutex::new(None), watchers: Notify::new() })
    }

    /// Polls something that rings this bell when it is worth polling again. What was rung for before is thereby answered.
    pub(super) fn answer<T>(self: &Arc<Self>, poll: impl FnOnce(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
        // Before the poll: a ring during it is for the next.
        self.ready.store(false, SeqCst);
        let waker = Waker::from(self.clone());
        let result = poll(&mut Context::from_waker(&waker));
        if result.is_ready() {
            self.ready.store(true, SeqCst);
        }
        result
    }

    /// Polls something else that rings this bell, whose answer says nothing about what it was rung for.
    pub(super) fn watch<T>(self: &Arc<Self>, poll: impl FnOnce(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
        let waker = Waker::from(self.clone());
        poll(&mut Context::from_waker(&waker))
    }

    /// Ready when it is worth trying. One task at a time may wait so.
    pub(super) fn poll_ready(&self, cx: &Context<'_>) -> Poll<()> {
        if self.ready.load(SeqCst) {
            return Poll::Ready(());
        }
        let mut task = lock(&self.task);
        match &mut *task {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        drop(task);
        // It may have been rung before the waker was there.
        if self.ready.load(SeqCst) { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Told of every ring from the call on.
    pub(super) fn watchers(&self) -> &Notify {
        &self.watchers
    }

    /// Rings it.
    pub(super) fn ring(self: &Arc<Self>) {
        self.wake_by_ref();
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
