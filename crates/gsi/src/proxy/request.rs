//! Requests for a proxy (PKCS#10, RFC 2986), which the receiver of delegated rights sends with its public
//! key.

use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use x509_parser::asn1_rs::FromDer;
use x509_parser::certification_request::X509CertificationRequest;

use crate::certificate::{Certificate, SignatureProblem, Signed};
use crate::credential::{Credential, Key, KeyError};
use crate::sign::write_signed;

/// Largest request, in bytes; usual ones have 300 to 1000.
pub const MAX_REQUEST: usize = 16 * 1024;

/// A request to send, and its private key.
pub struct Request {
    der: Vec<u8>,
    key: Key,
}

/// The reason why a request was not made or is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The bytes are not PKCS#10.
    #[error("the request for delegation is not a PKCS#10 request in DER: {0}")]
    Malformed(String),
    /// The signature does not prove possession of the key.
    #[error("the request for delegation {0}")]
    Signature(#[from] SignatureProblem),
    /// The answer is for another key than the request's.
    #[error("the answer, {0:?}, is not for the key of the request")]
    OtherKey(String),
    /// Making a key failed.
    #[error("no key for a proxy could be made: {0}")]
    Key(String),
}

impl From<KeyError> for RequestError {
    fn from(error: KeyError) -> Self {
        Self::Key(error.to_string())
    }
}

impl Request {
    /// Makes a request with a new P-256 key from the operating system's random generator.
    ///
    /// # Errors
    /// [`RequestError::Key`] if the system has no random bytes.
    pub fn generate(provider: &CryptoProvider) -> Result<Self, RequestError> {
        let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &SystemRandom::new())
            .map_err(|_| RequestError::Key("the system gave no randomness".into()))?;
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(document.as_ref().to_vec()));
        Self::for_key(Key::new(key, provider)?)
    }

    /// Makes a request for an existing key.
    ///
    /// # Errors
    /// [`RequestError::Key`] if the key cannot sign.
    pub fn for_key(key: Key) -> Result<Self, RequestError> {
        let public = key.public_key().to_vec();
        let info = yasna::construct_der(|writer| {
            writer.write_sequence(|info| {
                info.next().write_u8(0);
                // The signer replaces the name, so any will do. Globus sends this one.
                info.next().write_sequence(|name| {
                    name.next().write_set(|relative| {
                        relative.next().write_sequence(|attribute| {
                            attribute.next().write_der(&crate::kind::oid("2.5.4.3"));
                            attribute.next().write_printable_string("proxy");
                        });
                    });
                });
                info.next().write_der(&public);
                info.next().write_tagged_implicit(yasna::Tag::context(0), |attributes| attributes.write_set(|_| {}));
            });
        });
        let der = write_signed(&info, &key).map_err(|error| RequestError::Key(error.to_string()))?;
        Ok(Self { der, key })
    }

    /// The public key of the request: a SubjectPublicKeyInfo in DER.
    pub fn public_key(&self) -> &[u8] {
        self.key.public_key()
    }

    /// The request's DER encoding.
    pub fn der(&self) -> &[u8] {
        &self.der
    }

    /// Combines the answer with the key: a chain that starts with the proxy and continues with the signer's
    /// chain.
    ///
    /// # Errors
    /// [`RequestError::OtherKey`] if it is for another key. [`verify`] must check the chain.
    ///
    /// [`verify`]: crate::proxy::verify::verify
    pub fn complete(self, chain: Vec<Certificate>) -> Result<Credential, RequestError> {
        Credential::new(chain, self.key).map_err(RequestError::OtherKey)
    }
}

/// Parses a request and checks that its sender possesses the key; returns the SubjectPublicKeyInfo in DER.
///
/// # Errors
/// [`RequestError`].
pub fn read(der: &[u8], provider: &CryptoProvider) -> Result<Vec<u8>, RequestError> {
    let malformed = |why: String| RequestError::Malformed(why);
    if der.len() > MAX_REQUEST {
        return Err(malformed(format!("it has {} bytes, at most {MAX_REQUEST} are read", der.len())));
    }
    let (rest, request) = X509CertificationRequest::from_der(der).map_err(|error| malformed(error.to_string()))?;
    if !rest.is_empty() {
        return Err(malformed(format!("{} bytes follow it", rest.len())));
    }
    let info = &request.certification_request_info;
    let signed = Signed::parse(der).ok_or_else(|| malformed("its signature is not well formed".into()))?;
    signed.verify(info.subject_pki.raw, provider.signature_verification_algorithms.all)?;
    Ok(info.subject_pki.raw.to_vec())
}
