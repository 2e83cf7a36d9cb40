//! `phoebus cp --stripe`: all data nodes of a server move files at once, the toolkit's and our own (U3, S11).

use crate::support;
use std::fs;
use std::path::Path;
use support::grid::gct::Gct;
use support::here::Here;
use support::serve::{Serve, bytes};
use support::site::Site;
use support::wait_until;
use support::works::works;
use tempfile::tempdir;

/// The toolkit's server with two data nodes.
struct Striped {
    front: Gct,
    _nodes: [Gct; 2],
}

impl Striped {
    fn new() -> Self {
        let nodes = [(); 2].map(|()| Gct::anonymous_with(&["-dn"]));
        let at = nodes.each_ref().map(|node| format!("127.0.0.1:{}", node.port)).join(",");
        Self { front: Gct::anonymous_with(&["-r", &at, "-sbs", "65536"]), _nodes: nodes }
    }
}

const MODES: &[&[&str]] = &[&["--stripe"], &["--stripe", "--streams", "3"]];

/// Uploads and downloads over all nodes.
fn both_ways(here: &Here<'_>, url: &dyn Fn(&str) -> String, root: &Path) {
    let content = bytes(20_000_001);
    fs::write(here.path("source"), &content).unwrap();
    for mode in MODES {
        let said = here.does(&[&["cp"], *mode, &["source", &url("target")]].concat());
        assert!(fs::read(root.join("target")).unwrap() == content, "put {mode:?}");
        let connections = if mode.len() == 1 { "up to 2 connections" } else { "up to 6 connections" };
        assert!(said.contains(connections), "{said}");
        here.does(&[&["cp"], *mode, &[&url("target"), "back"]].concat());
        assert!(fs::read(here.path("back")).unwrap() == content, "get {mode:?}");
        for name in [here.path("back"), root.join("target")] {
            fs::remove_file(name).unwrap();
        }
    }
    assert!(here.does(&["ls", &url("")]).is_empty());
}

#[test]
fn all_data_nodes_of_a_server_move_a_file() {
    let (here, gct, root) = (Here::new(None), Striped::new(), tempdir().unwrap());
    both_ways(&here, &|path| gct.front.url(&root.path().join(path)), root.path());
    works("phoebus cp", "globus-gridftp-server", "anonymous", "stripes");
    let site = Site::new();
    both_ways(&here, &|path| site.front.url(path), &site.path(""));
    // This end has one address, to which all nodes send. A node may write its log after the client has gone.
    let logs = || site.nodes.iter().map(Serve::log).collect::<Vec<_>>();
    let all_say =
        || logs().iter().all(|log| ["store a stripe", "retrieve stripe"].iter().all(|says| log.contains(says)));
    wait_until(all_say, || format!("{:?}", logs()));
    assert_eq!(site.hidden(), "");
    works("phoebus cp", "phoebus serve", "anonymous", "stripes");
    // A server without data nodes works as usual.
    let serve = Serve::writable();
    fs::write(here.path("x"), "x").unwrap();
    here.does(&["cp", "--stripe", "x", &serve.url("x")]);
    assert_eq!(fs::read(serve.path("x")).unwrap(), b"x");
}

#[test]
fn data_nodes_of_two_servers_move_files() {
    let (here, one, other, three) = (Here::new(None), Site::new(), Site::new(), Site::with_nodes(3));
    let (gct, root) = (Striped::new(), tempdir().unwrap());
    let content = bytes(20_000_001);
    fs::write(one.path("x"), &content).unwrap();
    fs::write(root.path().join("x"), &content).unwrap();
    fs::write(three.path("x"), &content).unwrap();
    let theirs = |name: &str| gct.front.url(&root.path().join(name));
    for (from, to, file) in [
        (one.front.url("x"), other.front.url("y"), other.path("y")),
        (one.front.url("x"), theirs("y"), root.path().join("y")),
        (theirs("x"), other.front.url("y"), other.path("y")),
        // More nodes than addresses, and fewer.
        (three.front.url("x"), theirs("y"), root.path().join("y")),
        (three.front.url("x"), other.front.url("y"), other.path("y")),
        (theirs("x"), three.front.url("y"), three.path("y")),
    ] {
        let said = here.does(&["cp", "--stripe", "--streams", "2", &from, &to]);
        assert!(fs::read(&file).unwrap() == content, "{from} {to}");
        assert!(said.contains("from server to server"), "{said}");
        fs::remove_file(file).unwrap();
    }
    for node in &three.nodes {
        wait_until(|| node.log().matches("retrieve stripe").count() == 2, || node.log());
    }
    works("phoebus cp", "phoebus serve", "anonymous", "stripes third:phoebus_serve third:globus-gridftp-server");
}
