//! Sessions through one gateway and through two, and the gateways' reports.

use crate::support;
use phoebus_proto::session::Code;
use std::io::{Read, Write};
use std::net::Shutdown;
use support::*;

#[test]
fn gateway_delivers_both_streams() {
    let pg = Pg::start("pg1", ALLOW_ALL);
    let (client, server, report) = session(&pg, |ask| ask);
    assert_eq!(report.hops, [("pg1".to_owned(), server.local_addr().unwrap().to_string(), false)]);
    exchange(client, server, &pattern(3_000_001, 3), &pattern(2_000_003, 5));
    assert_eq!(pg.quiet(), (1, 0));
    let totals = pg.status().totals;
    assert_eq!((totals.bytes_up, totals.bytes_down), (3_000_001, 2_000_003));
}

#[test]
fn two_gateways_deliver_both_streams_and_report_each_hop() {
    let (first, second) = Pg::chain("");
    let (client, server, report) = session(&first, |ask| ask);
    let to = server.local_addr().unwrap().to_string();
    let hop = |from: &str, to: &str| (from.to_owned(), to.to_owned(), false);
    assert_eq!(report.hops, [hop("pg1", "pg2"), hop("pg2", &to)]);
    assert!(report.rtt_us > 0 && report.congestion_controls.iter().all(|name| !name.is_empty()), "{report:?}");
    exchange(client, server, &pattern(3_000_001, 3), &pattern(2_000_003, 5));
    assert_eq!((first.quiet(), second.quiet()), ((1, 0), (1, 0)));
}

#[test]
fn connection_between_gateways_is_reused_with_its_window() {
    let (first, second) = Pg::chain("");
    let (client, server, _) = session(&first, |ask| ask);
    exchange(client, server, &pattern(20_000_000, 9), &[]);
    first.quiet();
    let mut largest = 0;
    for round in 0..20 {
        let (client, server, report) = session(&first, |ask| ask);
        assert!(report.hops[0].2, "round {round}: the hop between the gateways is warm");
        let window = first.status().sessions[0].hops[1].stats.as_ref().unwrap().congestion_window;
        largest = largest.max(window);
        exchange(client, server, &pattern(round * 1000, round as u64 + 1), &pattern((20 - round) * 777, 7));
        first.quiet();
    }
    // On a busy machine, bbr may measure a short path for a while.
    assert!(largest > 10, "a new connection would begin with 10 segments, these have had {largest} at most");
    let pool = &first.status().pools[0];
    // One carried all sessions, and one was ready meanwhile.
    assert_eq!((pool.dialled, pool.reused), (2, 21), "{pool:?}");
    assert_eq!(second.status().totals.connections, 2);
}

#[test]
fn sessions_that_replace_each_other_use_the_same_connections() {
    // More than the 8 that may stay idle.
    const AT_ONCE: usize = 12;
    let (first, _second) = Pg::chain("");
    let open = || session(&first, |ask| ask);
    let mut sessions: Vec<_> = (0..AT_ONCE).map(|_| open()).collect();
    let ready = first.until(|status| status.pools[0].idle == 1, "one more is ready").pools[0].dialled;
    for _ in 0..10 {
        // A quarter ends, and as many begin.
        for (client, server, _) in sessions.drain(..AT_ONCE / 4) {
            exchange(client, server, b"up", b"down");
        }
        let left = sessions.len();
        first.until(|status| status.sessions.len() == left, "those are over");
        sessions.extend((left..AT_ONCE).map(|_| open()));
    }
    let pool = &first.status().pools[0];
    assert_eq!(pool.dialled, ready, "{pool:?}");
    for (client, server, _) in sessions {
        exchange(client, server, b"up", b"down");
    }
    assert_eq!(first.quiet(), (42, 0));
    first.until(|status| status.pools[0].idle == 8, "those above the maximum are closed after a second");
}

#[test]
fn half_close_keeps_other_direction_open() {
    let (first, _second) = Pg::chain("");
    let (mut client, mut server, _) = session(&first, |ask| ask);
    client.write_all(b"request").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut request = Vec::new();
    server.read_to_end(&mut request).unwrap();
    assert_eq!(request, b"request");
    for part in [&b"first"[..], b"second"] {
        server.write_all(part).unwrap();
        expect(&mut client, part);
    }
    assert_eq!(first.status().sessions.len(), 1);
    drop(server);
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    assert_eq!(first.quiet(), (1, 0));
}

#[test]
fn bytes_behind_request_belong_to_stream() {
    let (first, _second) = Pg::chain("");
    let (client, mut server, _) = session(&first, |ask| Ask { early: b"early".to_vec(), ..ask });
    expect(&mut server, b"early");
    exchange(client, server, b"late", b"");
}

#[test]
fn resets_pass_both_ways_and_name_the_failed_hop() {
    let (first, second) = Pg::chain("");
    let (mut client, mut server, _) = session(&first, |ask| ask);
    client.write_all(b"x").unwrap();
    expect(&mut server, b"x");
    reset(client);
    assert_reset(&mut server);

    let (mut client, server, _) = session(&first, |ask| ask);
    reset(server);
    assert_reset(&mut client);
    assert_eq!((first.quiet(), second.quiet()), ((0, 2), (0, 2)));
}

#[test]
fn client_chooses_path_by_address_or_name() {
    let second = Pg::start("pg2", &format!("{}{ALLOW_ALL}", peer("pg1", address(), 0)));
    let first = Pg::start("pg1", &format!("{}{ALLOW_ALL}", peer("pg2", second.addr, 0)));
    for path in [second.addr.to_string(), "pg2/5006".to_owned()] {
        let (client, server, report) = session(&first, |ask| ask.path(&path));
        assert_eq!((report.hops.len(), report.hops[0].1.as_str()), (2, "pg2"));
        exchange(client, server, b"up", b"down");
    }
    let (client, server, report) = session(&first, |ask| ask);
    assert_eq!(report.hops.len(), 1, "without a path and without a route the way is direct");
    exchange(client, server, b"up", b"down");
}

#[test]
fn client_may_name_resolved_address_of_peer() {
    let second = Pg::start_at(([127, 0, 0, 1], 0).into(), "pg2", &format!("{}{ALLOW_ALL}", peer("pg1", address(), 0)));
    let at = second.gateway().addresses()[0];
    let peers = format!(
        "[[peer]]\nname = \"pg2\"\naddress = \"localhost:{}\"\nsecurity = \"none\"\npool = {{ min = 1 }}\n{}",
        at.port(),
        peer("pg0", address(), 0)
    );
    let first = Pg::start("pg1", &format!("{peers}{ALLOW_ALL}"));
    // A ready connection shows that the name was resolved.
    first.until(|status| status.pools.iter().any(|pool| pool.idle > 0), "a connection is ready");
    for path in [at.to_string(), format!("[::ffff:127.0.0.1]:{}", at.port()), format!("localhost:{}", at.port())] {
        let (client, server, report) = session(&first, |ask| ask.path(&path));
        assert_eq!((report.hops.len(), report.hops[0].1.as_str()), (2, "pg2"), "{path}");
        exchange(client, server, b"up", b"down");
    }
    let (_listener, addr) = destination();
    for elsewhere in [format!("127.0.0.1:{}", at.port() ^ 1), format!("127.0.0.9:{}", at.port())] {
        let no = Ask::to(addr).path(&elsewhere).ask(first.addr).unwrap_err();
        assert_eq!(no.code, Code::NoRoute, "{elsewhere}: {no:?}");
    }
}

#[test]
fn most_specific_route_applies() {
    let second = Pg::start("pg2", &format!("{}{ALLOW_ALL}", peer("pg1", address(), 0)));
    let (near, near_addr) = destination();
    let routes = format!(
        "[[route]]\nto = \"127.0.0.0/8\"\nvia = \"pg2\"\n[[route]]\nto = \"{}/32\"\nvia = \"direct\"\n",
        near_addr.ip()
    );
    let first = Pg::start("pg1", &format!("{}{routes}{ALLOW_ALL}", peer("pg2", second.addr, 0)));
    let (_client, report) = Ask::to(near_addr).ask(first.addr).unwrap();
    assert_eq!(report.hops.len(), 1);
    drop(near);
    let (client, server, report) = session(&first, |ask| ask);
    assert_eq!(report.hops.len(), 2);
    exchange(client, server, b"up", b"down");
}

#[test]
fn last_gateway_resolves_names() {
    let (first, _second) = Pg::chain("");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let name = format!("localhost:{}", listener.local_addr().unwrap().port());
    let (client, report) = Ask::to(&name).ask(first.addr).unwrap();
    assert_eq!(report.hops[1].1, listener.local_addr().unwrap().to_string());
    exchange(client, listener.accept().unwrap().0, b"up", b"down");
    let no = Ask::to("no-such-host.invalid:1").ask(first.addr).unwrap_err();
    assert_eq!(no.code, Code::NameNotFound, "{no:?}");
    assert!(no.reason.contains("no-such-host.invalid"), "{no:?}");
}

#[test]
fn restarted_peer_is_asked_on_new_connection() {
    let (first, second) = Pg::chain("");
    let (addr, first_addr) = (second.addr, first.addr);
    drop(second);
    let second = Pg::start_at(addr, "pg2", &format!("{}{ALLOW_ALL}", peer("pg1", first_addr, 0)));
    let (client, server, _) = session(&first, |ask| ask);
    exchange(client, server, b"up", b"down");
    assert_eq!(second.quiet(), (1, 0));
}

#[test]
fn client_that_hangs_up_cancels_connect() {
    let pg = Pg::start("pg1", ALLOW_ALL);
    let deaf = Deaf::new();
    let asking = std::net::TcpStream::connect(pg.addr).unwrap();
    let twin = asking.try_clone().unwrap();
    let waiting = std::thread::spawn(move || std::panic::catch_unwind(|| Ask::to(deaf.addr).ask_on(twin).is_ok()));
    pg.until(|status| status.totals.connections == 1 && status.handshakes == 0, "it waits for the destination");
    socket2::SockRef::from(&asking).set_linger(Some(std::time::Duration::ZERO)).unwrap();
    asking.shutdown(Shutdown::Both).unwrap();
    drop(asking);
    assert!(waiting.join().unwrap().is_err(), "no answer can come");
    let (client, server, _) = session(&pg, |ask| ask);
    exchange(client, server, b"up", b"down");
}

#[test]
fn status_shows_sessions_hops_and_pools() {
    let (first, second) = Pg::chain("");
    let (mut client, mut server, _) = session(&first, |ask| ask);
    client.write_all(&[1; 1000]).unwrap();
    expect(&mut server, &[1; 1000]);
    let status = second.until(|status| status.sessions[0].bytes_up == 1000, "the bytes are counted");
    let shown = &status.sessions[0];
    assert_eq!((shown.visited.as_str(), shown.hops[0].to.as_str()), ("pg1", "pg1"));
    assert_eq!(shown.origin, client.local_addr().unwrap().to_string());
    assert_eq!(shown.destination, server.local_addr().unwrap().to_string());
    let hop = shown.hops[1].stats.as_ref().unwrap();
    assert!(hop.send_buffer > 0 && !hop.congestion_control.is_empty(), "{hop:?}");
    let text = serde_json::to_string(&status).unwrap();
    assert_eq!(serde_json::from_str::<phoebus_gateway::Status>(&text).unwrap(), status);
    first.until(|status| status.sessions[0].bits_per_s_up > 0.0, "a rate is shown");
    exchange(client, server, b"", b"");
}
