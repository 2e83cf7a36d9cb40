//! `phoebus cp` with servers that have few connections for each client: fewer files go at a time, and all arrive.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::fs;
use std::process::Command;
use support::ftp::{Ftp, Tls, hidden};
use support::grid::ok;
use support::here::Here;
use support::serve::{bytes, run};

/// More files at a time than the server has connections, there and back.
fn all_arrive(server: &Ftp, modes: &[&[&str]]) {
    let here = Here::new(None);
    for i in 0..40 {
        let dir = here.path("tree").join(format!("d{}", i % 4));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(format!("f{i}")), bytes(20_000 + i)).unwrap();
    }
    fs::write(here.path("tree/long"), bytes(3_000_001)).unwrap();
    for mode in modes {
        here.does(&[&["cp", "-r", "-q"], *mode, &["tree/", &server.url("ftp", "tree")]].concat());
        here.does(&[&["cp", "-r", "-q"], *mode, &[&server.url("ftp", "tree/"), "back"]].concat());
        for other in [server.path("tree"), here.path("back")] {
            ok(&run(Command::new("diff").arg("-r").args([&here.path("tree"), &other])));
            fs::remove_dir_all(other).unwrap();
        }
    }
    assert_eq!(hidden(&server.path("")), Vec::<String>::new());
}

#[test]
fn vsftpd_has_three_connections_for_each_client() {
    all_arrive(&Ftp::vsftpd_with(Tls::None, "max_per_ip=3"), &[&[], &["--transfers", "8"]]);
}

#[test]
fn proftpd_has_three_connections_for_each_client() {
    all_arrive(&Ftp::proftpd(Tls::None, "MaxClientsPerHost 3"), &[&[], &["--transfers", "8"]]);
}
