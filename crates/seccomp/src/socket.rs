//! Connects a socket that belongs to a caller too, with the effect of the caller's own connect(2).

use crate::sys;
use rustix::fd::AsFd;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType};

/// Whether calls on the socket do not block.
///
/// # Errors
/// That of fcntl(2).
pub fn is_nonblocking(socket: &impl AsFd) -> Result<bool, Errno> {
    fcntl_getfl(socket).map(|flags| flags.contains(OFlags::NONBLOCK))
}

/// What a TCP socket does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Nothing: it can connect.
    Closed,
    /// It connects.
    Connecting,
    /// It is or was connected, or it listens.
    InUse,
}

/// The state of a TCP socket.
///
/// # Errors
/// The kernel does not tell it.
pub fn state(socket: &impl AsFd) -> Result<State, Errno> {
    // Of net/tcp_states.h in Linux.
    const SYN_SENT: u8 = 2;
    const SYN_RECV: u8 = 3;
    const CLOSE: u8 = 7;
    Ok(match sys::tcp_state(socket.as_fd()).map_err(errno)? {
        CLOSE => State::Closed,
        SYN_SENT | SYN_RECV => State::Connecting,
        _ => State::InUse,
    })
}

/// Whether a socket belongs to the network namespace of this process. A program can have sockets of others, where an
/// address is another host's.
///
/// # Errors
/// The kernel does not tell it (before Linux 5.14).
pub fn is_of_own_network(socket: &impl AsFd) -> Result<bool, Errno> {
    let own = rustix::net::socket(AddressFamily::UNIX, SocketType::DGRAM, None)?;
    let [own, its] = [own.as_fd(), socket.as_fd()].map(|socket| sys::network(socket).map_err(errno));
    Ok(own? == its?)
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::INVAL)
}

/// Lets a closed TCP socket begin to connect, and does not wait: EINPROGRESS. `address` has any bytes, which the kernel
/// judges.
///
/// O_NONBLOCK belongs to the open file. It is set for this call alone, if it is not set: nobody reads from or writes to
/// a socket that is closed. On any other socket, calls of other threads would notice.
///
/// # Errors
/// That of connect(2).
pub fn begin(socket: &impl AsFd, address: &[u8]) -> Result<(), Errno> {
    let flags = fcntl_getfl(socket)?;
    let waits = !flags.contains(OFlags::NONBLOCK);
    if waits {
        fcntl_setfl(socket, flags | OFlags::NONBLOCK)?;
    }
    let connected = connect(socket, address);
    if waits {
        fcntl_setfl(socket, flags)?;
    }
    connected
}

/// Takes back TCP_FASTOPEN_CONNECT: connect then sends the SYN, and does not wait for the first bytes.
///
/// # Errors
/// That of setsockopt(2).
pub fn connect_at_once(socket: &impl AsFd) -> Result<(), Errno> {
    match sys::no_fast_open(socket.as_fd()) {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(()),
        result => result.map_err(errno),
    }
}

/// connect(2) with any bytes as address. It waits if the socket does, and connects ([`State`]).
///
/// # Errors
/// That of connect(2).
pub fn connect(socket: &impl AsFd, address: &[u8]) -> Result<(), Errno> {
    sys::connect(socket.as_fd(), address).map_err(errno)
}
