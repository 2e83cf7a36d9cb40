//! Calls that move data or end it: while a session is not open, they behave as on a connection that is still being made.

use crate::connect::wait;
use crate::pending::{self, Found};
use crate::progress::{Progress, step};
use crate::{config, real, sys};
use libc::{c_int, c_uint, iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t, timespec};

/// Whether the program's call on `fd` may go on. Otherwise errno is set.
fn may(fd: c_int, flags: c_int) -> bool {
    if !pending::any() {
        return true;
    }
    let guard = match pending::find(fd) {
        Found::None => return true,
        Found::Busy => {
            sys::set_errno(libc::EAGAIN);
            return false;
        }
        Found::Pending(guard) => guard,
    };
    match step(fd, guard) {
        Progress::Open => true,
        Progress::Failed(guard, errno) => {
            crate::connect::tell(guard, errno);
            false
        }
        Progress::Waits(guard, _) => {
            drop(guard);
            if flags & libc::MSG_DONTWAIT != 0 || sys::is_nonblocking(fd) {
                sys::set_errno(libc::EAGAIN);
                return false;
            }
            wait(fd, sys::send_timeout_ns(fd)) == 0
        }
    }
}

macro_rules! gated {
    ($($name:ident($fd:ident: c_int $(, $arg:ident: $type:ty)*; $flags:expr) -> $result:ty;)*) => {$(
        /// # Safety
        /// As for the C function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($fd: c_int $(, $arg: $type)*) -> $result {
            if may($fd, $flags) {
                // SAFETY: the program's own call.
                unsafe { real::$name($fd $(, $arg)*) }
            } else {
                -1
            }
        }
    )*};
}

gated! {
    read(fd: c_int, buffer: *mut libc::c_void, len: size_t; 0) -> ssize_t;
    write(fd: c_int, buffer: *const libc::c_void, len: size_t; 0) -> ssize_t;
    readv(fd: c_int, parts: *const iovec, n: c_int; 0) -> ssize_t;
    writev(fd: c_int, parts: *const iovec, n: c_int; 0) -> ssize_t;
    send(fd: c_int, buffer: *const libc::c_void, len: size_t, flags: c_int; flags) -> ssize_t;
    recv(fd: c_int, buffer: *mut libc::c_void, len: size_t, flags: c_int; flags) -> ssize_t;
    recvfrom(fd: c_int, buffer: *mut libc::c_void, len: size_t, flags: c_int, from: *mut sockaddr, from_len: *mut socklen_t; flags) -> ssize_t;
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int; flags) -> ssize_t;
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int; flags) -> ssize_t;
    sendmmsg(fd: c_int, messages: *mut mmsghdr, n: c_uint, flags: c_int; flags) -> c_int;
    recvmmsg(fd: c_int, messages: *mut mmsghdr, n: c_uint, flags: c_int, timeout: *mut timespec; flags) -> c_int;
    sendfile(to: c_int, from: c_int, offset: *mut off_t, n: size_t; 0) -> ssize_t;
    sendfile64(to: c_int, from: c_int, offset: *mut off_t, n: size_t; 0) -> ssize_t;
    __read_chk(fd: c_int, buffer: *mut libc::c_void, len: size_t, size: size_t; 0) -> ssize_t;
    __recv_chk(fd: c_int, buffer: *mut libc::c_void, len: size_t, size: size_t, flags: c_int; flags) -> ssize_t;
    __recvfrom_chk(fd: c_int, buffer: *mut libc::c_void, len: size_t, size: size_t, flags: c_int, from: *mut sockaddr, from_len: *mut socklen_t; flags) -> ssize_t;
}

/// A connect in the SYN (MSG_FASTOPEN) becomes a connect and a send: the SYN's data is the handshake's.
///
/// # Safety
/// As for sendto(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendto(
    fd: c_int,
    buffer: *const libc::c_void,
    len: size_t,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> ssize_t {
    if flags & libc::MSG_FASTOPEN != 0 && !to.is_null() && config::active().is_some() && sys::tcp_family(fd).is_some() {
        // SAFETY: the caller's promise about `to`.
        if unsafe { crate::connect::connect(fd, to, to_len) } != 0 {
            return -1;
        }
        // SAFETY: the program's own call, on a connected socket.
        return unsafe { real::send(fd, buffer, len, flags & !libc::MSG_FASTOPEN) };
    }
    if !may(fd, flags) {
        return -1;
    }
    // SAFETY: the program's own call.
    unsafe { real::sendto(fd, buffer, len, flags, to, to_len) }
}

/// # Safety
/// As for splice(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn splice(
    from: c_int,
    from_offset: *mut libc::loff_t,
    to: c_int,
    to_offset: *mut libc::loff_t,
    n: size_t,
    flags: c_uint,
) -> ssize_t {
    if !may(from, 0) || !may(to, 0) {
        return -1;
    }
    // SAFETY: the program's own call.
    unsafe { real::splice(from, from_offset, to, to_offset, n, flags) }
}

/// # Safety
/// As for shutdown(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shutdown(fd: c_int, how: c_int) -> c_int {
    match pending::find(fd) {
        Found::Pending(guard) => match step(fd, guard) {
            Progress::Open => {}
            Progress::Waits(..) | Progress::Failed(..) => return sys::fail(libc::ENOTCONN),
        },
        Found::Busy => return sys::fail(libc::ENOTCONN),
        Found::None => {}
    }
    // SAFETY: the program's own call.
    unsafe { real::shutdown(fd, how) }
}

/// # Safety
/// As for close(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    if pending::any()
        && let Found::Pending(mut guard) = pending::find(fd)
    {
        if guard.duplicates > 0 {
            guard.duplicates -= 1;
        } else {
            crate::epoll::forget(guard.cookie());
            guard.release();
        }
    }
    // SAFETY: the program's own call.
    unsafe { real::close(fd) }
}

fn duplicated(fd: c_int) {
    if pending::any()
        && let Found::Pending(mut guard) = pending::find(fd)
    {
        guard.duplicates += 1;
    }
}

macro_rules! duplicating {
    ($($name:ident(fd: c_int $(, $arg:ident)*);)*) => {$(
        /// # Safety
        /// As for the C function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(fd: c_int $(, $arg: c_int)*) -> c_int {
            // SAFETY: the program's own call.
            let result = unsafe { real::$name(fd $(, $arg)*) };
            if result >= 0 {
                duplicated(fd);
            }
            result
        }
    )*};
}

duplicating! {
    dup(fd: c_int);
    dup2(fd: c_int, to);
    dup3(fd: c_int, to, flags);
}
