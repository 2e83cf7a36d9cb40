//! The first hop when a router on the path begins to drop UDP: the behaviour of `auto` and of a configured transport
//! (S1, S12, invariants 1 and 4). Needs root.

use crate::support;
use phoebus_net::credentials::Authority;
use phoebus_proto::units::Span;
use phoebus_wan::model::Rate;
use phoebus_wan::testbed::{Certificates, GatewayOptions, Gateways, Sc09, Testbed};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::num::NonZeroU64;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime};
use support::path::block;
use support::{PATIENCE, assert_reset, wait_until};
use tempfile::TempDir;

const PHOEBUS: &str = env!("CARGO_BIN_EXE_phoebus");

/// A user in `src` with an agent for the gateway on `pg2`, and `pg1` as a router between them.
struct Bed {
    agent: Child,
    first_hop: &'static str,
    place: TempDir,
    _gateways: Gateways,
    testbed: Testbed,
}

impl Bed {
    fn up(first_hop: &'static str) -> Self {
        let settings = Sc09 {
            wan_rtt: Span(Duration::from_millis(40)),
            lan_rtt: Span(Duration::from_millis(2)),
            rate: Rate::Limited(NonZeroU64::new(100_000_000).unwrap()),
            cc: None,
            ..Sc09::default()
        };
        let testbed = Testbed::up(&settings.scenario()).unwrap();
        let (now, life) = (SystemTime::now(), Duration::from_secs(3600));
        let (authority, own) = Authority::create("the authority of a test", now).unwrap();
        let issue = |host: &str| {
            let issued = authority.issue(host, &[], now, life).unwrap();
            (host.to_owned(), (issued.certificate, issued.key))
        };
        let hosts = ["src", "pg1", "pg2"].map(issue).into();
        let options = GatewayOptions {
            program: PHOEBUS.into(),
            certificates: Some(Certificates { authority: own.certificate, hosts }),
            ..GatewayOptions::default()
        };
        let gateways = testbed.start_gateways(&options).unwrap();
        let place = tempfile::tempdir().unwrap();
        let log = File::create(place.path().join("log")).unwrap();
        let mut command = client(&testbed, &place, "agent", first_hop);
        command.args(["--agent-idle", "1h"]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let agent = command.spawn().unwrap();
        let mut bed = Self { agent, first_hop, place, _gateways: gateways, testbed };
        let mut said = [0; 128];
        let n = bed.agent.stdout.take().unwrap().read(&mut said).unwrap();
        assert!(said[..n].starts_with(b"an agent carries first hops"), "{}", bed.log());
        bed
    }

    /// Has `pg1` silently drop all UDP that it forwards.
    fn filter(&self) {
        self.nft(
            "add table inet t; add chain inet t c { type filter hook forward priority 0; }; \
             add rule inet t c meta l4proto udp drop",
        );
    }

    fn nft(&self, rules: &str) {
        let output = self.testbed.exec("pg1", "nft").unwrap().arg(rules).output().unwrap();
        assert!(output.status.success(), "{rules}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// `phoebus connect` to a destination of its own.
    fn connect(&self) -> (Child, TcpListener) {
        let dst = self.testbed.addresses("dst").unwrap()[0];
        let listener = self.testbed.run_in("dst", || TcpListener::bind((dst, 0))).unwrap().unwrap();
        let mut command = client(&self.testbed, &self.place, "connect", self.first_hop);
        command.arg("--json").arg(listener.local_addr().unwrap().to_string());
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        (child, listener)
    }

    /// A session, and its destination's end.
    fn session(&self) -> (Child, TcpStream) {
        let (mut child, listener) = self.connect();
        listener.set_nonblocking(true).unwrap();
        let start = Instant::now();
        loop {
            if let Ok((stream, _)) = listener.accept() {
                stream.set_nonblocking(false).unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                return (child, stream);
            }
            let ended = child.try_wait().unwrap();
            if ended.is_some() || start.elapsed() > PATIENCE {
                let _ = child.kill();
                panic!("no session: {:?}; the agent:\n{}", child.wait_with_output().unwrap(), self.log());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// A session that carries bytes in both directions, to their ends. Returns what its report says of the first hop.
    fn exchange(&self) -> Value {
        let (mut child, mut destination) = self.session();
        let mut stdin = child.stdin.take().unwrap();
        let writer = std::thread::spawn(move || stdin.write_all(&block(1)));
        let mut got = Vec::new();
        destination.read_to_end(&mut got).unwrap();
        writer.join().unwrap().unwrap();
        assert!(got == block(1), "what was sent was changed");
        destination.write_all(&block(2)).unwrap();
        drop(destination);
        let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&stderr);
        assert!(status.success() && stdout == block(2), "{status}: {said}");
        let report: Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"));
        report["hops"].as_array().unwrap().iter().find(|hop| hop["from"] == "agent").unwrap().clone()
    }

    /// The agent's own report of its transport.
    fn carries(&self) -> Value {
        let agents = fs::read_dir(self.place.path().join("phoebus/agents")).unwrap();
        let mut sockets =
            agents.map(|entry| entry.unwrap().path()).filter(|path| path.extension() == Some("admin".as_ref()));
        let socket = sockets.next().unwrap();
        let output = Command::new(PHOEBUS).args(["status", "--json", "--gateway"]).arg(socket).output().unwrap();
        let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        status["pools"][0].clone()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.place.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = self.agent.kill();
        let _ = self.agent.wait();
    }
}

/// A command of a user in `src`, with settings of its own.
fn client(testbed: &Testbed, place: &TempDir, command: &str, first_hop: &str) -> Command {
    let mut phoebus = testbed.exec("src", PHOEBUS).unwrap();
    phoebus.args([command, "--first-hop", first_hop]).env("PHOEBUS_PATH", "pg2/5006");
    phoebus.env("XDG_RUNTIME_DIR", place.path()).env("HOME", "/nonexistent").env_remove("XDG_CONFIG_HOME");
    phoebus
}

fn text<'a>(hop: &'a Value, key: &str) -> &'a str {
    hop[key].as_str().unwrap_or_else(|| panic!("no {key}: {hop:#}"))
}

fn assert_preferred(hop: &Value) {
    // A note says so until the beacon is open.
    assert!(text(hop, "transport") == "quic" && !text(hop, "note").contains("auto has"), "{hop:#}");
}

#[test]
fn auto_selects_what_passes_the_filter() {
    let bed = Bed::up("auto");
    assert_preferred(&bed.exchange());

    let (mut open, mut destination) = bed.session();
    open.stdin.as_mut().unwrap().write_all(b"here").unwrap();
    destination.read_exact(&mut [0; 4]).unwrap();
    bed.filter();
    for _ in 0..2 {
        let hop = bed.exchange();
        assert_eq!((text(&hop, "transport"), text(&hop, "security")), ("tcp", "encrypt"), "{hop:#}");
        let note = text(&hop, "note");
        assert!(note.contains("auto has tcp, since quic was not available: "), "{note}");
        assert!(note.contains(" no answer within ") && note.contains("; udt was not available: "), "{note}");
    }
    // The open session fails, and does not end cleanly.
    assert_reset(&mut destination, "destination");
    assert_eq!(open.wait().unwrap().code(), Some(1));

    // Another test covers the return to the transport, with less time in between (crates/gateway/tests/it/agent.rs).
    let log = bed.log();
    for said in ["auto: nothing → quic (model)", "auto: udt (model) → tcp", "transport=\"quic\"", "is not available: "]
    {
        assert!(log.contains(said), "\"{said}\" is not in the log:\n{log}");
    }
}

#[test]
fn requested_transport_is_never_replaced() {
    let bed = Bed::up("quic");
    assert_eq!(text(&bed.exchange(), "transport"), "quic");
    bed.filter();
    let (child, _listener) = bed.connect();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    wait_until(|| bed.carries()["idle"] == 0, || format!("{:#}", bed.carries()));
    bed.nft("delete table inet t");
    assert_eq!(text(&bed.exchange(), "transport"), "quic");
}
