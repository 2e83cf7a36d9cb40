//! The credentials in force, and the adapters through which a TLS configuration reads them at each handshake.

use super::certificate::{Certificate, names_in, unusable};
use super::chain::ChainVerifier;
use super::judge::{TAKES_PROXIES, Verdict, public_key};
use super::pinned::{Ephemeral, Fingerprint, Pinned};
use super::trust::Trusted;
use super::{CredentialsError, Files, pem, provider, proxy};
use rustls::client::ResolvesClientCert;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use tokio::sync::watch;

/// The loaded content of the credential files.
pub(super) struct ActiveCredentials {
    /// Earliest expiry in this end's certificate chain.
    pub(super) expires: Option<SystemTime>,
    /// Latest expiry of the trust anchors: of several, one that expires has been replaced.
    pub(super) authority_expires: SystemTime,
    /// This end's own certificate with its key.
    own: Option<(Certificate, Arc<CertifiedKey>)>,
    peers: Peers,
}

/// How peers are verified.
enum Peers {
    Trusted(Trusted),
    /// By a single certificate, which is anybody's.
    Pinned(Pinned),
}

impl ActiveCredentials {
    pub(super) fn load(files: &Files) -> Result<Self, CredentialsError> {
        let own = files.own.as_ref().map(|(certificate, key)| own(certificate, key)).transpose()?;
        let peers = Trusted::load(&files.trust)?;
        let file = files.trust.authorities.as_deref().unwrap_or(Path::new(""));
        let authorities = parse_all(file, peers.authorities())?;
        let last_authority = authorities.iter().map(|authority| authority.not_after).max();
        let expires = own.as_ref().map(|(_, _, expires)| *expires);
        // Without authorities, only this end's own certificate expires.
        let authority_expires = last_authority.or(expires).unwrap_or(SystemTime::UNIX_EPOCH);
        let own = own.map(|(certificate, key, _)| (certificate, key));
        Ok(Self { expires, authority_expires, own, peers: Peers::Trusted(peers) })
    }

    /// Credentials of an end whose peer is identified by a pinned certificate.
    pub(super) fn pinned(own: &Ephemeral, peer: Fingerprint) -> Self {
        let until = own.certificate.not_after;
        Self {
            expires: Some(until),
            authority_expires: until,
            own: Some((own.certificate.clone(), own.key.clone())),
            peers: Peers::Pinned(Pinned(peer)),
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
        let trust_the_same = match (&self.peers, &other.peers) {
            (Peers::Trusted(own), Peers::Trusted(other)) => own.is_as(other),
            (Peers::Pinned(own), Peers::Pinned(other)) => own.0 == other.0,
            _ => false,
        };
        chain(self) == chain(other) && trust_the_same
    }

    /// The names that a peer with this certificate has, which was verified.
    pub(super) fn names(&self, leaf: &CertificateDer<'_>) -> Vec<String> {
        match &self.peers {
            Peers::Trusted(trusted) => trusted.names(leaf),
            Peers::Pinned(_) => names_in(leaf),
        }
    }

    /// A warning for the owner about what is trusted, if any.
    pub(super) fn trust_warning(&self, now: SystemTime) -> Option<String> {
        match &self.peers {
            Peers::Trusted(trusted) => trusted.warning(now),
            Peers::Pinned(_) => None,
        }
    }

    fn verifier(&self) -> &dyn ChainVerifier {
        match &self.peers {
            Peers::Trusted(trusted) => trusted,
            Peers::Pinned(pinned) => pinned,
        }
    }
}

impl fmt::Debug for ActiveCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ActiveCredentials").field("certificate", &self.certificate()).finish_non_exhaustive()
    }
}

/// Loads a certificate chain and its key; the time is the earliest expiry in the chain.
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
                "the private key cannot be used; expected Ed25519, ECDSA on P-256 or P-384, or RSA of 2048 bits and more"
                    .to_owned(),
        },
    })
}

/// Holds the credentials in force and counts their changes.
#[derive(Debug)]
pub(super) struct CredentialStore(watch::Sender<Held>);

#[derive(Debug)]
struct Held {
    in_force: Arc<ActiveCredentials>,
    /// Number of changes so far.
    generation: u64,
}

impl CredentialStore {
    pub(super) fn new(first: ActiveCredentials) -> Self {
        Self(watch::Sender::new(Held { in_force: Arc::new(first), generation: 0 }))
    }

    pub(super) fn get(&self) -> Arc<ActiveCredentials> {
        self.0.borrow().in_force.clone()
    }

    /// The number of changes so far: it differs once other credentials are in force.
    pub(super) fn generation(&self) -> u64 {
        self.0.borrow().generation
    }

    /// Puts `next` in force if it differs from the current credentials, and returns whether it does.
    pub(super) fn replace(&self, next: Arc<ActiveCredentials>) -> bool {
        self.0.send_if_modified(|now| {
            let differs = !next.is_as(&now.in_force);
            if differs {
                *now = Held { in_force: next, generation: now.generation + 1 };
            }
            differs
        })
    }

    /// Counts a change although the credentials here stay the same: proofs made with them lapse.
    pub(super) fn invalidate(&self) {
        self.0.send_modify(|now| now.generation += 1);
    }

    /// Waits until the number of changes differs from `generation`.
    pub(super) async fn changed_from(&self, generation: u64) {
        // The sender lives as long as `self`, so `wait_for` cannot fail.
        let _ = self.0.subscribe().wait_for(|now| now.generation != generation).await;
    }
}

/// Presents this end's certificate, as client and as server.
#[derive(Debug)]
pub(super) struct OwnCertificate {
    pub(super) holder: Arc<CredentialStore>,
    /// The user's proxy certificate, for servers that take proxies.
    pub(super) proxy: Option<PathBuf>,
}

impl ResolvesServerCert for OwnCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.holder.get().key()
    }
}

impl ResolvesClientCert for OwnCertificate {
    fn resolve(&self, authorities: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let proxy = || self.proxy.as_deref().and_then(|file| proxy::shown_to(authorities, file));
        self.holder.get().key().or_else(proxy)
    }

    fn has_certs(&self) -> bool {
        self.proxy.is_some() || self.holder.get().own.is_some()
    }
}

/// Verifies peers by the credentials in force at each handshake.
#[derive(Debug)]
pub(super) struct PeerVerifier {
    pub(super) holder: Arc<CredentialStore>,
    /// Whether clients without a certificate are admitted as well.
    pub(super) open: bool,
    /// What a judge says of a client that nobody else vouches for.
    pub(super) verdict: Option<Arc<Verdict>>,
}

impl ServerCertVerifier for PeerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let in_force = self.holder.get();
        let verified = in_force.verifier().verify_server(end_entity, intermediates, server_name, ocsp_response, now);
        verified.map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &provider().signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &provider().signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

impl ClientCertVerifier for PeerVerifier {
    fn client_auth_mandatory(&self) -> bool {
        !self.open
    }

    /// Names no authority: they would stay those of the first files after a reload.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        if self.verdict.is_some() { &*TAKES_PROXIES } else { &[] }
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.holder.get().verifier().verify_client(end_entity, intermediates, now);
        let verified = match (verified, &self.verdict) {
            (Err(usual), Some(verdict)) => verdict.judge(end_entity, intermediates, now, usual),
            (verified, _) => verified,
        };
        verified.map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        ServerCertVerifier::verify_tls12_signature(self, message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        // TLS has verified the certificate before the signature.
        if self.verdict.as_ref().is_some_and(|verdict| verdict.found().is_some()) {
            let algorithms = &provider().signature_verification_algorithms;
            return verify_tls13_signature_with_raw_key(message, &public_key(cert)?, dss, algorithms);
        }
        ServerCertVerifier::verify_tls13_signature(self, message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        ServerCertVerifier::supported_verify_schemes(self)
    }
}
