//! `phoebus serve --data-node`: processes that move data for a front end, with the toolkit's client and our own.

use crate::support;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use support::PATIENCE;
use support::grid::ok;
use support::serve::{bytes, run};
use support::site::Site;

/// Waits until each node has this in its log. It may write it after its client has gone.
fn all_say(site: &Site, words: &str) {
    let begin = Instant::now();
    while !site.nodes.iter().all(|node| node.log().contains(words)) {
        let logs: Vec<_> = site.nodes.iter().map(|node| node.log()).collect();
        assert!(begin.elapsed() < PATIENCE, "no \"{words}\" in {logs:#?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn data_nodes_carry_files_between_sites() {
    let (here, there) = (Site::new(), Site::new());
    let content = bytes(30_000_001);
    fs::write(here.path("x"), &content).unwrap();
    let urls = [here.front.url("x"), there.front.url("y")];
    ok(&run(Command::new("globus-url-copy").env("HOME", "/nonexistent").args(["-stripe", "-p", "2"]).args(&urls)));
    assert!(fs::read(there.path("y")).unwrap() == content);
    all_say(&here, "retrieve stripe");
    all_say(&there, "store a stripe");
    let phoebus = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_phoebus"));
        ok(&run(command.args(arguments).current_dir(here.dir.path()).env("HOME", here.dir.path())))
    };
    // Our own client has one address, to which all nodes send.
    phoebus(&["cp", "--stripe", "--streams", "4", &there.front.url("y"), "got"]);
    assert!(fs::read(here.dir.path().join("got")).unwrap() == content);
    all_say(&there, "retrieve stripe");
    // If the client does not request stripes, the front end moves all data.
    phoebus(&["cp", "--streams", "4", &urls[0], "back"]);
    assert!(fs::read(here.dir.path().join("back")).unwrap() == content);
    phoebus(&["cp", "--streams", "4", "back", &there.front.url("z")]);
    assert!(fs::read(there.path("z")).unwrap() == content);
    assert_eq!((here.hidden(), there.hidden()), (String::new(), String::new()));
}

#[test]
fn killed_data_node_is_named_and_leaves_no_file() {
    // Slow enough that a node can be killed during it.
    let (here, mut there) = (Site::slow(), Site::new());
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
    while !there.front.log().contains(&name) {
        assert!(begin.elapsed() < 4 * PATIENCE, "{}", there.front.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!there.path("y").exists());
}

/// Starts `copy`, kills a sending node once it has begun, and returns how `copy` ends.
fn cut(site: &mut Site, copy: &mut Child, target: &Path) -> bool {
    let begin = Instant::now();
    let some = |path: &Path| fs::metadata(path).is_ok_and(|meta| meta.len() > 0);
    let hidden = |path: &Path| {
        let there = fs::read_dir(path.parent().unwrap()).unwrap();
        there.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with('.') && some(&entry.path()))
    };
    while !some(target) && !hidden(target) {
        assert!(begin.elapsed() < PATIENCE, "nothing came");
        std::thread::sleep(Duration::from_millis(2));
    }
    site.nodes[1].kill();
    loop {
        if let Some(status) = copy.try_wait().unwrap() {
            return status.success();
        }
        assert!(begin.elapsed() < 4 * PATIENCE, "it hangs");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Runs a copy from a site's front end to a file with the program that `copy` returns, and cuts it. If the copy was
/// finished before the node died, as on a busy machine, the file must be complete, and the test tries again.
fn cut_amid(content: &[u8], target: &Path, copy: impl Fn(&Site) -> Command) {
    for _ in 0..5 {
        let mut site = Site::slow();
        fs::write(site.path("x"), content).unwrap();
        let mut command = copy(&site);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).env("HOME", "/nonexistent");
        if !cut(&mut site, &mut command.spawn().unwrap(), target) {
            return;
        }
        assert!(fs::read(target).unwrap() == content, "a file is said to be whole of which a node sent half");
        fs::remove_file(target).unwrap();
    }
    panic!("all copies were done before a node could be killed");
}

#[test]
fn transfer_without_one_sender_never_looks_complete() {
    let content = bytes(200_000_001);
    let dir = tempfile::tempdir().unwrap();
    let target = |name: &str| {
        fs::create_dir(dir.path().join(name)).unwrap();
        dir.path().join(name).join("y")
    };
    let guc = |from: &str, to: &str| {
        let mut copy = Command::new("globus-url-copy");
        copy.args(["-stripe", "-tcp-bs", "16384", from, to]);
        copy
    };
    // To the nodes of another server, and to our own client.
    let other = Site::new();
    cut_amid(&content, &other.path("y"), |site| guc(&site.front.url("x"), &other.front.url("y")));
    assert!(!other.path("y").exists());
    let at = target("cp");
    cut_amid(&content, &at, |site| {
        let mut copy = Command::new(env!("CARGO_BIN_EXE_phoebus"));
        copy.args(["cp", "--stripe", "--attempts", "1", "--limit-rate", "160mbit", &site.front.url("x")]).arg(&at);
        copy
    });
    assert!(!at.exists());
}
