//! Whether a chain that begins with proxies holds (RFC 3820, §4; with GCT's rules where the RFC leaves room).

use rustls::crypto::CryptoProvider;

use crate::certificate::{AltName, Certificate, CertificateError, MAX_CHAIN, SignatureProblem};
use crate::kind::{Format, Kind, Proxy, Rights};
use crate::time::date;
use crate::trust::{PathError, TrustStore};

/// What is known of a peer, or of a credential, once its chain has been verified.
#[derive(Debug, Clone)]
pub struct Verified {
    identity: Certificate,
    end_entity: Certificate,
    limited: bool,
    proxies: usize,
    not_after: i64,
    chain: Vec<Certificate>,
}

/// Why a chain does not hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    /// Nothing in it.
    #[error("no certificate was presented")]
    Empty,
    /// More than [`MAX_CHAIN`].
    #[error("a chain of {0} certificates was presented; at most {MAX_CHAIN} are looked at")]
    TooLong(usize),
    /// One of them cannot be read.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// There are proxies only.
    #[error("the chain of {0} ends without the certificate that its first proxy was made from")]
    NoEndEntity(String),
    /// The chain begins with an authority, or a proxy was signed by one.
    #[error("{0} is the certificate of an authority where one of a person, host or service was expected")]
    Authority(String),
    /// A rule for proxies was broken.
    #[error("proxy {subject} {problem}")]
    Proxy {
        /// The proxy.
        subject: String,
        /// What is wrong with it.
        problem: ProxyProblem,
    },
    /// The end entity certificate is not to be trusted.
    #[error(transparent)]
    Path(#[from] PathError),
}

/// Which rule a proxy breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProxyProblem {
    /// The next certificate has another name than its issuer.
    #[error("names {0} as its issuer, but is followed by another certificate")]
    Issuer(String),
    /// Its subject must be the issuer's and one common name.
    #[error("must have the subject of its issuer, {0}, and one common name after it")]
    Subject(String),
    /// The signature.
    #[error(transparent)]
    Signature(#[from] SignatureProblem),
    /// Too early.
    #[error("is not valid before {}; is the clock right?", date(*.0))]
    NotYet(i64),
    /// Too late.
    #[error("expired at {}", date(*.0))]
    Expired(i64),
    /// Its issuer may not sign.
    #[error("is signed by {0}, whose key usage does not include digital signatures")]
    IssuerKeyUsage(String),
    /// Too many proxies after this one.
    #[error("allows {allowed} proxies after it, but {found} follow")]
    PathLength {
        /// What it allows.
        allowed: u32,
        /// What there is.
        found: usize,
    },
    /// One chain, two formats.
    #[error("is of another format than the proxy it was made from")]
    Mixed,
    /// More rights than its issuer.
    #[error("is not limited, but was made from a limited proxy")]
    WasLimited,
    /// A policy in an unknown language.
    #[error("is restricted by a policy in language {0}, which is not understood here")]
    Restricted(String),
    /// A critical extension.
    #[error("has the critical extension {0}, which is not understood here")]
    Extension(String),
    /// RFC 3820, §3.5.
    #[error("has alternative names, which a proxy may not have")]
    AlternativeNames,
}

impl Verified {
    /// Who it is: the subject of the end entity certificate, or of an independent proxy.
    pub fn identity(&self) -> &str {
        self.identity.subject().as_str()
    }

    /// The certificate that says so.
    pub fn certificate(&self) -> &Certificate {
        &self.identity
    }

    /// Whether the rights are those of a limited proxy.
    pub fn is_limited(&self) -> bool {
        self.limited
    }

    /// How many proxies the chain begins with.
    pub fn proxies(&self) -> usize {
        self.proxies
    }

    /// Until when all of it is valid, that second included, in seconds since 1970.
    pub fn not_after(&self) -> i64 {
        self.not_after
    }

    /// The chain as it was presented, leaf first.
    pub fn chain(&self) -> &[Certificate] {
        &self.chain
    }

    /// Whether the peer presented the certificate of this host name or address itself, and no proxy: whoever holds any
    /// certificate can give a proxy a host's name. The names are those of the end entity certificate, as GCT reads them: an
    /// alternative name (RFC 2818), or a common name `host`, `host/NAME` or `ftp/NAME` where it has no alternative DNS names.
    pub fn is_host(&self, host: &str) -> bool {
        self.proxies == 0 && crate::host::matches(&self.end_entity, host)
    }
}

/// Verifies a chain, leaf first, at a time in seconds since 1970: each proxy by the certificate it was made from, and
/// the end entity certificate up to an authority in `trust`.
///
/// # Errors
/// [`ChainError`]: the first rule that does not hold, with the certificate that breaks it.
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

/// Whether a proxy of this sort may have been made from such a proxy.
pub(crate) fn follows(proxy: &Proxy, parent: &Proxy) -> Result<(), ProxyProblem> {
    if proxy.format != parent.format {
        return Err(ProxyProblem::Mixed);
    }
    if parent.rights == Rights::Limited && !matches!(proxy.rights, Rights::Limited | Rights::Independent) {
        return Err(ProxyProblem::WasLimited);
    }
    Ok(())
}

/// The format that a proxy made from this certificate has.
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
