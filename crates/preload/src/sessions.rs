//! The true destinations of open sessions, for getpeername: a fixed table under the sockets' cookies.
//!
//! Nobody says when a socket is gone, so that old entries give way to new ones. A program would have to hold thousands of
//! sessions, and ask, to see a gateway's address instead.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

const ENTRIES: usize = 8192;
/// How many places an entry may stand in.
const PROBES: usize = 16;

/// A destination in four words, each atomic: a reader that meets a writer sees another cookie before or after.
struct Entry {
    cookie: AtomicU64,
    address: [AtomicU64; 2],
    /// Port, whether it is IPv6, and the scope.
    rest: AtomicU64,
}

static TABLE: [Entry; ENTRIES] = [const {
    Entry { cookie: AtomicU64::new(0), address: [AtomicU64::new(0), AtomicU64::new(0)], rest: AtomicU64::new(0) }
}; ENTRIES];
static ANY: AtomicBool = AtomicBool::new(false);
static TURN: AtomicUsize = AtomicUsize::new(0);

/// Keeps the destination of this socket's session.
pub(crate) fn remember(cookie: u64, destination: SocketAddr) {
    let start = cookie as usize % ENTRIES;
    let places = (0..PROBES).map(|i| &TABLE[(start + i) % ENTRIES]);
    let free = places.clone().find(|entry| {
        let known = entry.cookie.load(Ordering::Relaxed);
        known == 0 || known == cookie
    });
    let turn = TURN.fetch_add(1, Ordering::Relaxed) % PROBES;
    let entry = free.unwrap_or(&TABLE[(start + turn) % ENTRIES]);
    let (address, scope) = match destination {
        SocketAddr::V4(v4) => (u128::from(u32::from(*v4.ip())), 0),
        SocketAddr::V6(v6) => (u128::from(*v6.ip()), v6.scope_id()),
    };
    let rest = u64::from(destination.port()) | u64::from(destination.is_ipv6()) << 16 | u64::from(scope) << 32;
    entry.cookie.store(0, Ordering::Release);
    entry.address[0].store((address >> 64) as u64, Ordering::Release);
    entry.address[1].store(address as u64, Ordering::Release);
    entry.rest.store(rest, Ordering::Release);
    entry.cookie.store(cookie, Ordering::Release);
    ANY.store(true, Ordering::Release);
}

/// Whether there may be any.
pub(crate) fn any() -> bool {
    ANY.load(Ordering::Relaxed)
}

/// Where this socket's session leads.
pub(crate) fn destination(cookie: u64) -> Option<SocketAddr> {
    let start = cookie as usize % ENTRIES;
    (0..PROBES).map(|i| &TABLE[(start + i) % ENTRIES]).find_map(|entry| {
        if entry.cookie.load(Ordering::Acquire) != cookie {
            return None;
        }
        let high = entry.address[0].load(Ordering::Acquire);
        let low = entry.address[1].load(Ordering::Acquire);
        let rest = entry.rest.load(Ordering::Acquire);
        if entry.cookie.load(Ordering::Acquire) != cookie {
            return None;
        }
        let port = rest as u16;
        if rest >> 16 & 1 == 0 {
            return Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::from(low as u32)), port));
        }
        let ip = (u128::from(high) << 64 | u128::from(low)).into();
        Some(std::net::SocketAddrV6::new(ip, port, 0, (rest >> 32) as u32).into())
    })
}

/// Forgets a socket that is to be connected elsewhere.
pub(crate) fn forget(cookie: u64) {
    let start = cookie as usize % ENTRIES;
    for i in 0..PROBES {
        let entry = &TABLE[(start + i) % ENTRIES];
        if entry.cookie.load(Ordering::Acquire) == cookie {
            entry.cookie.store(0, Ordering::Release);
        }
    }
}
