//! A better first hop where it matters: hosts with delay between them, and gateways that `phoebus testbed` has set up. Needs root.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::fs;
use std::process::{Command, Stdio};

const PHOEBUS: &str = env!("CARGO_BIN_EXE_phoebus");

/// A server in dst that answers in capitals; then a session from src for each kind of first hop, over an agent that
/// ends right after it.
const SCRIPT: &str = r#"
$PHOEBUS testbed exec dst -- python3 -c '
import socket
server = socket.create_server(("::", 7000), family=socket.AF_INET6, dualstack_ipv6=True)
print("ready", flush=True)
while True:
    client, _ = server.accept()
    client.sendall(client.recv(100).upper())
    client.close()' >"$1/dst" &
until grep -q ready "$1/dst"; do sleep 0.02; done
for hop in quic udt/5007 tls tcp; do
    echo $hop | $PHOEBUS testbed exec src -- env PHOEBUS_PATH=pg1/5006,pg2/5006 \
        $PHOEBUS connect --first-hop $hop --agent-idle 100ms --report "$1/report" dst:7000
done
"#;

#[test]
fn hosts_of_a_testbed_need_no_file_for_the_first_hop() {
    for wan in ["tcp", "udt", "quic"] {
        let place = tempfile::tempdir().unwrap();
        let mut command = Command::new(PHOEBUS);
        command.args(["testbed", "run", "--quiet", "--gateways", "--wan-rtt", "10ms", "--wan-transport", wan]);
        // Agents use the same UDT ports as the gateways.
        if wan == "udt" {
            command.args(["--wan-security", "encrypt"]);
        }
        command.args(["--", "sh", "-c", SCRIPT, "sh"]).arg(place.path()).stdin(Stdio::null());
        command.env("PHOEBUS_TESTBED_DIR", place.path().join("testbeds")).env("PHOEBUS", PHOEBUS);
        command.env_remove("PHOEBUS_TESTBED").env("XDG_RUNTIME_DIR", place.path());
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "QUIC\nUDT/5007\nTLS\nTCP\n", "{wan}: {said}");
        let report = fs::read_to_string(place.path().join("report")).unwrap();
        let first_hops: Vec<_> = report.lines().map(first_hop).collect();
        assert_eq!(first_hops, ["agent quic encrypt", "agent udt encrypt", "agent tcp encrypt", "client tcp none"]);
    }
}

/// The hop to pg1 in a report: its start, its transport, its protection.
fn first_hop(report: &str) -> String {
    let report: serde_json::Value = serde_json::from_str(report).unwrap();
    let hops = report["hops"].as_array().unwrap();
    let hop = hops.iter().find(|hop| hop["to"] == "pg1").unwrap_or_else(|| panic!("{report:#}"));
    let text = |key: &str| hop[key].as_str().unwrap().to_owned();
    format!("{} {} {}", text("from"), text("transport"), text("security"))
}
