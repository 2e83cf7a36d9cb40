//! The kernel's answers to connects that begin nothing: on sockets that are connected or were, and for addresses to
//! which no socket of TCP connects.

use super::{Course, GIVEN_UP};
use crate::addr::RawAddr;
use crate::process::shares_memory;
use crate::sys::{self, Errno};
use crate::table::{self, Guard, State};
use crate::{handshake, real, reuse, socket, tcp};
use libc::c_int;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Whether it is an address of many hosts. The broadcast addresses of subnets look like any other.
pub(super) fn is_multicast_or_broadcast(ip: IpAddr) -> bool {
    ip.is_multicast() || ip == Ipv4Addr::BROADCAST
}

/// The kernel's answer for a socket whose direct connection is over, while the program has not heard of it: the error of
/// a connect that failed, or EISCONN as long as the program may have bytes to read. `None` for an unconnected socket,
/// which it leaves as it is.
pub(super) fn unreported_end(fd: c_int, destination: SocketAddr) -> Option<Course> {
    // The kernel reports a wrong family only for an unconnected socket, and no connection fails with that error.
    let other = if sys::family(fd) == Some(libc::AF_INET) { libc::AF_INET6 } else { libc::AF_INET };
    match sys::connect(fd, &nowhere(destination.port(), other)) {
        Err(libc::EAFNOSUPPORT | libc::EINVAL) => None,
        // A router may have forbidden the connection, and a security module may forbid the address. Only the latter does
        // so again.
        Err(errno @ (libc::EPERM | libc::EACCES)) => match sys::connect(fd, &nowhere(destination.port(), other)) {
            Err(again) if again == errno => None,
            _ => {
                reuse::after_direct(fd);
                Some(Course::Failed(errno))
            }
        },
        // Only AF_UNSPEC leads on from there.
        Err(libc::EISCONN) => Some(Course::Failed(libc::EISCONN)),
        Err(errno) => {
            reuse::after_direct(fd);
            Some(Course::Failed(errno))
        }
        // Another thread may have begun a session meanwhile.
        Ok(()) => Some(match table::find(fd).filter(|guard| guard.state() == State::Pending) {
            Some(guard) => Course::Pending { again: true, awaited: handshake::awaited(&guard) },
            None => Course::Connected,
        }),
    }
}

/// The error of the kernel for an address of a family that the socket cannot connect to.
pub(super) fn refused_family(fd: c_int, destination: SocketAddr, addr: &RawAddr) -> Option<Errno> {
    let own = sys::family(fd)?;
    if own != addr.family() {
        let is_short = own == libc::AF_INET6 && !addr.is_long_enough_for_v6();
        return Some(if is_short { libc::EINVAL } else { libc::EAFNOSUPPORT });
    }
    let mapped = destination.is_ipv6() && destination.ip().to_canonical().is_ipv4();
    (mapped && socket::is_v6_only(fd)).then_some(libc::ENETUNREACH)
}

/// Tells the kernel that the program knows of the open session behind `fd`, and returns the kernel's answer. `None` if
/// the connection was dissolved without a call to this process; the socket is then ready for another.
pub(super) fn finish(mut guard: Guard, fd: c_int) -> Option<Course> {
    let errno = sys::connect(fd, &no_destination(&guard.socket_state().destination)).err();
    match errno {
        None => Some(Course::Connected),
        // A child of vfork: the entry is its parent's, and stays as it is.
        Some(errno) if is_unconnected(errno) && shares_memory() => Some(Course::Failed(GIVEN_UP)),
        Some(errno) if is_unconnected(errno) => {
            reuse::after_session(guard, fd);
            None
        }
        Some(errno) => {
            // The kernel has given up the session: the next connect makes a new one.
            if matches!(errno, libc::ECONNABORTED | libc::ECONNRESET | libc::EPIPE | libc::ETIMEDOUT) {
                reuse::after_session(guard, fd);
            }
            Some(Course::Failed(errno))
        }
    }
}

/// The kernel's answer to a connect on a socket that is connected, connecting or listening: 0 or an error. If another
/// thread ends that state at this moment, this call still connects nothing. It may block.
pub(crate) fn in_use(fd: c_int, addr: &RawAddr) -> Errno {
    // Afterwards nothing tells a connection's own error from that of the address below.
    let over = tcp::state(fd).is_none_or(|state| state == tcp::CLOSE);
    let nowhere = no_destination(addr);
    let (at, len) = nowhere.parts();
    // SAFETY: the address is valid for its length.
    match unsafe { real::connect(fd, at, len) } {
        0 => 0,
        _ => match sys::errno() {
            errno if over && is_unconnected(errno) => GIVEN_UP,
            errno => errno,
        },
    }
}

/// Waits for a direct connection that has begun on the socket with this cookie.
pub(super) fn fall_back(fd: c_int, cookie: Option<u64>, addr: &RawAddr) -> Errno {
    // The socket's error tells a failed connection from an abandoned one. It is read before the call below, which has
    // errors of its own. If another socket has the descriptor's number by now, its error is left alone.
    if cookie.is_none() || sys::cookie(fd) != cookie {
        return GIVEN_UP;
    }
    let state = tcp::state(fd);
    let over = state.is_none_or(|state| state == tcp::CLOSE);
    let failure = if over && state.is_some() { sys::get(fd, libc::SOL_SOCKET, libc::SO_ERROR).unwrap_or(0) } else { 0 };
    let nowhere = no_destination(addr);
    let (at, len) = nowhere.parts();
    // SAFETY: the address is valid for its length.
    match unsafe { real::connect(fd, at, len) } {
        // The call leaves the socket as a failed connect does: it can connect again.
        _ if failure != 0 => failure,
        0 => 0,
        _ => match sys::errno() {
            libc::EISCONN => 0,
            errno if is_unconnected(errno) && over => GIVEN_UP,
            errno => errno,
        },
    }
}

/// An address to which no TCP socket connects, and no other socket without SO_BROADCAST. A connected or connecting
/// socket ignores the address. If the number meanwhile belongs to another socket, that socket stays unchanged. The port
/// is the program's own, because security modules may check it.
fn no_destination(destination: &RawAddr) -> RawAddr {
    nowhere(destination.socket_addr().map_or(1, |destination| destination.port()), libc::AF_INET)
}

fn nowhere(port: u16, family: c_int) -> RawAddr {
    RawAddr::new(SocketAddr::from((Ipv4Addr::BROADCAST, port)), family)
}

/// Whether this is the kernel's error for an unconnected socket that connects to [`no_destination`].
fn is_unconnected(errno: Errno) -> bool {
    matches!(
        errno,
        libc::ENETUNREACH | libc::EACCES | libc::EPERM | libc::EAFNOSUPPORT | libc::EINVAL | libc::EHOSTUNREACH
    )
}
