use super::*;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{CertificateError, ClientConnection, Error, ServerConnection};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tokio::sync::watch;
use tokio::time::timeout;

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
const PROTOCOLS: &[&[u8]] = &[b"test/1"];

/// A directory with an authority and the certificates it has signed.
pub(super) struct Place {
    dir: tempfile::TempDir,
    authority: Authority,
}

impl Place {
    pub(super) fn new() -> Self {
        Self::of("test authority")
    }

    fn of(name: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (authority, own) = Authority::create(name, SystemTime::now()).unwrap();
        fs::write(dir.path().join("ca.pem"), &own.certificate).unwrap();
        write_key(&dir.path().join("ca-key.pem"), &own.key);
        Self { dir, authority }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn issue(&self, name: &str, life: Duration) -> CredentialFiles {
        let issued = self.authority.issue(name, &[], SystemTime::now(), life).unwrap();
        let files = CredentialFiles {
            certificate: self.path(&format!("{name}.pem")),
            key: self.path(&format!("{name}-key.pem")),
            authorities: self.path("ca.pem"),
        };
        fs::write(&files.certificate, issued.certificate).unwrap();
        write_key(&files.key, &issued.key);
        files
    }

    pub(super) fn credentials(&self, name: &str) -> Credentials {
        Credentials::load(self.issue(name, YEAR)).unwrap()
    }
}

fn write_key(file: &Path, text: &str) {
    fs::write(file, text).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap();
}

/// Performs a handshake without a network; returns each side's outcome, and the names that the server saw.
fn handshake(
    client: &Credentials,
    name: &str,
    server: &Credentials,
) -> (Result<(), Error>, Result<Vec<String>, Error>) {
    let (of_client, of_server, shown) = handshake_with(client, name, server.server_config(PROTOCOLS));
    (of_client, of_server.map(|()| shown.first().map(|own| certificate::names_in(own)).unwrap_or_default()))
}

/// The same with a configuration of the server; the third is what the client has shown.
fn handshake_with(
    client: &Credentials,
    name: &str,
    server: Arc<ServerConfig>,
) -> (Result<(), Error>, Result<(), Error>, Vec<CertificateDer<'static>>) {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut client = ClientConnection::new(client.client_config(PROTOCOLS), name).unwrap();
    let mut server = ServerConnection::new(server).unwrap();
    let (mut of_client, mut of_server) = (Ok(()), Ok(()));
    for _ in 0..4 {
        let mut wire = Vec::new();
        while client.write_tls(&mut wire).unwrap() > 0 {}
        let mut rest = wire.as_slice();
        while of_server.is_ok() && !rest.is_empty() {
            server.read_tls(&mut rest).unwrap();
            of_server = server.process_new_packets().map(drop);
        }
        let mut wire = Vec::new();
        while server.write_tls(&mut wire).unwrap() > 0 {}
        let mut rest = wire.as_slice();
        while of_client.is_ok() && !rest.is_empty() {
            client.read_tls(&mut rest).unwrap();
            of_client = client.process_new_packets().map(drop);
        }
    }
    assert!(of_server.is_err() || of_client.is_err() || !(client.is_handshaking() || server.is_handshaking()));
    let shown = server.peer_certificates().unwrap_or_default().to_vec();
    (of_client, of_server, shown)
}

#[test]
fn handshake_authenticates_both_ends() {
    let place = Place::new();
    let (pg1, pg2) = (place.credentials("pg1.example"), place.credentials("pg2.example"));
    assert_eq!(handshake(&pg1, "pg2.example", &pg2), (Ok(()), Ok(vec!["pg1.example".to_owned()])));
    let said = pg1.certificate().unwrap();
    assert_eq!(
        (said.names, said.issuer, said.authority),
        (vec!["pg1.example".to_owned()], "CN=test authority".to_owned(), false)
    );
    assert_eq!(said.sha256.len(), 64);
}

#[test]
fn wrong_name_and_wrong_authority_are_refused() {
    let place = Place::new();
    let (pg1, pg2) = (place.credentials("pg1"), place.credentials("pg2"));
    let (Err(Error::InvalidCertificate(CertificateError::NotValidForNameContext { presented, .. })), _) =
        handshake(&pg1, "pg3", &pg2)
    else {
        panic!("a certificate for another name counted")
    };
    assert_eq!(presented, ["DnsName(\"pg2\")"]);

    let elsewhere = Place::of("another authority");
    let stranger = elsewhere.credentials("pg1");
    let (client, _) = handshake(&stranger, "pg2", &pg2);
    assert_eq!(client, Err(Error::InvalidCertificate(CertificateError::UnknownIssuer)));
    // The client trusts the server, but the server does not trust the client.
    let mut files = elsewhere.issue("pg1", YEAR);
    files.authorities = place.path("ca.pem");
    let (_, server) = handshake(&Credentials::load(files).unwrap(), "pg2", &pg2);
    assert_eq!(server, Err(Error::InvalidCertificate(CertificateError::UnknownIssuer)));
}

#[test]
fn configurations_use_reloaded_files() {
    let place = Place::new();
    let (pg1, pg2) = (place.credentials("pg1"), place.credentials("pg2"));
    let server = pg2.server_config(PROTOCOLS);
    assert!(!pg2.reload().unwrap(), "nothing has changed");

    let renewed = place.authority.issue("pg2", &["pg2.new".to_owned()], SystemTime::now(), YEAR).unwrap();
    fs::write(place.path("pg2.pem"), &renewed.certificate).unwrap();
    let error = pg2.reload().unwrap_err().to_string();
    assert!(error.contains("is not the private key of the certificate in"), "{error}");
    assert!(handshake(&pg1, "pg2", &pg2).0.is_ok(), "a bad new file keeps the old");
    assert!(handshake(&pg1, "pg2.new", &pg2).0.is_err());

    write_key(&place.path("pg2-key.pem"), &renewed.key);
    assert!(pg2.reload().unwrap());
    assert!(handshake(&pg1, "pg2.new", &pg2).0.is_ok());
    // The configuration was made before the reload; rustls reads the credentials in force through it.
    let name = ServerName::try_from("pg2.new").unwrap();
    let mut client = ClientConnection::new(pg1.client_config(PROTOCOLS), name).unwrap();
    let mut server = ServerConnection::new(server).unwrap();
    let mut wire = Vec::new();
    client.write_tls(&mut wire).unwrap();
    server.read_tls(&mut wire.as_slice()).unwrap();
    server.process_new_packets().unwrap();
    wire.clear();
    while server.write_tls(&mut wire).unwrap() > 0 {}
    client.read_tls(&mut wire.as_slice()).unwrap();
    client.process_new_packets().unwrap();
}

#[test]
fn warning_precedes_expiry() {
    let place = Place::new();
    let credentials = place.credentials("pg1");
    let now = SystemTime::now();
    let expires = credentials.expires();
    assert_eq!(expires, credentials.certificate().unwrap().not_after, "it expires before its authority");
    assert_eq!(credentials.certificate_expires(), Some(expires));
    assert!(credentials.authority_expires() > expires);
    assert_eq!(credentials.warning(now), None);
    assert_eq!(credentials.warning(expires - EXPIRY_WARNING - Duration::from_secs(1)), None);
    let text = credentials.warning(expires - Duration::from_secs(3 * 24 * 3600)).unwrap();
    assert!(text.contains("pg1.pem or its authority expires in 3 days, on 20"), "{text}");
    let text = credentials.warning(expires + Duration::from_secs(1)).unwrap();
    assert!(text.contains("expired on 20") && text.contains("peers refuse it"), "{text}");
    let text = credentials.warning(now - Duration::from_secs(7200)).unwrap();
    assert!(text.contains("is not valid before 20"), "{text}");
    assert_eq!(date(SystemTime::UNIX_EPOCH + Duration::from_secs(951_782_399)), "2000-02-28T23:59:59Z");
}

#[test]
fn errors_name_file_line_and_expected_content() {
    let place = Place::new();
    let good = place.issue("pg1", YEAR);
    let certificate = fs::read_to_string(&good.certificate).unwrap();
    let key = fs::read_to_string(&good.key).unwrap();
    let (_, ca) = Authority::create("ca", SystemTime::now()).unwrap();

    let cases = [
        (
            "certificate",
            String::new(),
            "holds no certificate; expected certificates in PEM, which begins with \"-----BEGIN CERT",
        ),
        ("certificate", key.clone(), "holds no certificate but something else; expected certificates"),
        (
            "certificate",
            "# a comment\n".to_owned() + &certificate.replace("MII", "M!I"),
            "line 2: the section that begins here is not base64",
        ),
        (
            "certificate",
            certificate.replace("-----END", "--END"),
            "line 1: the section that begins here has no END line",
        ),
        (
            "certificate",
            certificate.replace("CATE-----\nMII", "CATE---\nMII"),
            "line 1: this BEGIN line does not end with five dashes",
        ),
        (
            "certificate",
            format!("{certificate}-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
            "certificate 2 is not an X.509 certificate",
        ),
        ("certificate", ca.certificate.clone(), "certificate 1 names nobody; expected the DNS names of this gateway"),
        ("certificate", "x".repeat(2 << 20), "is larger than 1048576 bytes; expected certificates in PEM"),
        ("key", String::new(), "holds no private key; expected one private key in PEM"),
        ("key", certificate.clone(), "holds no private key"),
        ("key", ca.key.clone(), "is not the private key of the certificate in"),
        ("key", format!("{key}{key}"), "holds more than one private key"),
        ("key", key.replace("PRIVATE", "ENCRYPTED PRIVATE"), "is encrypted; expected one without a passphrase"),
        ("key", key.replace("\nM", "\nAAA"), "the private key cannot be used; expected Ed25519, ECDSA"),
        ("authorities", String::new(), "holds no certificate"),
    ];
    for (which, text, expected) in cases {
        let mut files = good.clone();
        let bad = place.path("bad.pem");
        write_key(&bad, &text);
        *match which {
            "certificate" => &mut files.certificate,
            "key" => &mut files.key,
            _ => &mut files.authorities,
        } = bad;
        let said = Credentials::load(files).unwrap_err().to_string();
        assert!(said.contains("bad.pem") && said.contains(expected), "{which}: {said}");
        assert!(!text.lines().any(|line| line.len() > 30 && said.contains(line)), "{which}: {said}");
    }

    let missing = CredentialFiles { key: place.path("missing.pem"), ..good.clone() };
    let said = Credentials::load(missing).unwrap_err().to_string();
    assert!(said.starts_with("cannot read ") && said.ends_with("missing.pem: no such file or directory"), "{said}");

    fs::set_permissions(&good.key, fs::Permissions::from_mode(0o640)).unwrap();
    let said = Credentials::load(good).unwrap_err().to_string();
    assert!(said.contains("(mode 640); run: chmod 600 /"), "{said}");
}

#[test]
fn authority_is_restored_from_its_files() {
    let place = Place::new();
    let again = Authority::load(&place.path("ca.pem"), &place.path("ca-key.pem")).unwrap();
    let issued = again
        .issue("PG9.example", &["192.0.2.7".to_owned(), "2001:db8::1".to_owned()], SystemTime::now(), YEAR)
        .unwrap();
    fs::write(place.path("pg9.pem"), &issued.certificate).unwrap();
    write_key(&place.path("pg9-key.pem"), &issued.key);
    let files = CredentialFiles {
        certificate: place.path("pg9.pem"),
        key: place.path("pg9-key.pem"),
        authorities: place.path("ca.pem"),
    };
    let pg9 = Credentials::load(files.clone()).unwrap();
    assert_eq!(pg9.certificate().unwrap().names, ["pg9.example", "192.0.2.7", "2001:db8::1"]);
    let pg1 = place.credentials("pg1");
    for name in ["pg9.example", "192.0.2.7", "2001:db8::1"] {
        assert!(handshake(&pg1, name, &pg9).0.is_ok(), "{name}");
    }
    assert!(again.issue("pg9", &[], SystemTime::now(), YEAR * 100).is_ok());
    for name in ["", "pg9:5006", "10.1.2", "a b", "-", "pg_9/x"] {
        let said = again.issue(name, &[], SystemTime::now(), YEAR).unwrap_err().to_string();
        assert_eq!(said, format!("\"{name}\" is not a DNS name or an IP address"));
    }

    let said = Authority::load(&files.certificate, &files.key).unwrap_err().to_string();
    assert!(said.contains("may not sign others"), "{said}");
    let said = Authority::load(&place.path("ca.pem"), &files.key).unwrap_err().to_string();
    assert!(said.contains("is not the private key of"), "{said}");
    // No `Debug` output shows a key.
    for shown in [format!("{pg9:?}"), format!("{issued:?}"), format!("{again:?}")] {
        assert!(!shown.contains("PRIVATE") && shown.len() < 2500, "{shown}");
    }
}

#[test]
fn open_server_admits_client_without_certificate() {
    let place = Place::new();
    let pg1 = place.credentials("pg1");
    let nobody = Credentials::trusting(&place.path("ca.pem")).unwrap();
    assert_eq!((nobody.certificate(), nobody.warning(SystemTime::now())), (None, None));
    assert!(nobody.reload().is_ok_and(|changed| !changed));

    let (_, of_server) = handshake(&nobody, "pg1", &pg1);
    assert_eq!(of_server, Err(Error::NoCertificatesPresented));
    assert_eq!(handshake(&nobody, "pg1", &pg1.open()), (Ok(()), Ok(Vec::new())));
    // A client that presents a certificate is identified by it, and the certificate must be trusted.
    let named = handshake(&place.credentials("ada"), "pg1", &pg1.open());
    assert_eq!(named, (Ok(()), Ok(vec!["ada".to_owned()])));
    let other = Place::of("another authority");
    let files = CredentialFiles { authorities: place.path("ca.pem"), ..other.issue("ada", YEAR) };
    let (_, of_server) = handshake(&Credentials::load(files).unwrap(), "pg1", &pg1.open());
    assert!(matches!(of_server, Err(Error::InvalidCertificate(_))), "{of_server:?}");
    // The server is authenticated in either case.
    let (of_client, _) = handshake(&nobody, "pg2", &pg1.open());
    assert!(matches!(of_client, Err(Error::InvalidCertificate(_))), "{of_client:?}");
    let misled = Credentials::trusting(&other.path("ca.pem")).unwrap();
    let (of_client, _) = handshake(&misled, "pg1", &pg1.open());
    assert!(matches!(of_client, Err(Error::InvalidCertificate(CertificateError::UnknownIssuer))), "{of_client:?}");
}

/// Accepts every chain.
#[derive(Debug, Default)]
struct Anybody(watch::Sender<u64>);

impl ClientJudge for Anybody {
    fn judge(&self, chain: &[&[u8]], now: SystemTime) -> Result<Judged, String> {
        Ok(Judged { subject: format!("chain of {}", chain.len()), until: now + YEAR })
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.0.subscribe()
    }
}

#[tokio::test]
async fn judge_gives_strangers_a_subject_and_no_name() {
    let (place, elsewhere) = (Place::new(), Place::of("another authority"));
    let judge = Arc::new(Anybody::default());
    let server = place.credentials("pg2").judged_by(judge.clone());
    let mut files = elsewhere.issue("pg1", YEAR);
    files.authorities = place.path("ca.pem");
    let (config, proof) = server.server_handshake(PROTOCOLS);
    let (client, done, shown) = handshake_with(&Credentials::load(files).unwrap(), "pg2", config);
    assert_eq!((client, done), (Ok(()), Ok(())));
    let stranger = proof.of(&shown);
    assert_eq!((stranger.names, stranger.subject.as_deref()), (Vec::new(), Some("chain of 1")));
    // Whom the authorities vouch for has a name, and the judge is not asked.
    let (config, proof) = server.server_handshake(PROTOCOLS);
    let (_, done, shown) = handshake_with(&place.credentials("pg1"), "pg2", config);
    let known = proof.of(&shown);
    assert_eq!((done, known.names, known.subject), (Ok(()), vec!["pg1".to_owned()], None));
    assert!(stranger.proof.counts() && known.proof.counts());
    assert!(timeout(Duration::from_millis(1), stranger.proof.lapsed()).await.is_err());
    judge.0.send_modify(|number| *number += 1);
    stranger.proof.lapsed().await;
    assert!(!stranger.proof.counts() && known.proof.counts(), "the judge has other rules");
}

#[test]
fn proxy_is_shown_to_who_takes_proxies() {
    let place = Place::new();
    let files = place.issue("ada", YEAR);
    let both = [&files.certificate, &files.key].map(|file| fs::read_to_string(file).unwrap()).concat();
    write_key(&place.path("proxy"), &both);
    let client = Credentials::trusting(&files.authorities).unwrap().with_proxy(Some(place.path("proxy")));
    let plain = place.credentials("pg2").open();
    let judged = plain.judged_by(Arc::new(Anybody::default()));
    let shown = |server: &Credentials| handshake_with(&client, "pg2", server.server_handshake(PROTOCOLS).0).2.len();
    assert_eq!((shown(&plain), shown(&judged)), (0, 1));
    // The file is read again, and one that cannot be used is not shown.
    fs::set_permissions(place.path("proxy"), fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(shown(&judged), 0);
    let now = SystemTime::now();
    let problem = |now| Credentials::check_proxy(&place.path("proxy"), now).unwrap_err().to_string();
    assert!(problem(now).contains("chmod 600"));
    write_key(&place.path("proxy"), &both);
    assert!(Credentials::check_proxy(&place.path("proxy"), now).is_ok());
    assert!(problem(now + 2 * YEAR).contains("the proxy expired on"));
    let other = fs::read_to_string(place.issue("bob", YEAR).key).unwrap();
    write_key(&place.path("proxy"), &(fs::read_to_string(&files.certificate).unwrap() + &other));
    assert!(problem(now).contains("is not the private key"));
}
