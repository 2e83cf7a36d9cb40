//! Sessions over every pair of transports: pg1 and pg2 share one hop, pg2 and pg3 another, so that pg2 relays from one transport
//! to the other (S12, S15, S21, S22, P22).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;
use support::{ALLOW_ALL, Ask, Certificates, Pg, address, assert_reset, destination, exchange, expect, pattern, reset};

/// A hop between two gateways.
#[derive(Debug, Clone, Copy, PartialEq)]
struct By {
    transport: &'static str,
    security: &'static str,
}

const HOPS: [By; 6] = [
    By { transport: "tcp", security: "none" },
    By { transport: "udt", security: "none" },
    By { transport: "tcp", security: "encrypt" },
    By { transport: "udt", security: "encrypt" },
    By { transport: "tcp", security: "auth" },
    By { transport: "quic", security: "encrypt" },
];

impl By {
    /// A peer's section; `min` connections are kept ready.
    fn peer(self, name: &str, addr: SocketAddr, min: u32) -> String {
        let Self { transport, security } = self;
        format!(
            "[[peer]]\nname = \"{name}\"\naddress = \"{addr}\"\ntransport = \"{transport}\"\nsecurity = \"{security}\"\n\
             from = [\"127.0.0.0/8\"]\npool = {{ min = {min} }}\n"
        )
    }

    /// The listener beside that of TCP.
    fn listener(self, addr: SocketAddr) -> String {
        if self.transport == "tcp" {
            return String::new();
        }
        let Self { transport, security } = self;
        format!("[[listen]]\naddress = \"{addr}\"\ntransport = \"{transport}\"\nsecurity = \"{security}\"\n")
    }
}

/// Gateways pg1, pg2, … with these hops between them, each ready for sessions to all that lies behind it.
fn line(hops: &[By]) -> Vec<Pg> {
    let addrs: Vec<_> = (0..=hops.len()).map(|_| address()).collect();
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
        gateways.push(Pg::start_at(addrs[n], &format!("pg{}", n + 1), &(text + ALLOW_ALL)));
        if n < hops.len() {
            let next = |status: &phoebus_gateway::Status| status.pools.iter().any(|pool| pool.idle > 0);
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

/// Every hop beside every other.
fn all_pairs() -> impl Iterator<Item = [By; 2]> {
    HOPS.into_iter().flat_map(|first| HOPS.map(|second| [first, second]))
}

/// Every hop once as the first and once as the second.
fn some_pairs() -> impl Iterator<Item = [By; 2]> {
    (0..HOPS.len()).map(|n| [HOPS[n], HOPS[(n + 1) % HOPS.len()]])
}

/// A session over all gateways, from the first.
fn session(gateways: &[Pg]) -> (TcpStream, TcpStream, support::Report) {
    support::session(&gateways[0], |ask| ask)
}

#[test]
fn every_byte_arrives_and_each_side_ends_by_itself() {
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
fn one_side_ends_long_before_the_other() {
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
fn an_abort_reaches_the_other_end_and_the_hop_serves_the_next() {
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
fn a_receiver_that_stops_stops_the_sender_and_loses_nothing() {
    for_each(some_pairs(), |gateways, _| {
        let (listener, addr) = destination();
        let (client, _) = Ask::to(addr).ask(gateways[0].addr).unwrap_or_else(|no| panic!("{no:?}"));
        let (mut server, _) = listener.accept().unwrap();
        client.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
        let mut source = client.try_clone().unwrap();
        let block = pattern(1 << 20, 3);
        let mut sent = 0;
        // More than all buffers between the two together: those of two UDT hops, and of the kernel.
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
