//! Verifies the certificate chains of peers up to trust anchors; [`super::pinned`] verifies them by a fingerprint instead.

use super::certificate::unusable;
use super::{CredentialsError, provider};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{Error, RootCertStore};
use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;

/// Decides whether a certificate chain, leaf first, identifies a peer.
pub(super) trait ChainVerifier: Debug + Send + Sync {
    /// Verifies the chain of the server `name`.
    fn verify_server(
        &self,
        leaf: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<(), Error>;

    /// Verifies the chain of a client.
    fn verify_client(&self, leaf: &CertificateDer<'_>, rest: &[CertificateDer<'_>], now: UnixTime)
    -> Result<(), Error>;
}

/// Verifies chains up to trust anchors.
#[derive(Debug)]
pub(super) struct Anchored {
    servers: Arc<WebPkiServerVerifier>,
    clients: Arc<dyn ClientCertVerifier>,
}

impl Anchored {
    /// Trusts `authorities`, which were read from `file`.
    /// `revoked` gives the lists of what they have revoked.
    pub(super) fn new(
        file: &Path,
        authorities: &[CertificateDer<'static>],
        revoked: &dyn Fn() -> Vec<CertificateRevocationListDer<'static>>,
    ) -> Result<Self, CredentialsError> {
        let mut roots = RootCertStore::empty();
        for (index, authority) in authorities.iter().enumerate() {
            roots
                .add(authority.clone())
                .map_err(|_| unusable(file, index, "cannot be an authority; expected the certificate of one"))?;
        }
        let roots = Arc::new(roots);
        let failed = |error: rustls::server::VerifierBuilderError| CredentialsError::Unusable {
            file: file.into(),
            problem: format!("it cannot be used with its lists of revoked certificates: {error}"),
        };
        // An authority without a list has revoked nothing that is known here. A list that is too old tells nothing.
        let servers = WebPkiServerVerifier::builder_with_provider(roots.clone(), provider())
            .with_crls(revoked())
            .allow_unknown_revocation_status()
            .enforce_revocation_expiration();
        let clients = WebPkiClientVerifier::builder_with_provider(roots, provider())
            .with_crls(revoked())
            .allow_unknown_revocation_status()
            .enforce_revocation_expiration();
        let (servers, clients) = (servers.build().map_err(failed)?, clients.build().map_err(failed)?);
        Ok(Self { servers, clients })
    }
}

impl ChainVerifier for Anchored {
    fn verify_server(
        &self,
        leaf: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<(), Error> {
        self.servers.verify_server_cert(leaf, rest, name, ocsp, now).map(drop)
    }

    fn verify_client(
        &self,
        leaf: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        self.clients.verify_client_cert(leaf, rest, now).map(drop)
    }
}
