//! The kind of a certificate: an authority's, an end entity's or a proxy, with its format and rights.

use x509_parser::asn1_rs::{FromDer, Oid, ToDer};

use crate::der::{SEQUENCE, element};
use crate::name::Name;

/// `id-pe-proxyCertInfo`, RFC 3820.
pub(crate) const RFC_EXTENSION: &str = "1.3.6.1.5.5.7.1.14";
/// The same extension in the draft that Globus Toolkit 3 implemented.
pub(crate) const DRAFT_EXTENSION: &str = "1.3.6.1.4.1.3536.1.222";

/// `id-ppl-inheritAll`: all rights of the issuer.
const INHERIT_ALL: &str = "1.3.6.1.5.5.7.21.1";
/// `id-ppl-independent`: none of the issuer's rights.
const INDEPENDENT: &str = "1.3.6.1.5.5.7.21.2";
/// Globus's limited proxy: access to files, but not to job services.
const LIMITED: &str = "1.3.6.1.4.1.3536.1.1.1.9";

/// The kind of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A certificate authority's certificate.
    Authority,
    /// An end entity certificate, issued by an authority.
    EndEntity,
    /// A proxy certificate.
    Proxy(Proxy),
}

/// The properties of a proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proxy {
    /// Its format.
    pub format: Format,
    /// The rights that it delegates.
    pub rights: Rights,
    /// The number of further proxies that may follow it; `None` for any number.
    pub path_length: Option<u32>,
}

/// The format of a proxy; [`crate::proxy`] describes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Globus Toolkit 2.
    Legacy,
    /// Globus Toolkit 3.
    Draft,
    /// RFC 3820.
    Rfc,
}

/// The rights that a proxy delegates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rights {
    /// All rights of its issuer.
    Full,
    /// The issuer's rights to files; Globus job services refuse it.
    Limited,
    /// None: it is an identity of its own.
    Independent,
    /// Rights by a policy in an unknown language; such a proxy is refused.
    Restricted(String),
}

impl Kind {
    pub(crate) fn of(authority: bool, proxy: Option<ProxyInfo>, subject: &Name) -> Self {
        if authority {
            return Self::Authority;
        }
        if let Some(info) = proxy {
            return Self::Proxy(info.into());
        }
        let rights = match subject.last_common_name() {
            Some(b"proxy") => Rights::Full,
            Some(b"limited proxy") => Rights::Limited,
            _ => return Self::EndEntity,
        };
        Self::Proxy(Proxy { format: Format::Legacy, rights, path_length: None })
    }

    /// The properties of the proxy, if it is one.
    pub fn proxy(&self) -> Option<&Proxy> {
        match self {
            Self::Proxy(proxy) => Some(proxy),
            _ => None,
        }
    }
}

impl Rights {
    fn of_language(language: String) -> Self {
        match language.as_str() {
            INHERIT_ALL => Self::Full,
            LIMITED => Self::Limited,
            INDEPENDENT => Self::Independent,
            _ => Self::Restricted(language),
        }
    }

    fn language(&self) -> &str {
        match self {
            Self::Full => INHERIT_ALL,
            Self::Limited => LIMITED,
            Self::Independent => INDEPENDENT,
            Self::Restricted(language) => language,
        }
    }
}

/// The content of a proxyCertInfo extension.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProxyInfo {
    rfc: bool,
    rights: Rights,
    path_length: Option<u32>,
}

impl From<ProxyInfo> for Proxy {
    fn from(info: ProxyInfo) -> Self {
        let format = if info.rfc { Format::Rfc } else { Format::Draft };
        Self { format, rights: info.rights, path_length: info.path_length }
    }
}

const INTEGER: u8 = 0x02;
const OID: u8 = 0x06;
const OCTETS: u8 = 0x04;
const EXPLICIT_1: u8 = 0xa1;

impl ProxyInfo {
    /// RFC 3820: `SEQUENCE { pathLength INTEGER OPTIONAL, SEQUENCE { language OID, policy OCTET STRING
    /// OPTIONAL } }`; the draft has the policy first, and then the path length with the tag `[1]`.
    pub(crate) fn parse(der: &[u8], rfc: bool) -> Result<Self, &'static str> {
        const MALFORMED: &str = "is malformed";
        let (mut rest, after) = element(der, SEQUENCE).ok_or(MALFORMED)?;
        let mut path_length = None;
        if rfc && let Some((number, more)) = element(rest, INTEGER) {
            path_length = Some(small(number)?);
            rest = more;
        }
        let (policy, mut rest) = element(rest, SEQUENCE).ok_or(MALFORMED)?;
        if !rfc && let Some((tagged, more)) = element(rest, EXPLICIT_1) {
            let (number, end) = element(tagged, INTEGER).ok_or(MALFORMED)?;
            if !end.is_empty() {
                return Err(MALFORMED);
            }
            path_length = Some(small(number)?);
            rest = more;
        }
        let (_, text) = element(policy, OID).ok_or(MALFORMED)?;
        let (_, language) = Oid::from_der(policy).map_err(|_| MALFORMED)?;
        let has_policy = !text.is_empty();
        if !after.is_empty()
            || !rest.is_empty()
            || (has_policy && element(text, OCTETS).is_none_or(|p| !p.1.is_empty()))
        {
            return Err(MALFORMED);
        }
        let rights = Rights::of_language(language.to_id_string());
        if has_policy && matches!(rights, Rights::Full | Rights::Independent) {
            return Err("has a policy beside a language that allows none");
        }
        Ok(Self { rfc, rights, path_length })
    }

    pub(crate) fn new(proxy: &Proxy) -> Option<Self> {
        let rfc = match proxy.format {
            Format::Legacy => return None,
            Format::Draft => false,
            Format::Rfc => true,
        };
        Some(Self { rfc, rights: proxy.rights.clone(), path_length: proxy.path_length })
    }

    /// The object identifier of the extension, and its value in DER.
    pub(crate) fn encode(&self) -> (&'static str, Vec<u8>) {
        let value = yasna::construct_der(|writer| {
            writer.write_sequence(|info| {
                if let (true, Some(length)) = (self.rfc, self.path_length) {
                    info.next().write_u32(length);
                }
                info.next().write_sequence(|policy| policy.next().write_der(&oid(self.rights.language())));
                if let (false, Some(length)) = (self.rfc, self.path_length) {
                    info.next().write_tagged(yasna::Tag::context(1), |inner| inner.write_u32(length));
                }
            });
        });
        (if self.rfc { RFC_EXTENSION } else { DRAFT_EXTENSION }, value)
    }
}

/// Encodes an object identifier; empty for malformed text, which the constants here never are.
pub(crate) fn oid(dotted: &str) -> Vec<u8> {
    dotted.parse::<Oid<'_>>().ok().and_then(|oid| oid.to_der_vec().ok()).unwrap_or_default()
}

fn small(number: &[u8]) -> Result<u32, &'static str> {
    const PROBLEM: &str = "has a path length that is no number from 0 to 2147483647";
    match number {
        [] => Err(PROBLEM),
        bytes if bytes.len() > 4 || bytes[0] & 0x80 != 0 => Err(PROBLEM),
        bytes => Ok(bytes.iter().fold(0, |sum, &byte| sum << 8 | u32::from(byte))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_extension_parses_again() {
        for rfc in [false, true] {
            for rights in [Rights::Full, Rights::Limited, Rights::Independent, Rights::Restricted("1.2.3".into())] {
                for path_length in [None, Some(0), Some(1), Some(300)] {
                    let info = ProxyInfo { rfc, rights: rights.clone(), path_length };
                    let (number, der) = info.encode();
                    assert_eq!(number == RFC_EXTENSION, rfc);
                    assert_eq!(ProxyInfo::parse(&der, rfc).as_ref(), Ok(&info));
                    for cut in 0..der.len() {
                        assert!(ProxyInfo::parse(&der[..cut], rfc).is_err());
                    }
                }
            }
        }
    }

    #[test]
    fn policy_with_inherit_all_is_refused() {
        let mut policy = oid(INHERIT_ALL);
        policy.extend_from_slice(&[OCTETS, 1, b'x']);
        let der = yasna::construct_der(|w| {
            w.write_sequence(|info| {
                info.next().write_sequence(|inner| inner.next().write_der(&policy));
            });
        });
        assert!(ProxyInfo::parse(&der, true).is_err());
    }

    #[test]
    fn negative_and_huge_path_lengths_are_refused() {
        assert!(small(&[0x80]).is_err());
        assert!(small(&[0, 0xff, 0xff, 0xff, 0xff]).is_err());
        assert!(small(&[]).is_err());
        assert_eq!(small(&[0x7f]), Ok(127));
        assert_eq!(small(&[0, 0x80]), Ok(128));
    }
}
