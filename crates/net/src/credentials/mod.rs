//! The identity of this end and its trust anchors: a certificate chain with its key, and the certificates of trusted
//! authorities, from PEM files (RFC 7468, RFC 5280).
//!
//! - [`Credentials`] makes the TLS configurations of both roles: TLS 1.3 only, mutual authentication, no tickets, no
//!   resumption and no early data, so that each connection proves both identities anew.
//! - A server may be told to admit clients without a certificate, and a client may have none: [`Credentials::open`],
//!   [`Credentials::trusting`].
//! - [`Credentials::reload`] rereads the files while connections are open. TLS configurations stay valid: they read the
//!   credentials in force at each handshake.
//! - [`Proof`] tells whether a peer's identity is still valid: until other credentials are in force, and no longer than its
//!   certificates.
//! - [`ClientJudge`] accepts clients by other rules: [`Credentials::judged_by`]. [`Credentials::with_proxy`] shows a proxy certificate.
//! - [`Trust`] may take certificates that authorities have revoked, and peers whose certificate is pinned.
//! - Two ends that can exchange fingerprints over a trusted channel need no files and no authority: [`Credentials::pinned`].
//! - [`Certificate`] shows the content of a certificate; [`Authority`] issues one, for sites without an authority.
//!
//! No message and no `Debug` output shows a key.

mod authority;
mod certificate;
mod chain;
mod error;
mod in_force;
mod judge;
mod pem;
mod pinned;
mod proof;
mod proxy;
#[cfg(test)]
mod tests;
mod trust;

pub use authority::{Authority, Issued};
pub use certificate::{Certificate, date};
pub use error::CredentialsError;
pub use judge::{ClientJudge, Judged};
pub use pinned::{Ephemeral, Fingerprint, parse_fingerprint};
pub use proof::{Identity, Proof};
pub use trust::Trust;

pub(crate) use pem::certificates;

use in_force::{ActiveCredentials, CredentialStore, OwnCertificate, PeerVerifier};
use judge::Verdict;
use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::server::NoServerSessionStorage;
use rustls::version::TLS13;
use rustls::{CipherSuite, ClientConfig, ServerConfig};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime};

/// How long before a certificate's expiry the daily warnings to its owner start: time for an authority that
/// signs by hand.
pub const EXPIRY_WARNING: Duration = Duration::from_secs(30 * 24 * 3600);

/// The files with the credentials.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CredentialFiles {
    /// This end's certificate, followed by the intermediate certificates up to its authority, if any.
    pub certificate: PathBuf,
    /// The private key, which only its owner may read.
    pub key: PathBuf,
    /// Certificates of the authorities that are trusted to sign peers' certificates (trust anchors).
    pub authorities: PathBuf,
}

/// A certificate with its key, and the trust anchors. Clones share the credentials in force.
#[derive(Debug, Clone)]
pub struct Credentials {
    files: Arc<Files>,
    holder: Arc<CredentialStore>,
    open: bool,
    judge: Option<Arc<dyn ClientJudge>>,
}

/// The files that the credentials were loaded from.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Files {
    /// The certificate and its key, if this end has them.
    own: Option<(PathBuf, PathBuf)>,
    /// A user's proxy certificate with its key.
    proxy: Option<PathBuf>,
    /// Whom it trusts.
    trust: Trust,
}

impl From<CredentialFiles> for Files {
    fn from(CredentialFiles { certificate, key, authorities }: CredentialFiles) -> Self {
        let trust = Trust { authorities: Some(authorities), ..Trust::default() };
        Self { own: Some((certificate, key)), proxy: None, trust }
    }
}

impl Credentials {
    /// Loads the credentials from the files.
    ///
    /// # Errors
    /// [`CredentialsError`], naming the file, and the line where there is one.
    pub fn load(files: CredentialFiles) -> Result<Self, CredentialsError> {
        Self::of(files.into())
    }

    /// Loads the trust anchors for a client that has no certificate.
    ///
    /// # Errors
    /// [`CredentialsError`], as [`Credentials::load`].
    pub fn trusting(authorities: &Path) -> Result<Self, CredentialsError> {
        let trust = Trust { authorities: Some(authorities.to_owned()), ..Trust::default() };
        Self::of(Files { own: None, proxy: None, trust })
    }

    /// The same for a user with a proxy certificate (RFC 3820) in `proxy`, if any, with its key and its chain. Servers that take proxies
    /// see it, and no others. Each handshake reads the file; a client whose proxy cannot be used shows none.
    #[must_use]
    pub fn with_proxy(&self, proxy: Option<PathBuf>) -> Self {
        Self { files: Arc::new(Files { proxy, ..Files::clone(&self.files) }), ..self.clone() }
    }

    /// Whether the proxy certificate in `file` could be shown at `now`.
    ///
    /// # Errors
    /// [`CredentialsError`]: it cannot be read, or has expired.
    pub fn check_proxy(file: &Path, now: SystemTime) -> Result<(), CredentialsError> {
        proxy::read(file, now).map(drop)
    }

    /// Loads a certificate and its key, with whom they trust.
    ///
    /// # Errors
    /// [`CredentialsError`], as [`Credentials::load`].
    pub fn load_with(certificate: PathBuf, key: PathBuf, trust: Trust) -> Result<Self, CredentialsError> {
        Self::of(Files { own: Some((certificate, key)), proxy: None, trust })
    }

    /// Credentials that present `own` and accept only a peer whose certificate has the fingerprint `peer`.
    pub fn pinned(own: &Ephemeral, peer: Fingerprint) -> Self {
        let files = Files { own: None, proxy: None, trust: Trust::default() };
        let holder = CredentialStore::new(ActiveCredentials::pinned(own, peer));
        Self { files: Arc::new(files), holder: Arc::new(holder), open: false, judge: None }
    }

    fn of(files: Files) -> Result<Self, CredentialsError> {
        let holder = CredentialStore::new(ActiveCredentials::load(&files)?);
        Ok(Self { files: Arc::new(files), holder: Arc::new(holder), open: false, judge: None })
    }

    /// The same credentials, which as a server also admit clients without a certificate. Such clients are
    /// anonymous, and their connections are encrypted; a certificate that a client does present must still be
    /// trusted.
    #[must_use]
    pub fn open(&self) -> Self {
        Self { open: true, ..self.clone() }
    }

    /// The same credentials, which as a server also admit clients that `judge` accepts, if the authorities do not vouch for them.
    #[must_use]
    pub fn judged_by(&self, judge: Arc<dyn ClientJudge>) -> Self {
        Self { judge: Some(judge), ..self.clone() }
    }

    /// Whether both were loaded from the same files of certificates, whatever the content was, and whomever they do not trust or have
    /// pinned.
    pub fn same_files(&self, other: &Self) -> bool {
        let (own, other) = (&self.files, &other.files);
        own.own == other.own && own.trust.authorities == other.trust.authorities
    }

    /// Rereads the files; every later handshake uses the new content. Returns whether anything changed.
    ///
    /// # Errors
    /// [`CredentialsError`]; the previous credentials stay in force.
    pub fn reload(&self) -> Result<bool, CredentialsError> {
        if self.files.own.is_none() && self.files.trust.authorities.is_none() {
            // Pinned credentials have no files.
            return Ok(false);
        }
        Ok(self.holder.replace(Arc::new(ActiveCredentials::load(&self.files)?)))
    }

    /// Puts the credentials of `other` in force here; every later handshake uses them. Returns whether
    /// anything changed.
    pub fn adopt(&self, other: &Self) -> bool {
        self.holder.replace(other.holder.get())
    }

    /// Invalidates every [`Proof`] made with these credentials, because other credentials replace them.
    pub fn retire(&self) {
        self.holder.invalidate();
    }

    /// The proof for a handshake that begins now.
    pub fn proof(&self) -> Proof {
        Proof::new(self.holder.clone(), None)
    }

    /// The certificate in force, if this end has one.
    pub fn certificate(&self) -> Option<Certificate> {
        self.holder.get().certificate().cloned()
    }

    /// The earliest expiry that matters: of this end's certificate chain, or of the last valid trust anchor.
    pub fn expires(&self) -> SystemTime {
        let now = self.holder.get();
        now.expires.map_or(now.authority_expires, |own| own.min(now.authority_expires))
    }

    /// The earliest expiry in this end's certificate chain; `None` without a certificate.
    pub fn certificate_expires(&self) -> Option<SystemTime> {
        self.holder.get().expires
    }

    /// The latest expiry of the trust anchors.
    pub fn authority_expires(&self) -> SystemTime {
        self.holder.get().authority_expires
    }

    /// A warning for the owner if, at `now`, the certificate expires within [`EXPIRY_WARNING`] or is not
    /// valid yet.
    pub fn warning(&self, now: SystemTime) -> Option<String> {
        let in_force = self.holder.get();
        let authorities = || self.files.trust.authorities.as_deref().unwrap_or(Path::new(""));
        let file = self.files.own.as_ref().map_or_else(authorities, |(certificate, _)| certificate).display();
        let starts = in_force.certificate().map(|own| own.not_before).filter(|starts| now < *starts);
        let starts = starts.map(|starts| {
            format!("the certificate in {file} is not valid before {}: is the clock right?", date(starts))
        });
        let expires = self.expires();
        let expires = || match expires.duration_since(now) {
            Ok(left) if left > EXPIRY_WARNING => None,
            Ok(left) => {
                let days = left.as_secs() / (24 * 3600);
                Some(format!("the certificate in {file} or its authority expires in {days} days, on {}", date(expires)))
            }
            Err(_) => Some(format!(
                "the certificate in {file} or its authority expired on {}: peers refuse it",
                date(expires)
            )),
        };
        match (starts.or_else(expires), in_force.trust_warning(now)) {
            (Some(own), Some(trust)) => Some(format!("{own}; {trust}")),
            (own, trust) => own.or(trust),
        }
    }

    /// The TLS configuration of a client. The server must present a certificate for the name in the handshake
    /// and choose one of `protocols` (ALPN, RFC 7301).
    pub fn client_config(&self, protocols: &[&[u8]]) -> Arc<ClientConfig> {
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .unwrap_or_else(|_| unreachable!("the provider has suites of TLS 1.3"))
            .dangerous()
            .with_custom_certificate_verifier(self.verifier(false, None))
            .with_client_cert_resolver(self.own_certificate());
        config.resumption = Resumption::disabled();
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        Arc::new(config)
    }

    /// The TLS configuration of a server. The client must present a certificate, unless these credentials are
    /// [open](Credentials::open); the caller reads the client's name from the connection. No judge is asked.
    pub fn server_config(&self, protocols: &[&[u8]]) -> Arc<ServerConfig> {
        self.server(protocols, None)
    }

    /// The TLS configuration of a server for one handshake that begins now, and the proof of what the client shows in it.
    pub fn server_handshake(&self, protocols: &[&[u8]]) -> (Arc<ServerConfig>, Proof) {
        let verdict = self.judge.clone().map(|judge| Arc::new(Verdict::new(judge)));
        let proof = Proof::new(self.holder.clone(), verdict.clone());
        (self.server(protocols, verdict), proof)
    }

    fn server(&self, protocols: &[&[u8]], verdict: Option<Arc<Verdict>>) -> Arc<ServerConfig> {
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .unwrap_or_else(|_| unreachable!("the provider has suites of TLS 1.3"))
            .with_client_cert_verifier(self.verifier(self.open, verdict))
            .with_cert_resolver(self.own_certificate());
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.max_early_data_size = 0;
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        Arc::new(config)
    }

    fn verifier(&self, open: bool, verdict: Option<Arc<Verdict>>) -> Arc<PeerVerifier> {
        Arc::new(PeerVerifier { holder: self.holder.clone(), open, verdict })
    }

    fn own_certificate(&self) -> Arc<OwnCertificate> {
        Arc::new(OwnCertificate { holder: self.holder.clone(), proxy: self.files.proxy.clone() })
    }
}

/// TLS 1.3 cipher suites; the first is the fastest on processors that gateways usually run on.
fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| {
        let mut provider = ring::default_provider();
        provider.cipher_suites.retain(|suite| suite.tls13().is_some());
        provider.cipher_suites.sort_by_key(|suite| suite.suite() != CipherSuite::TLS13_AES_128_GCM_SHA256);
        Arc::new(provider)
    });
    PROVIDER.clone()
}
