//! Puts a socket of the other address family under a descriptor, when the gateway cannot be reached from the program's.

use crate::{epoll, real, sys};
use libc::c_int;

/// Options that a program may have set before it connects and that mean the same in both families.
const INTEGERS: &[(c_int, c_int)] = &[
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::SOL_SOCKET, libc::SO_PRIORITY),
    (libc::SOL_SOCKET, libc::SO_OOBINLINE),
    (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
    (libc::IPPROTO_TCP, libc::TCP_SYNCNT),
];

/// Buffers that the program fixed; reading them says twice what was set.
const BUFFERS: &[(c_int, u32)] = &[(libc::SO_SNDBUF, 1), (libc::SO_RCVBUF, 2)];
const SO_BUF_LOCK: c_int = 72;

/// Replaces the socket under `fd` by a new one of `family`, with its options, flags and epoll registrations; `false`, with
/// errno, when that fails. Other descriptors of the old socket keep it.
pub(crate) fn socket(fd: c_int, family: c_int) -> bool {
    let old = sys::cookie(fd).unwrap_or(0);
    // SAFETY: plain calls; descriptors are only closed here when they were made here.
    unsafe {
        let new = libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, libc::IPPROTO_TCP);
        if new < 0 {
            return false;
        }
        copy_options(fd, new);
        let status = libc::fcntl(fd, libc::F_GETFL);
        libc::fcntl(new, libc::F_SETFL, status);
        let close_on_exec = libc::fcntl(fd, libc::F_GETFD) & libc::FD_CLOEXEC != 0;
        let result = real::dup3(new, fd, if close_on_exec { libc::O_CLOEXEC } else { 0 });
        let errno = sys::errno();
        real::close(new);
        sys::set_errno(errno);
        if result < 0 {
            return false;
        }
    }
    if let Some(new) = sys::cookie(fd) {
        epoll::moved(old, new, fd);
    }
    true
}

fn copy_options(from: c_int, to: c_int) {
    for (level, name) in INTEGERS {
        if let Some(value) = sys::option(from, *level, *name) {
            sys::set(to, *level, *name, &value);
        }
    }
    let locked = sys::get::<u32>(from, libc::SOL_SOCKET, SO_BUF_LOCK).unwrap_or(0);
    for (name, bit) in BUFFERS {
        if locked & bit != 0
            && let Some(value) = sys::option(from, libc::SOL_SOCKET, *name)
        {
            sys::set(to, libc::SOL_SOCKET, *name, &(value / 2));
        }
    }
    if let Some(linger) = sys::get::<libc::linger>(from, libc::SOL_SOCKET, libc::SO_LINGER) {
        sys::set(to, libc::SOL_SOCKET, libc::SO_LINGER, &linger);
    }
    for name in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
        if let Some(time) = sys::get::<libc::timeval>(from, libc::SOL_SOCKET, name) {
            sys::set(to, libc::SOL_SOCKET, name, &time);
        }
    }
}
