//! System calls that the standard library, rustix and socket2 do not offer. All `unsafe` code of this crate
//! is here.
#![allow(unsafe_code, reason = "thin edges to the kernel, one call each")]

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A socket option's value as the kernel reads it: a type without padding for which every bit pattern is
/// valid.
trait Value: Copy {}
impl Value for libc::c_int {}
impl Value for u64 {}

/// See [`release_freed`](crate::heap::release_freed).
pub(crate) fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes no pointer, and locks what it changes.
    unsafe {
        libc::malloc_trim(0);
    }
}

fn set_option(fd: BorrowedFd, level: libc::c_int, option: libc::c_int, value: impl Value) -> io::Result<()> {
    let len = size_of_val(&value) as libc::socklen_t;
    // SAFETY: `fd` is open for the call; the pointer and the length describe `value`, which outlives the call.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, (&raw const value).cast(), len) })
}

/// Sets an integer option of level TCP.
pub(crate) fn set_tcp_option(fd: BorrowedFd, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    set_option(fd, libc::IPPROTO_TCP, option, value)
}

/// Lets a socket have the address of another host, which needs CAP_NET_RAW or CAP_NET_ADMIN (IP_TRANSPARENT, IPV6_TRANSPARENT). The kernel chooses
/// its port when it connects, so that connections to different destinations may have the same one (IP_BIND_ADDRESS_NO_PORT).
pub(crate) fn use_other_addresses(fd: BorrowedFd, is_ipv6: bool) -> io::Result<()> {
    set_option(fd, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1)?;
    match is_ipv6 {
        true => set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT, 1),
        false => set_option(fd, libc::IPPROTO_IP, libc::IP_TRANSPARENT, 1),
    }
}

/// Limits the rate at which the kernel sends on a socket, in bytes per second (SO_MAX_PACING_RATE).
pub(crate) fn set_pacing(fd: BorrowedFd, rate: u64) -> io::Result<()> {
    set_option(fd, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, rate)
}

/// Sets how many bytes must wait before a socket becomes readable (SO_RCVLOWAT).
pub(crate) fn set_read_threshold(fd: BorrowedFd, bytes: libc::c_int) -> io::Result<()> {
    set_option(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, bytes)
}

/// Sets a receive buffer beyond `net.core.rmem_max`, which needs CAP_NET_ADMIN (SO_RCVBUFFORCE).
pub(crate) fn force_receive_buffer(fd: BorrowedFd, bytes: libc::c_int) -> io::Result<()> {
    set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes)
}

/// Fills the start of `info` with the kernel's `struct tcp_info` and returns the length of that structure.
pub(crate) fn tcp_info(fd: BorrowedFd, info: &mut [u8; 256]) -> io::Result<usize> {
    let mut len = info.len() as libc::socklen_t;
    // SAFETY: `fd` is open for the call; the kernel writes at most `len` bytes, which is the length of `info`.
    let result = unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &raw mut len)
    };
    check(result)?;
    Ok(len as usize)
}

/// The sizes of a socket's send and receive buffer, in bytes as the kernel counts them (SO_MEMINFO, `sk_meminfo` in
/// `include/uapi/linux/sock_diag.h`): one call for both.
pub(crate) fn buffer_sizes(fd: BorrowedFd) -> io::Result<[u32; 2]> {
    let info = memory_info(fd)?;
    Ok([info[SEND_BUFFER], info[RECEIVE_BUFFER]])
}

/// Datagrams that a socket had no room for, modulo 2³² (SO_MEMINFO).
pub(crate) fn dropped_datagrams(fd: BorrowedFd) -> io::Result<u32> {
    memory_info(fd).map(|info| info[DROPS])
}

/// Places in what [`memory_info`] returns (SK_MEMINFO_RCVBUF, SK_MEMINFO_SNDBUF and SK_MEMINFO_DROPS).
const RECEIVE_BUFFER: usize = 1;
const SEND_BUFFER: usize = 3;
const DROPS: usize = 8;

fn memory_info(fd: BorrowedFd) -> io::Result<[u32; 9]> {
    let mut info = [0u32; 9];
    let mut len = size_of_val(&info) as libc::socklen_t;
    // SAFETY: `fd` is open for the call; the kernel writes at most `len` bytes, which is the length of `info`.
    let result = unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_MEMINFO, info.as_mut_ptr().cast(), &raw mut len)
    };
    check(result)?;
    if (len as usize) < size_of_val(&info) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(info)
}

/// Bytes that the peer has not acknowledged, a FIN counting as one (SIOCOUTQ).
pub(crate) fn unacknowledged(fd: BorrowedFd) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: `fd` is open for the call; TIOCOUTQ (the same number as SIOCOUTQ) writes one int to `bytes`.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    check(result)?;
    Ok(usize::try_from(bytes).unwrap_or(0))
}

/// Largest IP packet, in bytes, that the route to `to` takes, as far as this host knows (IP_MTU). Sends
/// nothing.
pub(crate) fn path_mtu(to: SocketAddr) -> Option<u32> {
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(to).ok()?;
    let (level, option) =
        if to.is_ipv4() { (libc::IPPROTO_IP, libc::IP_MTU) } else { (libc::IPPROTO_IPV6, libc::IPV6_MTU) };
    let (mut mtu, mut len): (libc::c_int, _) = (0, size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: the descriptor is open for the call; the kernel writes at most `len` bytes, the length of `mtu`, to it.
    let result = unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, (&raw mut mtu).cast(), &raw mut len) };
    check(result).ok()?;
    u32::try_from(mtu).ok()
}

/// What happens to a datagram larger than the path MTU known to this host. Routers do not fragment in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TooLong {
    /// It is sent in fragments.
    Fragmented,
    /// It is refused with `EMSGSIZE`.
    Refused,
    /// It is sent all the same, unless it is too long for the interface: what is known of the path may be forged.
    SentWhole,
}

/// Chooses what happens to long datagrams.
pub(crate) fn treat_too_long(fd: BorrowedFd, v6: bool, how: TooLong) -> io::Result<()> {
    let (v4, v6_how) = match how {
        TooLong::Fragmented => (libc::IP_PMTUDISC_WANT, libc::IPV6_PMTUDISC_WANT),
        TooLong::Refused => (libc::IP_PMTUDISC_DO, libc::IPV6_PMTUDISC_DO),
        TooLong::SentWhole => (libc::IP_PMTUDISC_PROBE, libc::IPV6_PMTUDISC_PROBE),
    };
    let v4 = [(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, v4)];
    let v6_options = [
        (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, v6_how),
        (libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG, i32::from(how != TooLong::Fragmented)),
    ];
    for (level, option, value) in if v6 { &v6_options[..] } else { &v4[..] } {
        // SAFETY: `fd` is open for the call; the pointer and the length describe `value`, which outlives the call.
        let result = unsafe {
            libc::setsockopt(
                fd.as_raw_fd(),
                *level,
                *option,
                std::ptr::from_ref(value).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            )
        };
        check(result)?;
    }
    Ok(())
}

/// Registers a listener with the caller's runtime.
pub(crate) fn watch_listener(listener: TcpListener) -> io::Result<AsyncFd<TcpListener>> {
    // SAFETY: a `TcpListener` owns its descriptor, never changes it, and closes it only on drop. The
    // `AsyncFd` owns the listener, and nothing here gives the descriptor away.
    unsafe { AsyncFd::register_with_interest(listener, Interest::READABLE) }.map_err(io::Error::from)
}

/// Registers a timer with the caller's runtime.
///
/// # Errors
/// When the runtime cannot register it.
pub(crate) fn watch_timer(timer: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the `OwnedFd` keeps the same descriptor for its whole life, and the `AsyncFd` owns it.
    unsafe { AsyncFd::register_with_interest(timer, Interest::READABLE) }.map_err(io::Error::from)
}

/// Registers a descriptor that others hold too, such as another process's socket, with the caller's runtime.
///
/// # Errors
/// When the runtime cannot register it.
pub fn watch(file: Arc<OwnedFd>, interest: Interest) -> io::Result<AsyncFd<Arc<OwnedFd>>> {
    // SAFETY: the `OwnedFd` keeps the same descriptor for its whole life, and lives as long as the `AsyncFd` holds it.
    unsafe { AsyncFd::register_with_interest(file, interest) }.map_err(io::Error::from)
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
