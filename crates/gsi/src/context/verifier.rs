//! Certificate verifiers for rustls that accept chains with proxy certificates.
//!
//! webpki rejects proxies, because it does not know their critical extension, so rustls's own verifiers and
//! signature helpers cannot be used. These verify the chain with [`verify`](crate::proxy::verify), and
//! signatures with the leaf's key directly.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::verify_tls13_signature_with_raw_key;
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::NoServerSessionStorage;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::SingleCertAndKey;
use rustls::time_provider::TimeProvider;
use rustls::version::{TLS12, TLS13};
use rustls::{
    CertificateError, ClientConfig, ClientConnection, Connection, DigitallySignedStruct, DistinguishedName, Error,
    PeerIncompatible, ServerConfig, ServerConnection, SignatureScheme,
};

use super::{Endpoint, Expect, HandshakeError, hello};
use crate::certificate::{Certificate, MAX_CHAIN, PublicKey};
use crate::proxy::verify::{ChainError, Verified, verify};

/// The verifier's result, for the context that started the handshake: rustls's error type cannot carry it.
pub(super) type Verdict = Arc<Mutex<Option<Result<Verified, HandshakeError>>>>;

struct Verifier {
    endpoint: Endpoint,
    expect: Expect,
    now: i64,
    verdict: Verdict,
}

/// Creates a connection before its handshake, as client (initiator) or server.
pub(super) fn connection(
    endpoint: &Endpoint,
    expect: Expect,
    initiator: bool,
    now: i64,
) -> Result<(Connection, Verdict), HandshakeError> {
    let verdict = Verdict::default();
    let name = expect.server_name();
    let verifier = Arc::new(Verifier { endpoint: endpoint.clone(), expect, now, verdict: Arc::clone(&verdict) });
    let mine = Arc::new(SingleCertAndKey::from(endpoint.credential.certified()));
    let time = Arc::new(At(now));
    let versions = &[&TLS13, &TLS12];
    let connection = if initiator {
        let mut config = ClientConfig::builder_with_details(Arc::clone(&endpoint.provider), time)
            .with_protocol_versions(versions)?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_client_cert_resolver(mine);
        config.resumption = rustls::client::Resumption::disabled();
        config.enable_sni = matches!(name, ServerName::DnsName(_));
        ClientConnection::new(Arc::new(config), name)?.into()
    } else {
        let provider = hello::restoring(&endpoint.provider);
        let mut config = ServerConfig::builder_with_details(Arc::new(provider), time)
            .with_protocol_versions(versions)?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(mine);
        // A ticket would be a token of its own where GCT waits for one byte.
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        ServerConnection::new(Arc::new(config))?.into()
    };
    Ok((connection, verdict))
}

impl Verifier {
    fn judge(&self, leaf: &CertificateDer<'_>, rest: &[CertificateDer<'_>]) -> Result<(), Error> {
        let outcome = self.examine(leaf, rest);
        let answer = match &outcome {
            Ok(_) => Ok(()),
            Err(error) => Err(Error::InvalidCertificate(alert_for(error))),
        };
        *self.verdict.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
        answer
    }

    fn examine(&self, leaf: &CertificateDer<'_>, rest: &[CertificateDer<'_>]) -> Result<Verified, HandshakeError> {
        if rest.len() >= MAX_CHAIN {
            return Err(ChainError::TooLong(rest.len() + 1).into());
        }
        let chain = std::iter::once(leaf)
            .chain(rest)
            .map(|der| Certificate::parse(der))
            .collect::<Result<Vec<_>, _>>()
            .map_err(ChainError::Certificate)?;
        let verified = verify(chain, &self.endpoint.trust, &self.endpoint.provider, self.now)?;
        self.expect.check(&verified)?;
        Ok(verified)
    }

    fn tls12(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let leaf = parse(certificate)?;
        let key = PublicKey::parse(leaf.public_key()).ok_or(CertificateError::BadEncoding)?;
        let known = &self.endpoint.provider.signature_verification_algorithms;
        let algorithms = known.mapping.iter().find(|(scheme, _)| *scheme == signed.scheme).map(|(_, list)| *list);
        let fits = |list: &&[&dyn rustls::pki_types::SignatureVerificationAlgorithm]| {
            list.iter().any(|algorithm| {
                algorithm.public_key_alg_id().as_ref() == key.algorithm
                    && algorithm.verify_signature(key.bits, message, signed.signature()).is_ok()
            })
        };
        match algorithms {
            None => Err(PeerIncompatible::NoSignatureSchemesInCommon.into()),
            Some(list) if fits(&list) => Ok(HandshakeSignatureValid::assertion()),
            Some(_) => Err(CertificateError::BadSignature.into()),
        }
    }

    fn tls13(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let leaf = parse(certificate)?;
        let key = SubjectPublicKeyInfoDer::from(leaf.public_key());
        let algorithms = &self.endpoint.provider.signature_verification_algorithms;
        verify_tls13_signature_with_raw_key(message, &key, signed, algorithms)
    }

    fn schemes(&self) -> Vec<SignatureScheme> {
        self.endpoint.provider.signature_verification_algorithms.supported_schemes()
    }
}

fn parse(certificate: &CertificateDer<'_>) -> Result<Certificate, Error> {
    Certificate::parse(certificate).map_err(|_| CertificateError::BadEncoding.into())
}

/// The TLS alert that comes nearest to the error. Only this end sees the full message.
fn alert_for(error: &HandshakeError) -> CertificateError {
    use crate::proxy::verify::ProxyProblem;
    use crate::trust::PathError;
    match error {
        HandshakeError::Chain(ChainError::Path(path)) => match path {
            PathError::UnknownIssuer { .. } | PathError::NoPolicy { .. } => CertificateError::UnknownIssuer,
            PathError::Expired { .. } => CertificateError::Expired,
            PathError::NotYet { .. } => CertificateError::NotValidYet,
            PathError::Revoked { .. } => CertificateError::Revoked,
            _ => CertificateError::ApplicationVerificationFailure,
        },
        HandshakeError::Chain(ChainError::Proxy { problem: ProxyProblem::Expired(_), .. }) => CertificateError::Expired,
        HandshakeError::Chain(ChainError::Certificate(_)) => CertificateError::BadEncoding,
        _ => CertificateError::ApplicationVerificationFailure,
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.judge(end_entity, intermediates).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.tls12(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.tls13(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // Hints with all authorities would lengthen every first token, and Grid clients have a single
        // credential anyway.
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.judge(end_entity, intermediates).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.tls12(&hello::signed(message), certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.tls13(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verifier").field("expect", &self.expect).finish_non_exhaustive()
    }
}

/// The caller's time.
#[derive(Debug)]
struct At(i64);

impl TimeProvider for At {
    fn current_time(&self) -> Option<UnixTime> {
        u64::try_from(self.0).ok().map(|now| UnixTime::since_unix_epoch(std::time::Duration::from_secs(now)))
    }
}
