//! `phoebus serve --data-node`: processes that move data for a front end, with the toolkit's client and our own.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::fs::{self, File};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use support::PATIENCE;
use support::grid::ok;
use support::serve::{bytes, run};
use support::site::Site;

#[test]
fn files_go_between_sites_by_their_nodes() {
    let (here, there) = (Site::new(), Site::new());
    let content = bytes(30_000_001);
    fs::write(here.path("x"), &content).unwrap();
    let urls = [here.front.url("x"), there.front.url("y")];
    ok(&run(Command::new("globus-url-copy").env("HOME", "/nonexistent").args(["-stripe", "-p", "2"]).args(&urls)));
    assert!(fs::read(there.path("y")).unwrap() == content);
    for node in &here.nodes {
        assert!(node.log().contains("retrieve stripe"), "{}", node.log());
    }
    for node in &there.nodes {
        assert!(node.log().contains("store a stripe"), "{}", node.log());
    }
    // Our own client asks for none of them here, and has the front end move all of it.
    let phoebus = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_phoebus"));
        ok(&run(command.args(arguments).current_dir(here.dir.path()).env("HOME", here.dir.path())))
    };
    phoebus(&["cp", "--streams", "4", &urls[0], "back"]);
    assert!(fs::read(here.dir.path().join("back")).unwrap() == content);
    phoebus(&["cp", "--streams", "4", "back", &there.front.url("z")]);
    assert!(fs::read(there.path("z")).unwrap() == content);
    assert_eq!((here.hidden(), there.hidden()), (String::new(), String::new()));
}

#[test]
fn a_node_that_is_killed_is_named_and_nothing_of_its_file_is_there() {
    let (here, mut there) = (Site::new(), Site::new());
    let content = bytes(300_000_001);
    fs::write(here.path("x"), &content).unwrap();
    let said = here.dir.path().join("said");
    let urls = [here.front.url("x"), there.front.url("y")];
    let mut command = Command::new("globus-url-copy");
    command.env("HOME", "/nonexistent").args(["-dbg", "-stripe", "-p", "2", "-tcp-bs", "16384"]).args(&urls);
    let mut copy =
        command.stdin(Stdio::null()).stderr(File::create(&said).unwrap()).stdout(Stdio::null()).spawn().unwrap();
    let begin = Instant::now();
    let told = || String::from_utf8_lossy(&fs::read(&said).unwrap()).into_owned();
    let moves = |line: &str| line.strip_prefix(" Stripe Bytes Transferred: ").is_some_and(|bytes| bytes.trim() != "0");
    while !told().lines().any(moves) {
        assert!(copy.try_wait().unwrap().is_none() && begin.elapsed() < PATIENCE, "no marker came");
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(!there.path("y").exists(), "it is there already");
    let name = format!("data node 127.0.0.1:{}", there.nodes[1].port());
    there.nodes[1].kill();
    while copy.try_wait().unwrap().is_none() {
        if begin.elapsed() > 2 * PATIENCE {
            let _ = copy.kill();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!copy.wait().unwrap().success(), "{}", told());
    assert!(there.front.log().contains(&name), "{}", there.front.log());
    assert!(!there.path("y").exists());
}
