//! Objects through gateways, which relay their datagrams (S17; `docs/protocol/session.md` §6.8).

use crate::support;
use serde_json::Value;
use std::fs;
use std::process::Output;
use support::serve::{Serve, bytes};
use support::{Gateway, RELAY, pair, phoebus};

const LEN: usize = 20_000_003;

/// A server, and the gateways before it.
struct Path {
    server: Serve,
    gateways: Vec<Gateway>,
}

impl Path {
    fn through(gateways: impl Into<Vec<Gateway>>) -> Self {
        Self { server: Serve::writable(), gateways: gateways.into() }
    }

    fn cp<const N: usize>(&self, stack: &str, arguments: [&str; N]) -> Output {
        let via = self.gateways.iter().map(|gateway| gateway.addr.to_string()).collect::<Vec<_>>().join(",");
        let mut command = phoebus();
        command.args(["cp", "--json", "--attempts", "1", "--gateways", &via, "--stack", stack]).args(arguments);
        command.current_dir(self.server.local()).env("HOME", self.server.local()).env_remove("XDG_CONFIG_HOME");
        command.output().unwrap()
    }

    /// Copies a file there and back, and returns both reports.
    fn both_ways(&self, stack: &str) -> [Value; 2] {
        let content = bytes(LEN);
        fs::write(self.server.local().join("x"), &content).unwrap();
        let there = self.server.url("a");
        let reports = [["x", &there], [&there, "y"]].map(|[from, to]| {
            let output = self.cp(stack, [from, to]);
            let said = said(&output);
            assert!(output.status.success(), "{stack}: {said}");
            serde_json::from_str(said.lines().last().unwrap()).unwrap_or_else(|error| panic!("{error}: {said}"))
        });
        assert!(fs::read(self.server.path("a")).unwrap() == content, "{stack}: put");
        assert!(fs::read(self.server.local().join("y")).unwrap() == content, "{stack}: get");
        reports
    }

    /// Waits until a gateway has no session: its totals have those that are over.
    fn is_quiet(gateway: &Gateway) {
        let sessions = || gateway.status()["sessions"].as_array().unwrap().len();
        support::wait_until(|| sessions() == 0, || format!("{} sessions are open", sessions()));
    }

    /// Sessions that each gateway has opened.
    fn opened(&self) -> Vec<u64> {
        let of = |gateway: &Gateway| gateway.status()["totals"]["sessions_opened"].as_u64().unwrap();
        self.gateways.iter().map(of).collect()
    }

    /// Bytes that each gateway has carried up and down in sessions that are over.
    fn carried(&self) -> Vec<[u64; 2]> {
        let of = |gateway: &Gateway| {
            let totals = &gateway.status()["totals"];
            ["bytes_up", "bytes_down"].map(|key| totals[key].as_u64().unwrap())
        };
        self.gateways.iter().map(of).collect()
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout)
}

#[test]
fn gateways_relay_the_datagrams_of_objects() {
    let path = Path::through(<[Gateway; 2]>::from(pair(RELAY, RELAY)));
    for report in path.both_ways("object") {
        assert_eq!(report["objects"]["transfers"], 1, "{report:#}");
        let said = report["path"].as_str().unwrap();
        assert!(said.contains("data by pg1, pg2 (as objects)"), "{said}");
    }
    path.gateways.iter().for_each(Path::is_quiet);
    for [up, down] in path.carried() {
        assert!(up > LEN as u64 && down > LEN as u64, "{up} bytes up and {down} down");
    }
    for gateway in &path.gateways {
        let totals = &gateway.status()["totals"];
        assert_eq!(totals["sessions_failed"], 0, "{}", gateway.log());
    }
    // What goes over TCP takes the same way: a session for commands, and one for each listing and file.
    fs::create_dir(path.server.path("tree")).unwrap();
    (0..3).for_each(|n| fs::write(path.server.path(&format!("tree/{n}")), bytes(n)).unwrap());
    let before = path.opened();
    let output = path.cp("object", ["-r", &path.server.url("tree"), "."]);
    assert!(output.status.success(), "{}", said(&output));
    let opened: Vec<u64> = path.opened().iter().zip(before).map(|(now, before)| now - before).collect();
    assert!(opened[0] >= 3 && opened[0] == opened[1], "{opened:?}");
    // One gateway is the first and the last.
    let path = Path::through([Gateway::start("pg", RELAY)]);
    path.both_ways("object");
}

#[test]
fn objects_are_refused_where_a_gateway_relays_none() {
    for (first, second, culprit) in [("", RELAY, "pg1"), (RELAY, "", "pg2")] {
        let path = Path::through(<[Gateway; 2]>::from(pair(first, second)));
        fs::write(path.server.local().join("x"), bytes(1_000_000)).unwrap();
        let output = path.cp("object", ["x", &path.server.url("a")]);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(&format!("{culprit} relays none")), "{said}");
        assert!(!path.server.path("a").exists());
        fs::write(path.server.path("there"), bytes(LEN)).unwrap();
        let output = path.cp("object", [&path.server.url("there"), "y"]);
        let said = self::said(&output);
        assert!(output.status.code() == Some(1) && said.contains(&format!("{culprit} relays none")), "{said}");
        let output = path.cp("object:seal=none", ["x", &path.server.url("a")]);
        assert!(
            output.status.code() == Some(2)
                && self::said(&output).contains("nothing goes through gateways in the clear")
        );
    }
}
