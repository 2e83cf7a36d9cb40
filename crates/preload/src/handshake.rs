//! The handshake of one connect(2), advanced a little whenever a hook comes by, without waiting.
//!
//! ```text
//! connect ──► dial ──► Pending ──► Open           the socket is the program's
//!               ▲         │
//!               └─────────┼──────► Failed         the gateway refused, or is not there
//!         next address    └──────► (no entry)     not there, and the settings say to go direct then
//! ```

mod ends;

use crate::config::{CONNECT_LIMIT, Config, OPEN_LIMIT};
use crate::process::no_unwind;
use crate::record::{Attempt, GATEWAYS, Gateways, Handshake, Mark, Outcome};
use crate::report::{self, Failure};
use crate::sys::{self, Errno};
use crate::table::{self, Guard, State};
use crate::{agent, bypass, config, epoll, socket};
use ends::{give_up, is_watched, settle, withdraw};
use libc::{c_int, c_short};
use phoebus_proto::agent::Running;
use phoebus_proto::endpoint::EndpointRef;
use phoebus_proto::session::initiator;
use phoebus_proto::session::message::{Auth, Hello, Open, Requirements};
use phoebus_proto::session::{Code, List, SessionId};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// TCP's states, of those the kernel tells (`tcp_states.h`).
pub(crate) const TCP_SYN_SENT: u8 = 2;
pub(crate) const TCP_CLOSE: u8 = 7;

/// How a socket stands, as far as the program's calls on it are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// They are the kernel's business.
    Plain,
    /// The session is being opened: the kernel has news when these events of poll(2) happen, and it is time to look again
    /// then at the latest.
    Waiting { events: c_short, until: Duration },
    /// That failed, which the program has not been told.
    Failed,
}

/// A connect that a call waits for: its number, and the socket on which it was last seen, which changes where one of
/// another family takes its place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Awaited {
    pub(crate) attempt: u64,
    pub(crate) cookie: Option<u64>,
}

/// How soon to look again, at the least: another thread or process may take the news that this one waits for.
const GLANCE: Duration = Duration::from_millis(10);

/// Numbers attempts; 0 is none.
static ATTEMPTS: AtomicU64 = AtomicU64::new(1);

/// The first time-out of any handshake, in milliseconds; 0: none. It may be too early, never too late.
static EARLIEST: AtomicU64 = AtomicU64::new(0);

/// Where a first hop may lead.
pub(crate) struct FirstHop {
    to: Gateways,
    agent: Option<Running>,
}

impl FirstHop {
    /// To the agent that runs, and where that is not demanded to the gateway itself, should it just have gone.
    pub(crate) fn to(config: &Config, gateways: Gateways, agent: Option<Running>) -> Self {
        let agents = agent.iter().flat_map(|agent| agent.addresses).flatten();
        let direct = gateways.iter().filter(|_| !agent::is_demanded(config));
        Self { to: Gateways::new(agents.chain(direct)), agent }
    }
}

/// The state of the TCP connection behind `fd`, `None` if it is none.
pub(crate) fn tcp_state(fd: c_int) -> Option<u8> {
    let mut state = [0];
    sys::get_bytes(fd, libc::IPPROTO_TCP, libc::TCP_INFO, &mut state).ok().filter(|len| *len == 1)?;
    Some(state[0])
}

/// Begins to open a session to `destination`, without waiting. If the gateway is not there and the settings say so, the
/// socket connects to the destination itself instead.
pub(crate) fn begin(
    guard: &mut Guard,
    fd: c_int,
    config: &Config,
    first: FirstHop,
    destination: SocketAddr,
) -> Result<(), Errno> {
    let mut session = [0; 16];
    sys::random(&mut session)?;
    let now = sys::now();
    let family = guard.facts().family;
    let attempt = Attempt {
        outcome: Outcome::Running,
        unsettled: Mark::new(),
        handshake: None,
        session,
        gateways: first.to.for_family(family),
        gateway: 0,
        failures: [0; GATEWAYS],
        agent: first.agent,
        heard: false,
        begun: now,
        until: now,
        congestion_control: [0; 16],
        untuned: false,
        widened: false,
    };
    guard.make_record()?.attempt = Some(attempt);
    guard.facts().fd = fd;
    guard.facts().closed = false;
    guard.facts().errno = 0;
    guard.facts().destination = crate::addr::RawAddr::new(destination, family);
    guard.facts().attempt = ATTEMPTS.fetch_add(1, Ordering::Relaxed);
    // Before the kernel has anything to report: another thread may be waiting.
    epoll::hide(guard);
    // The connection may be there before the call that makes it is over: what another thread sends meanwhile waits for this guard.
    guard.set_state(State::Pending);
    let Err(errno) = dial(guard, fd, config, destination) else { return Ok(()) };
    match give_up(guard, fd, config, &Failure::Connect(errno)) {
        None => {
            settle(guard, State::Free);
            Ok(())
        }
        Some(errno) => {
            withdraw(guard);
            Err(errno)
        }
    }
}

/// How the socket behind `fd` stands, after a step of its handshake if there is one.
pub(crate) fn look(fd: c_int) -> Stage {
    if table::is_quiet() || fd < 0 {
        return Stage::Plain;
    }
    no_unwind(|| table::find_live(fd).map_or(Stage::Plain, |mut guard| advance(&mut guard, fd)))
}

/// Like [`look`], with what a call needs to wait for the attempt if there is one.
pub(crate) fn look_to_wait(fd: c_int) -> (Stage, Awaited) {
    match table::find_live(fd) {
        Some(mut guard) => (advance(&mut guard, fd), awaited(&guard, fd)),
        None => (Stage::Plain, Awaited { attempt: 0, cookie: None }),
    }
}

/// The attempt of `guard`, for a call that waits for it; asked for before the guard is given back.
pub(crate) fn awaited(guard: &Guard, fd: c_int) -> Awaited {
    Awaited { attempt: guard.attempt(), cookie: sys::cookie(fd) }
}

/// Like [`look`], for a call that waits: `None` when `fd` is not the socket any more that the call was made for.
pub(crate) fn look_for(fd: c_int, awaited: &mut Awaited) -> Option<Stage> {
    look_once(fd, awaited).or_else(|| {
        // Another thread may be about to put another socket in its place, with the entry of the first one locked.
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

/// Advances the handshake as far as it goes without waiting.
pub(crate) fn advance(guard: &mut Guard, fd: c_int) -> Stage {
    match guard.state() {
        State::Pending => {}
        State::Failed if guard.facts().errno != 0 => return Stage::Failed,
        _ => return Stage::Plain,
    }
    guard.facts().fd = fd;
    guard.facts().closed = false;
    let (Some(config), Some(destination)) = (config::get(), guard.facts().destination.socket_addr()) else {
        return Stage::Plain;
    };
    let failure = match guard.record().and_then(|record| record.attempt.as_mut()) {
        Some(attempt) if attempt.unsettled.is_set() => Failure::Unknown,
        Some(attempt) => match attempt.outcome {
            Outcome::Running => match exchange(attempt, fd) {
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
                guard.facts().errno = errno;
                return settle(guard, State::Failed);
            }
        },
        None => return settle(guard, State::Free),
    };
    if let Failure::Connect(errno) = failure {
        if let Some(attempt) = guard.record().and_then(|record| record.attempt.as_mut()) {
            attempt.failed(errno);
        }
        if next_gateway(guard, fd, config, destination) {
            return advance(guard, fd);
        }
    }
    match give_up(guard, fd, config, &failure) {
        None => settle(guard, State::Free),
        Some(errno) => {
            guard.facts().errno = errno;
            settle(guard, State::Failed)
        }
    }
}

/// Tells what the program has not been told about a failure; 0 if there is nothing.
pub(crate) fn take_error(guard: &mut Guard) -> Errno {
    let errno = std::mem::replace(&mut guard.facts().errno, 0);
    if guard.state() == State::Failed && !is_watched(guard) {
        guard.forget();
    }
    errno
}

/// Ends whatever is under way or left over: the socket is unconnected, and all the program's.
pub(crate) fn abandon(guard: &mut Guard, fd: c_int) {
    if guard.state() == State::Pending {
        socket::reset(guard, fd);
    }
    withdraw(guard);
}

/// When a hook must come by at the latest, for a handshake to time out; `None` while there is none.
pub(crate) fn next_deadline() -> Option<Duration> {
    let earliest = if table::is_quiet() { 0 } else { EARLIEST.load(Ordering::Relaxed) };
    (earliest != 0).then(|| Duration::from_millis(earliest))
}

/// Ends handshakes whose time is over, also of sockets that nobody asks about any more.
pub(crate) fn expire() {
    let Some(deadline) = next_deadline() else { return };
    let now = sys::now();
    if now < deadline {
        return;
    }
    EARLIEST.store(0, Ordering::Relaxed);
    table::each_pending(|mut guard| {
        let fd = guard.facts().fd;
        let until = guard.record().and_then(|record| record.attempt.as_ref()).map_or(now, |attempt| attempt.until);
        if sys::cookie(fd) == Some(guard.cookie()) {
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

/// Connects to the gateway's address in turn, or the next one that can be connected to.
fn dial(guard: &mut Guard, fd: c_int, config: &Config, destination: SocketAddr) -> Result<(), Errno> {
    if let Some(attempt) = guard.record().and_then(|record| record.attempt.as_ref()) {
        attempt.unsettled.set();
    }
    loop {
        match dial_one(guard, fd, config, destination) {
            Ok(()) => return Ok(()),
            Err(errno) => {
                let attempt = guard.record().and_then(|record| record.attempt.as_mut()).ok_or(errno)?;
                attempt.failed(errno);
                attempt.gateways.get(attempt.gateway + 1).ok_or(errno)?;
                attempt.gateway += 1;
                socket::hang_up(fd);
            }
        }
    }
}

fn dial_one(guard: &mut Guard, fd: c_int, config: &Config, destination: SocketAddr) -> Result<(), Errno> {
    let gateway = guard
        .record()
        .and_then(|record| record.attempt.as_ref())
        .and_then(|attempt| attempt.gateways.get(attempt.gateway))
        .ok_or(libc::EHOSTUNREACH)?;
    let to = socket::fit(guard, fd, gateway)?;
    let record = guard.record().ok_or(libc::ENOMEM)?;
    let (out, inbox) = record.buffers();
    let attempt = record.attempt.as_mut().ok_or(libc::ENOMEM)?;
    let agent = attempt.agent_in_use().copied();
    if agent.is_none() {
        socket::tune(fd, attempt);
    }
    let asked = Open::new(SessionId(attempt.session), EndpointRef::from(destination));
    let later = if agent.is_some() { &config.whole } else { &config.later };
    let requirements = Requirements { rate: config.settings.bandwidth.map(|rate| rate.0), ..Requirements::default() };
    let open = Open { path: List::new(later), requirements, ..asked };
    let auth = match (&agent, config.settings.user.as_deref()) {
        // It says itself who its user is.
        (Some(agent), _) => Some(Auth { mechanism: Auth::AGENT, data: &agent.secret.0 }),
        (None, Some(user)) => Some(Auth { mechanism: Auth::ANONYMOUS, data: user.as_bytes() }),
        (None, None) => None,
    };
    // The longest OPEN there is fits the buffer.
    let mut handshake =
        Handshake::connect(out, inbox, &Hello::of(""), auth.as_ref(), &open).map_err(|_| libc::EMSGSIZE)?;
    let sent = socket::start(fd, &to, handshake.outgoing())?;
    handshake.sent(sent);
    attempt.handshake = Some(handshake);
    attempt.until = sys::now().saturating_add(CONNECT_LIMIT);
    note_deadline(attempt.until);
    attempt.unsettled.clear();
    Ok(())
}

/// Sends what there is to send and reads what there is to read. `None`: the session is open.
fn exchange(attempt: &mut Attempt, fd: c_int) -> Result<Option<Stage>, Failure> {
    let handshake = attempt.handshake.as_mut().ok_or(Failure::Lost(0))?;
    let mut send_error = None;
    // What would only say EAGAIN is not tried, so that the mark is set only while bytes do move.
    while !handshake.outgoing().is_empty() && tcp_state(fd) != Some(TCP_SYN_SENT) {
        attempt.unsettled.set();
        let result = sys::send(fd, handshake.outgoing(), 0, None).map(|n| handshake.sent(n));
        attempt.unsettled.clear();
        match result {
            Ok(()) => {}
            Err(libc::EAGAIN) => break,
            // What the gateway said before it hung up says more.
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
            initiator::State::Challenged => return Err(Failure::Challenged),
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
            // So ends also a connection that never was.
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
    // The longer it has taken already, the less it matters to be late.
    let glance = now.saturating_add(GLANCE.max(now.saturating_sub(attempt.begun) / 8));
    Ok(Some(Stage::Waiting { events, until: attempt.until.min(glance) }))
}

/// Whether patience with the gateway has come to an end.
fn extend(attempt: &mut Attempt, fd: c_int, now: Duration) -> Result<(), Failure> {
    if now < attempt.until {
        return Ok(());
    }
    if tcp_state(fd) == Some(TCP_SYN_SENT) {
        return Err(Failure::Connect(libc::ETIMEDOUT));
    }
    // It is there, and may be waiting for the destination.
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

/// Goes on to the gateway's next address, if it has one that can be connected to.
fn next_gateway(guard: &mut Guard, fd: c_int, config: &Config, destination: SocketAddr) -> bool {
    let Some(attempt) = guard.record().and_then(|record| record.attempt.as_mut()) else { return false };
    if attempt.gateways.get(attempt.gateway + 1).is_none() {
        return false;
    }
    attempt.gateway += 1;
    socket::hang_up(fd);
    dial(guard, fd, config, destination).is_ok()
}
