//! Verifies a chain that may start with proxies (RFC 3820, §4, with GCT's rules where the RFC leaves a
//! choice).

use rustls::crypto::CryptoProvider;

use crate::certificate::{AltName, Certificate, CertificateError, MAX_CHAIN, SignatureProblem};
use crate::kind::{Format, Kind, Proxy, Rights};
use crate::time::date;
use crate::trust::{PathError, TrustStore};

/// A verified chain of a peer or a credential.
#[derive(Debug, Clone)]
pub struct Verified {
    identity: Certificate,
    end_entity: Certificate,
    limited: bool,
    proxies: usize,
    not_after: i64,
    chain: Vec<Certificate>,
}

/// The reason why a chain is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    /// The chain is empty.
    #[error("no certificate was presented")]
    Empty,
    /// The chain exceeds [`MAX_CHAIN`].
    #[error("a chain of {0} certificates was presented; at most {MAX_CHAIN} are accepted")]
    TooLong(usize),
    /// A certificate cannot be parsed.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// The chain consists only of proxies.
    #[error("the chain of {0} ends without the certificate that its first proxy was made from")]
    NoEndEntity(String),
    /// The chain starts with an authority, or an authority signed a proxy.
    #[error("{0} is the certificate of an authority where one of a person, host or service was expected")]
    Authority(String),
    /// A proxy violates a rule.
    #[error("proxy {subject} {problem}")]
    Proxy {
        /// The proxy.
        subject: String,
        /// The violated rule.
        problem: ProxyProblem,
    },
    /// The end entity certificate is not trusted.
    #[error(transparent)]
    Path(#[from] PathError),
}

/// The rule that a proxy violates.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProxyProblem {
    /// The next certificate is not the proxy's issuer.
    #[error("names {0} as its issuer, but is followed by another certificate")]
    Issuer(String),
    /// The subject must be the issuer's followed by one common name.
    #[error("must have the subject of its issuer, {0}, and one common name after it")]
    Subject(String),
    /// The signature is not valid.
    #[error(transparent)]
    Signature(#[from] SignatureProblem),
    /// The proxy is not valid yet.
    #[error("is not valid before {}; is the clock right?", date(*.0))]
    NotYet(i64),
    /// The proxy has expired.
    #[error("expired at {}", date(*.0))]
    Expired(i64),
    /// The issuer's key usage does not permit signing.
    #[error("is signed by {0}, whose key usage does not include digital signatures")]
    IssuerKeyUsage(String),
    /// The path length is exceeded.
    #[error("allows {allowed} proxies after it, but {found} follow")]
    PathLength {
        /// The permitted number of following proxies.
        allowed: u32,
        /// The actual number.
        found: usize,
    },
    /// The chain mixes two formats.
    #[error("has another format than the proxy it was made from")]
    Mixed,
    /// The proxy has more rights than its issuer.
    #[error("is not limited, but was made from a limited proxy")]
    WasLimited,
    /// The policy language is unknown.
    #[error("is restricted by a policy in language {0}, which is not understood here")]
    Restricted(String),
    /// A critical extension is unknown.
    #[error("has the critical extension {0}, which is not understood here")]
    Extension(String),
    /// Alternative names are forbidden (RFC 3820, §3.5).
    #[error("has alternative names, which a proxy may not have")]
    AlternativeNames,
}

impl Verified {
    /// The identity: the subject of the end entity certificate, or of an independent proxy.
    pub fn identity(&self) -> &str {
        self.identity.subject().as_str()
    }

    /// The certificate with that subject.
    pub fn certificate(&self) -> &Certificate {
        &self.identity
    }

    /// Whether the rights are those of a limited proxy.
    pub fn is_limited(&self) -> bool {
        self.limited
    }

    /// The number of proxies at the start of the chain.
    pub fn proxies(&self) -> usize {
        self.proxies
    }

    /// The earliest end of validity in the chain, inclusive, in seconds since 1970.
    pub fn not_after(&self) -> i64 {
        self.not_after
    }

    /// The presented chain, leaf first.
    pub fn chain(&self) -> &[Certificate] {
        &self.chain
    }

    /// Whether the peer presented the certificate of this host name or address itself. A proxy does not
    /// count, because the holder of any certificate can give a proxy a host's name. The names are those of
    /// the end entity certificate, as GCT reads them: an alternative name (RFC 2818), or a common name
    /// `host`, `host/NAME` or `ftp/NAME` if it has no alternative DNS names.
    pub fn is_host(&self, host: &str) -> bool {
        self.proxies == 0 && crate::host::matches(&self.end_entity, host)
    }
}

/// Verifies a chain, leaf first: each proxy against the certificate it was made from, and the end entity
/// certificate up to an authority in `trust`. `now` is in seconds since 1970.
///
/// # Errors
/// [`ChainError`]: the first violated rule, with the certificate that violates it.
pub fn verify(
    chain: Vec<Certificate>,
    trust: &TrustStore,
    provider: &CryptoProvider,
    now: i64,
) -> Result<Verified, ChainError> {
    if chain.len() > MAX_CHAIN {
        return Err(ChainError::TooLong(chain.len()));
    }
    let Some(leaf) = chain.first() else { return Err(ChainError::Empty) };
    let proxies = chain.iter().take_while(|certificate| certificate.kind().proxy().is_some()).count();
    let Some(end_entity) = chain.get(proxies) else { return Err(ChainError::NoEndEntity(leaf.subject().to_string())) };
    if *end_entity.kind() == Kind::Authority {
        return Err(ChainError::Authority(end_entity.subject().to_string()));
    }
    let algorithms = provider.signature_verification_algorithms.all;
    for depth in (0..proxies).rev() {
        check(&chain, depth, now, algorithms)
            .map_err(|problem| ChainError::Proxy { subject: chain[depth].subject().to_string(), problem })?;
    }
    trust.verify(end_entity, &chain[proxies + 1..], algorithms, now)?;

    let rights = |certificate: &Certificate| certificate.kind().proxy().map(|proxy| proxy.rights.clone());
    let identity =
        chain[..proxies].iter().find(|proxy| rights(proxy) == Some(Rights::Independent)).unwrap_or(end_entity).clone();
    let not_after = chain[..=proxies].iter().map(Certificate::not_after).min().unwrap_or(i64::MIN);
    let (end_entity, limited) = (end_entity.clone(), rights(leaf) == Some(Rights::Limited));
    Ok(Verified { identity, end_entity, limited, proxies, not_after, chain })
}

/// Checks the proxy at `depth`, 0 being the leaf, against the certificate it was made from.
fn check(
    chain: &[Certificate],
    depth: usize,
    now: i64,
    algorithms: &[&dyn rustls::pki_types::SignatureVerificationAlgorithm],
) -> Result<(), ProxyProblem> {
    let (certificate, issuer) = (&chain[depth], &chain[depth + 1]);
    let Kind::Proxy(proxy) = certificate.kind() else { return Ok(()) };
    if !certificate.issuer().is(issuer.subject()) {
        return Err(ProxyProblem::Issuer(certificate.issuer().to_string()));
    }
    if !certificate.subject().adds_common_name_to(issuer.subject()) {
        return Err(ProxyProblem::Subject(issuer.subject().to_string()));
    }
    if now < certificate.not_before() {
        return Err(ProxyProblem::NotYet(certificate.not_before()));
    }
    if now > certificate.not_after() {
        return Err(ProxyProblem::Expired(certificate.not_after()));
    }
    if issuer.key_usage().is_some_and(|usage| usage & 1 == 0) {
        return Err(ProxyProblem::IssuerKeyUsage(issuer.subject().to_string()));
    }
    if let Rights::Restricted(language) = &proxy.rights {
        return Err(ProxyProblem::Restricted(language.clone()));
    }
    if let Some(extension) = certificate.unknown_critical() {
        return Err(ProxyProblem::Extension(extension.to_owned()));
    }
    if !certificate.names().is_empty() {
        return Err(ProxyProblem::AlternativeNames);
    }
    if let Some(allowed) = proxy.path_length
        && depth > allowed as usize
    {
        return Err(ProxyProblem::PathLength { allowed, found: depth });
    }
    if let Kind::Proxy(parent) = issuer.kind() {
        follows(proxy, parent)?;
    }
    certificate.is_signed_by(issuer, algorithms)?;
    Ok(())
}

/// Whether a proxy like `proxy` may be made from the proxy `parent`.
pub(crate) fn follows(proxy: &Proxy, parent: &Proxy) -> Result<(), ProxyProblem> {
    if proxy.format != parent.format {
        return Err(ProxyProblem::Mixed);
    }
    if parent.rights == Rights::Limited && !matches!(proxy.rights, Rights::Limited | Rights::Independent) {
        return Err(ProxyProblem::WasLimited);
    }
    Ok(())
}

/// The format of proxies made from this certificate.
pub(crate) fn format_after(issuer: &Certificate) -> Format {
    issuer.kind().proxy().map_or(Format::Rfc, |proxy| proxy.format)
}

impl AltName {
    pub(crate) fn dns(&self) -> Option<&str> {
        match self {
            Self::Dns(name) => Some(name),
            Self::Address(_) => None,
        }
    }
}
