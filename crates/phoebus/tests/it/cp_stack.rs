//! `phoebus cp --stack`: data by another transport than TCP, or by TCP with options, with the toolkit's server and our own (U9–U12).

use crate::support;
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;
use support::ftp::{Ftp, Tls};
use support::grid::gct::Gct;
use support::grid::lab::Lab;
use support::here::{Here, serve_with};
use support::serve::{Serve, bytes};
use support::works::works;
use tempfile::tempdir;

/// Uploads, downloads and listings. The report names the stack.
fn both_ways(here: &Here<'_>, url: &dyn Fn(&str) -> String, root: &Path, stack: &str, with: &[&str]) {
    let content = bytes(3_000_001);
    fs::write(here.path("source"), &content).unwrap();
    let copy = |from: &str, to: &str| here.does(&[&["cp", "--stack", stack], with, &[from, to]].concat());
    let said = copy("source", &url("by-stack"));
    assert!(said.contains(&format!("data by {stack}")), "{said}");
    assert!(fs::read(root.join("by-stack")).unwrap() == content, "put {stack} {with:?}");
    copy(&url("by-stack"), "back");
    assert!(fs::read(here.path("back")).unwrap() == content, "get {stack} {with:?}");
    assert!(here.does(&["ls", "--stack", stack, &url("")]).contains("by-stack"));
    for name in [&here.path("back"), &root.join("by-stack")] {
        fs::remove_file(name).unwrap();
    }
    // Files and listings alternate on one control connection.
    fs::create_dir_all(here.path("tree/deep")).unwrap();
    for (name, len) in [("a", 0), ("b b", 1), ("deep/c", 300_000)] {
        fs::write(here.path("tree").join(name), bytes(len)).unwrap();
    }
    here.does(&[&["cp", "-r", "--stack", stack], with, &["tree/", &url("tree")]].concat());
    here.does(&[&["cp", "-r", "--stack", stack], with, &[&url("tree/"), "down"]].concat());
    for name in ["a", "b b", "deep/c"] {
        assert!(fs::read(here.path("down").join(name)).unwrap() == fs::read(here.path("tree").join(name)).unwrap());
    }
    for tree in [here.path("down"), root.join("tree")] {
        fs::remove_dir_all(tree).unwrap();
    }
}

/// Files and trees from one server to another, directly, over one connection and over several.
fn between(
    here: &Here<'_>,
    from: (&Serve, &dyn Fn(&str) -> String),
    to: (&Serve, &dyn Fn(&str) -> String),
    stacks: &[&str],
) {
    let content = bytes(3_000_001);
    fs::create_dir_all(from.0.path("tree/deep")).unwrap();
    for name in ["x", "tree/a", "tree/deep/b"] {
        fs::write(from.0.path(name), &content).unwrap();
    }
    for stack in stacks {
        for with in [&[][..], &["--streams", "3"]] {
            let copy = [&["cp", "-r", "--json", "--stack", stack], with].concat();
            for (what, files) in [("x", 1), ("tree", 2)] {
                let said = here.does(&[&copy[..], &[&from.1(what), &to.1("")]].concat());
                let report: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
                assert_eq!(report["bytes_between_servers"], files * 3_000_001, "{stack} {with:?}: {report:#}");
                assert!(report["by_way_of_this_end"].is_null(), "{report:#}");
                let path = report["path"].as_str().unwrap();
                assert!(path.contains(&format!("data by {stack}")), "{path}");
            }
            let copied = ["x", "tree/a", "tree/deep/b"].map(|name| to.0.path(name));
            assert!(copied.iter().all(|path| fs::read(path).unwrap() == content), "{stack} {with:?}");
            fs::remove_file(to.0.path("x")).unwrap();
            fs::remove_dir_all(to.0.path("tree")).unwrap();
        }
    }
}

const UDT: &[&str] = &["-dc-whitelist", "tcp,udt,gsi"];

#[test]
fn gct_server_carries_data_by_udt() {
    let (here, root, gct) = (Here::new(None), tempdir().unwrap(), Gct::anonymous_with(UDT));
    both_ways(&here, &|path| gct.url(&root.path().join(path)), root.path(), "udt", &[]);
    both_ways(&here, &|path| gct.url(&root.path().join(path)), root.path(), "tcp", &["--streams", "2"]);
    works("phoebus cp", "globus-gridftp-server", "anonymous", "udt");
}

#[test]
fn gct_server_carries_data_by_authenticated_udt() {
    let (lab, root) = (Lab::new(), tempdir().unwrap());
    let (certs, host, key) = (lab.path("certs"), lab.path("host.pem"), lab.path("host.key"));
    let gct = Gct::secure_with(&certs, &host, &key, &lab.path("grid-mapfile.unix"), UDT);
    let here = Here::new(Some((&lab, "proxy")));
    let url = |path: &str| format!("gsiftp://localhost:{}{}", gct.port, root.path().join(path).display());
    for with in [&[][..], &["--data-protection", "private"]] {
        both_ways(&here, &url, root.path(), "udt", with);
    }
    works("phoebus cp", "globus-gridftp-server", "certificate", "udt private");
}

#[test]
fn our_server_carries_data_by_stacks() {
    let here = Here::new(None);
    let (serve, other) = (Serve::writable(), Serve::writable());
    let url = |path: &str| serve.url(path);
    both_ways(&here, &url, &serve.path(""), "udt", &[]);
    both_ways(&here, &url, &serve.path(""), "udt:mss=1400,rate:rate=10gbit", &["--streams", "3"]);
    both_ways(&here, &url, &serve.path(""), "tcp:sndbuf=1MiB;rcvbuf=1MiB", &[]);
    // Between keys that the two ends exchange.
    for stack in ["quic", "quic:cc=cubic,rate:rate=10gbit", "tcp,tls"] {
        both_ways(&here, &url, &serve.path(""), stack, &[]);
        both_ways(&here, &url, &serve.path(""), stack, &["--streams", "3"]);
    }
    for stack in ["object", "object:packet=1200;chunk=128KiB;seal=none", "object,rate:rate=10gbit"] {
        both_ways(&here, &url, &serve.path(""), stack, &[]);
    }
    fs::write(here.path("x"), "x").unwrap();
    let more = ["cp", "--stack", "object", "--streams", "3", "x", &url("x")];
    here.fails(2, "objects take no --streams", &more);
    here.fails(2, "do not go to data nodes", &["cp", "--stack", "object", "--stripe", "x", &url("x")]);
    // Between two servers that both have it.
    between(&here, (&serve, &|path| serve.url(path)), (&other, &|path| other.url(path)), &["udt", "quic", "tcp,tls"]);
    // The error names a driver that one of them lacks, and no data goes another way.
    let plain = only_tcp();
    here.fails(1, "quic driver not whitelisted", &["cp", "--stack", "quic", &serve.url("x"), &plain.url("y")]);
    assert!(!plain.path("y").exists());
    works("phoebus cp", "phoebus serve", "anonymous", "udt stack");
    let lab = Lab::new();
    let here = Here::new(Some((&lab, "proxy")));
    let serve = serve_with(&lab, "");
    let url = |path: &str| format!("gsiftp://localhost:{}/{path}", serve.port());
    both_ways(&here, &url, &serve.path(""), "udt,gsi", &["--data-protection", "private"]);
    both_ways(&here, &url, &serve.path(""), "quic", &[]);
    both_ways(&here, &url, &serve.path(""), "object", &[]);
    let other = serve_with(&lab, "");
    let other_url = |path: &str| format!("gsiftp://localhost:{}/{path}", other.port());
    between(&here, (&serve, &url), (&other, &other_url), &["quic", "udt,gsi"]);
    works("phoebus cp", "phoebus serve", "certificate", "udt stack private");
}

/// A server whose administrator allows nothing but TCP.
fn only_tcp() -> Serve {
    Serve::configured("[anonymous]\nroot = \"ROOT\"\nread_only = false\n[data]\ndrivers = [\"tcp\"]\n")
}

#[test]
fn unavailable_stacks_are_named_and_not_replaced() {
    let (here, plain, gct) = (Here::new(None), only_tcp(), Gct::anonymous());
    fs::write(here.path("x"), "x").unwrap();
    for url in [plain.url(""), gct.url(Path::new("/tmp/"))] {
        here.fails(1, "udt driver not whitelisted", &["cp", "--stack", "udt", "x", &url]);
    }
    here.fails(1, "quic driver not whitelisted", &["cp", "--stack", "quic", "x", &plain.url("")]);
    here.fails(1, "does not carry data by quic", &["cp", "--stack", "quic", "x", &gct.url(Path::new("/tmp/"))]);
    let vsftpd = Ftp::vsftpd(Tls::None);
    here.fails(1, "the server does not carry data by udt", &["cp", "--stack", "udt", "x", &vsftpd.url("ftp", "x")]);
    assert!(!plain.path("x").exists() && !vsftpd.path("x").exists());
    let url = plain.url("");
    for (stack, words) in [
        ("mux", "driver mux is not available"),
        ("tcp,udt", "driver udt has to be the lowest"),
        ("tcp,gsi", "driver gsi is for gsiftp://"),
        ("quic,tls", "driver tls is above quic"),
    ] {
        here.fails(2, words, &["ls", "--stack", stack, &url]);
    }
    here.fails(2, "--stack udt: data goes through gateways", &["ls", "--stack", "udt", "--via", "pg1", &url]);
    here.fails(2, "one of the two", &["ls", "--stack", "phoebus:gw=pg1", "--via", "pg1", &url]);
    here.fails(11, "gateway 127.0.0.1:9", &["ls", "--stack", "phoebus:gw=127.0.0.1%2F9", &url]);
}

/// The port of a relay to `port` of this host that takes 6 ms each way: a server that is far away, by its replies.
fn far(port: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for near in listener.incoming() {
            let near = near.unwrap();
            let far = TcpStream::connect(("127.0.0.1", port)).unwrap();
            for (mut from, mut to) in [(near.try_clone().unwrap(), far.try_clone().unwrap()), (far, near)] {
                std::thread::spawn(move || {
                    let mut bytes = [0; 16_384];
                    while let Ok(len @ 1..) = from.read(&mut bytes) {
                        std::thread::sleep(Duration::from_millis(6));
                        if to.write_all(&bytes[..len]).is_err() {
                            break;
                        }
                    }
                    let _ = to.shutdown(std::net::Shutdown::Write);
                });
            }
        }
    });
    at
}

#[test]
fn auto_carries_long_files_as_objects_and_others_as_certificates_protect_them() {
    let lab = Lab::new();
    let here = Here::new(Some((&lab, "proxy")));
    let serve = serve_with(&lab, "");
    let url = format!("gsiftp://localhost:{}/", far(serve.port()));
    fs::create_dir_all(here.path("tree")).unwrap();
    for (name, len) in [("a", 5_000_001), ("b", 10), ("c", 5_000_002), ("d", 2_000_000)] {
        fs::write(here.path("tree").join(name), bytes(len)).unwrap();
    }
    // Without a checksum that is computed on the way, the kernel would send files over TCP.
    for (protection, verify) in [("clear", "auto"), ("clear", "none"), ("private", "SHA256"), ("private", "auto")] {
        let copy = ["cp", "-r", "--json", "--stack", "auto", "--data-protection", protection, "--verify", verify];
        for places in [["tree/".to_owned(), format!("{url}tree")], [format!("{url}tree/"), "back".to_owned()]] {
            let said = here.does(&[&copy[..], &[&places[0], &places[1]]].concat());
            let report: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
            let carriers = report["carriers"].as_array().unwrap();
            let files = |data: &str, why: &str| {
                let carrier = carriers.iter().find(|one| one["data"] == data && one["why"] == why);
                carrier.map_or(0, |one| one["files"].as_u64().unwrap())
            };
            let objects = files("object", "the server is far");
            // Loopback may turn out faster than objects are cheap, which decides about the second of the two long files.
            let fast = files("tcp", "the path is faster than objects are cheap");
            assert!(objects >= 1 && objects + fast == 2, "{report:#}");
            assert_eq!(report["objects"]["transfers"], objects, "{report:#}");
        }
        for tree in [here.path("back"), serve.path("tree")] {
            for name in ["a", "b", "c", "d"] {
                assert!(fs::read(tree.join(name)).unwrap() == fs::read(here.path("tree").join(name)).unwrap());
            }
            fs::remove_dir_all(tree).unwrap();
        }
    }
}
