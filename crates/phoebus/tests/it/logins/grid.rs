//! Users who show a Grid proxy (RFC 3820), made by grid-proxy-init and OpenSSL.

use super::{echo, given, says};
use crate::support;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use support::grid::lab::{Lab, USER};
use support::grid::ok;
use support::serve::run;
use support::{Certificates, Gateway, address, connect, phoebus};
use tempfile::TempDir;

/// An authority of the Grid, and a gateway that takes its users' proxies. The gateway's own certificate is of another authority.
struct Site {
    lab: Lab,
    gateway: Gateway,
    /// The gateway's listener that takes proxies.
    at: SocketAddr,
    certificates: Certificates,
    config: String,
    echo: SocketAddr,
}

/// What some tests do with files of the lab.
const FUNCTIONS: &str = r#"
    export X509_CERT_DIR=$PWD/certs
    hash=$(openssl x509 -in ca.pem -noout -subject_hash)
    init() { out=$1 from=$2; shift 2; grid-proxy-init -q -rfc -cert $from -key $from -out $out "$@"; }
    own() { cat $1.pem $1.key > $1.own; chmod 600 $1.own; }
    list() {
      [ -e index ] || { : > index; echo 01 > number; }
      printf '[ca]\ndefault_ca=own\n[own]\ndatabase=index\ndefault_md=sha256\ncrlnumber=number\n' > ca.conf
      [ $# = 0 ] || openssl ca -config ca.conf -keyfile ca.key -cert ca.pem "$@" 2>&1
      openssl ca -config ca.conf -keyfile ca.key -cert ca.pem -gencrl -crldays 30 -out certs/$hash.r0 2>&1
    }
"#;

impl Site {
    fn new(more: &str) -> Self {
        let (lab, certificates, ip) = (Lab::new(), Certificates::new(), address());
        let (first, at) = (SocketAddr::from((ip, 5006)), SocketAddr::from((ip, 5007)));
        let listen = format!(
            "[[listen]]\naddress = \"{at}\"\nclient_certificate = \"optional\"\nauth = [\"grid\", \"scram\"]\n"
        );
        let allow = "[[allow]]\nfrom = [\"user:jane\", \"certificate:*\"]\nto = [\"127.0.0.0/8\"]\n";
        let [certs, map] = ["certs", "grid-mapfile"].map(|name| lab.path(name).display().to_string());
        let users = lab.path("users");
        fs::write(&users, "").unwrap();
        fs::set_permissions(&users, fs::Permissions::from_mode(0o600)).unwrap();
        let config = format!(
            "{listen}{listen}transport = \"quic\"\n{}{allow}[users]\nfile = \"{}\"\n[grid]\ncertificates = \"{certs}\"\n\
             gridmap = \"{map}\"\n{more}",
            certificates.issue(&ip.to_string()),
            users.display(),
        );
        let gateway = Gateway::start_at(first, "pg1", &config);
        Self { lab, gateway, at, certificates, config, echo: echo() }
    }

    /// Runs a script where the authority's files are.
    fn sh(&self, script: &str) {
        let script = format!("{FUNCTIONS}{script}");
        ok(&run(Command::new("bash").args(["-eu", "-c", &script]).current_dir(self.lab.path(""))));
    }

    /// Sends a line through the gateway as who has this proxy, and reads it again. Each call has an agent of its own.
    fn connect(&self, over: &str, proxy: Option<&str>) -> Output {
        self.connect_from(&tempfile::tempdir().unwrap(), over, proxy)
    }

    fn connect_from(&self, home: &TempDir, over: &str, proxy: Option<&str>) -> Output {
        let mut command = phoebus();
        command.args(["connect", "--gateway", &self.at.to_string(), "--first-hop", over, "--ca"]);
        command.arg(self.certificates.file("ca.pem")).arg(self.echo.to_string());
        command.env("HOME", home.path()).env("XDG_RUNTIME_DIR", home.path()).env_remove("XDG_CONFIG_HOME");
        command.env_remove("X509_USER_PROXY").env("PHOEBUS_AGENT_IDLE", "100ms");
        if let Some(proxy) = proxy {
            command.env("X509_USER_PROXY", self.lab.path(proxy));
        }
        given(&mut command, b"hello\n")
    }

    /// Whether the gateway's TLS refuses what OpenSSL shows of a file with a key, and of its chain, and says why in its log.
    fn refuses(&self, file: &str, reason: &str) {
        let mut client = Command::new("openssl");
        client.args(["s_client", "-tls1_3", "-alpn", "phoebus/1", "-connect", &self.at.to_string()]);
        let file = self.lab.path(file);
        client.arg("-cert").arg(&file).arg("-key").arg(&file).arg("-cert_chain").arg(file.with_extension("chain"));
        client.args(["-quiet", "-ign_eof"]).stdin(Stdio::null());
        let output = run(&mut client);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("alert"), "{file:?}: {said}");
        self.gateway.wait_for_log(reason);
    }

    fn reload(&self) {
        self.gateway.reload("pg1", &self.config);
    }
}

/// The sentence of a client whose certificate is not taken.
const NOT_ACCEPTED: &str = "does not accept this end's certificate";

#[test]
fn proxy_lets_users_of_the_grid_mapfile_in() {
    let site = Site::new("");
    site.sh("init limited proxy -limited; init deep proxy; init deeper deep -limited; init own proxy -independent
         own user");
    for (over, proxy) in [
        ("tls", "proxy"),
        ("quic", "proxy"),
        ("tls", "limited"),
        ("quic", "deeper"),
        // Not a proxy, but the user's certificate itself.
        ("tls", "user.own"),
    ] {
        says(&site.connect(over, Some(proxy)), 0, "hello");
    }
    site.gateway.wait_for_log(&format!("jane (grid {USER})"));
    // Users whom the grid-mapfile does not have, and a proxy that has only rights of its own.
    says(&site.connect("tls", Some("other.proxy")), 3, "is not allowed");
    site.gateway.wait_for_log("principal=\"/O=Grid/OU=Lab/CN=Other (grid)\"");
    says(&site.connect("quic", Some("own")), 3, "is not allowed");
    site.gateway.wait_for_log(&format!("principal=\"{USER}/CN="));
    // Rules can take them by the method.
    site.gateway.reload(
        "pg1",
        &site
            .config
            .replace("[[allow]]", "[[rule]]\naction = \"allow\"\nmethod = \"grid\"\nto = \"127.0.0.0/8\"\n[[allow]]"),
    );
    site.gateway.wait_for_log("the configuration was reloaded");
    says(&site.connect("tls", Some("other.proxy")), 0, "hello");
}

#[test]
fn client_without_a_usable_proxy_learns_what_is_wanted() {
    let site = Site::new("");
    says(&site.connect("tls", None), 3, "phoebus login");
    says(&site.connect("tls", Some("nothing")), 3, "no Grid proxy (X509_USER_PROXY): cannot read");
    site.sh("cp proxy public; chmod 644 public");
    says(&site.connect("tls", Some("public")), 3, "chmod 600");
    let only = site.config.replace("[\"grid\", \"scram\"]", "[\"grid\"]");
    site.gateway.reload("pg1", &only);
    site.gateway.wait_for_log("the configuration was reloaded");
    says(&site.connect("quic", None), 3, "this listener wants a Grid proxy (in X509_USER_PROXY");
    says(
        &run(phoebus().args(["connect", "--gateway", &site.at.to_string(), &site.echo.to_string()])),
        3,
        "a Grid proxy",
    );
}

/// Gateways that do not take proxies are not shown who the user is, also those that would let the user in without a certificate.
#[test]
fn proxy_is_shown_only_to_gateways_that_take_proxies() {
    let site = Site::new("");
    let open = site.config.replace("[\"grid\", \"scram\"]", "[\"anonymous\"]").replace("user:jane", "127.0.0.0/8");
    site.gateway.reload("pg1", &open);
    site.gateway.wait_for_log("the configuration was reloaded");
    for over in ["tls", "quic"] {
        let home = tempfile::tempdir().unwrap();
        let mut command = phoebus();
        command.args([
            "connect",
            "--gateway",
            &site.at.to_string(),
            "--first-hop",
            over,
            "--user",
            "ada@example.org",
            "--ca",
        ]);
        command.arg(site.certificates.file("ca.pem")).arg(site.echo.to_string());
        command.env("HOME", home.path()).env("XDG_RUNTIME_DIR", home.path()).env("PHOEBUS_AGENT_IDLE", "100ms");
        command.env("X509_USER_PROXY", site.lab.path("proxy"));
        says(&given(&mut command, b"hello\n"), 0, "hello");
    }
    assert!(!site.gateway.log().contains(USER));
}

#[test]
fn wrong_proxies_are_refused_for_their_reason() {
    let site = Site::new("limited = false\n");
    site.sh(
        r#"
        init limited proxy -limited
        own user; init short user.own -path-length 1
        init within short; init beyond within
        sign() { # OUT ISSUER ITS-CERTIFICATE ITS-KEY MORE…
          out=$1 name=$2 by=$3 key=$4; shift 4
          openssl req -newkey rsa:2048 -nodes -subj "$name/CN=1" -keyout $out.key -out $out.csr 2>&1
          printf 'keyUsage=critical,digitalSignature\nproxyCertInfo=critical,language:id-ppl-inheritAll\n' > $out.ext
          : > $out.index; echo 01 > $out.serial
          printf '[ca]\ndefault_ca=own\n[own]\ndatabase=%s\nserial=%s\nnew_certs_dir=.\ndefault_md=sha256\npolicy=p\n[p]\nO=optional\nOU=optional\nCN=optional\n' $out.index $out.serial > $out.conf
          openssl ca -batch -notext -preserveDN -config $out.conf -cert $by -keyfile $key -in $out.csr -extfile $out.ext -out $out.pem "$@" 2>&1
        }
        sign expired "$USER_DN" user.pem user.key -startdate 20200101000000Z -enddate 20200102000000Z
        cat expired.pem expired.key > expired; cp user.pem expired.chain
        # grid-proxy-init makes none but limited ones of a limited one.
        sign full "$(openssl x509 -in limited -noout -subject -nameopt compat | sed s/subject=//)" limited limited -days 3
        sed -n '/BEGIN CERT/,/END CERT/p' limited | cat full.pem full.key - > full; chmod 600 full
        # Whoever has no key of the user makes one, and shows the user's real certificate.
        openssl req -newkey rsa:2048 -nodes -subj "$USER_DN" -keyout forged.key -out forged.csr 2>&1
        openssl x509 -req -in forged.csr -signkey forged.key -extfile user.ext -days 3 -out forged.pem 2>&1
        sign forgery "$USER_DN" forged.pem forged.key -days 3
        cat forgery.pem forgery.key > forgery; cp user.pem forgery.chain
        cp forgery stranger; cp forged.pem stranger.chain
        openssl x509 -in proxy > alone; cp alone alone.chain; openssl pkey -in proxy >> alone
        "#
        .replace("$USER_DN", USER)
        .as_str(),
    );
    for (proxy, reason) in [
        ("limited", "is limited, and [grid] has limited = false"),
        ("full", "made from a limited proxy"),
        ("beyond", "allows 1 proxies after it, but 2 follow"),
    ] {
        for over in ["tls", "quic"] {
            says(&site.connect(over, Some(proxy)), 3, NOT_ACCEPTED);
        }
        site.gateway.wait_for_log(reason);
    }
    for (file, reason) in [
        ("expired", "expired at 2020-01-02"),
        ("forgery", "is not signed by the key of its issuer"),
        ("stranger", "leads to no trusted authority"),
        ("alone", "ends without the certificate that its first proxy was made from"),
    ] {
        site.refuses(file, reason);
    }
    says(&site.connect("tls", Some("within")), 0, "hello");
    // The client does not try with what cannot succeed.
    site.sh("chmod 600 expired");
    says(&site.connect("tls", Some("expired")), 3, "the proxy expired on 2020-01-02");
}

/// The agent's connection does not outlive what it stands on.
#[test]
fn reload_ends_what_is_revoked_or_not_permitted() {
    let site = Site::new("");
    site.sh("list");
    site.reload();
    site.gateway.wait_for_log("other Grid certificates count");
    let homes = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let long = |home: &TempDir, over: &str| site.connect_from(home, over, Some("proxy"));
    says(&long(&homes[0], "tls"), 0, "hello");
    says(&long(&homes[1], "quic"), 0, "hello");
    site.sh("list -revoke user.pem");
    site.reload();
    support::wait_until(
        || site.gateway.log().matches("other Grid certificates count").count() == 2,
        || site.gateway.log(),
    );
    says(&long(&homes[0], "tls"), 3, "");
    says(&long(&homes[1], "quic"), 3, "");
    says(&site.connect("tls", Some("proxy")), 3, NOT_ACCEPTED);
    site.gateway.wait_for_log("it, or an authority above it, was revoked");
    // Another user of the authority is not concerned, until its policy no longer permits the name.
    says(&site.connect("tls", Some("other.proxy")), 3, "is not allowed");
    site.sh("sed -i 's|/O=Grid/OU=Lab/\\*|/O=Grid/OU=Elsewhere/*|' certs/$hash.signing_policy");
    site.reload();
    support::wait_until(
        || site.gateway.log().matches("other Grid certificates count").count() == 3,
        || site.gateway.log(),
    );
    says(&site.connect("quic", Some("other.proxy")), 3, NOT_ACCEPTED);
    site.gateway.wait_for_log("does not permit this name");
    // A directory that cannot be read changes nothing.
    site.sh("echo nonsense > certs/$hash.signing_policy");
    site.reload();
    site.gateway.wait_for_log("the old one stays in force");
}

/// Names in certificates of the Grid are nobody's here: neither a peer's nor those that rules about certificates name.
#[test]
fn grid_certificate_with_the_name_of_a_peer_is_no_peer() {
    let site = Site::new("");
    let peer = "[[peer]]\nname = \"pg2\"\naddress = \"127.0.0.1:9\"\nfrom = [\"127.0.0.0/8\"]\npool = { min = 0 }\n";
    site.gateway
        .reload("pg1", &format!("{peer}{}", site.config.replace("\"certificate:*\"", "\"certificate:*\", \"pg2\"")));
    site.gateway.wait_for_log("the configuration was reloaded");
    site.sh(
        r"printf 'basicConstraints=CA:FALSE\nsubjectAltName=DNS:pg2\n' > pg2.ext
          openssl req -newkey rsa:2048 -nodes -subj /O=Grid/OU=Lab/CN=pg2 -keyout pg2.key -out pg2.csr 2>&1
          openssl x509 -req -in pg2.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 -sha256 -extfile pg2.ext -out pg2.pem 2>&1
          own pg2; init pg2.proxy pg2.own",
    );
    for proxy in ["pg2.proxy", "pg2.own"] {
        says(&site.connect("tls", Some(proxy)), 3, "is not allowed");
    }
    let file = |name: &str| -> PathBuf { site.lab.path(name) };
    fs::set_permissions(file("pg2.key"), fs::Permissions::from_mode(0o600)).unwrap();
    // A gateway that calls itself so, and has the certificate.
    let tls = format!(
        "[tls]\ncertificate = \"{}\"\nkey = \"{}\"\nauthorities = \"{}\"\n",
        file("pg2.pem").display(),
        file("pg2.key").display(),
        site.certificates.file("ca.pem").display(),
    );
    let mut show = Command::new("openssl");
    show.args(["x509", "-noout", "-fingerprint", "-sha256", "-in"])
        .arg(site.certificates.file(&format!("{}.pem", site.at.ip())));
    let shown = ok(&run(&mut show));
    let pin = shown.trim().split_once('=').unwrap().1;
    for transport in ["tcp", "quic"] {
        let to = format!(
            "[[peer]]\nname = \"pg1\"\naddress = \"{}\"\ntransport = \"{transport}\"\npool = {{ min = 0 }}\nfingerprint = \"{pin}\"\n",
            site.at
        );
        let second = Gateway::start("pg2", &format!("{to}[[route]]\nto = \"*\"\nvia = \"pg1\"\n{tls}"));
        let target = TcpListener::bind("127.0.0.1:0").unwrap();
        let refusal = connect(&[second.addr], target.local_addr().unwrap()).unwrap_err();
        assert!(refusal.reason.contains("/O=Grid/OU=Lab/CN=pg2, and not for pg2"), "{refusal:?}\n{}", second.log());
    }
}
