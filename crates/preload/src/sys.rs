//! System calls that leave `errno` alone, are no cancellation points and use no hooked symbol.
//!
//! Hooks do their own work with these: a program must not find `errno` changed by a call that succeeded, a thread must
//! not be cancelled while the table is locked, and our own calls must not reach our own hooks.

mod files;

use crate::addr::RawAddr;
use crate::real;
use libc::{c_int, c_long};
use std::time::Duration;

pub(crate) use crate::errno::{Errno, errno, set_errno};
pub(crate) use files::*;

/// An end of an epoll registration or event: what the kernel keeps for a descriptor.
pub(crate) type EpollEvent = libc::epoll_event;

/// Makes a system call.
///
/// # Safety
/// The arguments are what the call expects; pointers among them are valid for what it does with them.
unsafe fn call<const N: usize>(number: c_long, arguments: [usize; N]) -> Result<usize, Errno> {
    let at = |i: usize| arguments.get(i).copied().unwrap_or(0);
    // SAFETY: errno's location is the calling thread's own; the rest is the caller's promise. Superfluous arguments are
    // not looked at by the kernel.
    unsafe {
        let errno = libc::__errno_location();
        let saved = *errno;
        let result = real::syscall(number, at(0), at(1), at(2), at(3), at(4), at(5));
        if result == -1 {
            let error = *errno;
            *errno = saved;
            return Err(error);
        }
        Ok(result as usize)
    }
}

pub(crate) fn getpid() -> u32 {
    // SAFETY: no arguments.
    unsafe { call(libc::SYS_getpid, []) }.map_or(0, |pid| pid as u32)
}

pub(crate) fn gettid() -> u32 {
    // SAFETY: no arguments.
    unsafe { call(libc::SYS_gettid, []) }.map_or(0, |tid| tid as u32)
}

/// The name of the program that runs (PR_GET_NAME), with a zero at its end.
pub(crate) fn process_name(name: &mut [u8; 16]) {
    // SAFETY: the kernel writes 16 bytes.
    let _ = unsafe { call(libc::SYS_prctl, [libc::PR_GET_NAME as usize, name.as_mut_ptr() as usize]) };
}

pub(crate) fn yield_now() {
    // SAFETY: no arguments.
    let _ = unsafe { call(libc::SYS_sched_yield, []) };
}

/// Sleeps for a moment; no cancellation point.
pub(crate) fn sleep(time: Duration) {
    let time = libc::timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
    // SAFETY: `time` is valid, and nothing is asked for what is left of it.
    let _ = unsafe { call(libc::SYS_nanosleep, [&raw const time as usize, 0]) };
}

/// Time since some point in the past; never goes back.
pub(crate) fn now() -> Duration {
    clock(libc::CLOCK_MONOTONIC)
}

/// Time since 1970.
pub(crate) fn wall_clock() -> Duration {
    clock(libc::CLOCK_REALTIME)
}

fn clock(which: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writing; these clocks always exist, so that errno is not touched.
    unsafe { libc::clock_gettime(which, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Fills `bytes` with random ones.
pub(crate) fn random(bytes: &mut [u8]) -> Result<(), Errno> {
    // SAFETY: the buffer is valid for its length. Up to 256 bytes come at once or not at all.
    let got = unsafe { call(libc::SYS_getrandom, [bytes.as_mut_ptr() as usize, bytes.len(), 0]) }?;
    if got == bytes.len() { Ok(()) } else { Err(libc::EIO) }
}

/// Blocks every signal of this thread and returns the mask there was.
pub(crate) fn block_signals() -> u64 {
    // Faults inside this library must stay fatal; the kernel never blocks KILL and STOP.
    let faults = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGABRT];
    let mask = faults.iter().fold(u64::MAX, |mask, signal| mask & !(1 << (signal - 1)));
    let mut old = 0_u64;
    set_mask(libc::SIG_BLOCK, &mask, &raw mut old);
    old
}

/// Blocks the signals of this thread that have handlers, and returns the mask there was. Other signals still end or stop
/// the program.
pub(crate) fn block_handled_signals() -> u64 {
    let faults = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGABRT];
    let handled = (1..=64).filter(|signal| !faults.contains(signal) && handler(*signal).is_some());
    let mask = handled.fold(0_u64, |mask, signal| mask | 1 << (signal - 1));
    let mut old = 0_u64;
    set_mask(libc::SIG_BLOCK, &mask, &raw mut old);
    old
}

/// Restores a mask that [`block_signals`] or [`block_handled_signals`] returned.
pub(crate) fn restore_signals(mask: u64) {
    set_mask(libc::SIG_SETMASK, &mask, std::ptr::null_mut());
}

fn set_mask(how: c_int, mask: &u64, old: *mut u64) {
    let mask: *const u64 = mask;
    // SAFETY: both masks are 8 bytes, which is what the kernel is told; `old` may be null.
    let _ = unsafe { call(libc::SYS_rt_sigprocmask, [how as usize, mask as usize, old as usize, 8]) };
}

/// Whether any signal has a handler that does not ask for interrupted calls to be restarted.
pub(crate) fn any_interrupting_handler() -> bool {
    (1..=64).any(|signal| handler(signal).is_some_and(|flags| flags & libc::SA_RESTART == 0))
}

/// The signals whose handlers ask for interrupted calls to be restarted, if the handlers of others do not. If all ask for
/// it, an interrupted wait can simply go on.
pub(crate) fn restarting_signals() -> Option<u64> {
    let (mut restarting, mut interrupting) = (0_u64, false);
    for signal in 1..=64 {
        match handler(signal) {
            Some(flags) if flags & libc::SA_RESTART != 0 => restarting |= 1 << (signal - 1),
            Some(_) => interrupting = true,
            None => {}
        }
    }
    Some(restarting).filter(|restarting| interrupting && *restarting != 0)
}

/// This thread's mask with these signals blocked as well, for a call of the C library.
pub(crate) fn mask_with(signals: u64) -> libc::sigset_t {
    let mut current = 0_u64;
    set_mask(libc::SIG_BLOCK, &0, &raw mut current);
    let mask = current | signals;
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: zeroed is a valid set; its first eight bytes are the kernel's mask of 64 signals.
    unsafe {
        set.as_mut_ptr().cast::<u64>().write(mask);
        set.assume_init()
    }
}

/// The flags of a signal's handler (sigaction(2)), if it has one.
fn handler(signal: c_int) -> Option<c_int> {
    // struct kernel_sigaction begins with handler and flags on every architecture this builds for but for padding,
    // so the C library's reading of it is used.
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    let saved = errno();
    // SAFETY: `action` is valid for writing; a null new action only asks. Signals that the C library keeps for itself
    // are refused, and count as none.
    let result = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
    set_errno(saved);
    // SAFETY: zeroed is a valid sigaction, and the call only overwrote it with another.
    let action = unsafe { action.assume_init() };
    let handled = action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN;
    (result == 0 && handled).then_some(action.sa_flags)
}

/// Maps fresh, zeroed memory; shared with children of fork, or copied to them.
pub(crate) fn map(len: usize, shared: bool) -> Result<*mut u8, Errno> {
    let flags = libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | if shared { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses touches no memory in use.
    unsafe { call(libc::SYS_mmap, [0, len, protection as usize, flags as usize, usize::MAX, 0]) }
        .map(|at| at as *mut u8)
}

/// Releases a mapping.
///
/// # Safety
/// `at` and `len` are a whole mapping of [`map`], and nothing refers to it any more.
pub(crate) unsafe fn unmap(at: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    let _ = unsafe { call(libc::SYS_munmap, [at as usize, len]) };
}

/// Has the kernel zero a private mapping in children of fork, but not in those that share the memory (vfork).
pub(crate) fn wipe_on_fork(at: *mut u8, len: usize) -> Result<(), Errno> {
    // SAFETY: advice about a mapping of ours; the pages' contents in this process stay.
    unsafe { call(libc::SYS_madvise, [at as usize, len, libc::MADV_WIPEONFORK as usize]) }.map(|_| ())
}

/// The kernel's number of a socket: the same for all its descriptors in all processes, and never used twice.
///
/// # Errors
/// EBADF or ENOTSOCK where there is no socket.
pub(crate) fn try_cookie(fd: c_int) -> Result<u64, Errno> {
    let mut cookie = [0; 8];
    get_bytes(fd, libc::SOL_SOCKET, libc::SO_COOKIE, &mut cookie)?;
    Ok(u64::from_ne_bytes(cookie))
}

/// The same, if there is a socket.
pub(crate) fn cookie(fd: c_int) -> Option<u64> {
    try_cookie(fd).ok()
}

/// The address family of the socket behind `fd`.
pub(crate) fn family(fd: c_int) -> Option<c_int> {
    get(fd, libc::SOL_SOCKET, libc::SO_DOMAIN)
}

/// A socket option of a plain type.
pub(crate) fn get<T: Plain>(fd: c_int, level: c_int, name: c_int) -> Option<T> {
    let mut value = T::default();
    let len = get_bytes(fd, level, name, value.bytes_mut()).ok()?;
    (len == size_of::<T>()).then_some(value)
}

/// A socket option; returns how long it is.
pub(crate) fn get_bytes(fd: c_int, level: c_int, name: c_int, value: &mut [u8]) -> Result<usize, Errno> {
    let mut len = value.len() as libc::socklen_t;
    let at = value.as_mut_ptr() as usize;
    let arguments = [fd as usize, level as usize, name as usize, at, &raw mut len as usize];
    // SAFETY: `value` and `len` are valid for writing, and `len` bounds what is written.
    unsafe { call(libc::SYS_getsockopt, arguments) }.map(|_| len as usize)
}

/// Sets a socket option.
pub(crate) fn set_bytes(fd: c_int, level: c_int, name: c_int, value: &[u8]) -> Result<(), Errno> {
    let arguments = [fd as usize, level as usize, name as usize, value.as_ptr() as usize, value.len()];
    // SAFETY: `value` is valid for its length.
    unsafe { call(libc::SYS_setsockopt, arguments) }.map(|_| ())
}

/// A type that any bytes are a value of.
pub(crate) trait Plain: Default {
    fn bytes_mut(&mut self) -> &mut [u8];
}

macro_rules! plain {
    ($($type:ty),*) => {$(
        impl Plain for $type {
            fn bytes_mut(&mut self) -> &mut [u8] {
                // SAFETY: an integer without padding, for which all bytes are valid.
                unsafe { std::slice::from_raw_parts_mut((&raw mut *self).cast(), size_of::<Self>()) }
            }
        }
    )*};
}
plain!(c_int, u64, [i64; 2]);

pub(crate) fn socket(family: c_int, kind: c_int, protocol: c_int) -> Result<c_int, Errno> {
    // SAFETY: no pointers.
    unsafe { call(libc::SYS_socket, [family as usize, kind as usize, protocol as usize]) }.map(|fd| fd as c_int)
}

pub(crate) fn bind(fd: c_int, addr: &RawAddr) -> Result<(), Errno> {
    let (at, len) = addr.parts();
    // SAFETY: the address is valid for its length.
    unsafe { call(libc::SYS_bind, [fd as usize, at as usize, len as usize]) }.map(|_| ())
}

pub(crate) fn connect(fd: c_int, addr: &RawAddr) -> Result<(), Errno> {
    let (at, len) = addr.parts();
    // SAFETY: the address is valid for its length.
    unsafe { call(libc::SYS_connect, [fd as usize, at as usize, len as usize]) }.map(|_| ())
}

pub(crate) fn getsockname(fd: c_int) -> Option<RawAddr> {
    let mut addr = RawAddr::default();
    let mut len = RawAddr::ROOM as libc::socklen_t;
    let arguments = [fd as usize, addr.room().as_mut_ptr() as usize, &raw mut len as usize];
    // SAFETY: both are valid for writing, and `len` bounds what is written.
    unsafe { call(libc::SYS_getsockname, arguments) }.ok()?;
    addr.set_len(len);
    Some(addr)
}

/// Sends what is possible now, on a connected socket or, with MSG_FASTOPEN among `flags`, to `addr`.
pub(crate) fn send(fd: c_int, bytes: &[u8], flags: c_int, addr: Option<&RawAddr>) -> Result<usize, Errno> {
    let (at, len) = addr.map_or((std::ptr::null(), 0), RawAddr::parts);
    let flags = flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let arguments = [fd as usize, bytes.as_ptr() as usize, bytes.len(), flags as usize, at as usize, len as usize];
    // SAFETY: the buffer and the address are valid for their lengths.
    unsafe { call(libc::SYS_sendto, arguments) }
}

/// Receives what has arrived.
pub(crate) fn recv(fd: c_int, bytes: &mut [u8], flags: c_int) -> Result<usize, Errno> {
    let flags = flags | libc::MSG_DONTWAIT;
    let arguments = [fd as usize, bytes.as_mut_ptr() as usize, bytes.len(), flags as usize, 0, 0];
    // SAFETY: the buffer is valid for its length.
    unsafe { call(libc::SYS_recvfrom, arguments) }
}

/// The flags of an open file (O_NONBLOCK and others).
pub(crate) fn status_flags(fd: c_int) -> Result<c_int, Errno> {
    // SAFETY: no pointers.
    unsafe { call(libc::SYS_fcntl, [fd as usize, libc::F_GETFL as usize]) }.map(|flags| flags as c_int)
}

pub(crate) fn set_status_flags(fd: c_int, flags: c_int) -> Result<(), Errno> {
    // SAFETY: no pointers.
    unsafe { call(libc::SYS_fcntl, [fd as usize, libc::F_SETFL as usize, flags as usize]) }.map(|_| ())
}

/// Copies who gets the signals of input and output, and which (F_SETOWN, F_SETSIG).
pub(crate) fn copy_signal_owner(from: c_int, to: c_int) {
    // `struct f_owner_ex`: a kind and a number.
    let mut owner = [0_i32; 2];
    let at = owner.as_mut_ptr() as usize;
    // SAFETY: the kernel writes and reads the two integers; the other calls have no pointers.
    unsafe {
        let owned = call(libc::SYS_fcntl, [from as usize, F_GETOWN_EX as usize, at]).is_ok();
        if owned && owner[1] != 0 {
            let _ = call(libc::SYS_fcntl, [to as usize, F_SETOWN_EX as usize, at]);
        }
        if let Ok(signal @ 1..) = call(libc::SYS_fcntl, [from as usize, F_GETSIG as usize]) {
            let _ = call(libc::SYS_fcntl, [to as usize, F_SETSIG as usize, signal]);
        }
    }
}

/// Of `fcntl.h`, which libc does not have.
const F_SETSIG: c_int = 10;
const F_GETSIG: c_int = 11;
const F_SETOWN_EX: c_int = 15;
const F_GETOWN_EX: c_int = 16;

/// Whether the descriptor is closed on exec.
pub(crate) fn is_cloexec(fd: c_int) -> bool {
    // SAFETY: no pointers.
    let flags = unsafe { call(libc::SYS_fcntl, [fd as usize, libc::F_GETFD as usize]) };
    flags.is_ok_and(|flags| flags & libc::FD_CLOEXEC as usize != 0)
}

pub(crate) fn dup3(from: c_int, to: c_int, cloexec: bool) -> Result<(), Errno> {
    let flags = if cloexec { libc::O_CLOEXEC } else { 0 };
    // SAFETY: no pointers.
    unsafe { call(libc::SYS_dup3, [from as usize, to as usize, flags as usize]) }.map(|_| ())
}

/// Closes a descriptor of ours.
pub(crate) fn close(fd: c_int) {
    let _ = try_close(fd);
}

pub(crate) fn try_close(fd: c_int) -> Result<(), Errno> {
    // SAFETY: no pointers; the descriptor is ours, or the program closes it.
    unsafe { call(libc::SYS_close, [fd as usize]) }.map(|_| ())
}

/// A duplicate of the descriptor, above the program's own numbers and closed on exec.
pub(crate) fn duplicate(fd: c_int) -> Result<c_int, Errno> {
    const ABOVE: usize = 100;
    // SAFETY: no pointers.
    unsafe { call(libc::SYS_fcntl, [fd as usize, libc::F_DUPFD_CLOEXEC as usize, ABOVE]) }.map(|fd| fd as c_int)
}

pub(crate) fn epoll_ctl(epfd: c_int, operation: c_int, fd: c_int, mut event: EpollEvent) -> Result<(), Errno> {
    let arguments = [epfd as usize, operation as usize, fd as usize, &raw mut event as usize];
    // SAFETY: the event is valid.
    unsafe { call(libc::SYS_epoll_ctl, arguments) }.map(|_| ())
}

/// The number of the user that this process acts as.
pub(crate) fn geteuid() -> u32 {
    // SAFETY: no arguments.
    unsafe { call(libc::SYS_geteuid, []) }.map_or(u32::MAX, |uid| uid as u32)
}
