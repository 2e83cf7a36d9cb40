//! Certificates that are replaced or expire while connections are open: what was made with the old ones takes no new sessions, at
//! either end and over every transport that has certificates, and what is open on it ends in peace (P2, P9, invariant 1).

use crate::support;
use phoebus_proto::session::Code;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, SystemTime};
use support::{ALLOW_ALL, Ask, Certificates, Pg, address, destination, exchange, expect, pattern, session};

/// Transports and protections that prove who is at the other end.
const HOPS: [(&str, &str); 4] = [("tcp", "encrypt"), ("tcp", "auth"), ("udt", "encrypt"), ("quic", "encrypt")];

/// pg1 and pg2 with such a hop between them, and connections ready.
struct Pair {
    hop: (&'static str, &'static str),
    addrs: [SocketAddr; 2],
    certificates: Certificates,
    gateways: [Pg; 2],
}

impl Pair {
    /// The certificate of pg1 counts for `life`.
    fn start(hop: (&'static str, &'static str), life: Duration) -> Self {
        let (certificates, addrs) = (Certificates::new(), [address(), address()]);
        let tls = [certificates.issue_until("pg1", life), certificates.issue("pg2")];
        let text = |own: usize| Self::text(hop, addrs, own, &tls[own]);
        let second = Pg::start_at(addrs[1], "pg2", &text(1));
        let first = Pg::start_at(addrs[0], "pg1", &text(0));
        let pair = Self { hop, addrs, certificates, gateways: [first, second] };
        pair.until_ready();
        pair
    }

    fn text(hop: (&str, &str), addrs: [SocketAddr; 2], own: usize, tls: &str) -> String {
        let (transport, security) = hop;
        let listener = match (transport, own) {
            ("tcp", _) | (_, 0) => String::new(),
            _ => format!(
                "[[listen]]\naddress = \"{}\"\ntransport = \"{transport}\"\nsecurity = \"{security}\"\n",
                addrs[own]
            ),
        };
        let (other, addr) = (["pg2", "pg1"][own], addrs[1 - own]);
        // Only one of them connects, and has connections ready.
        let (by, min, route) = match own {
            0 => (transport, 2, "[[route]]\nto = \"*\"\nvia = \"pg2\"\n"),
            _ => ("tcp", 0, ""),
        };
        format!(
            "{tls}{listener}[[peer]]\nname = \"{other}\"\naddress = \"{addr}\"\ntransport = \"{by}\"\n\
             security = \"{security}\"\nfrom = [\"127.0.0.0/8\"]\npool = {{ min = {min} }}\n{route}{ALLOW_ALL}"
        )
    }

    fn reload(&self, own: usize) {
        let name = ["pg1", "pg2"][own];
        let tls = self.certificates.issue(name);
        self.gateways[own].reload(name, &Self::text(self.hop, self.addrs, own, &tls));
    }

    fn until_ready(&self) {
        // Streams of QUIC have one connection in common.
        let least = if self.hop.0 == "quic" { 1 } else { 2 };
        self.gateways[0].until(|status| status.pools[0].idle >= least, "connections are ready");
    }

    fn open(&self) -> (TcpStream, TcpStream) {
        let (client, server, report) = session(&self.gateways[0], |ask| ask);
        assert_eq!((report.carried[0].0.as_str(), report.carried[0].1.as_str()), self.hop);
        (client, server)
    }

    /// What is said to whoever asks for a session now.
    fn refused(&self) -> (Code, String) {
        let (_listener, addr) = destination();
        let no = Ask::to(addr).ask(self.gateways[0].addr).map(drop).expect_err("certificates are not those any more");
        (no.code, no.reason)
    }

    fn quiet(&self, clean: u64) {
        for gateway in &self.gateways {
            assert_eq!(gateway.quiet(), (clean, 0), "{:?}", self.hop);
        }
    }
}

fn both_ways((client, server): &mut (TcpStream, TcpStream), seed: u64) {
    for (from, to) in [(&*client, &*server), (&*server, &*client)] {
        let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
        let bytes = pattern(100_000, seed);
        std::thread::scope(|scope| {
            scope.spawn(|| from.write_all(&bytes).unwrap());
            expect(&mut to, &bytes);
        });
    }
}

/// Calls `test` for every hop, at the same time.
fn for_each(test: impl Fn((&'static str, &'static str)) + Sync) {
    std::thread::scope(|scope| {
        for hop in HOPS {
            let test = &test;
            std::thread::Builder::new().name(format!("{hop:?}")).spawn_scoped(scope, move || test(hop)).unwrap();
        }
    });
}

#[test]
fn a_replaced_authority_holds_for_connections_that_are_ready() {
    for_each(|hop| {
        // Once the one that connects has replaced it, once the one that is connected to.
        for own in [0, 1] {
            let mut pair = Pair::start(hop, Duration::from_secs(3600));
            let mut open = pair.open();
            both_ways(&mut open, 1);
            pair.until_ready();
            pair.certificates.replace_authority();
            pair.reload(own);
            for _ in 0..3 {
                let (code, reason) = pair.refused();
                assert_eq!(code, Code::AuthFailed, "{hop:?}, {own}: {reason}");
            }
            both_ways(&mut open, 2);
            pair.reload(1 - own);
            let mut next = pair.open();
            both_ways(&mut next, 3);
            both_ways(&mut open, 4);
            for (client, server) in [open, next] {
                exchange(client, server, &pattern(200_000, 5), &pattern(300_000, 6));
            }
            pair.quiet(2);
        }
    });
}

#[test]
fn certificates_that_are_renewed_cost_no_session() {
    for_each(|hop| {
        let pair = Pair::start(hop, Duration::from_secs(3600));
        let mut open = pair.open();
        for (turn, own) in [1, 0, 1].into_iter().enumerate() {
            pair.reload(own);
            // At once, on connections that are made anew, or that the peer has let go a moment ago.
            for _ in 0..3 {
                let (client, server) = pair.open();
                exchange(client, server, &pattern(50_000, 7), &pattern(60_000, 8));
            }
            both_ways(&mut open, turn as u64 + 1);
            pair.until_ready();
        }
        let (client, server) = open;
        exchange(client, server, b"up", b"down");
        pair.quiet(10);
    });
}

#[test]
fn an_expired_certificate_takes_no_sessions_on_connections_from_before() {
    for_each(|hop| {
        const LIFE: Duration = Duration::from_secs(20);
        let pair = Pair::start(hop, LIFE);
        let mut open = pair.open();
        both_ways(&mut open, 1);
        // It counts for LIFE from before the start, and to the end of that second.
        let until = SystemTime::now() + LIFE + Duration::from_secs(1);
        while let Ok(left) = until.duration_since(SystemTime::now()) {
            std::thread::sleep(left);
        }
        let (code, reason) = pair.refused();
        assert_eq!(code, Code::AuthFailed, "{hop:?}: {reason}");
        both_ways(&mut open, 2);
        pair.reload(0);
        let (client, server) = pair.open();
        exchange(client, server, &pattern(50_000, 3), &pattern(60_000, 4));
        let (client, server) = open;
        exchange(client, server, &pattern(50_000, 5), &pattern(60_000, 6));
        pair.quiet(2);
    });
}

#[test]
fn other_files_hold_for_connections_that_are_ready_too() {
    let mut pair = Pair::start(("tcp", "encrypt"), Duration::from_secs(3600));
    let mut open = pair.open();
    pair.until_ready();
    pair.certificates.replace_authority();
    let tls = pair.certificates.issue_as("elsewhere", "pg2", 365);
    pair.gateways[1].reload("pg2", &Pair::text(pair.hop, pair.addrs, 1, &tls));
    // The address is given up and had again meanwhile: until then nobody is there.
    let codes = std::iter::repeat_with(|| {
        std::thread::sleep(Duration::from_millis(50));
        pair.refused().0
    });
    assert_eq!(codes.take(1200).find(|code| *code != Code::Refused), Some(Code::AuthFailed));
    both_ways(&mut open, 1);
    pair.reload(0);
    let (client, server) = pair.open();
    exchange(client, server, b"up", b"down");
    let (client, server) = open;
    exchange(client, server, b"up", b"down");
    pair.quiet(2);
}

#[test]
fn a_reload_that_fails_leaves_the_certificates_as_they_are() {
    let pair = Pair::start(("tcp", "encrypt"), Duration::from_secs(3600));
    let (_taken, addr) = destination();
    let renewed = pair.certificates.issue_as("pg2", "pg2.example", 365);
    let text = Pair::text(pair.hop, pair.addrs, 1, &renewed);
    let error = pair.gateways[1].try_reload("pg2", &format!("{text}[[listen]]\naddress = \"{addr}\"\n")).unwrap_err();
    assert!(error.to_string().contains("address already in use"), "{error}");
    assert_eq!(pair.gateways[1].status().certificate.unwrap().names, ["pg2"]);
    let (client, server) = pair.open();
    exchange(client, server, b"up", b"down");
    // And without what was wrong it is taken.
    pair.gateways[1].reload("pg2", &text);
    assert_eq!(pair.gateways[1].status().certificate.unwrap().names, ["pg2.example"]);
    let (code, reason) = pair.refused();
    assert_eq!(code, Code::AuthFailed, "{reason}");
}
