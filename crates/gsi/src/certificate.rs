//! Parses a certificate with the extensions that Grid security uses, and verifies signatures with its key.

use std::fmt;

use rustls::pki_types::{CertificateDer, SignatureVerificationAlgorithm};
use x509_parser::asn1_rs::FromDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::oid_registry::{
    OID_X509_EXT_AUTHORITY_KEY_IDENTIFIER, OID_X509_EXT_BASIC_CONSTRAINTS, OID_X509_EXT_EXTENDED_KEY_USAGE,
    OID_X509_EXT_KEY_USAGE, OID_X509_EXT_SUBJECT_KEY_IDENTIFIER,
};

use crate::der::{BIT_STRING, SEQUENCE, element, extent};
use crate::kind::{DRAFT_EXTENSION, Kind, ProxyInfo, RFC_EXTENSION};
use crate::name::Name;

/// Largest certificate in bytes. Usual ones have one to two thousand; attribute certificates in proxies
/// (VOMS) add some tens of thousands.
pub const MAX_CERTIFICATE: usize = 256 * 1024;

/// Most certificates in a chain. Usual chains have three to six; each costs a signature verification.
pub const MAX_CHAIN: usize = 32;

/// The reason why bytes are not a usable certificate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    /// The certificate exceeds [`MAX_CERTIFICATE`].
    #[error("a certificate of {0} bytes; at most {MAX_CERTIFICATE} are read")]
    TooLong(usize),
    /// The bytes are not DER, or not X.509.
    #[error("not an X.509 certificate in DER: {0}")]
    Malformed(String),
    /// The proxy extension is malformed.
    #[error("certificate {subject}: its proxyCertInfo extension {problem}")]
    ProxyInfo {
        /// The certificate's subject.
        subject: String,
        /// The problem.
        problem: &'static str,
    },
}

/// A parsed certificate.
#[derive(Clone)]
pub struct Certificate {
    der: CertificateDer<'static>,
    subject: Name,
    issuer: Name,
    not_before: i64,
    not_after: i64,
    public_key: Vec<u8>,
    kind: Kind,
    version: u32,
    key_usage: Option<u16>,
    extended_key_usage: Option<(bool, Vec<u8>)>,
    unknown_critical: Option<String>,
    names: Vec<AltName>,
    signed: Signed,
}

/// A host's name in a certificate (subjectAltName).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AltName {
    Dns(String),
    Address(Vec<u8>),
}

/// A message with its signature.
#[derive(Clone)]
pub(crate) struct Signed {
    /// The signed bytes.
    pub(crate) message: Vec<u8>,
    /// Content of the AlgorithmIdentifier.
    pub(crate) algorithm: Vec<u8>,
    /// Content of the signature.
    pub(crate) signature: Vec<u8>,
}

impl Certificate {
    /// Parses one DER-encoded certificate, which must fill `der` completely.
    ///
    /// # Errors
    /// [`CertificateError`] if it is none, or has a malformed proxy extension.
    pub fn parse(der: &[u8]) -> Result<Self, CertificateError> {
        if der.len() > MAX_CERTIFICATE {
            return Err(CertificateError::TooLong(der.len()));
        }
        let (rest, parsed) =
            X509Certificate::from_der(der).map_err(|error| CertificateError::Malformed(error.to_string()))?;
        if !rest.is_empty() {
            return Err(CertificateError::Malformed(format!("{} bytes follow it", rest.len())));
        }
        let signed = Signed::parse(der).filter(Signed::names_one_algorithm);
        let signed = signed.ok_or_else(|| CertificateError::Malformed("its signature is not well formed".into()))?;
        let subject = Name::new(parsed.subject());
        let mut found = Extensions::default();
        for extension in parsed.extensions() {
            found.take(extension, &subject)?;
        }
        let authority = found.authority;
        let kind = Kind::of(authority, found.proxy, &subject);
        Ok(Self {
            der: CertificateDer::from(der.to_vec()),
            issuer: Name::new(parsed.issuer()),
            not_before: parsed.validity().not_before.timestamp(),
            not_after: parsed.validity().not_after.timestamp(),
            public_key: parsed.public_key().raw.to_vec(),
            kind,
            // The encoded 0 stands for version 1.
            version: parsed.version().0.saturating_add(1),
            key_usage: found.key_usage,
            extended_key_usage: found.extended_key_usage,
            unknown_critical: found.unknown_critical,
            names: found.names,
            signed,
            subject,
        })
    }

    /// The certificate's DER encoding.
    pub fn der(&self) -> &CertificateDer<'static> {
        &self.der
    }

    /// The subject's name.
    pub fn subject(&self) -> &Name {
        &self.subject
    }

    /// The issuer's name.
    pub fn issuer(&self) -> &Name {
        &self.issuer
    }

    /// Start of validity, in seconds since 1970.
    pub fn not_before(&self) -> i64 {
        self.not_before
    }

    /// End of validity, inclusive, in seconds since 1970.
    pub fn not_after(&self) -> i64 {
        self.not_after
    }

    /// Whether it is an authority's, an end entity's or a proxy's certificate.
    pub fn kind(&self) -> &Kind {
        &self.kind
    }

    /// The public key: a SubjectPublicKeyInfo in DER.
    pub fn public_key(&self) -> &[u8] {
        &self.public_key
    }

    /// Whether subject and issuer are equal, as in a root certificate.
    pub fn is_self_issued(&self) -> bool {
        self.subject.is(&self.issuer)
    }

    /// Whether it may belong to an authority: basicConstraints says so, or it is a self-issued certificate
    /// older than version 3, which has no extensions.
    pub(crate) fn may_be_authority(&self) -> bool {
        self.kind == Kind::Authority || (self.version < 3 && self.is_self_issued())
    }

    /// Key usage bits, bit 0 being digitalSignature; `None` if the certificate does not restrict them.
    pub(crate) fn key_usage(&self) -> Option<u16> {
        self.key_usage
    }

    /// Extended key usage: whether the extension is critical, and its value in DER.
    pub(crate) fn extended_key_usage(&self) -> Option<(bool, &[u8])> {
        self.extended_key_usage.as_ref().map(|(critical, value)| (*critical, value.as_slice()))
    }

    /// An unknown critical extension, if there is one.
    pub(crate) fn unknown_critical(&self) -> Option<&str> {
        self.unknown_critical.as_deref()
    }

    /// The host names and addresses of its subjectAltName.
    pub(crate) fn names(&self) -> &[AltName] {
        &self.names
    }

    /// Whether the certificate's key made this signature.
    pub(crate) fn has_signed(&self, signed: &Signed, algorithms: &[&dyn SignatureVerificationAlgorithm]) -> bool {
        signed.verify(&self.public_key, algorithms).is_ok()
    }

    /// Whether the key of `issuer` signed this certificate.
    pub(crate) fn is_signed_by(
        &self,
        issuer: &Certificate,
        algorithms: &[&dyn SignatureVerificationAlgorithm],
    ) -> Result<(), SignatureProblem> {
        self.signed.verify(&issuer.public_key, algorithms)
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificate").field("subject", &self.subject).field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// The parsed extensions of a certificate.
#[derive(Default)]
struct Extensions {
    authority: bool,
    proxy: Option<ProxyInfo>,
    key_usage: Option<u16>,
    extended_key_usage: Option<(bool, Vec<u8>)>,
    unknown_critical: Option<String>,
    names: Vec<AltName>,
}

/// Netscape's certificate type, 2.16.840.1.113730.1.1: old authorities mark it critical, and GCT ignores it.
const NETSCAPE_TYPE: &str = "2.16.840.1.113730.1.1";

impl Extensions {
    fn take(
        &mut self,
        extension: &x509_parser::extensions::X509Extension<'_>,
        subject: &Name,
    ) -> Result<(), CertificateError> {
        let oid = extension.oid.to_id_string();
        if oid == RFC_EXTENSION || oid == DRAFT_EXTENSION {
            let wrong = |problem| CertificateError::ProxyInfo { subject: subject.to_string(), problem };
            if self.proxy.is_some() {
                return Err(wrong("occurs twice"));
            }
            if !extension.critical {
                return Err(wrong("is not marked critical, as RFC 3820 demands"));
            }
            self.proxy = Some(ProxyInfo::parse(extension.value, oid == RFC_EXTENSION).map_err(wrong)?);
            return Ok(());
        }
        match extension.parsed_extension() {
            ParsedExtension::BasicConstraints(basic) => self.authority = basic.ca,
            ParsedExtension::KeyUsage(usage) => self.key_usage = Some(usage.flags),
            ParsedExtension::SubjectAlternativeName(names) => {
                self.names.extend(names.general_names.iter().filter_map(|name| match name {
                    GeneralName::DNSName(name) => Some(AltName::Dns((*name).to_owned())),
                    GeneralName::IPAddress(address) => Some(AltName::Address(address.to_vec())),
                    _ => None,
                }));
            }
            _ => {}
        }
        if extension.oid == OID_X509_EXT_EXTENDED_KEY_USAGE {
            self.extended_key_usage = Some((extension.critical, extension.value.to_vec()));
        }
        let known = [
            OID_X509_EXT_BASIC_CONSTRAINTS,
            OID_X509_EXT_KEY_USAGE,
            OID_X509_EXT_EXTENDED_KEY_USAGE,
            OID_X509_EXT_SUBJECT_KEY_IDENTIFIER,
            OID_X509_EXT_AUTHORITY_KEY_IDENTIFIER,
        ];
        if extension.critical && !known.contains(&extension.oid) && oid != NETSCAPE_TYPE {
            self.unknown_critical = Some(oid);
        }
        Ok(())
    }
}

/// The reason why a signature is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignatureProblem {
    /// The algorithm or the key size is not accepted.
    #[error(
        "is signed with an algorithm or a key that is not accepted here (RSA keys of 2048 to 8192 bits, P-256, P-384 or \
         Ed25519, with SHA-256 or stronger, are)"
    )]
    Unsupported,
    /// The key did not make this signature over these bytes.
    #[error("is not signed by the key of its issuer")]
    Wrong,
}

impl Signed {
    /// Splits a certificate or a request: `SEQUENCE { message, algorithm, signature }`.
    pub(crate) fn parse(der: &[u8]) -> Option<Self> {
        let (whole, rest) = element(der, SEQUENCE)?;
        let (head, content) = extent(whole)?;
        let (message, after) = whole.split_at_checked(head.checked_add(content)?)?;
        let (algorithm, after) = element(after, SEQUENCE)?;
        let (bits, end) = element(after, BIT_STRING)?;
        let (&unused, signature) = bits.split_first()?;
        (rest.is_empty() && end.is_empty() && unused == 0).then(|| Self {
            message: message.to_vec(),
            algorithm: algorithm.to_vec(),
            signature: signature.to_vec(),
        })
    }

    /// Whether the signed part of a certificate names the same algorithm as the outer field (RFC 5280,
    /// §4.1.1.2).
    fn names_one_algorithm(&self) -> bool {
        const VERSION: u8 = 0xa0;
        const INTEGER: u8 = 0x02;
        let inside = || {
            let (body, _) = element(&self.message, SEQUENCE)?;
            let body = element(body, VERSION).map_or(body, |(_, after)| after);
            let (_, after) = element(body, INTEGER)?;
            element(after, SEQUENCE).map(|(algorithm, _)| algorithm)
        };
        inside() == Some(&self.algorithm)
    }

    /// Verifies the signature with a SubjectPublicKeyInfo in DER.
    pub(crate) fn verify(
        &self,
        public_key: &[u8],
        algorithms: &[&dyn SignatureVerificationAlgorithm],
    ) -> Result<(), SignatureProblem> {
        let key = PublicKey::parse(public_key).ok_or(SignatureProblem::Unsupported)?;
        let mut problem = SignatureProblem::Unsupported;
        for algorithm in algorithms {
            if algorithm.signature_alg_id().as_ref() == self.algorithm
                && algorithm.public_key_alg_id().as_ref() == key.algorithm
            {
                if algorithm.verify_signature(key.bits, &self.message, &self.signature).is_ok() {
                    return Ok(());
                }
                problem = SignatureProblem::Wrong;
            }
        }
        // The verifiers report small keys like forged signatures; the key size distinguishes the two.
        if problem == SignatureProblem::Wrong && key.is_small_rsa() {
            problem = SignatureProblem::Unsupported;
        }
        Err(problem)
    }
}

/// The two fields of a SubjectPublicKeyInfo.
pub(crate) struct PublicKey<'a> {
    /// Content of the AlgorithmIdentifier.
    pub(crate) algorithm: &'a [u8],
    /// Content of the bit string.
    pub(crate) bits: &'a [u8],
}

impl<'a> PublicKey<'a> {
    pub(crate) fn parse(der: &'a [u8]) -> Option<Self> {
        let (inner, rest) = element(der, SEQUENCE)?;
        let (algorithm, key) = element(inner, SEQUENCE)?;
        let (bits, end) = element(key, BIT_STRING)?;
        let (&unused, bits) = bits.split_first()?;
        (rest.is_empty() && end.is_empty() && unused == 0).then_some(Self { algorithm, bits })
    }

    fn is_small_rsa(&self) -> bool {
        self.algorithm == rustls::pki_types::alg_id::RSA_ENCRYPTION.as_ref() && self.bits.len() < 2048 / 8
    }
}
