//! Copies what a program has set on a socket to the socket that replaces it.

use crate::addr::RawAddr;
use crate::sys::{self, Errno};
use libc::c_int;
use std::net::SocketAddr;

/// SO_BUF_LOCK of Linux 5.14: which buffer sizes were set, and so are not automatic.
const SO_BUF_LOCK: c_int = 72;
const SNDBUF_LOCKED: c_int = 1;
const RCVBUF_LOCKED: c_int = 2;

/// Options of sockets of any family.
const OPTIONS: &[(c_int, c_int)] = &[
    (libc::SOL_SOCKET, libc::SO_REUSEADDR),
    (libc::SOL_SOCKET, libc::SO_REUSEPORT),
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::SOL_SOCKET, libc::SO_LINGER),
    (libc::SOL_SOCKET, libc::SO_OOBINLINE),
    (libc::SOL_SOCKET, libc::SO_RCVLOWAT),
    (libc::SOL_SOCKET, libc::SO_RCVTIMEO),
    (libc::SOL_SOCKET, libc::SO_SNDTIMEO),
    (libc::SOL_SOCKET, libc::SO_PRIORITY),
    (libc::SOL_SOCKET, libc::SO_MARK),
    (libc::SOL_SOCKET, libc::SO_BINDTODEVICE),
    (libc::SOL_SOCKET, libc::SO_DONTROUTE),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMP),
    (libc::SOL_SOCKET, libc::SO_BUSY_POLL),
    (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE),
    (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    (libc::IPPROTO_TCP, libc::TCP_CORK),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
    (libc::IPPROTO_TCP, libc::TCP_SYNCNT),
    (libc::IPPROTO_TCP, libc::TCP_LINGER2),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
    (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT),
    (libc::IPPROTO_TCP, libc::TCP_THIN_LINEAR_TIMEOUTS),
    (libc::IPPROTO_TCP, libc::TCP_CONGESTION),
    (libc::IPPROTO_TCP, libc::TCP_TIMESTAMP),
    (libc::IPPROTO_TCP, libc::TCP_QUICKACK),
    (libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP),
    (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT),
    (libc::IPPROTO_TCP, TCP_INQ),
    (libc::SOL_SOCKET, libc::SO_ZEROCOPY),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPING),
    (libc::SOL_SOCKET, SO_PREFER_BUSY_POLL),
];

/// Those of [`OPTIONS`] that exclude each other.
const TIME_STAMPS: [(c_int, c_int); 3] = [
    (libc::SOL_SOCKET, libc::SO_TIMESTAMP),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPING),
];

/// Options of IPv4. They also apply to the packets of IPv4 of an IPv6 socket.
const OPTIONS_4: [c_int; 10] = [
    libc::IP_TOS,
    libc::IP_TTL,
    libc::IP_MTU_DISCOVER,
    libc::IP_RECVERR,
    libc::IP_FREEBIND,
    libc::IP_TRANSPARENT,
    libc::IP_BIND_ADDRESS_NO_PORT,
    libc::IP_MINTTL,
    IP_UNICAST_IF,
    IP_LOCAL_PORT_RANGE,
];

/// Options of IPv6.
const OPTIONS_6: [c_int; 15] = [
    libc::IPV6_V6ONLY,
    libc::IPV6_TCLASS,
    libc::IPV6_UNICAST_HOPS,
    libc::IPV6_MTU_DISCOVER,
    libc::IPV6_RECVERR,
    libc::IPV6_DONTFRAG,
    libc::IPV6_RECVPKTINFO,
    libc::IPV6_RECVHOPLIMIT,
    libc::IPV6_RECVTCLASS,
    libc::IPV6_FREEBIND,
    libc::IPV6_TRANSPARENT,
    libc::IPV6_ADDR_PREFERENCES,
    libc::IPV6_AUTOFLOWLABEL,
    libc::IPV6_MINHOPCOUNT,
    IPV6_UNICAST_IF,
];

/// Options of Linux that the crate `libc` does not define.
const IP_UNICAST_IF: c_int = 50;
const IP_LOCAL_PORT_RANGE: c_int = 51;
const IPV6_UNICAST_IF: c_int = 76;
const TCP_INQ: c_int = 36;
const SO_PREFER_BUSY_POLL: c_int = 69;

/// What a socket of one family has that another family does not know, or knows otherwise.
#[derive(Clone, Copy)]
pub(crate) struct OfFamily {
    family: c_int,
    /// Its own address, if it is bound.
    bound: Option<SocketAddr>,
    four: [Option<c_int>; OPTIONS_4.len()],
    six: [Option<c_int>; OPTIONS_6.len()],
}

impl OfFamily {
    /// What the socket behind `fd` has, which will be replaced.
    pub(crate) fn of(fd: c_int) -> Option<Self> {
        let family = sys::family(fd)?;
        let own = sys::getsockname(fd).and_then(|own| own.socket_addr());
        Some(Self {
            family,
            bound: own.and_then(|own| bound(fd, family, own)),
            four: OPTIONS_4.map(|name| sys::get(fd, libc::IPPROTO_IP, name)),
            six: OPTIONS_6.map(|name| sys::get(fd, libc::IPPROTO_IPV6, name)),
        })
    }

    pub(crate) fn family(&self) -> c_int {
        self.family
    }

    /// The port that it is bound to; 0 for none.
    pub(crate) fn port(&self) -> u16 {
        self.bound.map_or(0, |own| own.port())
    }

    /// Gives all of it to `to`, which replaces `from`.
    ///
    /// # Errors
    /// The address cannot be had again.
    pub(crate) fn apply(&self, from: c_int, to: c_int) -> Result<(), Errno> {
        // IP_TOS changes it.
        let priority = sys::get::<c_int>(to, libc::SOL_SOCKET, libc::SO_PRIORITY);
        let set = |level, names: &[c_int], values: &[Option<c_int>]| {
            for (name, value) in names.iter().zip(values) {
                if let Some(value) = value {
                    let _ = sys::set_bytes(to, level, *name, &value.to_ne_bytes());
                }
            }
        };
        set(libc::IPPROTO_IP, &OPTIONS_4, &self.four);
        set(libc::IPPROTO_IPV6, &OPTIONS_6, &self.six);
        if let Some(priority) = priority {
            let _ = sys::set_bytes(to, libc::SOL_SOCKET, libc::SO_PRIORITY, &priority.to_ne_bytes());
        }
        self.bound.map_or(Ok(()), |own| bind_to_same(from, to, &RawAddr::new(own, self.family)))
    }
}

/// What the socket behind `fd`, whose address is `own`, is bound to. A failed connect leaves the port that the kernel
/// chose in the address, and the socket without a port. Such a socket, which will be replaced, has another port
/// afterwards.
fn bound(fd: c_int, family: c_int, own: SocketAddr) -> Option<SocketAddr> {
    let any: SocketAddr = if family == libc::AF_INET { ([0; 4], 0).into() } else { ([0_u16; 8], 0).into() };
    let mut own = own;
    // The kernel refuses it for a socket that has a port.
    if own.port() != 0 && sys::bind(fd, &RawAddr::new(any, family)).is_ok() {
        own.set_port(0);
        // MPTCP also leaves the address. A mapped one would keep the next socket from IPv6.
        let is_mapped = own.is_ipv6() && own.ip().to_canonical().is_ipv4();
        if is_mapped && sys::get(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Some(libc::IPPROTO_MPTCP) {
            own.set_ip(any.ip());
        }
    }
    (own.port() != 0 || !own.ip().is_unspecified()).then_some(own)
}

/// Copies the options that sockets of any family have. Those of the other family get the nearest of this one.
pub(crate) fn copy(from: c_int, to: c_int) {
    let copy_one = |(level, name): (c_int, c_int), (to_level, to_name): (c_int, c_int)| {
        let mut value = [0; 32];
        let Ok(len @ 1..) = sys::get_bytes(from, level, name, &mut value) else { return };
        // Clearing one kind of time stamps clears the others.
        if !TIME_STAMPS.contains(&(level, name)) || value != [0; 32] {
            // Options that cannot be read or set were not set there, or need a privilege that this process lacks.
            let _ = sys::set_bytes(to, to_level, to_name, &value[..len]);
        }
    };
    let (v4, v6) = (libc::IPPROTO_IP, libc::IPPROTO_IPV6);
    // IP_TOS changes SO_PRIORITY, which is copied after it.
    for (four, six) in [(libc::IP_TOS, libc::IPV6_TCLASS), (libc::IP_TTL, libc::IPV6_UNICAST_HOPS)] {
        if sys::family(from) != sys::family(to) {
            copy_one((v4, four), (v6, six));
            copy_one((v6, six), (v4, four));
        }
    }
    OPTIONS.iter().for_each(|option| copy_one(*option, *option));
    let locked = sys::get::<c_int>(from, libc::SOL_SOCKET, SO_BUF_LOCK).unwrap_or(0);
    for (bit, name) in [(SNDBUF_LOCKED, libc::SO_SNDBUF), (RCVBUF_LOCKED, libc::SO_RCVBUF)] {
        // The kernel reports twice the value that was set.
        if let Some(size) = sys::get::<c_int>(from, libc::SOL_SOCKET, name).filter(|_| locked & bit != 0) {
            let _ = sys::set_bytes(to, libc::SOL_SOCKET, name, &(size / 2).to_ne_bytes());
        }
    }
}

/// Copies O_NONBLOCK, O_ASYNC and the receiver of signals.
pub(crate) fn copy_flags(from: c_int, to: c_int) -> Result<(), Errno> {
    sys::copy_signal_owner(from, to);
    sys::status_flags(from).and_then(|flags| sys::set_status_flags(to, flags))
}

/// Binds `to` to an address that the socket `from` may still have: both may share it for this moment.
pub(crate) fn bind_to_same(from: c_int, to: c_int, addr: &RawAddr) -> Result<(), Errno> {
    let (level, name) = (libc::SOL_SOCKET, libc::SO_REUSEADDR);
    let before = [from, to].map(|fd| sys::get::<c_int>(fd, level, name));
    let set = |fd, value: c_int| {
        let _ = sys::set_bytes(fd, level, name, &value.to_ne_bytes());
    };
    set(from, 1);
    set(to, 1);
    let bound = sys::bind(to, addr);
    for (fd, before) in [from, to].into_iter().zip(before) {
        set(fd, before.unwrap_or(0));
    }
    bound
}
