//! connect(2): whether it opens a session, and how it ends.

mod answers;

use crate::addr::RawAddr;
use crate::agent::AgentLocator;
use crate::config::{self, Config};
use crate::handshake::{self, Awaited, FirstHop, Stage};
use crate::held::Held;
use crate::process::no_unwind;
use crate::record::Gateways;
use crate::socket::{self, SocketKind};
use crate::sys::{self, Errno};
use crate::table::{self, Guard, State};
use crate::tcp;
use crate::wait::{Settled, settle};
use crate::{bypass, gateways, names, real, registrations, report, reuse};
pub(crate) use answers::in_use;
use answers::{fall_back, finish, is_multicast_or_broadcast, refused_family, unreported_end};
use libc::{c_int, sockaddr, socklen_t};
use phoebus_proto::session::Code;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

/// The error of a connect that only an agent may carry, if none runs: the same as for a gateway that does not run.
const NO_AGENT: Errno = libc::ECONNREFUSED;
/// The error of a connect that another thread gave up by shutdown(2), connect(2) to AF_UNSPEC, close(2) or dup2(2). The
/// kernel reports the same for a connection that was dissolved while it was being made.
const GIVEN_UP: Errno = libc::ECONNABORTED;

/// The outcome of a connect.
pub(crate) enum Course {
    /// The kernel handles it.
    Real,
    /// It is the datagram socket with this cookie.
    Datagram(u64),
    /// The socket is connected, connecting or listening. [`in_use`] gets the kernel's answer.
    InUse,
    /// The session is open.
    Connected,
    /// It failed.
    Failed(Errno),
    /// A session is being opened, by this call or an earlier one.
    Pending { again: bool, awaited: Awaited },
}

/// The next step, as far as it is known without blocking.
enum Step {
    /// Return this outcome.
    Take(Course),
    /// Open a session for the socket with this cookie.
    Open(&'static Config, SocketAddr, u64),
}

fn step(fd: c_int, addr: &RawAddr) -> Step {
    if let Some(mut guard) = table::find(fd) {
        match (guard.state(), addr.family()) {
            (State::Open, libc::AF_UNSPEC) => {
                reuse::after_session(guard, fd);
                return Step::Take(Course::Real);
            }
            (State::Open, _) => {
                if let Some(course) = finish(guard, fd) {
                    return Step::Take(course);
                }
            }
            (State::Free, _) => {}
            (State::Watched, libc::AF_UNSPEC) => {}
            (_, libc::AF_UNSPEC) => {
                handshake::abandon(&mut guard, fd);
                return Step::Take(Course::Real);
            }
            (State::Pending, _) => {
                return Step::Take(match handshake::advance(&mut guard, fd) {
                    Stage::Plain if guard.state() == State::Open => {
                        finish(guard, fd).unwrap_or(Course::Failed(GIVEN_UP))
                    }
                    // The direct connection of the fallback has begun.
                    Stage::Plain => Course::InUse,
                    Stage::Waiting { .. } => Course::Pending { again: true, awaited: handshake::awaited(&guard) },
                    Stage::Failed => Course::Failed(handshake::take_error(&mut guard)),
                });
            }
            (State::Failed | State::Watched, _) => {
                if guard.socket_state().errno != 0 {
                    return Step::Take(Course::Failed(handshake::take_error(&mut guard)));
                }
            }
        }
    }
    let (Some(config), Some(destination)) = (config::get(), addr.socket_addr()) else {
        if addr.family() == libc::AF_UNSPEC {
            reuse::after_direct(fd);
        }
        return Step::Take(Course::Real);
    };
    // These are the kernel's to refuse.
    if destination.port() == 0 || is_multicast_or_broadcast(destination.ip().to_canonical()) {
        return Step::Take(Course::Real);
    }
    let cookie = match sys::try_cookie(fd) {
        Ok(cookie) => cookie,
        // Another thread may have closed it. When the kernel is asked, a new socket may have its number, and would be
        // connected past the gateway.
        Err(errno @ (libc::EBADF | libc::ENOTSOCK)) => return Step::Take(Course::Failed(errno)),
        Err(_) if SocketKind::of(fd) == SocketKind::Datagram => return Step::Take(Course::Real),
        Err(_) => return Step::Take(unknown(config, destination)),
    };
    let state = if SocketKind::of(fd) == SocketKind::Tcp { tcp::state(fd) } else { None };
    let Some(state) = state else {
        return Step::Take(without_state(fd, cookie, config, destination));
    };
    if !names::selects(config, destination) {
        if state == tcp::CLOSE {
            report::not_selected(config, destination);
        }
        return Step::Take(Course::Real);
    }
    if state != tcp::CLOSE {
        return Step::Take(Course::InUse);
    }
    if let Some(course) = unreported_end(fd, destination) {
        return Step::Take(course);
    }
    if let Some(errno) = refused_family(fd, destination, addr) {
        return Step::Take(Course::Failed(errno));
    }
    if let Some(problem) = &config.problem {
        static TOLD: AtomicBool = AtomicBool::new(false);
        if !TOLD.swap(true, Ordering::Relaxed) {
            report::sentence(&problem.sentence);
        }
        return Step::Take(Course::Failed(libc::EINVAL));
    }
    Step::Open(config, destination, cookie)
}

/// How a socket connects that is not one of TCP, or whose state is unknown, or that another thread has closed meanwhile:
/// all three look alike.
fn without_state(fd: c_int, cookie: u64, config: &Config, destination: SocketAddr) -> Course {
    // No handler may jump past the release of the held descriptor.
    let mask = sys::block_signals();
    let kind = Held::new(fd, cookie).map(|held| SocketKind::of(held.fd()));
    sys::restore_signals(mask);
    match kind {
        Err(_) => Course::Failed(GIVEN_UP),
        Ok(SocketKind::Datagram) => Course::Datagram(cookie),
        Ok(SocketKind::Other) => Course::Real,
        Ok(SocketKind::Tcp | SocketKind::Unknown) => unknown(config, destination),
    }
}

/// A socket of which the kernel does not tell what is needed. Sessions cannot use it, and it is not connected directly.
fn unknown(config: &Config, destination: SocketAddr) -> Course {
    if !names::selects(config, destination) {
        return Course::Real;
    }
    report::state_unknown(config, destination);
    Course::Failed(libc::EOPNOTSUPP)
}

/// Connects the datagram socket with this cookie: 0 or an error. Another thread may have closed `fd`, and a socket of
/// TCP may have its number.
fn connect_datagrams(fd: c_int, cookie: u64, addr: &RawAddr) -> Errno {
    // As in `without_state`. These connects never block.
    let mask = sys::block_signals();
    let errno = match Held::new(fd, cookie) {
        Ok(held) => sys::connect(held.fd(), addr).err().unwrap_or(0),
        Err(_) => GIVEN_UP,
    };
    sys::restore_signals(mask);
    errno
}

/// Begins a session, unless the connection is to be direct. `None` if another thread has connected the socket
/// meanwhile, so that the caller has to look again.
fn begin(fd: c_int, config: &'static Config, destination: SocketAddr, cookie: u64) -> Option<Course> {
    let agent = match no_unwind(|| config.seat.as_ref().map(AgentLocator::running).transpose()) {
        Ok(agent) => agent.flatten(),
        Err(errno) => return Some(Course::Failed(errno)),
    };
    if agent.is_none() && config.demands_agent() {
        no_unwind(|| report::no_agent(config, destination));
        return Some(Course::Failed(NO_AGENT));
    }
    // This may look up a name and block.
    let gateways = gateways::addresses();
    // Meanwhile the descriptor may have been closed, and its number may belong to another socket.
    let same = || sys::cookie(fd) == Some(cookie);
    let direct = || if same() { Course::Real } else { Course::Failed(GIVEN_UP) };
    let gateways = match gateways {
        Ok(gateways) => gateways,
        // The agent looks up the name itself.
        Err(_) if agent.is_some() => Gateways::NONE,
        Err(reason) => {
            no_unwind(|| report::unresolved(config, destination, reason));
            let fallback = config.settings.fallback;
            return Some(if fallback { direct() } else { Course::Failed(Code::NameNotFound.errno()) });
        }
    };
    let canonical = SocketAddr::new(destination.ip().to_canonical(), destination.port());
    if gateways.contains(canonical) {
        return Some(direct());
    }
    no_unwind(|| {
        if let Some(rtt) = bypass::short(config, destination) {
            report::bypassed(config, destination, rtt);
            return Some(direct());
        }
        let Some(mut guard) = sys::family(fd).and_then(|family| table::enter(fd, family)) else {
            return Some(Course::Failed(if same() { libc::ENOBUFS } else { GIVEN_UP }));
        };
        let held = Held::new(fd, cookie).ok().filter(|_| guard.cookie() == cookie);
        let Some(held) = held else {
            // An entry made for another socket is removed.
            if guard.is_new() {
                guard.remove();
            }
            return Some(Course::Failed(GIVEN_UP));
        };
        if !matches!(guard.state(), State::Watched | State::Failed) || guard.socket_state().errno != 0 {
            return None;
        }
        let first = FirstHop::to(config, gateways, agent);
        match handshake::begin(&mut guard, fd, &held, config, first, destination) {
            Ok(awaited) => Some(Course::Pending { again: false, awaited }),
            Err(errno) => Some(Course::Failed(errno)),
        }
    })
}

/// Prepares an IPv6 socket that the kernel is to connect: if it was connected to IPv4 before, and is to reach IPv6, a
/// fresh one replaces it. Returns the outcome if that is known already.
fn refresh(fd: c_int, addr: &RawAddr) -> Option<Course> {
    let destination = addr.socket_addr().filter(SocketAddr::is_ipv6)?;
    if destination.ip().to_canonical().is_ipv4() {
        socket::will_be_mapped(fd);
        return None;
    }
    if !socket::is_mapped(fd) || tcp::state(fd) != Some(tcp::CLOSE) {
        return None;
    }
    if let Some(course) = unreported_end(fd, destination) {
        return Some(course);
    }
    let Some(mut guard) = table::enter(fd, libc::AF_INET6) else { return Some(Course::Failed(libc::ENOBUFS)) };
    guard.socket_state().fd = fd;
    let is_idle = matches!(guard.state(), State::Watched | State::Failed);
    let fitted = if is_idle { socket::fit_directly(&mut guard, fd, destination) } else { Ok(()) };
    match guard.state() {
        State::Watched => registrations::show(&mut guard),
        State::Failed => registrations::fail(&mut guard),
        _ => {}
    }
    if guard.is_new() {
        guard.remove();
    }
    fitted.err().map(Course::Failed)
}

/// Decides how a socket connects. Every call that connects uses this.
pub(crate) fn decide(fd: c_int, addr: &RawAddr) -> Course {
    let mut course = loop {
        match no_unwind(|| step(fd, addr)) {
            Step::Take(course) => break course,
            Step::Open(..) if gateways::is_looking() => break Course::Real,
            Step::Open(config, destination, cookie) => {
                if let Some(course) = begin(fd, config, destination, cookie) {
                    break course;
                }
            }
        }
    };
    if matches!(course, Course::Real)
        && let Some(known) = no_unwind(|| refresh(fd, addr))
    {
        course = known;
    }
    if matches!(course, Course::Real) && !table::is_empty() {
        no_unwind(|| {
            let Some(mut guard) = table::find(fd) else { return };
            if guard.state() == State::Failed {
                handshake::abandon(&mut guard, fd);
            }
            // A socket that connects directly needs no entry, unless epoll sets have it: its next connect may be a
            // session.
            if guard.state() == State::Watched && !guard.record().is_some_and(|record| record.is_watched()) {
                guard.remove();
            }
        });
    }
    course
}

/// Waits like a blocking connect until the session to `addr` is open. Returns 0 or an error. The result is a session, a
/// direct connection if the settings permit the fallback, or an error. Whatever other threads do to the descriptor
/// meanwhile, this connects nothing else to `addr`.
pub(crate) fn complete(fd: c_int, addr: &RawAddr, again: bool, mut awaited: Awaited) -> Errno {
    let error = |errno| if errno == 0 { GIVEN_UP } else { errno };
    match settle(fd, &mut awaited, socket::time_limit(fd, libc::SO_SNDTIMEO)) {
        Settled::Interrupted => libc::EINTR,
        Settled::TimedOut => under_way(again),
        // Another thread may have consumed the error.
        Settled::Failed => error(no_unwind(|| match attempt(fd, awaited) {
            Some(mut guard) => handshake::take_error(&mut guard),
            None => 0,
        })),
        Settled::Gone => GIVEN_UP,
        Settled::Plain => {
            let open = |guard: &Guard| guard.state() == State::Open;
            let finished = no_unwind(|| attempt(fd, awaited).filter(open).map(|guard| finish(guard, fd)));
            match finished {
                Some(Some(Course::Failed(errno))) if errno != libc::EISCONN => errno,
                Some(Some(_)) => 0,
                Some(None) => GIVEN_UP,
                None if config::get().is_some_and(|config| config.settings.fallback) => {
                    fall_back(fd, awaited.cookie, addr)
                }
                None => GIVEN_UP,
            }
        }
    }
}

/// The entry of an attempt, in any state.
fn attempt(fd: c_int, awaited: Awaited) -> Option<Guard> {
    table::find(fd).filter(|guard| guard.attempt() == awaited.attempt)
}

/// The error for a connect in progress: on the first call, and on later ones.
pub(crate) fn under_way(again: bool) -> Errno {
    if again { libc::EALREADY } else { libc::EINPROGRESS }
}

hook! {
    /// connect(2).
    fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
        // Another library's constructor may connect before ours has run.
        config::init();
        let Some(wanted) = RawAddr::read(addr, len).filter(|_| config::get().is_some()) else {
            return real::connect(fd, addr, len);
        };
        let errno = match decide(fd, &wanted) {
            Course::Real => return real::connect(fd, addr, len),
            Course::Connected => return 0,
            Course::Failed(errno) => errno,
            Course::InUse => in_use(fd, &wanted),
            Course::Datagram(cookie) => no_unwind(|| connect_datagrams(fd, cookie, &wanted)),
            Course::Pending { again, .. } if socket::is_nonblocking(fd) => under_way(again),
            Course::Pending { again, awaited } => complete(fd, &wanted, again, awaited),
        };
        if errno == 0 {
            return 0;
        }
        sys::set_errno(errno);
        -1
    }

    /// connect(2) by the C library's own name.
    fn __connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
        connect(fd, addr, len)
    }
}

#[cfg(test)]
mod tests;
