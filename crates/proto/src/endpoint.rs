//! The far end of a hop or session: a host and a port, in the text form of command lines and environment variables.
//!
//! Gateways on a path are written `host/port`, separated by commas (P38; the grammar of `PHOEBUS_PATH` and
//! `PHOEBUS_GW`). Destinations are written `host:port`, with brackets around an IPv6 address. The parser accepts both
//! forms everywhere.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// Port of Phoebus sessions if the text gives none.
pub const DEFAULT_PORT: u16 = 5006;
/// Longest host name, in bytes (RFC 1035 §2.3.4, without the root's dot).
pub const NAME_MAX: usize = 253;
/// Most gateways on a path: ten times as many as any deployment in the papers, and few enough for one small message.
pub const PATH_MAX: usize = 16;

/// A host: an address, or a name that the connecting end resolves.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Host {
    /// An IPv4 or IPv6 address.
    Addr(IpAddr),
    /// A name, in lower case, without a trailing dot.
    Name(String),
}

/// A host and a port.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Endpoint {
    /// The host.
    pub host: Host,
    /// The TCP or UDP port, never 0.
    pub port: u16,
}

/// Borrowed form of [`Host`], as decoded from a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostRef<'a> {
    /// An IPv4 or IPv6 address.
    Addr(IpAddr),
    /// A valid name, in lower case.
    Name(&'a str),
}

/// Borrowed form of [`Endpoint`], as decoded from a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndpointRef<'a> {
    /// The host.
    pub host: HostRef<'a>,
    /// The TCP or UDP port, never 0.
    pub port: u16,
}

/// Why a text does not parse as an endpoint or path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// The host is missing or malformed, or the port is not a number from 1 to 65535.
    #[error("\"{text}\" is not {expected}")]
    Malformed {
        /// The offending part.
        text: String,
        /// What was expected instead.
        expected: &'static str,
    },
    /// A path names no gateway.
    #[error("the path is empty; expected gateways such as pg1.example/5006,pg2.example/5006")]
    EmptyPath,
    /// A path names more than [`PATH_MAX`] gateways.
    #[error("the path names {0} gateways; at most {PATH_MAX} are allowed")]
    LongPath(usize),
}

impl Endpoint {
    /// Parses an endpoint. `default_port` applies if `text` has no port.
    ///
    /// # Errors
    /// [`EndpointError::Malformed`], quoting the text.
    pub fn parse(text: &str, default_port: Option<u16>) -> Result<Self, EndpointError> {
        let trimmed = text.trim();
        let malformed = |expected| EndpointError::Malformed { text: text.to_owned(), expected };
        let (host, port) = split_port(trimmed);
        let host =
            host.parse().map_err(|_| malformed("a host name or address with a port, such as pg1.example/5006"))?;
        let port = match port {
            Some(port) => port.parse().ok().filter(|p| *p != 0),
            None => default_port,
        };
        let port =
            port.ok_or_else(|| malformed("an endpoint with a port from 1 to 65535, such as dtn.example:2811"))?;
        Ok(Self { host, port })
    }

    /// Parses a comma-separated list of gateways, first hop first.
    ///
    /// # Errors
    /// [`EndpointError`] for an empty path, one of more than [`PATH_MAX`] gateways, or a malformed entry.
    pub fn parse_path(text: &str) -> Result<Vec<Self>, EndpointError> {
        if text.trim().is_empty() {
            return Err(EndpointError::EmptyPath);
        }
        let count = text.split(',').count();
        if count > PATH_MAX {
            return Err(EndpointError::LongPath(count));
        }
        text.split(',').map(|entry| Self::parse(entry, Some(DEFAULT_PORT))).collect()
    }

    /// Borrows this endpoint.
    pub fn as_ref(&self) -> EndpointRef<'_> {
        EndpointRef { host: self.host.as_ref(), port: self.port }
    }
}

impl Host {
    /// Borrows this host.
    pub fn as_ref(&self) -> HostRef<'_> {
        match self {
            Self::Addr(addr) => HostRef::Addr(*addr),
            Self::Name(name) => HostRef::Name(name),
        }
    }
}

impl EndpointRef<'_> {
    /// An owned copy.
    pub fn to_owned(self) -> Endpoint {
        let host = match self.host {
            HostRef::Addr(addr) => Host::Addr(addr),
            HostRef::Name(name) => Host::Name(name.to_owned()),
        };
        Endpoint { host, port: self.port }
    }

    /// The socket address, if the host is an address and not a name.
    pub fn socket_addr(self) -> Option<SocketAddr> {
        match self.host {
            HostRef::Addr(addr) => Some(SocketAddr::new(addr, self.port)),
            HostRef::Name(_) => None,
        }
    }
}

impl FromStr for Host {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        if let Ok(addr) = text.parse() {
            return Ok(Self::Addr(addr));
        }
        let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        if is_name(&name) {
            return Ok(Self::Name(name));
        }
        Err(EndpointError::Malformed { text: text.to_owned(), expected: "a host name or an IP address" })
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        Self::parse(text, None)
    }
}

impl From<SocketAddr> for Endpoint {
    fn from(addr: SocketAddr) -> Self {
        Self { host: Host::Addr(addr.ip().to_canonical()), port: addr.port() }
    }
}

impl From<SocketAddr> for EndpointRef<'_> {
    fn from(addr: SocketAddr) -> Self {
        Self { host: HostRef::Addr(addr.ip().to_canonical()), port: addr.port() }
    }
}

impl fmt::Display for HostRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Addr(addr) => addr.fmt(f),
            Self::Name(name) => f.write_str(name),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_ref().fmt(f)
    }
}

impl fmt::Display for EndpointRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host {
            HostRef::Addr(IpAddr::V6(addr)) => write!(f, "[{addr}]:{}", self.port),
            host => write!(f, "{host}:{}", self.port),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_ref().fmt(f)
    }
}

/// Whether `text` is a host name: labels of letters, digits, hyphens and underscores, separated by dots. The last label
/// must not consist of digits only, so that a malformed IPv4 address is not taken for a name.
///
/// RFC 952 does not allow underscores, but names with underscores resolve and are in use.
pub fn is_name(text: &str) -> bool {
    let label = |l: &str| {
        (1..=63).contains(&l.len())
            && !l.starts_with('-')
            && !l.ends_with('-')
            && l.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    let numeric = text.rsplit('.').next().is_some_and(|last| last.bytes().all(|b| b.is_ascii_digit()));
    text.len() <= NAME_MAX && !numeric && text.split('.').all(label)
}

/// Splits `host/port`, `host:port`, `[v6]/port`, `[v6]:port`, `[v6]`, `v6/port`, `v6` and `host`.
fn split_port(text: &str) -> (&str, Option<&str>) {
    if let Some((host, rest)) = text.strip_prefix('[').and_then(|t| t.split_once(']')) {
        return match rest.strip_prefix([':', '/']) {
            Some(port) => (host, Some(port)),
            None if rest.is_empty() => (host, None),
            None => ("", None),
        };
    }
    if let Some((host, port)) = text.split_once('/') {
        return (host, Some(port));
    }
    match text.split_once(':') {
        Some((host, port)) if !port.contains(':') => (host, Some(port)),
        _ => (text, None),
    }
}

#[cfg(feature = "serde")]
mod text {
    //! Serde: endpoints are strings in files, such as `address = "pg2.example/5006"`.
    use super::{Endpoint, Host};
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    impl Serialize for Endpoint {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.collect_str(self)
        }
    }

    impl<'de> Deserialize<'de> for Endpoint {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            std::borrow::Cow::<str>::deserialize(deserializer)?.parse().map_err(D::Error::custom)
        }
    }

    impl Serialize for Host {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.collect_str(self)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parsed(text: &str) -> String {
        Endpoint::parse(text, Some(5006)).unwrap().to_string()
    }

    #[test]
    fn every_documented_form_is_parsed() {
        assert_eq!(parsed("pg1/5007"), "pg1:5007");
        assert_eq!(parsed("PG1.Example."), "pg1.example:5006");
        assert_eq!(parsed("10.0.0.1:80"), "10.0.0.1:80");
        assert_eq!(parsed("2001:db8::1/80"), "[2001:db8::1]:80");
        assert_eq!(parsed("[2001:db8::1]:80"), "[2001:db8::1]:80");
        assert_eq!(parsed("[2001:db8::1]/80"), "[2001:db8::1]:80");
        assert_eq!(parsed("2001:db8::1"), "[2001:db8::1]:5006");
    }

    #[test]
    fn path_keeps_the_order_of_gateways() {
        let path = Endpoint::parse_path("pg1/5006, pg2").unwrap();
        assert_eq!(path.iter().map(ToString::to_string).collect::<Vec<_>>(), ["pg1:5006", "pg2:5006"]);
    }

    #[test]
    fn errors_quote_the_malformed_part() {
        for text in
            ["pg1/0", "pg1/70000", "pg1/x", "pg1/", "/5006", "", "a b/1", "[::1", "[::1]x", "-a/1", "10.0.0/1", "pg1,"]
        {
            let error = Endpoint::parse(text, Some(5006)).unwrap_err().to_string();
            assert!(error.starts_with(&format!("\"{text}\" is not ")), "{error}");
        }
        assert_eq!(Endpoint::parse_path(" ").unwrap_err(), EndpointError::EmptyPath);
        assert_eq!(Endpoint::parse_path(&["a"; 17].join(",")).unwrap_err(), EndpointError::LongPath(17));
        assert!(Endpoint::parse_path("pg1/5006,,pg2").unwrap_err().to_string().starts_with("\"\" is not "));
    }

    proptest! {
        #[test]
        fn printed_endpoints_parse_back(addr: IpAddr, port in 1u16.., name in "[a-z][a-z0-9-]{0,10}[a-z]") {
            for host in [Host::Addr(addr), Host::Name(name)] {
                let endpoint = Endpoint { host, port };
                prop_assert_eq!(endpoint.to_string().parse(), Ok(endpoint));
            }
        }

        #[test]
        fn parsing_never_panics(text in ".{0,40}") {
            let _ = (Endpoint::parse(&text, None), Endpoint::parse_path(&text));
        }
    }
}
