//! Issues proxies: signs another key with one's own (RFC 3820, §3).

use rustls::crypto::CryptoProvider;
use time::OffsetDateTime;

use crate::certificate::{Certificate, CertificateError};
use crate::credential::Credential;
use crate::der::{SEQUENCE, element, sequence};
use crate::kind::{Format, Kind, Proxy, ProxyInfo, Rights, oid};
use crate::proxy::request::{Request, RequestError};
use crate::proxy::verify::{ProxyProblem, follows, format_after};
use crate::sign::{algorithm, write_signed};

/// How far in the past a proxy's validity starts, in seconds, for receivers whose clocks are late; as in
/// Globus.
pub const CLOCK_SKEW: i64 = 300;

/// The rights to delegate, and their duration.
#[derive(Debug, Clone)]
pub struct ProxyProfile {
    /// The rights. Only [`Rights::Full`] and [`Rights::Limited`] can be delegated, and a limited proxy can
    /// delegate only the latter.
    pub rights: Rights,
    /// The number of proxies that may follow; `None` for any number. The legacy format supports only `None`.
    pub path_length: Option<u32>,
    /// The format; `None` for the issuer's own format, or RFC 3820 if the issuer is no proxy.
    pub format: Option<Format>,
    /// End of validity, in seconds since 1970; limited to the issuer's own.
    pub not_after: i64,
}

impl ProxyProfile {
    /// A full or a limited proxy with the validity of its issuer.
    pub fn delegation(limited: bool) -> Self {
        let rights = if limited { Rights::Limited } else { Rights::Full };
        Self { rights, path_length: None, format: None, not_after: i64::MAX }
    }
}

/// The reason why no proxy was issued.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IssueError {
    /// The credential is an authority's.
    #[error("{0} is the certificate of an authority; proxies are made from a person's, host's or service's")]
    Authority(String),
    /// The issuer has expired.
    #[error("{subject} expired at {}; no proxy can be made from it", crate::time::date(*.at))]
    Expired {
        /// The issuer.
        subject: String,
        /// When it expired, in seconds since 1970.
        at: i64,
    },
    /// The issuer does not permit this proxy.
    #[error("no such proxy can be made from {subject}: it {problem}")]
    Forbidden {
        /// The issuer.
        subject: String,
        /// The violated rule.
        problem: ProxyProblem,
    },
    /// The legacy format cannot express it.
    #[error("a legacy proxy can be full or limited, and cannot limit the number of those after it")]
    Legacy,
    /// The proxy would need a policy language.
    #[error("a proxy with a policy in language {0} cannot be made here")]
    Restricted(String),
    /// Signing with the key failed.
    #[error("the key cannot sign a certificate: {0}")]
    Key(String),
    /// The encoded proxy does not parse, which indicates a bug.
    #[error("the proxy that was made cannot be read: {0}")]
    Unreadable(#[from] CertificateError),
}

/// Makes a proxy with a new P-256 key, as `grid-proxy-init` does; `now` is in seconds since 1970.
///
/// # Errors
/// [`IssueError`].
pub fn create(
    issuer: &Credential,
    terms: &ProxyProfile,
    provider: &CryptoProvider,
    now: i64,
) -> Result<Credential, IssueError> {
    let key = |error: RequestError| IssueError::Key(error.to_string());
    let request = Request::generate(provider).map_err(key)?;
    let proxy = issue(issuer, request.public_key(), terms, now)?;
    request.complete(std::iter::once(proxy).chain(issuer.chain().iter().cloned()).collect()).map_err(key)
}

/// Issues a proxy for a public key (a SubjectPublicKeyInfo in DER); `now` is in seconds since 1970.
///
/// # Errors
/// [`IssueError`] if the credential does not permit it; a proxy that would not verify is not issued.
pub fn issue(
    issuer: &Credential,
    public_key: &[u8],
    terms: &ProxyProfile,
    now: i64,
) -> Result<Certificate, IssueError> {
    let from = issuer.certificate();
    let subject = from.subject().to_string();
    let proxy = Proxy {
        format: terms.format.unwrap_or_else(|| format_after(from)),
        rights: terms.rights.clone(),
        path_length: terms.path_length,
    };
    check(&proxy, issuer, now)?;

    let (common_name, serial) = names(&proxy, public_key);
    let name = subject_of(from, &common_name);
    let not_before = now.saturating_sub(CLOCK_SKEW).max(from.not_before());
    let not_after = terms.not_after.min(from.not_after());
    if not_after < now {
        return Err(IssueError::Expired { subject, at: not_after });
    }
    let scheme = algorithm(issuer.key()).ok_or_else(|| IssueError::Key("its kind is not known here".into()))?.1;
    let body = yasna::construct_der(|writer| {
        writer.write_sequence(|body| {
            body.next().write_tagged(yasna::Tag::context(0), |version| version.write_u8(2));
            body.next().write_bigint_bytes(&serial, true);
            body.next().write_der(&sequence(scheme));
            body.next().write_der(from.subject().der());
            body.next().write_sequence(|validity| {
                write_time(validity.next(), not_before);
                write_time(validity.next(), not_after);
            });
            body.next().write_der(&name);
            body.next().write_der(public_key);
            body.next().write_tagged(yasna::Tag::context(3), |extensions| {
                extensions.write_sequence(|all| {
                    for (number, critical, value) in extensions_of(&proxy, from) {
                        all.next().write_sequence(|one| {
                            one.next().write_der(&oid(number));
                            if critical {
                                one.next().write_bool(true);
                            }
                            one.next().write_bytes(&value);
                        });
                    }
                });
            });
        });
    });
    let der = write_signed(&body, issuer.key()).map_err(|error| IssueError::Key(error.to_string()))?;
    Ok(Certificate::parse(&der)?)
}

fn check(proxy: &Proxy, issuer: &Credential, now: i64) -> Result<(), IssueError> {
    let from = issuer.certificate();
    let subject = from.subject().to_string();
    match from.kind() {
        Kind::Authority => return Err(IssueError::Authority(subject)),
        Kind::EndEntity => {}
        Kind::Proxy(parent) => {
            follows(proxy, parent).map_err(|problem| IssueError::Forbidden { subject: subject.clone(), problem })?
        }
    }
    if now > from.not_after() {
        return Err(IssueError::Expired { subject, at: from.not_after() });
    }
    if from.key_usage().is_some_and(|usage| usage & 1 == 0) {
        let problem = ProxyProblem::IssuerKeyUsage(subject.clone());
        return Err(IssueError::Forbidden { subject, problem });
    }
    for (after, parent) in issuer.chain().iter().enumerate() {
        if let Some(Proxy { path_length: Some(allowed), .. }) = parent.kind().proxy()
            && after >= *allowed as usize
        {
            let problem = ProxyProblem::PathLength { allowed: *allowed, found: after + 1 };
            return Err(IssueError::Forbidden { subject: parent.subject().to_string(), problem });
        }
    }
    match &proxy.rights {
        Rights::Restricted(language) => Err(IssueError::Restricted(language.clone())),
        Rights::Independent if proxy.format == Format::Legacy => Err(IssueError::Legacy),
        _ if proxy.format == Format::Legacy && proxy.path_length.is_some() => Err(IssueError::Legacy),
        _ => Ok(()),
    }
}

/// The last common name and the serial number. RFC 3820, §3.2 and §3.4, require unique ones, so both derive
/// from a hash of the key. The common name of a legacy proxy states its kind.
fn names(proxy: &Proxy, public_key: &[u8]) -> (String, [u8; 8]) {
    let hash = ring::digest::digest(&ring::digest::SHA256, public_key);
    let mut serial = [0; 8];
    serial.copy_from_slice(&hash.as_ref()[..8]);
    serial[0] = serial[0] & 0x7f | 0x40;
    let name = match (proxy.format, &proxy.rights) {
        (Format::Legacy, Rights::Limited) => "limited proxy".to_owned(),
        (Format::Legacy, _) => "proxy".to_owned(),
        _ => u64::from_be_bytes(serial).to_string(),
    };
    (name, serial)
}

/// The issuer's subject, byte for byte, followed by one common name.
fn subject_of(issuer: &Certificate, common_name: &str) -> Vec<u8> {
    let relative = yasna::construct_der(|writer| {
        writer.write_set(|relative| {
            relative.next().write_sequence(|attribute| {
                attribute.next().write_der(&oid("2.5.4.3"));
                attribute.next().write_printable_string(common_name);
            });
        });
    });
    let old = element(issuer.subject().der(), SEQUENCE).map_or(&[][..], |(content, _)| content);
    sequence(&[old, &relative].concat())
}

/// Key usage bits that a proxy must not have: nonRepudiation, keyCertSign, cRLSign.
const NEVER: u16 = 1 << 1 | 1 << 5 | 1 << 6;

fn extensions_of(proxy: &Proxy, issuer: &Certificate) -> Vec<(&'static str, bool, Vec<u8>)> {
    let mut all = Vec::new();
    if let Some(info) = ProxyInfo::new(proxy) {
        let (number, value) = info.encode();
        all.push((number, true, value));
    }
    // An issuer without key usage is unrestricted. OpenSSL takes legacy proxies made from it for authorities,
    // and would refuse them if they had a key usage without keyCertSign.
    if let Some(usage) = issuer.key_usage() {
        all.push(("2.5.29.15", true, named_bits(usage & !NEVER)));
    }
    if let Some((critical, value)) = issuer.extended_key_usage() {
        all.push(("2.5.29.37", critical, value.to_vec()));
    }
    all
}

/// A named bit list in DER, bit 0 first, without trailing zeros (X.690, §11.2.2).
fn named_bits(flags: u16) -> Vec<u8> {
    let length = 16 - flags.leading_zeros() as usize;
    let mut bytes = vec![0; length.div_ceil(8)];
    for bit in (0..length).filter(|bit| flags >> bit & 1 == 1) {
        bytes[bit / 8] |= 0x80 >> (bit % 8);
    }
    yasna::construct_der(|writer| writer.write_bitvec_bytes(&bytes, length))
}

/// Writes UTCTime until 2049, GeneralizedTime afterwards (RFC 5280, §4.1.2.5).
fn write_time(writer: yasna::DERWriter<'_>, seconds: i64) {
    let last = 253_402_300_799; // the end of 9999, which is as far as certificates go
    let at = OffsetDateTime::from_unix_timestamp(seconds.clamp(0, last)).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    if at.year() < 2050 {
        writer.write_utctime(&yasna::models::UTCTime::from_datetime(at));
    } else {
        writer.write_generalized_time(&yasna::models::GeneralizedTime::from_datetime(at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_bits_have_no_trailing_zeros() {
        assert_eq!(named_bits(1), [3, 2, 7, 0x80]);
        assert_eq!(named_bits(0b101), [3, 2, 5, 0xa0]);
        assert_eq!(named_bits(1 << 8), [3, 3, 7, 0, 0x80]);
        assert_eq!(named_bits(0), [3, 1, 0]);
    }
}
