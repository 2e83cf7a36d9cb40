//! Patterns of destinations and of certificates' names: address ranges, names, domains (P33's grammar, without ports).

use super::range::{Net, is_private};
use phoebus_proto::endpoint::{HostRef, is_name};
use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

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
            (Self::Net(net), HostRef::Addr(addr)) if net.contains(addr) => Some(1 + usize::from(net.prefix())),
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

#[cfg(test)]
mod tests {
    use super::super::range::is_local;
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
