//! Logins by Kerberos with curl and a KDC of MIT's, which are the test's own: nothing of the host's configuration is read or changed.
#![cfg(feature = "kerberos")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use phoebus_gridftp::server::Quota;
use phoebus_gridftp::server::config::{Kerberos, User};
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;
use support::works::works;
use support::{PATIENCE, Serve, bytes, ok, run};

/// Where the second run of a test, which has a realm, finds its files.
const REALM: &str = "PHOEBUS_TEST_REALM";

/// A realm in a directory: a KDC, a keytab for `ftp/localhost`, tickets of jane, of john and of jane/admin.
struct Realm {
    dir: tempfile::TempDir,
    kdc: Child,
}

impl Drop for Realm {
    fn drop(&mut self) {
        let _ = self.kdc.kill();
        let _ = self.kdc.wait();
    }
}

/// A program of Kerberos's, in the realm of `dir`.
fn tool(dir: &Path, name: &str) -> Command {
    let mut command = Command::new(name);
    let path = std::env::var("PATH").unwrap();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    command.env("KRB5_CONFIG", dir.join("krb5.conf")).env("KRB5_KDC_PROFILE", dir.join("kdc.conf"));
    command.env("KRB5RCACHEDIR", dir);
    command
}

impl Realm {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        // The KDC does not say which port it got, so that it is told one that was free a moment ago.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let at = dir.path().display().to_string();
        let krb5 = format!(
            "[libdefaults]\ndefault_realm = PHOEBUS.TEST\ndns_lookup_kdc = false\ndns_lookup_realm = false\nrdns = false\n\
             dns_canonicalize_hostname = false\nudp_preference_limit = 1\n\
             [realms]\nPHOEBUS.TEST = {{\n kdc = 127.0.0.1:{port}\n}}\n[domain_realm]\nlocalhost = PHOEBUS.TEST\n"
        );
        fs::write(dir.path().join("krb5.conf"), krb5).unwrap();
        let kdc = format!(
            "[kdcdefaults]\nkdc_listen = 127.0.0.1:{port}\nkdc_tcp_listen = 127.0.0.1:{port}\n\
             [realms]\nPHOEBUS.TEST = {{\n database_name = {at}/principal\n key_stash_file = {at}/stash\n acl_file = {at}/acl\n}}\n\
             [logging]\nkdc = FILE:{at}/kdc.log\ndefault = FILE:{at}/kdc.log\n"
        );
        fs::write(dir.path().join("kdc.conf"), kdc).unwrap();
        ok(&run(tool(dir.path(), "kdb5_util").args(["create", "-s", "-r", "PHOEBUS.TEST", "-P", "master"])));
        for query in [
            "addprinc -pw secret jane",
            "addprinc -pw secret john",
            "addprinc -pw secret jane/admin",
            "addprinc -randkey ftp/localhost",
            &format!("ktadd -k {at}/keytab ftp/localhost"),
        ] {
            ok(&run(tool(dir.path(), "kadmin.local").args(["-q", query])));
        }
        let kdc = tool(dir.path(), "krb5kdc").arg("-n").stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let realm = Self { dir, kdc };
        let begin = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            let log = fs::read_to_string(realm.dir.path().join("kdc.log")).unwrap_or_default();
            assert!(begin.elapsed() < PATIENCE, "the KDC does not answer: {log}");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        for (principal, file) in [("jane", "jane"), ("john", "john"), ("jane/admin", "admin")] {
            let line = format!("echo secret | kinit -c FILE:{at}/{file} {principal}");
            ok(&run(tool(realm.dir.path(), "sh").args(["-ec", &line])));
        }
        realm
    }
}

/// Runs this test once more with a realm, whose configuration the library finds in the environment.
fn within_realm(test: &str, then: impl FnOnce(&Path)) {
    if let Some(dir) = std::env::var_os(REALM) {
        return then(Path::new(&dir));
    }
    let realm = Realm::new();
    let dir = realm.dir.path();
    let mut again = tool(dir, std::env::current_exe().unwrap().to_str().unwrap());
    ok(&run(again.env(REALM, dir).args(["--exact", test, "--nocapture", "--test-threads=1"])));
}

fn serve(dir: &Path) -> Serve {
    Serve::with(|config| {
        let root = config.anonymous.take().unwrap().root;
        let user = |name: &str| User {
            name: name.to_owned(),
            password: None,
            root: root.clone(),
            read_only: false,
            quota: Quota::default(),
            account: None,
            third_party: false,
        };
        config.users = vec![user("jane"), user("boss")];
        config.kerberos = Some(Kerberos {
            keytab: dir.join("keytab"),
            realms: vec!["PHOEBUS.TEST".to_owned()],
            principals: [("jane/admin@PHOEBUS.TEST".to_owned(), "boss".to_owned())].into(),
        });
    })
}

fn curl(dir: &Path, tickets: &str, level: &str, arguments: &[&str]) -> Output {
    let mut command = tool(dir, "curl");
    command.env("KRB5CCNAME", format!("FILE:{}/{tickets}", dir.display()));
    run(command.args(["-sSv", "--max-time", "60", "--krb", level]).args(arguments))
}

#[test]
fn curl_logs_in_by_a_ticket_and_moves_files_under_its_protection() {
    within_realm("curl_logs_in_by_a_ticket_and_moves_files_under_its_protection", |dir| {
        let serve = serve(dir);
        let content = bytes(3_000_001);
        let (source, target) = (serve.local().join("source"), serve.local().join("target"));
        fs::write(&source, &content).unwrap();
        fs::write(serve.path("there"), &content).unwrap();
        let url = |name: &str| format!("ftp://localhost:{}/{name}", serve.port());
        for level in ["clear", "safe", "private"] {
            let got = curl(dir, "jane", level, &["-u", "jane:", "-o", target.to_str().unwrap(), &url("there")]);
            ok(&got);
            let said = String::from_utf8_lossy(&got.stderr).into_owned();
            assert!(said.contains("AUTH GSSAPI") && said.contains("ADAT"), "{level}: {said}");
            assert!(fs::read(&target).unwrap() == content, "{level}");
            ok(&curl(dir, "jane", level, &["-u", "jane:", "-T", source.to_str().unwrap(), &url("put")]));
            assert!(fs::read(serve.path("put")).unwrap() == content, "{level}");
            fs::remove_file(serve.path("put")).unwrap();
            let listed = ok(&curl(dir, "jane", level, &["-u", "jane:", "--list-only", &url("")]));
            assert_eq!(listed.trim(), "there", "{level}");
        }
        // A principal of several parts is the user that the configuration says, and nobody else.
        ok(&curl(dir, "admin", "private", &["-u", "boss:", "-o", target.to_str().unwrap(), &url("there")]));
        for (tickets, user) in [("admin", "jane"), ("john", "jane"), ("jane", "boss"), ("nobody", "jane")] {
            let refused = curl(dir, tickets, "private", &["-u", &format!("{user}:"), &url("there")]);
            assert!(!refused.status.success() && refused.stdout.is_empty(), "{tickets} as {user}: {refused:?}");
        }
        assert_eq!(serve.hidden(), Vec::<String>::new());
        works("curl", "phoebus serve", "Kerberos", "get put safe private");
    });
}

#[test]
fn what_is_no_ticket_or_comes_in_clear_is_refused() {
    within_realm("what_is_no_ticket_or_comes_in_clear_is_refused", |dir| {
        let serve = serve(dir);
        let script = r#"
import base64
f = ftplib.FTP(timeout=30); f.connect(host, port)
refused(f, 'ADAT ' + base64.b64encode(b'\x60\x03abc').decode(), '503')
refused(f, 'DCAU A', '502')
r = f.sendcmd('AUTH GSSAPI'); assert r.startswith('334'), r
refused(f, 'ADAT ' + base64.b64encode(b'\x60\x03abc').decode(), '535')
r = f.sendcmd('AUTH GSSAPI'); assert r.startswith('334'), r
r = refused(f, 'ADAT ' + base64.b64encode(b'\x16\x03\x01\x00\x05').decode(), '535'); assert 'Kerberos' in r, r
r = refused(f, 'PBSZ 1000000', '503'); r = refused(f, 'PROT P', '503')
r = f.sendcmd('FEAT'); assert 'AUTH GSSAPI' in r or 'GSSAPI' in r, r
"#;
        ok(&support::python(&serve, script));
    });
}
