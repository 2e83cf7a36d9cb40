//! A session-aware destination in a C program (S5, S18): `phoebus_listener`, over a gateway whose sessions end here.

#![allow(unsafe_code, reason = "functions that C calls")]

use crate::bell::Bell;
use crate::boundary::{get, get_mut, give, take, text};
use crate::context::{Callback, Context, Core};
use crate::failure::{Failure, code, tell};
use crate::options::Chosen;
use crate::session::Session;
use phoebus_client::{Hop, Report};
use phoebus_gateway::config::{Config, Destination};
use phoebus_gateway::{Arrival, Gateway, Guard, Inlet};
use phoebus_net::tcp::Plain;
use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::io;
use std::mem::forget;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;
use tokio::time::timeout;

/// Sessions that wait to be accepted. 128, as a program gives to listen(2): bursts, and no more than it will look at.
const BACKLOG: usize = 128;

/// `phoebus_listener`.
#[derive(Debug)]
pub(crate) struct Listener {
    core: Arc<Core>,
    queue: Arc<Queue>,
    /// Ended on the context's thread.
    gateway: Option<Gateway>,
    port: u16,
    finish_limit: Duration,
}

/// Sessions between the context's thread and the program.
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
    arrival: Arrival,
    over: Arc<Bell>,
}

/// Rings when the gateway lets go of the session.
struct Over(Arc<Bell>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.ring();
    }
}

impl Inlet for Queue {
    fn take(&self, arrival: Arrival) -> io::Result<(Plain, Guard)> {
        let mut waiting = self.lock();
        if waiting.len() >= BACKLOG {
            return Err(io::Error::other(format!("{BACKLOG} sessions wait already to be accepted there")));
        }
        let [near, connection] = Plain::pair()?;
        let over = Arc::new(Bell::new()?);
        let guard = Box::new(Over(over.clone()));
        waiting.push_back(Waiting { connection, arrival, over });
        // Before anyone can take it: what is said of a session that is gone already would be a call for nothing.
        self.bell.ring();
        self.core.say(self.id);
        drop(waiting);
        Ok((near, guard))
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next session.
    fn pop(&self) -> Option<Waiting> {
        let mut waiting = self.lock();
        let next = waiting.pop_front();
        if waiting.is_empty() {
            self.bell.hush();
            self.core.unsay(self.id);
        } else {
            // A callback is for one session at least, and there are more.
            self.core.say(self.id);
        }
        next
    }
}

impl Listener {
    fn start(core: &Arc<Core>, options: &Chosen, address: &str, port: u16) -> Result<Self, Failure> {
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

/// What is known at the end of a session of its way.
fn report(name: &str, arrival: Arrival) -> Report {
    let from = arrival.visited.last().cloned().unwrap_or_else(|| arrival.from.to_string());
    let last = Hop { from, to: name.to_owned(), streams: 1, ..Hop::default() };
    Report {
        session: arrival.session.to_string(),
        destination: arrival.destination.to_string(),
        hops: vec![last],
        note: match arrival.proved[..] {
            [] => String::new(),
            ref names => format!("brought by who has a certificate for {}", names.join(", ")),
        },
        ..Report::default()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.core.withdraw(self.queue.id);
        let Some(gateway) = self.gateway.take() else { return };
        // Sessions that were accepted go on; those that were not are reset with the queue.
        self.queue.lock().clear();
        let core = self.core.clone();
        self.core.finish_with(async move {
            gateway.stop_listening().await;
            while gateway.is_busy() {
                if timeout(LOOK, core.stopping()).await.is_ok() {
                    break;
                }
            }
            // The gateways hear to the end what was said of sessions that have ended well; the others are reset.
            let _ = timeout(LAST_WORDS, gateway.drain()).await;
            gateway.end().await;
        });
    }
}

/// How often it is looked at whether the last session has ended.
const LOOK: Duration = Duration::from_millis(200);
/// How long connections may take to end in peace: a few round trips of any path.
const LAST_WORDS: Duration = Duration::from_secs(2);

export! {
    /// See the header.
    fn phoebus_listen(
        context: *const Context,
        options: *const Chosen,
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
            let plain = Chosen::default();
            let listener = Listener::start(core, get(options).unwrap_or(&plain), address, port)?;
            let id = listener.queue.id;
            let handle = give(listener);
            core.register(id, callback, handle.cast(), data);
            Ok(handle)
        };
        tell(start(), get_mut(error), null_mut())
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
                tell(Err(failure), get_mut(error), code)
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
