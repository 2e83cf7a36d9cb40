//! `phoebus cp` with GridFTP servers: the Grid Community Toolkit's and our own, anonymous and with certificates (U1–U6,
//! S11).

use crate::support;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use support::ftp::{Copy, hidden};
use support::grid;
use support::grid::gct::Gct;
use support::grid::lab::Lab;
use support::here::{Here, says, secure_gct, serve};
use support::serve::{Serve, bytes, run};
use support::works::works;
use tempfile::tempdir;

/// The toolkit's server.
const GCT: &str = "globus-gridftp-server";
/// The features that [`everything`] tests.
const EVERYTHING: &str = "get put list manage tree sync sum parallel";

/// Uploads and downloads of files and trees, verified, in every mode, and the small commands.
fn everything(here: &Here<'_>, url: &dyn Fn(&str) -> String, root: &Path, modes: &[&[&str]]) {
    let content = bytes(20_000_001);
    fs::write(here.path("source"), &content).unwrap();
    fs::create_dir_all(here.path("tree/deep")).unwrap();
    for (name, len) in [("a", 0), ("b b", 1), ("deep/c", 300_000)] {
        fs::write(here.path("tree").join(name), bytes(len)).unwrap();
    }
    for mode in modes {
        let said = here.does(&[&["cp"], *mode, &["source", &url("target")]].concat());
        assert!(fs::read(root.join("target")).unwrap() == content, "put {mode:?}");
        assert!(!said.contains("only sizes"), "{said}");
        here.does(&[&["cp"], *mode, &[&url("target"), "back"]].concat());
        assert!(fs::read(here.path("back")).unwrap() == content, "get {mode:?}");
        fs::remove_file(here.path("back")).unwrap();
        fs::remove_file(root.join("target")).unwrap();
        here.does(&[&["cp", "-r"], *mode, &["tree/", &url("tree")]].concat());
        here.does(&[&["cp", "-r"], *mode, &[&url("tree/"), "down"]].concat());
        for other in [&here.path("down"), &root.join("tree")] {
            grid::ok(&run(Command::new("diff").arg("-r").args([&here.path("tree"), other])));
            fs::remove_dir_all(other).unwrap();
        }
    }
    here.does(&["cp", "source", &url("x")]);
    assert!(here.does(&["cp", "source", &url("x")]).contains("nothing to do"));
    for sum in ["MD5", "ADLER32", "reread:SHA256"] {
        here.does(&["cp", "--existing", "replace", "--verify", sum, &url("x"), "back"]);
    }
    assert!(here.does(&["stat", "--checksum", "MD5", &url("x")]).contains("bytes: 20000001"));
    assert!(here.does(&["ls", &url("")]).contains('x'));
    here.does(&["mkdir", &url("dir")]);
    here.does(&["mv", &url("x"), &url("dir")]);
    here.does(&["rm", "-r", &url("dir")]);
    here.fails(5, "does not exist", &["cp", &url("gone"), "y"]);
    here.fails(5, "does not exist", &["cat", &url("dir/x")]);
    assert_eq!(hidden(root), Vec::<String>::new());
}

const MODES: &[&[&str]] = &[&[], &["--streams", "1"], &["--streams", "4"]];

#[test]
fn gct_server_without_names() {
    let (here, gct, root) = (Here::new(None), Gct::anonymous(), tempdir().unwrap());
    let url = |path: &str| gct.url(&root.path().join(path));
    everything(&here, &url, root.path(), MODES);
    works("phoebus cp", GCT, "anonymous", EVERYTHING);
}

#[test]
fn our_server_without_names() {
    let (here, serve) = (Here::new(None), Serve::writable());
    // `gridftp::plain` tries every mode with this server.
    everything(&here, &|path| serve.url(path), &serve.path(""), &[MODES[0], MODES[2]]);
    works("phoebus cp", "phoebus serve", "anonymous", EVERYTHING);
}

/// Protections of data, by mode.
const PROTECTED: &[&[&str]] = &[
    &[],
    &["--streams", "1"],
    &["--streams", "4"],
    &["--data-auth", "none", "--streams", "2"],
    &["--data-protection", "private"],
    &["--data-protection", "safe", "--streams", "2"],
    &["--data-protection", "private", "--streams", "4"],
];

#[test]
fn gct_server_by_certificates() {
    let (lab, root) = (Lab::new(), tempdir().unwrap());
    let (here, gct) = (Here::new(Some((&lab, "proxy"))), secure_gct(&lab));
    let url = |path: &str| format!("gsiftp://localhost:{}{}", gct.port, root.path().join(path).display());
    everything(&here, &url, root.path(), PROTECTED);
    works("phoebus cp", GCT, "certificate", &format!("{EVERYTHING} safe private"));
}

#[test]
fn our_server_by_certificates() {
    let lab = Lab::new();
    let (here, serve) = (Here::new(Some((&lab, "proxy"))), serve(&lab));
    let url = |path: &str| format!("gsiftp://localhost:{}/{path}", serve.port());
    // Other tests try every protection between the toolkit's server and this client, and between its client and this
    // server (`gridftp::gsi`).
    everything(&here, &url, &serve.path(""), &[PROTECTED[0], PROTECTED[5], PROTECTED[6]]);
    works("phoebus cp", "phoebus serve", "certificate", &format!("{EVERYTHING} safe private"));
}

#[test]
fn sighup_replaces_certificate_and_grid_mapfile() {
    let lab = Lab::new();
    let serve = serve(&lab);
    let url = |host: &str, path: &str| format!("gsiftp://{host}:{}/{path}", serve.port());
    let (user, other) = (Here::new(Some((&lab, "proxy"))), Here::new(Some((&lab, "other.proxy"))));
    user.does(&["ls", &url("localhost", "")]);
    other.fails(6, "cannot log in to gsiftp://localhost", &["ls", &url("localhost", "")]);
    // An upload that lasts until its standard input ends.
    let mut command = user.command(&["cp", "-", &url("localhost", "x")]);
    let mut copy = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = copy.stdin.take().unwrap();
    let content = bytes(3_000_000);
    input.write_all(&content[..2_000_000]).unwrap();
    support::wait_until(|| !serve.hidden().is_empty(), || serve.log());

    // One certificate for another name of the host, and the other user instead of the first.
    let script = r#"
        openssl req -newkey rsa:2048 -nodes -sha256 -subj /O=Grid/OU=Lab/CN=renewed -keyout new.key -out new.csr 2>&1
        printf 'basicConstraints=CA:FALSE\nkeyUsage=digitalSignature,keyEncipherment\nsubjectAltName=IP:127.0.0.1\n' > new.ext
        openssl x509 -req -in new.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 -sha256 -extfile new.ext -out new.pem 2>&1
        chmod 600 new.key; mv new.key host.key; mv new.pem host.pem
        printf '"/O=Grid/OU=Lab/CN=Other" jane\n' > grid-mapfile
    "#;
    grid::ok(&run(Command::new("sh").args(["-eu", "-c", script]).current_dir(lab.path(""))));
    grid::ok(&run(Command::new("kill").args(["-HUP", &serve.pid().to_string()])));
    support::wait_until(|| serve.log().contains("was read again"), || serve.log());
    other.does(&["ls", &url("127.0.0.1", "")]);
    user.fails(6, "cannot log in to gsiftp://127.0.0.1", &["ls", &url("127.0.0.1", "")]);
    other.fails(6, "CN=renewed", &["ls", &url("localhost", "")]);

    input.write_all(&content[2_000_000..]).unwrap();
    drop(input);
    let (code, said) = says(&copy.wait_with_output().unwrap());
    assert_eq!(code, 0, "{said}\n{}", serve.log());
    assert!(fs::read(serve.path("x")).unwrap() == content);
}

#[test]
fn unmapped_client_is_refused_with_the_reason() {
    let lab = Lab::new();
    let serve = serve(&lab);
    let url = format!("gsiftp://localhost:{}/", serve.port());
    Here::new(Some((&lab, "other.proxy"))).fails(6, "cannot log in to gsiftp://localhost", &["ls", &url]);
    let here = Here::new(None);
    let mut command = here.command(&["ls", &url]);
    let (code, said) = says(&run(command.env("X509_USER_PROXY", "/gone").env("X509_CERT_DIR", lab.path("certs"))));
    assert!(code == 6 && said.contains("wants a certificate"), "{said}");
    // The server's certificate is valid only for localhost.
    let here = Here::new(Some((&lab, "proxy")));
    let other = format!("gsiftp://127.0.0.2:{}/", serve.port());
    let (code, said) = says(&run(&mut here.command(&["ls", &other])));
    assert!(code == 6 || (code == 11 && said.contains("refused")), "{code}: {said}");
    // A server without certificates, and one without data protection.
    let plain = Serve::writable();
    here.fails(6, "AUTH GSSAPI", &["ls", &format!("gsiftp://localhost:{}/", plain.port())]);
    here.fails(2, "--data-protection", &["ls", "--data-auth", "none", "--data-protection", "private", &url]);
}

#[test]
fn gets_resume_after_the_client_was_killed() {
    let (here, gct, serve) = (Here::new(None), Gct::anonymous(), Serve::writable());
    let content = bytes(40 << 20);
    fs::write(serve.path("long"), &content).unwrap();
    for url in [gct.url(&serve.path("long")), serve.url("long")] {
        for mode in MODES {
            let slow = ["cp", "-q", "--limit-rate", "30mbit"];
            let copy = here.command(&[&slow[..], mode, &[&url, "long"]].concat());
            Copy::start(copy).cut_when_noted(here.dir.path(), "long");
            assert!(!here.path("long").exists());
            let said = here.does(&[&["cp"], *mode, &[&url, "long"]].concat());
            assert!(said.contains("by an earlier run"), "{url} {mode:?}: {said}");
            assert!(fs::read(here.path("long")).unwrap() == content, "{url} {mode:?}");
            fs::remove_file(here.path("long")).unwrap();
        }
    }
}

#[test]
fn puts_resume_after_the_client_was_killed() {
    let (here, gct, serve) = (Here::new(None), Gct::anonymous(), Serve::writable());
    let content = bytes(40 << 20);
    fs::write(here.path("long"), &content).unwrap();
    // The toolkit's server accepts several streams for a part of a file. Our own does not need them.
    for (url, mode) in [
        (gct.url(&serve.path("long")), &["--streams", "4"][..]),
        (gct.url(&serve.path("long")), &["--streams", "1"]),
        (serve.url("long"), &["--streams", "4"]),
    ] {
        let slow = ["cp", "-q", "--limit-rate", "20mbit"];
        let mut copy = Copy::start(here.command(&[&slow[..], mode, &["long", &url]].concat()));
        copy.until_marked(here.dir.path());
        copy.cut();
        assert!(!serve.path("long").exists());
        let said = here.does(&[&["cp"], mode, &["long", &url]].concat());
        assert!(said.contains("by an earlier run"), "{url} {mode:?}: {said}");
        assert!(fs::read(serve.path("long")).unwrap() == content, "{url} {mode:?}");
        fs::remove_file(serve.path("long")).unwrap();
        let left = fs::read_dir(here.path(".local/state/phoebus/uploads")).unwrap().count();
        assert_eq!((left, hidden(&serve.path(""))), (0, Vec::new()), "{url}");
    }
    let url = gct.url(&serve.path("long"));
    // Long enough for a restart marker. On a busy machine, the round trip looks long, and the client uses several
    // streams.
    Copy::start(here.command(&["cp", "-q", "--limit-rate", "20mbit", "long", &url]))
        .cut_amid(&serve.path(""), 16 << 20);
    let said = here.does(&["cp", "long", &url]);
    assert!(said.contains("by an earlier run"), "{said}");
    assert!(fs::read(serve.path("long")).unwrap() == content);
    fs::remove_file(serve.path("long")).unwrap();
    // A transfer in blocks is resumed in blocks, if the record of its blocks still exists.
    for known in [true, false] {
        let slow = ["cp", "-q", "--limit-rate", "20mbit", "--streams", "4", "long", &url];
        let mut copy = Copy::start(here.command(&slow));
        copy.until_marked(here.dir.path());
        copy.cut();
        if !known {
            fs::remove_dir_all(here.path(".local/state/phoebus/uploads")).unwrap();
        }
        let said = here.does(&["cp", "--verify", "none", "long", &url]);
        assert_eq!(said.contains("by an earlier run"), known, "{said}");
        assert!(fs::read(serve.path("long")).unwrap() == content, "{known}");
        fs::remove_file(serve.path("long")).unwrap();
    }
    works("phoebus cp", GCT, "anonymous", "resume");
}

#[test]
fn transfer_resumes_after_the_server_s_death() {
    let (here, gct, root) = (Here::new(None), Gct::anonymous(), tempdir().unwrap());
    let content = bytes(40 << 20);
    fs::write(here.path("long"), &content).unwrap();
    let url = gct.url(&root.path().join("long"));
    let slow = ["cp", "-q", "--limit-rate", "30mbit", "--streams", "4"];
    let mut copy = Copy::start(here.command(&[&slow[..], &["long", &url]].concat()));
    copy.until_marked(here.dir.path());
    assert!(gct.kill_children() > 0);
    assert!(copy.ends() && fs::read(root.path().join("long")).unwrap() == content);
    fs::remove_file(here.path("long")).unwrap();
    for mode in [&slow[..4], &slow] {
        let mut copy = Copy::start(here.command(&[mode, &[&url, "long"]].concat()));
        copy.until_noted(here.dir.path(), "long");
        assert!(gct.kill_children() > 0);
        assert!(copy.ends() && fs::read(here.path("long")).unwrap() == content, "{mode:?}");
        fs::remove_file(here.path("long")).unwrap();
    }
    assert_eq!(hidden(root.path()), Vec::<String>::new());
}

/// Copies from one server to the other. Returns whether data went directly.
fn went_directly(here: &Here<'_>, mode: &[&str], from: &str, to: &str) -> bool {
    let said = here.does(&[&["cp", "--json"], mode, &[from, to]].concat());
    let report: serde_json::Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    report["bytes_between_servers"] == report["bytes"]
}

/// The URLs and the directory of a server.
type Place<'a> = (&'a dyn Fn(&str) -> String, &'a Path);

/// Copies between servers in every way.
fn between(here: &Here<'_>, modes: &[&[&str]], servers: &[Place<'_>]) {
    let content = bytes(20_000_001);
    for (from, source) in servers {
        for (to, target) in servers {
            for mode in modes {
                fs::write(source.join("source"), &content).unwrap();
                let (from, to) = (from("source"), to("target"));
                assert!(went_directly(here, mode, &from, &to), "{from} {to} {mode:?}");
                assert!(fs::read(target.join("target")).unwrap() == content, "{from} {to} {mode:?}");
                fs::remove_file(target.join("target")).unwrap();
                assert_eq!(hidden(target), Vec::<String>::new());
            }
        }
    }
}

#[test]
fn files_are_copied_from_server_to_server() {
    let (here, gct, other, serve) = (Here::new(None), Gct::anonymous(), Gct::anonymous(), Serve::writable());
    let (one, two) = (tempdir().unwrap(), tempdir().unwrap());
    let at_gct = |path: &str| gct.url(&one.path().join(path));
    let at_other = |path: &str| other.url(&two.path().join(path));
    let at_ours = |path: &str| serve.url(path);
    between(&here, MODES, &[(&at_gct, one.path()), (&at_other, two.path()), (&at_ours, &serve.path(""))]);
    // A copy that must pass through this end does.
    fs::write(serve.path("source"), bytes(3_000_000)).unwrap();
    assert!(!went_directly(&here, &["--limit-rate", "1gbit"], &at_ours("source"), &at_gct("target")));
    assert!(fs::read(one.path().join("target")).unwrap() == bytes(3_000_000));
    for (server, other) in [(GCT, "phoebus serve"), ("phoebus serve", GCT)] {
        let third = format!("third:{} third:{}", server.replace(' ', "_"), other.replace(' ', "_"));
        works("phoebus cp", server, "anonymous", &third);
    }
}

#[test]
fn files_are_copied_from_server_to_server_by_certificates() {
    let lab = Lab::new();
    let (here, gct, ours) = (Here::new(Some((&lab, "proxy"))), secure_gct(&lab), serve(&lab));
    let root = tempdir().unwrap();
    let at_gct = |path: &str| format!("gsiftp://localhost:{}{}", gct.port, root.path().join(path).display());
    let at_ours = |path: &str| format!("gsiftp://localhost:{}/{path}", ours.port());
    let modes: &[&[&str]] = &[&[], &["--streams", "4"], &["--data-protection", "private", "--streams", "2"]];
    between(&here, modes, &[(&at_gct, root.path()), (&at_ours, &ours.path(""))]);
    // One of the two has not authenticated the client.
    let plain = Serve::writable();
    fs::write(plain.path("source"), bytes(3_000_000)).unwrap();
    assert!(!went_directly(&here, &[], &plain.url("source"), &at_ours("target")));
    assert!(fs::read(ours.path("target")).unwrap() == bytes(3_000_000));
    for (server, other) in [(GCT, "phoebus serve"), ("phoebus serve", GCT)] {
        let third = format!("third:{} third:{}", server.replace(' ', "_"), other.replace(' ', "_"));
        works("phoebus cp", server, "certificate", &third);
    }
}

#[test]
fn lists_of_remote_files_are_looked_up_in_parallel() {
    let (here, gct, serve) = (Here::new(None), Gct::anonymous(), Serve::writable());
    for i in 0..100 {
        fs::write(serve.path(&format!("f{i}")), bytes(i)).unwrap();
    }
    fs::create_dir(serve.path("dir")).unwrap();
    for url in [&(|path: &str| gct.url(&serve.path(path))) as &dyn Fn(&str) -> String, &|path| serve.url(path)] {
        let names: Vec<String> = (0..100).map(|i| url(&format!("f{i}"))).collect();
        fs::write(here.path("list"), names.join("\n")).unwrap();
        here.does(&["cp", "-q", "--list", "list", "all/"]);
        let pairs: Vec<String> = (0..100).map(|i| format!("{} g{i}", names[i])).collect();
        fs::write(here.path("pairs"), pairs.join("\n")).unwrap();
        here.does(&["cp", "-q", "--list", "pairs"]);
        for i in 0..100 {
            assert!(fs::read(here.path(&format!("all/f{i}"))).unwrap() == bytes(i), "{i}");
            assert!(fs::read(here.path(&format!("g{i}"))).unwrap() == bytes(i), "{i}");
        }
        // The error names a missing source, and the others are copied. An existing directory receives the files.
        fs::write(here.path("list"), format!("{}\n{}\n{}\n", names[1], url("gone"), names[2])).unwrap();
        here.fails(4, "/gone does not exist", &["cp", "--list", "list", "some/"]);
        assert!(here.path("some/f1").exists() && here.path("some/f2").exists());
        fs::write(here.path("pairs"), format!("g3 {}\ng4 {}\n", url("dir"), url("x4"))).unwrap();
        here.does(&["cp", "--list", "pairs"]);
        assert_eq!(
            (fs::read(serve.path("dir/g3")).unwrap(), fs::read(serve.path("x4")).unwrap()),
            (bytes(3), bytes(4))
        );
        for name in ["all", "some"] {
            fs::remove_dir_all(here.path(name)).unwrap();
        }
    }
}
