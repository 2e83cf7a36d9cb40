//! Clients that prove by certificates who they are (U1; GFD.20, section 3.1): `globus-url-copy` with proxies, every protection
//! of data, and third-party transfers with the toolkit's own server.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use support::gct::Gct;
use support::lab::{Lab, USER};
use support::works::works;
use support::{Serve, bytes, ok, run};

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
fn servers_know_each_other_by_what_the_client_has_lent() {
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
fn nobody_else_is_let_in() {
    let lab = Lab::new();
    let serve = Serve::to_grid(&lab);
    fs::write(serve.path("source"), "secret").unwrap();
    let target = local(&serve.local().join("target"));
    let refused = |output: &Output, says: &str| {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains(says), "{text}");
    };
    refused(&copy(&lab, "other.proxy", &[&url(&serve, "source"), &target]), "530");
    // Without a certificate there is no way in at all.
    refused(&copy(&lab, "proxy", &[&serve.url("source"), &target]), "530");
    // The client makes the file before it asks.
    assert_eq!(fs::read(serve.local().join("target")).unwrap_or_default(), b"");
}

#[test]
fn data_connections_are_with_whom_the_client_names() {
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
    // Whoever is at the other end is not he whom the client names.
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
fn its_client_chooses_what_carries_data() {
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
    let only_tcp = Serve::to_grid(&lab);
    let output = copy(&lab, "proxy", &["-udt", &local(&source), &url(&only_tcp, "x")]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("udt driver not whitelisted"), "{text}");
    works("globus-url-copy", "phoebus serve", "certificate", "udt stack");
}
