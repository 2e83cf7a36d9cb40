//! Threads that relay, each with a poller of its own, and which session goes to which.
//!
//! A session stays on one thread, and so do its two connections. A pool of threads with one poller between them would be
//! woken for every segment that arrives on a connection, by one thread, while another is busy relaying it: a tenth of all
//! processor time, for nothing.

use std::io;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::runtime::{Builder, Handle, Id};
use tokio::sync::oneshot;

/// Threads of each worker for the names of peers, which the C library resolves only by blocking; more names at a time wait. Those of
/// destinations have threads of their own ([`phoebus_net::names`]).
const RESOLVERS: usize = 16;

/// All of a gateway's threads.
#[derive(Debug)]
pub(crate) struct Workers {
    workers: Vec<Worker>,
    /// Dropped, they end the threads.
    running: Mutex<Vec<oneshot::Sender<()>>>,
}

#[derive(Debug)]
struct Worker {
    handle: Handle,
    /// Connections that are doing something.
    busy: AtomicUsize,
}

/// A place on a worker, given back when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    workers: Arc<Workers>,
    index: usize,
}

impl Workers {
    /// The runtime of the caller, and as many threads as make `count` with it.
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

    /// A place on the worker that has the least to do; on the caller's among equals.
    pub(crate) fn place(self: &Arc<Self>) -> Place {
        let here = self.here();
        let load = |index: &usize| (self.workers[*index].busy.load(Ordering::Relaxed), *index != here);
        let index = (0..self.workers.len()).min_by_key(load).unwrap_or(0);
        self.workers[index].busy.fetch_add(1, Ordering::Relaxed);
        Place { workers: self.clone(), index }
    }

    /// Ends the threads, and with them all tasks that are left there.
    pub(crate) fn stop(&self) {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn here(&self) -> usize {
        let id = Handle::current().id();
        self.workers.iter().position(|worker| worker.handle.id() == id).unwrap_or(0)
    }
}

impl Place {
    /// Whether the caller runs there already.
    pub(crate) fn is_here(&self) -> bool {
        self.runtime() == Handle::current().id()
    }

    /// Runs `task` there, and gives it the place.
    pub(crate) fn spawn<F: Future<Output = ()> + Send + 'static>(self, task: impl FnOnce(Self) -> F) {
        let handle = self.workers.workers[self.index].handle.clone();
        handle.spawn(task(self));
    }

    fn runtime(&self) -> Id {
        self.workers.workers[self.index].handle.id()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.workers.workers[self.index].busy.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A thread that runs tasks until it is told to stop.
fn thread(index: usize) -> io::Result<(Handle, oneshot::Sender<()>)> {
    let runtime = Builder::new_current_thread().max_blocking_threads(RESOLVERS).enable_all().build()?;
    let handle = runtime.handle().clone();
    let (stop, stopped) = oneshot::channel::<()>();
    std::thread::Builder::new().name(format!("relay-{index}")).spawn(move || {
        let _ = runtime.block_on(stopped);
        // A thread may still be waiting for a name.
        runtime.shutdown_background();
    })?;
    Ok((handle, stop))
}
