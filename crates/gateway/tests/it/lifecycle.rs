//! Drain, end and reload of gateways; sessions that are idle for too long; stale connections.

use crate::support;
use phoebus_proto::session::Code;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use support::*;

#[test]
fn draining_gateway_finishes_sessions_and_refuses_new_ones() {
    let (first, second) = Pg::chain("");
    let (client, server, _) = session(&first, |ask| ask);
    let (addr, idle) = (second.addr, TcpStream::connect(second.addr).unwrap());
    std::thread::scope(|scope| {
        let drained = scope.spawn(|| second.runtime.block_on(second.gateway().drain()));
        second.until(|status| status.draining, "it drains");
        let no = TcpStream::connect(addr).unwrap_err();
        assert_eq!(no.kind(), std::io::ErrorKind::ConnectionRefused);
        let mut answer = String::new();
        let _ = (&idle).take(1000).read_to_string(&mut answer);
        assert!(answer.is_empty() || answer.contains("takes no more"), "{answer}");
        let (_listener, to) = destination();
        let no = Ask::to(to).ask(first.addr).unwrap_err();
        assert_eq!(no.code, Code::Refused, "{no:?}");
        exchange(client, server, &pattern(1_000_000, 3), &pattern(1_000_000, 5));
        assert_eq!(drained.join().unwrap(), 0);
    });
    assert_eq!(second.quiet(), (1, 0));
}

#[test]
fn drain_resets_sessions_that_exceed_time_limit() {
    let (first, second) = Pg::chain("[limits]\ndrain_timeout = \"100ms\"\n");
    let (mut client, mut server, _) = session(&first, |ask| ask);
    client.write_all(b"x").unwrap();
    expect(&mut server, b"x");
    assert_eq!(second.runtime.block_on(second.gateway().drain()), 1);
    assert_reset(&mut client);
    assert_reset(&mut server);
    assert_eq!((first.quiet(), second.quiet()), ((0, 1), (0, 1)));
}

#[test]
fn dropped_gateway_resets_its_sessions() {
    let (first, mut second) = Pg::chain("");
    let (mut client, mut server, _) = session(&first, |ask| ask);
    drop(second.gateway.take());
    assert_reset(&mut client);
    assert_reset(&mut server);
}

#[test]
fn idle_session_is_ended_when_configured() {
    let pg = Pg::start("pg1", &format!("{ALLOW_ALL}[limits]\nidle_timeout = \"1s\"\n"));
    let (mut client, mut server, _) = session(&pg, |ask| ask);
    assert_reset(&mut client);
    assert_reset(&mut server);
    assert_eq!(pg.quiet(), (0, 1));
}

#[test]
fn peer_that_stops_reading_is_not_timed_out() {
    let pg = Pg::start("pg1", &format!("{ALLOW_ALL}[profile.default]\nuser_timeout = \"1s\"\n"));
    let (mut client, mut server, _) = session(&pg, |ask| ask);
    client.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let mut sent = 0;
    // The kernel probes a full receiver at growing intervals, and every probe is acknowledged. The gateway checks at 4
    // s and 9 s, and the second check falls between two probes that are 6.4 s apart.
    while let Ok(n) = client.write(&[1; 65_536]) {
        sent += n;
    }
    std::thread::sleep(Duration::from_secs(10));
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let mut got = Vec::new();
    server.read_to_end(&mut got).unwrap();
    assert_eq!(got.len(), sent);
    drop(server);
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    assert_eq!(pg.quiet(), (1, 0));
}

#[test]
fn reload_applies_to_new_sessions_only() {
    let pg = Pg::start("pg1", ALLOW_ALL);
    let (client, server, _) = session(&pg, |ask| ask);
    let (_listener, to) = destination();
    pg.reload("pg1", "");
    assert_eq!(Ask::to(to).ask(pg.addr).unwrap_err().code, Code::NotAllowed);
    // The listener's settings change, so its socket is recreated at the same address.
    pg.reload("pg1", &format!("auth = \"anonymous\"\n{ALLOW_ALL}"));
    let start = std::time::Instant::now();
    while Ask::to(to).try_ask(pg.addr) != Some(Code::AuthRequired) {
        assert!(start.elapsed() < PATIENCE, "the new terms never came into force");
        std::thread::sleep(Duration::from_millis(20));
    }
    pg.reload("pg1", ALLOW_ALL);
    while Ask::to(to).try_ask(pg.addr).is_some() {
        assert!(start.elapsed() < PATIENCE, "the old terms never came back");
        std::thread::sleep(Duration::from_millis(20));
    }
    exchange(client, server, b"up", b"down");
}

#[test]
fn listener_added_by_reload_has_new_limits() {
    let (first, second) = (address(), address());
    let known = format!("{}{ALLOW_ALL}", peer("pg1", first, 0));
    let pg2 = Pg::start_at(second, "pg2", &known);
    let over_udt =
        |addr| format!("[[listen]]\naddress = \"{addr}\"\ntransport = \"udt\"\nsecurity = \"none\"\n{known}");
    let ask = |addr| {
        let to = peer("pg2", addr, 0).replace("security", "transport = \"udt\"\nstreams = 4\nsecurity");
        let pg1 = Pg::start_at(first, "pg1", &format!("{to}[[route]]\nto = \"*\"\nvia = \"pg2\"\n{ALLOW_ALL}"));
        let (client, server, report) = session(&pg1, |ask| ask);
        exchange(client, server, b"up", b"down");
        report.streams[0].0
    };
    // UDT connections cannot share the memory of a session, so where that is bounded there is only one. The first
    // listener exists before the bound, and the second one is added with it.
    pg2.reload("pg2", &over_udt(second));
    assert_eq!(ask(second), 4);
    let other = SocketAddr::new(second.ip(), second.port() + 1000);
    let listener = format!("[[listen]]\naddress = \"{other}\"\n");
    pg2.reload("pg2", &format!("{listener}{}[limits]\nbuffer = \"4MiB\"\n", over_udt(other)));
    assert_eq!(ask(other), 1);
}

#[test]
fn reload_keeps_connections_of_unchanged_peers() {
    let second = Pg::start("pg2", &format!("{}{ALLOW_ALL}", peer("pg1", address(), 0)));
    let third = Pg::start("pg3", &format!("{}{ALLOW_ALL}", peer("pg1", address(), 0)));
    let (to_second, to_third) = (peer("pg2", second.addr, 1), peer("pg3", third.addr, 1));
    let first = Pg::start("pg1", &format!("{to_second}{ALLOW_ALL}"));
    first.until(|status| status.pools[0].idle == 1, "a connection is ready");
    first.reload("pg1", &format!("{to_second}{to_third}{ALLOW_ALL}"));
    let status = first.until(|status| status.pools.len() == 2 && status.pools[1].idle == 1, "both are ready");
    assert_eq!((status.pools[0].peer.as_str(), status.pools[0].dialled), ("pg2", 1));
    first.reload("pg1", &format!("{to_third}{ALLOW_ALL}"));
    assert_eq!(first.status().pools.len(), 1);
    let (_listener, to) = destination();
    assert_eq!(Ask::to(to).path("pg2/5006").ask(first.addr).unwrap_err().code, Code::NoRoute);
    let (client, server, report) = session(&first, |ask| ask.path("pg3/5006"));
    assert_eq!(report.hops.len(), 2);
    exchange(client, server, b"up", b"down");
}

#[test]
fn failed_reload_changes_nothing() {
    let pg = Pg::start("pg1", ALLOW_ALL);
    let taken = std::net::TcpListener::bind(address()).unwrap();
    let listeners =
        format!("[[listen]]\naddress = \"{}\"\n[[listen]]\naddress = \"{}\"\n", pg.addr, taken.local_addr().unwrap());
    let config = phoebus_gateway::Config::parse(&format!("name = \"other\"\n{listeners}"), Path::new("x")).unwrap();
    let error = pg.runtime.block_on(pg.gateway().reload(config)).unwrap_err().to_string();
    let expected = format!("x:5:11: cannot listen on {}: address already in use; ", taken.local_addr().unwrap());
    assert!(error.starts_with(&expected), "{error}");
    assert_eq!(pg.status().name, "pg1");
    let (client, server, _) = session(&pg, |ask| ask);
    exchange(client, server, b"up", b"down");
}

#[test]
fn start_refuses_more_sessions_than_descriptors() {
    let text = format!("[[listen]]\naddress = \"{}\"\n[limits]\nsessions = 1000000000\n", address());
    let config = phoebus_gateway::Config::parse(&text, Path::new("x")).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _guard = runtime.enter();
    let error = phoebus_gateway::Gateway::start(config).unwrap_err().to_string();
    assert!(
        error.starts_with("x:4:12: limits.sessions is 1000000000, which") && error.contains("ulimit -n"),
        "{error}"
    );
}

#[test]
fn pool_closes_old_connections_and_replaces_dead_ones() {
    let (first_addr, second_addr) = (address(), address());
    let start_second = || Pg::start_at(second_addr, "pg2", &format!("{}{ALLOW_ALL}", peer("pg1", first_addr, 0)));
    let second = start_second();
    let pool = peer("pg2", second_addr, 0).replace("min = 0", "min = 1, max = 4, idle = \"1s\"");
    let first = Pg::start_at(first_addr, "pg1", &format!("{pool}[[route]]\nto = \"*\"\nvia = \"pg2\"\n{ALLOW_ALL}"));
    let open: Vec<_> = (0..4).map(|_| session(&first, |ask| ask)).collect();
    for (client, server, _) in open {
        exchange(client, server, b"up", b"down");
    }
    first.until(|status| status.pools[0].idle == 4, "four were kept");
    first.until(|status| status.pools[0].idle == 1, "three grew too old");
    let dialled = first.status().pools[0].dialled;
    drop(second);
    let _second = start_second();
    first.until(|status| status.pools[0].dialled > dialled && status.pools[0].idle == 1, "the dead one was replaced");
}

/// Forwards connections to `to`. Once `cuts` is set, the next one that sends something is closed when `to` answers.
fn cutting(to: SocketAddr, cuts: Arc<AtomicBool>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for near in listener.incoming() {
            let (near, far) = (near.unwrap(), TcpStream::connect(to).unwrap());
            let (cuts, is_cut) = (cuts.clone(), Arc::new(AtomicBool::new(false)));
            let (cut, mut back) = (is_cut.clone(), [near.try_clone().unwrap(), far.try_clone().unwrap()]);
            std::thread::spawn(move || {
                let mut piece = [0; 4096];
                while let Ok(n @ 1..) = back[1].read(&mut piece) {
                    if cut.load(Ordering::SeqCst) {
                        let _ = back[0].shutdown(Shutdown::Both);
                        return;
                    }
                    let _ = back[0].write_all(&piece[..n]);
                }
            });
            std::thread::spawn(move || {
                let [mut near, mut far] = [near, far];
                let mut piece = [0; 4096];
                while let Ok(n @ 1..) = near.read(&mut piece) {
                    if cuts.swap(false, Ordering::SeqCst) {
                        is_cut.store(true, Ordering::SeqCst);
                    }
                    let _ = far.write_all(&piece[..n]);
                }
                let _ = far.shutdown(Shutdown::Both);
            });
        }
    });
    at
}

#[test]
fn request_that_the_peer_has_seen_on_a_broken_connection_fails_as_a_reset() {
    let (first_addr, second_addr) = (address(), address());
    let _second = Pg::start_at(second_addr, "pg2", &format!("{}{ALLOW_ALL}", peer("pg1", first_addr, 0)));
    let cuts = Arc::new(AtomicBool::new(false));
    let pool = peer("pg2", cutting(second_addr, cuts.clone()), 0);
    let first = Pg::start_at(first_addr, "pg1", &format!("{pool}[[route]]\nto = \"*\"\nvia = \"pg2\"\n{ALLOW_ALL}"));
    let (client, server, _) = session(&first, |ask| ask);
    exchange(client, server, b"up", b"down");
    first.until(|status| status.pools[0].idle == 1, "the connection was kept");
    cuts.store(true, Ordering::SeqCst);
    let (_listener, to) = destination();
    let no = Ask::to(to).ask(first.addr).unwrap_err();
    assert_eq!((no.code, no.hop.as_str()), (Code::Reset, "pg2"), "{no:?}");
    // The client may ask for another session.
    assert!(Ask::to(to).ask(first.addr).is_ok());
}

/// Two gateways with a hop of this transport, whose profiles at both ends are called "hop": they set the congestion
/// control of the listener and the peer.
struct Hop {
    addrs: [std::net::SocketAddr; 2],
    tls: [String; 2],
    transport: &'static str,
    security: &'static str,
    certificates: Certificates,
}

impl Hop {
    fn new(transport: &'static str, security: &'static str) -> Self {
        let certificates = Certificates::new();
        let tls = ["pg1", "pg2"].map(|name| certificates.issue(name));
        Self { addrs: [address(), address()], tls, transport, security, certificates }
    }

    fn text(&self, n: usize, control: &str, more: &str) -> String {
        let Self { addrs, tls, transport, security, .. } = self;
        let (own, next, peer) = (addrs[n], addrs[1 - n], ["pg2", "pg1"][n]);
        let route = if n == 0 { "[[route]]\nto = \"*\"\nvia = \"pg2\"\n" } else { "" };
        format!(
            "{}[[listen]]\naddress = \"{own}\"\ntransport = \"{transport}\"\nsecurity = \"{security}\"\nprofile = \"hop\"\n\
             [[peer]]\nname = \"{peer}\"\naddress = \"{next}\"\ntransport = \"{transport}\"\nsecurity = \"{security}\"\n\
             from = [\"127.0.0.0/8\"]\npool = {{ min = 0 }}\nprofile = \"hop\"\n{route}{ALLOW_ALL}\
             [profile.hop]\ncongestion_control = \"{control}\"\n{more}",
            tls[n]
        )
    }

    fn start(&self, n: usize, control: &str, more: &str) -> Pg {
        Pg::start_at(self.addrs[n], ["pg1", "pg2"][n], &self.text(n, control, more))
    }
}

/// The congestion controls with which `pg` sends towards the client.
fn controls_back(pg: &Pg) -> Vec<String> {
    let stats = |session: &phoebus_gateway::SessionStatus| session.hops[0].stats.clone();
    let mut all: Vec<_> = pg.status().sessions.iter().filter_map(stats).map(|stats| stats.congestion_control).collect();
    all.sort();
    all
}

#[test]
fn listener_applies_new_profile_while_old_connections_continue() {
    for (transport, security, old, new) in [
        ("quic", "encrypt", "model", "reno"),
        ("udt", "encrypt", "model", "native"),
        ("udt", "none", "model", "native"),
    ] {
        let hop = Hop::new(transport, security);
        let (second, first) = (hop.start(1, old, ""), hop.start(0, old, ""));
        let (client, server, _) = session(&first, |ask| ask);
        // Over UDT, the next session reuses the previous connection.
        let rounds = if transport == "quic" { 2 } else { 1 };
        for round in 0..rounds {
            second.reload("pg2", &hop.text(1, [new, old][round], ""));
            let again = session(&first, |ask| ask);
            second.until(|status| status.sessions.len() == 2, "both sessions are open");
            let mut wanted = [old, [new, old][round]];
            wanted.sort_unstable();
            assert_eq!(controls_back(&second), wanted, "{transport}, {security}");
            exchange(again.0, again.1, &pattern(300_000, 3), &pattern(200_000, 4));
            second.until(|status| status.sessions.len() == 1, "the second session is over");
        }
        exchange(client, server, &pattern(300_000, 1), &pattern(200_000, 2));
        let all = 1 + rounds as u64;
        assert_eq!((first.quiet(), second.quiet()), ((all, 0), (all, 0)));
    }
}

#[test]
fn listener_applies_new_certificates_while_old_connections_continue() {
    for (transport, security) in [("quic", "encrypt"), ("udt", "encrypt")] {
        let mut hop = Hop::new(transport, security);
        let (second, first) = (hop.start(1, "model", ""), hop.start(0, "model", ""));
        let (client, server, _) = session(&first, |ask| ask);
        hop.tls[1] = hop.certificates.issue_as("other", "pg2", 365);
        second.reload("pg2", &hop.text(1, "model", ""));
        let again = session(&first, |ask| ask);
        exchange(again.0, again.1, b"up", b"down");
        exchange(client, server, &pattern(300_000, 1), &pattern(200_000, 2));
    }
}

#[test]
fn reload_restores_removed_quic_while_old_connections_continue() {
    let mut hop = Hop::new("quic", "encrypt");
    let (second, first) = (hop.start(1, "model", ""), hop.start(0, "model", ""));
    let (client, server, _) = session(&first, |ask| ask);
    hop.tls[1] = hop.certificates.issue_as("other", "pg2", 365);
    for _ in 0..20 {
        second.reload("pg2", &format!("{}{ALLOW_ALL}", hop.tls[1]));
        second.reload("pg2", &hop.text(1, "model", ""));
    }
    let again = session(&first, |ask| ask);
    exchange(again.0, again.1, b"up", b"down");
    exchange(client, server, &pattern(300_000, 1), &pattern(200_000, 2));
}

#[test]
fn removed_quic_refuses_new_connections_while_old_ones_continue() {
    let hop = Hop::new("quic", "encrypt");
    let (second, first) = (hop.start(1, "model", ""), hop.start(0, "model", ""));
    let (client, server, _) = session(&first, |ask| ask);
    second.reload("pg2", &format!("{}{ALLOW_ALL}", hop.tls[1]));
    let no = Ask::to(destination().1).ask(first.addr).unwrap_err();
    assert!(no.reason.contains("the peer accepts no new connections over QUIC"), "{no:?}");
    exchange(client, server, &pattern(300_000, 1), &pattern(200_000, 2));
}

#[test]
fn peer_is_dialled_with_new_profile_while_old_connections_continue() {
    let hop = Hop::new("quic", "encrypt");
    let (second, first) = (hop.start(1, "model", ""), hop.start(0, "model", ""));
    let (client, server, report) = session(&first, |ask| ask);
    assert_eq!(report.congestion_controls[0], "model");
    first.reload("pg1", &hop.text(0, "reno", ""));
    let again = session(&first, |ask| ask);
    assert_eq!(again.2.congestion_controls[0], "reno");
    // The profile also has settings that an open connection cannot change.
    first.reload("pg1", &hop.text(0, "reno", "receive_buffer = \"4MiB\"\n"));
    let third = session(&first, |ask| ask);
    let buffers = |status: &phoebus_gateway::Status| -> Vec<_> {
        let stats = |session: &phoebus_gateway::SessionStatus| session.hops[1].stats.clone();
        status.sessions.iter().filter_map(stats).map(|stats| stats.receive_buffer).collect()
    };
    assert_eq!(buffers(&first.status()).iter().filter(|buffer| **buffer == 4 << 20).count(), 1);
    for (client, server) in [(client, server), (again.0, again.1), (third.0, third.1)] {
        exchange(client, server, &pattern(300_000, 1), &pattern(200_000, 2));
    }
    assert_eq!((first.quiet(), second.quiet()), ((3, 0), (3, 0)));
}

#[test]
fn refused_quic_openings_free_their_slots() {
    let hop = Hop::new("quic", "encrypt");
    // All clients here are strangers with the same address.
    let few = format!(
        "{}[[listen]]\naddress = \"{}\"\ntransport = \"quic\"\n[[allow]]\nfrom = [\"certificate:other\"]\n\
         to = [\"127.0.0.0/8\"]\n[limits]\nhandshakes_per_source = 8\nhandshake_timeout = \"600s\"\n",
        hop.tls[1], hop.addrs[1]
    );
    let second = Pg::start_at(hop.addrs[1], "pg2", &few);
    let (_listener, to) = destination();
    // Each keeps its connection. Their beacons, which request nothing, are counted.
    let start = |addr: std::net::SocketAddr| {
        Pg::start_at(addr, "pg1", &hop.text(0, "auto", "").replace(&hop.addrs[0].to_string(), &addr.to_string()))
    };
    let agents: Vec<_> = (0..6).map(|_| start(address())).collect();
    for agent in &agents {
        assert_eq!(Ask::to(to).ask(agent.addr).unwrap_err().code, Code::NotAllowed);
    }
    assert_eq!(second.status().totals.handshakes_shed, 0);
}

#[test]
fn draining_gateway_refuses_at_once_over_any_transport() {
    for transport in ["quic", "udt"] {
        let hop = Hop::new(transport, "encrypt");
        let second = hop.start(1, "model", "");
        // Time-outs longer than the test's.
        let first = hop.start(0, "model", "[limits]\nhandshake_timeout = \"600s\"\nconnect_timeout = \"600s\"\n");
        let start = std::time::Instant::now();
        while session(&first, |ask| ask).2.notes.iter().any(|note| note.contains("no TCP connection beside it")) {
            assert!(start.elapsed() < PATIENCE, "no beacon is lit");
        }
        let (client, server, _) = session(&first, |ask| ask);
        std::thread::scope(|scope| {
            let drained = scope.spawn(|| second.runtime.block_on(second.gateway().drain()));
            second.until(|status| status.draining, "it drains");
            let (_listener, to) = destination();
            let no = Ask::to(to).ask(first.addr).unwrap_err();
            // The gateway says so itself where it still answers; otherwise its port refuses.
            assert!([Code::Draining, Code::Refused].contains(&no.code) && no.hop == "pg2", "{transport}: {no:?}");
            assert!(no.reason.contains("shutting down"), "{transport}: {no:?}");
            exchange(client, server, &pattern(300_000, 3), &pattern(300_000, 5));
            assert_eq!(drained.join().unwrap(), 0);
        });
    }
}
