//! Questions about a socket: its error, its peer, its congestion control.

use crate::config::Config;
use crate::pending::{self, Found};
use crate::progress::{Progress, step};
use crate::{config, connect, real, sessions, sys};
use libc::{c_int, sockaddr, socklen_t};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Sockets for which the program itself chose a congestion control, the latest ones.
static CHOSEN: [AtomicU64; 256] = [const { AtomicU64::new(0) }; 256];
static TURN: AtomicUsize = AtomicUsize::new(0);

/// # Safety
/// As for getsockopt(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut libc::c_void,
    len: *mut socklen_t,
) -> c_int {
    if level == libc::SOL_SOCKET
        && name == libc::SO_ERROR
        && let Found::Pending(guard) = pending::find(fd)
    {
        let error = match step(fd, guard) {
            Progress::Open | Progress::Waits(..) => 0,
            Progress::Failed(guard, errno) => {
                connect::tell(guard, errno);
                errno
            }
        };
        // SAFETY: the caller's promise about `value` and `len`; the length is checked.
        unsafe {
            if len.is_null() || value.is_null() {
                return sys::fail(libc::EFAULT);
            }
            let n = (*len as usize).min(size_of::<c_int>());
            std::ptr::copy_nonoverlapping((&raw const error).cast::<u8>(), value.cast(), n);
            *len = n as socklen_t;
        }
        return 0;
    }
    // SAFETY: the program's own call.
    unsafe { real::getsockopt(fd, level, name, value, len) }
}

/// # Safety
/// As for setsockopt(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const libc::c_void,
    len: socklen_t,
) -> c_int {
    // SAFETY: the program's own call.
    let result = unsafe { real::setsockopt(fd, level, name, value, len) };
    if result == 0 && level == libc::IPPROTO_TCP && name == libc::TCP_CONGESTION && config::active().is_some() {
        let turn = TURN.fetch_add(1, Ordering::Relaxed) % CHOSEN.len();
        CHOSEN[turn].store(sys::cookie(fd).unwrap_or(0), Ordering::Relaxed);
    }
    result
}

/// # Safety
/// As for getpeername(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    match pending::find(fd) {
        Found::Pending(guard) => match step(fd, guard) {
            Progress::Open => {}
            Progress::Waits(..) | Progress::Failed(..) => return sys::fail(libc::ENOTCONN),
        },
        Found::Busy => return sys::fail(libc::ENOTCONN),
        Found::None => {}
    }
    if sessions::any()
        && let Some(destination) = sys::cookie(fd).and_then(sessions::destination)
    {
        // SAFETY: the caller's promise; asking the kernel first keeps its errors for a connection that is gone.
        unsafe {
            let mut real_addr: libc::sockaddr_storage = std::mem::zeroed();
            let mut real_len = size_of_val(&real_addr) as socklen_t;
            if real::getpeername(fd, (&raw mut real_addr).cast(), &raw mut real_len) != 0 {
                return -1;
            }
            return sys::give_addr(destination, c_int::from(real_addr.ss_family), addr, len);
        }
    }
    // SAFETY: the program's own call.
    unsafe { real::getpeername(fd, addr, len) }
}

/// Asks for the configured congestion control on the first hop, unless the program chose one itself. Where the kernel
/// does not permit it the socket keeps its own; the report says what it has.
pub(crate) fn prefer_congestion_control(config: &Config, fd: c_int) {
    let Some(name) = &config.congestion_control else { return };
    let cookie = sys::cookie(fd).unwrap_or(0);
    if CHOSEN.iter().any(|chosen| chosen.load(Ordering::Relaxed) == cookie) {
        return;
    }
    let before = sys::errno();
    // SAFETY: the pointer and the length describe `name`.
    unsafe {
        real::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION, name.as_ptr().cast(), name.len() as socklen_t);
    }
    sys::set_errno(before);
}
