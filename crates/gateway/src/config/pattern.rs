//! Patterns of sources and destinations: address ranges, names, domains (P33's grammar, without ports).

use phoebus_proto::endpoint::{HostRef, is_name};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::str::FromStr;

/// A range of addresses: `10.3.0.0/16`, `2001:db8::/32`, or one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Net {
    addr: IpAddr,
    prefix: u8,
}

impl Net {
    const fn v4(addr: [u8; 4], prefix: u8) -> Self {
        let [a, b, c, d] = addr;
        Self { addr: IpAddr::V4(Ipv4Addr::new(a, b, c, d)), prefix }
    }

    const fn v6(addr: Ipv6Addr, prefix: u8) -> Self {
        Self { addr: IpAddr::V6(addr), prefix }
    }

    /// The range with only this address.
    pub fn host(addr: IpAddr) -> Self {
        let addr = addr.to_canonical();
        Self { addr, prefix: if addr.is_ipv4() { 32 } else { 128 } }
    }

    /// Whether `addr` is in the range. An IPv4-mapped IPv6 address counts as the IPv4 address.
    pub fn contains(self, addr: IpAddr) -> bool {
        match (self.addr, addr.to_canonical()) {
            (IpAddr::V4(net), IpAddr::V4(addr)) => {
                (net.to_bits() ^ addr.to_bits()).leading_zeros() >= self.prefix.into()
            }
            (IpAddr::V6(net), IpAddr::V6(addr)) => {
                (net.to_bits() ^ addr.to_bits()).leading_zeros() >= self.prefix.into()
            }
            _ => false,
        }
    }

    /// Length of the prefix. A longer one is more specific.
    pub fn prefix(self) -> u8 {
        self.prefix
    }

    /// Whether the range names `addr`, an address of the gateway's own host or links. It does if it contains only that
    /// address, or lies within a block of such addresses ([`LOCAL`]).
    fn names(self, addr: IpAddr) -> bool {
        self == Self::host(addr) || self.contains(addr) && LOCAL.iter().any(|block| self.lies_in(*block))
    }

    /// Whether the range can name addresses of a gateway's own host or links. A rule for everything does not.
    pub fn names_own(self) -> bool {
        self == Self::host(self.addr) || LOCAL.iter().any(|block| self.lies_in(*block))
    }

    fn lies_in(self, block: Self) -> bool {
        self.prefix >= block.prefix && block.contains(self.addr)
    }
}

impl FromStr for Net {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fail = || format!("\"{text}\" is not an address or a range such as 10.3.0.0/16 or 2001:db8::/32");
        let (addr, prefix) = text.split_once('/').map_or((text, None), |(addr, prefix)| (addr, Some(prefix)));
        let addr = addr.trim_matches(['[', ']']).parse::<IpAddr>().map_err(|_| fail())?.to_canonical();
        let widest = Self::host(addr).prefix;
        let prefix = match prefix {
            Some(prefix) => prefix.parse().ok().filter(|prefix| *prefix <= widest).ok_or_else(fail)?,
            None => widest,
        };
        Ok(Self { addr, prefix })
    }
}

impl fmt::Display for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.addr, self.prefix)
    }
}

/// A pattern of destinations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pattern {
    /// `*`: all destinations.
    Any,
    /// A range of addresses.
    Net(Net),
    /// `host.example`: this name.
    Name(String),
    /// `.example.org`: this domain and its subdomains.
    Domain(String),
}

impl Pattern {
    /// How closely the pattern fits `host`, or `None` if it does not. Names fit more closely than domains; long domains
    /// and prefixes more closely than short ones.
    pub fn fit(&self, host: HostRef<'_>) -> Option<usize> {
        match (self, host) {
            (Self::Any, _) => Some(0),
            (Self::Net(net), HostRef::Addr(addr)) if net.contains(addr) => Some(1 + usize::from(net.prefix)),
            (Self::Name(own), HostRef::Name(name)) if own == name => Some(usize::MAX),
            (Self::Domain(domain), HostRef::Name(name)) if in_domain(name, domain) => Some(1 + domain.len()),
            _ => None,
        }
    }

    /// Whether the pattern, which has admitted the destination `name`, also lets it resolve to `addr`. A rule that
    /// names a host means that host wherever it is. A rule that names a domain does not mean every private address that
    /// the domain's owners may publish. No rule by name means the gateway's own host: `is_own` tells that `addr` is an
    /// address of it or of its links.
    pub(crate) fn name_may_lead_to(&self, addr: IpAddr, is_own: bool) -> bool {
        match self {
            Self::Any | Self::Name(_) => !is_own,
            Self::Domain(_) => !is_own && !is_private(addr),
            Self::Net(_) => false,
        }
    }

    /// Whether the pattern admits the address `addr`. Addresses of the gateway's own host and links (`is_own` tells
    /// that `addr` is one) are admitted only by a range that names them.
    pub(crate) fn admits(&self, addr: IpAddr, is_own: bool) -> bool {
        match self {
            Self::Any => !is_own,
            Self::Net(net) => net.contains(addr) && (!is_own || net.names(addr)),
            Self::Name(_) | Self::Domain(_) => false,
        }
    }
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "*" {
            return Ok(Self::Any);
        }
        if let Ok(net) = text.parse() {
            return Ok(Self::Net(net));
        }
        let name = text.trim_end_matches('.').to_ascii_lowercase();
        match name.strip_prefix('.') {
            Some(domain) if is_name(domain) => Ok(Self::Domain(domain.to_owned())),
            None if is_name(&name) => Ok(Self::Name(name)),
            _ => Err(format!(
                "\"{text}\" is not a destination such as 10.3.0.0/16, 2001:db8::/32, host.example, .example.org or *"
            )),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Net(net) => net.fmt(f),
            Self::Name(name) => f.write_str(name),
            Self::Domain(domain) => write!(f, ".{domain}"),
        }
    }
}

/// A pattern of names in certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Proved {
    /// `*`: any name.
    Any,
    /// `ada.users.example`: this name.
    Name(String),
    /// `.users.example`: names in this domain.
    Domain(String),
}

impl Proved {
    /// Whether the pattern fits a certificate for `names`. A certificate without names never fits.
    pub(crate) fn fits(&self, names: &[String]) -> bool {
        names.iter().any(|name| match self {
            Self::Any => true,
            Self::Name(own) => own == name,
            Self::Domain(domain) => in_domain(name, domain),
        })
    }
}

impl FromStr for Proved {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix('.') {
            _ if text == "*" => Ok(Self::Any),
            Some(domain) if is_name(domain) => Ok(Self::Domain(domain.to_owned())),
            None if is_name(text) || text.parse::<IpAddr>().is_ok() => Ok(Self::Name(text.to_owned())),
            _ => Err(format!(
                "\"certificate:{text}\" names no certificates; expected one such as certificate:ada.users.example, \
                 certificate:.users.example or certificate:*"
            )),
        }
    }
}

/// The ports of an entry such as `22` or `5000-5999`.
pub(super) fn ports(text: &str) -> Result<RangeInclusive<u16>, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (first.trim().parse::<u16>(), last.trim().parse::<u16>()) {
        (Ok(first), Ok(last)) if 0 < first && first <= last => Ok(first..=last),
        _ => Err(format!("\"{text}\" is not a port or a range such as 5000-5999")),
    }
}

fn in_domain(name: &str, domain: &str) -> bool {
    name.strip_suffix(domain).is_some_and(|front| front.is_empty() || front.ends_with('.'))
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
fn is_private(addr: IpAddr) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> Pattern {
        text.parse().unwrap()
    }

    fn addr(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn certificate_patterns_match_names() {
        let fits = |pattern: &str, names: &[&str]| {
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            pattern.parse::<Proved>().unwrap().fits(&names)
        };
        assert!(fits("*", &["ada"]) && !fits("*", &[]));
        assert!(fits("ada.users.example", &["other", "ada.users.example"]) && !fits("ada.users.example", &["ada"]));
        assert!(fits(".users.example", &["ada.users.example"]) && !fits(".users.example", &["ada.superusers.example"]));
        assert!(fits("192.0.2.7", &["192.0.2.7"]));
        for text in ["", ".", "a b", "*.users.example", "10.0.0.0/8"] {
            assert!(text.parse::<Proved>().is_err(), "{text}");
        }
    }

    #[test]
    fn pattern_fits_hosts_it_names() {
        let fit = |text: &str, host: HostRef| pattern(text).fit(host).is_some();
        assert!(fit("10.3.0.0/16", HostRef::Addr(addr("10.3.255.1"))));
        assert!(!fit("10.3.0.0/16", HostRef::Addr(addr("10.4.0.1"))));
        assert!(fit("10.3.0.0/16", HostRef::Addr(addr("::ffff:10.3.0.1"))));
        assert!(fit("0.0.0.0/0", HostRef::Addr(addr("1.2.3.4"))));
        assert!(!fit("0.0.0.0/0", HostRef::Addr(addr("2001:db8::1"))));
        assert!(fit("2001:db8::/32", HostRef::Addr(addr("2001:db8:1::1"))));
        assert!(fit(".example.org", HostRef::Name("example.org")));
        assert!(fit(".example.org", HostRef::Name("a.b.example.org")));
        assert!(!fit(".example.org", HostRef::Name("badexample.org")));
        assert!(fit("Host.Example.", HostRef::Name("host.example")));
        assert!(!fit("host.example", HostRef::Name("a.host.example")));
    }

    #[test]
    fn more_specific_pattern_fits_more_closely() {
        let fit = |text: &str, host| pattern(text).fit(host).unwrap();
        let host = HostRef::Addr(addr("10.3.0.1"));
        assert!(fit("10.3.0.0/24", host) > fit("10.3.0.0/16", host));
        assert!(fit("0.0.0.0/0", host) > fit("*", host));
        let name = HostRef::Name("a.example.org");
        assert!(fit("a.example.org", name) > fit(".example.org", name));
        assert!(fit(".example.org", name) > fit(".org", name));
    }

    #[test]
    fn name_cannot_lead_to_refused_address() {
        let may_lead = |text: &str, addr| pattern(text).name_may_lead_to(addr, is_local(addr));
        let admits = |text: &str, addr| pattern(text).admits(addr, is_local(addr));
        let within = ["64:ff9b::7f00:1", "64:ff9b:1::a9fe:a9fe", "2002:7f00:1::", "::127.0.0.1", "::ffff:0:127.0.0.1"];
        // By prefixes of 48, 56, 64 and 96 bits.
        let forms =
            ["64:ff9b:1:7f00:0:100::", "64:ff9b:1:ab7f:0:1::", "64:ff9b:1:abcd:7f:0:100:0", "64:ff9b:1:a:b:c:7f00:1"];
        let within = within.into_iter().chain(forms);
        let plain = ["127.0.0.1", "::1", "169.254.169.254", "0.0.0.0", "::", "fe80::1", "ff02::1", "224.0.0.1"];
        for local in plain.into_iter().chain(["255.255.255.255", "::ffff:127.0.0.1"]).chain(within) {
            for text in ["*", ".example.org", "host.example"] {
                assert!(!may_lead(text, addr(local)), "{text} {local}");
            }
            for text in ["*", "0.0.0.0/0", "::/0", "0.0.0.0/1", "64.0.0.0/2", "64:ff9b::/96", "2002::/16"] {
                assert!(!admits(text, addr(local)), "{text} {local}");
            }
        }
        for private in
            ["10.0.0.1", "192.168.1.1", "100.64.0.1", "fd00::1", "64:ff9b::10.0.0.1", "64:ff9b:1:c0a8:1:100::"]
        {
            assert!(may_lead("host.example", addr(private)));
            assert!(!may_lead(".example.org", addr(private)));
            assert!(admits("*", addr(private)));
        }
        for public in ["192.0.2.1", "64:ff9b::c000:201", "64:ff9b:1::192.0.2.1", "64:ff9b:1:c000:2:100::"] {
            assert!(may_lead(".example.org", addr(public)), "{public}");
        }
        assert!(admits("127.0.0.0/8", addr("127.0.0.1")));
        assert!(admits("::1", addr("::1")) && admits("fe80::/10", addr("fe80::1")));
        assert!(admits("64:ff9b::7f00:1", addr("64:ff9b::7f00:1")));
        assert!(!may_lead("10.0.0.0/8", addr("10.0.0.1")));
    }

    #[test]
    fn range_wider_than_local_block_does_not_name_local_addresses() {
        for (range, local) in [
            ("127.0.0.0/4", "127.0.0.1"),
            ("127.0.0.0/7", "127.0.0.1"),
            ("0.0.0.0/4", "0.0.0.0"),
            ("169.254.0.0/8", "169.254.169.254"),
            ("255.255.255.255/4", "255.255.255.255"),
            ("::/8", "::1"),
            ("fe80::/9", "fe80::1"),
        ] {
            assert!(!pattern(range).admits(addr(local), true), "{range} {local}");
        }
        for (range, local) in [("127.1.0.0/16", "127.1.2.3"), ("169.254.0.0/16", "169.254.1.1"), ("::1", "::1")] {
            assert!(pattern(range).admits(addr(local), true), "{range} {local}");
        }
    }

    #[test]
    fn interface_address_must_be_named_by_itself() {
        let own = addr("192.0.2.7");
        for text in ["*", "0.0.0.0/0", "192.0.2.0/24", "192.0.2.6/31", "192.0.2.8"] {
            assert!(!pattern(text).admits(own, true), "{text}");
        }
        assert!(pattern("192.0.2.7").admits(own, true) && pattern("192.0.2.7/32").admits(own, true));
        assert!(pattern("::ffff:192.0.2.7").admits(own, true) && pattern("192.0.2.0/24").admits(own, false));
        assert!(["*", "host.example", ".example"].iter().all(|text| !pattern(text).name_may_lead_to(own, true)));
    }

    #[test]
    fn error_says_what_was_expected() {
        for text in ["", "10.3.0.0/33", "a b", ".", "10.3", "*.example.org", "::/129"] {
            assert!(
                text.parse::<Pattern>().unwrap_err().starts_with(&format!("\"{text}\" is not a destination")),
                "{text}"
            );
        }
        assert_eq!(ports("5000-5999"), Ok(5000..=5999));
        assert_eq!(ports("22"), Ok(22..=22));
        for text in ["0", "9-5", "x", "", "1-2-3", "70000"] {
            assert!(ports(text).is_err(), "{text}");
        }
    }
}
