//! Which destinations use gateways: the grammar of `PHOEBUS_ONLY` and `PHOEBUS_EXCEPT` (P33).
//!
//! A selection is a comma-separated list of entries, `HOST` or `HOST:PORTS`:
//!
//! ```text
//! HOST    10.3.0.7  10.3.0.0/16  [2001:db8::1]  [2001:db8::]/32  2001:db8::/32  host.example  .example.org  *
//! PORTS   443  5000-5999  *
//! ```
//!
//! `.example.org` is that domain and everything below it; names are those that the program itself resolved. Matching
//! allocates nothing, so that it can run inside another program's `connect`.

use phoebus_proto::endpoint::is_name;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::str::FromStr;

/// A set of destinations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection(Vec<Rule>);

/// An unreadable entry of a selection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{entry}\" is not {expected}")]
pub struct SelectError {
    entry: String,
    expected: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    host: Hosts,
    ports: RangeInclusive<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Hosts {
    Any,
    Net(IpAddr, u8),
    /// In lower case, without a trailing dot.
    Name(String),
    /// In lower case, without its leading dot.
    Domain(String),
}

const ALL_PORTS: RangeInclusive<u16> = 0..=u16::MAX;
const EXPECTED_ENTRY: &str =
    "a destination such as 10.3.0.0/16:5000-5999, [2001:db8::]/32, host.example:443, .example.org or *:443";
const EXPECTED_PORTS: &str = "a destination whose ports are a number, a range such as 5000-5999, or *";
const EXPECTED_PREFIX: &str = "an address range: the prefix length is at most 32 for IPv4 and 128 for IPv6";

impl Selection {
    /// Whether `addr` is selected, by address or by one of the names under which the program looked it up.
    pub fn matches<'a>(&self, addr: SocketAddr, names: impl Iterator<Item = &'a str> + Clone) -> bool {
        let ip = addr.ip().to_canonical();
        self.0.iter().any(|rule| rule.ports.contains(&addr.port()) && rule.host.matches(ip, names.clone()))
    }

    /// Whether a name is selected that was not looked up: address ranges do not match it.
    pub fn matches_name(&self, name: &str, port: u16) -> bool {
        self.0.iter().any(|rule| {
            let fits = match &rule.host {
                Hosts::Net(..) => false,
                host => host.matches(IpAddr::V4(Ipv4Addr::UNSPECIFIED), std::iter::once(name)),
            };
            fits && rule.ports.contains(&port)
        })
    }

    /// Whether an entry selects `addr` by its address or range, not by name or `*`.
    pub fn matches_address(&self, addr: SocketAddr) -> bool {
        let ip = addr.ip().to_canonical();
        let named = |rule: &&Rule| matches!(rule.host, Hosts::Net(..)) && rule.ports.contains(&addr.port());
        self.0.iter().filter(named).any(|rule| rule.host.matches(ip, std::iter::empty()))
    }
}

impl Selection {
    /// The host names that it has, without domains.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|rule| match &rule.host {
            Hosts::Name(name) => Some(&name[..]),
            _ => None,
        })
    }

    /// Whether it has a domain such as `.example.org`, which only names match.
    pub fn has_domains(&self) -> bool {
        self.0.iter().any(|rule| matches!(rule.host, Hosts::Domain(_)))
    }
}

impl Hosts {
    fn matches<'a>(&self, ip: IpAddr, mut names: impl Iterator<Item = &'a str>) -> bool {
        match self {
            Self::Any => true,
            Self::Net(net, prefix) => within(ip, *net, *prefix),
            Self::Name(name) => names.any(|n| rootless(n).eq_ignore_ascii_case(name)),
            Self::Domain(domain) => names.any(|n| in_domain(rootless(n), domain)),
        }
    }
}

impl FromStr for Selection {
    type Err = SelectError;

    fn from_str(text: &str) -> Result<Self, SelectError> {
        text.split(',').map(|entry| entry.trim().parse()).collect::<Result<_, _>>().map(Self)
    }
}

impl FromStr for Rule {
    type Err = SelectError;

    fn from_str(entry: &str) -> Result<Self, SelectError> {
        let fail = |expected| SelectError { entry: entry.to_owned(), expected };
        let (host, prefix, ports) = split(entry).ok_or_else(|| fail(EXPECTED_ENTRY))?;
        let host = match host.parse::<IpAddr>() {
            Ok(addr) => network(addr, prefix).ok_or_else(|| fail(EXPECTED_PREFIX))?,
            Err(_) if prefix.is_some() => return Err(fail(EXPECTED_ENTRY)),
            Err(_) => by_name(host).ok_or_else(|| fail(EXPECTED_ENTRY))?,
        };
        let ports = match ports {
            None | Some("*") => ALL_PORTS,
            Some(ports) => port_range(ports).ok_or_else(|| fail(EXPECTED_PORTS))?,
        };
        Ok(Self { host, ports })
    }
}

impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, rule) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            write!(f, "{comma}{rule}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Hosts::Any => f.write_str("*")?,
            Hosts::Net(IpAddr::V4(addr), 32) => write!(f, "{addr}")?,
            Hosts::Net(IpAddr::V4(addr), prefix) => write!(f, "{addr}/{prefix}")?,
            Hosts::Net(IpAddr::V6(addr), 128) => write!(f, "[{addr}]")?,
            Hosts::Net(IpAddr::V6(addr), prefix) => write!(f, "[{addr}]/{prefix}")?,
            Hosts::Name(name) => f.write_str(name)?,
            Hosts::Domain(domain) => write!(f, ".{domain}")?,
        }
        match (self.ports.start(), self.ports.end()) {
            _ if self.ports == ALL_PORTS => Ok(()),
            (first, last) if first == last => write!(f, ":{first}"),
            (first, last) => write!(f, ":{first}-{last}"),
        }
    }
}

/// Host, prefix length and ports of an entry, as text.
fn split(entry: &str) -> Option<(&str, Option<&str>, Option<&str>)> {
    let (host, rest) = match entry.strip_prefix('[') {
        Some(bracketed) => bracketed.split_once(']')?,
        // Two colons: an IPv6 address without brackets, which leaves no room for ports.
        None if entry.matches(':').count() > 1 => entry.split_at(entry.find('/').unwrap_or(entry.len())),
        None => entry.split_at(entry.find([':', '/']).unwrap_or(entry.len())),
    };
    if entry.starts_with('[') && !host.contains(':') {
        return None;
    }
    let (prefix, ports) = match rest.strip_prefix('/') {
        Some(rest) => rest.split_once(':').map_or((Some(rest), None), |(prefix, ports)| (Some(prefix), Some(ports))),
        None if rest.is_empty() => (None, None),
        None => (None, Some(rest.strip_prefix(':')?)),
    };
    Some((host, prefix, ports))
}

fn network(addr: IpAddr, prefix: Option<&str>) -> Option<Hosts> {
    let (width, canonical) = (width(addr), addr.to_canonical());
    let prefix = prefix.map_or(Some(width), number).filter(|p| *p <= width)?;
    if addr == canonical {
        return Some(Hosts::Net(addr, prefix));
    }
    // An IPv4-mapped range (::ffff:10.0.0.0/104) is matched as the IPv4 range that it is.
    Some(prefix.checked_sub(96).map_or(Hosts::Net(addr, prefix), |prefix| Hosts::Net(canonical, prefix)))
}

fn by_name(host: &str) -> Option<Hosts> {
    if host == "*" {
        return Some(Hosts::Any);
    }
    let (domain, name) = host.strip_prefix('.').map_or((false, host), |name| (true, name));
    let name = rootless(name).to_ascii_lowercase();
    is_name(&name).then_some(if domain { Hosts::Domain(name) } else { Hosts::Name(name) })
}

fn port_range(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (number::<u16>(first)?, number::<u16>(last)?);
    (first <= last).then_some(first..=last)
}

/// A plain decimal number; `parse` alone would also take `+5`.
fn number<T: FromStr>(text: &str) -> Option<T> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
}

fn width(addr: IpAddr) -> u8 {
    if addr.is_ipv4() { 32 } else { 128 }
}

fn within(ip: IpAddr, net: IpAddr, prefix: u8) -> bool {
    match (ip, net) {
        (IpAddr::V4(ip), IpAddr::V4(net)) => {
            (ip.to_bits() ^ net.to_bits()).checked_shr(32 - u32::from(prefix)).unwrap_or(0) == 0
        }
        (IpAddr::V6(ip), IpAddr::V6(net)) => {
            (ip.to_bits() ^ net.to_bits()).checked_shr(128 - u32::from(prefix)).unwrap_or(0) == 0
        }
        _ => false,
    }
}

fn rootless(name: &str) -> &str {
    name.strip_suffix('.').unwrap_or(name)
}

fn in_domain(name: &str, domain: &str) -> bool {
    let Some(split) = name.len().checked_sub(domain.len()) else { return false };
    let (head, tail) = name.as_bytes().split_at(split);
    tail.eq_ignore_ascii_case(domain.as_bytes()) && head.last().is_none_or(|b| *b == b'.')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn selects(selection: &str, addr: &str, names: &[&str]) -> bool {
        let selection: Selection = selection.parse().unwrap();
        selection.matches(addr.parse().unwrap(), names.iter().copied())
    }

    #[test]
    fn selects_by_address_range_and_port() {
        assert!(selects("10.3.0.0/16:5000-5999", "10.3.255.1:5999", &[]));
        assert!(!selects("10.3.0.0/16:5000-5999", "10.3.255.1:6000", &[]));
        assert!(!selects("10.3.0.0/16:5000-5999", "10.4.0.1:5000", &[]));
        assert!(selects("10.3.0.1", "10.3.0.1:1", &[]) && !selects("10.3.0.1", "10.3.0.2:1", &[]));
        assert!(selects("0.0.0.0/0", "8.8.8.8:53", &[]) && !selects("0.0.0.0/0", "[::1]:53", &[]));
        for range in ["[2001:db8::]/32", "2001:db8::/32", "[2001:db8::]/32:*", "::/0"] {
            assert!(selects(range, "[2001:db8:1::1]:80", &[]), "{range}");
            assert!(!selects(range, "10.0.0.1:80", &[]), "{range}");
        }
        assert!(selects("[2001:db8::1]:80", "[2001:db8::1]:80", &[]));
        assert!(!selects("[2001:db8::1]:80", "[2001:db8::1]:81", &[]));
        assert!(selects("*:443", "[::1]:443", &[]) && !selects("*:443", "1.2.3.4:80", &[]));
        assert!(selects("1.1.1.1, *", "1.2.3.4:80", &[]));
    }

    #[test]
    fn mapped_address_equals_the_ipv4_address() {
        assert!(selects("10.0.0.0/8", "[::ffff:10.1.2.3]:80", &[]));
        assert!(selects("[::ffff:10.0.0.0]/104", "10.1.2.3:80", &[]));
        assert!(!selects("[::ffff:10.0.0.0]/104", "11.1.2.3:80", &[]));
    }

    #[test]
    fn selects_by_name_and_domain() {
        let addr = "10.0.0.1:443";
        assert!(selects("Host.Example.", addr, &["other", "HOST.example"]));
        assert!(!selects("host.example", addr, &["a.host.example", "host.example.org"]));
        for name in ["example.org", "a.example.org", "A.B.Example.ORG."] {
            assert!(selects(".example.org:443", addr, &[name]), "{name}");
        }
        for name in ["badexample.org", "example.org.evil", "org", ""] {
            assert!(!selects(".example.org:443", addr, &[name]), "{name}");
        }
        assert!(!selects(".example.org:80", addr, &["example.org"]));
    }

    #[test]
    fn tells_addresses_from_names() {
        let selection: Selection = "*,127.0.0.0/8:80,localhost".parse().unwrap();
        assert!(selection.matches_address("127.0.0.1:80".parse().unwrap()));
        assert!(!selection.matches_address("127.0.0.1:81".parse().unwrap()));
        assert!(!selection.matches_address("10.0.0.1:80".parse().unwrap()));
    }

    #[test]
    fn quotes_the_entry_and_what_was_expected() {
        let cases = [
            (
                EXPECTED_ENTRY,
                &["", "10.3/16", "a b", "host:1:2x", "[host]:1", "[::1", "[::1]x", "host/8", ".", "10.0.0.0/8/9"][..],
            ),
            (EXPECTED_PREFIX, &["10.0.0.0/33", "10.0.0.0/", "[::]/129", "10.0.0.0/+8", "10.0.0.0/x"][..]),
            (EXPECTED_PORTS, &["a:", "a:x", "a:70000", "a:9-5", "*:-5", "a:1-", "a:+5", "10.0.0.0/8:1-2-3"][..]),
        ];
        for (expected, entries) in cases {
            for entry in entries {
                let error = format!("*,{entry}").parse::<Selection>().unwrap_err().to_string();
                match *entry {
                    "10.0.0.0/8/9" => assert!(error.starts_with("\"10.0.0.0/8/9\" is not "), "{error}"),
                    _ => assert_eq!(error, format!("\"{entry}\" is not {expected}")),
                }
            }
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[0-9a-z.:/*,\\[\\] -]{0,40}|.{0,40}", addr: SocketAddr) {
            if let Ok(selection) = text.parse::<Selection>() {
                let _ = selection.matches(addr, [text.as_str()].into_iter());
                prop_assert_eq!(selection.to_string().parse(), Ok(selection));
            }
        }

        #[test]
        fn range_contains_addresses_with_its_prefix(net: IpAddr, other: IpAddr, prefix in 0u8..=128, port: u16) {
            let prefix = prefix % (width(net) + 1);
            let bits = |ip: IpAddr| match ip.to_canonical() {
                IpAddr::V4(ip) => format!("4{:032b}", ip.to_bits()),
                IpAddr::V6(ip) => format!("6{:0128b}", ip.to_bits()),
            };
            let net = net.to_canonical();
            let prefix = prefix.min(width(net));
            let host = if net.is_ipv6() { format!("[{net}]") } else { net.to_string() };
            let selection: Selection = format!("{host}/{prefix}").parse().unwrap();
            let shared = bits(net).bytes().zip(bits(other).bytes()).take_while(|(a, b)| a == b).count();
            let expected = shared > usize::from(prefix);
            prop_assert_eq!(selection.matches(SocketAddr::new(other, port), std::iter::empty()), expected);
            prop_assert!(selection.matches(SocketAddr::new(net, port), std::iter::empty()));
        }
    }
}
