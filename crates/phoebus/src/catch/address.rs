//! Addresses of sockets as bytes, as programs pass them to connect(2): `struct sockaddr_in` and `sockaddr_in6`.

use rustix::net::AddressFamily;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// The family that the bytes name.
pub(super) fn family(address: &[u8]) -> Option<AddressFamily> {
    address.first_chunk().map(|family| AddressFamily::from_raw(u16::from_ne_bytes(*family)))
}

/// The address for a socket of this family. `None` if it is another one, or too short: then connect fails.
pub(super) fn parse(address: &[u8], domain: AddressFamily) -> Option<SocketAddr> {
    if family(address)? != domain {
        return None;
    }
    let port = u16::from_be_bytes(*address.get(2..)?.first_chunk()?);
    let rest = address.get(4..)?;
    if domain == AddressFamily::INET {
        // The last eight of 16 bytes have no meaning, but the kernel wants them.
        let ip: [u8; 4] = *rest.first_chunk::<12>()?.first_chunk()?;
        return Some(SocketAddrV4::new(ip.into(), port).into());
    }
    let flow = u32::from_be_bytes(*rest.first_chunk()?);
    let ip: [u8; 16] = *rest.get(4..)?.first_chunk()?;
    // The kernel takes addresses without the scope (RFC 2133).
    let scope = rest.get(20..).and_then(<[u8]>::first_chunk).map_or(0, |scope| u32::from_ne_bytes(*scope));
    Some(SocketAddrV6::new(Ipv6Addr::from(ip), port, flow, scope).into())
}

/// The bytes of an address, for a socket of this family. IPv6 sockets reach IPv4 by mapped addresses.
pub(super) fn bytes(address: SocketAddr, domain: AddressFamily) -> Vec<u8> {
    let begin = |port: u16| [&domain.as_raw().to_ne_bytes()[..], &port.to_be_bytes()].concat();
    match address {
        SocketAddr::V4(address) if domain == AddressFamily::INET => {
            [&begin(address.port())[..], &address.ip().octets(), &[0; 8]].concat()
        }
        SocketAddr::V4(address) => {
            let ip = address.ip().to_ipv6_mapped().octets();
            [&begin(address.port())[..], &[0; 4], &ip, &[0; 4]].concat()
        }
        SocketAddr::V6(address) => {
            let (flow, scope) = (address.flowinfo().to_be_bytes(), address.scope_id().to_ne_bytes());
            [&begin(address.port())[..], &flow, &address.ip().octets(), &scope].concat()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_bytes() {
        for (text, domain) in [
            ("192.0.2.7:80", AddressFamily::INET),
            ("[2001:db8::7]:65535", AddressFamily::INET6),
            ("[fe80::1%3]:1", AddressFamily::INET6),
        ] {
            let address: SocketAddr = text.parse().unwrap();
            let bytes = bytes(address, domain);
            assert_eq!(parse(&bytes, domain), Some(address), "{text}");
            let shortest = if domain == AddressFamily::INET { 16 } else { 24 };
            for len in 0..shortest {
                assert_eq!(parse(&bytes[..len], domain), None, "{text}, {len} bytes");
            }
            let other = if domain == AddressFamily::INET { AddressFamily::INET6 } else { AddressFamily::INET };
            assert_eq!(parse(&bytes, other), None, "{text}");
        }
        let mapped = bytes("192.0.2.7:80".parse().unwrap(), AddressFamily::INET6);
        assert_eq!(parse(&mapped, AddressFamily::INET6), Some("[::ffff:192.0.2.7]:80".parse().unwrap()));
        assert_eq!(family(&[0]), None);
    }
}
