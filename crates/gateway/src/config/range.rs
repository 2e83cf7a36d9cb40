//! Ranges of addresses, and the addresses that mean the gateway's own host or links.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A range of addresses: `10.3.0.0/16`, `2001:db8::/32`, or one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Net(IpNet);

impl Net {
    const fn v4(addr: [u8; 4], prefix: u8) -> Self {
        let [a, b, c, d] = addr;
        Self(IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix)))
    }

    const fn v6(addr: Ipv6Addr, prefix: u8) -> Self {
        Self(IpNet::V6(Ipv6Net::new_assert(addr, prefix)))
    }

    /// The range with only this address.
    pub fn host(addr: IpAddr) -> Self {
        Self(addr.to_canonical().into())
    }

    /// Whether `addr` is in the range. An IPv4-mapped IPv6 address counts as the IPv4 address.
    pub fn contains(self, addr: IpAddr) -> bool {
        self.0.contains(&addr.to_canonical())
    }

    /// Whether all addresses of `other` are in the range.
    pub(super) fn covers(&self, other: &Self) -> bool {
        self.0.contains(&other.0)
    }

    /// The range with a prefix of this length that holds `addr`; `None` if addresses of its kind have no such prefix.
    pub(super) fn around(addr: IpAddr, prefix: u8) -> Option<Self> {
        IpNet::new(addr.to_canonical(), prefix).ok().map(|net| Self(net.trunc()))
    }

    /// The same range, written with its first address.
    pub(super) fn truncated(self) -> Self {
        Self(self.0.trunc())
    }

    /// Length of the prefix. A longer one is more specific.
    pub fn prefix(self) -> u8 {
        self.0.prefix_len()
    }

    /// Whether the range names `addr`, an address of the gateway's own host or links. It does if it contains only that
    /// address, or lies within a block of such addresses ([`LOCAL`]).
    pub(super) fn names(self, addr: IpAddr) -> bool {
        self == Self::host(addr) || self.contains(addr) && self.is_within_local()
    }

    /// Whether the range can name addresses of a gateway's own host or links. A rule for everything does not.
    pub fn names_own(self) -> bool {
        self == Self::host(self.0.addr()) || self.is_within_local()
    }

    fn is_within_local(self) -> bool {
        LOCAL.iter().any(|block| block.0.contains(&self.0))
    }
}

impl FromStr for Net {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fail = || format!("\"{text}\" is not an address or a range such as 10.3.0.0/16 or 2001:db8::/32");
        let (addr, prefix) = text.split_once('/').map_or((text, None), |(addr, prefix)| (addr, Some(prefix)));
        let addr = addr.trim_matches(['[', ']']).parse::<IpAddr>().map_err(|_| fail())?.to_canonical();
        let Some(prefix) = prefix else { return Ok(Self::host(addr)) };
        let net = prefix.parse().ok().and_then(|prefix| IpNet::new(addr, prefix).ok());
        net.map(Self).ok_or_else(fail)
    }
}

impl fmt::Display for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Blocks of addresses that mean this host or this link on any host: unspecified (which connects to loopback),
/// loopback, link-local (which holds the metadata services of cloud providers), multicast, broadcast (RFC 6890).
const LOCAL: [Net; 9] = [
    Net::v4([0, 0, 0, 0], 8),
    Net::v4([127, 0, 0, 0], 8),
    Net::v4([169, 254, 0, 0], 16),
    Net::v4([224, 0, 0, 0], 4),
    Net::v4([255, 255, 255, 255], 32),
    Net::v6(Ipv6Addr::UNSPECIFIED, 128),
    Net::v6(Ipv6Addr::LOCALHOST, 128),
    Net::v6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10),
    Net::v6(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8),
];

/// Whether `addr`, or the IPv4 address embedded in it, means this host or this link. This does not cover the addresses
/// of the host's interfaces, which the kernel knows ([`phoebus_net::route::is_own`]).
pub(crate) fn is_local(addr: IpAddr) -> bool {
    addresses_reached(addr).any(|addr| LOCAL.iter().any(|block| block.contains(addr)))
}

/// Addresses of private networks (RFC 1918, RFC 4193, RFC 6598).
pub(crate) fn is_private(addr: IpAddr) -> bool {
    addresses_reached(addr).any(|addr| match addr {
        IpAddr::V4(addr) => addr.is_private() || (addr.octets()[0] == 100 && addr.octets()[1] & 0xc0 == 64),
        IpAddr::V6(addr) => addr.is_unique_local(),
    })
}

/// `addr`, and the IPv4 address to which a translator or tunnel on the path would send packets for it: NAT64's
/// well-known and local prefixes (RFC 6052, RFC 8215), 6to4 (RFC 3056), IPv4-compatible (RFC 4291) and IPv4-translated
/// (RFC 2765).
///
/// Each network divides NAT64's local block, 64:ff9b:1::/48, as it likes. So an address there yields every IPv4 address
/// that any prefix length in the block could mean.
pub(crate) fn addresses_reached(addr: IpAddr) -> impl Iterator<Item = IpAddr> {
    let addr = addr.to_canonical();
    let mut within = [None; 4];
    if let IpAddr::V6(addr) = addr {
        let o = addr.octets();
        within = match addr.segments() {
            [0x64, 0xff9b, 1, ..] => {
                // Octet 8 is not part of an address (RFC 6052, section 2.2).
                let forms = [
                    [o[6], o[7], o[9], o[10]],
                    [o[7], o[9], o[10], o[11]],
                    [o[9], o[10], o[11], o[12]],
                    [o[12], o[13], o[14], o[15]],
                ];
                // Zeros are the padding of another form: a translator cannot send to 0.0.0.0/8.
                forms.map(|octets| (octets[0] != 0).then_some(octets))
            }
            [0x64, 0xff9b, 0, 0, 0, 0, _, _] | [0, 0, 0, 0, 0, 0, _, _] | [0, 0, 0, 0, 0xffff, 0, _, _] => {
                [Some([o[12], o[13], o[14], o[15]]), None, None, None]
            }
            [0x2002, ..] => [Some([o[2], o[3], o[4], o[5]]), None, None, None],
            _ => within,
        };
    }
    std::iter::once(addr).chain(within.into_iter().flatten().map(IpAddr::from))
}
