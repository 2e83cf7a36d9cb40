//! Single-use keys for two ends that exchange fingerprints over a channel that they trust (the idea of RFC
//! 8122). Each end presents a self-signed certificate and accepts exactly the certificate with the expected
//! fingerprint. Authorities, names and dates are not checked.

use super::authority::failed;
use super::certificate::Certificate;
use super::chain::ChainVerifier;
use super::{CredentialsError, provider};
use phoebus_proto::hex::unhex;
use rcgen::{CertificateParams, KeyPair};
use ring::digest;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, Error};
use std::fmt;
use std::sync::Arc;

/// The name in a single-use certificate: a reserved name that belongs to nobody (RFC 6761, section 6.4).
const NAME: &str = "pinned.invalid";

/// SHA-256 of a certificate's DER encoding.
pub type Fingerprint = [u8; 32];

/// Reads a fingerprint: 64 hexadecimal digits, as `phoebus cert show` prints them, or with colons, as OpenSSL does.
pub fn parse_fingerprint(text: &str) -> Option<Fingerprint> {
    let digits: String = text.strip_prefix("sha256:").unwrap_or(text).chars().filter(|c| *c != ':').collect();
    unhex(&digits.to_ascii_lowercase())?.try_into().ok()
}

/// A freshly made key with its self-signed certificate. Clones share the key.
#[derive(Clone)]
pub struct Ephemeral {
    pub(super) key: Arc<CertifiedKey>,
    pub(super) certificate: Certificate,
    fingerprint: Fingerprint,
}

impl Ephemeral {
    /// Makes a key (ECDSA on P-256) and its certificate.
    ///
    /// # Errors
    /// [`CredentialsError::Make`] when the system has no random bytes.
    pub fn make() -> Result<Self, CredentialsError> {
        let key = KeyPair::generate().map_err(failed)?;
        let params = CertificateParams::new(vec![NAME.to_owned()]).map_err(failed)?;
        let der = params.self_signed(&key).map_err(failed)?.der().clone();
        let certificate = Certificate::parse(&der).map_err(|why| CredentialsError::Make(why.to_owned()))?;
        let fingerprint = fingerprint(&der);
        let private = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        let key = CertifiedKey::from_der(vec![der], private, &provider());
        let key = key.map(Arc::new).map_err(|error| CredentialsError::Make(error.to_string()))?;
        Ok(Self { key, certificate, fingerprint })
    }

    /// The fingerprint to send to the peer.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }
}

impl fmt::Debug for Ephemeral {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ephemeral").field("sha256", &self.certificate.sha256).finish_non_exhaustive()
    }
}

pub(super) fn fingerprint(der: &[u8]) -> Fingerprint {
    let mut out = [0; 32];
    out.copy_from_slice(digest::digest(&digest::SHA256, der).as_ref());
    out
}

/// Accepts only the certificate with this fingerprint, of a client or a server.
#[derive(Debug)]
pub(super) struct Pinned(pub(super) Fingerprint);

impl Pinned {
    fn check(&self, shown: &CertificateDer<'_>) -> Result<(), Error> {
        // Both fingerprints are public, so the comparison need not take constant time.
        match fingerprint(shown) == self.0 {
            true => Ok(()),
            false => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }
}

impl ChainVerifier for Pinned {
    fn verify_server(
        &self,
        leaf: &CertificateDer<'_>,
        _rest: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<(), Error> {
        self.check(leaf)
    }

    fn verify_client(
        &self,
        leaf: &CertificateDer<'_>,
        _rest: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<(), Error> {
        self.check(leaf)
    }
}
