//! Socket addresses as the C library has them (`sockaddr_in`, `sockaddr_in6`) and as Rust has them.

use libc::{addrinfo, c_int, sockaddr, sockaddr_in, sockaddr_in6, socklen_t};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// A `sockaddr_in` or `sockaddr_in6`, or the start of a longer one.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
#[repr(C, align(8))]
pub(crate) struct RawAddr {
    bytes: [u8; RawAddr::ROOM],
    len: socklen_t,
}

impl RawAddr {
    /// Room for the longest address of interest.
    pub(crate) const ROOM: usize = size_of::<sockaddr_in6>();
    /// No address.
    pub(crate) const EMPTY: Self = Self { bytes: [0; Self::ROOM], len: 0 };

    /// `addr` for a socket of this family: an IPv4 address becomes a mapped one for an IPv6 socket.
    pub(crate) fn new(addr: SocketAddr, family: c_int) -> Self {
        let ip = match (addr.ip(), family) {
            (IpAddr::V4(ip), libc::AF_INET6) => IpAddr::V6(ip.to_ipv6_mapped()),
            (ip, _) => ip,
        };
        let mut raw = Self::default();
        let mut put = |at: usize, bytes: &[u8]| raw.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        put(2, &addr.port().to_be_bytes());
        let (family, len) = match ip {
            IpAddr::V4(ip) => {
                put(4, &ip.octets());
                (libc::AF_INET, size_of::<sockaddr_in>())
            }
            IpAddr::V6(ip) => {
                let scope = if let SocketAddr::V6(addr) = addr { addr.scope_id() } else { 0 };
                put(8, &ip.octets());
                put(24, &scope.to_ne_bytes());
                (libc::AF_INET6, size_of::<sockaddr_in6>())
            }
        };
        put(0, &(family as libc::sa_family_t).to_ne_bytes());
        raw.len = len as socklen_t;
        raw
    }

    /// What dissolves a connection (connect(2)).
    pub(crate) fn unspecified() -> Self {
        // AF_UNSPEC is 0.
        Self { bytes: [0; Self::ROOM], len: size_of::<sockaddr_in>() as socklen_t }
    }

    /// The program's address, if it is there and long enough for a family.
    ///
    /// # Safety
    /// `addr` is null or valid for `len` bytes.
    pub(crate) unsafe fn read(addr: *const sockaddr, len: socklen_t) -> Option<Self> {
        let shortest = size_of::<libc::sa_family_t>();
        // The kernel refuses other lengths.
        if addr.is_null() || !(shortest..=size_of::<libc::sockaddr_storage>()).contains(&(len as usize)) {
            return None;
        }
        let mut raw = Self { bytes: [0; Self::ROOM], len };
        let count = (len as usize).min(Self::ROOM);
        // SAFETY: valid for `len`, hence for `count` bytes, by the caller's promise.
        raw.bytes[..count].copy_from_slice(unsafe { std::slice::from_raw_parts(addr.cast(), count) });
        Some(raw)
    }

    pub(crate) fn family(&self) -> c_int {
        c_int::from(libc::sa_family_t::from_ne_bytes([self.bytes[0], self.bytes[1]]))
    }

    /// Whether it is as long as an address of IPv6, without the scope at least (RFC 2133).
    pub(crate) fn is_long_enough_for_v6(&self) -> bool {
        self.len as usize >= size_of::<sockaddr_in6>() - size_of::<u32>()
    }

    /// The address, if it is one of IPv4 or IPv6 and complete.
    pub(crate) fn socket_addr(&self) -> Option<SocketAddr> {
        let port = u16::from_be_bytes([self.bytes[2], self.bytes[3]]);
        match self.family() {
            libc::AF_INET if self.len as usize >= size_of::<sockaddr_in>() => {
                let octets: [u8; 4] = self.bytes[4..8].try_into().ok()?;
                Some(SocketAddr::new(Ipv4Addr::from(octets).into(), port))
            }
            // The kernel accepts addresses without the scope as well (RFC 2133).
            libc::AF_INET6 if self.is_long_enough_for_v6() => {
                let octets: [u8; 16] = self.bytes[8..24].try_into().ok()?;
                let scope = u32::from_ne_bytes(self.bytes[24..28].try_into().ok()?);
                let scope = if self.len as usize >= size_of::<sockaddr_in6>() { scope } else { 0 };
                Some(SocketAddrV6::new(Ipv6Addr::from(octets), port, 0, scope).into())
            }
            _ => None,
        }
    }

    /// Gives the address to the program, as getpeername(2) does: cut to the room there is, the length in full.
    ///
    /// # Safety
    /// `len` is valid, and `addr` valid for `*len` bytes.
    pub(crate) unsafe fn give(&self, addr: *mut sockaddr, len: *mut socklen_t) {
        // SAFETY: the caller's promise; no more than the room there is, and than there is to copy.
        unsafe {
            let count = (*len).min(self.len) as usize;
            std::ptr::copy_nonoverlapping(self.bytes.as_ptr(), addr.cast(), count.min(Self::ROOM));
            *len = self.len;
        }
    }

    pub(crate) fn parts(&self) -> (*const sockaddr, socklen_t) {
        (self.bytes.as_ptr().cast(), self.len)
    }

    pub(crate) fn room(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    pub(crate) fn set_len(&mut self, len: socklen_t) {
        self.len = len;
    }
}

/// The addresses in a list that getaddrinfo(3) made.
///
/// # Safety
/// `list` is null or such a list, and lives as long as the iterator.
pub(crate) unsafe fn addresses(list: *const addrinfo) -> impl Iterator<Item = IpAddr> {
    let mut next = list;
    std::iter::from_fn(move || {
        // SAFETY: null, or an item of the list.
        let item = unsafe { next.as_ref() }?;
        next = item.ai_next;
        // SAFETY: an item's address is valid for its length.
        Some(unsafe { RawAddr::read(item.ai_addr, item.ai_addrlen) }.and_then(|raw| raw.socket_addr()))
    })
    .flatten()
    .map(|address| address.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_round_trip() {
        for text in ["10.1.2.3:80", "[2001:db8::1]:443", "[fe80::1%7]:1"] {
            let addr: SocketAddr = text.parse().unwrap();
            let family = if addr.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
            let raw = RawAddr::new(addr, family);
            assert_eq!((raw.family(), raw.socket_addr()), (family, Some(addr)));
            let (at, len) = raw.parts();
            // SAFETY: the parts of a valid address.
            assert!(unsafe { RawAddr::read(at, len) } == Some(raw));
            let shortest = if addr.is_ipv4() { len } else { len - 4 };
            // SAFETY: a shorter length is valid as well.
            assert_eq!(unsafe { RawAddr::read(at, shortest - 1) }.unwrap().socket_addr(), None);
            // SAFETY: as above.
            let without_scope = unsafe { RawAddr::read(at, shortest) }.unwrap().socket_addr();
            assert_eq!(without_scope, Some(SocketAddr::new(addr.ip(), addr.port())));
        }
        let mapped = RawAddr::new("10.1.2.3:80".parse().unwrap(), libc::AF_INET6);
        assert_eq!(mapped.socket_addr(), Some("[::ffff:10.1.2.3]:80".parse().unwrap()));
    }

    #[test]
    fn short_buffer_gets_the_start_and_the_full_length() {
        let raw = RawAddr::new("10.1.2.3:80".parse().unwrap(), libc::AF_INET);
        let (mut room, mut len) = ([0xee_u8; 32], 6);
        // SAFETY: the room is longer than its length says.
        unsafe { raw.give(room.as_mut_ptr().cast(), &raw mut len) };
        assert_eq!((len, &room[2..8]), (16, &[0, 80, 10, 1, 0xee, 0xee][..]));
    }
}
