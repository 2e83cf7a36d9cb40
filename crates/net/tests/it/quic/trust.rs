//! Authentication: names, authorities, certificates.

use super::place::{PATIENCE, Pair, Place, accept, loopback, read_to_end, soon, target, untrusted, write_all};
use phoebus_net::quic::{ALPN, Options, Quic};
use phoebus_net::transport::Transport;
use phoebus_net::{Profile, code_of};
use phoebus_proto::session::Code;
use quinn::crypto::rustls::QuicClientConfig;
use rustls::{ClientConfig, RootCertStore};
use std::sync::Arc;

#[tokio::test]
async fn peer_with_another_name_is_refused() {
    let pair = Pair::new();
    let to = target(pair.target().addr, "pg3.test");
    let error = pair.client.connect(&to, &Profile::default(), PATIENCE).await.unwrap_err();
    let reason = untrusted(&error);
    assert!(reason.contains("pg3.test") && reason.contains("pg2.test"), "{reason}");
    assert!(error.to_string().contains("cannot trust pg3.test at 127.0.0.1:"), "{error}");
}

#[tokio::test]
async fn connection_is_listed_under_the_dialled_name_only() {
    let place = Place::new();
    let client = place.quic("pg1.test");
    let server = Quic::new(place.credentials_of("pg2.test", &["pg3.test"]), Options::default()).unwrap();
    let listener = server.listen(loopback(), &Profile::default()).unwrap();
    let to = target(listener.local_addr().unwrap(), "pg3.test");
    let _stream = client.connect(&to, &Profile::default(), PATIENCE).await.unwrap();
    assert_eq!(["pg2.test", "PG3.test"].map(|name| client.pulses(name).len()), [0, 1]);
}

#[tokio::test]
async fn peer_of_another_authority_is_refused_by_either_side() {
    let (ours, theirs) = (Place::new(), Place::new());
    let (client, server) = (ours.quic("pg1.test"), theirs.quic("pg2.test"));
    let listener = server.listen(loopback(), &Profile::default()).unwrap();
    let to = target(listener.local_addr().unwrap(), "pg2.test");
    let error = client.connect(&to, &Profile::default(), PATIENCE).await.unwrap_err();
    assert!(untrusted(&error).contains("certificate"), "{error}");
    // The listener reports the reason, for its log.
    let error = soon(accept(&*listener)).await.unwrap_err();
    assert_eq!(code_of(&error), Code::AuthFailed, "{error}");
}

#[tokio::test]
async fn client_with_an_untrusted_certificate_is_refused() {
    // The client trusts the server's authority, but its own certificate comes from another authority.
    let (place, strange) = (Place::new(), Place::new());
    std::fs::copy(place.dir.path().join("ca.pem"), strange.dir.path().join("ca.pem")).unwrap();
    let (client, server) = (strange.quic("pg1.test"), place.quic("pg2.test"));
    let listener = server.listen(loopback(), &Profile::default()).unwrap();
    let to = target(listener.local_addr().unwrap(), "pg2.test");
    // The client completes its handshake before the server has verified the client's certificate.
    let error = match client.connect(&to, &Profile::default(), PATIENCE).await {
        Ok(stream) => {
            let _ = write_all(&stream, b"hello").await;
            let error = read_to_end(&stream).await.unwrap_err();
            assert_eq!(code_of(&error), Code::AuthFailed, "{error}");
            error.to_string()
        }
        Err(error) => error.to_string(),
    };
    assert!(
        error.contains("authority of this end's certificate") || error.contains("this end's certificate"),
        "{error}"
    );
    assert_eq!(code_of(&soon(accept(&*listener)).await.unwrap_err()), Code::AuthFailed);
}

#[tokio::test]
async fn client_without_a_certificate_is_refused() {
    let pair = Pair::new();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(RootCertStore { roots: Vec::new() })
        .with_no_client_auth();
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.dangerous().set_certificate_verifier(Arc::new(anyone::Anyone));
    let config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(config).unwrap()));
    let endpoint = plain_endpoint();
    let connection = endpoint.connect_with(config, pair.target().addr, "pg2.test").unwrap();
    if let Ok(connection) = soon(connection).await {
        let closed = soon(connection.closed()).await;
        assert!(closed.to_string().contains("116"), "certificate_required: {closed}");
    }
    let error = soon(accept(&*pair.listener)).await.unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");
}

fn plain_endpoint() -> quinn::Endpoint {
    let socket = std::net::UdpSocket::bind(loopback()).unwrap();
    quinn::Endpoint::new(quinn::EndpointConfig::default(), None, socket, Arc::new(quinn::TokioRuntime)).unwrap()
}

mod anyone {
    use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
    use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
    use rustls::{DigitallySignedStruct, Error, SignatureScheme};

    /// Accepts any certificate, as an attacker's client would.
    #[derive(Debug)]
    pub(super) struct Anyone;

    impl ServerCertVerifier for Anyone {
        fn verify_server_cert(
            &self,
            _: &CertificateDer<'_>,
            _: &[CertificateDer<'_>],
            _: &ServerName<'_>,
            _: &[u8],
            _: UnixTime,
        ) -> Result<ServerCertVerified, Error> {
            Ok(ServerCertVerified::assertion())
        }

        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn verify_tls13_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ECDSA_NISTP256_SHA256]
        }
    }
}
