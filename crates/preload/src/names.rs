//! Names that the program has looked up, so that `PHOEBUS_ONLY` and `PHOEBUS_EXCEPT` can match by name (P33): hooks of
//! getaddrinfo(3), gethostbyname(3) and the like.
//!
//! The ring has a fixed size, and forgets the oldest name. Programs that resolve names without the C library are
//! matched by address only.

use crate::addr::addresses;
use crate::config::{self, Config};
use crate::gateways;
use crate::process::{Locked, no_unwind};
use crate::real::{self, AsyncLookup};
use libc::{addrinfo, c_char, c_int, hostent, size_t};
use phoebus_proto::endpoint::NAME_MAX;
use std::ffi::CStr;
use std::net::{IpAddr, SocketAddr};

/// Number of remembered pairs of a name and an address.
const PAIRS: usize = 1024;

/// All zero: empty.
#[derive(Clone, Copy)]
struct Pair {
    /// An IPv4 address as a mapped one.
    ip: [u8; 16],
    len: u8,
    name: [u8; NAME_MAX],
}

struct Ring {
    pairs: [Pair; PAIRS],
    next: usize,
}

static RING: Locked<Ring> =
    Locked::new(Ring { pairs: [Pair { ip: [0; 16], len: 0, name: [0; NAME_MAX] }; PAIRS], next: 0 });

/// Whether the settings send a connection to `address` through gateways, judged by the address and by its names.
pub(crate) fn selects(config: &Config, address: SocketAddr) -> bool {
    let ip = octets(address.ip());
    RING.with(|ring| {
        let names = ring.pairs.iter().filter(|pair| pair.len > 0 && pair.ip == ip).map(Pair::name);
        config.selects(address, names)
    })
}

fn remember(name: &str, ip: IpAddr) {
    let ip = octets(ip);
    RING.with(|ring| {
        if ring.pairs.iter().any(|pair| pair.ip == ip && pair.name() == name) {
            return;
        }
        let Some(pair) = ring.pairs.get_mut(ring.next) else { return };
        // Host names are shorter than 256 bytes; `may_be_name` has checked that.
        (pair.ip, pair.len) = (ip, name.len() as u8);
        pair.name[..name.len()].copy_from_slice(name.as_bytes());
        ring.next = (ring.next + 1) % PAIRS;
    });
}

impl Pair {
    fn name(&self) -> &str {
        // Only whole names are stored.
        std::str::from_utf8(&self.name[..usize::from(self.len)]).unwrap_or("")
    }
}

fn octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// The program's text, if it is a host name.
///
/// # Safety
/// `name` is null or ends with a zero.
unsafe fn host_name<'a>(name: *const c_char) -> Option<&'a str> {
    if name.is_null() || config::get().is_none() || gateways::is_looking() {
        return None;
    }
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) }.to_str().ok()?;
    Some(name.strip_suffix('.').unwrap_or(name)).filter(|name| may_be_name(name))
}

/// Whether a resolver may know `text` as a name. It may know more than the standards permit: labels that begin or end
/// with a hyphen, for example.
fn may_be_name(text: &str) -> bool {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    (1..=NAME_MAX).contains(&text.len()) && text.bytes().all(known) && text.parse::<IpAddr>().is_err()
}

/// Remembers the result of a lookup.
///
/// # Safety
/// `name` as for [`host_name`], `list` as for [`addresses`].
unsafe fn looked_up(name: *const c_char, list: *const addrinfo) {
    no_unwind(|| {
        // SAFETY: the caller's promise.
        if let Some(name) = unsafe { host_name(name) } {
            // SAFETY: likewise.
            unsafe { addresses(list) }.for_each(|ip| remember(name, ip));
        }
    });
    gateways::look_ahead();
}

/// The same for the gethostbyname family.
///
/// # Safety
/// `name` as for [`host_name`]; `entry` is null or what a function of the family returned.
unsafe fn looked_up_entry(name: *const c_char, entry: *const hostent) {
    no_unwind(|| {
        // SAFETY: the caller's promise.
        let (Some(name), Some(entry)) = (unsafe { host_name(name) }, unsafe { entry.as_ref() }) else { return };
        let mut next = entry.h_addr_list;
        // SAFETY: the list ends with a null, and each address in it has the length that the entry says.
        while let Some(bytes) = unsafe { next.as_ref() }.filter(|at| !at.is_null()) {
            // SAFETY: as above.
            let ip = unsafe {
                match entry.h_addrtype {
                    libc::AF_INET => IpAddr::from(bytes.cast::<[u8; 4]>().read()),
                    libc::AF_INET6 => IpAddr::from(bytes.cast::<[u8; 16]>().read()),
                    _ => return,
                }
            };
            remember(name, ip);
            // SAFETY: not at the list's end yet.
            next = unsafe { next.add(1) };
        }
    });
    gateways::look_ahead();
}

hook! {
    /// getaddrinfo(3).
    fn getaddrinfo(
        node: *const c_char, service: *const c_char, hints: *const addrinfo, found: *mut *mut addrinfo
    ) -> c_int {
        let result = real::getaddrinfo(node, service, hints, found);
        if result == 0 && config::get().is_some() {
            looked_up(node, *found);
        }
        result
    }

    /// gai_error(3): how a lookup by getaddrinfo_a(3) has ended.
    fn gai_error(request: *mut AsyncLookup) -> c_int {
        let result = real::gai_error(request);
        if result == 0 && config::get().is_some() {
            looked_up((*request).name, (*request).found);
        }
        result
    }

    /// gethostbyname(3).
    fn gethostbyname(name: *const c_char) -> *mut hostent {
        let entry = real::gethostbyname(name);
        if config::get().is_some() {
            looked_up_entry(name, entry);
        }
        entry
    }

    /// gethostbyname2(3).
    fn gethostbyname2(name: *const c_char, family: c_int) -> *mut hostent {
        let entry = real::gethostbyname2(name, family);
        if config::get().is_some() {
            looked_up_entry(name, entry);
        }
        entry
    }

    /// gethostbyname_r(3).
    fn gethostbyname_r(
        name: *const c_char, entry: *mut hostent, buffer: *mut c_char, len: size_t, found: *mut *mut hostent,
        error: *mut c_int
    ) -> c_int {
        let result = real::gethostbyname_r(name, entry, buffer, len, found, error);
        if result == 0 && config::get().is_some() {
            looked_up_entry(name, *found);
        }
        result
    }

    /// gethostbyname2_r(3).
    fn gethostbyname2_r(
        name: *const c_char, family: c_int, entry: *mut hostent, buffer: *mut c_char, len: size_t,
        found: *mut *mut hostent, error: *mut c_int
    ) -> c_int {
        let result = real::gethostbyname2_r(name, family, entry, buffer, len, found, error);
        if result == 0 && config::get().is_some() {
            looked_up_entry(name, *found);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phoebus_config::settings::Settings;
    use phoebus_proto::endpoint::Endpoint;

    #[test]
    fn destination_is_selected_by_an_earlier_lookup() {
        let settings = Settings {
            path: Endpoint::parse_path("pg1").unwrap(),
            only: Some("a.example:443".parse().unwrap()),
            ..Settings::default()
        };
        let config = Config::new(settings);
        let address = "192.0.2.7:443".parse().unwrap();
        assert!(!selects(&config, address));
        remember("b.example", address.ip());
        remember("A.example", "192.0.2.8".parse().unwrap());
        assert!(!selects(&config, address));
        remember("A.example", address.ip());
        assert!(selects(&config, address));
        for i in 0..PAIRS {
            remember(&format!("host{i}"), "192.0.2.9".parse().unwrap());
        }
        assert!(!selects(&config, address), "the oldest pair makes room");
    }
}
