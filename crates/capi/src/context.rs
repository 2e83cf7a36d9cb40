//! Background work: one thread with a runtime, and the callbacks that wait for `phoebus_process()`.

#![allow(unsafe_code, reason = "functions that C calls")]

use crate::bell::Bell;
use crate::boundary::{get, give, take, without_signals};
use crate::failure::{Failure, code};
use std::collections::{HashMap, VecDeque};
use std::ffi::{c_int, c_void};
use std::io;
use std::mem::forget;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use tokio::runtime::{Builder, Handle};
use tokio::sync::{oneshot, watch};
use tokio::task;

/// A callback of the program, called with the handle and the data registered for it.
pub(crate) type Callback = unsafe extern "C" fn(handle: *mut c_void, data: *mut c_void);

/// `phoebus_context`.
#[derive(Debug)]
pub(crate) struct Context {
    core: Arc<Core>,
    thread: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

/// The part of a context that its handles share.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) runtime: Handle,
    process: u32,
    bell: Bell,
    calls: Mutex<Calls>,
    next: AtomicU64,
    /// Whether the context is being freed.
    stopping: watch::Sender<bool>,
    /// Tasks to wait for before the context is freed.
    closing: Mutex<Vec<task::JoinHandle<()>>>,
}

/// The registered callbacks, and the queue of those due.
#[derive(Debug, Default)]
struct Calls {
    known: HashMap<u64, Call>,
    waiting: VecDeque<u64>,
}

/// The program's addresses: they are only passed back to it.
#[derive(Debug, Clone, Copy)]
struct Call {
    callback: Callback,
    handle: usize,
    data: usize,
}

impl Calls {
    fn next(&mut self) -> Option<Call> {
        let id = self.waiting.pop_front()?;
        self.known.get(&id).copied()
    }
}

impl Context {
    fn new() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().thread_name("phoebus-resolve").build()?;
        let (stop, stopped) = oneshot::channel();
        let core = Core {
            runtime: runtime.handle().clone(),
            process: std::process::id(),
            bell: Bell::new()?,
            calls: Mutex::default(),
            next: AtomicU64::new(0),
            stopping: watch::Sender::new(false),
            closing: Mutex::default(),
        };
        let core = Arc::new(core);
        let kept = core.clone();
        let run = move || {
            runtime.block_on(async {
                let _ = stopped.await;
                kept.close().await;
            });
            // A name lookup may continue for a while; nobody needs its result any more.
            runtime.shutdown_background();
        };
        // Signals go to the program's own threads.
        let thread = without_signals(|| std::thread::Builder::new().name("phoebus".to_owned()).spawn(run))?;
        Ok(Self { core, thread: Some((stop, thread)) })
    }

    /// The shared part, for making handles; an error in another process than the one with the thread.
    pub(crate) fn core(&self) -> Result<&Arc<Core>, Failure> {
        self.core.check().map(|()| &self.core)
    }

    fn process(&self, milliseconds: c_int) -> c_int {
        if self.core.check().is_err() || !self.core.bell.wait(milliseconds) {
            return 0;
        }
        self.core.bell.clear();
        let mut done = 0;
        // Callbacks that become due meanwhile wait for the next call, so that this one ends.
        let due = self.core.calls().waiting.len();
        for _ in 0..due {
            // An earlier callback may have withdrawn or served it.
            let call = self.core.calls().next();
            if let Some(Call { callback, handle, data }) = call {
                // SAFETY: the program's own function, with the data it registered; the handle has not been freed.
                unsafe { callback(handle as *mut c_void, data as *mut c_void) };
                done += 1;
            }
        }
        done
    }
}

impl Core {
    /// Fails in a child of fork, which has no copy of the thread but a copy of everything else.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if self.process == std::process::id() {
            return Ok(());
        }
        let why = "this context belongs to the process that made it; a child of fork makes its own";
        Err(Failure::new(code::FORKED, why))
    }

    /// Spawns `work`. Freeing the context waits for it; it must end when [`stopping`](Core::stopping) returns.
    pub(crate) fn finish_with(&self, work: impl Future<Output = ()> + Send + 'static) {
        let task = self.runtime.spawn(work);
        self.closing.lock().unwrap_or_else(PoisonError::into_inner).push(task);
    }

    /// Waits until the context is being freed.
    pub(crate) async fn stopping(&self) {
        // The sender lives as long as `self`.
        let _ = self.stopping.subscribe().wait_for(|stopping| *stopping).await;
    }

    async fn close(&self) {
        self.stopping.send_replace(true);
        let closing = std::mem::take(&mut *self.closing.lock().unwrap_or_else(PoisonError::into_inner));
        for task in closing {
            let _ = task.await;
        }
    }

    /// A new number for a handle.
    pub(crate) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Registers `callback` for `handle`, to be called after each [`schedule_call`](Core::schedule_call) with this number.
    pub(crate) fn register(&self, id: u64, callback: Option<Callback>, handle: *mut c_void, data: *mut c_void) {
        if let Some(callback) = callback {
            let call = Call { callback, handle: handle as usize, data: data as usize };
            self.calls().known.insert(id, call);
        }
    }

    /// Removes the callback with this number.
    pub(crate) fn withdraw(&self, id: u64) {
        self.calls().known.remove(&id);
    }

    /// Schedules the callback with this number.
    pub(crate) fn schedule_call(&self, id: u64) {
        let mut calls = self.calls();
        if !calls.waiting.contains(&id) {
            calls.waiting.push_back(id);
        }
        drop(calls);
        self.bell.ring();
    }

    /// Removes the callback with this number from the queue.
    pub(crate) fn cancel_call(&self, id: u64) {
        self.calls().waiting.retain(|&other| other != id);
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.thread.take() {
            drop(stop);
            let _ = thread.join();
        }
    }
}

export! {
    /// See the header.
    fn phoebus_context_new() -> *mut Context, or null_mut(), {
        Context::new().map_or(null_mut(), give)
    }

    /// See the header.
    fn phoebus_context_descriptor(context: *const Context) -> c_int, or -1, {
        get(context).map_or(-1, |context| context.core.bell.number())
    }

    /// See the header.
    fn phoebus_process(context: *const Context, milliseconds: c_int) -> c_int, or 0, {
        get(context).map_or(0, |context| context.process(milliseconds))
    }

    /// See the header.
    fn phoebus_context_free(context: *mut Context) -> (), or (), {
        if let Some(context) = take(context) {
            match context.core.check() {
                Ok(()) => drop(context),
                // The parent owns these resources too; leave them as they are.
                Err(_) => forget(context),
            }
        }
    }
}
