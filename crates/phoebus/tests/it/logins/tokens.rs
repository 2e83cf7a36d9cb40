//! Users who show a bearer token (P8): signed by python3-jwt and scitokens-create, with keys from nginx, and judged as
//! scitokens-verify does.

use super::{echo, given, says};
use crate::support;
use serde_json::{Value, json};
use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use support::serve::run;
use support::{Certificates, Gateway, address, phoebus};
use tempfile::TempDir;

/// An issuer with a web server, and a gateway that takes its tokens.
struct Site {
    dir: TempDir,
    gateway: Gateway,
    web: Child,
    authority: String,
    /// The gateway's listener that takes tokens.
    at: SocketAddr,
    url: String,
    echo: SocketAddr,
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = self.web.kill();
        let _ = self.web.wait();
    }
}

impl Site {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let certificates = Certificates::new();
        let ip = address();
        let (first, at, server) = (address_of(ip, 5006), address_of(ip, 5007), address_of(ip, 5443));
        let (url, tls) = (format!("https://{server}/issuer"), certificates.issue(&ip.to_string()));
        says(&python(&dir, &["make", dir.path().to_str().unwrap(), &url]), 0, "");
        let web = nginx(&dir, &certificates, server);
        let authority = certificates.file("ca.pem").display().to_string();
        let issuer = format!(
            "[[issuer]]\nurl = \"{url}\"\naudiences = [\"https://{at}\"]\nrealm = \"site\"\nscopes = [\"session.open\"]\n\
             authorities = \"{authority}\"\n"
        );
        let usual = format!("[[listen]]\naddress = \"{at}\"\nclient_certificate = \"optional\"\nauth = [\"token\"]\n");
        let allow = "[[allow]]\nfrom = [\"user:ada@site\", \"group:/cms@site\"]\nto = [\"127.0.0.0/8\"]\n";
        let config = format!("{usual}{usual}transport = \"quic\"\n{tls}{issuer}{allow}");
        let gateway = Gateway::start_at(first, "pg1", &config);
        gateway.wait_for_log("the issuer's keys are known");
        // The certificates' files go to the site's folder before they are removed.
        fs::copy(&authority, dir.path().join("ca.pem")).unwrap();
        let authority = dir.path().join("ca.pem").display().to_string();
        Self { gateway, web, authority, at, url, echo: echo(), dir }
    }

    /// The claims of a token that is accepted, with changes; null removes one.
    fn claims(&self, changes: &Value) -> Value {
        let mut claims = json!({
            "iss": self.url, "sub": "ada", "aud": format!("https://{}", self.at), "exp": 600, "iat": 0, "nbf": -10,
            "scope": "session.open", "wlcg.ver": "1.0", "wlcg.groups": ["/cms"],
        });
        let fields = claims.as_object_mut().unwrap();
        changes.as_object().unwrap().iter().for_each(|(name, value)| drop(fields.insert(name.clone(), value.clone())));
        fields.retain(|_, value| !value.is_null());
        claims
    }

    /// A token by python3-jwt.
    fn sign(&self, (algorithm, key): (&str, &str), changes: &Value) -> String {
        let claims = self.claims(changes).to_string();
        let output = python(&self.dir, &["sign", self.dir.path().to_str().unwrap(), algorithm, key, &claims]);
        says(&output, 0, "");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// A token by scitokens-create.
    fn scitoken(&self, profile: &str, subject: &str) -> String {
        let mut create = Command::new("scitokens-create");
        let file = |name: &str| self.dir.path().join(name);
        create.arg("--cred").arg(file("ec.pub")).arg("--key").arg(file("ec.pem"));
        create.args(["--keyid", "ec", "--issuer", &self.url, "--profile", profile]);
        for claim in [format!("sub={subject}"), format!("aud=https://{}", self.at), "scope=session.open".to_owned()] {
            create.arg("--claim").arg(claim);
        }
        let output = create.output().unwrap();
        says(&output, 0, "");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Whether scitokens-verify accepts a token.
    fn scitokens_accepts(&self, token: &str) -> bool {
        let mut verify = Command::new("scitokens-verify");
        verify.arg("--cred").arg(self.dir.path().join("ec.pub")).args(["--keyid", "ec", "--issuer", &self.url, token]);
        verify.output().unwrap().status.success()
    }

    fn file(&self, token: &str) -> PathBuf {
        let file = self.dir.path().join("token");
        fs::write(&file, format!("{token}\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        file
    }

    /// Sends a line through the gateway as who has a token, and reads it again. Each call has an agent of its own.
    fn connect(&self, over: &str, token: Option<&str>) -> Output {
        let home = tempfile::tempdir().unwrap();
        self.connect_from(&home, over, token)
    }

    fn connect_from(&self, home: &TempDir, over: &str, token: Option<&str>) -> Output {
        given(&mut self.command(home, over, token), b"hello\n")
    }

    fn command(&self, home: &TempDir, over: &str, token: Option<&str>) -> Command {
        let mut command = phoebus();
        let home = home.path();
        command.args(["connect", "--gateway", &self.at.to_string(), "--first-hop", over, "--ca", &self.authority]);
        command.arg(self.echo.to_string()).env("HOME", home).env("XDG_RUNTIME_DIR", home);
        command.env_remove("XDG_CONFIG_HOME").env("PHOEBUS_AGENT_IDLE", "100ms");
        if let Some(token) = token {
            command.env("BEARER_TOKEN_FILE", self.file(token));
        }
        command
    }
}

fn address_of(ip: std::net::Ipv4Addr, port: u16) -> SocketAddr {
    (ip, port).into()
}

fn python(dir: &TempDir, arguments: &[&str]) -> Output {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/logins/issuer.py");
    run(Command::new("/usr/bin/python3").arg(script).args(arguments).current_dir(dir.path()))
}

/// A web server with the issuer's documents.
fn nginx(dir: &TempDir, certificates: &Certificates, at: SocketAddr) -> Child {
    let room = dir.path();
    let [certificate, key] = ["pem", "key"].map(|kind| certificates.file(&format!("{}.{kind}", at.ip())));
    let text = format!(
        "daemon off; master_process off; pid {0}/nginx.pid; error_log stderr;\nevents {{}}\n\
         http {{ access_log off; client_body_temp_path {0}/b; proxy_temp_path {0}/p; fastcgi_temp_path {0}/f;\n\
         uwsgi_temp_path {0}/u; scgi_temp_path {0}/s; server {{ listen {at} ssl; root {0}/web;\n\
         ssl_certificate {1}; ssl_certificate_key {2}; }} }}\n",
        room.display(),
        certificate.display(),
        key.display(),
    );
    fs::write(room.join("nginx.conf"), text).unwrap();
    let mut nginx = Command::new("/usr/sbin/nginx");
    nginx.args(["-e", "stderr", "-p"]).arg(room).arg("-c").arg(room.join("nginx.conf"));
    let child = nginx.stderr(Stdio::null()).spawn().unwrap();
    support::wait_until(|| TcpStream::connect(at).is_ok(), || "nginx does not listen".into());
    child
}

#[test]
fn token_of_an_issuer_lets_its_users_in() {
    let site = Site::new();
    let rsa = site.sign(("RS256", "rsa"), &json!({}));
    says(&site.connect("tls", Some(&rsa)), 0, "hello");
    site.gateway.wait_for_log(&format!("ada@site (token {}#ada)", site.url));
    says(&site.connect("quic", Some(&site.sign(("PS384", "rsa"), &json!({"sub": "bob"})))), 0, "hello");
    for profile in ["wlcg", "scitokens2", "atjwt"] {
        says(&site.connect("tls", Some(&site.scitoken(profile, "ada"))), 0, "hello");
    }
    // A user whom no rule allows.
    let other = site.sign(("ES256", "ec"), &json!({"sub": "carol", "wlcg.groups": ["/atlas"]}));
    says(&site.connect("tls", Some(&other)), 3, "not allowed to carol@site");
    // Nobody reads a token in the log.
    for token in [rsa, other] {
        assert!(!site.gateway.log().contains(token.rsplit('.').next().unwrap()));
    }
}

#[test]
fn wrong_tokens_are_refused_for_their_reason() {
    let site = Site::new();
    let ec = ("ES256", "ec");
    for (key, changes, reason) in [
        (ec, json!({"exp": -100}), "has expired"),
        (ec, json!({"nbf": 500}), "counts only in"),
        (ec, json!({"aud": "https://pg2.example"}), "another audience"),
        (ec, json!({"scope": "storage.read:/"}), "lacks the scope"),
        (ec, json!({"iss": format!("{}/", site.url)}), "are not accepted here"),
        (("ES256", "unknown"), json!({}), "has not published"),
    ] {
        says(&site.connect("tls", Some(&site.sign(key, &changes))), 3, reason);
    }
    says(&site.connect("tls", None), 3, "BEARER_TOKEN_FILE");
    says(&site.connect("tls", Some("")), 3, "expected one bearer token");
    let at = site.at.to_string();
    let raw = run(phoebus().args(["connect", "--gateway", &at, &site.echo.to_string()]));
    says(&raw, 3, "a token inside TLS or QUIC");
}

#[test]
fn verdicts_are_those_of_scitokens_verify() {
    let site = Site::new();
    let good = site.sign(("ES256", "ec"), &json!({}));
    let (rest, signature) = good.rsplit_once('.').unwrap();
    let other = site.sign(("ES256", "ec"), &json!({"sub": "root"}));
    let tokens = [
        ("good", good.clone()),
        ("of another key", format!("{rest}.{}", other.rsplit('.').next().unwrap())),
        ("cut", format!("{rest}.{}", &signature[..20])),
        ("expired", site.sign(("ES256", "ec"), &json!({"exp": -100}))),
        ("not yet valid", site.sign(("ES256", "ec"), &json!({"nbf": 500}))),
        ("without expiry", site.sign(("ES256", "ec"), &json!({"exp": null}))),
        ("of another issuer", site.sign(("ES256", "ec"), &json!({"iss": "https://127.0.0.1/x"}))),
    ];
    for (what, token) in tokens {
        let accepted = site.connect("tls", Some(&token)).status.success();
        assert_eq!((what, accepted), (what, site.scitokens_accepts(&token)));
        assert_eq!(accepted, what == "good", "{what}");
    }
}

/// A user's agent reads the file again, and what it has shown does not outlive the token.
#[test]
fn agent_reads_the_token_again() {
    let site = Site::new();
    let home = tempfile::tempdir().unwrap();
    let short = site.sign(("ES256", "ec"), &json!({"exp": -58}));
    says(&site.connect_from(&home, "tls", Some(&short)), 0, "hello");
    // It expires two seconds later; the connection that the agent keeps does not outlive it.
    let expired = || {
        let output = site.connect_from(&home, "tls", Some(&short));
        output.status.code() == Some(3)
    };
    support::wait_until(expired, || site.gateway.log());
    let fresh = site.sign(("ES256", "ec"), &json!({"sub": "bob"}));
    says(&site.connect_from(&home, "tls", Some(&fresh)), 0, "hello");
    site.gateway.wait_for_log("bob@site (token ");
}

/// Whose token is in the file now is who asks, whatever connections an agent has from before.
fn agent_asks_as_whose_token_is_there(over: &str) {
    let site = Site::new();
    let home = tempfile::tempdir().unwrap();
    let ada = site.sign(("ES256", "ec"), &json!({}));
    let mut long = site.command(&home, over, Some(&ada)).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let open = || site.gateway.status()["sessions"].as_array().unwrap().len();
    support::wait_until(|| open() == 1, || site.gateway.log());
    // The agent stays as long as this session.
    says(&site.connect_from(&home, over, Some(&ada)), 0, "hello");
    says(&site.connect_from(&home, over, Some(&site.sign(("ES256", "ec"), &json!({"sub": "bob"})))), 0, "hello");
    site.gateway.wait_for_log("bob@site (token ");
    let mut gone = site.command(&home, over, Some(&ada));
    fs::remove_file(site.dir.path().join("token")).unwrap();
    says(&given(&mut gone, b"hello\n"), 3, "expected the file with a bearer token");
    drop(long.stdin.take());
    assert!(long.wait().unwrap().success());
}

#[test]
fn agent_over_tls_asks_as_whose_token_is_there() {
    agent_asks_as_whose_token_is_there("tls");
}

#[test]
fn agent_over_quic_asks_as_whose_token_is_there() {
    agent_asks_as_whose_token_is_there("quic");
}

/// A silent issuer delays nobody: whoever shows its token is refused at once.
#[test]
fn silent_issuer_delays_nobody() {
    let certificates = Certificates::new();
    let ip = address();
    let silent = TcpListener::bind((ip, 5443)).unwrap();
    let (first, tls) = (address_of(ip, 5006), certificates.issue(&ip.to_string()));
    let url = format!("https://{}/issuer", silent.local_addr().unwrap());
    let issuer = format!("[[issuer]]\nurl = \"{url}\"\naudiences = [\"x\"]\n");
    let at = address_of(ip, 5007);
    let listen = format!("[[listen]]\naddress = \"{at}\"\nclient_certificate = \"optional\"\nauth = \"token\"\n");
    let _gateway = Gateway::start_at(first, "pg1", &format!("{listen}{tls}{issuer}"));
    let dir = tempfile::tempdir().unwrap();
    says(&python(&dir, &["make", dir.path().to_str().unwrap(), &url]), 0, "");
    let claims = json!({"iss": url, "aud": "x", "exp": 600}).to_string();
    let token = python(&dir, &["sign", dir.path().to_str().unwrap(), "ES256", "ec", &claims]);
    let mut connect = phoebus();
    connect.args(["connect", "--gateway", &at.to_string(), "--first-hop", "tls", "--ca"]);
    connect
        .arg(certificates.file("ca.pem"))
        .arg("127.0.0.1:9")
        .env("HOME", dir.path())
        .env("XDG_RUNTIME_DIR", dir.path());
    connect.env("PHOEBUS_AGENT_IDLE", "100ms").env("BEARER_TOKEN", String::from_utf8(token.stdout).unwrap().trim());
    says(&given(&mut connect, b""), 3, "are not known now");
}
