//! connect(2): goes to the gateway where the destination is selected, and asks it for a session (P29, P33).

use crate::config::{self, Config};
use crate::pending::{self, Found, Guard, Handshake, Pending, Phase};
use crate::progress::{Progress, step};
use crate::{epoll, names, options, real, replace, report, sessions, sys};
use libc::{c_int, sockaddr, socklen_t};
use phoebus_proto::endpoint::EndpointRef;
use phoebus_proto::session::message::{Auth, Hello, Open, Requirements};
use phoebus_proto::session::{List, Mode, SessionId};
use std::net::SocketAddr;

/// # Safety
/// As for connect(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: the caller's promise about `addr` and `len`.
    match unsafe { begin(fd, addr, len) } {
        Some(result) => result,
        // SAFETY: the program's own call.
        None => unsafe { real::connect(fd, addr, len) },
    }
}

/// The result of a connect that concerns the shim.
unsafe fn begin(fd: c_int, addr: *const sockaddr, len: socklen_t) -> Option<c_int> {
    let config = config::active()?;
    let family = sys::tcp_family(fd)?;
    let cookie = sys::cookie(fd)?;
    // SAFETY: the caller's promise.
    let destination = unsafe { sys::socket_addr(addr, len) };
    match pending::find_cookie(cookie) {
        Found::Pending(guard) if destination.is_some() => return Some(again(fd, guard)),
        // AF_UNSPEC takes the connection off the socket, and the session with it.
        Found::Pending(guard) => {
            guard.release();
            epoll::restore(cookie);
            return None;
        }
        Found::Busy => return Some(sys::fail(libc::EALREADY)),
        Found::None => {}
    }
    let destination = canonical(destination?);
    if is_connected(fd) || !selected(config, destination) {
        return None;
    }
    let gateways = config.gateway();
    if gateways.contains(&destination) {
        return None;
    }
    if let Some(rtt) = report::short(config, destination) {
        report::bypassed(config, destination, rtt);
        return None;
    }
    let same_family = |gateway: &&SocketAddr| gateway.is_ipv6() == (family == libc::AF_INET6);
    let Some(gateway) = gateways.iter().find(same_family).or_else(|| gateways.first()) else {
        return unreachable(config, destination, libc::EHOSTUNREACH);
    };
    // An IPv6 socket reaches an IPv4 gateway by itself, unless it was told not to.
    let reaches = same_family(&gateway) || (family == libc::AF_INET6 && dual_stack(fd));
    if !reaches {
        let wanted = if gateway.is_ipv6() { libc::AF_INET6 } else { libc::AF_INET };
        if !replace::socket(fd, wanted) {
            return Some(-1);
        }
    }
    sessions::forget(cookie);
    options::prefer_congestion_control(config, fd);
    start(config, fd, destination, *gateway)
}

/// An IPv4 destination that was written as an IPv6 one is meant as the IPv4 one.
fn canonical(destination: SocketAddr) -> SocketAddr {
    match destination.ip().to_canonical() {
        ip if ip.is_ipv4() => SocketAddr::new(ip, destination.port()),
        _ => destination,
    }
}

fn selected(config: &Config, destination: SocketAddr) -> bool {
    destination.port() != 0 && names::with(destination.ip(), |names| config.settings.selects(destination, names))
}

fn is_connected(fd: c_int) -> bool {
    let before = sys::errno();
    // SAFETY: all zeros is a valid sockaddr_storage.
    let mut addr: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&addr) as socklen_t;
    // SAFETY: `addr` has `len` bytes of room.
    let connected = unsafe { real::getpeername(fd, (&raw mut addr).cast(), &raw mut len) } == 0;
    sys::set_errno(before);
    connected
}

fn dual_stack(fd: c_int) -> bool {
    sys::option(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) == Some(0)
}

/// Opens the connection to the gateway and starts the handshake on it.
fn start(config: &'static Config, fd: c_int, destination: SocketAddr, gateway: SocketAddr) -> Option<c_int> {
    let Some(cookie) = sys::cookie(fd) else { return Some(-1) };
    let fill = |out, inbox| {
        let handshake = handshake(config, destination, out, inbox)?;
        let (phase, since) = (Phase::Connecting, sys::now());
        Some(Pending { phase, handshake: Some(handshake), destination, gateway, fd, duplicates: 0, since })
    };
    let Some(mut guard) = pending::create(cookie, fill) else { return Some(sys::fail(libc::EAGAIN)) };
    let family = sys::tcp_family(fd).unwrap_or(libc::AF_INET);
    match dial(fd, &mut guard, gateway, family) {
        Ok(()) => guard.phase = Phase::Talking,
        Err(libc::EINPROGRESS) => {}
        Err(libc::EINTR) => {
            epoll::hide(fd, cookie, libc::POLLOUT);
            drop(guard);
            return Some(sys::fail(libc::EINTR));
        }
        Err(errno) => {
            guard.release();
            return unreachable(config, destination, errno);
        }
    }
    if sys::is_nonblocking(fd) {
        return Some(match step(fd, guard) {
            Progress::Waits(guard, events) => {
                epoll::hide(fd, cookie, events);
                drop(guard);
                sys::fail(libc::EINPROGRESS)
            }
            Progress::Open => 0,
            Progress::Failed(guard, errno) => tell(guard, errno),
        });
    }
    drop(guard);
    Some(wait(fd, sys::send_timeout_ns(fd)))
}

/// Connects with the handshake's first bytes in the SYN where a fast open cookie is cached (RFC 7413), without them where
/// it is not. A blocking socket blocks here, as in the program's own connect: EINTR and SO_SNDTIMEO are the kernel's.
fn dial(fd: c_int, guard: &mut Guard, gateway: SocketAddr, family: c_int) -> Result<(), c_int> {
    let (addr, len) = sys::c_addr(gateway, family);
    let addr = (&raw const addr).cast::<sockaddr>();
    let Some(handshake) = guard.handshake.as_mut() else { return Err(libc::EPROTO) };
    let out = handshake.outgoing();
    let flags = libc::MSG_FASTOPEN | libc::MSG_NOSIGNAL;
    // SAFETY: the pointers and lengths describe `out` and `addr`.
    let n = unsafe { real::sendto(fd, out.as_ptr().cast(), out.len(), flags, addr, len) };
    if let Ok(n) = usize::try_from(n) {
        handshake.sent(n);
        return Ok(());
    }
    match sys::errno() {
        libc::EOPNOTSUPP | libc::EINVAL | libc::EPIPE => {}
        errno => return Err(errno),
    }
    // SAFETY: a whole address.
    match unsafe { real::connect(fd, addr, len) } {
        0 => Ok(()),
        _ => Err(sys::errno()),
    }
}

fn handshake(
    config: &'static Config,
    destination: SocketAddr,
    out: &'static mut [u8],
    inbox: &'static mut [u8],
) -> Option<Handshake> {
    let mut id = [0u8; 16];
    // SAFETY: the pointer and the length describe `id`.
    if unsafe { libc::getrandom(id.as_mut_ptr().cast(), id.len(), 0) } != id.len() as isize {
        return None;
    }
    let open = Open {
        session: SessionId(id),
        destination: EndpointRef::from(destination),
        path: List::new(&config.later),
        visited: List::default(),
        origin: None,
        identity: "",
        mode: Mode::Raw,
        requirements: Requirements::default(),
        resumable: false,
        required: 0,
    };
    let auth = config.settings.user.as_ref().map(|user| Auth { mechanism: Auth::ANONYMOUS, data: user.as_bytes() });
    Handshake::connect(out, inbox, &Hello::of(""), auth.as_ref(), &open).ok()
}

/// A connect on a socket whose session is on its way or has failed.
fn again(fd: c_int, guard: Guard) -> c_int {
    match step(fd, guard) {
        Progress::Open => 0,
        Progress::Failed(guard, errno) => tell(guard, errno),
        Progress::Waits(guard, _) if sys::is_nonblocking(fd) => {
            drop(guard);
            sys::fail(libc::EALREADY)
        }
        Progress::Waits(guard, _) => {
            drop(guard);
            wait(fd, sys::send_timeout_ns(fd))
        }
    }
}

/// Blocks until the session on the socket is open or has failed, as connect(2) does on a blocking socket.
pub(crate) fn wait(fd: c_int, timeout_ns: Option<u64>) -> c_int {
    let deadline = timeout_ns.map(|ns| sys::now().saturating_add(ns));
    loop {
        let guard = match pending::find(fd) {
            Found::Pending(guard) => guard,
            Found::None => return 0,
            Found::Busy => return sys::fail(libc::EINTR),
        };
        let events = match step(fd, guard) {
            Progress::Open => return 0,
            Progress::Failed(guard, errno) => return tell(guard, errno),
            Progress::Waits(_, events) => events,
        };
        if !block(fd, events, deadline) {
            return -1;
        }
    }
}

/// Waits for events; `false`, with errno, when a signal or the deadline came first.
fn block(fd: c_int, events: libc::c_short, deadline: Option<u64>) -> bool {
    if deadline.is_none() && events == libc::POLLIN && !sys::is_nonblocking(fd) {
        // A wait that the kernel restarts after a signal whose handler asks for that, as it restarts a connect.
        let mut byte = 0u8;
        // SAFETY: one byte of room; nothing is taken.
        let n = unsafe { real::recv(fd, (&raw mut byte).cast(), 1, libc::MSG_PEEK) };
        return n >= 0 || sys::errno() != libc::EINTR;
    }
    let left = match deadline.map(|deadline| deadline.saturating_sub(sys::now())) {
        Some(0) => {
            sys::set_errno(libc::EINPROGRESS);
            return false;
        }
        left => left,
    };
    let time =
        left.map(|ns| libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 });
    let mut one = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: one pollfd; the time lives for the call.
    let n = unsafe {
        real::ppoll(&raw mut one, 1, time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref), std::ptr::null())
    };
    n >= 0
}

/// Tells the program of its failed session, once; the socket can connect again.
pub(crate) fn tell(guard: Guard, errno: c_int) -> c_int {
    let cookie = guard.cookie();
    guard.release();
    epoll::restore(cookie);
    sys::fail(errno)
}

/// The gateway cannot be reached: an error, unless the user allowed to go direct then.
fn unreachable(config: &Config, destination: SocketAddr, errno: c_int) -> Option<c_int> {
    if config.settings.fallback {
        report::fell_back(config, destination, errno);
        return None;
    }
    report::unreachable(config, destination, errno);
    Some(sys::fail(errno))
}
