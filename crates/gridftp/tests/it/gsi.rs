//! Clients with certificates (U1; GFD.20, section 3.1): `globus-url-copy` with proxies, every protection of data, and
//! third-party transfers with the toolkit's own server.

use crate::support;
use phoebus_gridftp::server::config::User;
use phoebus_gridftp::server::{Quota, hash_password};
use phoebus_gsi::context::{Delegation, Endpoint, Expect};
use phoebus_gsi::control::{ClientLogin, Next};
use phoebus_gsi::credential::provider;
use phoebus_gsi::files;
use phoebus_gsi::trust::{MissingPolicy, directory};
use phoebus_proto::gridftp::reply::Replies;
use phoebus_proto::units::Span;
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use support::gct::Gct;
use support::lab::{Lab, USER};
use support::works::works;
use support::{PATIENCE, Serve, bytes, ok, run};

fn copy(lab: &Lab, proxy: &str, arguments: &[&str]) -> Output {
    run(lab.with_proxy(&mut Command::new("globus-url-copy"), proxy).args(arguments))
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
    let serve = Serve::to_grid(&lab);
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
            ok(&copy(&lab, "proxy", &[&with[..], &[&url(&serve, "source"), &local(&target)]].concat()));
            assert!(fs::read(&target).unwrap() == content, "get {with:?}");
            fs::remove_file(&target).unwrap();
            ok(&copy(&lab, "proxy", &[&with[..], &[&local(&source), &url(&serve, "target")]].concat()));
            assert!(fs::read(serve.path("target")).unwrap() == content, "put {with:?}");
            fs::remove_file(serve.path("target")).unwrap();
        }
    }
    assert_eq!(serve.hidden(), Vec::<String>::new());
    works("globus-url-copy", "phoebus serve", "certificate", "get put parallel safe private");
}

#[test]
fn servers_authenticate_each_other_by_the_delegated_credential() {
    let (lab, content) = (Lab::new(), bytes(5_000_001));
    let (here, there) = (Serve::to_grid(&lab), Serve::to_grid(&lab));
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
            ok(&copy(&lab, "proxy", &[mode, &[&from, &to]].concat()));
            assert!(fs::read(&target).unwrap() == content, "{from} {to} {mode:?}");
            fs::remove_file(&target).unwrap();
        }
    }
    works("globus-url-copy", "phoebus serve", "certificate", "third:phoebus_serve third:globus-gridftp-server");
}

#[test]
fn clients_without_a_mapped_certificate_are_refused() {
    let lab = Lab::new();
    let serve = Serve::to_grid(&lab);
    fs::write(serve.path("source"), "secret").unwrap();
    let target = local(&serve.local().join("target"));
    let refused = |output: &Output, says: &str| {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains(says), "{text}");
    };
    refused(&copy(&lab, "other.proxy", &[&url(&serve, "source"), &target]), "530");
    // Without a certificate, nobody can log in.
    refused(&copy(&lab, "proxy", &[&serve.url("source"), &target]), "530");
    // The client creates the file before it sends the request.
    assert_eq!(fs::read(serve.local().join("target")).unwrap_or_default(), b"");
}

/// Programs replace revocation lists without a notice to the server.
#[test]
fn a_replaced_revocation_list_applies_to_the_next_login() {
    let lab = Lab::new();
    let script = r#"
        cp -r certs believed; : > index; echo 01 > number
        printf '[ca]\ndefault_ca=d\n[d]\ndatabase=index\ncrlnumber=number\ndefault_md=sha256\ncertificate=ca.pem\nprivate_key=ca.key\n' > ca.cnf
        openssl ca -config ca.cnf -gencrl -crl_lastupdate 20200101000000Z -crl_nextupdate 20200102000000Z -out believed/lab.r0 2>&1
        openssl ca -config ca.cnf -gencrl -crldays 2 -out fresh 2>&1
    "#;
    ok(&run(Command::new("sh").args(["-eu", "-c", script]).current_dir(lab.path(""))));
    let serve = Serve::to_grid_with(&lab, |config| config.gsi.as_mut().unwrap().authorities = lab.path("believed"));
    fs::write(serve.path("source"), "x").unwrap();
    let target = local(&serve.local().join("target"));
    let get = || copy(&lab, "proxy", &[&url(&serve, "source"), &target]);
    assert!(!get().status.success(), "the list has run out");
    fs::rename(lab.path("fresh"), lab.path("believed/lab.r0")).unwrap();
    ok(&get());
    // An unusable list changes nothing.
    for broken in ["", "hello", "-----BEGIN X509 CRL-----\nMIIB\n-----END X509 CRL-----\n"] {
        fs::write(lab.path("believed/lab.r0"), broken).unwrap();
        ok(&get());
    }
    // A list that revokes the user's certificate applies at once, too.
    let revoke = "openssl ca -config ca.cnf -revoke user.pem 2>&1; openssl ca -config ca.cnf -gencrl -crldays 2 -out believed/lab.r0 2>&1";
    ok(&run(Command::new("sh").args(["-eu", "-c", revoke]).current_dir(lab.path(""))));
    let refused = get();
    assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("revoked"), "{refused:?}");
}

#[test]
fn data_connections_authenticate_the_subject_that_dcau_names() {
    let (lab, content) = (Lab::new(), bytes(900_001));
    let (here, there) = (Serve::to_grid(&lab), Serve::to_grid(&lab));
    let client = here.local().join("dcau");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/dcau.c");
    let libraries = "$(pkg-config --cflags --libs globus-ftp-client globus-common)";
    let compile = format!("cc -o {} {source} {libraries}", client.display());
    ok(&run(Command::new("sh").args(["-c", &compile])));
    let with = |subject: &str, arguments: [&str; 3]| {
        run(lab.with_proxy(&mut Command::new(&client), "proxy").arg(subject).args(arguments))
    };
    let (file, back) = (here.local().join("file"), here.local().join("back"));
    let (file, back) = (file.to_str().unwrap(), back.to_str().unwrap());
    fs::write(file, &content).unwrap();
    ok(&with(USER, ["put", file, &url(&here, "x")]));
    assert!(fs::read(here.path("x")).unwrap() == content);
    ok(&with(USER, ["get", &url(&here, "x"), back]));
    assert!(fs::read(back).unwrap() == content);
    ok(&with(USER, ["third", &url(&here, "x"), &url(&there, "y")]));
    assert!(fs::read(there.path("y")).unwrap() == content);
    // The peer is not the one that the client names. It may be a stranger, so the server waits for the named one.
    let soon = |config: &mut phoebus_gridftp::server::Config| config.data.reply_timeout = Span(Duration::from_secs(10));
    let (here, there) = (Serve::to_grid_with(&lab, soon), Serve::to_grid_with(&lab, soon));
    fs::write(here.path("x"), &content).unwrap();
    let other = "/O=Grid/OU=Lab/CN=Other";
    for arguments in [
        ["put", file, &url(&here, "z")],
        ["get", &url(&here, "x"), back],
        ["third", &url(&here, "x"), &url(&there, "z")],
    ] {
        assert!(!with(other, arguments).status.success(), "{arguments:?}");
    }
    assert!(!here.path("z").exists() && !there.path("z").exists());
    assert_eq!((here.hidden(), there.hidden()), (Vec::new(), Vec::new()));
}

#[test]
fn gct_client_chooses_the_driver_stack() {
    let (lab, content) = (Lab::new(), bytes(5_000_001));
    let drivers = |config: &mut phoebus_gridftp::server::Config| {
        config.data.drivers = ["tcp", "udt"].map(str::to_owned).into();
    };
    let (here, there) = (Serve::to_grid_with(&lab, drivers), Serve::to_grid_with(&lab, drivers));
    let (source, target) = (here.local().join("source"), here.local().join("target"));
    fs::write(&source, &content).unwrap();
    for how in
        [&["-udt"][..], &["-dcstack", "udt"], &["-dcstack", "udt,gsi"], &["-dcstack", "tcp"], &["-udt", "-dcpriv"]]
    {
        ok(&copy(&lab, "proxy", &[how, &[&local(&source), &url(&here, "x")]].concat()));
        assert!(fs::read(here.path("x")).unwrap() == content, "put {how:?}");
        ok(&copy(&lab, "proxy", &[how, &[&url(&here, "x"), &local(&target)]].concat()));
        assert!(fs::read(&target).unwrap() == content, "get {how:?}");
        ok(&copy(&lab, "proxy", &[how, &[&url(&here, "x"), &url(&there, "y")]].concat()));
        assert!(fs::read(there.path("y")).unwrap() == content, "between servers {how:?}");
        for made in [&target, &here.path("x"), &there.path("y")] {
            fs::remove_file(made).unwrap();
        }
    }
    let only_tcp = Serve::to_grid_with(&lab, |config| config.data.drivers.truncate(1));
    let output = copy(&lab, "proxy", &["-udt", &local(&source), &url(&only_tcp, "x")]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("udt driver not whitelisted"), "{text}");
    works("globus-url-copy", "phoebus serve", "certificate", "udt stack");
}

/// A client that authenticates, and an attacker on the path who inserts lines before and after the last token.
struct Agreeing {
    stream: TcpStream,
    replies: Replies,
    login: ClientLogin,
    line: String,
}

impl Agreeing {
    fn begin(lab: &Lab, serve: &Serve) -> Self {
        let provider = provider();
        let credential = files::credential(&lab.path("proxy"), &provider).unwrap();
        let loaded = directory::load(&lab.path("certs"), MissingPolicy::Refuse).unwrap();
        let endpoint = Endpoint { credential, trust: Arc::new(loaded.strict().unwrap()), provider };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64;
        let begun = ClientLogin::begin(&endpoint, Expect::Host("localhost".into()), Delegation::None, now);
        let (login, line) = begun.unwrap();
        let stream = TcpStream::connect(("127.0.0.1", serve.port())).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut agreeing = Self { stream, replies: Replies::new(), login, line };
        assert_eq!(agreeing.reply().0, 220);
        agreeing
    }

    fn reply(&mut self) -> (u16, String) {
        loop {
            if let Some(reply) = self.replies.take().unwrap() {
                return (reply.code, reply.text());
            }
            let mut room = [0; 65536];
            let len = self.stream.read(&mut room).unwrap();
            assert!(len > 0, "the server has gone");
            self.replies.push(&room[..len]);
        }
    }

    /// Sends the next line, followed by `behind`, and reads the reply. Returns whether there is another line to send.
    fn step(&mut self, behind: &str) -> bool {
        let line = format!("{}\r\n{behind}", self.line);
        self.stream.write_all(line.as_bytes()).unwrap();
        let (code, text) = self.reply();
        match self.login.reply(code, &text).unwrap() {
            Next::Send(next) => {
                self.line = next;
                true
            }
            Next::Done => false,
        }
    }

    /// All replies up to the end of the connection.
    fn rest(mut self) -> String {
        self.stream.shutdown(Shutdown::Write).unwrap();
        let mut said = Vec::new();
        // A server that closes with unread bytes sends a reset.
        let _ = self.stream.read_to_end(&mut said);
        let mut said = String::from_utf8_lossy(&said).into_owned();
        while let Ok(Some(reply)) = self.replies.take() {
            said = format!("{reply}\n{said}");
        }
        said
    }
}

#[test]
fn clear_commands_sent_before_the_last_token_are_discarded() {
    let lab = Lab::new();
    let serve = Serve::to_grid_with(&lab, |config| {
        let root = config.users[0].root.clone();
        // The failure of the attacker's login is reported while the token arrives, or after it.
        config.limits.failure_delay = Span(Duration::from_millis(20));
        config.limits.failure_delay_max = Some(Span(Duration::from_millis(20)));
        // A user whose password takes a while to check.
        let password = Some(hash_password(b"secret").unwrap());
        let (read_only, third_party) = (false, false);
        let boss = User {
            name: "boss".into(),
            password,
            root,
            read_only,
            quota: Quota::default(),
            account: None,
            third_party,
        };
        config.users.push(boss);
    });
    let mut first = Agreeing::begin(&lab, &serve);
    let mut lines = 1;
    while first.step("") {
        lines += 1;
    }
    assert!(lines > 2, "{lines}");
    let stolen = "USER :globus-mapping:\r\nPASS -\r\nMKD stolen\r\nPWD\r\n";
    for pause in [0, 5, 20, 50, 100] {
        let mut client = Agreeing::begin(&lab, &serve);
        for _ in 1..lines {
            assert!(client.step(""));
        }
        // The server checks the password while the token and further lines arrive.
        client.stream.write_all(b"USER boss\r\nPASS wrong\r\n").unwrap();
        std::thread::sleep(Duration::from_millis(pause));
        client.stream.write_all(format!("{}\r\n{stolen}", client.line).as_bytes()).unwrap();
        let said = client.rest();
        assert!(said.contains("235 ") && (said.contains("\n533 ") || said.contains("\n632 ")), "{said}");
        assert!(!said.contains("\n230 ") && !said.contains("\n257 ") && !said.starts_with("230 "), "{said}");
    }
    // Directly behind the last token.
    let mut client = Agreeing::begin(&lab, &serve);
    for _ in 1..lines {
        assert!(client.step(""));
    }
    assert!(!client.step(stolen));
    let said = client.rest();
    assert!(!said.contains("230 ") && !said.contains("257 "), "{said}");
    assert!(!serve.path("stolen").exists());
}
