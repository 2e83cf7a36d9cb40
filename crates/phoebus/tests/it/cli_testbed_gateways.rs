//! `phoebus testbed … --gateways`: gateways in the hosts of a testbed, joined by what its options say. Needs root.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use crate::support;
use std::fs;
use support::place::{Place, text};

#[test]
fn gateways_join_the_ends_in_both_directions() {
    join_the_ends(&["--wan-cc", "reno"], "pg1 at pg1:5006 by tcp (encrypt)");
}

#[test]
fn gateways_join_the_ends_over_another_transport() {
    join_the_ends(&["--wan-transport", "udt"], "pg1 at pg1:5007 by udt (encrypt)");
    join_the_ends(&["--wan-streams", "3", "--wan-security", "none"], "pg1 at pg1:5006 by tcp");
    join_the_ends(&["--wan-transport", "quic"], "pg1 at pg1:5006 by quic (encrypt)");
    join_the_ends(&["--wan-security", "auth"], "pg1 at pg1:5006 by tcp (auth)");
}

#[test]
fn gateways_join_the_ends_over_auto() {
    let log = join_and_choose(&["--wan-transport", "auto"], "pg1 at pg1:5006 by tcp (encrypt)", "bbr");
    // They report the congestion control that they chose, and why: bbr, which is available there.
    assert!(log.contains("auto: nothing → tcp (bbr)") && log.contains("rule=\"bbr\""), "{log}");
}

#[test]
fn hop_of_several_connections_crosses_a_lossy_wan() {
    let place = Place::new();
    // A server that answers with the checksum of what it has received, to its end.
    let script = r#"
        $PHOEBUS testbed exec dst -- python3 -c '
import hashlib, socket
server = socket.create_server(("::", 7000), family=socket.AF_INET6, dualstack_ipv6=True)
print("ready", flush=True)
client, _ = server.accept()
digest = hashlib.sha256()
while piece := client.recv(1 << 20):
    digest.update(piece)
client.sendall(digest.hexdigest().encode() + b"\n")
client.close()' >"$1/dst" &
        server=$!
        until grep -q ready "$1/dst"; do kill -0 $server || exit 1; sleep 0.02; done
        head -c 30000000 /dev/urandom >"$1/data"
        sha256sum <"$1/data" | cut -d" " -f1
        $PHOEBUS testbed exec src -- env PHOEBUS_PATH=pg1/5006,pg2/5006 $PHOEBUS connect dst:7000 <"$1/data"
        until grep -q "session ended" "$1/logs/pg1.log"; do sleep 0.02; done
        grep -o "tcp,tcp.8" "$1/logs/pg1.log"
    "#;
    let directory = place.0.path().to_str().unwrap();
    let logs = place.0.path().join("logs");
    let options = ["--wan-streams", "8", "--wan-cc", "cubic", "--wan-loss", "0.1%", "--wan-rtt", "20ms"];
    let run = ["run", "--quiet", "--gateways", "--gateway-logs", logs.to_str().unwrap()];
    let said = place.succeed(&[&run[..], &options, &["--", "sh", "-c", script, "sh", directory]].concat());
    let lines: Vec<_> = said.lines().collect();
    assert_eq!((lines.len(), lines.get(2)), (3, Some(&"tcp,tcp*8")), "{said}");
    assert_eq!(lines[0], lines[1], "the data was changed");
}

/// Sessions through gateways that were started with `options`, so that pg2 calls its peer `peer`. Returns the log of pg1.
fn join_the_ends(options: &[&str], peer: &str) -> String {
    join_and_choose(options, peer, "")
}

/// The same, until the first gateway has chosen by this `rule`, if any.
fn join_and_choose(options: &[&str], peer: &str, rule: &str) -> String {
    let place = Place::new();
    // A server at each end that answers in capitals, then a session from each end to the other, by path and by routes.
    let script = r#"
        for host in src dst; do
            $PHOEBUS testbed exec $host -- python3 -c '
import socket
server = socket.create_server(("::", 7000), family=socket.AF_INET6, dualstack_ipv6=True)
print("ready", flush=True)
while True:
    client, _ = server.accept()
    client.sendall(client.recv(100).upper())
    client.close()' >"$1/$host" &
        done
        until grep -q ready "$1/src" && grep -q ready "$1/dst"; do sleep 0.02; done
        echo out | $PHOEBUS testbed exec src -- env PHOEBUS_PATH=pg1/5006,pg2/5006 $PHOEBUS connect dst:7000
        echo back | $PHOEBUS testbed exec dst -- env PHOEBUS_PATH=pg2/5006,pg1/5006 $PHOEBUS connect src:7000
        echo routed | $PHOEBUS testbed exec src -- env PHOEBUS_GW=pg1/5006 $PHOEBUS connect dst:7000
        $PHOEBUS testbed exec src -- env PHOEBUS_GW=pg1/5006 $PHOEBUS connect pg2:22 </dev/null || echo refused $?
        # A choice by measurement comes into force a little later.
        for try in $(seq 200); do
            said=$($PHOEBUS testbed exec pg2 -- $PHOEBUS status | grep -oE "^gateway pg2|pg1 at .*:" | cut -d: -f1-2)
            case $said in *"$2") break;; esac
            sleep 0.05
        done
        echo "$said"
        # Before anything is measured another rule may hold. Each session gives something to measure.
        for try in $(seq 200); do
            $PHOEBUS testbed exec pg1 -- $PHOEBUS status | grep -q "by rule \"$3" && break
            test "$3" || break
            echo more | $PHOEBUS testbed exec src -- env PHOEBUS_GW=pg1/5006 $PHOEBUS connect dst:7000 >"$1/more"
        done
    "#;
    let directory = place.0.path().to_str().unwrap();
    let run = ["run", "--quiet", "--gateways", "--wan-send-buffer", "8MiB", "--wan-rtt", "10ms"];
    let logs = place.0.path().join("logs");
    let output = place.output(
        &[
            &run[..],
            options,
            &["--gateway-logs", logs.to_str().unwrap(), "--", "sh", "-c", script, "sh", directory, peer, rule],
        ]
        .concat(),
    );
    let expected = format!("OUT\nBACK\nROUTED\nrefused 3\ngateway pg2\n{peer}\n");
    assert_eq!(text(&output.stdout), expected, "{}", text(&output.stderr));
    let log = fs::read_to_string(logs.join("pg1.log")).unwrap();
    assert!(
        log.contains("listening address=10.9.0.2:5006") && log.contains("listening address=[fd09::2]:5006"),
        "{log}"
    );
    assert_eq!(place.left(), Vec::<String>::new());
    log
}

#[test]
fn gateway_that_does_not_start_fails_the_testbed() {
    let place = Place::new();
    let scenario = place.0.path().join("one.toml");
    fs::write(&scenario, "host = [{ name = \"a\" }]").unwrap();
    let run = ["run", "--quiet", "--gateways", "--scenario", scenario.to_str().unwrap(), "--", "true"];
    let none = "phoebus: gateways were asked for, but no [[host]] of the scenario says `gateway = true`";
    assert_eq!(place.fail(2, &run), none);
    // A name that gateways reserve, although a host may have it.
    fs::write(
        &scenario,
        "host = [{ name = \"direct\", gateway = true }, { name = \"b\", gateway = true }]\n\
                          link = [{ name = \"l\", ends = [\"direct\", \"b\"] }]",
    )
    .unwrap();
    let said = place.fail(125, &run);
    assert!(said.starts_with("phoebus: the gateway on b ended at its start, exit status: 2; it said: "), "{said}");
    assert!(said.contains("\"direct\" is no name for a peer"), "{said}");
    assert_eq!(place.left(), Vec::<String>::new());
}
