//! connect(2): whether it opens a session, and how it ends.

use crate::addr::RawAddr;
use crate::config::{self, Config};
use crate::handshake::{self, Awaited, FirstHop, Stage};
use crate::process::no_unwind;
use crate::record::Gateways;
use crate::sys::{self, Errno};
use crate::table::{self, Guard, State};
use crate::wait::{Settled, settle};
use crate::{agent, bypass, names, real, report, socket};
use libc::{c_int, sockaddr, socklen_t};
use phoebus_proto::session::Code;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};

/// What a connect gets that an agent was to carry which does not run: as from a gateway that does not.
const NO_AGENT: Errno = libc::ECONNREFUSED;
/// What a connect gets that another thread gave up, by shutdown(2), connect(2) to AF_UNSPEC, close(2) or dup2(2): what the
/// kernel says of a connection that was dissolved while it came about.
const GIVEN_UP: Errno = libc::ECONNABORTED;

/// What becomes of a connect.
pub(crate) enum Course {
    /// It is the kernel's business.
    Real,
    /// The session is open.
    Connected,
    /// It is over.
    Failed(Errno),
    /// A session is being opened: for the first time, or not.
    Pending { again: bool, awaited: Awaited },
}

/// What there is to do, as far as that can be told without waiting.
enum Step {
    /// This.
    Take(Course),
    /// To open a session for the socket with this cookie.
    Open(&'static Config, SocketAddr, u64),
}

fn step(fd: c_int, addr: &RawAddr) -> Step {
    if let Some(mut guard) = table::find(fd) {
        match (guard.state(), addr.family()) {
            (State::Open, libc::AF_UNSPEC) => guard.remove(),
            (State::Open, _) => {
                if let Some(course) = finish(guard, fd) {
                    return Step::Take(course);
                }
            }
            (State::Free, _) => {}
            (_, libc::AF_UNSPEC) => handshake::abandon(&mut guard, fd),
            (State::Pending, _) => {
                return Step::Take(match handshake::advance(&mut guard, fd) {
                    Stage::Plain if guard.state() == State::Open => {
                        finish(guard, fd).unwrap_or(Course::Failed(GIVEN_UP))
                    }
                    Stage::Plain => Course::Real,
                    Stage::Waiting { .. } => Course::Pending { again: true, awaited: handshake::awaited(&guard, fd) },
                    Stage::Failed => Course::Failed(handshake::take_error(&mut guard)),
                });
            }
            (State::Failed | State::Watched, _) => {
                if guard.facts().errno != 0 {
                    return Step::Take(Course::Failed(handshake::take_error(&mut guard)));
                }
            }
        }
    }
    let (Some(config), Some(destination)) = (config::get(), addr.socket_addr()) else {
        return Step::Take(Course::Real);
    };
    let fresh = || socket::is_tcp(fd) && handshake::tcp_state(fd) == Some(handshake::TCP_CLOSE);
    let cookie = sys::cookie(fd).filter(|_| fresh());
    // Port 0 is the kernel's to refuse.
    let Some(cookie) = cookie.filter(|_| destination.port() != 0) else { return Step::Take(Course::Real) };
    if !names::selects(config, destination) {
        report::not_selected(config, destination);
        return Step::Take(Course::Real);
    }
    if let Some(problem) = &config.problem {
        static TOLD: AtomicBool = AtomicBool::new(false);
        if !TOLD.swap(true, Ordering::Relaxed) {
            report::sentence(problem);
        }
        return Step::Take(Course::Failed(libc::EINVAL));
    }
    Step::Open(config, destination, cookie)
}

/// Has the kernel take note that the program knows of the open session behind `fd`, and returns what it says. `None` when
/// the connection was dissolved where this process did not see it; there is no entry then any more.
fn finish(mut guard: Guard, fd: c_int) -> Option<Course> {
    let errno = sys::connect(fd, &no_destination(&guard.facts().destination)).err();
    match errno {
        None => Some(Course::Connected),
        Some(errno) if is_unconnected(errno) => {
            guard.remove();
            None
        }
        Some(errno) => {
            // A session that the kernel has given up: the next connect makes a new one.
            if matches!(errno, libc::ECONNABORTED | libc::ECONNRESET | libc::EPIPE | libc::ETIMEDOUT) {
                guard.remove();
            }
            Some(Course::Failed(errno))
        }
    }
}

/// An address that no TCP socket connects to, and no other that has not asked for broadcasts: a connection that is there or
/// under way does not look at the address, and whatever else may have the descriptor's number by now stays as it is. The
/// port is the program's own, which security modules may look at.
fn no_destination(destination: &RawAddr) -> RawAddr {
    let port = destination.socket_addr().map_or(1, |destination| destination.port());
    RawAddr::new(SocketAddr::from((Ipv4Addr::BROADCAST, port)), libc::AF_INET)
}

/// Whether this is what the kernel says of a socket that is to connect to [`no_destination`], and is not connected.
fn is_unconnected(errno: Errno) -> bool {
    matches!(errno, libc::ENETUNREACH | libc::EACCES | libc::EAFNOSUPPORT | libc::EINVAL | libc::EHOSTUNREACH)
}

/// Begins a session, unless the connection goes direct after all. `None` when there is another step to take: another thread
/// has connected the socket meanwhile.
fn begin(fd: c_int, config: &'static Config, destination: SocketAddr, cookie: u64) -> Option<Course> {
    let agent = no_unwind(|| agent::running(config));
    if agent.is_none() && agent::is_demanded(config) {
        no_unwind(|| report::no_agent(config, destination));
        return Some(Course::Failed(NO_AGENT));
    }
    // This may look a name up, and wait.
    let gateways = config::gateways();
    // Meanwhile the descriptor may have been closed, and its number given to another socket.
    let same = || sys::cookie(fd) == Some(cookie);
    let direct = || if same() { Course::Real } else { Course::Failed(GIVEN_UP) };
    let gateways = match gateways {
        Ok(gateways) => gateways,
        // It looks the name up itself.
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
        let Some(mut guard) = socket::family(fd).and_then(|family| table::enter(fd, family)) else {
            return Some(Course::Failed(if same() { libc::ENOBUFS } else { GIVEN_UP }));
        };
        if guard.cookie() != cookie || !same() {
            // An entry that was made for the other socket is as good as none.
            if guard.is_new() {
                guard.remove();
            }
            return Some(Course::Failed(GIVEN_UP));
        }
        if !matches!(guard.state(), State::Watched | State::Failed) || guard.facts().errno != 0 {
            return None;
        }
        let first = FirstHop::to(config, gateways, agent);
        match handshake::begin(&mut guard, fd, config, first, destination) {
            Ok(()) => Some(Course::Pending { again: false, awaited: handshake::awaited(&guard, fd) }),
            Err(errno) => Some(Course::Failed(errno)),
        }
    })
}

/// Settles how a socket connects, for every call that connects.
pub(crate) fn decide(fd: c_int, addr: &RawAddr) -> Course {
    let course = loop {
        match no_unwind(|| step(fd, addr)) {
            Step::Take(course) => break course,
            Step::Open(..) if config::is_looking() => break Course::Real,
            Step::Open(config, destination, cookie) => {
                if let Some(course) = begin(fd, config, destination, cookie) {
                    break course;
                }
            }
        }
    };
    if matches!(course, Course::Real) && !table::is_empty() {
        // A socket that goes direct is nothing to us any more.
        no_unwind(|| match table::find(fd) {
            Some(guard) if guard.state() == State::Watched => guard.remove(),
            Some(mut guard) if guard.state() == State::Failed => {
                handshake::abandon(&mut guard, fd);
                guard.remove();
            }
            _ => {}
        });
    }
    course
}

/// Waits until the session to `addr` is open, as a blocking connect does; 0 or an error. The program gets a session, or a
/// direct connection where the settings let it fall back, or an error: whatever other threads do to the descriptor
/// meanwhile, nothing is connected to `addr` here.
pub(crate) fn complete(fd: c_int, addr: &RawAddr, again: bool, mut awaited: Awaited) -> Errno {
    let error = |errno| if errno == 0 { GIVEN_UP } else { errno };
    match settle(fd, &mut awaited, socket::time_limit(fd, libc::SO_SNDTIMEO)) {
        Settled::Interrupted => libc::EINTR,
        Settled::TimedOut => under_way(again),
        // Another thread may have taken the error, which leaves this one without.
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

/// The entry of an attempt, however it stands.
fn attempt(fd: c_int, awaited: Awaited) -> Option<Guard> {
    table::find(fd).filter(|guard| guard.attempt() == awaited.attempt)
}

/// Waits for a connection that goes direct, which has begun on the socket with this cookie.
fn fall_back(fd: c_int, cookie: Option<u64>, addr: &RawAddr) -> Errno {
    // A connection that has failed already is told apart from one that was given up by its error, which is read before the call
    // below has errors of its own to say. Another socket that has the descriptor's number by now keeps its error.
    if cookie.is_none() || sys::cookie(fd) != cookie {
        return GIVEN_UP;
    }
    let state = handshake::tcp_state(fd);
    let over = state.is_none_or(|state| state == handshake::TCP_CLOSE);
    let failure = if over && state.is_some() { sys::get(fd, libc::SOL_SOCKET, libc::SO_ERROR).unwrap_or(0) } else { 0 };
    let nowhere = no_destination(addr);
    let (at, len) = nowhere.parts();
    // SAFETY: the address is valid for its length.
    match unsafe { real::connect(fd, at, len) } {
        // The call leaves the socket as a failed connect does: it can be connected again.
        _ if failure != 0 => failure,
        0 => 0,
        _ => match sys::errno() {
            libc::EISCONN => 0,
            errno if is_unconnected(errno) && over => GIVEN_UP,
            errno => errno,
        },
    }
}

/// What a connect says that is under way, the first time and later.
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
