//! System calls on files.

use super::{Errno, call};
use libc::c_int;
use std::ffi::CStr;

/// Opens a file, never to be inherited by exec.
pub(crate) fn open(path: &CStr, flags: c_int) -> Result<c_int, Errno> {
    let flags = (flags | libc::O_CLOEXEC | libc::O_NOCTTY) as usize;
    let arguments = [libc::AT_FDCWD as usize, path.as_ptr() as usize, flags, 0o666];
    // SAFETY: the path ends with a zero.
    unsafe { call(libc::SYS_openat, arguments) }.map(|fd| fd as c_int)
}

pub(crate) fn write(fd: c_int, bytes: &[u8]) -> Result<usize, Errno> {
    // SAFETY: the buffer is valid for its length.
    unsafe { call(libc::SYS_write, [fd as usize, bytes.as_ptr() as usize, bytes.len()]) }
}

/// Whether a write of a sentence to `fd` neither blocks nor fails. A pipe without a reader does not count: a write to
/// it would end the program by SIGPIPE.
pub(crate) fn is_writable(fd: c_int) -> bool {
    let mut asked = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: both are valid, and no mask is passed.
    let found = unsafe { call(libc::SYS_ppoll, [&raw mut asked as usize, 1, &raw const now as usize, 0, 0]) };
    found == Ok(1) && asked.revents & (libc::POLLOUT | libc::POLLERR | libc::POLLHUP) == libc::POLLOUT
}

pub(crate) fn read(fd: c_int, bytes: &mut [u8]) -> Result<usize, Errno> {
    // SAFETY: the buffer is valid for its length.
    unsafe { call(libc::SYS_read, [fd as usize, bytes.as_mut_ptr() as usize, bytes.len()]) }
}

/// The owner and permissions of a file.
pub(crate) fn owner_and_mode(fd: c_int) -> Result<(u32, u32), Errno> {
    about(fd, libc::STATX_UID | libc::STATX_MODE).map(|about| (about.stx_uid, about.stx_mode.into()))
}

/// Whether there is a descriptor of this number.
pub(crate) fn is_open(fd: c_int) -> bool {
    super::status_flags(fd).is_ok()
}

/// Whether two descriptors are copies of each other (kcmp(2)). Kernels and filters without that call deny it.
pub(crate) fn is_same_file(one: c_int, other: c_int) -> bool {
    const KCMP_FILE: usize = 0;
    let thread = super::gettid() as usize;
    // SAFETY: no pointers.
    let order = unsafe { call(libc::SYS_kcmp, [thread, thread, KCMP_FILE, one as usize, other as usize]) };
    order == Ok(0)
}

/// The number by which the kernel knows a file or socket.
pub(crate) fn inode(fd: c_int) -> Result<u64, Errno> {
    about(fd, libc::STATX_INO).map(|about| about.stx_ino)
}

fn about(fd: c_int, what: u32) -> Result<libc::statx, Errno> {
    let mut about = std::mem::MaybeUninit::<libc::statx>::zeroed();
    let mask = what as usize;
    let arguments =
        [fd as usize, c"".as_ptr() as usize, libc::AT_EMPTY_PATH as usize, mask, about.as_mut_ptr() as usize];
    // SAFETY: the empty path ends with a zero, and `about` is valid for writing.
    unsafe { call(libc::SYS_statx, arguments) }?;
    // SAFETY: zeroed is a valid statx, and the call only overwrote it with another.
    Ok(unsafe { about.assume_init() })
}

/// Whether there is a file.
pub(crate) fn exists(path: &CStr) -> bool {
    // SAFETY: the path ends with a zero.
    unsafe { call(libc::SYS_faccessat, [libc::AT_FDCWD as usize, path.as_ptr() as usize, libc::F_OK as usize]) }.is_ok()
}

/// Whether another open file has the exclusive lock of this one (flock(2)).
pub(crate) fn is_locked(fd: c_int) -> bool {
    // SAFETY: no pointers. A lock that is had goes with the descriptor.
    let locked = unsafe { call(libc::SYS_flock, [fd as usize, (libc::LOCK_SH | libc::LOCK_NB) as usize]) };
    locked == Err(libc::EWOULDBLOCK)
}

/// The length of an open file.
pub(crate) fn length(fd: c_int) -> Result<u64, Errno> {
    // SAFETY: no pointers.
    unsafe { call(libc::SYS_lseek, [fd as usize, 0, libc::SEEK_END as usize]) }.map(|len| len as u64)
}

pub(crate) fn truncate(fd: c_int) {
    // SAFETY: no pointers.
    let _ = unsafe { call(libc::SYS_ftruncate, [fd as usize, 0]) };
}

pub(crate) fn mkdir(path: &CStr) {
    // SAFETY: the path ends with a zero.
    let _ = unsafe { call(libc::SYS_mkdirat, [libc::AT_FDCWD as usize, path.as_ptr() as usize, 0o700]) };
}
