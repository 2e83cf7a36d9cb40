//! A credential: a certificate chain and the private key of its leaf, in PEM files (proxy files,
//! `usercert.pem` and `userkey.pem`, `hostcert.pem` and `hostkey.pem`).

use std::fmt;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{PemObject, SectionKind};
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs1KeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer, SubjectPublicKeyInfoDer,
};
use rustls::sign::{CertifiedKey, Signer, SigningKey};
use rustls::{SignatureScheme, crypto};
use zeroize::{Zeroize, Zeroizing};

use crate::certificate::{Certificate, CertificateError, MAX_CHAIN};
use crate::pem;

/// A certificate chain, leaf first, and the leaf's private key, which is never shown.
#[derive(Clone)]
pub struct Credential {
    chain: Arc<[Certificate]>,
    key: Key,
}

/// A private key for signing. Its memory is wiped when the last copy is dropped; only its public half is ever
/// shown.
#[derive(Clone)]
pub struct Key {
    secret: Arc<Secret>,
    signing: Arc<dyn SigningKey>,
    public: SubjectPublicKeyInfoDer<'static>,
}

struct Secret(PrivateKeyDer<'static>);

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

/// The reason why a key cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The key has an unsupported type or size.
    #[error("the private key is not one that can be used here (RSA of 2048 to 8192 bits, P-256, P-384, Ed25519 are)")]
    Unsupported,
}

/// The reason why PEM text is no credential. `source` is the caller's name of the text, usually a file name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CredentialError {
    /// A PEM block is malformed.
    #[error("{source_name}: {problem}")]
    Pem {
        /// The text's name.
        source_name: String,
        /// The problem.
        problem: String,
    },
    /// The text contains no certificate.
    #[error("{0}: holds no certificate (a block that begins with -----BEGIN CERTIFICATE----- is expected)")]
    NoCertificate(String),
    /// The text contains more than [`MAX_CHAIN`] certificates.
    #[error("{source_name}: holds {found} certificates; at most {MAX_CHAIN} make up a credential")]
    TooMany {
        /// The text's name.
        source_name: String,
        /// The number of certificates.
        found: usize,
    },
    /// A certificate cannot be parsed.
    #[error("{source_name}: {problem}")]
    Certificate {
        /// The text's name.
        source_name: String,
        /// The problem.
        problem: CertificateError,
    },
    /// The text contains no private key.
    #[error("{0}: holds no private key")]
    NoKey(String),
    /// The private key is encrypted with a passphrase.
    #[error("{0}: the private key is encrypted; make a proxy from it with grid-proxy-init and use that")]
    Encrypted(String),
    /// The private key cannot be used.
    #[error("{source_name}: {problem}")]
    Key {
        /// The text's name.
        source_name: String,
        /// The problem.
        problem: KeyError,
    },
    /// Certificate and key do not belong together.
    #[error("{source_name}: the private key is not that of certificate {subject}")]
    Mismatch {
        /// The text's name.
        source_name: String,
        /// The subject of the first certificate.
        subject: String,
    },
}

impl Key {
    /// Loads a private key from DER.
    ///
    /// # Errors
    /// [`KeyError::Unsupported`].
    pub fn new(secret: PrivateKeyDer<'static>, provider: &CryptoProvider) -> Result<Self, KeyError> {
        let signing = provider.key_provider.load_private_key(secret.clone_key()).map_err(|_| KeyError::Unsupported)?;
        let public = signing.public_key().ok_or(KeyError::Unsupported)?.into_owned();
        Ok(Self { secret: Arc::new(Secret(secret)), signing, public })
    }

    /// The public half: a SubjectPublicKeyInfo in DER.
    pub fn public_key(&self) -> &[u8] {
        self.public.as_ref()
    }

    /// A signer for the first of these schemes that the key supports.
    pub(crate) fn signer(&self, schemes: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        self.signing.choose_scheme(schemes)
    }

    fn pem(&self) -> Zeroizing<String> {
        let label = match self.secret.0 {
            PrivateKeyDer::Pkcs1(_) => "RSA PRIVATE KEY",
            PrivateKeyDer::Sec1(_) => "EC PRIVATE KEY",
            _ => "PRIVATE KEY",
        };
        pem::encode(label, self.secret.0.secret_der())
    }
}

impl Credential {
    /// Parses a credential from a PEM text with the certificates, leaf first, and the key, in any order: a
    /// proxy file.
    ///
    /// # Errors
    /// [`CredentialError`], naming the text by `source`.
    pub fn from_pem(text: &[u8], source: &str, provider: &CryptoProvider) -> Result<Self, CredentialError> {
        Self::from_two_pems((text, source), (text, source), provider)
    }

    /// Parses a credential from two PEM texts, each with a name for errors: the certificates, leaf first, and
    /// the key.
    ///
    /// # Errors
    /// [`CredentialError`].
    pub fn from_two_pems(
        certificates: (&[u8], &str),
        key: (&[u8], &str),
        provider: &CryptoProvider,
    ) -> Result<Self, CredentialError> {
        let chain = read_chain(certificates.0, certificates.1)?;
        let key_source = key.1.to_owned();
        let key = Key::new(read_key(key.0, key.1)?, provider)
            .map_err(|problem| CredentialError::Key { source_name: key_source.clone(), problem })?;
        Self::new(chain, key).map_err(|subject| CredentialError::Mismatch { source_name: key_source, subject })
    }

    /// Combines a chain with the key of its first certificate.
    ///
    /// # Errors
    /// The subject of the first certificate if the key belongs to another one; empty if the chain is empty.
    pub(crate) fn new(chain: Vec<Certificate>, key: Key) -> Result<Self, String> {
        match chain.first() {
            Some(leaf) if leaf.public_key() == key.public_key() => Ok(Self { chain: chain.into(), key }),
            leaf => Err(leaf.map(|leaf| leaf.subject().to_string()).unwrap_or_default()),
        }
    }

    /// The leaf certificate, to which the key belongs.
    pub fn certificate(&self) -> &Certificate {
        // `new` has checked that the chain is not empty.
        &self.chain[0]
    }

    /// All certificates, leaf first.
    pub fn chain(&self) -> &[Certificate] {
        &self.chain
    }

    /// The private key.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The earliest end of validity in the chain, inclusive, in seconds since 1970.
    pub fn not_after(&self) -> i64 {
        self.chain.iter().map(Certificate::not_after).min().unwrap_or(i64::MIN)
    }

    /// The content of a proxy file: leaf certificate, private key, further certificates. It contains the key:
    /// keep it secret.
    pub fn to_pem(&self) -> Zeroizing<String> {
        let mut text = Zeroizing::new(String::new());
        for (at, certificate) in self.chain.iter().enumerate() {
            text.push_str(&pem::encode("CERTIFICATE", certificate.der()));
            if at == 0 {
                // Allocated at once: growing would leave a copy of the key in freed memory.
                let rest = self.key.pem();
                let room: usize = self.chain.iter().map(|one| one.der().len() * 2 + 128).sum();
                text.reserve_exact(rest.len() + room);
                text.push_str(&rest);
            }
        }
        text
    }

    pub(crate) fn certified(&self) -> CertifiedKey {
        let chain: Vec<CertificateDer<'static>> = self.chain.iter().map(|one| one.der().clone()).collect();
        CertifiedKey::new(chain, Arc::clone(&self.key.signing))
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential").field("chain", &self.chain).finish_non_exhaustive()
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(not shown)")
    }
}

/// The algorithms of *ring*, with which this crate is tested.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(crypto::ring::default_provider())
}

fn read_chain(text: &[u8], source: &str) -> Result<Vec<Certificate>, CredentialError> {
    let mut chain = Vec::new();
    for der in pem::blocks(text, SectionKind::Certificate) {
        let der = der.map_err(|problem| CredentialError::Pem { source_name: source.to_owned(), problem })?;
        let certificate = Certificate::parse(&der)
            .map_err(|problem| CredentialError::Certificate { source_name: source.to_owned(), problem })?;
        chain.push(certificate);
        if chain.len() > MAX_CHAIN {
            return Err(CredentialError::TooMany { source_name: source.to_owned(), found: chain.len() });
        }
    }
    if chain.is_empty() {
        return Err(CredentialError::NoCertificate(source.to_owned()));
    }
    Ok(chain)
}

fn read_key(text: &[u8], source: &str) -> Result<PrivateKeyDer<'static>, CredentialError> {
    let encrypted = |needle: &[u8]| text.windows(needle.len()).any(|window| window == needle);
    if encrypted(b"BEGIN ENCRYPTED PRIVATE KEY") || encrypted(b"Proc-Type: 4,ENCRYPTED") {
        return Err(CredentialError::Encrypted(source.to_owned()));
    }
    for section in <(SectionKind, Vec<u8>)>::pem_slice_iter(text) {
        let (kind, der) = section
            .map_err(|error| CredentialError::Pem { source_name: source.to_owned(), problem: pem::describe(&error) })?;
        return Ok(match kind {
            SectionKind::RsaPrivateKey => PrivatePkcs1KeyDer::from(der).into(),
            SectionKind::EcPrivateKey => PrivateSec1KeyDer::from(der).into(),
            SectionKind::PrivateKey => PrivatePkcs8KeyDer::from(der).into(),
            _ => continue,
        });
    }
    Err(CredentialError::NoKey(source.to_owned()))
}
