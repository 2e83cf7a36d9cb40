//! Sessions over every pair of transports. pg1 and pg2 share one hop, pg2 and pg3 another, so that pg2 relays from one
//! transport to the other (S12, S15, S21, S22, P22).

use crate::support;
use phoebus_gateway::Status;
use phoebus_proto::session::Code;
use std::io::{Read, Write};
use std::net::{Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::Duration;
use support::{ALLOW_ALL, Ask, Certificates, Pg, address, assert_reset, destination, exchange, expect, pattern, reset};

/// A hop between two gateways.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct By {
    transport: &'static str,
    security: &'static str,
}

pub(crate) const HOPS: [By; 6] = [
    By { transport: "tcp", security: "none" },
    By { transport: "udt", security: "none" },
    By { transport: "tcp", security: "encrypt" },
    By { transport: "udt", security: "encrypt" },
    By { transport: "tcp", security: "auth" },
    By { transport: "quic", security: "encrypt" },
];

impl By {
    /// A `[[peer]]` section with `min` ready connections.
    fn peer(self, name: &str, addr: SocketAddr, min: u32) -> String {
        let Self { transport, security } = self;
        format!(
            "[[peer]]\nname = \"{name}\"\naddress = \"{addr}\"\ntransport = \"{transport}\"\nsecurity = \"{security}\"\n\
             from = [\"127.0.0.0/8\"]\npool = {{ min = {min} }}\n"
        )
    }

    /// A listener in addition to that of TCP.
    fn listener(self, addr: SocketAddr) -> String {
        if self.transport == "tcp" {
            return String::new();
        }
        let Self { transport, security } = self;
        format!("[[listen]]\naddress = \"{addr}\"\ntransport = \"{transport}\"\nsecurity = \"{security}\"\n")
    }
}

/// Gateways pg1, pg2, … with these hops between them, each ready for sessions to everything behind it.
pub(crate) fn line(hops: &[By]) -> Vec<Pg> {
    line_at(hops, &(0..=hops.len()).map(|_| address()).collect::<Vec<_>>())
}

/// The same at these addresses.
fn line_at(hops: &[By], addrs: &[SocketAddr]) -> Vec<Pg> {
    let certificates = Certificates::new();
    let mut gateways: Vec<Pg> = Vec::new();
    for n in (0..addrs.len()).rev() {
        let mut text = String::new();
        if hops.iter().any(|hop| hop.security != "none") {
            text += &certificates.issue(&format!("pg{}", n + 1));
        }
        if n > 0 {
            text += &hops[n - 1].listener(addrs[n]);
            text += &hops[n - 1].peer(&format!("pg{n}"), addrs[n - 1], 0);
        }
        if n < hops.len() {
            let next = format!("pg{}", n + 2);
            text += &hops[n].peer(&next, addrs[n + 1], 1);
            text += &format!("[[route]]\nto = \"*\"\nvia = \"{next}\"\n");
        }
        text += "[[allow]]\nfrom = [\"::1\"]\nto = [\"127.0.0.0/8\"]\n[datagrams]\naddresses = [\"0.0.0.0:0\"]\n";
        gateways.push(Pg::start_at(addrs[n], &format!("pg{}", n + 1), &(text + ALLOW_ALL)));
        if n < hops.len() {
            let next = |status: &Status| status.pools.iter().any(|pool| pool.idle > 0);
            gateways.last().unwrap().until(next, "a connection is ready");
        }
    }
    gateways.reverse();
    gateways
}

/// Calls `test` for each of these pairs of hops, with the three gateways that they join.
fn for_each(pairs: impl Iterator<Item = [By; 2]>, test: impl Fn(&[Pg], [By; 2])) {
    for pair in pairs {
        println!("{pair:?}");
        test(&line(&pair), pair);
    }
}

/// All pairs of hops.
fn all_pairs() -> impl Iterator<Item = [By; 2]> {
    HOPS.into_iter().flat_map(|first| HOPS.map(|second| [first, second]))
}

/// Pairs in which every hop is once the first and once the second.
fn some_pairs() -> impl Iterator<Item = [By; 2]> {
    (0..HOPS.len()).map(|n| [HOPS[n], HOPS[(n + 1) % HOPS.len()]])
}

/// Opens a session from the first gateway over all others.
fn session(gateways: &[Pg]) -> (TcpStream, TcpStream, support::Report) {
    support::session(&gateways[0], |ask| ask)
}

#[test]
fn session_delivers_all_bytes_and_half_closes() {
    for_each(all_pairs(), |gateways, hops| {
        let sizes = [(0, 0), (1, 0), (0, 70_001), (3_000_017, 15), (1_234_567, 2_345_679)];
        for (turn, (up, down)) in sizes.into_iter().enumerate() {
            let (client, server, report) = session(gateways);
            for (told, by) in report.carried.iter().zip(hops) {
                assert_eq!((told.0.as_str(), told.1.as_str()), (by.transport, by.security));
            }
            assert_eq!(report.carried[2].0, "tcp", "the destination's own hop");
            exchange(client, server, &pattern(up, 7 + turn as u64), &pattern(down, 90 + turn as u64));
            for (n, gateway) in gateways.iter().enumerate() {
                assert_eq!(gateway.quiet(), (turn as u64 + 1, 0), "pg{}", n + 1);
            }
        }
    });
}

#[test]
fn half_closed_session_stays_open() {
    for_each(some_pairs(), |gateways, _| {
        let (mut client, mut server, _) = session(gateways);
        client.write_all(b"question").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut question = Vec::new();
        server.read_to_end(&mut question).unwrap();
        assert_eq!(question, b"question");
        for part in 0..20 {
            let answer = pattern(10_000, part + 1);
            server.write_all(&answer).unwrap();
            expect(&mut client, &answer);
        }
        drop(server);
        assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
    });
}

#[test]
fn reset_reaches_other_end_and_hop_serves_next_session() {
    for_each(some_pairs(), |gateways, _| {
        for turn in 0..4 {
            let (mut client, mut server, _) = session(gateways);
            client.write_all(&pattern(100_000, 5)).unwrap();
            expect(&mut server, &pattern(100_000, 5));
            let (ended, mut other) = if turn % 2 == 0 { (client, server) } else { (server, client) };
            reset(ended);
            assert_reset(&mut other);
            let (client, server, _) = session(gateways);
            exchange(client, server, &pattern(50_000, 1), &pattern(60_000, 2));
            for gateway in gateways {
                assert_eq!(gateway.quiet(), (turn + 1, turn + 1));
            }
        }
    });
}

#[test]
fn stalled_receiver_stalls_sender_over_every_transport() {
    for_each(some_pairs(), |gateways, _| {
        let (listener, addr) = destination();
        let (client, _) = Ask::to(addr).ask(gateways[0].addr).unwrap_or_else(|no| panic!("{no:?}"));
        let (mut server, _) = listener.accept().unwrap();
        client.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
        let mut source = client.try_clone().unwrap();
        let block = pattern(1 << 20, 3);
        let mut sent = 0;
        // More than all buffers between the two: those of two UDT hops, and the kernel's.
        let stopped = loop {
            match source.write(&block[sent % block.len()..]) {
                Ok(n) => sent += n,
                Err(error) => break error,
            }
            assert!(sent < 1 << 30, "nothing stops the sender");
        };
        assert_eq!(stopped.kind(), std::io::ErrorKind::WouldBlock);
        client.shutdown(Shutdown::Write).unwrap();
        let (mut got, mut part) = (0, vec![0; 1 << 16]);
        loop {
            let n = server.read(&mut part).unwrap();
            if n == 0 {
                break;
            }
            let as_sent = part[..n].iter().enumerate().all(|(i, byte)| *byte == block[(got + i) % block.len()]);
            assert!(as_sent, "within {n} bytes at {got}");
            got += n;
        }
        assert_eq!(got, sent);
    });
}

/// A port of ::1 that is free for TCP and UDP, and stays so because it is below the kernel's ephemeral range.
fn port_of_ipv6() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Concurrent test processes start far from each other.
    let begin = std::process::id().wrapping_mul(997) as u16;
    loop {
        let port = 10_240 + begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % 20_000;
        let addr = SocketAddr::from((Ipv6Addr::LOCALHOST, port));
        if TcpListener::bind(addr).is_ok() && UdpSocket::bind(addr).is_ok() {
            return addr;
        }
    }
}

#[test]
fn every_transport_works_over_ipv6() {
    for hop in HOPS {
        println!("{hop:?}");
        let gateways = line_at(&[hop], &[port_of_ipv6(), port_of_ipv6()]);
        let (client, server, report) = session(&gateways);
        assert_eq!((report.carried[0].0.as_str(), report.carried[0].1.as_str()), (hop.transport, hop.security));
        exchange(client, server, &pattern(500_000, 7), &pattern(600_000, 9));
        gateways.iter().for_each(|gateway| assert_eq!(gateway.quiet(), (1, 0)));
    }
}

#[test]
fn gateway_splices_only_between_unencrypted_sockets() {
    for hop in HOPS {
        let gateways = line(&[hop]);
        let (client, server, _) = session(&gateways);
        exchange(client, server, &pattern(3 << 20, 1), &pattern(2 << 20, 2));
        for gateway in &gateways {
            gateway.quiet();
            // Pipes are created on first use, and only splicing needs one.
            let pipes = gateway.status().pipes.0;
            assert_eq!(pipes > 0, hop.transport == "tcp" && hop.security != "encrypt", "{hop:?}: {pipes} pipes");
        }
    }
}

#[test]
fn status_shows_transport_counters_of_hop() {
    for hop in HOPS {
        let gateways = line(&[hop]);
        let (client, mut server, _) = session(&gateways);
        let stopped = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut to, block) = (&client, vec![7; 1 << 16]);
                while !stopped.load(Ordering::Relaxed) {
                    to.write_all(&block).unwrap();
                }
                to.shutdown(Shutdown::Write).unwrap();
            });
            scope.spawn(|| {
                let mut got = vec![0; 1 << 16];
                while server.read(&mut got).unwrap() > 0 {}
                server.shutdown(Shutdown::Write).unwrap();
            });
            let _stop = Stop(&stopped);
            let knows = |status: &Status| {
                let stats = status.sessions[0].hops[1].stats.as_ref().unwrap();
                let times = stats.rtt_us > 0 && stats.rtt_var_us > 0 && stats.min_rtt_us > 0;
                let counts = stats.bytes_acked > 1 << 20 && stats.bytes_sent >= stats.bytes_acked;
                let windows = stats.in_flight > 0 && stats.congestion_window > 0 && stats.segment_size > 500;
                times && counts && windows && stats.delivery_rate > 0 && stats.send_buffer > 0 && !stats.closed
            };
            let status = gateways[0].until(knows, &format!("{hop:?}: all is known"));
            let stats = status.sessions[0].hops[1].stats.clone().unwrap();
            // The mean may stay below the recent minimum only until it has caught up.
            assert!(stats.min_rtt_us < 1_000_000 && stats.rtt_us < 60_000_000, "{hop:?}: {stats:?}");
            let received = |status: &Status| {
                let stats = status.sessions[0].hops[0].stats.as_ref().unwrap();
                stats.bytes_received > 1 << 20 && stats.receive_buffer > 0
            };
            gateways[1].until(received, &format!("{hop:?}: what came is counted"));
        });
        assert_eq!(gateways[0].quiet().1, 0, "{hop:?}");
    }
}

/// Stops the sender of a test on drop, even if the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn configured_transport_is_never_replaced() {
    for by in HOPS.into_iter().filter(|by| by.transport != "tcp") {
        for is_filtered in [false, true] {
            let (certificates, addrs) = (Certificates::new(), [address(), address()]);
            let tls = ["pg1", "pg2"].map(|name| certificates.issue(name));
            // TCP would be available there.
            let tcp = By { transport: "tcp", ..by };
            let second = format!("{}{}{ALLOW_ALL}", tls[1], tcp.peer("pg1", addrs[0], 0));
            let second = Pg::start_at(addrs[1], "pg2", &second);
            // This socket never answers.
            let _hole = is_filtered.then(|| UdpSocket::bind(addrs[1]).unwrap());
            let first = format!(
                "{}{}[[route]]\nto = \"*\"\nvia = \"pg2\"\n{ALLOW_ALL}[limits]\nhandshake_timeout = \"2s\"\n",
                tls[0],
                by.peer("pg2", addrs[1], 0)
            );
            let first = Pg::start_at(addrs[0], "pg1", &first);
            let (_listener, addr) = destination();
            let no = Ask::to(addr).ask(first.addr).map(drop).expect_err("nobody listens for that transport");
            assert!(matches!(no.code, Code::Refused | Code::TimedOut), "{by:?}, filtered: {is_filtered}: {no:?}");
            assert_eq!(no.hop, "pg2");
            let status = first.status();
            assert_eq!((status.pools[0].transport.as_str(), status.totals.sessions_opened), (by.transport, 0));
            assert_eq!(second.status().totals.sessions_opened, 0);
        }
    }
}
