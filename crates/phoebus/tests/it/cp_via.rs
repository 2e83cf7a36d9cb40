//! `phoebus cp` and the small commands through gateways (P29, S1, S20), with real servers: vsftpd, ProFTPD, the Grid
//! Community Toolkit's and our own.

use crate::support;
use serde_json::Value;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use support::ftp::{Ftp, Tls, hidden};
use support::grid::gct::Gct;
use support::grid::lab::Lab;
use support::serve::{Serve, bytes, run};
use support::works::works;
use support::{Certificates, Gateway, RELAY, address, pair, phoebus};
use tempfile::{TempDir, tempdir};

/// A client's directory, and the gateways that it knows.
struct Here {
    dir: TempDir,
    gateways: Vec<Gateway>,
}

impl Here {
    /// Two gateways in a row.
    fn new() -> Self {
        let (pg1, pg2) = pair("", "");
        Self::with([pg1, pg2].into())
    }

    fn with(gateways: Vec<Gateway>) -> Self {
        let here = Self { dir: tempdir().unwrap(), gateways };
        fs::create_dir_all(here.path("tree/deep")).unwrap();
        for (name, len) in [("a", 0), ("b b", 1), ("deep/c", 3_000_001)] {
            fs::write(here.path("tree").join(name), bytes(len)).unwrap();
        }
        here
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn via(&self) -> String {
        self.gateways.iter().map(|gateway| gateway.addr.to_string()).collect::<Vec<_>>().join(",")
    }

    /// A command with these variables about gateways.
    fn command(&self, arguments: &[&str], environment: &[(&str, &str)]) -> Command {
        let mut command = phoebus();
        command.args(arguments).current_dir(self.dir.path()).env("HOME", self.dir.path()).env_remove("XDG_CONFIG_HOME");
        command.envs(environment.iter().copied());
        command
    }

    /// Runs it through the gateways, with success.
    #[track_caller]
    fn does(&self, arguments: &[&str]) -> String {
        let via = self.via();
        let mut command = self.command(&[&arguments[..1], &["--via", &via], &arguments[1..]].concat(), &[]);
        succeeds(&mut command)
    }

    /// Number of sessions of each gateway.
    fn sessions(&self) -> Vec<u64> {
        let total = |gateway: &Gateway| gateway.status()["totals"]["sessions_opened"].as_u64().unwrap();
        self.gateways.iter().map(total).collect()
    }

    /// How many of them failed.
    fn failed(&self) -> Vec<u64> {
        let failed = |gateway: &Gateway| gateway.status()["totals"]["sessions_failed"].as_u64().unwrap();
        self.gateways.iter().map(failed).collect()
    }

    /// Does `work`, which must open the same number of sessions at every gateway. Returns that number.
    #[track_caller]
    fn counting(&self, work: impl FnOnce()) -> u64 {
        let before = self.sessions();
        work();
        // The last ones have to end there, too.
        let open = |gateway: &Gateway| !gateway.status()["sessions"].as_array().unwrap().is_empty();
        support::wait_until(|| !self.gateways.iter().any(open), || "sessions do not end".to_owned());
        let grew: Vec<u64> = self.sessions().iter().zip(before).map(|(after, before)| after - before).collect();
        assert!(grew.iter().all(|n| *n == grew[0]), "{grew:?}");
        grew[0]
    }
}

fn says(output: &Output) -> (i32, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap(), text(&output.stdout) + &text(&output.stderr))
}

#[track_caller]
fn succeeds(command: &mut Command) -> String {
    let (code, said) = says(&run(command));
    assert_eq!(code, 0, "{command:?}: {said}");
    said
}

#[track_caller]
fn fails(command: &mut Command, code: i32, words: &str) {
    let (found, said) = says(&run(command));
    assert!(found == code && said.contains(words), "{command:?}: {found}: {said}");
}

fn report(said: &str) -> Value {
    said.lines().rev().find_map(|line| serde_json::from_str(line).ok()).unwrap_or_else(|| panic!("no report: {said}"))
}

#[track_caller]
fn same(one: &Path, other: &Path) {
    let diff = run(Command::new("diff").arg("-r").args([one, other]));
    assert!(diff.status.success(), "{}", String::from_utf8_lossy(&diff.stdout));
}

/// All features. They must open at least `least` sessions.
fn everything(here: &Here, url: &dyn Fn(&str) -> String, root: &Path, with: &[&str], way: &str, least: u64) {
    let does = |verb: &str, more: &[&str]| here.does(&[&[verb], with, more].concat());
    let sessions = here.counting(|| {
        let said = does("cp", &["-r", "tree/", &url("tree")]);
        assert!(said.contains(way), "{said}");
        same(&here.path("tree"), &root.join("tree"));
        let said = report(&does("cp", &["--json", "-r", &url("tree/"), "back"]));
        assert_eq!(said["path"], way.trim_start_matches(", "), "{said:#}");
        same(&here.path("tree"), &here.path("back"));
        assert!(does("ls", &[&url("tree")]).contains("b b"));
        assert!(does("stat", &[&url("tree/b b")]).contains("bytes: 1"));
        does("cat", &[&url("tree/b b")]);
        does("mkdir", &[&url("new")]);
        does("mv", &[&url("tree/a"), &url("new/a")]);
        does("rm", &["-r", &url("new")]);
        does("rm", &["-r", &url("tree")]);
    });
    assert!(sessions >= least, "{sessions} sessions");
    fs::remove_dir_all(here.path("back")).unwrap();
    assert_eq!(hidden(root), Vec::<String>::new());
}

#[test]
fn sessions_of_successful_transfers_do_not_fail() {
    let here = Here::new();
    let (certificate, key) = support::ftp::certificate(here.dir.path());
    let tls = format!("[tls]\ncertificate = \"{}\"\nkey = \"{}\"\n", certificate.display(), key.display());
    let anonymous = "[anonymous]\nroot = \"ROOT\"\nread_only = false\n";
    let (clear, protected) = (Serve::writable(), Serve::configured(&format!("{anonymous}{tls}")));
    let authority = certificate.display().to_string();
    for (serve, scheme, with) in [(&clear, "ftp", &[][..]), (&protected, "ftps", &["--ca", &authority])] {
        let url = |path: &str| format!("{scheme}://localhost:{}/{path}", serve.port());
        here.counting(|| {
            here.does(&[&["cp"], with, &["tree/b b", &url("x")]].concat());
            here.does(&[&["ls"], with, &[&url("")]].concat());
            here.does(&[&["cp", "--existing", "replace"], with, &[&url("x"), "back"]].concat());
            here.does(&[&["cat"], with, &[&url("x")]].concat());
        });
        assert_eq!(here.failed(), [0, 0], "{scheme}");
    }
}

const BOTH: &str = ", by pg1, pg2";

#[test]
fn servers_of_ftp() {
    let here = Here::new();
    let vsftpd = Ftp::vsftpd(Tls::None);
    // Nine commands, and a connection for each file and listing.
    everything(&here, &|path| vsftpd.url("ftp", path), &vsftpd.path(""), &[], BOTH, 20);
    let proftpd = Ftp::proftpd(Tls::None, "");
    everything(&here, &|path| proftpd.url("ftp", path), &proftpd.path(""), &[], BOTH, 20);
    // With a server that cannot send parts of files, several streams are not possible.
    proftpd.write("long", &bytes(100_000));
    let via = here.via();
    let mut get = here.command(&["cp", "--via", &via, "--streams", "4", &proftpd.url("ftp", "long"), "back"], &[]);
    fails(&mut get, 1, "the server has no parallel streams");
    // A copy between the two servers passes through this end, and the report says why.
    vsftpd.write("source", &bytes(3_000_000));
    let said = report(&here.does(&["cp", "--json", &vsftpd.url("ftp", "source"), &proftpd.url("ftp", "target")]));
    assert_eq!((&said["bytes_between_servers"], said["by_way_of_this_end"].is_string()), (&0.into(), true), "{said:#}");
    assert!(fs::read(proftpd.path("target")).unwrap() == bytes(3_000_000));
    works("phoebus cp", "vsftpd", "password", "gateways");
    works("phoebus cp", "ProFTPD", "password", "gateways");
}

#[test]
fn servers_of_ftp_under_tls() {
    let here = Here::new();
    for ftp in [Ftp::vsftpd(Tls::Any), Ftp::proftpd(Tls::Any, "")] {
        let authority = ftp.authority().display().to_string();
        everything(&here, &|path| ftp.url("ftps", path), &ftp.path(""), &["--ca", &authority], BOTH, 20);
    }
    works("phoebus cp", "vsftpd", "password, TLS", "gateways");
    works("phoebus cp", "ProFTPD", "password, TLS", "gateways");
}

#[test]
fn servers_of_gridftp() {
    let (here, gct, root, serve) = (Here::new(), Gct::anonymous(), tempdir().unwrap(), Serve::writable());
    everything(&here, &|path| gct.url(&root.path().join(path)), root.path(), &[], BOTH, 20);
    everything(&here, &|path| serve.url(path), &serve.path(""), &[], BOTH, 20);
    // Several streams are several sessions. In the other direction, the server would connect and bypass the gateways,
    // so this end requests as many parts.
    for url in [gct.url(&root.path().join("x")), serve.url("x")] {
        let sessions = here.counting(|| drop(here.does(&["cp", "--streams", "4", "tree/deep/c", &url])));
        assert!(sessions >= 5, "{sessions}");
        let sessions = here.counting(|| {
            let said = report(&here.does(&["cp", "--json", "--streams", "4", &url, "back"]));
            assert_eq!((&said["streams"], &said["path"]), (&4.into(), &"by pg1, pg2".into()), "{said:#}");
        });
        assert!(sessions >= 8, "{sessions}");
        same(&here.path("tree/deep/c"), &here.path("back"));
        fs::remove_file(here.path("back")).unwrap();
    }
    works("phoebus cp", "globus-gridftp-server", "anonymous", "gateways");
    works("phoebus cp", "phoebus serve", "anonymous", "gateways");
}

#[test]
fn authenticated_data_lets_commands_go_directly() {
    let (here, lab, root) = (Here::new(), Lab::new(), tempdir().unwrap());
    let (certs, cert) = (lab.path("certs"), lab.path("host.pem"));
    let gct = Gct::secure(&certs, &cert, &lab.path("host.key"), &lab.path("grid-mapfile.unix"));
    let url = |path: &str| format!("gsiftp://localhost:{}{}", gct.port, root.path().join(path).display());
    let via = here.via();
    let copy = |more: &[&str]| {
        let mut command = here.command(&[&["cp", "--json", "--via", &via], more].concat(), &[]);
        report(&succeeds(lab.with_proxy(&mut command, "proxy").env("HOME", here.dir.path())))
    };
    for with in [&[][..], &["--data-protection", "private"], &["--streams", "2"]] {
        let sessions = here.counting(|| {
            let said = copy(&[with, &["tree/deep/c", &url("x")]].concat());
            let way = said["path"].as_str().unwrap();
            assert!(way.starts_with("commands direct") && way.ends_with("data by pg1, pg2"), "{way}");
        });
        assert_eq!(sessions, if with.contains(&"--streams") { 2 } else { 1 }, "{with:?}");
        same(&here.path("tree/deep/c"), &root.path().join("x"));
        // A download over several connections fetches parts, since the server's own connections would bypass the
        // gateways.
        let streams = if with.contains(&"--streams") { 2 } else { 1 };
        let sessions = here.counting(|| {
            let said = copy(&[with, &[&url("x"), "back"]].concat());
            assert_eq!(said["streams"], streams, "{said:#}");
        });
        assert_eq!(sessions, streams, "{with:?}");
        same(&here.path("tree/deep/c"), &here.path("back"));
        fs::remove_file(here.path("back")).unwrap();
        fs::remove_file(root.path().join("x")).unwrap();
    }
    let sessions = here.counting(|| {
        let said = copy(&["--data-auth", "none", "tree/deep/c", &url("x")]);
        assert_eq!(said["path"], "by pg1, pg2");
    });
    assert!(sessions >= 2, "{sessions}");
    works("phoebus cp", "globus-gridftp-server", "certificate", "gateways");
}

#[test]
fn transfer_needs_the_named_gateway() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    server.set_nonblocking(true).unwrap();
    let url = format!("ftp://{}/x", server.local_addr().unwrap());
    let closed = format!("127.0.0.1:{}", support::port::free());
    let here = Here::with(Vec::new());
    for verb in [&["cp", "--attempts", "1", "tree/b b"][..], &["ls"], &["stat"], &["rm"], &["mkdir"], &["cat"]] {
        let arguments = [verb, &["--via", &closed, &url]].concat();
        fails(&mut here.command(&arguments, &[]), 11, &format!("gateway {closed}"));
    }
    let variables = [("PHOEBUS_GW", closed.as_str()), ("PHOEBUS_ONLY", "127.0.0.0/8")];
    fails(&mut here.command(&["ls", &url], &variables), 11, &format!("gateway {closed}"));
    // A gateway that refuses, and a path that makes no sense.
    let strict = Gateway::start("pg1", "[[allow]]\nfrom = [\"127.0.0.0/8\"]\nto = [\"192.0.2.1\"]\n");
    fails(&mut here.command(&["ls", "--via", &strict.addr.to_string(), &url], &[]), 6, "not allowed");
    let path = format!("{},{closed}", strict.addr);
    fails(&mut here.command(&["ls", "--via", &path, &url], &[]), 1, "is no peer of this gateway");
    fails(&mut here.command(&["ls", "--via", "pg1:x", &url], &[]), 2, "--gateways: ");
    fails(&mut here.command(&["ls", "--via", "pg1", "host:/x"], &[]), 2, "host: ssh connects by itself");
    fails(&mut here.command(&["ls", "--via", "pg1", &url], &[("PHOEBUS_DISABLE", "1")]), 2, "PHOEBUS_DISABLE");
    let error = server.accept().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "somebody came to the server");
}

#[test]
fn environment_selects_gateways_for_cp() {
    let (here, serve) = (Here::new(), Serve::writable());
    let via = here.via();
    let copy = |more: &[&str], variables: &[(&str, &str)]| {
        let url = serve.url("x");
        let arguments = [&["cp", "--json", "--existing", "replace"], more, &["tree/deep/c", &url]].concat();
        let said = report(&succeeds(&mut here.command(&arguments, variables)));
        said["path"].as_str().unwrap().to_owned()
    };
    // A destination on this host goes direct, unless the settings select it.
    assert_eq!(copy(&[], &[("PHOEBUS_PATH", &via)]), "direct");
    let variables = [("PHOEBUS_PATH", via.as_str()), ("PHOEBUS_ONLY", "127.0.0.0/8")];
    assert_eq!(copy(&[], &variables), "by pg1, pg2");
    assert_eq!(copy(&["--via", "none"], &variables), "direct");
    // In the form for GCT's clients.
    let stack = format!("phoebus:path={}", via.replace(',', "|"));
    assert_eq!(copy(&["--stack", &stack], &[]), "by pg1, pg2");
    fs::create_dir_all(here.path(".config/phoebus")).unwrap();
    fs::write(here.path(".config/phoebus/client.conf"), format!("PHOEBUS_PATH={via}\nPHOEBUS_ONLY=127.0.0.1\n"))
        .unwrap();
    assert_eq!(copy(&[], &[]), "by pg1, pg2");
    // Reports are written on request, one for each session.
    let file = here.path("reports").display().to_string();
    let sessions = here.counting(|| drop(copy(&[], &[("PHOEBUS_REPORT", &file)])));
    assert_eq!(fs::read_to_string(&file).unwrap().lines().count() as u64, sessions);
    // A fallback to a direct connection needs a setting, and is reported.
    fs::remove_dir_all(here.path(".config")).unwrap();
    let closed = format!("127.0.0.1:{}", support::port::free());
    let way = copy(&["--via", &closed], &[("PHOEBUS_FALLBACK", "1")]);
    assert!(way.starts_with("direct (gateway") && way.contains("connection refused"), "{way}");
}

#[test]
fn agent_carries_the_first_hop_on_request() {
    let (certificates, at) = (Certificates::new(), SocketAddr::from((address(), 5006)));
    let tls = certificates.issue(&at.ip().to_string());
    let allow = "[[allow]]\nfrom = [\"127.0.0.0/8\"]\nto = [\"127.0.0.0/8\"]\n";
    let listen = format!("[[listen]]\naddress = \"{at}\"\ntransport = \"quic\"\nclient_certificate = \"optional\"\n");
    let here = Here::with(vec![Gateway::start_at(at, "pg1", &format!("{listen}{tls}{allow}{RELAY}"))]);
    let serve = Serve::writable();
    let ca = certificates.file("ca.pem").display().to_string();
    let home = here.dir.path().display().to_string();
    let variables = [
        ("PHOEBUS_FIRST_HOP", "quic"),
        ("PHOEBUS_CA", &ca),
        ("XDG_RUNTIME_DIR", &home),
        ("PHOEBUS_AGENT_IDLE", "100ms"),
    ];
    let via = at.to_string();
    let mut copy = here.command(&["cp", "--json", "--via", &via, "tree/deep/c", &serve.url("x")], &variables);
    let said = report(&succeeds(&mut copy));
    let hops = said["paths"][0]["first_session"]["hops"].as_array().unwrap();
    let quic = hops.iter().find(|hop| hop["transport"] == "quic").unwrap_or_else(|| panic!("{said:#}"));
    assert_eq!(quic["security"], "encrypt", "{said:#}");
    same(&here.path("tree/deep/c"), &serve.path("x"));
    // The agent relays the datagrams of objects as well.
    let object = ["cp", "--json", "--stack", "object", "--via", &via, "tree/deep/c", &serve.url("z")];
    let said = report(&succeeds(&mut here.command(&object, &variables)));
    assert_eq!(said["objects"]["transfers"], 1, "{said:#}");
    same(&here.path("tree/deep/c"), &serve.path("z"));
    // The same as a stack, while the agent that has given up its name is about to end.
    let agents = || fs::read_dir(here.path("phoebus/agents")).unwrap().map(|entry| entry.unwrap().path());
    support::wait_until(
        || agents().all(|path| path.extension().is_some()),
        || format!("{:?}", agents().collect::<Vec<_>>()),
    );
    let stack = format!("quic,phoebus:gw={via}");
    let mut copy = here.command(&["cp", "--json", "--stack", &stack, "tree/deep/c", &serve.url("y")], &variables[1..]);
    let said = report(&succeeds(&mut copy));
    let hops = said["paths"][0]["first_session"]["hops"].as_array().unwrap();
    assert!(hops.iter().any(|hop| hop["transport"] == "quic"), "{said:#}");
    same(&here.path("tree/deep/c"), &serve.path("y"));
    // A gateway that cannot be trusted gets no connection, and nothing goes another way.
    let mut strange = here.command(&["ls", "--via", &via, &serve.url("")], &[("PHOEBUS_FIRST_HOP", "quic")]);
    fails(strange.env("XDG_RUNTIME_DIR", &home), 2, "has to know whom to trust");
}

#[test]
fn dead_gateway_cuts_the_transfer() {
    let (mut here, serve) = (Here::new(), Serve::writable());
    fs::write(here.path("long"), bytes(40 << 20)).unwrap();
    let via = here.via();
    let slow = ["cp", "-q", "--attempts", "1", "--limit-rate", "20mbit", "--via", &via, "long", &serve.url("long")];
    let mut copy = here.command(&slow, &[]).stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    support::wait_until(
        || {
            let status = here.gateways[1].status();
            status["sessions"].as_array().unwrap().iter().any(|one| one["bytes_up"].as_u64().unwrap() > 2 << 20)
        },
        || "nothing goes through the gateway".to_owned(),
    );
    here.gateways[1].kill();
    let status = copy.wait().unwrap();
    assert_eq!(status.code(), Some(11));
    assert!(!serve.path("long").exists());
}
