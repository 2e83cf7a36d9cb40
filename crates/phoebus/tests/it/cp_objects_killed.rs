//! Killed amid objects: whoever dies, nothing that is cut looks complete, and the next run completes it (L10).

use crate::support;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;
use support::here::Here;
use support::serve::{Serve, bytes};

/// A quarter of a second at this rate, and half of it for what surrounds the transfer: a kill falls into each part of it.
const LEN: usize = 6_000_000;
const STACK: &str = "object:rate=200mbit";
const LONGEST: u64 = 400;

/// Pseudo-random numbers that are the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// A pair of ends, of which one is killed.
struct Pair<'a> {
    here: Here<'a>,
    serve: Serve,
    content: Vec<u8>,
}

impl Pair<'_> {
    fn new() -> Self {
        let config = "[anonymous]\nroot = \"ROOT\"\nread_only = false\n";
        let (here, serve, content) = (Here::new(None), Serve::that_comes_back(config), bytes(LEN));
        for source in [here.path("source"), serve.path("source")] {
            fs::write(source, &content).unwrap();
        }
        Self { here, serve, content }
    }

    fn command(&self, is_put: bool, name: &str) -> Command {
        let (near, far) = (self.here.path(if is_put { "source" } else { name }), |path| self.serve.url(path));
        let near = near.display().to_string();
        let places = if is_put { [near, far(name)] } else { [far("source"), near] };
        let mut command = self.here.command(&["cp", "--quiet", "--stack", STACK]);
        command.args(places);
        command
    }

    fn target(&self, is_put: bool, name: &str) -> PathBuf {
        if is_put { self.serve.path(name) } else { self.here.path(name) }
    }

    /// Kills one end after `after`, and lets the next run complete the transfer.
    fn kill(&mut self, (is_put, is_client): (bool, bool), after: Duration, name: &str) {
        let mut client = self.command(is_put, name);
        // A killed server comes back only after the client has given up.
        let mut client = client.args(["--attempts", "1"]).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(after);
        if is_client {
            client.kill().unwrap();
            client.wait().unwrap();
        } else {
            self.serve.kill();
        }
        let success = client.wait().unwrap().success();
        let what = format!("put {is_put}, client killed {is_client}, after {after:?}");
        let target = self.target(is_put, name);
        match fs::read(&target) {
            Ok(there) => assert!(there == self.content, "{what}: a cut transfer looks complete"),
            Err(_) => assert!(!success, "{what}: success was claimed for a file that is not there"),
        }
        if !is_client {
            self.serve.killed_and_started_again();
        }
        let again = self.command(is_put, name).output().unwrap();
        assert!(again.status.success(), "{what}: {}", String::from_utf8_lossy(&again.stderr));
        assert!(fs::read(&target).unwrap() == self.content, "{what}");
        fs::remove_file(target).unwrap();
    }
}

#[test]
fn transfers_survive_the_death_of_either_end() {
    let rounds = if std::env::var_os("PHOEBUS_SOAK").is_some() { 50 } else { 2 };
    let (mut pair, mut numbers) = (Pair::new(), Numbers(7));
    for round in 0..rounds {
        for case in [(true, true), (true, false), (false, true), (false, false)] {
            let after = Duration::from_millis(20 + numbers.below(LONGEST));
            pair.kill(case, after, &format!("copy-{round}"));
        }
    }
}
