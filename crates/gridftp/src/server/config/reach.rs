//! Third parties that clients may name for data connections (RFC 2577, section 3: a server that connects anywhere
//! attacks other hosts on behalf of its clients).

use ipnet::IpNet;
use serde::Deserialize;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// The addresses of allowed third parties.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Reach(Vec<Entry>);

/// A set of addresses.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
enum Entry {
    /// Addresses that are reachable from the whole Internet ([`is_public`]).
    Public,
    /// A range, or one address.
    Range(IpNet),
}

impl Default for Reach {
    /// Public addresses: clients reach no service that trusts this host or its network.
    fn default() -> Self {
        Self(vec![Entry::Public])
    }
}

impl Reach {
    /// Whether data connections may be made to `address`.
    pub(crate) fn holds(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.names(address) || (self.0.contains(&Entry::Public) && is_public(address))
    }

    /// The first address in `to` that may belong to a service of this host (`is_own`). Addresses that the administrator
    /// has named, that the client has, or where the server itself listens for data do not count.
    pub(crate) fn service_here(
        &self,
        to: &[SocketAddr],
        client: IpAddr,
        is_data_port: impl Fn(u16) -> bool,
        is_own: impl Fn(IpAddr) -> bool,
    ) -> Option<SocketAddr> {
        let client = client.to_canonical();
        let is_service = |addr: &&SocketAddr| {
            let ip = addr.ip().to_canonical();
            ip != client && !self.names(ip) && !is_data_port(addr.port()) && is_own(ip)
        };
        to.iter().find(is_service).copied()
    }

    /// Whether the administrator has named this address or its range.
    fn names(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|entry| matches!(entry, Entry::Range(range) if range.contains(&address)))
    }
}

impl FromStr for Entry {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "public" {
            return Ok(Self::Public);
        }
        let one = text.parse::<IpAddr>().map(|address| IpNet::from(address.to_canonical()));
        let range = one.or_else(|_| text.parse());
        range.map(Self::Range).map_err(|_| {
            format!("\"{text}\": public, an address or a range of addresses such as 10.3.0.0/16 was expected")
        })
    }
}

impl TryFrom<String> for Entry {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// Whether the whole Internet can reach this address, by IANA's registries of special-purpose addresses (RFC 6890). An
/// IPv6 address that embeds an IPv4 address (mapped, NAT64 of RFC 6052, 6to4 of RFC 3056) counts as that.
fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let special = match address.octets() {
        // "This network", and reserved addresses including broadcast.
        [0 | 240..=255, ..] => true,
        // Shared address space of providers (RFC 6598).
        [100, 64..=127, ..] => true,
        // IETF protocol assignments; 6to4 relays.
        [192, 0, 0, _] | [192, 88, 99, _] => true,
        // Benchmarks (RFC 2544).
        [198, 18 | 19, ..] => true,
        _ => address.is_documentation(),
    };
    !(special || address.is_loopback() || address.is_private() || address.is_link_local() || address.is_multicast())
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let embedded = |high: u16, low: u16| is_public_v4(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)));
    match address.segments() {
        // NAT64, and 6to4.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => embedded(high, low),
        [0x2002, high, low, ..] => embedded(high, low),
        // IETF protocol assignments, among them Teredo; documentation.
        [0x2001, 0..=0x1ff | 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => false,
        // Global unicast (2000::/3).
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn unroutable_addresses_are_not_public() {
        for text in [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "127.9.9.9",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.1.1",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "239.1.1.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::7f00:1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::ffff:0.0.0.0",
            "64:ff9b::7f00:1",
            "64:ff9b::10.0.0.1",
            "64:ff9b:1::808:808",
            "2002:7f00:1::1",
            "2002:c0a8:101::1",
            "2001:0:4136:e378:8000:63bf:3fff:fdd2",
            "2001:db8::1",
            "3fff:1::1",
            "fc00::1",
            "fd09::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "100::1",
            "5f00::1",
            "8000::1",
        ] {
            assert!(!Reach::default().holds(address(text)), "{text}");
        }
        for text in [
            "8.8.8.8",
            "100.63.0.1",
            "100.128.0.1",
            "172.32.0.1",
            "192.0.1.1",
            "198.17.0.1",
            "198.20.0.1",
            "223.255.255.255",
            "2001:200::1",
            "2001:67c::1",
            "2600::1",
            "3ffe::1",
            "::ffff:8.8.8.8",
            "64:ff9b::8.8.8.8",
            "2002:808:808::1",
        ] {
            assert!(Reach::default().holds(address(text)), "{text}");
        }
    }

    #[test]
    fn services_of_this_host_need_an_explicit_range() {
        let here = address("8.8.8.8");
        let service = |reach: &Reach, to: &str, client: &str| {
            reach
                .service_here(&[to.parse().unwrap()], address(client), |port| port == 50_000, |ip| ip == here)
                .is_some()
        };
        let public = Reach::default();
        assert!(service(&public, "8.8.8.8:6379", "9.9.9.9") && service(&public, "[::ffff:8.8.8.8]:6379", "9.9.9.9"));
        // Another host, a client here, and another session's data connection.
        assert!(!service(&public, "8.8.4.4:6379", "9.9.9.9") && !service(&public, "8.8.8.8:6379", "::ffff:8.8.8.8"));
        assert!(!service(&public, "8.8.8.8:50000", "9.9.9.9"));
        let named = Reach(vec!["8.8.8.0/24".parse().unwrap()]);
        assert!(!service(&named, "8.8.8.8:6379", "9.9.9.9"));
    }

    #[test]
    fn configured_ranges_are_honoured() {
        #[derive(Deserialize)]
        struct Only {
            to: Reach,
        }
        let read = |text: &str| toml::from_str::<Only>(text).map(|only| only.to).map_err(|error| error.to_string());
        let reach = read("to = [\"public\", \"10.3.0.0/16\", \"fd09::/16\", \"::ffff:192.168.0.7\"]").unwrap();
        for (text, held, named) in [
            ("8.8.8.8", true, false),
            ("10.3.9.9", true, true),
            ("::ffff:10.3.9.9", true, true),
            ("192.168.0.7", true, true),
            ("10.4.0.1", false, false),
            ("fd09::1", true, true),
            ("127.0.0.1", false, false),
        ] {
            assert_eq!((reach.holds(address(text)), reach.names(address(text))), (held, named), "{text}");
        }
        assert!(!read("to = []").unwrap().holds(address("8.8.8.8")));
        for text in ["dtn.example.org", "10.3.0.0/33", "10.3", ""] {
            let error = read(&format!("to = [\"{text}\"]")).err().unwrap();
            assert!(error.contains("a range of addresses such as 10.3.0.0/16"), "{error}");
        }
    }
}
