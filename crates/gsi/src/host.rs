//! Whether a certificate is a host's: the names in it against the one that was asked for.

use std::net::IpAddr;

use crate::certificate::{AltName, Certificate};

/// Services whose common name `SERVICE/HOST` is a host's own, as GCT takes them.
const SERVICES: [&str; 2] = ["host/", "ftp/"];

/// Alternative names decide where there are any of the kind asked for (RFC 2818, §3.1); the last common name does where
/// there are none, since many Grid hosts still have certificates without them.
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
    fn a_star_stands_for_one_label() {
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
