//! Answers one caught connect(2).
//!
//! The caller's address is read once, and this process connects the caller's socket with that copy. So it does not
//! matter what another thread of the caller writes there, or which socket gets the descriptor's number. The kernel
//! carries out the call itself (`Continue`) only for sockets of other families and protocols, and to wait for a direct
//! connection that has begun on a blocking socket.

use super::address;
use super::attempts::{Attempt, Outcome};
use super::lead;
use super::report;
use super::shared::{Choice, Shared};
use phoebus_seccomp::socket::{self, State};
use phoebus_seccomp::{Answer, Asked, Call, Caller};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, socket_cookie, socket_domain, socket_protocol, socket_timeout, socket_type};
use rustix::net::{AddressFamily, SocketType, ipproto};
use std::future::pending;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// Longest wait of a caller with a non-blocking socket, whose other connections wait meanwhile. A gateway says sooner
/// that a destination does not answer, unless packets vanish.
const NONBLOCKING_LIMIT: Duration = Duration::from_secs(30);
/// How often kernels before 5.19 are asked whether a signal has interrupted a caller, which they do not tell.
const INTERRUPTION_CHECK: Duration = Duration::from_millis(10);
/// IPPROTO_MPTCP.
const MPTCP: u32 = 262;

/// A call that gets an answer in any case: without one its caller would wait for ever.
struct Waiting {
    shared: Arc<Shared>,
    call: Call,
    is_answered: bool,
}

impl Waiting {
    fn answer(mut self, answer: Answer) -> bool {
        self.is_answered = true;
        self.shared.listener().answer(&self.call, answer)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if !self.is_answered {
            self.shared.listener().answer(&self.call, Answer::Failed(Errno::CONNABORTED.raw_os_error()));
        }
    }
}

/// A socket whose connect needs a decision.
struct Stream {
    caller: Caller,
    socket: Arc<OwnedFd>,
    domain: AddressFamily,
    /// The address as the caller gave it.
    address: Vec<u8>,
}

/// Answers a call.
pub(super) async fn answer(shared: Arc<Shared>, call: Call) {
    let waiting = Waiting { shared: shared.clone(), call, is_answered: false };
    let stream = match look(&shared, &call) {
        Ok(Ok(stream)) => stream,
        Ok(Err(answer)) => {
            waiting.answer(answer);
            return;
        }
        Err(errno) => {
            if matches!(errno, Errno::MFILE | Errno::NFILE) {
                report::exhausted(&shared, errno);
            }
            waiting.answer(failed(errno));
            return;
        }
    };
    match decide(&shared, &stream).await {
        Err(answer) => {
            waiting.answer(answer);
        }
        Ok(attempt) => wait(waiting, &stream, attempt).await,
    }
}

/// Fetches what the call is about: a TCP socket with an address, or the answer.
fn look(shared: &Shared, call: &Call) -> Result<Result<Stream, Answer>, Errno> {
    let not_permitted = |errno: Errno| {
        if matches!(errno, Errno::PERM | Errno::ACCESS) {
            report::out_of_reach(shared, call);
            return Errno::ACCESS;
        }
        errno
    };
    let caller = Caller::of(call).map_err(not_permitted)?;
    let call = &match caller.asked(call).map_err(not_permitted)? {
        Asked::Connect(call) => call,
        Asked::Send(true) => return Err(Errno::OPNOTSUPP),
        Asked::Send(false) => return Ok(Err(Answer::Continue)),
    };
    let socket = caller.file(call).map_err(not_permitted)?;
    let domain = socket_domain(&socket)?;
    if domain != AddressFamily::INET && domain != AddressFamily::INET6 {
        // Its path, for example, is the caller's to look up.
        return Ok(Err(Answer::Continue));
    }
    let address = caller.address(call).map_err(not_permitted)?;
    // What was fetched is the caller's only if the caller still waits: its number may be another's by now.
    if !shared.listener().is_waiting(call) {
        return Err(Errno::SRCH);
    }
    let kind = socket_type(&socket)?;
    let protocol = socket_protocol(&socket)?;
    if kind != SocketType::STREAM {
        // Connects of datagram sockets do not wait.
        let is_datagram = kind == SocketType::DGRAM || kind == SocketType::RAW;
        return Ok(Err(if is_datagram { result(socket::connect(&socket, &address)) } else { Answer::Continue }));
    }
    if !protocol.is_some_and(|protocol| protocol == ipproto::TCP || protocol.as_raw().get() == MPTCP) {
        return Ok(Err(Answer::Continue));
    }
    Ok(Ok(Stream { caller, socket: Arc::new(socket), domain, address }))
}

/// Joins or begins an attempt, or returns the answer for a connection that is direct or fails.
async fn decide(shared: &Arc<Shared>, stream: &Stream) -> Result<Attempt, Answer> {
    let Stream { socket, domain, address, .. } = stream;
    let cookie = socket_cookie(socket).map_err(failed)?;
    if address::family(address) == Some(AddressFamily::UNSPEC) {
        shared.attempts.give_up(cookie).await;
        return Err(result(socket::connect(socket, address)));
    }
    if let Some(attempt) = shared.attempts.find(cookie) {
        return Ok(attempt);
    }
    let Some(destination) = address::parse(address, *domain) else { return Err(direct(stream)) };
    let state = socket::state(socket);
    let ip = destination.ip().to_canonical();
    // These, and sockets that are in use, are the kernel's to refuse.
    if state.is_ok_and(|state| state != State::Closed)
        || destination.port() == 0
        || ip.is_multicast()
        || ip == Ipv4Addr::BROADCAST
    {
        return Err(direct(stream));
    }
    match shared.selects(destination).await {
        Choice::Led { exceptions } if exceptions.is_empty() => {}
        Choice::Led { exceptions } => report::exceptions_unknown(shared, &exceptions),
        Choice::Direct => {
            report::not_selected(shared, destination);
            return Err(direct(stream));
        }
        Choice::Unknown(names) => {
            report::undecided(shared, stream.caller.process(), destination, &names);
            return Err(failed(Errno::HOSTUNREACH));
        }
    }
    if shared.is_first_hop(destination).await {
        return Err(direct(stream));
    }
    if state.is_err() {
        report::state_unknown(shared, stream.caller.process(), destination);
        return Err(failed(Errno::OPNOTSUPP));
    }
    // The end of an earlier direct connection comes first.
    match socket::connect(socket, &of_other_family(*domain)) {
        Err(Errno::AFNOSUPPORT | Errno::INVAL) | Ok(()) => {}
        Err(errno) => return Err(failed(errno)),
    }
    // Another caller may have begun during the look-ups.
    if let Some(attempt) = shared.attempts.find(cookie) {
        return Ok(attempt);
    }
    if !shared.attempts.has_room() {
        report::exhausted(shared, Errno::NOBUFS);
        return Err(failed(Errno::NOBUFS));
    }
    let caller = stream.caller.clone();
    Ok(shared.attempts.enter(cookie, |entry| {
        let (shared, socket, domain) = (shared.clone(), socket.clone(), *domain);
        let task = tokio::spawn(async move {
            let outcome = lead::open(&shared, &socket, domain, caller, destination).await;
            entry.end(outcome);
        });
        task.abort_handle()
    }))
}

/// Waits for an attempt as long as the caller may, and answers. A caller that does not wait any more believes that its
/// socket connects, and would write amid the handshake as soon as the gateway is connected. So the attempt is given up
/// then, and the socket is unconnected again.
async fn wait(waiting: Waiting, stream: &Stream, mut attempt: Attempt) {
    let (shared, socket) = (waiting.shared.clone(), &stream.socket);
    let limit = match socket::is_nonblocking(socket) {
        Ok(true) => NONBLOCKING_LIMIT,
        _ => socket_timeout(socket, Timeout::Send).ok().flatten().unwrap_or(Duration::MAX),
    };
    let outcome = tokio::select! {
        outcome = timeout(limit, attempt.outcome()) => outcome,
        () = interruption(&waiting) => {
            if let Ok(cookie) = socket_cookie(socket) {
                shared.attempts.leave(cookie, attempt).await;
            }
            return;
        }
    };
    match outcome {
        Ok(Some(Outcome::Open)) => {
            if waiting.answer(Answer::Done) {
                // The kernel learns that the caller knows: the next connect gets EISCONN. No other call is answered before.
                let _ = socket::connect(socket, &of_other_family(stream.domain));
            }
        }
        Ok(Some(Outcome::Direct)) => {
            waiting.answer(direct(stream));
        }
        Ok(Some(Outcome::Failed(errno))) => {
            waiting.answer(Answer::Failed(errno));
        }
        Ok(None) => drop(waiting),
        Err(_) => {
            if let Ok(cookie) = socket_cookie(socket) {
                shared.attempts.give_up(cookie).await;
            }
            report::too_slow(&shared, &stream.caller, &stream.address, stream.domain, limit);
            waiting.answer(failed(Errno::TIMEDOUT));
        }
    }
}

/// Waits until a signal has interrupted the caller. Kernels whose callers wait in any case have no need of this.
async fn interruption(waiting: &Waiting) {
    if waiting.shared.listener().is_patient() {
        pending::<()>().await;
    }
    while waiting.shared.listener().is_waiting(&waiting.call) {
        sleep(INTERRUPTION_CHECK).await;
    }
}

/// Connects directly. The kernel lets a blocking caller wait for what has begun here, whatever its memory holds.
fn direct(stream: &Stream) -> Answer {
    let Stream { socket, address, .. } = stream;
    let waits = !socket::is_nonblocking(socket).unwrap_or(false);
    match socket::state(socket) {
        Ok(State::Connecting) if waits => Answer::Continue,
        Ok(State::Connecting | State::InUse) => result(socket::connect(socket, address)),
        Ok(State::Closed) | Err(_) => match socket::begin(socket, address) {
            Err(Errno::INPROGRESS | Errno::ALREADY) if waits => Answer::Continue,
            begun => result(begun),
        },
    }
}

fn result(connected: Result<(), Errno>) -> Answer {
    connected.map_or_else(failed, |()| Answer::Done)
}

fn failed(errno: Errno) -> Answer {
    Answer::Failed(errno.raw_os_error())
}

/// An address to which a socket of this family connects only if it is not unconnected: it then ignores the address.
fn of_other_family(domain: AddressFamily) -> Vec<u8> {
    let (ip, other): (IpAddr, _) = match domain {
        AddressFamily::INET => (Ipv6Addr::UNSPECIFIED.into(), AddressFamily::INET6),
        _ => (Ipv4Addr::BROADCAST.into(), AddressFamily::INET),
    };
    address::bytes(SocketAddr::new(ip, 1), other)
}
