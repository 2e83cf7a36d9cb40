//! connect(2): whether it opens a session, and how it ends.

use crate::addr::RawAddr;
use crate::config::{self, Config};
use crate::handshake::{self, FirstHop};
use crate::process::no_unwind;
use crate::record::Gateways;
use crate::sys::{self, Errno};
use crate::table::{self, State};
use crate::wait::{Settled, settle};
use crate::{agent, bypass, names, real, report, socket};
use libc::{c_int, sockaddr, socklen_t};
use phoebus_proto::session::Code;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a connect gets that an agent was to carry which does not run: as from a gateway that does not.
const NO_AGENT: Errno = libc::ECONNREFUSED;

/// What becomes of a connect.
pub(crate) enum Course {
    /// It is the kernel's business.
    Real,
    /// It is over.
    Failed(Errno),
    /// A session is being opened: for the first time, or not.
    Pending { again: bool },
    /// A session is to be opened.
    Session(&'static Config, SocketAddr),
}

/// What there is to do, as far as that can be told without waiting.
fn course(fd: c_int, addr: &RawAddr) -> Course {
    if let Some(mut guard) = table::find(fd) {
        match (guard.state(), addr.family()) {
            (State::Open, libc::AF_UNSPEC) => guard.remove(),
            // The kernel says that it is connected, the first time in a way of its own.
            (State::Open, _) => return Course::Real,
            (State::Free, _) => {}
            (_, libc::AF_UNSPEC) => handshake::abandon(&mut guard, fd),
            (State::Pending, _) => {
                return match handshake::advance(&mut guard, fd) {
                    handshake::Stage::Plain => Course::Real,
                    handshake::Stage::Waiting { .. } => Course::Pending { again: true },
                    handshake::Stage::Failed => Course::Failed(handshake::take_error(&mut guard)),
                };
            }
            (State::Failed | State::Watched, _) => {
                if guard.facts().errno != 0 {
                    return Course::Failed(handshake::take_error(&mut guard));
                }
            }
        }
    }
    let (Some(config), Some(destination)) = (config::get(), addr.socket_addr()) else { return Course::Real };
    let fresh = || socket::is_tcp(fd) && handshake::tcp_state(fd) == Some(handshake::TCP_CLOSE);
    // Port 0 is the kernel's to refuse.
    if destination.port() == 0 || !names::selects(config, destination) || !fresh() {
        return Course::Real;
    }
    if let Some(problem) = &config.problem {
        static TOLD: AtomicBool = AtomicBool::new(false);
        if !TOLD.swap(true, Ordering::Relaxed) {
            report::problem(problem);
        }
        return Course::Failed(libc::EINVAL);
    }
    Course::Session(config, destination)
}

/// Begins a session, unless the connection goes direct after all.
fn begin(fd: c_int, config: &'static Config, destination: SocketAddr) -> Course {
    let agent = no_unwind(|| agent::running(config));
    if agent.is_none() && agent::is_demanded(config) {
        no_unwind(|| report::no_agent(config, destination));
        return Course::Failed(NO_AGENT);
    }
    // This may look a name up, and wait.
    let gateways = match config::gateways() {
        Ok(gateways) => gateways,
        // It looks the name up itself.
        Err(_) if agent.is_some() => Gateways::NONE,
        Err(reason) => {
            no_unwind(|| report::unresolved(config, destination, reason));
            return if config.settings.fallback { Course::Real } else { Course::Failed(Code::NameNotFound.errno()) };
        }
    };
    let canonical = SocketAddr::new(destination.ip().to_canonical(), destination.port());
    if gateways.contains(canonical) {
        return Course::Real;
    }
    no_unwind(|| {
        if let Some(rtt) = bypass::short(config, destination) {
            report::bypassed(config, destination, rtt);
            return Course::Real;
        }
        let Some(mut guard) = socket::family(fd).and_then(|family| table::enter(fd, family)) else {
            return Course::Failed(libc::ENOBUFS);
        };
        let first = FirstHop::to(config, gateways, agent);
        match handshake::begin(&mut guard, fd, config, first, destination) {
            Ok(()) => Course::Pending { again: false },
            Err(errno) => Course::Failed(errno),
        }
    })
}

/// Settles how a socket connects, for every call that connects.
pub(crate) fn decide(fd: c_int, addr: &RawAddr) -> Course {
    let course = match no_unwind(|| course(fd, addr)) {
        Course::Session(..) if config::is_looking() => Course::Real,
        Course::Session(config, destination) => begin(fd, config, destination),
        course => course,
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

/// Waits until the session is open, as a blocking connect does; 0 or an error.
///
/// # Safety
/// `addr` is what the program has connected to, valid for `len` bytes.
pub(crate) unsafe fn complete(fd: c_int, addr: *const sockaddr, len: socklen_t, again: bool) -> Errno {
    match settle(fd, socket::time_limit(fd, libc::SO_SNDTIMEO)) {
        Settled::Interrupted => libc::EINTR,
        Settled::TimedOut => under_way(again),
        Settled::Failed => no_unwind(|| table::find(fd).map_or(0, |mut guard| handshake::take_error(&mut guard))),
        // The kernel has not said yet that there is a connection. If that goes direct, this waits for it.
        // SAFETY: the caller's promise.
        Settled::Plain => match unsafe { connect_really(fd, addr, len) } {
            -1 if sys::errno() != libc::EISCONN => sys::errno(),
            _ => 0,
        },
    }
}

/// What a connect says that is under way, the first time and later.
pub(crate) fn under_way(again: bool) -> Errno {
    if again { libc::EALREADY } else { libc::EINPROGRESS }
}

/// Connects by the kernel's means.
///
/// # Safety
/// That of connect(2).
unsafe fn connect_really(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: the caller's promise.
    let result = unsafe { real::connect(fd, addr, len) };
    // A session that the kernel has given up: the next connect makes a new one.
    let ended = matches!(sys::errno(), libc::ECONNABORTED | libc::ECONNRESET | libc::EPIPE | libc::ETIMEDOUT);
    if result == -1 && ended {
        no_unwind(|| {
            if let Some(guard) = table::find(fd).filter(|guard| guard.state() == State::Open) {
                guard.remove();
            }
        });
    }
    result
}

hook! {
    /// connect(2).
    fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
        // Another library's constructor may connect before ours has run.
        config::init();
        let wanted = RawAddr::read(addr, len).filter(|_| config::get().is_some());
        let errno = match wanted.map_or(Course::Real, |addr| decide(fd, &addr)) {
            Course::Real | Course::Session(..) => return connect_really(fd, addr, len),
            Course::Failed(errno) => errno,
            Course::Pending { again } if socket::is_nonblocking(fd) => {
                under_way(again)
            }
            Course::Pending { again } => complete(fd, addr, len, again),
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
