//! `transport = "auto"`: sessions use the suitable available transport, and reports say so (S1, S12, invariant 4).

use crate::support;
use phoebus_gateway::Status;
use phoebus_proto::session::Code;
use std::net::{SocketAddr, UdpSocket};
use std::time::Instant;
use support::{
    ALLOW_ALL, Ask, Certificates, PATIENCE, Pg, Report, address, destination, exchange, pattern, peer, session,
};

/// Limits with short retry pauses, even for a slow machine.
const LIMITS: &str = "[limits]\ntransport_timeout = \"5s\"\ntransport_retry = \"1s\"\n";

/// pg1, which may reach its peer pg2 over the transports in `allowed`; and pg2, which listens over TCP and as `listens`
/// says.
struct Pair {
    first: Pg,
    second: Pg,
    addrs: [SocketAddr; 2],
    tls: [String; 2],
    _certificates: Certificates,
}

impl Pair {
    fn start(allowed: &str, min: u32, listens: impl Fn(SocketAddr) -> String) -> Self {
        let addrs = [address(), address()];
        let certificates = Certificates::new();
        let tls = ["pg1", "pg2"].map(|name| certificates.issue(name));
        let second = Pg::start_at(addrs[1], "pg2", &Self::second(&tls[1], addrs[0], &listens(addrs[1])));
        let text = format!(
            "{}[[peer]]\nname = \"pg2\"\naddress = \"{}\"\ntransport = \"auto\"\nallowed = {allowed}\nsecurity = \"none\"\n\
             pool = {{ min = {min} }}\n[[route]]\nto = \"*\"\nvia = \"pg2\"\n{ALLOW_ALL}{LIMITS}",
            tls[0], addrs[1]
        );
        let first = Pg::start_at(addrs[0], "pg1", &text);
        Self { first, second, addrs, tls, _certificates: certificates }
    }

    fn second(tls: &str, first: SocketAddr, listens: &str) -> String {
        format!("{tls}{listens}{}{ALLOW_ALL}", peer("pg1", first, 0))
    }

    /// Opens a session, and returns its report.
    fn carries(&self) -> Report {
        let (client, server, report) = session(&self.first, |ask| ask);
        exchange(client, server, &pattern(100_000, 1), &pattern(200_000, 2));
        report
    }

    fn until(&self, transport: &str) -> Status {
        let wanted = |status: &Status| status.pools[0].transport == transport && status.pools[0].idle > 0;
        self.first.until(wanted, &format!("{transport} is ready"))
    }
}

fn quic(addr: SocketAddr) -> String {
    format!("[[listen]]\naddress = \"{addr}\"\ntransport = \"quic\"\n")
}

fn udt(mut addr: SocketAddr) -> String {
    addr.set_port(addr.port() + 1000);
    format!("[[listen]]\naddress = \"{addr}\"\ntransport = \"udt\"\nsecurity = \"encrypt\"\n")
}

/// `allowed` with UDT at the port of [`udt`].
const UDP: &str = "[\"quic\", \"udt/6006\"]";

fn by(report: &Report) -> (&str, &str) {
    (report.carried[0].0.as_str(), report.carried[0].1.as_str())
}

#[test]
fn near_peer_is_reached_over_tcp() {
    let pair = Pair::start("[\"quic\", \"tcp\"]", 1, quic);
    let status = pair.until("tcp");
    let pool = &status.pools[0];
    let choice = pool.choice.as_ref().unwrap();
    assert_eq!((choice.rule.as_str(), choice.streams, &choice.failed[..]), ("near", 1, &[][..]));
    assert!((1..2000).contains(&pool.segment.rtt_us), "{pool:?}");
    let report = pair.carries();
    assert_eq!(by(&report), ("tcp", "none"), "as configured, and no less");
    assert!(report.notes[0].starts_with("auto has tcp: a short path repairs losses quickly"), "{report:?}");
}

#[test]
fn reload_keeps_measurements() {
    let pair = Pair::start("[\"tcp\"]", 1, |_| String::new());
    let (client, server, _) = session(&pair.first, |ask| ask);
    // A thousand segments on loopback.
    exchange(client, server, &pattern(100 << 20, 1), &[]);
    let measured = |status: &Status| status.pools[0].segment.bits_per_s.is_some_and(|rate| rate > 0.0);
    let before = pair.first.until(measured, "the session's rate is known").pools[0].segment.clone();
    assert!(before.loss.is_some(), "{before:?}");
    // The peer's settings changed, so there is a new pool, which makes no connection ahead of need.
    let text = format!(
        "{}[[peer]]\nname = \"pg2\"\naddress = \"{}\"\nsecurity = \"none\"\npool = {{ min = 0 }}\n{ALLOW_ALL}",
        pair.tls[0], pair.addrs[1]
    );
    pair.first.reload("pg1", &text);
    let after = pair.first.status().pools[0].clone();
    assert_eq!((after.choice, after.dialled), (None, 0));
    assert_eq!((after.segment.bits_per_s, after.segment.loss), (before.bits_per_s, before.loss));
}

#[test]
fn auto_uses_next_transport_if_first_has_no_listener() {
    let pair = Pair::start(UDP, 1, udt);
    let status = pair.until("udt");
    let failed = &status.pools[0].choice.as_ref().unwrap().failed;
    assert_eq!(failed[0].0, "quic", "{failed:?}");
    let report = pair.carries();
    assert_eq!(by(&report), ("udt", "encrypt"), "never UDT in the clear, though the peer asks for no protection");
    assert!(report.notes[0].contains("auto has udt, since quic was not available: "), "{report:?}");
    // It is tried again in the background, and used when it is available.
    let listens = format!("{}{}", udt(pair.addrs[1]), quic(pair.addrs[1]));
    pair.second.reload("pg2", &Pair::second(&pair.tls[1], pair.addrs[0], &listens));
    let status = pair.until("quic");
    // UDT connections may be stale: the reload has closed the idle ones.
    let failed = &status.pools[0].choice.as_ref().unwrap().failed;
    assert!(failed.iter().all(|(transport, _)| transport != "quic"), "{failed:?}");
    let report = pair.carries();
    assert_eq!(by(&report), ("quic", "encrypt"));
    assert!(report.notes[0].contains("auto has quic: "), "{report:?}");
}

#[test]
fn session_falls_back_when_udp_is_filtered() {
    // This socket never answers.
    let filtered = |addr: SocketAddr| {
        let hole = UdpSocket::bind(addr).unwrap();
        // Runs until the test's process ends.
        std::mem::forget(hole);
        udt(addr)
    };
    // No connection is made ahead of need, so that the session meets the filter.
    let pair = Pair::start(UDP, 0, filtered);
    let start = Instant::now();
    let report = pair.carries();
    assert!(start.elapsed() < PATIENCE);
    assert_eq!(by(&report), ("udt", "encrypt"));
    assert!(report.notes[0].contains("auto has udt, since quic was not available: "), "{report:?}");
    assert!(report.notes[0].contains("no answer within 5s"), "{report:?}");
}

#[test]
fn unreachable_peer_leaves_no_transport_marked_failed() {
    let pair = Pair::start("[\"tcp\", \"quic\"]", 0, quic);
    let Pair { first, second, .. } = pair;
    drop(second);
    let (_listener, addr) = destination();
    let no = Ask::to(addr).ask(first.addr).map(drop).unwrap_err();
    assert_eq!((no.code, no.hop.as_str()), (Code::Refused, "pg2"), "{no:?}");
    assert_eq!(first.status().pools[0].choice.as_ref().unwrap().failed, []);
}

#[test]
fn idle_segment_is_probed_repeatedly() {
    let addrs = [address(), address()];
    let _second = Pg::start_at(addrs[1], "pg2", &format!("{}{ALLOW_ALL}", peer("pg1", addrs[0], 0)));
    let text = format!(
        "[[peer]]\nname = \"pg2\"\naddress = \"{}\"\ntransport = \"auto\"\nsecurity = \"none\"\npool = {{ min = 1 }}\n\
         {ALLOW_ALL}[limits]\nprobe_interval = \"1s\"\n",
        addrs[1]
    );
    let first = Pg::start_at(addrs[0], "pg1", &text);
    // Each probe is a handshake on a new connection; the ready connection stays.
    let looked = |status: &Status| status.pools[0].dialled >= 4 && status.pools[0].idle == 1;
    let status = first.until(looked, "three looks beside the connection that is ready");
    assert!(status.pools[0].segment.rtt_us > 0 && status.totals.sessions_opened == 0, "{:?}", status.pools[0]);
    assert_eq!((status.pools[0].failed, status.pools[0].stale), (0, 0));
}
