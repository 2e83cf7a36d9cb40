//! Who this end is and whom it trusts: a certificate with its key, and the authorities whose certificates count, from PEM files
//! (RFC 7468, RFC 5280).
//!
//! - [`Credentials`] gives the TLS configurations of both roles: TLS 1.3 alone, both ends with certificates, no tickets, no
//!   resumption and no early data, so that each connection proves anew who is at its ends.
//! - An end that is connected to may take those who show none as well, where it was told to, and an end that only connects may
//!   have none: [`Credentials::open`], [`Credentials::trusting`].
//! - Files are read again while connections are open and without a new configuration: the configurations ask for what is in
//!   force at each handshake ([`Credentials::reload`]).
//! - What an end has proved counts as long as that stays in force, and no longer than its certificates do: [`Proof`].
//! - Two ends that can tell each other what to expect need no files and no authority: [`Credentials::pinned`].
//! - [`Certificate`] says what a certificate says; [`Authority`] makes one, for those who have none.
//!
//! No message and no `Debug` shows a key.

mod authority;
mod certificate;
mod error;
mod in_force;
mod pem;
mod pinned;
mod proof;
#[cfg(test)]
mod tests;

pub use authority::{Authority, Issued};
pub use certificate::{Certificate, date};
pub use error::CredentialsError;
pub use pinned::{Ephemeral, Fingerprint};
pub use proof::{Identity, Proof};

use in_force::{Clients, Holder, InForce, Own, Servers};
use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::server::NoServerSessionStorage;
use rustls::version::TLS13;
use rustls::{CipherSuite, ClientConfig, ServerConfig};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime};

/// From this long before a certificate expires, its owner is told every day: time for an authority that signs by hand.
pub const EXPIRY_WARNING: Duration = Duration::from_secs(30 * 24 * 3600);

/// Where credentials are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CredentialFiles {
    /// This end's certificate, followed by those between it and its authority, if any.
    pub certificate: PathBuf,
    /// Its private key, which nobody but its owner may read.
    pub key: PathBuf,
    /// Certificates of the authorities that may vouch for the other end.
    pub authorities: PathBuf,
}

/// A certificate with its key and the authorities that are trusted. A clone shares what is in force with its original.
#[derive(Debug, Clone)]
pub struct Credentials {
    files: Arc<Files>,
    holder: Arc<Holder>,
    open: bool,
}

/// What was read.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Files {
    /// The certificate and its key, of an end that has them.
    own: Option<(PathBuf, PathBuf)>,
    authorities: PathBuf,
}

impl From<CredentialFiles> for Files {
    fn from(CredentialFiles { certificate, key, authorities }: CredentialFiles) -> Self {
        Self { own: Some((certificate, key)), authorities }
    }
}

impl Credentials {
    /// Reads the files.
    ///
    /// # Errors
    /// [`CredentialsError`], naming the file, and the line where there is one.
    pub fn load(files: CredentialFiles) -> Result<Self, CredentialsError> {
        Self::of(files.into())
    }

    /// Those of an end that only connects, and has no certificate to show: it knows whom to trust, and no more.
    ///
    /// # Errors
    /// [`CredentialsError`], as [`Credentials::load`].
    pub fn trusting(authorities: &Path) -> Result<Self, CredentialsError> {
        Self::of(Files { own: None, authorities: authorities.to_owned() })
    }

    /// Those of an end that shows `own`, and believes whoever shows the certificate of the fingerprint `peer`, and nobody else.
    pub fn pinned(own: &Ephemeral, peer: Fingerprint) -> Self {
        let files = Files { own: None, authorities: PathBuf::new() };
        let holder = Holder::new(InForce::pinned(own, peer));
        Self { files: Arc::new(files), holder: Arc::new(holder), open: false }
    }

    fn of(files: Files) -> Result<Self, CredentialsError> {
        let holder = Holder::new(InForce::load(&files)?);
        Ok(Self { files: Arc::new(files), holder: Arc::new(holder), open: false })
    }

    /// The same, which when connected to takes also those who show no certificate. Nothing is known of them then but that
    /// nobody else reads or writes what they do; a certificate that is shown still has to be one that is trusted.
    #[must_use]
    pub fn open(&self) -> Self {
        Self { open: true, ..self.clone() }
    }

    /// Whether these come from the same files as `other`, whatever was in them.
    pub fn same_files(&self, other: &Self) -> bool {
        self.files == other.files
    }

    /// Reads the files again; every later handshake uses them. Says whether anything is different.
    ///
    /// # Errors
    /// [`CredentialsError`]; what was in force stays so.
    pub fn reload(&self) -> Result<bool, CredentialsError> {
        if self.files.authorities.as_os_str().is_empty() {
            // Those that are pinned come from no files.
            return Ok(false);
        }
        Ok(self.holder.replace(Arc::new(InForce::load(&self.files)?)))
    }

    /// Puts in force here what `other` has read; every later handshake uses it. Says whether anything is different.
    pub fn adopt(&self, other: &Self) -> bool {
        self.holder.replace(other.holder.get())
    }

    /// Others are used from now on: what was proved to these counts no longer.
    pub fn retire(&self) {
        self.holder.end_turn();
    }

    /// Of what is proved in a handshake that begins now.
    pub fn proof(&self) -> Proof {
        Proof::new(self.holder.clone())
    }

    /// What the certificate in force says; none of an end that has none.
    pub fn certificate(&self) -> Option<Certificate> {
        self.holder.get().certificate().cloned()
    }

    /// When the first of those in force expires: this end's certificate, one between it and its authority, or an authority
    /// that alone is trusted.
    pub fn expires(&self) -> SystemTime {
        let now = self.holder.get();
        now.expires.map_or(now.authority_expires, |own| own.min(now.authority_expires))
    }

    /// When this end's certificate expires, or one between it and its authority. None without a certificate.
    pub fn certificate_expires(&self) -> Option<SystemTime> {
        self.holder.get().expires
    }

    /// When the last of the authorities expires that are trusted here.
    pub fn authority_expires(&self) -> SystemTime {
        self.holder.get().authority_expires
    }

    /// What to tell the owner at `now`, if the certificate expires within [`EXPIRY_WARNING`] or is not valid yet.
    pub fn warning(&self, now: SystemTime) -> Option<String> {
        let in_force = self.holder.get();
        let file = self.files.own.as_ref().map_or(&self.files.authorities, |(certificate, _)| certificate).display();
        if let Some(starts) = in_force.certificate().map(|own| own.not_before).filter(|starts| now < *starts) {
            return Some(format!(
                "the certificate in {file} is not valid before {}: is the clock right?",
                date(starts)
            ));
        }
        let expires = self.expires();
        match expires.duration_since(now) {
            Ok(left) if left > EXPIRY_WARNING => None,
            Ok(left) => {
                let days = left.as_secs() / (24 * 3600);
                Some(format!("the certificate in {file} or its authority expires in {days} days, on {}", date(expires)))
            }
            Err(_) => Some(format!(
                "the certificate in {file} or its authority expired on {}: peers refuse it",
                date(expires)
            )),
        }
    }

    /// For those who connect. The other end has to show a certificate for the name that is connected to, and to choose one of
    /// `protocols` (RFC 7301).
    pub fn client_config(&self, protocols: &[&[u8]]) -> Arc<ClientConfig> {
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .unwrap_or_else(|_| unreachable!("the provider has suites of TLS 1.3"))
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Servers(self.holder.clone())))
            .with_client_cert_resolver(Arc::new(Own(self.holder.clone())));
        config.resumption = Resumption::disabled();
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        Arc::new(config)
    }

    /// For those who are connected to. The other end has to show a certificate, unless these are [open](Credentials::open);
    /// whose it is, the connection says.
    pub fn server_config(&self, protocols: &[&[u8]]) -> Arc<ServerConfig> {
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .unwrap_or_else(|_| unreachable!("the provider has suites of TLS 1.3"))
            .with_client_cert_verifier(Arc::new(Clients { holder: self.holder.clone(), open: self.open }))
            .with_cert_resolver(Arc::new(Own(self.holder.clone())));
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.max_early_data_size = 0;
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        Arc::new(config)
    }
}

/// Suites of TLS 1.3, the fastest of the processors that gateways run on first.
fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| {
        let mut provider = ring::default_provider();
        provider.cipher_suites.retain(|suite| suite.tls13().is_some());
        provider.cipher_suites.sort_by_key(|suite| suite.suite() != CipherSuite::TLS13_AES_128_GCM_SHA256);
        Arc::new(provider)
    });
    PROVIDER.clone()
}
