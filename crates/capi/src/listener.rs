//! `phoebus_listener`: a session-aware destination in a C program (S5, S18), over a gateway whose sessions end here.

#![allow(unsafe_code, reason = "functions that C calls")]

use crate::bell::Bell;
use crate::boundary::{get, get_mut, give, take, text};
use crate::context::{Callback, Context, Core};
use crate::failure::{Failure, code, unwrap_or_store};
use crate::options::SessionOptions;
use crate::session::Session;
use phoebus_client::{Hop, Report};
use phoebus_gateway::config::{Config, Destination};
use phoebus_gateway::{Gateway, Guard, IncomingSession, LocalAcceptor};
use phoebus_net::tcp::Plain;
use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::io;
use std::mem::forget;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;
use tokio::time::timeout;

/// Maximum number of sessions waiting to be accepted. 128, a usual backlog for listen(2): enough for bursts.
const BACKLOG: usize = 128;

/// `phoebus_listener`.
#[derive(Debug)]
pub(crate) struct Listener {
    core: Arc<Core>,
    queue: Arc<Queue>,
    /// Ends on the context's thread.
    gateway: Option<Gateway>,
    port: u16,
    finish_limit: Duration,
}

/// The queue of sessions between the context's thread and the program.
#[derive(Debug)]
struct Queue {
    core: Arc<Core>,
    id: u64,
    name: String,
    waiting: Mutex<VecDeque<Waiting>>,
    bell: Bell,
}

/// A session that waits to be accepted.
#[derive(Debug)]
struct Waiting {
    connection: Plain,
    arrival: IncomingSession,
    over: Arc<Bell>,
}

/// Rings when the gateway drops the session.
struct Over(Arc<Bell>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.ring();
    }
}

impl LocalAcceptor for Queue {
    fn take(&self, arrival: IncomingSession) -> io::Result<(Plain, Guard)> {
        let mut waiting = self.lock();
        if waiting.len() >= BACKLOG {
            return Err(io::Error::other(format!("{BACKLOG} sessions wait already to be accepted there")));
        }
        let [near, connection] = Plain::pair()?;
        let over = Arc::new(Bell::new()?);
        let guard = Box::new(Over(over.clone()));
        waiting.push_back(Waiting { connection, arrival, over });
        // While the lock is held, so that nobody can take the session before: otherwise the callback would run for a
        // session that is gone.
        self.bell.ring();
        self.core.schedule_call(self.id);
        drop(waiting);
        Ok((near, guard))
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the next session off the queue.
    fn pop(&self) -> Option<Waiting> {
        let mut waiting = self.lock();
        let next = waiting.pop_front();
        if waiting.is_empty() {
            self.bell.clear();
            self.core.cancel_call(self.id);
        } else {
            // A callback need only accept one session, and there are more.
            self.core.schedule_call(self.id);
        }
        next
    }
}

impl Listener {
    fn start(core: &Arc<Core>, options: &SessionOptions, address: &str, port: u16) -> Result<Self, Failure> {
        let bell = Bell::new().map_err(Failure::system)?;
        let plan = options.listening(address, port)?;
        let (core, id) = (core.clone(), core.number());
        let queue = Queue { core: core.clone(), id, name: plan.name.clone(), waiting: Mutex::default(), bell };
        let queue = Arc::new(queue);
        let finish_limit = plan.finish_limit;
        let config = Config::destination(Destination {
            name: plan.name,
            addresses: plan.addresses,
            transport: plan.transport,
            security: plan.security,
            credentials: plan.credentials,
            from: plan.from,
            profile: plan.profile,
            inlet: queue.clone(),
        });
        let (answer, started) = mpsc::channel();
        core.runtime.spawn(async move { answer.send(Gateway::start(config)) });
        let gateway = started.recv().map_err(|_| Failure::bug())?;
        let gateway = gateway.map_err(|error| Failure::new(code::SYSTEM, error.to_string()))?;
        let port = gateway.addresses().first().map_or(0, |address| address.port());
        Ok(Self { core, queue, gateway: Some(gateway), port, finish_limit })
    }

    fn accept(&self, milliseconds: c_int) -> Result<Session, Failure> {
        self.core.check()?;
        let mut next = self.queue.pop();
        if next.is_none() && self.queue.bell.wait(milliseconds) {
            next = self.queue.pop();
        }
        let next = next.ok_or_else(|| Failure::new(code::PENDING, "no session waits to be accepted"))?;
        let Waiting { connection, arrival, over } = next;
        let origin = arrival.origin.to_string();
        let report = report(&self.queue.name, arrival);
        Ok(Session::arrived(connection, over, &report, &origin, self.finish_limit))
    }
}

/// What this end knows of the session's path.
fn report(name: &str, arrival: IncomingSession) -> Report {
    let from = arrival.visited.last().cloned().unwrap_or_else(|| arrival.from.to_string());
    let last = Hop { from, to: name.to_owned(), streams: 1, ..Hop::default() };
    Report {
        session: arrival.session.to_string(),
        destination: arrival.destination.to_string(),
        hops: vec![last],
        note: match arrival.proved[..] {
            [] => String::new(),
            ref names => format!("brought by a holder of a certificate for {}", names.join(", ")),
        },
        ..Report::default()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.core.withdraw(self.queue.id);
        let Some(gateway) = self.gateway.take() else { return };
        // Accepted sessions go on; the others are reset with the queue.
        self.queue.lock().clear();
        let core = self.core.clone();
        self.core.finish_with(async move {
            gateway.stop_listening().await;
            while gateway.is_busy() {
                if timeout(LOOK, core.stopping()).await.is_ok() {
                    break;
                }
            }
            // Neighbours still receive the final frames of sessions that ended in order; the other sessions are
            // reset.
            let _ = timeout(LAST_WORDS, gateway.drain()).await;
            gateway.end().await;
        });
    }
}

/// How often to check whether the last session has ended.
const LOOK: Duration = Duration::from_millis(200);
/// Time limit for an orderly close of connections: a few round trips of any path.
const LAST_WORDS: Duration = Duration::from_secs(2);

export! {
    /// See the header.
    fn phoebus_listen(
        context: *const Context,
        options: *const SessionOptions,
        address: *const c_char,
        port: u16,
        callback: Option<Callback>,
        data: *mut c_void,
        error: *mut *mut Failure,
    ) -> *mut Listener, or null_mut(), {
        let start = || {
            let context = get(context).ok_or_else(|| Failure::argument("the context is missing"))?;
            let core = context.core()?;
            let address = match address.is_null() {
                true => "",
                false => text(address).ok_or_else(|| Failure::argument("the address is no text in UTF-8"))?,
            };
            let plain = SessionOptions::default();
            let listener = Listener::start(core, get(options).unwrap_or(&plain), address, port)?;
            let id = listener.queue.id;
            let handle = give(listener);
            core.register(id, callback, handle.cast(), data);
            Ok(handle)
        };
        unwrap_or_store(start(), get_mut(error), null_mut())
    }

    /// See the header.
    fn phoebus_listener_port(listener: *const Listener) -> u16, or 0, {
        get(listener).map_or(0, |listener| listener.port)
    }

    /// See the header.
    fn phoebus_listener_descriptor(listener: *const Listener) -> c_int, or -1, {
        get(listener).map_or(-1, |listener| listener.queue.bell.number())
    }

    /// See the header.
    fn phoebus_accept(
        listener: *const Listener,
        milliseconds: c_int,
        session: *mut *mut Session,
        error: *mut *mut Failure,
    ) -> c_int, or code::BUG, {
        let (Some(listener), Some(place)) = (get(listener), get_mut(session)) else { return code::ARGUMENT };
        *place = null_mut();
        match listener.accept(milliseconds) {
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
    fn phoebus_listener_free(listener: *mut Listener) -> (), or (), {
        if let Some(listener) = take(listener) {
            match listener.core.check() {
                Ok(()) => drop(listener),
                Err(_) => forget(listener),
            }
        }
    }
}
