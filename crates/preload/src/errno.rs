//! The calling thread's `errno`.

use libc::c_int;

/// A Linux error number.
pub(crate) type Errno = c_int;

/// Sets `errno`, as a hook that fails does last.
pub(crate) fn set_errno(errno: Errno) {
    // SAFETY: the location is the calling thread's own.
    unsafe { *libc::__errno_location() = errno }
}

/// The calling thread's `errno`.
pub(crate) fn errno() -> Errno {
    // SAFETY: likewise.
    unsafe { *libc::__errno_location() }
}
