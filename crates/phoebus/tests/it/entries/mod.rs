//! Real programs that come by SOCKS5 and HTTP CONNECT, to a gateway and to an agent: curl, ssh, git, PySocks, Go, BusyBox.

mod agent;
mod clients;

use crate::support::serve::{bytes, run, with_input};
use crate::support::{Certificates, Gateway, address, phoebus, wait_until};
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;

const ALL: &str = "entry = [\"session\", \"socks\", \"http\"]\nclient_certificate = \"optional\"\n";
const AUTH: &str = "auth = \"scram\"\n";

/// A gateway, and a web server behind it.
struct Site {
    dir: TempDir,
    gateway: Gateway,
    certificates: Certificates,
    /// The gateway's listener for programs.
    at: SocketAddr,
    web: Web,
}

impl Site {
    /// One whose listener for programs has `more` in its configuration.
    fn new(more: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let certificates = Certificates::new();
        let first = SocketAddr::from((address(), 5006));
        let at = SocketAddr::new(first.ip(), 5007);
        let tls = certificates.issue(&at.ip().to_string());
        let mut config = format!("[[listen]]\naddress = \"{at}\"\n{ALL}{more}\n{tls}");
        if more.contains("auth") {
            let users = dir.path().join("users");
            with_input(phoebus().arg("passwd").arg("--users").arg(&users).arg("ada"), b"a secret\n");
            let rules = "[[allow]]\nfrom = [\"user:ada\"]\nto = [\"127.0.0.0/8\"]\n";
            config.push_str(&format!("[users]\nfile = {users:?}\n{rules}"));
        }
        Self { gateway: Gateway::start_at(first, "pg1", &config), certificates, at, web: Web::new(), dir }
    }

    fn authority(&self) -> String {
        self.certificates.file("ca.pem").display().to_string()
    }

    /// A file of the directory that the web server serves.
    fn curl(&self, arguments: &[&str]) -> Output {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--fail", "--max-time", "60"]).args(arguments).arg(self.web.url("file"));
        for name in ["ALL_PROXY", "all_proxy", "http_proxy", "NO_PROXY", "no_proxy"] {
            curl.env_remove(name);
        }
        run(&mut curl)
    }

    /// Checks that the program has got the file.
    #[track_caller]
    fn got(&self, output: &Output) {
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && output.stdout == self.web.content, "{}: {said}", output.status);
    }
}

/// A web server of a directory.
struct Web {
    at: SocketAddr,
    content: Vec<u8>,
    dir: TempDir,
    server: Child,
}

impl Web {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let content = bytes(3_000_001);
        fs::write(dir.path().join("file"), &content).unwrap();
        let at = SocketAddr::from((address(), 8080));
        let mut server = Command::new("/usr/bin/python3");
        server.args(["-m", "http.server", "--bind", &at.ip().to_string(), "8080", "-d"]).arg(dir.path());
        let server = server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_until(|| TcpStream::connect(at).is_ok(), || "python's http.server does not listen".to_owned());
        Self { at, content, dir, server }
    }

    fn url(&self, file: &str) -> String {
        format!("http://{}/{file}", self.at)
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// The lines of the log about sessions.
fn sessions(gateway: &Gateway) -> Vec<String> {
    gateway.log().lines().filter(|line| line.contains("session ended")).map(str::to_owned).collect()
}

#[test]
fn curl_comes_by_each_entry() {
    let site = Site::new("");
    let (at, ca) = (site.at.to_string(), site.authority());
    site.got(&site.curl(&["--socks5-hostname", &at]));
    site.got(&site.curl(&["--socks5", &at]));
    site.got(&site.curl(&["-p", "-x", &format!("http://{at}")]));
    site.got(&site.curl(&["-p", "-x", &format!("https://{at}"), "--proxy-cacert", &ca]));
    // Inside TLS, SOCKS too: socat makes the TLS.
    let tls = format!("OPENSSL:{at},cafile={ca}");
    let own = SocketAddr::from((address(), 1080));
    let listen = format!("TCP-LISTEN:1080,bind={},reuseaddr", own.ip());
    let mut socat = Command::new("socat").args([&listen, &tls]).spawn().unwrap();
    let curl = ["--retry-connrefused", "--retry", "50", "--retry-delay", "1", "--socks5-hostname", &own.to_string()];
    site.got(&site.curl(&curl));
    socat.wait().unwrap();
    // Without the tunnel, curl asks for a page.
    let output = site.curl(&["-x", &format!("http://{at}")]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("405"), "{output:?}");
    wait_until(|| sessions(&site.gateway).len() == 5, || site.gateway.log());
    let log = sessions(&site.gateway).join("\n");
    assert_eq!((log.matches("via socks").count(), log.matches("via http").count()), (3, 2), "{log}");
}

#[test]
fn curl_shows_passwords() {
    let site = Site::new(AUTH);
    let (at, ca) = (site.at.to_string(), site.authority());
    let (socks, http, https) = (format!("socks5h://{at}"), format!("http://{at}"), format!("https://{at}"));
    for proxy in [&["-x", &socks][..], &["-p", "-x", &http], &["-p", "-x", &https, "--proxy-cacert", &ca]] {
        site.got(&site.curl(&[proxy, &["-U", "ada:a secret"]].concat()));
        for more in [&["-U", "ada:wrong"][..], &[]] {
            let output = site.curl(&[proxy, more].concat());
            // curl's own codes: the proxy's handshake has failed (97), or its answer was an error.
            let expected = if proxy.len() == 2 { 97 } else { 22 };
            assert_eq!(output.status.code(), Some(expected), "{proxy:?}: {output:?}");
        }
    }
    wait_until(|| sessions(&site.gateway).len() == 3, || site.gateway.log());
    let log = site.gateway.log();
    assert_eq!(sessions(&site.gateway).join("\n").matches("ada (password)").count(), 3, "{log}");
    assert!(!log.contains("a secret") && log.contains("authentication failed"), "{log}");
}

#[test]
fn curl_shows_a_certificate() {
    let site = Site::new("auth = [\"certificate\", \"scram\"]\n");
    site.certificates.issue("ada.users.example");
    let file = |end: &str| site.certificates.file(&format!("ada.users.example.{end}")).display().to_string();
    let (at, ca) = (format!("https://{}", site.at), site.authority());
    let own = ["-p", "-x", &at, "--proxy-cacert", &ca, "--proxy-cert", &file("pem"), "--proxy-key", &file("key")];
    // She is known, and has no rule.
    assert_eq!(site.curl(&own).status.code(), Some(22));
    site.gateway.wait_for_log("ada.users.example (certificate)");
    assert!(site.gateway.log().contains("is not allowed to"), "{}", site.gateway.log());
    // Without a certificate, there is the password.
    site.got(&site.curl(&["-p", "-x", &at, "--proxy-cacert", &ca, "-U", "ada:a secret"]));
}

/// Runs a gateway on an address that is not loopback, and curl beside it, in a network namespace.
const ELSEWHERE: &str = r#"
ip link set lo up
ip addr add 192.0.2.1/32 dev lo
"$PHOEBUS" gateway --config "$1/gateway.toml" >"$1/log" 2>&1 &
trap 'kill $!' EXIT
curl() { command curl -s -o /dev/null -w '%{http_connect} %{exitcode}\n' --retry-connrefused --retry 50 --retry-delay 1 "$@" http://127.0.0.1:9/ || true; }
curl -p -U "ada:a secret" -x http://192.0.2.1:5006
curl -U "ada:a secret" -x socks5h://192.0.2.1:5006
curl -p -U "ada:a secret" --proxy-cacert "$2" -x https://192.0.2.1:5006
"#;

#[test]
fn passwords_are_asked_for_only_inside_tls_and_on_loopback() {
    let dir = tempfile::tempdir().unwrap();
    let certificates = Certificates::new();
    let users = dir.path().join("users");
    with_input(phoebus().arg("passwd").arg("--users").arg(&users).arg("ada"), b"a secret\n");
    let config = format!(
        "name = \"pg1\"\n[[listen]]\naddress = \"192.0.2.1:5006\"\n{ALL}{AUTH}{}[users]\nfile = {users:?}\n\
         [[allow]]\nfrom = [\"user:ada\"]\nto = [\"127.0.0.0/8\"]\n",
        certificates.issue("192.0.2.1")
    );
    fs::write(dir.path().join("gateway.toml"), config).unwrap();
    let mut command = Command::new("unshare");
    command.args(["-n", "sh", "-euc", ELSEWHERE, "sh"]).arg(dir.path()).arg(certificates.file("ca.pem"));
    command.env("PHOEBUS", phoebus().get_program());
    let output = run(&mut command);
    // Forbidden; no method (97); and inside TLS the session is refused by the closed port, not by the gateway.
    let log = fs::read_to_string(dir.path().join("log")).unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "403 56\n000 97\n502 56\n", "{output:?}\n{log}");
}
