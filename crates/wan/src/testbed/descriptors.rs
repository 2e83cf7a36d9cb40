//! Closes inherited descriptors: a process that outlives its parent must not keep them, or a reader at the
//! other end of a pipe would wait until the testbed ends.
#![allow(unsafe_code, reason = "close_range(2)")]

use std::io;

/// Closes every descriptor but the standard streams. Must be called before anything is opened.
pub(super) fn close_inherited() {
    // SAFETY: no object of this process owns a descriptor yet.
    unsafe { libc::close_range(3, libc::c_uint::MAX, 0) };
}

/// Marks every descriptor but the standard streams close-on-exec. Makes a single system call, so it may be
/// called between fork and exec.
pub(super) fn close_on_exec() -> io::Result<()> {
    // SAFETY: nothing is closed now; the executed program owns none of the descriptors.
    match unsafe { libc::close_range(3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC as libc::c_int) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
