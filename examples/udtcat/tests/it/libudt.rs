//! `udtcat` against Debian's libudt: as client and as server, in both directions, over IPv4 and IPv6, in rendezvous
//! mode, with other packet sizes, and when one of the two dies (S17, U9).

#[path = "../../../../crates/gridftp/tests/it/support/works.rs"]
mod works;

use crate::support;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use support::{Peer, address, drain, drain_seen, feed, feed_seen, libudt, udtcat, until_moving};
use works::works;

/// The connection type, in the notes for `docs/interop.md`.
const UDT: &str = "UDT";
/// A smaller amount, for tests whose point is the connection mode.
const SOME: u64 = 32 << 20;

/// For long transfers, in which buffers fill and drain many times.
fn many() -> u64 {
    if std::env::var_os("PHOEBUS_SOAK").is_some() { 1 << 30 } else { 256 << 20 }
}

fn libudt_peer(what: &str, role: &str, addr: SocketAddr, bytes: u64, more: &[String]) -> Peer {
    let mut command = Command::new(libudt());
    command.args([what, role, &addr.ip().to_string(), &addr.port().to_string(), &bytes.to_string()]).args(more);
    Peer::start(command)
}

fn cat(addr: SocketAddr, arguments: &[&str]) -> Peer {
    let mut command = Command::new(udtcat());
    command.arg(addr.to_string()).args(arguments);
    Peer::start(command)
}

/// libudt sends, `udtcat` receives.
fn from_libudt(mut libudt: Peer, mut cat: Peer, bytes: u64) {
    assert_eq!(drain(cat.stdout()), bytes);
    cat.succeeds();
    libudt.succeeds();
}

/// `udtcat` sends, libudt receives.
fn to_libudt(mut libudt: Peer, mut cat: Peer, bytes: u64) {
    feed(cat.stdin(), bytes);
    cat.succeeds();
    libudt.succeeds();
}

fn length(bytes: u64) -> Vec<String> {
    vec!["--receive".to_owned(), "--length".to_owned(), bytes.to_string()]
}

fn receiver(addr: SocketAddr, bytes: u64, more: &[&str]) -> Peer {
    let length = length(bytes);
    let mut arguments: Vec<&str> = length.iter().map(String::as_str).collect();
    arguments.extend(more);
    cat(addr, &arguments)
}

fn any(ip: impl Into<IpAddr>) -> SocketAddr {
    SocketAddr::new(ip.into(), 0)
}

fn libudt_serves(ip: impl Into<IpAddr>, bytes: u64, more: &[&str]) {
    libudt_serves_by(["send", "receive"], ip, bytes, more);
}

/// Both directions, with these modes of the libudt peer.
fn libudt_serves_by([send, receive]: [&str; 2], ip: impl Into<IpAddr>, bytes: u64, more: &[&str]) {
    let ip = ip.into();
    let mut server = libudt_peer(send, "listen", any(ip), bytes, &[]);
    let addr = SocketAddr::new(ip, server.libudt_port());
    from_libudt(server, receiver(addr, bytes, more), bytes);

    let mut server = libudt_peer(receive, "listen", any(ip), bytes, &[]);
    let addr = SocketAddr::new(ip, server.libudt_port());
    let mut arguments = vec!["--send"];
    arguments.extend(more);
    to_libudt(server, cat(addr, &arguments), bytes);
}

fn libudt_connects(ip: impl Into<IpAddr>, bytes: u64, more: &[String]) {
    libudt_connects_by(["send", "receive"], ip, bytes, more);
}

fn libudt_connects_by([send, receive]: [&str; 2], ip: impl Into<IpAddr>, bytes: u64, more: &[String]) {
    let ip = ip.into();
    let mut server = receiver(any(ip), bytes, &["--listen"]);
    let addr = server.udtcat_addr();
    from_libudt(libudt_peer(send, "connect", addr, bytes, more), server, bytes);

    let mut server = cat(any(ip), &["--listen", "--send"]);
    let addr = server.udtcat_addr();
    to_libudt(libudt_peer(receive, "connect", addr, bytes, more), server, bytes);
}

#[test]
fn udtcat_exchanges_files_with_libudts_file_calls() {
    let calls = ["send-file", "receive-file"];
    libudt_serves_by(calls, address(), SOME, &[]);
    libudt_connects_by(calls, address(), SOME, &[]);
    // Less than a packet, and nothing.
    libudt_serves_by(calls, address(), 7, &[]);
    works("libudt, sendfile and recvfile", "udtcat", UDT, "bytes");
}

#[test]
fn libudt_server_exchanges_many_bytes_each_way() {
    libudt_serves(address(), many(), &[]);
    works("libudt, send and recv", "udtcat", UDT, "bytes");
}

#[test]
fn libudt_client_exchanges_many_bytes_each_way() {
    libudt_connects(address(), many(), &[]);
}

#[test]
fn every_congestion_control_works_with_libudt() {
    for control in [&["--control=native"][..], &["--control=fixed", "--rate=200mbit"], &["--rate=300mbit"]] {
        libudt_serves(address(), SOME, control);
    }
}

#[test]
fn udtcat_and_libudt_connect_over_ipv6() {
    libudt_serves(Ipv6Addr::LOCALHOST, SOME, &[]);
    libudt_connects(Ipv6Addr::LOCALHOST, SOME, &[]);
    works("libudt, send and recv", "udtcat", UDT, "ipv6");
}

#[test]
fn udtcat_and_libudt_agree_on_the_packet_size() {
    // The smaller of the two sizes applies, whichever side has it.
    for mss in ["576", "9000"] {
        libudt_serves(address(), SOME, &["--mss", mss]);
        libudt_connects(address(), SOME, &[mss.to_owned()]);
    }
}

#[test]
fn udtcat_and_libudt_connect_in_a_rendezvous() {
    for sends in [true, false] {
        let ip: IpAddr = address().into();
        // libudt must know the peer's port before it connects: take two ports that are free now.
        let free = || std::net::UdpSocket::bind(any(ip)).unwrap().local_addr().unwrap();
        let (here, there) = (free(), free());
        let what = if sends { "receive" } else { "send" };
        let libudt = libudt_peer(what, "meet", here, SOME, &["0".to_owned(), there.port().to_string()]);
        let rendezvous = format!("--rendezvous={here}");
        if sends {
            to_libudt(libudt, cat(there, &[&rendezvous, "--send", "--timeout=30s"]), SOME);
        } else {
            from_libudt(libudt, receiver(there, SOME, &[&rendezvous, "--timeout=30s"]), SOME);
        }
    }
    // And a file.
    let ip: IpAddr = address().into();
    let free = || std::net::UdpSocket::bind(any(ip)).unwrap().local_addr().unwrap();
    let (here, there) = (free(), free());
    let libudt = libudt_peer("send-file", "meet", here, SOME, &["0".to_owned(), there.port().to_string()]);
    from_libudt(libudt, receiver(there, SOME, &[&format!("--rendezvous={here}"), "--timeout=30s"]), SOME);
    works("libudt, send and recv", "udtcat", UDT, "rendezvous");
    works("libudt, sendfile and recvfile", "udtcat", UDT, "rendezvous");
}

#[test]
fn udtcat_reports_a_peer_that_closes_early() {
    let ip = address();
    // The peer sends less than agreed, and shuts down normally.
    let mut server = libudt_peer("send", "listen", any(ip), SOME, &[]);
    let addr = SocketAddr::new(ip.into(), server.libudt_port());
    let mut short = receiver(addr, SOME + 1, &[]);
    assert_eq!(drain(short.stdout()), SOME);
    short.fails(4, "33554432 bytes arrived, 33554433 were expected: connection reset by peer");
    server.succeeds();

    // No length was given.
    let mut server = libudt_peer("send", "listen", any(ip), SOME, &[]);
    let addr = SocketAddr::new(ip.into(), server.libudt_port());
    let mut unknowing = cat(addr, &["--receive"]);
    assert_eq!(drain(unknowing.stdout()), SOME);
    unknowing.fails(3, "does not tell whether that was all");
    server.succeeds();
}

#[test]
fn udtcat_reports_a_killed_peer() {
    // Both tests wait for the timeout concurrently.
    let ip = address();
    let mut server = libudt_peer("receive", "listen", any(ip), many(), &[]);
    let addr = SocketAddr::new(ip.into(), server.libudt_port());
    let mut sender = cat(addr, &["--send", "--rate=50mbit"]);
    let input = sender.stdin();
    let (fed, drained) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
    let seen = fed.clone();
    let feeder = std::thread::spawn(move || feed_seen(input, SOME, &seen));

    let mut receiver = receiver(any(ip), many(), &["--listen"]);
    let addr = receiver.udtcat_addr();
    let mut client = libudt_peer("send", "connect", addr, many(), &[]);
    let output = receiver.stdout();
    let seen = drained.clone();
    let drainer = std::thread::spawn(move || drain_seen(output, &seen));

    until_moving(&fed);
    until_moving(&drained);
    server.kill();
    client.kill();
    sender.fails(4, "were not acknowledged: connection timed out");
    receiver.fails(4, "were expected: connection timed out");
    feeder.join().unwrap();
    assert!(drainer.join().unwrap() < many());
}
