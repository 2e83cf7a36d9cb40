//! `phoebus cp` with servers that limit connections for each client or each file: it uses fewer connections, and all
//! files arrive.

use crate::support;
use std::fs;
use std::path::Path;
use std::process::Command;
use support::ftp::{Ftp, Tls, hidden};
use support::grid::ok;
use support::here::{Here, says};
use support::serve::{Serve, bytes, run};

/// More files at a time than the server has connections, there and back.
fn all_arrive(url: &dyn Fn(&str) -> String, root: &Path, modes: &[&[&str]]) {
    let here = Here::new(None);
    for i in 0..40 {
        let dir = here.path("tree").join(format!("d{}", i % 4));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(format!("f{i}")), bytes(20_000 + i)).unwrap();
    }
    fs::write(here.path("tree/long"), bytes(3_000_001)).unwrap();
    for mode in modes {
        here.does(&[&["cp", "-r", "-q"], *mode, &["tree/", &url("tree")]].concat());
        here.does(&[&["cp", "-r", "-q"], *mode, &[&url("tree/"), "back"]].concat());
        for other in [root.join("tree"), here.path("back")] {
            ok(&run(Command::new("diff").arg("-r").args([&here.path("tree"), &other])));
            fs::remove_dir_all(other).unwrap();
        }
    }
    assert_eq!(hidden(root), Vec::<String>::new());
}

#[test]
fn vsftpd_has_three_connections_for_each_client() {
    let server = Ftp::vsftpd_with(Tls::None, "max_per_ip=3");
    all_arrive(&|path| server.url("ftp", path), &server.path(""), &[&[], &["--transfers", "8"]]);
}

#[test]
fn proftpd_has_three_connections_for_each_client() {
    let server = Ftp::proftpd(Tls::None, "MaxClientsPerHost 3");
    all_arrive(&|path| server.url("ftp", path), &server.path(""), &[&[], &["--transfers", "8"]]);
}

#[test]
fn our_server_has_few_connections_for_each_user() {
    for most in [1, 3] {
        let server = Serve::configured(&format!(
            "[anonymous]\nroot = \"ROOT\"\nread_only = false\n[limits]\nper_user = {most}\n"
        ));
        all_arrive(&|path| server.url(path), &server.path(""), &[&[], &["--transfers", "8"]]);
    }
}

#[test]
fn our_server_announces_its_connections_per_file() {
    let config = "[anonymous]\nroot = \"ROOT\"\nread_only = false\nthird_party = true\n";
    let (narrow, wide) = (Serve::configured(&format!("{config}[data]\nstreams = 2\n")), Serve::configured(config));
    let here = Here::new(None);
    for path in [here.path("long"), narrow.path("there"), wide.path("there")] {
        fs::write(path, bytes(3_000_001)).unwrap();
    }
    let copy =
        |streams: &str, from: &str, to: &str| run(&mut here.command(&["cp", "--json", "--streams", streams, from, to]));
    for (from, to) in [
        ("long".to_owned(), narrow.url("put")),
        (narrow.url("there"), "got".to_owned()),
        (wide.url("there"), narrow.url("taken")),
        (narrow.url("there"), wide.url("given")),
    ] {
        let (code, said) = says(&copy("3", &from, &to));
        let server = narrow.url("");
        let expected = format!(
            "{}: 3 connections for a file were asked for, and the server answers OPTS RETR with 501 Parallelism of at most 2 is \
             possible here",
            server.trim_end_matches('/')
        );
        assert!(code == 1 && said.contains(&expected), "{from} {to}: {code}: {said}");
        // It was neither repeated, nor reported as a success.
        assert!(!said.contains("\"again\"") && !said.contains("\"streams\":3"), "{said}");
        // No data arrived, and no draft stays.
        assert!(!here.path(".got.phoebus-draft").exists() && !here.path(".got.phoebus-journal").exists());
        assert!(copy("2", &from, &to).status.success(), "{from} {to}");
    }
    assert_eq!([narrow.hidden(), wide.hidden()], [Vec::<String>::new(), Vec::new()]);
}
