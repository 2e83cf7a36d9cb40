//! Whom gateways trust: peers with a pinned certificate, and no longer those whom an authority has revoked (by OpenSSL).

use crate::support;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use support::serve::{run, with_input};
use support::{Certificates, Gateway, address, connect, phoebus, session_over};

/// The fingerprint of a certificate, as `phoebus cert show` prints it.
fn fingerprint(file: &Path) -> String {
    let shown = run(phoebus().arg("cert").arg("show").arg(file));
    let text = String::from_utf8(shown.stdout).unwrap();
    text.lines().find_map(|line| line.strip_prefix("sha256")).unwrap().trim().to_owned()
}

/// `[tls]` without authorities.
fn alone(tls: &str) -> String {
    tls.lines().filter(|line| !line.starts_with("authorities")).map(|line| format!("{line}\n")).collect()
}

fn peer(name: &str, at: SocketAddr, more: &str) -> String {
    format!("[[peer]]\nname = \"{name}\"\naddress = \"{at}\"\nfrom = [\"127.0.0.0/8\"]\npool = {{ min = 0 }}\n{more}")
}

#[test]
fn pinned_gateways_need_no_authority() {
    // Each has an authority of its own, which the other does not know.
    let certificates = [Certificates::new(), Certificates::new()];
    let tls = [alone(&certificates[0].issue("pg1")), alone(&certificates[1].issue("elsewhere.example"))];
    let pins =
        [fingerprint(&certificates[0].file("pg1.pem")), fingerprint(&certificates[1].file("elsewhere.example.pem"))];
    let at = [address(), address()].map(|addr| SocketAddr::from((addr, 5006)));
    for transport in ["tcp", "quic"] {
        let carried = format!("transport = \"{transport}\"\n");
        let listen = |at: SocketAddr| match transport {
            "tcp" => String::new(),
            other => format!("[[listen]]\naddress = \"{at}\"\ntransport = \"{other}\"\n"),
        };
        let second = peer("pg1", at[0], &format!("{carried}fingerprint = \"{}\"\n", pins[0]));
        let _second = Gateway::start_at(at[1], "pg2", &(listen(at[1]) + &tls[1] + &second));
        // OpenSSL prints fingerprints with colons.
        let colons: Vec<String> =
            pins[1].as_bytes().chunks(2).map(|two| String::from_utf8(two.to_vec()).unwrap()).collect();
        let own =
            |pin: &str| listen(at[0]) + &tls[0] + &peer("pg2", at[1], &format!("{carried}fingerprint = \"{pin}\"\n"));
        let first = Gateway::start_at(at[0], "pg1", &own(&colons.join(":").to_ascii_uppercase()));
        drop(session_over(&at));
        // Another certificate than the pinned one, although it is the one of its own gateway.
        first.reload("pg1", &own(&pins[0]));
        first.wait_for_log("the configuration was reloaded");
        let target = TcpListener::bind("127.0.0.1:0").unwrap();
        let refusal = connect(&at, target.local_addr().unwrap()).unwrap_err();
        assert!(refusal.reason.contains("is not the pinned one") && refusal.reason.contains(&pins[1]), "{refusal:?}");
    }
}

/// Whoever shows a pinned certificate is the peer that it is pinned for, whatever names stand in it.
#[test]
fn pinned_certificate_stands_for_its_peer_alone() {
    let site = Certificates::new();
    let rogue = Certificates::new();
    let at = [address(), address()].map(|addr| SocketAddr::from((addr, 5006)));
    // The certificate that pg3 has pinned says that it is pg1, which the authority of the site vouches for.
    let tls = rogue.issue("pg1");
    let pin = format!("fingerprint = \"{}\"\n", fingerprint(&rogue.file("pg1.pem")));
    let second = peer("pg1", at[0], "") + &peer("pg3", at[0], &pin);
    let second = Gateway::start_at(at[1], "pg2", &(site.issue("pg2") + &second));
    let pin = format!("fingerprint = \"{}\"\n", fingerprint(&site.file("pg2.pem")));
    let _first = Gateway::start_at(at[0], "pg1", &(alone(&tls) + &peer("pg2", at[1], &pin)));
    let target = TcpListener::bind("127.0.0.1:0").unwrap();
    let refusal = connect(&at, target.local_addr().unwrap()).unwrap_err();
    assert!(refusal.reason.contains("pg1"), "{refusal:?}\n{}", second.log());
}

fn openssl(dir: &Path, arguments: &[&str]) {
    let output = run(Command::new("openssl").args(arguments).current_dir(dir));
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// OpenSSL's list of what the authority in a folder has revoked.
fn list(dir: &Path, days: &str) {
    openssl(
        dir,
        &[
            "ca",
            "-gencrl",
            "-config",
            "ca.conf",
            "-keyfile",
            "ca-key.pem",
            "-cert",
            "ca.pem",
            "-crldays",
            days,
            "-out",
            "crl.pem",
        ],
    );
}

#[test]
fn revoked_certificates_are_refused_after_a_reload() {
    let dir = tempfile::tempdir().unwrap();
    let at: SocketAddr = (address(), 5006).into();
    let listen: SocketAddr = SocketAddr::new(at.ip(), 5007);
    let ip = at.ip().to_string();
    with_input(phoebus().args(["cert", "init", &ip, "ada.example", "bob.example", "--dir"]).arg(dir.path()), b"");
    fs::write(dir.path().join("index"), "").unwrap();
    let conf = "[ca]\ndefault_ca = own\n[own]\ndatabase = index\ndefault_md = sha256\ncrlnumber = number\n";
    fs::write(dir.path().join("number"), "01\n").unwrap();
    fs::write(dir.path().join("ca.conf"), conf).unwrap();
    list(dir.path(), "30");
    let file = |name: String| dir.path().join(name).display().to_string();
    let config = format!(
        "[[listen]]\naddress = \"{listen}\"\nsecurity = \"encrypt\"\nauth = \"certificate\"\n[tls]\ncertificate = \"{}\"\nkey = \"{}\"\n\
         authorities = \"{}\"\nrevoked = [\"{}\"]\n",
        file(format!("{ip}.pem")),
        file(format!("{ip}-key.pem")),
        file("ca.pem".to_owned()),
        file("crl.pem".to_owned()),
    );
    let gateway = Gateway::start_at(at, "pg1", &config);
    let echo = crate::logins::echo();
    let connect = |user: &str| -> Output {
        let home = tempfile::tempdir().unwrap();
        let mut connect = phoebus();
        connect.args([
            "connect",
            "--gateway",
            &listen.to_string(),
            "--first-hop",
            "tls",
            "--ca",
            &file("ca.pem".to_owned()),
        ]);
        connect.args(["--cert", &file(format!("{user}.example.pem"))]);
        connect.args(["--key", &file(format!("{user}.example-key.pem")), &echo.to_string()]);
        connect.env("HOME", home.path()).env("XDG_RUNTIME_DIR", home.path()).env("PHOEBUS_AGENT_IDLE", "100ms");
        crate::logins::given(connect.stdout(Stdio::piped()), b"hello\n")
    };
    for user in ["ada", "bob"] {
        crate::logins::says(&connect(user), 0, "hello");
    }
    openssl(
        dir.path(),
        &["ca", "-config", "ca.conf", "-keyfile", "ca-key.pem", "-cert", "ca.pem", "-revoke", "ada.example.pem"],
    );
    list(dir.path(), "30");
    gateway.signal(libc::SIGHUP);
    gateway.wait_for_log("other certificates are in force");
    crate::logins::says(&connect("ada"), 3, "does not accept this end's certificate");
    crate::logins::says(&connect("bob"), 0, "hello");
    // A list that is no list, and a reload that changes nothing.
    fs::write(dir.path().join("crl.pem"), "nothing").unwrap();
    gateway.signal(libc::SIGHUP);
    gateway.wait_for_log("holds no list of revoked certificates");
    assert_ne!(connect("ada").status.code(), Some(0));
    crate::logins::says(&connect("bob"), 0, "hello");
}
