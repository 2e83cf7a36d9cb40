//! The certificates that TLS accepts: authorities of this machine or of a file, and the name of the server (RFC 4217;
//! RFC 5280).

use super::error::senseless;
use phoebus_files::Error;
use phoebus_gsi::certificate::Certificate;
use phoebus_proto::endpoint::Host;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Files in which systems keep their trusted authorities.
const SYSTEM: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The name that the certificate must have.
pub(super) fn server_name(host: &Host, name: &str) -> Result<ServerName<'static>, Error> {
    match host {
        Host::Addr(addr) => Ok(ServerName::IpAddress((*addr).into())),
        Host::Name(host) => {
            ServerName::try_from(host.clone()).map_err(|_| senseless(name, "no certificate can have this name"))
        }
    }
}

/// Why no certificate can be verified.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read the certificates of authorities in {}: {}", path.display(), phoebus_net::reason(source))]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The file has no certificate.
    #[error("{} holds no certificate of an authority in PEM", .0.display())]
    Empty(PathBuf),
    /// This machine has no file of authorities.
    #[error("no certificates of authorities were found on this machine; --ca FILE says whom to believe")]
    None,
    /// The cryptographic provider lacks what TLS needs.
    #[error("TLS is unavailable: {0}")]
    Tls(#[from] rustls::Error),
    /// The authorities cannot be used.
    #[error("TLS is unavailable: {0}")]
    Roots(#[from] rustls::client::VerifierBuilderError),
}

/// Trusts the authorities in `file`, and servers whose own certificate is in it. Without `file`, trusts those of the
/// machine: in the file `system` (`SSL_CERT_FILE`) if given, or at the usual places.
///
/// # Errors
/// [`TlsError`].
pub fn trusting(file: Option<&Path>, system: Option<&Path>) -> Result<Arc<ClientConfig>, TlsError> {
    let path = match file.or(system) {
        Some(path) => path.to_owned(),
        None => SYSTEM.into_iter().map(PathBuf::from).find(|path| path.exists()).ok_or(TlsError::None)?,
    };
    let text = std::fs::read(&path).map_err(|source| TlsError::Read { path: path.clone(), source })?;
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(&text).filter_map(Result::ok).collect();
    let mut roots = RootCertStore::empty();
    // rustls cannot parse some certificates of systems. The others count.
    let (found, _) = roots.add_parsable_certificates(certificates.iter().cloned());
    if found == 0 {
        return Err(TlsError::Empty(path));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let by_authorities = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build()?;
    let named = if file.is_some() { certificates } else { Vec::new() };
    let verifier = Arc::new(Verifier { by_authorities, named });
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(Arc::new(config.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth()))
}

/// Verifies by authorities, or by comparison with given certificates: self-signed servers' certificates are marked as
/// authorities, which are otherwise not accepted for a server.
#[derive(Debug)]
struct Verifier {
    by_authorities: Arc<WebPkiServerVerifier>,
    named: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if !self.named.contains(end_entity) {
            return self.by_authorities.verify_server_cert(end_entity, intermediates, server_name, ocsp, now);
        }
        let bad = || rustls::Error::InvalidCertificate(CertificateError::BadEncoding);
        let times = Certificate::parse(end_entity).map_err(|_| bad())?;
        let now = i64::try_from(now.as_secs()).map_err(|_| bad())?;
        if now > times.not_after() {
            return Err(CertificateError::Expired.into());
        }
        if now < times.not_before() {
            return Err(CertificateError::NotValidYet.into());
        }
        verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.by_authorities.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.by_authorities.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.by_authorities.supported_verify_schemes()
    }
}

/// Describes a failed TLS handshake, and what the user can do.
pub(super) fn explained(error: &io::Error) -> String {
    let found = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match found {
        Some(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer)) => {
            "no authority that is believed here has issued its certificate (--ca FILE says whom else to believe)"
                .to_owned()
        }
        Some(rustls::Error::InvalidCertificate(
            CertificateError::Expired | CertificateError::ExpiredContext { .. },
        )) => "its certificate has expired".to_owned(),
        Some(rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        )) => "its certificate is another host's".to_owned(),
        Some(rustls::Error::InvalidCertificate(CertificateError::Other(other)))
            if format!("{other:?}").contains("CaUsedAsEndEntity") =>
        {
            "its certificate signs for itself; --ca FILE with that very certificate says that it is believed".to_owned()
        }
        Some(other) => other.to_string(),
        None => phoebus_net::reason(error),
    }
}
