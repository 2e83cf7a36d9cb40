//! Users who log in with a password, from the command line (P27): `phoebus passwd`, `phoebus login`, and programs.

use super::{echo, given, says};
use crate::support;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use support::serve::{Serve, run, with_input};
use support::{Certificates, Gateway, address, phoebus};
use tempfile::TempDir;

struct Site {
    dir: TempDir,
    gateway: Gateway,
    certificates: Certificates,
    /// Its listener that takes passwords.
    at: SocketAddr,
    echo: SocketAddr,
}

impl Site {
    /// A gateway with a listener that lets in ada by her password: with TLS, or on connections without.
    fn new(listen: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let users = dir.path().join("users");
        for user in ["ada", "bob"] {
            with_input(
                phoebus().arg("passwd").arg("--users").arg(&users).args(["--group", "lab", user]),
                b"a secret\n",
            );
        }
        assert_eq!(fs::metadata(&users).unwrap().permissions().mode() & 0o777, 0o640);
        let certificates = Certificates::new();
        let [first, at] = [5006, 5007].map(|port| SocketAddr::from((address(), port)));
        let at = SocketAddr::new(first.ip(), at.port());
        let tls = certificates.issue(&at.ip().to_string());
        let allow = "[[allow]]\nfrom = [\"group:lab\"]\nto = [\"127.0.0.0/8\"]\n";
        let usual = format!("[[listen]]\naddress = \"{at}\"\nclient_certificate = \"optional\"\nauth = \"scram\"\n");
        let listen = format!("{usual}{listen}\n{usual}transport = \"quic\"\n");
        let config = format!("{listen}{tls}[users]\nfile = \"{}\"\n{allow}", users.display());
        Self { gateway: Gateway::start_at(first, "pg1", &config), certificates, at, echo: echo(), dir }
    }

    fn logins(&self) -> PathBuf {
        self.dir.path().join(".config/phoebus/logins")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = phoebus();
        let home = self.dir.path();
        command.args(arguments).env("HOME", home).env("XDG_RUNTIME_DIR", home).env_remove("XDG_CONFIG_HOME");
        command.env("PHOEBUS_AGENT_IDLE", "100ms");
        command
    }

    fn log_in(&self, password: &str, more: &[&str]) -> Output {
        self.log_in_as("ada", password, more)
    }

    fn log_in_as(&self, user: &str, password: &str, more: &[&str]) -> Output {
        let at = self.at.to_string();
        let mut command = self.command(&[&["login", &at, "--user", user], more].concat());
        given(&mut command, password.as_bytes())
    }

    /// Sends a line through the gateway, and reads it again.
    fn connect(&self, more: &[&str]) -> Output {
        let (at, to) = (self.at.to_string(), self.echo.to_string());
        given(&mut self.command(&[&["connect", "--gateway", &at], more, &[&to]].concat()), b"hello\n")
    }

    fn authority(&self) -> String {
        self.certificates.file("ca.pem").display().to_string()
    }
}

#[test]
fn password_counts_without_tls_where_the_listener_says_so() {
    let site = Site::new("raw_password = true");
    says(&site.connect(&[]), 3, "phoebus login");
    says(&site.log_in("a secret", &[]), 2, "--ca FILE");
    says(&site.log_in("another one", &["--raw"]), 6, "does not accept ada with this password");
    assert!(!site.logins().exists());
    says(&site.log_in("a secret", &["--raw"]), 0, "");
    assert_eq!(fs::metadata(site.logins()).unwrap().permissions().mode() & 0o777, 0o600);
    says(&site.connect(&[]), 0, "hello");
    // Programs under the shim prove it as well.
    let (at, port) = (site.at.to_string(), site.echo.port().to_string());
    let program = ["run", "--gateway", &at, "--", "nc", "-N", "127.0.0.1", &port];
    let mut program = site.command(&program);
    // Without this, destinations on this host need no gateway.
    says(&given(program.env("PHOEBUS_ONLY", "127.0.0.1"), b"hello\n"), 0, "hello");
    assert!(site.gateway.log().contains("ada (SCRAM-SHA-256)"));
    // A new password has another salt.
    let users = site.dir.path().join("users");
    with_input(phoebus().arg("passwd").arg("--users").arg(&users).arg("ada"), b"another one\n");
    site.gateway.signal(libc::SIGHUP);
    site.gateway.wait_for_log("the configuration was reloaded");
    says(&site.connect(&[]), 3, "phoebus login");
    says(&site.log_in("another one", &["--raw"]), 0, "");
    says(&site.connect(&[]), 0, "hello");
    // Keys that others can read are not used.
    fs::set_permissions(site.logins(), fs::Permissions::from_mode(0o644)).unwrap();
    says(&site.connect(&[]), 3, "others can read it");
    fs::set_permissions(site.logins(), fs::Permissions::from_mode(0o600)).unwrap();
    let at = site.at.to_string();
    says(&run(&mut site.command(&["login", &at, "--forget"])), 0, "");
    says(&site.connect(&[]), 3, "phoebus login");
    says(&run(&mut site.command(&["login", &at, "--forget"])), 0, "there was no login");
}

#[test]
fn password_is_bound_to_tls_and_an_agent_shows_it() {
    let site = Site::new("");
    // Without TLS the gateway takes none.
    says(&site.log_in("a secret", &["--raw"]), 6, "TLS or QUIC");
    let authority = site.authority();
    says(&site.log_in("a secret", &["--ca", &authority]), 0, "");
    says(&site.connect(&[]), 3, "TLS or QUIC");
    // A stranger without password or certificate does not get further with TLS.
    let home = tempfile::tempdir().unwrap();
    let (at, to) = (site.at.to_string(), site.echo.to_string());
    let mut stranger = site.command(&["connect", "--gateway", &at, "--first-hop", "tls", "--ca", &authority, &to]);
    stranger.env("HOME", home.path()).env("XDG_RUNTIME_DIR", home.path());
    says(&given(&mut stranger, b"hello\n"), 3, "authentication");
    says(&site.connect(&["--first-hop", "tls", "--ca", &authority]), 0, "hello");
    let log = site.gateway.log();
    assert!(log.contains("ada (SCRAM-SHA-256-PLUS)"), "{log}");
}

/// Whoever is logged in now is who asks, whatever connections an agent has from before.
fn agent_asks_as_who_is_logged_in(first_hop: &str) {
    let site = Site::new("");
    let authority = site.authority();
    says(&site.log_in("a secret", &["--ca", &authority]), 0, "logged in as ada");
    let over = ["--first-hop", first_hop, "--ca", &authority];
    let (at, to) = (site.at.to_string(), site.echo.to_string());
    let mut long = site.command(&[&["connect", "--gateway", &at], &over[..], &[&to]].concat());
    let mut long = long.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let open = || -> Vec<String> {
        let status = site.gateway.status();
        let sessions = status["sessions"].as_array().unwrap().iter();
        sessions.map(|session| session["principal"]["text"].as_str().unwrap().to_owned()).collect()
    };
    support::wait_until(|| open() == ["ada (SCRAM-SHA-256-PLUS)"], || format!("{:?}", open()));
    // The agent stays as long as this session.
    for _ in 0..3 {
        says(&site.connect(&over), 0, "hello");
    }
    says(&site.log_in_as("bob", "a secret", &["--ca", &authority]), 0, "logged in as bob");
    for _ in 0..3 {
        says(&site.connect(&over), 0, "hello");
    }
    let log = || site.gateway.log();
    support::wait_until(|| log().matches("bob (SCRAM-SHA-256-PLUS)").count() == 3, log);
    assert_eq!(log().matches("ada (SCRAM-SHA-256-PLUS)").count(), 3, "{}", log());
    says(&run(&mut site.command(&["login", "--list"])), 0, &format!("{at}\tbob\ttls"));
    says(&run(&mut site.command(&["login", &at, "--forget"])), 0, "forgotten");
    says(&site.connect(&over), 3, &format!("phoebus login {at}"));
    drop(long.stdin.take());
    assert!(long.wait().unwrap().success());
}

#[test]
fn agent_over_tls_asks_as_who_is_logged_in() {
    agent_asks_as_who_is_logged_in("tls");
}

#[test]
fn agent_over_quic_asks_as_who_is_logged_in() {
    agent_asks_as_who_is_logged_in("quic");
}

#[test]
fn file_server_reads_the_same_users() {
    let dir = tempfile::tempdir().unwrap();
    let users = dir.path().join("users");
    with_input(phoebus().arg("passwd").arg("--users").arg(&users).arg("ada"), b"a secret\n");
    let user = "[[user]]\nname = \"ada\"\nroot = \"ROOT\"\n";
    let serve = Serve::configured(&format!("{user}[users]\nfile = \"{}\"\n", users.display()));
    fs::write(serve.path("x"), "hello\n").unwrap();
    let get = |login: &str| run(Command::new("curl").args(["-sS", "-u", login, &serve.url("x")]));
    says(&get("ada:a secret"), 0, "hello");
    // curl's code of a denied login.
    assert_eq!(get("ada:another one").status.code(), Some(67));
}
