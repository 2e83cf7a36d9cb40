//! Small questions to the kernel, asked past the hooks.

use crate::real;
use libc::{c_int, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

pub(crate) fn errno() -> c_int {
    // SAFETY: the location is this thread's own and always valid.
    unsafe { *libc::__errno_location() }
}

pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Fails a C function with this errno.
pub(crate) fn fail(errno: c_int) -> c_int {
    set_errno(errno);
    -1
}

/// An integer socket option; leaves errno alone when there is none.
pub(crate) fn option(fd: c_int, level: c_int, name: c_int) -> Option<c_int> {
    get::<c_int>(fd, level, name)
}

/// A socket option of type `T`; leaves errno alone when there is none.
pub(crate) fn get<T: Copy>(fd: c_int, level: c_int, name: c_int) -> Option<T> {
    let before = errno();
    let mut value = std::mem::MaybeUninit::<T>::zeroed();
    let mut len = size_of::<T>() as socklen_t;
    // SAFETY: `value` has `len` bytes of room.
    let result = unsafe { real::getsockopt(fd, level, name, value.as_mut_ptr().cast(), &raw mut len) };
    if result != 0 || len as usize != size_of::<T>() {
        set_errno(before);
        return None;
    }
    // SAFETY: callers use plain C types, for which every pattern of bytes is a value; the kernel filled all of them.
    Some(unsafe { value.assume_init() })
}

/// Sets a socket option of type `T`; leaves errno alone.
pub(crate) fn set<T: Copy>(fd: c_int, level: c_int, name: c_int, value: &T) -> bool {
    let before = errno();
    // SAFETY: the pointer and the length describe `value`.
    let result =
        unsafe { real::setsockopt(fd, level, name, std::ptr::from_ref(value).cast(), size_of::<T>() as socklen_t) };
    set_errno(before);
    result == 0
}

/// What names the socket behind `fd` for as long as this machine runs; `None` when there is no socket.
pub(crate) fn cookie(fd: c_int) -> Option<u64> {
    get::<u64>(fd, libc::SOL_SOCKET, libc::SO_COOKIE)
}

/// The address family of a TCP (or multipath TCP) socket; `None` for anything else.
pub(crate) fn tcp_family(fd: c_int) -> Option<c_int> {
    let protocol = option(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL)?;
    let family = option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN)?;
    let tcp = protocol == libc::IPPROTO_TCP || protocol == libc::IPPROTO_MPTCP;
    (tcp && (family == libc::AF_INET || family == libc::AF_INET6)).then_some(family)
}

pub(crate) fn is_nonblocking(fd: c_int) -> bool {
    let before = errno();
    // SAFETY: F_GETFL has no conditions.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    set_errno(before);
    flags >= 0 && flags & libc::O_NONBLOCK != 0
}

/// How long a blocking send or connect may take; `None`: forever.
pub(crate) fn send_timeout_ns(fd: c_int) -> Option<u64> {
    let timeout: libc::timeval = get(fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO)?;
    let ns = timeout.tv_sec as u64 * 1_000_000_000 + timeout.tv_usec as u64 * 1000;
    (ns > 0).then_some(ns)
}

/// Nanoseconds of the monotonic clock.
pub(crate) fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` can be written.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

pub(crate) fn thread() -> u32 {
    // SAFETY: no conditions.
    unsafe { libc::gettid() as u32 }
}

/// The address at `addr`, if it is IPv4 or IPv6 and complete.
///
/// # Safety
/// `addr` must point to `len` readable bytes.
pub(crate) unsafe fn socket_addr(addr: *const sockaddr, len: socklen_t) -> Option<SocketAddr> {
    if addr.is_null() || (len as usize) < size_of::<libc::sa_family_t>() {
        return None;
    }
    // SAFETY: the family's bytes are readable, and for each family the length is checked before more is read.
    unsafe {
        match c_int::from((&raw const (*addr).sa_family).read_unaligned()) {
            libc::AF_INET if len as usize >= size_of::<sockaddr_in>() => {
                let v4 = addr.cast::<sockaddr_in>().read_unaligned();
                let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
                Some(SocketAddr::new(IpAddr::V4(ip), u16::from_be(v4.sin_port)))
            }
            libc::AF_INET6 if len as usize >= size_of::<sockaddr_in6>() => {
                let v6 = addr.cast::<sockaddr_in6>().read_unaligned();
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                Some(SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), v6.sin6_flowinfo, v6.sin6_scope_id).into())
            }
            _ => None,
        }
    }
}

/// `addr` as C has it, in the given family: an IPv4 address can be written as an IPv6 one.
pub(crate) fn c_addr(addr: SocketAddr, family: c_int) -> (sockaddr_storage, socklen_t) {
    // SAFETY: all zeros is a valid sockaddr_storage.
    let mut storage: sockaddr_storage = unsafe { std::mem::zeroed() };
    let (v6, scope) = match addr {
        SocketAddr::V4(v4) if family == libc::AF_INET => {
            let c = sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(*v4.ip()).to_be() },
                sin_zero: [0; 8],
            };
            // SAFETY: a sockaddr_storage has room for every kind of address, suitably aligned.
            unsafe { (&raw mut storage).cast::<sockaddr_in>().write(c) };
            return (storage, size_of::<sockaddr_in>() as socklen_t);
        }
        SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped(), 0),
        SocketAddr::V6(v6) => (*v6.ip(), v6.scope_id()),
    };
    let c = sockaddr_in6 {
        sin6_family: libc::AF_INET6 as libc::sa_family_t,
        sin6_port: addr.port().to_be(),
        sin6_flowinfo: 0,
        sin6_addr: libc::in6_addr { s6_addr: v6.octets() },
        sin6_scope_id: scope,
    };
    // SAFETY: as above.
    unsafe { (&raw mut storage).cast::<sockaddr_in6>().write(c) };
    (storage, size_of::<sockaddr_in6>() as socklen_t)
}

/// Copies `addr` to where the program wants it, as getpeername does: as much as fits, and the length it has.
///
/// # Safety
/// `len` must be readable and writable, `out` writable for as many bytes as it says.
pub(crate) unsafe fn give_addr(addr: SocketAddr, family: c_int, out: *mut sockaddr, len: *mut socklen_t) -> c_int {
    if len.is_null() || out.is_null() {
        return fail(libc::EFAULT);
    }
    let (storage, full) = c_addr(addr, family);
    // SAFETY: the caller's promise; no more is copied than both sides have.
    unsafe {
        let n = (*len).min(full) as usize;
        std::ptr::copy_nonoverlapping((&raw const storage).cast::<u8>(), out.cast(), n);
        *len = full;
    }
    0
}

/// Whether `fd` is ready for `events` now.
pub(crate) fn ready(fd: c_int, events: libc::c_short) -> libc::c_short {
    let before = errno();
    let mut one = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: one valid pollfd.
    let n = unsafe { real::poll(&raw mut one, 1, 0) };
    set_errno(before);
    if n > 0 { one.revents } else { 0 }
}
