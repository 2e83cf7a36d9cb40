//! `anonymous` (RFC 4505): an e-mail address, and no proof of anything (P26).

use super::{AuthError, Check, Proven, Verdict};

/// The mechanism's name.
pub const NAME: &str = "anonymous";
/// Longest address, in bytes (RFC 5321 §4.5.3.1.3).
const ADDRESS_MAX: usize = 254;

/// The gateway's side.
pub struct Acceptor;

impl Check for Acceptor {
    fn receive(&mut self, data: &[u8]) -> Verdict {
        match address(data) {
            Some(address) => Verdict::Proven(Proven { subject: address.to_owned(), vouched: None, last: None }),
            None => Verdict::Refused(AuthError::NoAddress),
        }
    }
}

/// Something like an e-mail address, for the log.
fn address(data: &[u8]) -> Option<&str> {
    let address = std::str::from_utf8(data).ok()?;
    let (local, domain) = address.rsplit_once('@')?;
    let plain = !address.chars().any(|c| c.is_control() || c.is_whitespace());
    (plain && !local.is_empty() && !domain.is_empty() && address.len() <= ADDRESS_MAX).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anonymous_means_an_address() {
        assert_eq!(address(b"user@example.org"), Some("user@example.org"));
        for text in ["", "user", "@example.org", "user@", "a b@c", "a@b\n", &format!("{}@b", "a".repeat(300))] {
            assert_eq!(address(text.as_bytes()), None, "{text}");
        }
        assert_eq!(address(&[0xff, b'@', b'x']), None);
    }
}
