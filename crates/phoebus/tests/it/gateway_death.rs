//! If a gateway dies, its sessions fail, and every end that is still open learns so (invariant 1, P23).

use crate::support;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use support::{Certificates, Gateway, PATIENCE, address, assert_reset, pair, session_over, wait_until};

/// The hops between gateways: every transport with every protection that it supports, and `auto` with a protection that
/// only QUIC supports.
const HOPS: [(&str, &str); 7] = [
    ("tcp", "none"),
    ("tcp", "auth"),
    ("tcp", "encrypt"),
    ("udt", "none"),
    ("udt", "encrypt"),
    ("quic", "encrypt"),
    ("auto", "none"),
];

/// Two gateways with a hop of one transport between them, and a beacon beside it if it is not TCP. The time-outs on
/// silence are longer than a test.
struct Pair {
    addrs: [SocketAddr; 2],
    texts: [String; 2],
    gateways: [Gateway; 2],
    _certificates: Certificates,
}

const NAMES: [&str; 2] = ["pg1", "pg2"];

impl Pair {
    /// A neighbour whose beacon was reset counts as dead after the time `silence` without a sign of life.
    fn by(transport: &str, security: &str, silence: &str) -> Self {
        const SILENCE: Duration = Duration::from_secs(600);
        assert!(SILENCE > 5 * PATIENCE);
        let certificates = Certificates::new();
        let needs_none = security == "none" && transport != "auto";
        let addrs = [address(), address()].map(|addr| SocketAddr::from((addr, 5006)));
        let (by, allowed) = if transport == "auto" { ("quic", "allowed = [\"quic\"]\n") } else { (transport, "") };
        let text = |n: usize| {
            let (addr, next, min) = (addrs[n], addrs[1 - n], 1 - n);
            let tls = if needs_none { String::new() } else { certificates.issue(NAMES[n]) };
            let listener = match by {
                "tcp" => String::new(),
                "quic" => format!("[[listen]]\naddress = \"{addr}\"\ntransport = \"quic\"\n"),
                _ => format!("[[listen]]\naddress = \"{addr}\"\ntransport = \"{by}\"\nsecurity = \"{security}\"\n"),
            };
            format!(
                "{tls}{listener}[[peer]]\nname = \"{}\"\naddress = \"{next}\"\ntransport = \"{transport}\"\n{allowed}\
                 security = \"{security}\"\nfrom = [\"127.0.0.0/8\"]\npool = {{ min = {min} }}\n\
                 [profile.default]\nidle_timeout = \"{}s\"\n[limits]\nsilence_timeout = \"{silence}\"\n",
                NAMES[1 - n],
                SILENCE.as_secs()
            )
        };
        let texts = [text(0), text(1)];
        let start = |n: usize| Gateway::start_at(addrs[n], NAMES[n], &texts[n]);
        let second = start(1);
        let first = start(0);
        if transport != "tcp" {
            first.wait_for_log("a beacon is lit");
        }
        Self { gateways: [first, second], addrs, texts, _certificates: certificates }
    }
}

/// Runs `test` over two gateways, with each transport between them: it gets the gateway to kill, and a session. First
/// the first gateway dies, then the second. If the transport does not show the death, the other gateway learns of it by
/// the beacon, not by a silence that the path could cause.
fn with_each_victim(test: impl Fn(&mut Gateway, TcpStream, TcpStream)) {
    for (transport, security) in HOPS {
        for first_dies in [true, false] {
            // The time within which a suspected neighbour has to answer. In this test, every neighbour with a reset
            // beacon is dead.
            let mut pair = Pair::by(transport, security, "300ms");
            let (client, destination) = session_over(&pair.addrs);
            let [first, second] = &mut pair.gateways;
            let (victim, other) = if first_dies { (first, &*second) } else { (second, &*first) };
            test(victim, client, destination);
            if transport != "tcp" {
                other.wait_for_log("the peer has died");
            }
        }
    }
}

#[test]
fn idle() {
    with_each_victim(|victim, mut client, mut destination| {
        victim.kill();
        assert_reset(&mut client, "client");
        assert_reset(&mut destination, "destination");
    });
}

#[test]
fn in_mid_stream() {
    with_each_victim(|victim, client, mut destination| {
        let stopped = AtomicBool::new(false);
        thread::scope(|scope| {
            let mut sender = client.try_clone().unwrap();
            let stopped = &stopped;
            scope.spawn(move || {
                let block = vec![7; 1 << 16];
                while sender.write_all(&block).is_ok() {}
                stopped.store(true, Ordering::Release);
            });
            let mut block = vec![0; 1 << 20];
            destination.read_exact(&mut block).unwrap();
            victim.kill();
            assert_reset(&mut destination, "destination");
            wait_until(|| stopped.load(Ordering::Acquire), || "the client's writes go on".into());
        });
        assert!(client.take_error().unwrap().is_none(), "the writer has met the error already");
    });
}

#[test]
fn paced() {
    with_each_victim(|victim, mut client, mut destination| {
        for _ in 0..5 {
            client.write_all(b"tick").unwrap();
            destination.read_exact(&mut [0; 4]).unwrap();
            thread::sleep(Duration::from_millis(20));
        }
        victim.kill();
        assert_reset(&mut destination, "destination");
        assert_reset(&mut client, "client");
    });
}

#[test]
fn half_closed_by_the_client() {
    with_each_victim(|victim, mut client, mut destination| {
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(destination.read(&mut [0; 1]).unwrap(), 0);
        destination.write_all(b"part of the answer").unwrap();
        client.read_exact(&mut [0; 18]).unwrap();
        victim.kill();
        assert_reset(&mut client, "client");
        // The destination has read the clean end of the client's stream, which had arrived. Its further writes fail.
        wait_until(|| failed(&mut destination), || "the destination's writes go on".into());
    });
}

#[test]
fn half_closed_by_the_destination() {
    with_each_victim(|victim, mut client, mut destination| {
        destination.shutdown(Shutdown::Write).unwrap();
        assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
        client.write_all(b"more of the request").unwrap();
        destination.read_exact(&mut [0; 19]).unwrap();
        victim.kill();
        assert_reset(&mut destination, "destination");
        wait_until(|| failed(&mut client), || "the client's writes go on".into());
    });
}

/// Whether a write fails with the reset.
fn failed(stream: &mut TcpStream) -> bool {
    match stream.write_all(b"x") {
        Ok(()) => false,
        Err(error) => {
            assert!(matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{error}");
            true
        }
    }
}

#[test]
fn restarted_gateway_is_told_from_its_predecessor() {
    // Over UDT, there is no other sign of it.
    for victim in [0, 1] {
        let mut pair = Pair::by("udt", "encrypt", "600s");
        let (mut client, mut destination) = session_over(&pair.addrs);
        // The other gateway checks only after the new process has started.
        pair.gateways[1 - victim].signal(libc::SIGSTOP);
        pair.gateways[victim].kill();
        let came_back = Gateway::start_at(pair.addrs[victim], NAMES[victim], &pair.texts[victim]);
        pair.gateways[1 - victim].signal(libc::SIGCONT);
        assert_reset(&mut client, "client");
        assert_reset(&mut destination, "destination");
        pair.gateways[1 - victim].wait_for_log("another process has taken its place");
        session_over(&pair.addrs);
        drop(came_back);
    }
}

#[test]
fn restarted_gateway_serves_new_sessions() {
    let (first, mut second) = pair("", "");
    let (mut client, _destination) = session_over(&[first.addr, second.addr]);
    let addr = second.addr;
    second.kill();
    assert_reset(&mut client, "client");
    let second = Gateway::start_at(addr, "pg2", "");
    // The first gateway's pool held connections to the dead process.
    for _ in 0..3 {
        session_over(&[first.addr, second.addr]);
    }
}
