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
    /// The range of this one address.
    pub fn host(addr: IpAddr) -> Self {
        let addr = addr.to_canonical();
        Self { addr, prefix: if addr.is_ipv4() { 32 } else { 128 } }
    }

    /// Whether `addr` is in the range. An IPv4 address written as an IPv6 one counts as the IPv4 address.
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

    /// Length of the prefix: the longer, the more particular.
    pub fn prefix(self) -> u8 {
        self.prefix
    }

    /// Whether the range lies wholly within this host's or this link's own addresses ([`is_local`]).
    fn is_local(self) -> bool {
        // The blocks of local addresses are /8 or /10 and longer; a range that covers more cannot lie within one.
        self.prefix >= if self.addr.is_ipv4() { 4 } else { 8 } && is_local(self.addr)
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

/// Destinations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pattern {
    /// `*`: all.
    Any,
    /// A range of addresses.
    Net(Net),
    /// `host.example`: this name.
    Name(String),
    /// `.example.org`: this domain and all below it.
    Domain(String),
}

impl Pattern {
    /// How closely the pattern fits `host`, or `None`: names before domains, long domains and prefixes before short ones.
    pub fn fit(&self, host: HostRef<'_>) -> Option<usize> {
        match (self, host) {
            (Self::Any, _) => Some(0),
            (Self::Net(net), HostRef::Addr(addr)) if net.contains(addr) => Some(1 + usize::from(net.prefix)),
            (Self::Name(own), HostRef::Name(name)) if own == name => Some(usize::MAX),
            (Self::Domain(domain), HostRef::Name(name)) if in_domain(name, domain) => Some(1 + domain.len()),
            _ => None,
        }
    }

    /// Whether the pattern, which let the destination `name` pass, also lets it lead to `addr`. An administrator who names
    /// a host means it wherever it is; one who names a domain has not thought of every record that its owners may point
    /// at private networks; and nobody means the gateway's own loopback.
    pub(crate) fn name_may_lead_to(&self, addr: IpAddr) -> bool {
        match self {
            Self::Any | Self::Name(_) => !is_local(addr),
            Self::Domain(_) => !is_local(addr) && !is_private(addr),
            Self::Net(_) => false,
        }
    }

    /// Whether the pattern lets the address `addr` pass. Addresses of the gateway's own host and links are meant only by a
    /// range among them.
    pub(crate) fn admits(&self, addr: IpAddr) -> bool {
        match self {
            Self::Any => !is_local(addr),
            Self::Net(net) => net.contains(addr) && (!is_local(addr) || net.is_local()),
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

/// Names that a certificate may be for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Proved {
    /// `*`: any.
    Any,
    /// `ada.users.example`: this one.
    Name(String),
    /// `.users.example`: those of this domain.
    Domain(String),
}

impl Proved {
    /// Whether a certificate for `names` is meant; none that is for nobody.
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

/// Addresses that mean this host or this link: loopback, unspecified, link-local (which holds the metadata services of
/// cloud providers), multicast, broadcast.
pub(crate) fn is_local(addr: IpAddr) -> bool {
    match addr.to_canonical() {
        IpAddr::V4(addr) => {
            addr.octets()[0] == 0
                || addr.is_loopback()
                || addr.is_link_local()
                || addr.is_multicast()
                || addr == Ipv4Addr::BROADCAST
        }
        IpAddr::V6(addr) => {
            addr == Ipv6Addr::UNSPECIFIED || addr.is_loopback() || addr.is_unicast_link_local() || addr.is_multicast()
        }
    }
}

/// Addresses of private networks (RFC 1918, RFC 4193, RFC 6598).
fn is_private(addr: IpAddr) -> bool {
    match addr.to_canonical() {
        IpAddr::V4(addr) => addr.is_private() || (addr.octets()[0] == 100 && addr.octets()[1] & 0xc0 == 64),
        IpAddr::V6(addr) => addr.is_unique_local(),
    }
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
    fn certificates_are_told_by_their_names() {
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
    fn patterns_fit_what_they_say() {
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
    fn the_more_particular_pattern_fits_more_closely() {
        let fit = |text: &str, host| pattern(text).fit(host).unwrap();
        let host = HostRef::Addr(addr("10.3.0.1"));
        assert!(fit("10.3.0.0/24", host) > fit("10.3.0.0/16", host));
        assert!(fit("0.0.0.0/0", host) > fit("*", host));
        let name = HostRef::Name("a.example.org");
        assert!(fit("a.example.org", name) > fit(".example.org", name));
        assert!(fit(".example.org", name) > fit(".org", name));
    }

    #[test]
    fn names_cannot_smuggle_addresses() {
        for local in ["127.0.0.1", "::1", "169.254.169.254", "0.0.0.0", "fe80::1", "224.0.0.1", "::ffff:127.0.0.1"] {
            for text in ["*", ".example.org", "host.example"] {
                assert!(!pattern(text).name_may_lead_to(addr(local)), "{text} {local}");
            }
            for text in ["*", "0.0.0.0/0", "::/0", "0.0.0.0/1", "64.0.0.0/2"] {
                assert!(!pattern(text).admits(addr(local)), "{text} {local}");
            }
        }
        for private in ["10.0.0.1", "192.168.1.1", "100.64.0.1", "fd00::1"] {
            assert!(pattern("host.example").name_may_lead_to(addr(private)));
            assert!(!pattern(".example.org").name_may_lead_to(addr(private)));
            assert!(pattern("*").admits(addr(private)));
        }
        assert!(pattern(".example.org").name_may_lead_to(addr("192.0.2.1")));
        assert!(pattern("127.0.0.0/8").admits(addr("127.0.0.1")));
        assert!(pattern("::1").admits(addr("::1")));
        assert!(!pattern("10.0.0.0/8").name_may_lead_to(addr("10.0.0.1")));
    }

    #[test]
    fn says_what_was_expected() {
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
