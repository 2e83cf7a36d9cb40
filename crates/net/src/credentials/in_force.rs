//! What is in force, and the parts of a TLS configuration that ask for it at each handshake.

use super::certificate::{Certificate, unusable};
use super::pinned::{Ephemeral, Fingerprint, Pinned};
use super::{CredentialsError, Files, pem, provider};
use rustls::client::ResolvesClientCert;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;
use tokio::sync::watch;

/// What the files said.
pub(super) struct InForce {
    /// When the first of this end's chain expires.
    pub(super) expires: Option<SystemTime>,
    /// When the last authority expires that is trusted: of several, one that expires is one that was replaced.
    pub(super) authority_expires: SystemTime,
    /// This end's own certificate with its key.
    own: Option<(Certificate, Arc<CertifiedKey>)>,
    authorities: Vec<CertificateDer<'static>>,
    servers: Arc<dyn ServerCertVerifier>,
    clients: Arc<dyn ClientCertVerifier>,
}

impl InForce {
    pub(super) fn load(files: &Files) -> Result<Self, CredentialsError> {
        let own = files.own.as_ref().map(|(certificate, key)| own(certificate, key)).transpose()?;
        let authorities = pem::certificates(&files.authorities)?;
        let trusted = parse_all(&files.authorities, &authorities)?;
        let last_authority = trusted.iter().map(|authority| authority.not_after).max();
        let authority_expires = last_authority.unwrap_or(SystemTime::UNIX_EPOCH);
        let expires = own.as_ref().map(|(_, _, expires)| *expires);
        let (servers, clients) = verifiers(&files.authorities, &authorities)?;
        let own = own.map(|(certificate, key, _)| (certificate, key));
        Ok(Self { expires, authority_expires, own, authorities, servers, clients })
    }

    /// What two ends have that pin each other.
    pub(super) fn pinned(own: &Ephemeral, peer: Fingerprint) -> Self {
        let pinned = Arc::new(Pinned(peer));
        let until = own.certificate.not_after;
        Self {
            expires: Some(until),
            authority_expires: until,
            own: Some((own.certificate.clone(), own.key.clone())),
            authorities: Vec::new(),
            servers: pinned.clone(),
            clients: pinned,
        }
    }

    /// This end's own certificate.
    pub(super) fn certificate(&self) -> Option<&Certificate> {
        self.own.as_ref().map(|(certificate, _)| certificate)
    }

    fn key(&self) -> Option<Arc<CertifiedKey>> {
        self.own.as_ref().map(|(_, key)| key.clone())
    }

    fn is_as(&self, other: &Self) -> bool {
        let chain = |of: &Self| of.own.as_ref().map(|(_, key)| key.cert.clone());
        chain(self) == chain(other) && self.authorities == other.authorities
    }
}

impl fmt::Debug for InForce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InForce").field("certificate", &self.certificate()).finish_non_exhaustive()
    }
}

/// A certificate, its key, and when the first of it and of those above it expires.
fn own(file: &Path, key: &Path) -> Result<(Certificate, Arc<CertifiedKey>, SystemTime), CredentialsError> {
    let chain = pem::certificates(file)?;
    let said = parse_all(file, &chain)?;
    let own = &said[0];
    if own.names.is_empty() {
        return Err(unusable(
            file,
            0,
            "names nobody; expected the DNS names of this gateway in its subject alternative name",
        ));
    }
    let expires = said.iter().map(|one| one.not_after).min().unwrap_or(own.not_after);
    Ok((own.clone(), certified(file, key, chain)?, expires))
}

fn parse_all(file: &Path, all: &[CertificateDer<'_>]) -> Result<Vec<Certificate>, CredentialsError> {
    let parse =
        |(index, der): (usize, &CertificateDer<'_>)| Certificate::parse(der).map_err(|why| unusable(file, index, why));
    all.iter().enumerate().map(parse).collect()
}

type Verifiers = (Arc<dyn ServerCertVerifier>, Arc<dyn ClientCertVerifier>);

fn verifiers(file: &Path, authorities: &[CertificateDer<'static>]) -> Result<Verifiers, CredentialsError> {
    let mut roots = RootCertStore::empty();
    for (index, authority) in authorities.iter().enumerate() {
        roots
            .add(authority.clone())
            .map_err(|_| unusable(file, index, "cannot be an authority; expected the certificate of one"))?;
    }
    let roots = Arc::new(roots);
    let failed = |error: rustls::server::VerifierBuilderError| CredentialsError::Unusable {
        file: file.into(),
        problem: error.to_string(),
    };
    let servers = WebPkiServerVerifier::builder_with_provider(roots.clone(), provider()).build().map_err(failed)?;
    let clients = WebPkiClientVerifier::builder_with_provider(roots, provider()).build().map_err(failed)?;
    Ok((servers, clients))
}

fn certified(
    certificate: &Path,
    key: &Path,
    chain: Vec<CertificateDer<'static>>,
) -> Result<Arc<CertifiedKey>, CredentialsError> {
    CertifiedKey::from_der(chain, pem::key(key)?, &provider()).map(Arc::new).map_err(|error| match error {
        Error::InconsistentKeys(_) => CredentialsError::Mismatch { certificate: certificate.into(), key: key.into() },
        _ => CredentialsError::Unusable {
            file: key.into(),
            problem:
                "the private key is of no use; expected Ed25519, ECDSA on P-256 or P-384, or RSA of 2048 bits and more"
                    .to_owned(),
        },
    })
}

/// What is in force now.
#[derive(Debug)]
pub(super) struct Holder(watch::Sender<Held>);

#[derive(Debug)]
struct Held {
    in_force: Arc<InForce>,
    /// How often something else was put in force.
    turn: u64,
}

impl Holder {
    pub(super) fn new(first: InForce) -> Self {
        Self(watch::Sender::new(Held { in_force: Arc::new(first), turn: 0 }))
    }

    pub(super) fn get(&self) -> Arc<InForce> {
        self.0.borrow().in_force.clone()
    }

    /// Which turn it is: another than before, once something else is in force.
    pub(super) fn turn(&self) -> u64 {
        self.0.borrow().turn
    }

    /// Puts `next` in force, if it differs from what is, and says whether it does.
    pub(super) fn replace(&self, next: Arc<InForce>) -> bool {
        self.0.send_if_modified(|now| {
            let differs = !next.is_as(&now.in_force);
            if differs {
                *now = Held { in_force: next, turn: now.turn + 1 };
            }
            differs
        })
    }

    /// Ends the turn, though nothing else is in force here.
    pub(super) fn end_turn(&self) {
        self.0.send_modify(|now| now.turn += 1);
    }

    /// Waits until turn `turn` is over.
    pub(super) async fn turned(&self, turn: u64) {
        // The sender lives as long as `self`.
        let _ = self.0.subscribe().wait_for(|now| now.turn != turn).await;
    }
}

/// This end's certificate, in both roles.
#[derive(Debug)]
pub(super) struct Own(pub(super) Arc<Holder>);

impl ResolvesServerCert for Own {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.get().key()
    }
}

impl ResolvesClientCert for Own {
    fn resolve(&self, _authorities: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.0.get().key()
    }

    fn has_certs(&self) -> bool {
        self.0.get().own.is_some()
    }
}

/// Verifies those who are connected to.
#[derive(Debug)]
pub(super) struct Servers(pub(super) Arc<Holder>);

impl ServerCertVerifier for Servers {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.0.get().servers.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.get().servers.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.get().servers.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.get().servers.supported_verify_schemes()
    }
}

/// Verifies those who connect.
#[derive(Debug)]
pub(super) struct Clients {
    pub(super) holder: Arc<Holder>,
    /// Whether those who show no certificate are taken as well.
    pub(super) open: bool,
}

impl ClientCertVerifier for Clients {
    fn client_auth_mandatory(&self) -> bool {
        !self.open
    }

    /// None: they would be those of the first files.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.holder.get().clients.verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.holder.get().clients.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.holder.get().clients.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.holder.get().clients.supported_verify_schemes()
    }
}
