//! Opens a session, blocking or in the background (`phoebus_connect`, `phoebus_attempt`).

#![allow(unsafe_code, reason = "functions that C calls")]

use crate::bell::Bell;
use crate::boundary::{get, get_mut, give, take, text};
use crate::context::{Callback, Context, Core};
use crate::failure::{Failure, code, unwrap_or_store};
use crate::options::{Destination, SessionOptions};
use crate::session::Session;
use phoebus_client::{Opening, open};
use std::ffi::{c_char, c_int, c_void};
use std::mem::forget;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::task::AbortHandle;

/// `phoebus_attempt`.
#[derive(Debug)]
pub(crate) struct Attempt {
    core: Arc<Core>,
    id: u64,
    outcome: Arc<Outcome>,
    task: AbortHandle,
}

/// The task's result, shared with the handle.
#[derive(Debug)]
struct Outcome {
    result: Mutex<Option<Result<Session, Failure>>>,
    bell: Bell,
}

impl Attempt {
    fn start(core: &Arc<Core>, opening: Opening) -> Result<Self, Failure> {
        let outcome = Arc::new(Outcome { result: Mutex::default(), bell: Bell::new().map_err(Failure::system)? });
        let (core, id, kept) = (core.clone(), core.number(), outcome.clone());
        let news = core.clone();
        let work = core.runtime.spawn(carry_out(opening));
        let task = work.abort_handle();
        core.runtime.spawn(async move {
            let result = match work.await {
                Ok(result) => result,
                Err(ended) if ended.is_cancelled() => return,
                Err(_) => Err(Failure::bug()),
            };
            *kept.result.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
            kept.bell.ring();
            news.schedule_call(id);
        });
        Ok(Self { core, id, outcome, task })
    }

    fn finish(&self) -> Result<Session, Failure> {
        self.core.check()?;
        let result = self.outcome.result.lock().unwrap_or_else(PoisonError::into_inner).take();
        result.unwrap_or_else(|| Err(Failure::new(code::PENDING, "the session is not open yet")))
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.task.abort();
        self.core.withdraw(self.id);
    }
}

async fn carry_out(opening: Opening) -> Result<Session, Failure> {
    let limit = opening.options().finish_limit;
    let session = open(opening).await.map_err(|error| Failure::from(&error))?;
    Session::opened(session, limit)
}

/// Opens a session and waits for it, on this thread alone (and one that resolves a name).
fn connect(options: Option<&SessionOptions>, to: &Destination) -> Result<Session, Failure> {
    let opening = opening(options, to)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::system)?;
    let result = runtime.block_on(carry_out(opening));
    runtime.shutdown_background();
    result
}

fn opening(options: Option<&SessionOptions>, to: &Destination) -> Result<Opening, Failure> {
    options.map_or_else(|| SessionOptions::default().opening(to), |options| options.opening(to))
}

export! {
    /// See the header.
    fn phoebus_connect(
        options: *const SessionOptions,
        host: *const c_char,
        port: u16,
        error: *mut *mut Failure,
    ) -> *mut Session, or null_mut(), {
        unwrap_or_store(connect(get(options), &Destination::of(text(host), port)).map(give), get_mut(error), null_mut())
    }

    /// See the header.
    fn phoebus_connect_start(
        context: *const Context,
        options: *const SessionOptions,
        host: *const c_char,
        port: u16,
        callback: Option<Callback>,
        data: *mut c_void,
        error: *mut *mut Failure,
    ) -> *mut Attempt, or null_mut(), {
        let start = || {
            let context = get(context).ok_or_else(|| Failure::argument("the context is missing"))?;
            let core = context.core()?;
            let opening = opening(get(options), &Destination::of(text(host), port))?;
            // Register the callback only after the attempt exists.
            let attempt = Attempt::start(core, opening)?;
            let id = attempt.id;
            let handle = give(attempt);
            core.register(id, callback, handle.cast(), data);
            Ok(handle)
        };
        unwrap_or_store(start(), get_mut(error), null_mut())
    }

    /// See the header.
    fn phoebus_attempt_descriptor(attempt: *const Attempt) -> c_int, or -1, {
        get(attempt).map_or(-1, |attempt| attempt.outcome.bell.number())
    }

    /// See the header.
    fn phoebus_attempt_finish(
        attempt: *const Attempt,
        session: *mut *mut Session,
        error: *mut *mut Failure,
    ) -> c_int, or code::BUG, {
        let (Some(attempt), Some(place)) = (get(attempt), get_mut(session)) else { return code::ARGUMENT };
        *place = null_mut();
        match attempt.finish() {
            Ok(session) => {
                *place = give(session);
                code::OK
            }
            Err(failure) => {
                let code = failure.code;
                unwrap_or_store(Err(failure), get_mut(error), code)
            }
        }
    }

    /// See the header.
    fn phoebus_attempt_free(attempt: *mut Attempt) -> (), or (), {
        if let Some(attempt) = take(attempt) {
            match attempt.core.check() {
                Ok(()) => drop(attempt),
                Err(_) => forget(attempt),
            }
        }
    }
}
