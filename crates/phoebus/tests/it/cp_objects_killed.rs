//! Killed amid objects: whoever dies, nothing that is cut looks complete, and the next run completes it (L10).

use crate::support;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;
use support::here::Here;
use support::serve::{Serve, bytes};
use support::{Gateway, RELAY};

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

/// Who is killed. Only the last one's transfers go through it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Client,
    Server,
    Gateway,
}

/// A pair of ends, and a gateway that may be between them.
struct Pair<'a> {
    here: Here<'a>,
    serve: Serve,
    gateway: Gateway,
    content: Vec<u8>,
}

impl Pair<'_> {
    fn new() -> Self {
        let config = "[anonymous]\nroot = \"ROOT\"\nread_only = false\n";
        let (here, serve, content) = (Here::new(None), Serve::that_comes_back(config), bytes(LEN));
        for source in [here.path("source"), serve.path("source")] {
            fs::write(source, &content).unwrap();
        }
        Self { here, serve, gateway: Gateway::start("pg", RELAY), content }
    }

    fn command(&self, (is_put, victim): (bool, Victim), name: &str) -> Command {
        let (near, far) = (self.here.path(if is_put { "source" } else { name }), |path| self.serve.url(path));
        let near = near.display().to_string();
        let places = if is_put { [near, far(name)] } else { [far("source"), near] };
        let mut command = self.here.command(&["cp", "--quiet", "--stack", STACK]);
        if victim == Victim::Gateway {
            command.args(["--gateways", &self.gateway.addr.to_string()]);
        }
        command.args(places);
        command
    }

    fn target(&self, is_put: bool, name: &str) -> PathBuf {
        if is_put { self.serve.path(name) } else { self.here.path(name) }
    }

    /// Kills the victim after `after`, and lets the next run complete the transfer.
    fn kill(&mut self, case: (bool, Victim), after: Duration, name: &str) {
        let (is_put, victim) = case;
        let mut client = self.command(case, name);
        // A killed server or gateway comes back only after the client has given up.
        let mut client = client.args(["--attempts", "1"]).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(after);
        match victim {
            Victim::Client => client.kill().unwrap(),
            Victim::Server => self.serve.kill(),
            Victim::Gateway => self.gateway.kill(),
        }
        let success = client.wait().unwrap().success();
        let what = format!("put {is_put}, {victim:?} killed after {after:?}");
        let target = self.target(is_put, name);
        match fs::read(&target) {
            Ok(there) => assert!(there == self.content, "{what}: a cut transfer looks complete"),
            Err(_) => assert!(!success, "{what}: success was claimed for a file that is not there"),
        }
        match victim {
            Victim::Client => {}
            Victim::Server => self.serve.killed_and_started_again(),
            Victim::Gateway => self.gateway = Gateway::start_at(self.gateway.addr, "pg", RELAY),
        }
        let again = self.command(case, name).output().unwrap();
        assert!(again.status.success(), "{what}: {}", String::from_utf8_lossy(&again.stderr));
        assert!(fs::read(&target).unwrap() == self.content, "{what}");
        fs::remove_file(target).unwrap();
    }
}

#[test]
fn transfers_survive_the_death_of_either_end_and_of_a_gateway() {
    let rounds = if std::env::var_os("PHOEBUS_SOAK").is_some() { 50 } else { 2 };
    let (mut pair, mut numbers) = (Pair::new(), Numbers(7));
    for round in 0..rounds {
        let victims = [Victim::Client, Victim::Server, Victim::Gateway];
        for case in victims.into_iter().flat_map(|victim| [(true, victim), (false, victim)]) {
            let after = Duration::from_millis(20 + numbers.below(LONGEST));
            pair.kill(case, after, &format!("copy-{round}"));
        }
    }
}
