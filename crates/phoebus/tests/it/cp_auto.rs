//! `phoebus cp --stack auto` and objects on an emulated path: through address translation, and where UDP is dropped (S25, L3).
//! Needs root.

use crate::support;
use phoebus_proto::units::Span;
use phoebus_wan::model::Rate;
use phoebus_wan::testbed::{Sc09, Testbed};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::num::NonZeroU64;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;
use support::serve::bytes;
use support::wait_until;
use tempfile::TempDir;

const PHOEBUS: &str = env!("CARGO_BIN_EXE_phoebus");
const LONG: usize = 6_000_000;

/// A user in `src`, behind a router that translates addresses (`pg1`), and a server in `dst`.
struct Bed {
    server: Child,
    url: String,
    place: TempDir,
    testbed: Testbed,
}

impl Bed {
    fn up() -> Self {
        let settings = Sc09 {
            wan_rtt: Span(Duration::from_millis(20)),
            lan_rtt: Span(Duration::from_millis(1)),
            rate: Rate::Limited(NonZeroU64::new(400_000_000).unwrap()),
            cc: None,
            ..Sc09::default()
        };
        let testbed = Testbed::up(&settings.scenario()).unwrap();
        let place = tempfile::tempdir().unwrap();
        ["root", "here"].iter().for_each(|name| fs::create_dir(place.path().join(name)).unwrap());
        let dst = testbed.addresses("dst").unwrap()[0];
        let mut serve = testbed.exec("dst", PHOEBUS).unwrap();
        serve.args(["serve", "--anonymous", "--listen", &format!("{dst}:0"), "--root"]).arg(place.path().join("root"));
        serve.env("HOME", "/nonexistent").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut server = serve.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = format!("ftp://{}/", line.trim().strip_prefix("listening on ").unwrap());
        let bed = Self { server, url, place, testbed };
        let src = bed.testbed.addresses("src").unwrap()[0];
        // Nobody outside can begin anything with the user, and the user's datagrams get other ports.
        bed.nft(&format!(
            "add table ip t; add chain ip t n {{ type nat hook postrouting priority 100; }}; \
             add rule ip t n ip saddr {src} masquerade random; \
             add chain ip t f {{ type filter hook forward priority 0; }}; \
             add rule ip t f ip daddr {src} ct state new drop"
        ));
        bed
    }

    fn nft(&self, rules: &str) {
        self.on_router("nft", &[rules]);
    }

    fn on_router(&self, program: &str, arguments: &[&str]) {
        let output = self.testbed.exec("pg1", program).unwrap().args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    fn cp(&self, arguments: &[&str]) -> Output {
        self.command(arguments).args(["--attempts", "1"]).output().unwrap()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut phoebus = self.testbed.exec("src", PHOEBUS).unwrap();
        phoebus.args(["cp", "--json"]).args(arguments).current_dir(self.place.path().join("here"));
        phoebus.env("HOME", self.place.path()).env_remove("XDG_CONFIG_HOME").stdin(Stdio::null());
        phoebus
    }

    /// Copies a file of this length there and back, and returns both reports.
    fn both_ways(&self, stack: &str, len: usize) -> [Value; 2] {
        let content = bytes(len);
        let here = |name: &str| self.place.path().join("here").join(name);
        fs::write(here("x"), &content).unwrap();
        let there = format!("{}a", self.url);
        let reports = [["x", &there], [&there, "y"]].map(|[from, to]| {
            let output = self.cp(&["--stack", stack, from, to]);
            let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "{stack}: {said}");
            serde_json::from_str(said.lines().last().unwrap()).unwrap_or_else(|error| panic!("{error}: {said}"))
        });
        assert!(fs::read(self.place.path().join("root/a")).unwrap() == content, "{stack}: put");
        assert!(fs::read(here("y")).unwrap() == content, "{stack}: get");
        for path in [self.place.path().join("root/a"), here("y")] {
            fs::remove_file(path).unwrap();
        }
        reports
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// The carrier of the only file, and why.
fn carrier(report: &Value) -> (&str, &str) {
    let all = report["carriers"].as_array().unwrap_or_else(|| panic!("{report:#}"));
    assert!(all.len() == 1 && all[0]["files"] == 1, "{report:#}");
    (all[0]["data"].as_str().unwrap(), all[0]["why"].as_str().unwrap())
}

#[test]
fn objects_pass_address_translation_and_auto_goes_over_tcp_where_they_do_not_pass() {
    let bed = Bed::up();
    for report in bed.both_ways("object", LONG) {
        assert_eq!(report["objects"]["transfers"], 1, "{report:#}");
    }
    for report in bed.both_ways("auto", LONG) {
        assert_eq!(carrier(&report), ("object", "the server is far"), "{report:#}");
        assert_eq!(report["objects"]["transfers"], 1, "{report:#}");
    }
    for report in bed.both_ways("auto", 2_000_000) {
        assert_eq!(carrier(&report), ("tcp", "they are short"), "{report:#}");
    }

    bed.nft("add rule ip t f meta l4proto udp drop");
    for report in bed.both_ways("auto", LONG) {
        let (data, why) = carrier(&report);
        assert!(data == "tcp" && why.contains("got no answer within 3 s; a firewall may drop them"), "{report:#}");
        assert!(report["objects"].is_null(), "{report:#}");
    }
    // What was demanded is not replaced, and ends soon, with a reason.
    let output = bed.cp(&["--stack", "object", "--timeout", "4s", "x", &format!("{}a", bed.url)]);
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("got no answer within 3 s; a firewall may drop them"), "{said}");
    assert!(!bed.place.path().join("root/a").exists());
}

#[test]
fn objects_go_on_in_shorter_packets_when_the_path_carries_less() {
    let bed = Bed::up();
    let content = bytes(LONG);
    fs::write(bed.place.path().join("here/x"), &content).unwrap();
    let root = bed.place.path().join("root");
    // A second and more.
    let mut cp = bed.command(&["--stack", "object:rate=40mbit", "x", &format!("{}a", bed.url)]);
    let cp = cp.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let has_begun = || fs::read_dir(&root).unwrap().any(|entry| entry.unwrap().metadata().unwrap().len() > 0);
    wait_until(has_begun, || "no bytes arrive".to_owned());
    bed.on_router("ip", &["link", "set", "dev", "wan", "mtu", "1300"]);
    let output = cp.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && fs::read(root.join("a")).unwrap() == content, "{said}");
    assert!(said.contains("routers say that the path carries 1300 bytes with all headers"), "{said}");
}
