//! Certificates that are replaced or expire while connections are open. Connections made with the old ones take no new
//! sessions, at either end and over every transport with certificates, and their open sessions finish normally (P2, P9,
//! invariant 1).

use crate::support;
use phoebus_proto::session::Code;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, SystemTime};
use support::{ALLOW_ALL, Ask, Certificates, Pg, address, destination, exchange, expect, pattern, session};

/// Transports and protections that authenticate the peer.
const HOPS: [(&str, &str); 4] = [("tcp", "encrypt"), ("tcp", "auth"), ("udt", "encrypt"), ("quic", "encrypt")];

/// pg1 and pg2 with such a hop between them, and ready connections.
struct Pair {
    hop: (&'static str, &'static str),
    addrs: [SocketAddr; 2],
    certificates: Certificates,
    gateways: [Pg; 2],
}

impl Pair {
    /// The certificate of pg1 is valid for `life`.
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
        // Only one of them connects and keeps connections ready.
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
        // QUIC streams share one connection.
        let least = if self.hop.0 == "quic" { 1 } else { 2 };
        self.gateways[0].until(|status| status.pools[0].idle >= least, "connections are ready");
    }

    fn open(&self) -> (TcpStream, TcpStream) {
        let (client, server, report) = session(&self.gateways[0], |ask| ask);
        assert_eq!((report.carried[0].0.as_str(), report.carried[0].1.as_str()), self.hop);
        (client, server)
    }

    /// The refusal of a new session.
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

/// Calls `test` for every hop concurrently.
fn for_each(test: impl Fn((&'static str, &'static str)) + Sync) {
    std::thread::scope(|scope| {
        for hop in HOPS {
            let test = &test;
            std::thread::Builder::new().name(format!("{hop:?}")).spawn_scoped(scope, move || test(hop)).unwrap();
        }
    });
}

#[test]
fn replaced_authority_applies_to_ready_connections() {
    for_each(|hop| {
        // Replace it first at the connecting end, then at the accepting end.
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
fn certificate_renewal_costs_no_session() {
    for_each(|hop| {
        let pair = Pair::start(hop, Duration::from_secs(3600));
        let mut open = pair.open();
        for (turn, own) in [1, 0, 1].into_iter().enumerate() {
            pair.reload(own);
            // At once, on new connections, or on ones that the peer has just closed.
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
fn expired_certificate_ends_reuse_of_connections() {
    for_each(|hop| {
        const LIFE: Duration = Duration::from_secs(20);
        let pair = Pair::start(hop, LIFE);
        let mut open = pair.open();
        both_ways(&mut open, 1);
        // The certificate is valid for LIFE from before the start, rounded up to a full second.
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
fn changed_certificate_files_apply_to_ready_connections() {
    let mut pair = Pair::start(("tcp", "encrypt"), Duration::from_secs(3600));
    let mut open = pair.open();
    pair.until_ready();
    pair.certificates.replace_authority();
    let tls = pair.certificates.issue_as("elsewhere", "pg2", 365);
    pair.gateways[1].reload("pg2", &Pair::text(pair.hop, pair.addrs, 1, &tls));
    // The address is closed and bound again; until then, nothing listens.
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
fn failed_reload_keeps_certificates() {
    let pair = Pair::start(("tcp", "encrypt"), Duration::from_secs(3600));
    let (_taken, addr) = destination();
    let renewed = pair.certificates.issue_as("pg2", "pg2.example", 365);
    let text = Pair::text(pair.hop, pair.addrs, 1, &renewed);
    let error = pair.gateways[1].try_reload("pg2", &format!("{text}[[listen]]\naddress = \"{addr}\"\n")).unwrap_err();
    assert!(error.to_string().contains("address already in use"), "{error}");
    assert_eq!(pair.gateways[1].status().certificate.unwrap().names, ["pg2"]);
    let (client, server) = pair.open();
    exchange(client, server, b"up", b"down");
    // Without the error, the reload succeeds.
    pair.gateways[1].reload("pg2", &text);
    assert_eq!(pair.gateways[1].status().certificate.unwrap().names, ["pg2.example"]);
    let (code, reason) = pair.refused();
    assert_eq!(code, Code::AuthFailed, "{reason}");
}
