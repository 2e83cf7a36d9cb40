//! Descriptors that a process was started with and knows nothing of: one that outlives its parent must not keep them, or
//! whoever waits for the end of a pipe waits for the end of the testbed.
#![allow(unsafe_code, reason = "close_range(2)")]

use std::io;

/// Closes every descriptor but the standard streams. To be called before anything was opened.
pub(super) fn close_inherited() {
    // SAFETY: no object of this process owns a descriptor yet.
    unsafe { libc::close_range(3, libc::c_uint::MAX, 0) };
}

/// Makes every descriptor but the standard streams close on exec. Makes one system call and nothing else, so it may be used
/// between fork and exec.
pub(super) fn close_on_exec() -> io::Result<()> {
    // SAFETY: this closes nothing now; the program that is executed owns none of them.
    match unsafe { libc::close_range(3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC as libc::c_int) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
