//! The readable content of a certificate (RFC 5280).

use super::{CredentialsError, pem};
use ring::digest;
use rustls::pki_types::CertificateDer;
use serde::Serialize;
use std::fmt::Write;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, SystemTime};
use time::OffsetDateTime;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::time::ASN1Time;

/// A certificate's content, for people and for reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Certificate {
    /// The DNS names and addresses of its subject alternative name.
    pub names: Vec<String>,
    /// The subject's distinguished name.
    pub subject: String,
    /// The issuer's distinguished name.
    pub issuer: String,
    /// Whether the certificate may sign others.
    pub authority: bool,
    /// Start of validity.
    #[serde(serialize_with = "as_date")]
    pub not_before: SystemTime,
    /// End of validity.
    #[serde(serialize_with = "as_date")]
    pub not_after: SystemTime,
    /// SHA-256 of the DER encoding, in hexadecimal.
    pub sha256: String,
}

impl Certificate {
    /// All certificates in a PEM file, in the file's order; at least one.
    ///
    /// # Errors
    /// [`CredentialsError`], naming the file and the problem.
    pub fn all_in(file: &Path) -> Result<Vec<Self>, CredentialsError> {
        let parse = |(index, der): (usize, CertificateDer<'_>)| {
            Self::parse(&der).map_err(|reason| unusable(file, index, reason))
        };
        pem::certificates(file)?.into_iter().enumerate().map(parse).collect()
    }

    /// Parses the DER encoding.
    ///
    /// # Errors
    /// The problem, as the end of a sentence.
    pub(super) fn parse(der: &[u8]) -> Result<Self, &'static str> {
        let (rest, read) = x509_parser::parse_x509_certificate(der).map_err(|_| "is not an X.509 certificate")?;
        if !rest.is_empty() {
            return Err("has bytes after its end");
        }
        let validity = read.validity();
        Ok(Self {
            names: names(&read)?,
            subject: read.subject().to_string(),
            issuer: read.issuer().to_string(),
            authority: read.is_ca(),
            not_before: instant(validity.not_before)?,
            not_after: instant(validity.not_after)?,
            sha256: digest::digest(&digest::SHA256, der).as_ref().iter().fold(String::new(), |mut text, byte| {
                // Writing to a string cannot fail.
                let _ = write!(text, "{byte:02x}");
                text
            }),
        })
    }
}

/// The names of a DER-encoded certificate: DNS names and addresses of its subject alternative name, in lower
/// case. Empty if it cannot be parsed, so the caller must have verified the certificate.
pub(super) fn names_in(der: &[u8]) -> Vec<String> {
    x509_parser::parse_x509_certificate(der).ok().and_then(|(_, read)| names(&read).ok()).unwrap_or_default()
}

/// The first instant at which a DER-encoded certificate is no longer valid: the second in `notAfter` is still
/// valid (RFC 5280, section 4.1.2.5). `None` if it cannot be parsed.
pub(super) fn expires(der: &[u8]) -> Option<SystemTime> {
    let (_, read) = x509_parser::parse_x509_certificate(der).ok()?;
    instant(read.validity().not_after).ok()?.checked_add(Duration::from_secs(1))
}

fn names(certificate: &X509Certificate<'_>) -> Result<Vec<String>, &'static str> {
    let extension = certificate.subject_alternative_name();
    let extension = extension.map_err(|_| "has a subject alternative name that cannot be read")?;
    let all = extension.map(|extension| extension.value.general_names.as_slice()).unwrap_or_default();
    Ok(all.iter().filter_map(name).collect())
}

fn name(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
        GeneralName::IPAddress(bytes) => {
            let v4 = || <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
            v4().or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from)).ok().map(|address| address.to_string())
        }
        _ => None,
    }
}

pub(super) fn instant(time: ASN1Time) -> Result<SystemTime, &'static str> {
    let seconds = Duration::from_secs(time.timestamp().unsigned_abs());
    let start = SystemTime::UNIX_EPOCH;
    let instant = if time.timestamp() < 0 { start.checked_sub(seconds) } else { start.checked_add(seconds) };
    instant.ok_or("has a date that this machine cannot hold")
}

/// The error for the certificate at `index` of a file.
pub(super) fn unusable(file: &Path, index: usize, reason: &str) -> CredentialsError {
    CredentialsError::Unusable { file: file.into(), problem: format!("certificate {} {reason}", index + 1) }
}

/// The instant in RFC 3339 format.
pub fn date(instant: SystemTime) -> String {
    let at = OffsetDateTime::from(instant);
    let (date, time) = (at.date(), at.time());
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z",
        date.year(),
        u8::from(date.month()),
        date.day(),
        time.hour(),
        time.minute(),
        time.second()
    )
}

fn as_date<S: serde::Serializer>(instant: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&date(*instant))
}
