//! Matches a certificate against the host name or address that was requested.

use std::net::IpAddr;

use crate::certificate::{AltName, Certificate};

/// Services whose common name `SERVICE/HOST` stands for the host itself, as in GCT.
const SERVICES: [&str; 2] = ["host/", "ftp/"];

/// Alternative names of the requested kind decide if there are any (RFC 2818, §3.1). Otherwise the last
/// common name does, since many Grid hosts still have certificates without alternative names.
pub(crate) fn matches(certificate: &Certificate, host: &str) -> bool {
    if let Ok(address) = host.parse::<IpAddr>() {
        let wanted = match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        return certificate.names().contains(&AltName::Address(wanted));
    }
    let host = host.strip_suffix('.').unwrap_or(host);
    let mut names = certificate.names().iter().filter_map(AltName::dns).peekable();
    if names.peek().is_some() {
        return names.any(|name| covers(name, host));
    }
    let Some(name) = certificate.subject().common_names().next_back() else { return false };
    let Ok(name) = str::from_utf8(name) else { return false };
    let bare = SERVICES.iter().find_map(|service| name.strip_prefix(service)).unwrap_or(name);
    covers(bare, host)
}

/// Whether a name in a certificate covers a host; `*.` stands for one label.
fn covers(name: &str, host: &str) -> bool {
    if host.is_empty() || host.starts_with('.') {
        return false;
    }
    match name.strip_prefix("*.") {
        Some(parent) => {
            parent.contains('.') && host.split_once('.').is_some_and(|(_, rest)| rest.eq_ignore_ascii_case(parent))
        }
        None => name.eq_ignore_ascii_case(host),
    }
}

#[cfg(test)]
mod tests {
    use super::covers;

    #[test]
    fn wildcard_matches_one_label() {
        assert!(covers("dtn.example.org", "DTN.example.org"));
        assert!(covers("*.example.org", "dtn.example.org"));
        assert!(!covers("*.example.org", "a.b.example.org"));
        assert!(!covers("*.example.org", "example.org"));
        assert!(!covers("*.org", "example.org"));
        assert!(!covers("*", "example"));
        assert!(!covers("", ""));
        assert!(!covers("*.example.org", ".example.org"));
    }
}
