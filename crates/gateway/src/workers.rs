//! The relay threads, each with a poller of its own, and the assignment of sessions to them.
//!
//! A session and its two connections stay on one thread. In a thread pool with a shared poller, one thread would wake
//! for every segment that arrives on a connection while another is busy relaying it. That would waste a tenth of all
//! processor time.

use std::io;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::runtime::{Builder, Handle, Id};
use tokio::sync::oneshot;

/// Threads of each worker that resolve the names of peers, for which the C library blocks; more names wait. The names
/// of destinations have threads of their own ([`phoebus_net::names`]).
const RESOLVERS: usize = 16;

/// A gateway's threads.
#[derive(Debug)]
pub(crate) struct Workers {
    workers: Vec<Worker>,
    /// Dropping these ends the threads.
    running: Mutex<Vec<oneshot::Sender<()>>>,
}

#[derive(Debug)]
struct Worker {
    handle: Handle,
    /// The number of active connections.
    busy: AtomicUsize,
}

/// A place on a worker, returned on drop.
#[derive(Debug)]
pub(crate) struct WorkerSlot {
    workers: Arc<Workers>,
    index: usize,
}

impl Workers {
    /// Uses the caller's runtime, and starts as many threads as make `count` with it.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub(crate) fn start(count: NonZeroUsize) -> io::Result<Arc<Self>> {
        let worker = |handle| Worker { handle, busy: AtomicUsize::new(0) };
        let mut workers = vec![worker(Handle::current())];
        let mut running = Vec::new();
        for index in 1..count.get() {
            let (handle, stop) = thread(index)?;
            workers.push(worker(handle));
            running.push(stop);
        }
        Ok(Arc::new(Self { workers, running: Mutex::new(running) }))
    }

    /// A place on the least busy worker; on the caller's among equals.
    pub(crate) fn place(self: &Arc<Self>) -> WorkerSlot {
        let here = self.here();
        let load = |index: &usize| (self.workers[*index].busy.load(Ordering::Relaxed), *index != here);
        let index = (0..self.workers.len()).min_by_key(load).unwrap_or(0);
        self.workers[index].busy.fetch_add(1, Ordering::Relaxed);
        WorkerSlot { workers: self.clone(), index }
    }

    /// Ends the threads, and all tasks on them.
    pub(crate) fn stop(&self) {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn here(&self) -> usize {
        let id = Handle::current().id();
        self.workers.iter().position(|worker| worker.handle.id() == id).unwrap_or(0)
    }
}

impl WorkerSlot {
    /// Whether the caller runs on that worker.
    pub(crate) fn is_here(&self) -> bool {
        self.runtime() == Handle::current().id()
    }

    /// Runs `task` on that worker, and passes it the place.
    pub(crate) fn spawn<F: Future<Output = ()> + Send + 'static>(self, task: impl FnOnce(Self) -> F) {
        let handle = self.workers.workers[self.index].handle.clone();
        handle.spawn(task(self));
    }

    fn runtime(&self) -> Id {
        self.workers.workers[self.index].handle.id()
    }
}

impl Drop for WorkerSlot {
    fn drop(&mut self) {
        self.workers.workers[self.index].busy.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Starts a thread that runs tasks until it is stopped.
fn thread(index: usize) -> io::Result<(Handle, oneshot::Sender<()>)> {
    let runtime = Builder::new_current_thread().max_blocking_threads(RESOLVERS).enable_all().build()?;
    let handle = runtime.handle().clone();
    let (stop, stopped) = oneshot::channel::<()>();
    std::thread::Builder::new().name(format!("relay-{index}")).spawn(move || {
        let _ = runtime.block_on(stopped);
        // A thread may still be resolving a name.
        runtime.shutdown_background();
    })?;
    Ok((handle, stop))
}
