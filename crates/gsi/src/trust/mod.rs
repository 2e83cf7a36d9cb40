//! Trust anchors: authorities, the names that they may certify, and their revocations.
//!
//! A [`TrustStore`] is built from certificates, signing policies and revocation lists; [`directory`] loads
//! them from a directory such as `/etc/grid-security/certificates`, and [`kept`] reloads its revocation
//! lists. webpki builds and verifies paths; signing policies, which every Grid site expects, are checked in
//! addition.

pub mod directory;
pub mod kept;
pub mod policy;

use std::sync::Arc;

use ring::digest::{Digest, SHA256, digest};
use rustls::pki_types::{CertificateDer, SignatureVerificationAlgorithm, TrustAnchor, UnixTime};
use webpki::{
    CertRevocationList, EndEntityCert, Error, ExpirationPolicy, ExtendedKeyUsageValidator, KeyPurposeIdIter,
    OwnedCertRevocationList, RevocationCheckDepth, RevocationOptionsBuilder, UnknownStatusPolicy, VerifiedPath,
};
use x509_parser::asn1_rs::FromDer;
use x509_parser::revocation_list::CertificateRevocationList;

use crate::certificate::{Certificate, Signed};
use crate::name::Name;
use crate::time::date;
use policy::SigningPolicy;

/// How to treat an authority without a signing policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MissingPolicy {
    /// Reject all of its certificates. The default, as in GCT.
    #[default]
    Refuse,
    /// Permit it any name.
    Allow,
}

/// Authorities with their signing policies and revocation lists.
#[derive(Default, Clone)]
pub struct TrustStore {
    /// All authorities, roots and intermediates.
    known: Vec<Certificate>,
    roots: Vec<Root>,
    anchors: Vec<TrustAnchor<'static>>,
    intermediates: Vec<CertificateDer<'static>>,
    policies: Vec<SigningPolicy>,
    lists: Vec<Arc<List>>,
    missing_policy: MissingPolicy,
}

#[derive(Clone)]
struct Root {
    not_before: i64,
    not_after: i64,
}

pub(crate) struct List {
    issuer: Name,
    issued: i64,
    next: Option<i64>,
    /// SHA-256 of the list.
    digest: Digest,
    list: CertRevocationList<'static>,
}

/// The reason why an end entity certificate is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// The path leads to no trusted authority.
    #[error("certificate {subject}: its issuer {issuer} leads to no trusted authority")]
    UnknownIssuer {
        /// The certificate.
        subject: String,
        /// Its issuer.
        issuer: String,
    },
    /// A certificate has expired.
    #[error("certificate {subject}: {whose} expired at {}", date(*.at))]
    Expired {
        /// The certificate.
        subject: String,
        /// Which one: the certificate itself, or an authority above it.
        whose: &'static str,
        /// When it expired, in seconds since 1970.
        at: i64,
    },
    /// A certificate is not valid yet.
    #[error("certificate {subject}: {whose} is not valid before {}; is the clock right?", date(*.at))]
    NotYet {
        /// The certificate.
        subject: String,
        /// Which one: the certificate itself, or an authority above it.
        whose: &'static str,
        /// Start of validity, in seconds since 1970.
        at: i64,
    },
    /// The issuer has revoked the certificate.
    #[error("certificate {subject}: it, or an authority above it, was revoked")]
    Revoked {
        /// The certificate.
        subject: String,
    },
    /// The revocation list has expired.
    #[error(
        "certificate {subject}: a revocation list of an authority above it expired at {}; fetch a new one",
        date(*.at)
    )]
    ListExpired {
        /// The certificate.
        subject: String,
        /// When it expired, in seconds since 1970.
        at: i64,
    },
    /// The authority has no signing policy.
    #[error("certificate {subject}: there is no signing policy of {authority}, which issued it")]
    NoPolicy {
        /// The certificate.
        subject: String,
        /// The issuer.
        authority: String,
    },
    /// The signing policy does not permit the name.
    #[error("certificate {subject}: the signing policy of {authority} does not permit this name")]
    Policy {
        /// The certificate.
        subject: String,
        /// The issuer.
        authority: String,
    },
    /// Another requirement of RFC 5280 is violated.
    #[error("certificate {subject}: {problem}")]
    Other {
        /// The certificate.
        subject: String,
        /// The problem.
        problem: String,
    },
}

/// The reason why a certificate or a list cannot be added to a store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthorityError {
    /// The certificate is not an authority's.
    #[error("{0} is not the certificate of an authority (basicConstraints CA:TRUE is expected)")]
    NotAnAuthority(String),
    /// webpki cannot use the certificate.
    #[error("authority {subject}: {problem}")]
    Unusable {
        /// The authority.
        subject: String,
        /// The problem.
        problem: String,
    },
    /// The list is malformed or of an unsupported kind.
    #[error("the revocation list cannot be used: {0}")]
    List(String),
}

impl TrustStore {
    /// Creates an empty store, which trusts nobody.
    pub fn new(missing_policy: MissingPolicy) -> Self {
        Self { missing_policy, ..Self::default() }
    }

    /// Adds an authority. A self-signed one becomes a trust anchor; others only serve as intermediates.
    ///
    /// # Errors
    /// [`AuthorityError`].
    pub fn add_authority(&mut self, certificate: &Certificate) -> Result<(), AuthorityError> {
        let subject = certificate.subject();
        if !certificate.may_be_authority() {
            return Err(AuthorityError::NotAnAuthority(subject.to_string()));
        }
        self.known.push(certificate.clone());
        if !certificate.is_self_issued() {
            self.intermediates.push(certificate.der().clone());
            return Ok(());
        }
        let anchor = webpki::anchor_from_trusted_cert(certificate.der())
            .map_err(|error| AuthorityError::Unusable { subject: subject.to_string(), problem: explain(&error) })?
            .to_owned();
        if !self.anchors.contains(&anchor) {
            self.anchors.push(anchor);
            self.roots.push(Root { not_before: certificate.not_before(), not_after: certificate.not_after() });
        }
        Ok(())
    }

    /// Adds a signing policy.
    pub fn add_policy(&mut self, policy: SigningPolicy) {
        if !self.policies.contains(&policy) {
            self.policies.push(policy);
        }
    }

    /// Adds a DER-encoded revocation list. Of several lists of one authority, the latest applies.
    ///
    /// # Errors
    /// [`AuthorityError::List`].
    pub fn add_list(&mut self, der: &[u8]) -> Result<(), AuthorityError> {
        let new = List::parse(der)?;
        if self.list_of(&new.issuer).is_none_or(|old| old.issued < new.issued) {
            self.put_list(new);
        }
        Ok(())
    }

    /// Parses a DER-encoded revocation list that arrived after the store was built; `None` if it is older
    /// than the one in force, or its issuer is unknown.
    ///
    /// # Errors
    /// [`AuthorityError::List`]: applying the list would reject valid certificates.
    fn newer_list(
        &self,
        der: &[u8],
        algorithms: &[&dyn SignatureVerificationAlgorithm],
        now: i64,
    ) -> Result<Option<List>, AuthorityError> {
        let new = List::parse(der)?;
        let mut authorities = self.known.iter().filter(|authority| authority.subject().is(&new.issuer)).peekable();
        if authorities.peek().is_none() || self.list_of(&new.issuer).is_some_and(|old| old.issued > new.issued) {
            return Ok(None);
        }
        let wrong = |why: String| AuthorityError::List(format!("of {}: {why}", new.issuer));
        let signed = Signed::parse(der).ok_or_else(|| wrong("its signature is not well formed".to_owned()))?;
        if !authorities.any(|authority| authority.has_signed(&signed, algorithms)) {
            return Err(wrong("it is not signed by the authority".to_owned()));
        }
        match new.next {
            Some(next) if next < now => Err(wrong(format!("it expired at {}", date(next)))),
            _ => Ok(Some(new)),
        }
    }

    /// Replaces all lists of the issuer by this one.
    fn put_list(&mut self, new: List) {
        self.lists.retain(|old| !old.issuer.is(&new.issuer));
        self.lists.push(Arc::new(new));
    }

    fn list_of(&self, issuer: &Name) -> Option<&List> {
        self.lists.iter().find(|list| list.issuer.is(issuer)).map(|list| &**list)
    }

    /// Whether both accept the same certificates, at any time.
    pub fn is_as(&self, other: &Self) -> bool {
        let known = |one: &Self| one.known.iter().map(|authority| authority.der().clone()).collect::<Vec<_>>();
        self.missing_policy == other.missing_policy
            && self.policies == other.policies
            && known(self) == known(other)
            && self.lists.len() == other.lists.len()
            && self.lists.iter().all(|list| other.list_of(&list.issuer).is_some_and(|of| of.is_as(list)))
    }

    /// The number of trust anchors.
    pub fn authorities(&self) -> usize {
        self.anchors.len()
    }

    /// Verifies an end entity certificate up to a trust anchor; `now` is in seconds since 1970. `further` are
    /// the other certificates that the peer sent.
    ///
    /// # Errors
    /// [`PathError`].
    pub(crate) fn verify(
        &self,
        certificate: &Certificate,
        further: &[Certificate],
        algorithms: &[&dyn SignatureVerificationAlgorithm],
        now: i64,
    ) -> Result<(), PathError> {
        let fail = |error: Error| self.fail(certificate, &error);
        let end_entity = EndEntityCert::try_from(certificate.der()).map_err(fail)?;
        let between: Vec<CertificateDer<'_>> =
            further.iter().map(|one| one.der().clone()).chain(self.intermediates.iter().cloned()).collect();
        let lists: Vec<&CertRevocationList<'_>> = self.lists.iter().map(|one| &one.list).collect();
        let revocation = RevocationOptionsBuilder::new(&lists).ok().map(|options| {
            options
                .with_depth(RevocationCheckDepth::Chain)
                .with_status_policy(UnknownStatusPolicy::Allow)
                .with_expiration_policy(ExpirationPolicy::Enforce)
                .build()
        });
        let time = UnixTime::since_unix_epoch(std::time::Duration::from_secs(now.max(0).unsigned_abs()));
        let path = end_entity
            .verify_for_usage(algorithms, &self.anchors, &between, time, AnyUse, revocation, None)
            .map_err(fail)?;
        self.check_root(certificate, &path, now)?;
        self.check_policies(certificate, &path)
    }

    /// webpki does not check the validity period of a trust anchor, so this does.
    fn check_root(&self, certificate: &Certificate, path: &VerifiedPath<'_>, now: i64) -> Result<(), PathError> {
        let subject = certificate.subject().to_string();
        let root = self.anchors.iter().position(|anchor| anchor == path.anchor()).and_then(|at| self.roots.get(at));
        match root {
            Some(root) if now > root.not_after => {
                Err(PathError::Expired { subject, whose: "the authority at its root", at: root.not_after })
            }
            Some(root) if now < root.not_before => {
                Err(PathError::NotYet { subject, whose: "the authority at its root", at: root.not_before })
            }
            _ => Ok(()),
        }
    }

    fn check_policies(&self, certificate: &Certificate, path: &VerifiedPath<'_>) -> Result<(), PathError> {
        self.check_policy(certificate.subject(), certificate.issuer())?;
        for between in path.intermediate_certificates() {
            let between = Certificate::parse(&between.der()).map_err(|error| PathError::Other {
                subject: certificate.subject().to_string(),
                problem: error.to_string(),
            })?;
            self.check_policy(between.subject(), between.issuer())?;
        }
        Ok(())
    }

    fn check_policy(&self, subject: &Name, authority: &Name) -> Result<(), PathError> {
        let (subject, authority) = (subject.as_str(), authority.as_str());
        let mut about = self.policies.iter().filter(|policy| policy.is_about(authority)).peekable();
        let error = match (about.peek().is_some(), self.missing_policy) {
            (false, MissingPolicy::Allow) => return Ok(()),
            (false, MissingPolicy::Refuse) => {
                PathError::NoPolicy { subject: subject.to_owned(), authority: authority.to_owned() }
            }
            (true, _) => PathError::Policy { subject: subject.to_owned(), authority: authority.to_owned() },
        };
        if about.any(|policy| policy.allows(authority, subject)) { Ok(()) } else { Err(error) }
    }

    fn fail(&self, certificate: &Certificate, error: &Error) -> PathError {
        let subject = certificate.subject().to_string();
        let seconds = |time: &UnixTime| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        let whose = |at, own| if at == own { "it" } else { "an authority above it" };
        match error {
            Error::UnknownIssuer => PathError::UnknownIssuer { subject, issuer: certificate.issuer().to_string() },
            Error::CertExpired { not_after, .. } => {
                let at = seconds(not_after);
                PathError::Expired { subject, whose: whose(at, certificate.not_after()), at }
            }
            Error::CertNotValidYet { not_before, .. } => {
                let at = seconds(not_before);
                PathError::NotYet { subject, whose: whose(at, certificate.not_before()), at }
            }
            Error::CertRevoked => PathError::Revoked { subject },
            Error::CrlExpired { next_update, .. } => PathError::ListExpired { subject, at: seconds(next_update) },
            other => PathError::Other { subject, problem: explain(other) },
        }
    }
}

impl List {
    fn is_as(&self, other: &Self) -> bool {
        self.digest.as_ref() == other.digest.as_ref()
    }

    fn parse(der: &[u8]) -> Result<Self, AuthorityError> {
        let (_, parsed) =
            CertificateRevocationList::from_der(der).map_err(|error| AuthorityError::List(error.to_string()))?;
        // For version 1, which has no version field, webpki reports only that the list is malformed.
        if parsed.version().is_none() {
            return Err(AuthorityError::List(explain(&Error::UnsupportedCrlVersion)));
        }
        let list = OwnedCertRevocationList::from_der(der).map_err(|error| AuthorityError::List(explain(&error)))?;
        Ok(Self {
            issuer: Name::new(parsed.issuer()),
            issued: parsed.last_update().timestamp(),
            next: parsed.next_update().map(|next| next.timestamp()),
            digest: digest(&SHA256, der),
            list: CertRevocationList::Owned(list),
        })
    }
}

/// Accepts any extended key usage, because Grid certificates serve at both ends of a connection: a person's
/// certificate is the server's when the person receives data. GCT ignores the extension, too. A malformed
/// extension is still rejected.
struct AnyUse;

impl ExtendedKeyUsageValidator for AnyUse {
    fn validate(&self, mut purposes: KeyPurposeIdIter<'_, '_>) -> Result<(), Error> {
        purposes.try_for_each(|purpose| purpose.map(drop))
    }
}

/// Describes the webpki errors that occur in practice.
fn explain(error: &Error) -> String {
    let words = match error {
        Error::CaUsedAsEndEntity => "is the certificate of an authority, used as a person's or a host's",
        Error::EndEntityUsedAsCa => "was issued by something that is not an authority",
        Error::InvalidSignatureForPublicKey => "it, or an authority above it, is not signed by the key of its issuer",
        Error::UnsupportedCertVersion => "is not of version 3 of X.509",
        Error::UnsupportedCriticalExtension => "it, or an authority above it, has an unknown critical extension",
        Error::PathLenConstraintViolated => "an authority above it allows fewer authorities below itself",
        Error::NameConstraintViolation => "an authority above it may not give this name (nameConstraints)",
        Error::UnsupportedCrlVersion => "is not of version 2",
        Error::IssuerNotCrlSigner => "a revocation list is by an authority whose key usage does not allow that",
        Error::UnsupportedSignatureAlgorithmContext(_)
        | Error::UnsupportedSignatureAlgorithmForPublicKeyContext(_)
        | Error::UnsupportedCrlSignatureAlgorithmContext(_)
        | Error::UnsupportedCrlSignatureAlgorithmForPublicKeyContext(_) => {
            "is signed with an algorithm that is not accepted here (SHA-256 or stronger, with RSA of 2048 to 8192 bits, \
             P-256, P-384 or Ed25519, is)"
        }
        Error::MaximumPathBuildCallsExceeded | Error::MaximumSignatureChecksExceeded => {
            "its chain offers too many paths to an authority"
        }
        _ => return format!("is not valid ({error:?})"),
    };
    words.to_owned()
}
