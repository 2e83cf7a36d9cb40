//! Socket options and names: getsockopt(2), setsockopt(2), getpeername(2), getsockname(2).
//!
//! Options that a program sets apply to the session's first hop, because it is the program's own socket. Two answers
//! differ: while a session is being opened there is no error and no peer, and afterwards the peer is the destination.

use crate::addr::RawAddr;
use crate::handshake::{self, Stage};
use crate::process::no_unwind;
use crate::sys::{self, Errno};
use crate::table::{self, State};
use crate::tcp;
use crate::{config, real, socket};
use libc::{c_int, c_void, sockaddr, socklen_t};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The error of a connect in progress or failed, if `fd` has one.
fn pending_error(fd: c_int) -> Option<Errno> {
    let mut guard = table::find_live(fd)?;
    match handshake::advance(&mut guard, fd) {
        Stage::Plain => None,
        Stage::Waiting { .. } => Some(0),
        Stage::Failed => Some(handshake::take_error(&mut guard)),
    }
}

/// The program's peer; `Err` while there is none, `None` if the kernel's answer is right.
fn peer(fd: c_int) -> Option<Result<RawAddr, Errno>> {
    let mut guard = table::find(fd)?;
    match guard.state() {
        State::Open => {}
        State::Pending => match handshake::advance(&mut guard, fd) {
            Stage::Plain if guard.state() == State::Open => {}
            Stage::Plain => return None,
            Stage::Waiting { .. } | Stage::Failed => return Some(Err(libc::ENOTCONN)),
        },
        State::Failed => return Some(Err(libc::ENOTCONN)),
        State::Watched | State::Free => return None,
    }
    Some(Ok(guard.socket_state().destination))
}

/// The family that the program believes its socket has, if another socket has replaced it.
fn believed_family(fd: c_int) -> Option<c_int> {
    let believed = table::find(fd)?.socket_state().family;
    (sys::family(fd)? != believed).then_some(believed)
}

/// The own address of a session's socket, if the first hop has another address family than the destination. The program
/// could not use that address. It gets the port, and no address.
fn own_address(fd: c_int) -> Option<RawAddr> {
    let (family, destination) = {
        let mut guard = table::find(fd)?;
        let to = matches!(guard.state(), State::Open | State::Pending)
            .then(|| guard.socket_state().destination.socket_addr());
        (guard.socket_state().family, to.flatten())
    };
    let own = sys::getsockname(fd)?.socket_addr()?;
    let is_v4 = |address: SocketAddr| address.ip().to_canonical().is_ipv4();
    let wants_v4 = family == libc::AF_INET || destination.is_some_and(is_v4);
    if sys::family(fd)? == family && (destination.is_none() || is_v4(own) == wants_v4 || is_any(own)) {
        return None;
    }
    let none: IpAddr = if wants_v4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    Some(RawAddr::new(SocketAddr::new(none, own.port()), family))
}

fn is_any(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_unspecified()
}

/// Gives an integer option to the program.
///
/// # Safety
/// As for getsockopt(2).
unsafe fn give_int(given: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int {
    // SAFETY: the caller's promise; cut to the room there is, as the kernel does.
    unsafe {
        let count = (*len as usize).min(size_of::<c_int>());
        std::ptr::copy_nonoverlapping(given.to_ne_bytes().as_ptr(), value.cast(), count);
        *len = count as socklen_t;
    }
    0
}

hook! {
    /// getsockopt(2).
    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int {
        let given = match (level, name) {
            _ if value.is_null() || len.is_null() || config::get().is_none() => None,
            (libc::SOL_SOCKET, libc::SO_ERROR) if !table::is_quiet() => no_unwind(|| pending_error(fd)),
            (libc::SOL_SOCKET, libc::SO_DOMAIN) => no_unwind(|| believed_family(fd)),
            _ => None,
        };
        if let Some(given) = given {
            return give_int(given, value, len);
        }
        let result = real::getsockopt(fd, level, name, value, len);
        let info = result == 0 && (level, name) == (libc::IPPROTO_TCP, libc::TCP_INFO);
        if info && *len > 0 && matches!(handshake::look(fd), Stage::Waiting { .. }) {
            // The state comes first: until there is a session, there is no connection.
            value.cast::<u8>().write(tcp::SYN_SENT);
        }
        result
    }

    /// setsockopt(2).
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int {
        let result = real::setsockopt(fd, level, name, value, len);
        if result == 0 && (level, name) == (libc::IPPROTO_TCP, libc::TCP_CONGESTION) {
            socket::chosen(fd);
        }
        result
    }

    /// getpeername(2): the destination, not the gateway.
    fn getpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
        if config::get().is_none() || addr.is_null() || len.is_null() {
            return real::getpeername(fd, addr, len);
        }
        match no_unwind(|| peer(fd)) {
            None => real::getpeername(fd, addr, len),
            Some(Err(errno)) => {
                sys::set_errno(errno);
                -1
            }
            Some(Ok(peer)) => {
                // The kernel knows whether there still is a peer.
                let (mut room, mut room_len) = (RawAddr::EMPTY, 0);
                let result = real::getpeername(fd, room.room().as_mut_ptr().cast(), &raw mut room_len);
                if result == 0 {
                    peer.give(addr, len);
                }
                result
            }
        }
    }

    /// getsockname(2). If the first hop has another address family than the destination, the answer is only the port.
    fn getsockname(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
        if config::get().is_none() || addr.is_null() || len.is_null() {
            return real::getsockname(fd, addr, len);
        }
        match no_unwind(|| own_address(fd)) {
            Some(own) => {
                own.give(addr, len);
                0
            }
            None => real::getsockname(fd, addr, len),
        }
    }
}
