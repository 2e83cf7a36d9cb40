//! Keys of one use, for two ends that have told each other what to expect over a channel that they trust (the idea of RFC 8122):
//! each shows a certificate that nobody has signed, and takes the one of that fingerprint and no other. There are no authorities,
//! no names and no dates in it.

use super::authority::failed;
use super::certificate::Certificate;
use super::{CredentialsError, provider};
use rcgen::{CertificateParams, KeyPair};
use ring::digest;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use std::fmt;
use std::sync::Arc;

/// What a certificate of one use says of whom it is for: nobody (RFC 6761, section 6.4).
const NAME: &str = "pinned.invalid";

/// SHA-256 of a certificate, as it is encoded.
pub type Fingerprint = [u8; 32];

/// A key with a certificate, made here and shown to nobody before. Clones are the same.
#[derive(Clone)]
pub struct Ephemeral {
    pub(super) key: Arc<CertifiedKey>,
    pub(super) certificate: Certificate,
    fingerprint: Fingerprint,
}

impl Ephemeral {
    /// Makes one (ECDSA on P-256).
    ///
    /// # Errors
    /// [`CredentialsError::Make`]: the system has no random bytes.
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

    /// What the other end has to be told.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }
}

impl fmt::Debug for Ephemeral {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ephemeral").field("sha256", &self.certificate.sha256).finish_non_exhaustive()
    }
}

fn fingerprint(der: &[u8]) -> Fingerprint {
    let mut out = [0; 32];
    out.copy_from_slice(digest::digest(&digest::SHA256, der).as_ref());
    out
}

/// Takes the certificate of this fingerprint, in both roles.
#[derive(Debug)]
pub(super) struct Pinned(pub(super) Fingerprint);

impl Pinned {
    fn check(&self, shown: &CertificateDer<'_>) -> Result<(), Error> {
        // Both are public.
        match fingerprint(shown) == self.0 {
            true => Ok(()),
            false => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }
}

fn tls12(
    message: &[u8],
    cert: &CertificateDer<'_>,
    dss: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, Error> {
    verify_tls12_signature(message, cert, dss, &provider().signature_verification_algorithms)
}

fn tls13(
    message: &[u8],
    cert: &CertificateDer<'_>,
    dss: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, Error> {
    verify_tls13_signature(message, cert, dss, &provider().signature_verification_algorithms)
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(end_entity).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        tls12(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        tls13(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

impl ClientCertVerifier for Pinned {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(end_entity).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        tls12(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        tls13(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}
