//! Rates of segments: shared by sessions, changed while sessions are open, promised on request.

use crate::support;
use phoebus_proto::session::Code;
use phoebus_proto::session::message::Requirements;
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};
use support::*;

fn profile(rate: &str) -> String {
    format!("{ALLOW_ALL}[profile.default]\nrate = \"{rate}\"\n")
}

/// The pacing rates of the hops to the destination, in bits per second, in the order of opening.
fn paced(pg: &Pg, hop: usize) -> Vec<u64> {
    let mut sessions = pg.status().sessions;
    sessions.reverse();
    sessions.iter().map(|session| session.hops[hop].stats.as_ref().unwrap().pacing_rate * 8).collect()
}

/// Opens two sessions to one destination.
fn two(pg: &Pg) -> [(TcpStream, TcpStream); 2] {
    let (listener, addr) = destination();
    [0; 2].map(|_| {
        let (client, _) = Ask::to(addr).ask(pg.addr).unwrap_or_else(|no| panic!("{no:?}"));
        (client, listener.accept().unwrap().0)
    })
}

#[test]
fn sessions_to_one_neighbour_share_its_rate() {
    let pg = Pg::start("pg1", &profile("80mbit"));
    let sessions = two(&pg);
    // Loopback has long segments, so nearly all of a rate is payload.
    for hop in [0, 1] {
        let rates = paced(&pg, hop);
        assert!(rates.iter().sum::<u64>() <= 80_000_000, "{rates:?}");
        assert!(rates.iter().all(|rate| *rate > 0), "{rates:?}");
    }
    let [one, (client, server)] = sessions;
    exchange(client, server, &pattern(300_000, 3), &pattern(200_000, 5));
    pg.until(|status| status.sessions.len() == 1, "one is over");
    drop(one);
}

#[test]
fn reload_changes_rates_of_open_sessions() {
    let pg = Pg::start("pg1", &profile("80mbit"));
    let sessions = two(&pg);
    pg.reload("pg1", &profile("8mbit"));
    let slow = paced(&pg, 1);
    assert!(slow.iter().sum::<u64>() <= 8_000_000, "{slow:?}");
    pg.reload("pg1", ALLOW_ALL);
    let [(client, server), _other] = sessions;
    // At 4 Mbit/s this would exceed the test's time limit by far.
    exchange(client, server, &pattern(200_000_000, 3), &[]);
    pg.reload("pg1", &profile("8mbit"));
    assert!(paced(&pg, 1)[0] <= 8_000_000);
}

#[test]
fn session_gets_requested_bandwidth_or_learns_the_limit() {
    let pg = Pg::start("pg1", &profile("80mbit"));
    let (listener, addr) = destination();
    let ask =
        |rate| Ask { requirements: Requirements { rate: Some(rate), ..Requirements::default() }, ..Ask::to(addr) };
    let refused = |rate| ask(rate).ask(pg.addr).unwrap_err();
    let no = refused(81_000_000);
    assert_eq!((no.code, no.limits.rate), (Code::Requirement, Some(80_000_000)), "{no:?}");
    let (client, _) = ask(60_000_000).ask(pg.addr).unwrap_or_else(|no| panic!("{no:?}"));
    let (server, _) = listener.accept().unwrap();
    assert!(paced(&pg, 0)[0] <= 60_000_000 && paced(&pg, 1)[0] <= 60_000_000);
    let no = refused(30_000_000);
    assert_eq!((no.code, no.limits.rate), (Code::Requirement, Some(20_000_000)), "{no:?}");
    exchange(client, server, &pattern(300_000, 3), &pattern(200_000, 5));
    pg.quiet();
    let (client, _) = ask(30_000_000).ask(pg.addr).unwrap_or_else(|no| panic!("{no:?}"));
    client.shutdown(Shutdown::Both).unwrap();
}

#[test]
fn hop_without_rate_promises_no_bandwidth() {
    let pg = Pg::start("pg1", ALLOW_ALL);
    let (_listener, addr) = destination();
    let requirements = Requirements { rate: Some(1), ..Requirements::default() };
    let no = Ask { requirements, ..Ask::to(addr) }.ask(pg.addr).unwrap_err();
    assert_eq!((no.code, no.limits.rate), (Code::Requirement, None), "{no:?}");
    assert!(no.reason.contains("has no rate"), "{no:?}");
}

/// Two gateways with a hop of this transport between them, whose ends both have the rate.
fn circuit(transport: &str, rate: &str) -> (Pg, Pg) {
    let (certificates, addrs) = (Certificates::new(), [address(), address()]);
    let tls = ["pg1", "pg2"].map(|name| certificates.issue(name));
    let peer = |name: &str, addr, min: u32| {
        format!(
            "[[peer]]\nname = \"{name}\"\naddress = \"{addr}\"\ntransport = \"{transport}\"\nprofile = \"circuit\"\n\
             pool = {{ min = {min} }}\n{ALLOW_ALL}[profile.circuit]\nrate = \"{rate}\"\n"
        )
    };
    let listener = format!(
        "[[listen]]\naddress = \"{}\"\ntransport = \"{transport}\"\nsecurity = \"encrypt\"\nprofile = \"circuit\"\n",
        addrs[1]
    );
    // The last hop must be able to promise the rate too.
    let last = "[profile.default]\nrate = \"1gbit\"\n";
    let second = Pg::start_at(addrs[1], "pg2", &format!("{}{listener}{}{last}", tls[1], peer("pg1", addrs[0], 0)));
    let route = "[[route]]\nto = \"*\"\nvia = \"pg2\"\n";
    let first = Pg::start_at(addrs[0], "pg1", &format!("{}{route}{}", tls[0], peer("pg2", addrs[1], 1)));
    first.until(|status| status.pools[0].idle > 0, "a connection is ready");
    (first, second)
}

#[test]
fn sessions_share_rate_of_quic_and_udt_hops() {
    for transport in ["quic", "udt"] {
        let (first, second) = circuit(transport, "40mbit");
        let sessions = two(&first);
        for rates in [paced(&first, 1), paced(&second, 0)] {
            assert!(rates.iter().sum::<u64>() <= 40_000_000, "{transport}: {rates:?}");
            assert!(rates.iter().all(|rate| *rate > 0), "{transport}: {rates:?}");
        }
        // Both sessions at once, in both directions: 2.5 MB each at 40 Mbit/s take one second together. The test does
        // not assert the time.
        let begin = Instant::now();
        std::thread::scope(|scope| {
            for (client, server) in sessions {
                scope.spawn(|| exchange(client, server, &pattern(2_500_000, 3), &pattern(2_500_000, 5)));
            }
        });
        assert!(begin.elapsed() > Duration::from_millis(850), "{transport}: {:?}", begin.elapsed());
    }
}

#[test]
fn bandwidth_is_promised_once_on_quic_and_udt_hops() {
    for transport in ["quic", "udt"] {
        let (first, second) = circuit(transport, "40mbit");
        let (listener, addr) = destination();
        let ask =
            |rate| Ask { requirements: Requirements { rate: Some(rate), ..Requirements::default() }, ..Ask::to(addr) };
        let (client, _) = ask(30_000_000).ask(first.addr).unwrap_or_else(|no| panic!("{no:?}"));
        let (server, _) = listener.accept().unwrap();
        for rates in [paced(&first, 1), paced(&second, 0)] {
            assert!((1..=30_000_000).contains(&rates[0]), "{transport}: {rates:?}");
        }
        let no = ask(20_000_000).ask(first.addr).unwrap_err();
        assert_eq!((no.code, no.limits.rate), (Code::Requirement, Some(10_000_000)), "{transport}: {no:?}");
        exchange(client, server, &pattern(300_000, 3), &pattern(200_000, 5));
        for gateway in [&first, &second] {
            gateway.quiet();
        }
        let (client, _) = ask(40_000_000).ask(first.addr).unwrap_or_else(|no| panic!("{no:?}"));
        client.shutdown(Shutdown::Both).unwrap();
    }
}
