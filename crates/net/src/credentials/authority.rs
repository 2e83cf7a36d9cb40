//! A private certificate authority for sites that have none: it signs a certificate for each gateway, and all
//! gateways trust it.

use super::{CredentialsError, pem};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::pki_types::{DnsName, PrivateKeyDer};
use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, SystemTime};

const DAY: Duration = Duration::from_secs(24 * 3600);
/// Validity of an authority's certificate: replacing it means a visit to every gateway.
const AUTHORITY_LIFE: Duration = DAY.saturating_mul(3650);
/// How far the validity of a new certificate starts in the past: clocks of newly installed machines differ.
const CLOCK_SKEW: Duration = Duration::from_secs(3600);

/// An authority with its private key.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    not_after: SystemTime,
}

/// A certificate and its private key, in PEM.
pub struct Issued {
    /// The certificate.
    pub certificate: String,
    /// The private key, for the certificate's owner alone.
    pub key: String,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authority { .. }")
    }
}

impl fmt::Debug for Issued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Issued").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

impl Authority {
    /// Creates an authority of that name (ECDSA on P-256), valid for ten years from `now` on, and returns it
    /// with its certificate and key.
    ///
    /// # Errors
    /// When the system has no random bytes.
    pub fn create(name: &str, now: SystemTime) -> Result<(Self, Issued), CredentialsError> {
        let key = KeyPair::generate().map_err(failed)?;
        let mut params = params(name, now, AUTHORITY_LIFE);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key).map_err(failed)?;
        let issued = Issued { certificate: certificate.pem(), key: key.serialize_pem() };
        Ok((Self { issuer: Issuer::new(params, key), not_after: now + AUTHORITY_LIFE }, issued))
    }

    /// Loads an authority from its PEM files.
    ///
    /// # Errors
    /// [`CredentialsError`], naming the file.
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, CredentialsError> {
        let said = super::Certificate::all_in(certificate)?.swap_remove(0);
        let unusable =
            |file: &Path, problem: &str| CredentialsError::Unusable { file: file.into(), problem: problem.into() };
        if !said.authority {
            return Err(unusable(certificate, "this certificate may not sign others; expected that of an authority"));
        }
        let der = pem::certificates(certificate)?.swap_remove(0);
        let private: PrivateKeyDer<'static> = pem::key(key)?;
        let private = KeyPair::try_from(&private).map_err(|_| {
            unusable(key, "the private key cannot be used; expected Ed25519, ECDSA on P-256 or P-384, or RSA")
        })?;
        if !is_key_of(&private, &der) {
            return Err(CredentialsError::Mismatch { certificate: certificate.into(), key: key.into() });
        }
        let issuer = Issuer::from_ca_cert_der(&der, private)
            .map_err(|error| unusable(certificate, &format!("cannot be an authority: {error}")))?;
        Ok(Self { issuer, not_after: said.not_after })
    }

    /// Makes a key and signs a certificate for `name` and the names and addresses in `also`, usable as client
    /// and server. It is valid from `now` on for `life`, or until the authority expires.
    ///
    /// # Errors
    /// [`CredentialsError::Name`].
    pub fn issue(
        &self,
        name: &str,
        also: &[String],
        now: SystemTime,
        life: Duration,
    ) -> Result<Issued, CredentialsError> {
        let names: Vec<String> =
            std::iter::once(name).chain(also.iter().map(String::as_str)).map(canonical).collect::<Result<_, _>>()?;
        let left = self.not_after.duration_since(now).unwrap_or_default();
        let mut params = params(name, now, life.min(left));
        params.subject_alt_names = CertificateParams::new(names).map_err(failed)?.subject_alt_names;
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(failed)?;
        Ok(Issued { certificate: certificate.pem(), key: key.serialize_pem() })
    }

    /// Checks that a certificate can carry `name`.
    ///
    /// # Errors
    /// [`CredentialsError::Name`].
    pub fn check_name(name: &str) -> Result<(), CredentialsError> {
        canonical(name).map(drop)
    }

    /// The expiry of the authority's certificate.
    pub fn not_after(&self) -> SystemTime {
        self.not_after
    }
}

fn params(name: &str, now: SystemTime, life: Duration) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = (now - CLOCK_SKEW).into();
    params.not_after = (now + life).into();
    params
}

/// The name in the form that certificates carry.
fn canonical(name: &str) -> Result<String, CredentialsError> {
    let lower = name.to_ascii_lowercase();
    let is_address = lower.parse::<IpAddr>().is_ok();
    // A text that looks like an address but is none (with a port behind it, or with a leading zero) would
    // never match.
    let is_name =
        DnsName::try_from(lower.as_str()).is_ok() && !lower.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    if is_address || is_name { Ok(lower) } else { Err(CredentialsError::Name { name: name.into() }) }
}

fn is_key_of(key: &KeyPair, certificate: &[u8]) -> bool {
    let parsed = x509_parser::parse_x509_certificate(certificate);
    parsed.is_ok_and(|(_, read)| *read.public_key().subject_public_key.data == *key.public_key_raw())
}

pub(super) fn failed(error: rcgen::Error) -> CredentialsError {
    CredentialsError::Make(error.to_string())
}
