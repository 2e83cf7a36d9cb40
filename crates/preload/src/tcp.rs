//! The kernel's state of a TCP connection (TCP_INFO of tcp(7)).

use crate::sys;
use libc::c_int;

/// States of `include/net/tcp_states.h`.
pub(crate) const SYN_SENT: u8 = 2;
pub(crate) const CLOSE: u8 = 7;

/// The state of the TCP connection behind `fd`, `None` if it is none.
pub(crate) fn state(fd: c_int) -> Option<u8> {
    let mut state = [0];
    sys::get_bytes(fd, libc::IPPROTO_TCP, libc::TCP_INFO, &mut state).ok().filter(|len| *len == 1)?;
    Some(state[0])
}
