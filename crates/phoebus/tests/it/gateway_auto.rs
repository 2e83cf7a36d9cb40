//! `transport = "auto"` on the emulated path when a filter begins to drop UDP. No session ends cleanly, the next ones
//! use TCP after a bounded time, and their reports say why (S1, S12, P23, invariants 1 and 4).

use crate::support;
use std::io::{Read, Write};
use support::path::{HOSTS, Hop, Joined, Path, transfer};
use support::{assert_reset, wait_until};

/// Gateways that may not use bbr, so that the rules choose QUIC for this path, and that may try again soon.
fn up() -> Path {
    let path = Path::up(&Joined {
        transport: "auto",
        peer: "allowed = [\"tcp\", \"quic\"]",
        profile: "congestion_control = \"system\"\nidle_timeout = \"8s\"",
        more: "[limits]\ntransport_timeout = \"3s\"\ntransport_retry = \"2s\"",
        ..Joined::default()
    });
    path.until_ready("quic", 1);
    path
}

/// Has a firewall on both hosts silently drop UDP.
fn filter(path: &Path) {
    let rules = "add table inet t; add chain inet t c { type filter hook input priority 0; }; \
                 add rule inet t c meta l4proto udp drop";
    HOSTS.iter().for_each(|host| path.run(host, "nft", &[rules]));
}

fn assert_instead(hop: &Hop) {
    assert_eq!((hop.to.as_str(), hop.transport.as_str()), ("pg2", "tcp"), "{hop:?}");
    assert!(hop.note.contains("auto has tcp, since quic was not available: "), "{hop:?}");
    // On a slow machine, the connection may be given up (after 8 s of silence) before the opening is (after 3 s).
    let reasons = ["answer within 3s", "nothing was received from the peer"];
    assert!(reasons.iter().any(|reason| hop.note.contains(reason)), "{hop:?}");
}

#[test]
fn auto_falls_back_to_tcp_until_udp_passes_again() {
    let path = up();
    let (mut client, mut destination, hops) = path.session_reported();
    assert_eq!(hops[0].transport, "quic", "{hops:?}");
    client.write_all(&[1; 100_000]).unwrap();
    destination.read_exact(&mut [0; 100_000]).unwrap();

    filter(&path);
    // One end waits and the other one sends. Neither may see a clean end.
    client.write_all(&[2; 1000]).unwrap();
    let (next, at, hops) = path.session_reported();
    assert_instead(&hops[0]);
    assert_reset(&mut destination, "destination");
    assert_reset(&mut client, "client");
    transfer((next, at), 16, || {});
    let counters = || path.status("pg1")["totals"].clone();
    wait_until(
        || counters()["sessions_failed"] == 1 && counters()["sessions_clean"] == 1,
        || format!("{:#}", counters()),
    );

    HOSTS.iter().for_each(|host| path.run(host, "nft", &["delete table inet t"]));
    path.until_ready("quic", 1);
    let (client, destination, hops) = path.session_reported();
    assert_eq!(hops[0].transport, "quic", "{hops:?}");
    transfer((client, destination), 16, || {});
}

#[test]
fn auto_opens_by_tcp_behind_a_udp_filter() {
    let path = up();
    filter(&path);
    for _ in 0..2 {
        let (client, destination, hops) = path.session_reported();
        assert_instead(&hops[0]);
        transfer((client, destination), 16, || {});
    }
    // The status shows the choice, and the transport that was not available.
    let choice = path.pool()["choice"].clone();
    assert_eq!(choice["failed"][0][0], "quic", "{choice:#}");
    assert!(path.log("pg1").contains("auto has tcp, since quic was not available: "), "no session's line says so");
}
