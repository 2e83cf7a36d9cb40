//! The system calls that no safe library has: the filter, its notifications, connect with any bytes as address, fork,
//! and the source of a signal. Each function checks what the kernel needs, so that the rest of the crate is safe.

use crate::filter::Instruction;
use libc::{c_int, c_ulong, seccomp_notif, seccomp_notif_resp};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::process::Pid;
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::unix::process::CommandExt;
use std::process::Command;

fn checked(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Puts this thread, and all that it will start, under a filter, and returns its listener, and whether a caller waits
/// for its answer whatever signals come, unless one ends it (SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, Linux 5.19). The
/// thread must have no new privileges. Allocates nothing.
pub(crate) fn install(program: &[Instruction]) -> io::Result<(OwnedFd, bool)> {
    let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    match install_with(program, flags | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV) {
        // An older kernel does not know the flag.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok((install_with(program, flags)?, false)),
        installed => Ok((installed?, true)),
    }
}

fn install_with(program: &[Instruction], flags: c_ulong) -> io::Result<OwnedFd> {
    const { assert!(size_of::<Instruction>() == size_of::<libc::sock_filter>()) };
    let filters = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        filter: program.as_ptr().cast_mut().cast(),
    };
    // SAFETY: an `Instruction` has the layout of `sock_filter`, and the kernel only reads `len` of them.
    let listener =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const filters) };
    let listener = checked(listener as c_int)?;
    // SAFETY: the kernel has just made this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(listener) })
}

/// Waits for a notification. ENOENT: its caller has gone meanwhile.
pub(crate) fn receive(listener: BorrowedFd) -> io::Result<seccomp_notif> {
    // The kernel requires zeros.
    let mut call = MaybeUninit::<seccomp_notif>::zeroed();
    // SAFETY: the kernel writes a `seccomp_notif`, for which all zeros are valid, too.
    checked(unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, call.as_mut_ptr()) })?;
    // SAFETY: as above.
    Ok(unsafe { call.assume_init() })
}

/// Answers a notification. ENOENT: its caller does not wait any more.
pub(crate) fn answer(listener: BorrowedFd, id: u64, error: i32, flags: c_ulong) -> io::Result<()> {
    let answer = seccomp_notif_resp { id, val: 0, error, flags: flags as u32 };
    // SAFETY: the kernel reads one `seccomp_notif_resp`.
    checked(unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const answer) }).map(drop)
}

/// Whether the caller of this notification still waits.
pub(crate) fn is_valid(listener: BorrowedFd, id: u64) -> bool {
    // SAFETY: the kernel reads one number of 64 bits.
    let result = unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &raw const id) };
    result == 0
}

/// connect(2) with these bytes as address.
pub(crate) fn connect(socket: BorrowedFd, address: &[u8]) -> io::Result<()> {
    let len = address.len().try_into().map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the kernel reads `len` bytes.
    checked(unsafe { libc::connect(socket.as_raw_fd(), address.as_ptr().cast(), len) }).map(drop)
}

/// The first byte of TCP_INFO: the connection's state.
pub(crate) fn tcp_state(socket: BorrowedFd) -> io::Result<u8> {
    let (mut state, mut len) = (0u8, 1);
    let (level, option, at) = (libc::IPPROTO_TCP, libc::TCP_INFO, &raw mut state);
    // SAFETY: the kernel writes one byte, as `len` says.
    checked(unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, at.cast(), &raw mut len) })?;
    Ok(state)
}

/// The cookie of the socket's network namespace (SO_NETNS_COOKIE, Linux 5.14).
pub(crate) fn network(socket: BorrowedFd) -> io::Result<u64> {
    let (mut cookie, mut len) = (0u64, size_of::<u64>() as u32);
    let at = &raw mut cookie;
    // SAFETY: the kernel writes at most `len` bytes.
    checked(unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_NETNS_COOKIE, at.cast(), &raw mut len)
    })?;
    Ok(cookie)
}

/// Clears TCP_FASTOPEN_CONNECT.
pub(crate) fn no_fast_open(socket: BorrowedFd) -> io::Result<()> {
    let off: c_int = 0;
    let (level, option, len) = (libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT, size_of::<c_int>() as u32);
    // SAFETY: the kernel reads one `c_int`.
    checked(unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const off).cast(), len) }).map(drop)
}

/// fork(2): `None` in the child. The process must have one thread.
pub(crate) fn fork() -> io::Result<Option<Pid>> {
    // SAFETY: in a process of one thread, nothing is locked or half done in the child. This is checked.
    let threads = std::fs::read_dir("/proc/self/task")?.count();
    if threads != 1 {
        return Err(io::ErrorKind::ResourceBusy.into());
    }
    // SAFETY: as above.
    Ok(Pid::from_raw(checked(unsafe { libc::fork() })?))
}

/// Has `command` call `prepare` in the child, before it executes the program. `prepare` must only make system calls: it
/// must not allocate or take locks.
pub(crate) fn before_exec(command: &mut Command, prepare: impl FnMut() -> io::Result<()> + Send + Sync + 'static) {
    // SAFETY: `start` passes a closure that only makes system calls.
    unsafe { command.pre_exec(prepare) };
}

/// Whether this is the number of a descriptor that programs get.
pub(crate) fn is_passed_on(number: c_int) -> bool {
    // SAFETY: no memory is involved, and a number that has no descriptor fails.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
    flags >= 0 && flags & libc::FD_CLOEXEC == 0
}

/// Closes a descriptor that programs get. No object of this process owns such a one: all of these are close-on-exec.
pub(crate) fn close_passed_on(number: c_int) {
    if is_passed_on(number) {
        // SAFETY: as above, nothing else closes or uses it.
        unsafe { libc::close(number) };
    }
}

/// Blocks all signals of this thread that a process can pass on, and returns the descriptor that reads them
/// (signalfd(2)).
pub(crate) fn hold_signals() -> io::Result<OwnedFd> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    let set = set.as_mut_ptr();
    // SAFETY: `set` is valid for all calls, and initialized by the first one. The mask before is not asked for.
    unsafe {
        libc::sigfillset(set);
        for kept in KEPT {
            libc::sigdelset(set, kept);
        }
        checked(-libc::pthread_sigmask(libc::SIG_BLOCK, set, std::ptr::null_mut()))?;
        let fd = checked(libc::signalfd(-1, set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// Signals that have their usual effect: faults of this process, and what it does not pass on.
const KEPT: [c_int; 9] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGSYS,
    libc::SIGABRT,
    libc::SIGPIPE,
    libc::SIGCHLD,
];

/// Unblocks all signals of this thread.
pub(crate) fn release_signals() {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the first call initializes the set.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, set.as_ptr(), std::ptr::null_mut());
    }
}

/// The default action for a signal.
pub(crate) fn default_action(signal: c_int) {
    // SAFETY: SIG_DFL runs no code of this process.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// Sends a signal to this process.
pub(crate) fn raise(signal: c_int) {
    // SAFETY: no memory is involved.
    unsafe { libc::raise(signal) };
}

/// Sends a signal by a descriptor of the process (pidfd_send_signal(2)).
pub(crate) fn send(process: BorrowedFd, signal: c_int) -> io::Result<()> {
    let info = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: no memory is involved.
    let sent = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, process.as_raw_fd(), signal, info, 0) };
    checked(sent as c_int).map(drop)
}

/// The next held signal: its number and `si_code`. `None` if there is none.
pub(crate) fn next_signal(held: &OwnedFd) -> Option<(c_int, c_int)> {
    let mut info = MaybeUninit::<libc::signalfd_siginfo>::zeroed();
    let len = size_of::<libc::signalfd_siginfo>();
    // SAFETY: there is room for one, and any bytes are valid for it.
    let read = unsafe { libc::read(held.as_fd().as_raw_fd(), info.as_mut_ptr().cast(), len) };
    // SAFETY: as above.
    let info = unsafe { info.assume_init() };
    (read == len as isize).then_some((info.ssi_signo as c_int, info.ssi_code))
}
