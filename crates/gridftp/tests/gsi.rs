//! Clients that prove by certificates who they are (U1; GFD.20, section 3.1): `globus-url-copy` with proxies, every protection
//! of data, and third-party transfers with the toolkit's own server.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use phoebus_gridftp::server::config::{Gsi, User};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use support::gct::Gct;
use support::{Serve, bytes, ok, run};

const USER: &str = "/O=Grid/OU=Lab/CN=Lab User";

/// An authority, a host and a user with a proxy, as Globus wants them in a directory.
struct Lab(tempfile::TempDir);

impl Lab {
    fn new() -> Self {
        let lab = Self(tempfile::tempdir().unwrap());
        let script = r#"
            ca='/O=Grid/OU=Lab/CN=Lab CA'
            openssl req -x509 -newkey rsa:2048 -nodes -sha256 -days 30 -subj "$ca" -keyout ca.key -out ca.pem \
              -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign 2>&1
            mkdir certs; hash=$(openssl x509 -in ca.pem -noout -subject_hash); cp ca.pem certs/$hash.0
            printf "access_id_CA X509 '%s'\npos_rights globus CA:sign\ncond_subjects globus '\"/O=Grid/OU=Lab/*\"'\n" "$ca" > certs/$hash.signing_policy
            make() {
              openssl req -newkey rsa:2048 -nodes -sha256 -subj "$2" -keyout $1.key -out $1.csr 2>&1
              printf 'basicConstraints=CA:FALSE\nkeyUsage=digitalSignature,keyEncipherment\n%s\n' "$3" > $1.ext
              openssl x509 -req -in $1.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 -sha256 -extfile $1.ext -out $1.pem 2>&1
              chmod 600 $1.key
            }
            make host /O=Grid/OU=Lab/CN=localhost subjectAltName=DNS:localhost,IP:127.0.0.1
            make user "$USER_DN" ''
            make other /O=Grid/OU=Lab/CN=Other ''
            printf '"%s" jane\n' "$USER_DN" > grid-mapfile
            printf '"%s" %s\n' "$USER_DN" "$(id -un)" > grid-mapfile.unix
            X509_CERT_DIR=$PWD/certs X509_USER_CERT=$PWD/user.pem X509_USER_KEY=$PWD/user.key grid-proxy-init -rfc -bits 2048 -q -out proxy 2>&1
            X509_CERT_DIR=$PWD/certs X509_USER_CERT=$PWD/other.pem X509_USER_KEY=$PWD/other.key grid-proxy-init -rfc -bits 2048 -q -out other.proxy 2>&1
        "#;
        ok(&run(Command::new("sh").args(["-eu", "-c", script]).env("USER_DN", USER).current_dir(lab.0.path())));
        fs::set_permissions(lab.path("host.key"), fs::Permissions::from_mode(0o600)).unwrap();
        lab
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A server that believes the authority, and whose user is jane.
    fn serve(&self) -> Serve {
        Serve::with(|config| {
            let root = config.anonymous.take().unwrap().root;
            config.users =
                vec![User { name: "jane".to_owned(), password: None, root, read_only: false, third_party: false }];
            config.gsi = Some(Gsi {
                certificate: self.path("host.pem"),
                key: self.path("host.key"),
                authorities: self.path("certs"),
                gridmap: self.path("grid-mapfile"),
            });
        })
    }

    fn copy(&self, proxy: &str, arguments: &[&str]) -> Output {
        let mut command = Command::new("globus-url-copy");
        command.env("HOME", "/nonexistent").env("X509_CERT_DIR", self.path("certs"));
        command.env("X509_USER_PROXY", self.path(proxy)).env("GLOBUS_HOSTNAME", "localhost");
        run(command.args(arguments))
    }
}

fn url(serve: &Serve, path: &str) -> String {
    format!("gsiftp://localhost:{}/{path}", serve.port())
}

fn local(path: &Path) -> String {
    format!("file://{}", path.display())
}

#[test]
fn data_is_protected_as_the_client_asks_for() {
    let (lab, content) = (Lab::new(), bytes(5_000_001));
    let serve = lab.serve();
    let (source, target) = (serve.local().join("source"), serve.local().join("target"));
    fs::write(&source, &content).unwrap();
    fs::write(serve.path("source"), &content).unwrap();
    let stream_too: &[&[&str]] = &[&[], &["-p", "4"], &["-fast"]];
    let protections: [(&[&str], &[&[&str]]); 4] = [
        (&[], stream_too),
        (&["-nodcau"], &[&["-p", "4"]]),
        (&["-dcsafe"], &[&["-p", "4"]]),
        (&["-dcpriv"], stream_too),
    ];
    for (protection, modes) in protections {
        for mode in modes {
            let with = [protection, mode].concat();
            ok(&lab.copy("proxy", &[&with[..], &[&url(&serve, "source"), &local(&target)]].concat()));
            assert!(fs::read(&target).unwrap() == content, "get {with:?}");
            fs::remove_file(&target).unwrap();
            ok(&lab.copy("proxy", &[&with[..], &[&local(&source), &url(&serve, "target")]].concat()));
            assert!(fs::read(serve.path("target")).unwrap() == content, "put {with:?}");
            fs::remove_file(serve.path("target")).unwrap();
        }
    }
    assert_eq!(serve.hidden(), Vec::<String>::new());
}

#[test]
fn servers_know_each_other_by_what_the_client_has_lent() {
    let (lab, content) = (Lab::new(), bytes(5_000_001));
    let (here, there) = (lab.serve(), lab.serve());
    let gct =
        Gct::secure(&lab.path("certs"), &lab.path("host.pem"), &lab.path("host.key"), &lab.path("grid-mapfile.unix"));
    fs::write(here.path("source"), &content).unwrap();
    let (source, target) = (here.path("source"), there.path("target"));
    let gct = |path: &Path| format!("gsiftp://localhost:{}{}", gct.port, path.display());
    for (from, to) in [
        (url(&here, "source"), url(&there, "target")),
        (url(&here, "source"), gct(&target)),
        (gct(&source), url(&there, "target")),
    ] {
        for mode in [&["-p", "2"][..], &["-p", "2", "-dcpriv"], &["-dcsafe"]] {
            ok(&lab.copy("proxy", &[mode, &[&from, &to]].concat()));
            assert!(fs::read(&target).unwrap() == content, "{from} {to} {mode:?}");
            fs::remove_file(&target).unwrap();
        }
    }
}

#[test]
fn nobody_else_is_let_in() {
    let lab = Lab::new();
    let serve = lab.serve();
    fs::write(serve.path("source"), "secret").unwrap();
    let target = local(&serve.local().join("target"));
    let refused = |output: &Output, says: &str| {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains(says), "{text}");
    };
    refused(&lab.copy("other.proxy", &[&url(&serve, "source"), &target]), "530");
    // Without a certificate there is no way in at all.
    refused(&lab.copy("proxy", &[&serve.url("source"), &target]), "530");
    // The client makes the file before it asks.
    assert_eq!(fs::read(serve.local().join("target")).unwrap_or_default(), b"");
}
