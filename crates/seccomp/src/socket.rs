//! Connects a socket that belongs to a caller too, with the effect of the caller's own connect(2).

use crate::sys;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

/// Whether calls on the socket do not block.
///
/// # Errors
/// That of fcntl(2).
pub fn is_nonblocking(socket: &impl AsFd) -> Result<bool, Errno> {
    fcntl_getfl(socket).map(|flags| flags.contains(OFlags::NONBLOCK))
}

/// Begins to connect, and does not wait: EINPROGRESS. `address` has any bytes, which the kernel judges.
///
/// O_NONBLOCK belongs to the open file. It is set for this call alone, if it is not set: the caller waits, and no other
/// thread has a use for a socket that is not connected yet.
///
/// # Errors
/// That of connect(2).
pub fn begin(socket: &impl AsFd, address: &[u8]) -> Result<(), Errno> {
    let flags = fcntl_getfl(socket)?;
    let waits = !flags.contains(OFlags::NONBLOCK);
    if waits {
        fcntl_setfl(socket, flags | OFlags::NONBLOCK)?;
    }
    let connected = connect(socket.as_fd(), address);
    if waits {
        fcntl_setfl(socket, flags)?;
    }
    connected
}

/// connect(2) with any bytes as address. It may block.
///
/// # Errors
/// That of connect(2).
pub fn connect(socket: BorrowedFd, address: &[u8]) -> Result<(), Errno> {
    sys::connect(socket, address).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::INVAL))
}
