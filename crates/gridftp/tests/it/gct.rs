//! The server with the programs of the Grid Community Toolkit (U2–U6): its client in every mode and direction, and its server
//! at the other end of third-party transfers.

use crate::support;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use support::gct::Gct;
use support::works::works;
use support::{Serve, bytes, ok, run};

fn copy(arguments: &[&str]) -> Output {
    run(Command::new("globus-url-copy").env("HOME", "/nonexistent").args(arguments))
}

fn local(path: &Path) -> String {
    format!("file://{}", path.display())
}

#[test]
fn gct_client_gets_and_puts_in_every_mode() {
    let serve = Serve::writable();
    let content = bytes(20 << 20);
    let (source, target) = (serve.local().join("source"), serve.local().join("target"));
    fs::write(&source, &content).unwrap();
    fs::write(serve.path("source"), &content).unwrap();
    for mode in [
        &[][..],
        &["-p", "1"],
        &["-p", "8"],
        &["-fast"],
        &["-p", "4", "-tcp-bs", "262144"],
        &["-p", "2", "-bs", "65536"],
    ] {
        ok(&copy(&[mode, &[&serve.url("source"), &local(&target)]].concat()));
        assert!(fs::read(&target).unwrap() == content, "get {mode:?}");
        fs::remove_file(&target).unwrap();
        ok(&copy(&[mode, &[&local(&source), &serve.url("target")]].concat()));
        assert!(fs::read(serve.path("target")).unwrap() == content, "put {mode:?}");
        fs::remove_file(serve.path("target")).unwrap();
    }
    for mode in [&[][..], &["-p", "2"]] {
        let part = ["-off", "1000000", "-len", "5000000"];
        ok(&copy(&[mode, &part, &[&serve.url("source"), &local(&target)]].concat()));
        assert!(fs::read(&target).unwrap()[1_000_000..] == content[1_000_000..6_000_000], "part {mode:?}");
        fs::remove_file(&target).unwrap();
    }
    let sums = ["-verify-checksum", "-checksum-alg", "SHA256"];
    ok(&copy(&[&sums[..], &[&local(&source), &serve.url("verified")]].concat()));
    assert!(fs::read(serve.path("verified")).unwrap() == content);
    assert_eq!(serve.hidden(), Vec::<String>::new());
    works("globus-url-copy", "phoebus serve", "anonymous", "get put parallel part sum");
}

#[test]
fn gct_client_copies_between_servers() {
    let (here, there, gct) = (Serve::writable(), Serve::writable(), Gct::anonymous());
    let content = bytes(20 << 20);
    fs::write(here.path("source"), &content).unwrap();
    let target = there.path("target");
    let between = [
        (here.url("source"), there.url("target")),
        (here.url("source"), gct.url(&target)),
        (gct.url(&here.path("source")), there.url("target")),
    ];
    for (from, to) in &between {
        for mode in [&[][..], &["-p", "1"], &["-p", "4"], &["-fast"], &["-p", "2", "-len", "20971520"]] {
            ok(&copy(&[mode, &[from, to]].concat()));
            assert!(fs::read(&target).unwrap() == content, "{from} {to} {mode:?}");
            fs::remove_file(&target).unwrap();
        }
    }
    assert_eq!(there.hidden(), Vec::<String>::new());
    works("globus-url-copy", "phoebus serve", "anonymous", "third:phoebus_serve third:globus-gridftp-server");
}

#[test]
fn gct_client_copies_trees() {
    let (here, there) = (Serve::writable(), Serve::writable());
    fs::create_dir_all(here.path("tree/deep/er")).unwrap();
    for (name, len) in [("a", 0), ("b b", 1), ("c+c", 1000), ("deep/d", 100_000), ("deep/er/e", 2 << 20)] {
        fs::write(here.path("tree").join(name), bytes(len)).unwrap();
    }
    for (i, mode) in [&[][..], &["-p", "2"], &["-cc", "4", "-pp", "-fast"], &["-cc", "2"]].into_iter().enumerate() {
        let name = format!("to{i}/");
        ok(&copy(&[&["-r", "-cd"], mode, &[&here.url("tree/"), &there.url(&name)]].concat()));
        ok(&run(Command::new("diff").arg("-r").args([here.path("tree"), there.path(&name)])));
        let down = here.local().join(&name);
        ok(&copy(&[&["-r", "-cd"], mode, &[&here.url("tree/"), &format!("{}/", local(&down))]].concat()));
        ok(&run(Command::new("diff").arg("-r").args([here.path("tree"), down])));
    }
    let listed = ok(&copy(&["-list", &here.url("tree/")]));
    assert!(["a", "b b", "deep/"].iter().all(|name| listed.lines().any(|line| line.trim() == *name)), "{listed}");
    works("globus-url-copy", "phoebus serve", "anonymous", "tree list manage");
}

#[test]
fn gct_client_syncs_changed_files() {
    let (here, there) = (Serve::writable(), Serve::writable());
    for (name, text) in [("a", "one"), ("b", "two")] {
        fs::create_dir_all(here.path("tree")).unwrap();
        fs::write(here.path("tree").join(name), text).unwrap();
    }
    let sync = |level: &str| {
        let copied =
            ok(&copy(&["-v", "-r", "-cd", "-sync", "-sync-level", level, &here.url("tree/"), &there.url("tree/")]));
        let mut names: Vec<String> =
            copied.lines().map(|line| line.trim().to_owned()).filter(|l| l == "a" || l == "b").collect();
        names.sort();
        names
    };
    assert_eq!(sync("0"), ["a", "b"]);
    assert_eq!(sync("1"), Vec::<String>::new());
    fs::write(here.path("tree/a"), "longer").unwrap();
    assert_eq!(sync("1"), ["a"]);
    fs::write(here.path("tree/b"), "TWO").unwrap();
    ok(&run(Command::new("touch").args(["-d", "2020-01-01"]).arg(here.path("tree/b"))));
    assert_eq!(sync("2"), Vec::<String>::new());
    assert_eq!(sync("3"), ["b"]);
    assert_eq!(fs::read(there.path("tree/b")).unwrap(), b"TWO");
    works("globus-url-copy", "phoebus serve", "anonymous", "sync");
}

#[test]
fn gct_client_reports_refusals() {
    let serve = Serve::reading();
    fs::write(serve.path("x"), "x").unwrap();
    let [target, gone] = ["target", "gone"].map(|name| local(&serve.local().join(name)));
    for (from, to, says) in [
        (serve.url("gone"), target, "does not exist"),
        (local(&serve.local().join("pid")), serve.url("y"), "read-only"),
        (gone, serve.url("y"), "No such file"),
    ] {
        fs::write(serve.local().join("pid"), "x").unwrap();
        let output = copy(&[&from, &to]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains(says), "{from} {to}: {text}");
    }
}
