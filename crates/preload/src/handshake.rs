//! The handshake of one connect(2), advanced a little whenever a hook comes by, without waiting.
//!
//! ```text
//! connect ──► dial ──► Pending ──► Open           the socket is the program's
//!               ▲         │
//!               └─────────┼──────► Failed         the gateway refused, or is not there
//!  next address,          └──────► (no entry)     not there, and the settings say to go direct then
//!  better gateway
//! ```

mod dial;
mod ends;
mod redirect;

use crate::asked::Asked;
use crate::changes::Changes;
use crate::config::Config;
use crate::held::Held;
use crate::process::no_unwind;
use crate::record::{Attempt, ChangeInProgress, GATEWAYS, Gateways, Outcome};
use crate::report::{self, Failure};
use crate::sys::{self, Errno};
use crate::table::{self, Guard, State};
use crate::tcp;
use crate::{bypass, config, registrations, socket};
use dial::{dial, next_address};
use ends::{give_up, is_watched, settle, withdraw};
use libc::{c_int, c_short};
use phoebus_config::agent::Running;
use phoebus_proto::session::Code;
use phoebus_proto::session::initiator;
use phoebus_proto::session::plan::{Next, OPEN_LIMIT, Plan, Policy, REDIRECTS};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The state of a socket, as far as the program's calls on it are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The kernel handles them.
    Plain,
    /// The session is being opened. These poll(2) events bring news, and the next look is due at this time at the
    /// latest.
    Waiting { events: c_short, until: Duration },
    /// The handshake failed, and the program has not been told.
    Failed,
}

/// A connect that a call waits for: its number, and the socket on which it was last seen. A socket of another address
/// family may replace that one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Awaited {
    pub(crate) attempt: u64,
    pub(crate) cookie: Option<u64>,
}

/// Longest time between looks: another thread or process may consume the event that this one waits for.
const GLANCE: Duration = Duration::from_millis(10);

/// Numbers attempts; 0 is none.
static ATTEMPTS: AtomicU64 = AtomicU64::new(1);

/// The first time-out of any handshake, in milliseconds; 0 if none. It may be too early, but never too late.
static EARLIEST: AtomicU64 = AtomicU64::new(0);

/// Possible targets of a first hop.
pub(crate) struct FirstHop {
    to: Gateways,
    agent: Option<Running>,
}

impl FirstHop {
    /// The running agent; and the gateway itself in case the agent has just ended, unless the agent is required.
    pub(crate) fn to(config: &Config, gateways: Gateways, agent: Option<Running>) -> Self {
        let agents = agent.iter().flat_map(|agent| agent.addresses).flatten();
        let direct = gateways.iter().filter(|_| !config.demands_agent());
        Self { to: Gateways::new(agents.chain(direct)), agent }
    }
}

/// Begins to open a session to `destination`, without blocking. If the gateway is not reachable and the settings permit
/// it, the socket connects directly instead.
///
/// `fd` is the program's descriptor. A thread that closes it waits for the entry only if it has found the entry, so
/// `held` is used instead. Returns what a call needs to wait for the result.
pub(crate) fn begin(
    guard: &mut Guard,
    fd: c_int,
    held: &Held,
    config: &'static Config,
    first: FirstHop,
    destination: SocketAddr,
) -> Result<Awaited, Errno> {
    let mut session = [0; 16];
    sys::random(&mut session)?;
    let now = sys::now();
    let family = guard.socket_state().family;
    let policy = Policy { redirects: REDIRECTS, fallback: config.settings.fallback };
    let attempt = Attempt {
        outcome: Outcome::Running,
        unsettled: ChangeInProgress::new(),
        handshake: None,
        exchange: None,
        session,
        plan: Plan::new(policy, Asked::only(config.gateway.as_ref())),
        end: None,
        gateways: first.to.for_family(family),
        gateway: 0,
        failures: [0; GATEWAYS],
        agent: first.agent,
        heard: false,
        begun: now,
        until: now,
        changes: Changes::NONE,
        untuned: false,
        mapped: false,
        connecting: fd,
    };
    guard.make_record()?.attempt = Some(attempt);
    guard.socket_state().fd = fd;
    guard.socket_state().closed = false;
    guard.socket_state().errno = 0;
    guard.socket_state().destination = crate::addr::RawAddr::new(destination, family);
    guard.socket_state().attempt = ATTEMPTS.fetch_add(1, Ordering::Relaxed);
    // The kernel may have nothing to report yet, but another thread may already wait.
    registrations::hide(guard);
    // The connection may exist before this call ends. Bytes that another thread sends meanwhile wait for this guard.
    guard.set_state(State::Pending);
    let Err(errno) = dial(guard, held.fd(), config, destination) else { return Ok(awaited(guard)) };
    let failure = Failure::Connect(errno);
    let direct = redirect::next(guard, config, &failure) == Next::Destination;
    match give_up(guard, held.fd(), config, &failure, direct) {
        None => {
            let awaited = awaited(guard);
            settle(guard, State::Free);
            Ok(awaited)
        }
        Some(errno) => {
            withdraw(guard);
            Err(errno)
        }
    }
}

/// The state of the socket behind `fd`, after a step of its handshake if one is in progress.
pub(crate) fn look(fd: c_int) -> Stage {
    if table::is_quiet() || fd < 0 {
        return Stage::Plain;
    }
    no_unwind(|| table::find_live(fd).map_or(Stage::Plain, |mut guard| advance(&mut guard, fd)))
}

/// Like [`look`], with what a call needs to wait for the attempt, if there is one.
pub(crate) fn look_to_wait(fd: c_int) -> (Stage, Awaited) {
    match table::find_live(fd) {
        Some(mut guard) => (advance(&mut guard, fd), awaited(&guard)),
        None => (Stage::Plain, Awaited { attempt: 0, cookie: None }),
    }
}

/// The attempt of `guard`, for a call that waits for it; read before the guard is released.
pub(crate) fn awaited(guard: &Guard) -> Awaited {
    Awaited { attempt: guard.attempt(), cookie: Some(guard.cookie()) }
}

/// Like [`look`], for a call that waits: `None` if `fd` is no longer the socket of that call.
pub(crate) fn look_for(fd: c_int, awaited: &mut Awaited) -> Option<Stage> {
    look_once(fd, awaited).or_else(|| {
        // Another thread may be replacing the socket, with the entry of the first one locked.
        no_unwind(|| awaited.cookie.into_iter().for_each(table::wait_for));
        look_once(fd, awaited)
    })
}

fn look_once(fd: c_int, awaited: &mut Awaited) -> Option<Stage> {
    no_unwind(|| {
        if let Some(mut guard) = table::find(fd)
            && guard.attempt() == awaited.attempt
        {
            let stage = advance(&mut guard, fd);
            awaited.cookie = sys::cookie(fd);
            return Some(stage);
        }
        let cookie = sys::cookie(fd)?;
        let is_it = awaited.cookie == Some(cookie) || socket::took_its_place(awaited.attempt, cookie);
        is_it.then(|| {
            awaited.cookie = Some(cookie);
            Stage::Plain
        })
    })
}

/// Advances the handshake as far as possible without blocking.
pub(crate) fn advance(guard: &mut Guard, fd: c_int) -> Stage {
    match guard.state() {
        State::Pending => {}
        State::Failed if guard.socket_state().errno != 0 => return Stage::Failed,
        _ => return Stage::Plain,
    }
    guard.socket_state().fd = fd;
    guard.socket_state().closed = false;
    let (Some(config), Some(destination)) = (config::get(), guard.socket_state().destination.socket_addr()) else {
        return Stage::Plain;
    };
    let mut failure = match guard.record().and_then(|record| record.attempt.as_mut()) {
        Some(attempt) if attempt.unsettled.is_set() => Failure::Unknown,
        Some(attempt) => match attempt.outcome {
            Outcome::Running => match exchange(attempt, fd, config, destination) {
                Ok(Some(stage)) => return stage,
                Ok(None) => {
                    attempt.outcome = Outcome::Opened;
                    report::opened(config, attempt, fd, destination);
                    bypass::remember(config, attempt, fd, destination);
                    return settle(guard, State::Open);
                }
                Err(failure) => {
                    // Until the next address is dialled, or the program has its socket back.
                    attempt.unsettled.set();
                    failure
                }
            },
            // Another process that shares the connection was faster.
            Outcome::Opened => return settle(guard, State::Open),
            Outcome::Direct => return settle(guard, State::Free),
            Outcome::Failed(errno) => {
                guard.socket_state().errno = errno;
                return settle(guard, State::Failed);
            }
        },
        None => return settle(guard, State::Free),
    };
    if let Failure::Connect(errno) = failure {
        if let Some(attempt) = guard.record().and_then(|record| record.attempt.as_mut()) {
            attempt.failed(errno);
        }
        if next_address(guard, fd, config, destination) {
            return advance(guard, fd);
        }
    }
    let mut next = redirect::next(guard, config, &failure);
    if next == Next::Better {
        match redirect::follow(guard, fd, config, destination) {
            Ok(()) => return advance(guard, fd),
            Err(errno) => failure = Failure::Connect(errno),
        }
        next = redirect::next(guard, config, &failure);
    }
    match give_up(guard, fd, config, &failure, next == Next::Destination) {
        None => settle(guard, State::Free),
        Some(errno) => {
            guard.socket_state().errno = errno;
            settle(guard, State::Failed)
        }
    }
}

/// Takes the error that the program has not been told; 0 if none.
pub(crate) fn take_error(guard: &mut Guard) -> Errno {
    let errno = std::mem::replace(&mut guard.socket_state().errno, 0);
    if guard.state() == State::Failed && !is_watched(guard) {
        guard.forget();
    }
    errno
}

/// Ends whatever is in progress or left over: the socket is unconnected, and belongs to the program alone.
pub(crate) fn abandon(guard: &mut Guard, fd: c_int) {
    if guard.state() == State::Pending {
        socket::reset(guard, fd);
    }
    withdraw(guard);
}

/// When a hook has to run at the latest so that a handshake times out; `None` if there is none.
pub(crate) fn next_deadline() -> Option<Duration> {
    let earliest = if table::is_quiet() { 0 } else { EARLIEST.load(Ordering::Relaxed) };
    (earliest != 0).then(|| Duration::from_millis(earliest))
}

/// Ends handshakes that have timed out, also those of sockets that nobody asks about any more.
pub(crate) fn expire() {
    let Some(deadline) = next_deadline() else { return };
    let now = sys::now();
    if now < deadline {
        return;
    }
    EARLIEST.store(0, Ordering::Relaxed);
    table::each_pending(|mut guard| {
        let until = guard.record().and_then(|record| record.attempt.as_ref()).map_or(now, |attempt| attempt.until);
        if let Some(fd) = guard.valid_descriptor() {
            advance(&mut guard, fd);
            if let Some(attempt) = guard.record().and_then(|record| record.attempt.as_ref()) {
                note_deadline(attempt.until);
            }
        } else if until <= now {
            guard.remove();
        } else {
            note_deadline(until);
        }
    });
}

fn note_deadline(until: Duration) {
    let until = u64::try_from(until.as_millis()).unwrap_or(u64::MAX).max(1);
    let _ = EARLIEST.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |earliest| {
        (earliest == 0 || until < earliest).then_some(until)
    });
}

/// Sends and reads what is possible now. `None` if the session is open.
fn exchange(
    attempt: &mut Attempt,
    fd: c_int,
    config: &Config,
    destination: SocketAddr,
) -> Result<Option<Stage>, Failure> {
    let handshake = attempt.handshake.as_mut().ok_or(Failure::Lost(0))?;
    let mut send_error = None;
    // Calls that would only return EAGAIN are not made, so that the mark is set only while bytes move.
    while !handshake.outgoing().is_empty() && tcp::state(fd) != Some(tcp::SYN_SENT) {
        attempt.unsettled.set();
        let result = sys::send(fd, handshake.outgoing(), 0, None).map(|n| handshake.sent(n));
        attempt.unsettled.clear();
        match result {
            Ok(()) => {}
            Err(libc::EAGAIN) => break,
            // The gateway's last words explain more than the error of the connection.
            Err(errno) => {
                send_error = Some(errno);
                break;
            }
        }
    }
    loop {
        match handshake.state() {
            initiator::State::Opened => return Ok(None),
            initiator::State::Refused => {
                let code = handshake.refused().map_or(Code::Protocol, |refused| refused.code);
                return Err(Failure::Refused(code));
            }
            initiator::State::Challenged | initiator::State::Proved => {
                attempt.unsettled.set();
                if !dial::authenticate(attempt, config, destination)? {
                    return Err(Failure::Challenged);
                }
                attempt.unsettled.clear();
                // What it has to send goes first.
                return exchange(attempt, fd, config, destination);
            }
            _ => {}
        }
        let space = handshake.space().map_err(Failure::Protocol)?;
        // First only a look, for the same reason.
        let news = sys::recv(fd, &mut [0], libc::MSG_PEEK).and_then(|n| match n {
            0 => Ok(0),
            _ => {
                attempt.unsettled.set();
                sys::recv(fd, space, 0)
            }
        });
        match news {
            // A connection that was never made ends like this, too.
            Ok(0) => return Err(send_error.map_or(Failure::Lost(0), |errno| lost(attempt.heard, errno))),
            Ok(n) => {
                attempt.heard = true;
                handshake.received(n).map_err(Failure::Protocol)?;
                attempt.unsettled.clear();
            }
            Err(libc::EAGAIN) => {
                attempt.unsettled.clear();
                break;
            }
            Err(errno) => return Err(lost(attempt.heard, send_error.unwrap_or(errno))),
        }
    }
    if let Some(errno) = send_error {
        return Err(lost(attempt.heard, errno));
    }
    let events = if handshake.outgoing().is_empty() { libc::POLLIN } else { libc::POLLOUT };
    let now = sys::now();
    extend(attempt, fd, now)?;
    // The longer it has taken already, the less a delay matters.
    let glance = now.saturating_add(GLANCE.max(now.saturating_sub(attempt.begun) / 8));
    Ok(Some(Stage::Waiting { events, until: attempt.until.min(glance) }))
}

/// Whether the time limit for the gateway has passed.
fn extend(attempt: &mut Attempt, fd: c_int, now: Duration) -> Result<(), Failure> {
    if now < attempt.until {
        return Ok(());
    }
    if tcp::state(fd) == Some(tcp::SYN_SENT) {
        return Err(Failure::Connect(libc::ETIMEDOUT));
    }
    // The gateway is there, and may be waiting for the destination.
    let end = attempt.begun.saturating_add(OPEN_LIMIT);
    if attempt.until >= end {
        return Err(Failure::Silent);
    }
    attempt.until = end;
    note_deadline(end);
    Ok(())
}

/// An error of the connection: nobody accepted it, or it broke.
fn lost(heard: bool, errno: Errno) -> Failure {
    match errno {
        libc::ECONNRESET | libc::EPIPE | libc::ENOTCONN => Failure::Lost(libc::ECONNRESET),
        _ if heard => Failure::Lost(errno),
        _ => Failure::Connect(errno),
    }
}
