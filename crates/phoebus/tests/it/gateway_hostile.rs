//! Input from strangers costs a gateway little, is counted, and harms nobody else (invariant 7).

use crate::support;
use phoebus_proto::endpoint::Endpoint;
use phoebus_proto::session::message::Hello;
use phoebus_proto::session::{Initiator, PREFACE};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use support::{Gateway, PATIENCE, address, connect_on, open, session, session_over, try_connect, wait_until};

/// The bytes received until the gateway ends the connection, cleanly or not.
fn answer(stream: &mut TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut all = Vec::new();
    let mut block = [0; 4096];
    while let Ok(n @ 1..) = stream.read(&mut block) {
        all.extend_from_slice(&block[..n]);
    }
    all
}

/// PREFACE, HELLO {0: 1, 1: 1, 2: 1} and what follows.
fn greeting(rest: &[u8]) -> Vec<u8> {
    [&PREFACE[..], &7u32.to_be_bytes(), b"\xa3\x00\x01\x01\x01\x02\x01", rest].concat()
}

#[test]
fn strangers_are_refused_while_others_work() {
    let gateway = Gateway::start("pg1", "[limits]\nhandshake_timeout = \"5s\"\n");
    let (mut client, mut destination) = session_over(&[gateway.addr]);
    let before = gateway.sockets();

    let garbage: Vec<u8> = (0..4096u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let long = [&PREFACE[..], &10_000_000u32.to_be_bytes(), &[0xa1; 1000]].concat();
    let malformed = greeting(b"\0\0\0\x03\xa1\x00\x04");
    let cases: [(&str, Vec<u8>); 6] = [
        ("garbage", garbage),
        ("an HTTP request", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec()),
        ("a TLS hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec()),
        ("a prefix of 10 MB", long),
        ("an OPEN without fields", malformed),
        ("a message of an unknown type", greeting(b"\0\0\0\x03\xa1\x00\x17")),
    ];
    for (what, bytes) in &cases {
        let mut stream = TcpStream::connect(gateway.addr).unwrap();
        let _ = stream.write_all(bytes);
        let said = answer(&mut stream);
        assert!(said.len() < 4096, "{what}: {} bytes came back", said.len());
    }
    // A port scan connects and closes. A slow-loris client sends a byte now and then, and is cut at the limit.
    for _ in 0..50 {
        drop(TcpStream::connect(gateway.addr).unwrap());
    }
    let mut slow = TcpStream::connect(gateway.addr).unwrap();
    let start = Instant::now();
    let mut bytes = greeting(&[0; 200]).into_iter();
    while let Some(byte) = bytes.next()
        && slow.write_all(&[byte]).is_ok()
        && start.elapsed() < PATIENCE
    {
        std::thread::sleep(Duration::from_millis(100));
    }
    let _ = answer(&mut slow);
    assert!(bytes.next().is_some(), "the slow peer was waited for");

    client.write_all(b"still here").unwrap();
    destination.read_exact(&mut [0; 10]).unwrap();
    session_over(&[gateway.addr]);
    wait_until(|| gateway.sockets() <= before, || format!("{} sockets, {before} before", gateway.sockets()));
    // All of the cases, the port scan, and the slow client.
    let expected = cases.len() as u64 + 51;
    let totals = || gateway.status()["totals"].clone();
    wait_until(
        || totals()["handshakes_failed"].as_u64().is_some_and(|counted| counted >= expected),
        || format!("{expected} are not counted: {}", totals()),
    );
    assert!(!gateway.log().contains("panicked"), "{}", gateway.log());
}

#[test]
fn pending_handshakes_of_one_source_are_limited() {
    let gateway = Gateway::start("pg1", "[limits]\nhandshakes_per_source = 8\nhandshake_timeout = \"10m\"\n");
    let held: Vec<TcpStream> = (0..40).map(|_| TcpStream::connect(gateway.addr).unwrap()).collect();
    let open = |stream: &&TcpStream| {
        stream.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
        matches!(stream.peek(&mut [0; 1]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
    };
    let kept = || held.iter().filter(open).count();
    wait_until(|| (1..=8).contains(&kept()), || format!("{} are kept waiting; expected some, up to the limit", kept()));
    drop(held);
    wait_until(|| connect_works(&gateway), || "the gateway serves nobody any more".into());
}

#[test]
fn unanswered_names_delay_only_their_client() {
    // A name server that does not answer.
    let silent = std::net::UdpSocket::bind((address(), 53)).unwrap();
    let resolver = format!("nameserver {}\n", silent.local_addr().unwrap().ip());
    let limits = "[limits]\nthreads = 1\nresolve_timeout = \"4s\"\n";
    let gateway = Gateway::start_with_resolver(&resolver, "pg1", limits);
    let asking: Vec<TcpStream> = (0..40)
        .map(|n| {
            let name: Endpoint = format!("n{n}.example:9").parse().unwrap();
            let open = open(session(), name.as_ref(), &[]);
            let asking = Initiator::connect(vec![0; 4096], Vec::new(), &Hello::of(""), None, &open).unwrap();
            let mut stream = TcpStream::connect(gateway.addr).unwrap();
            stream.write_all(asking.outgoing()).unwrap();
            stream
        })
        .collect();
    silent.set_read_timeout(Some(PATIENCE)).unwrap();
    silent.recv(&mut [0; 512]).unwrap();
    // Another user, at another address, requests a destination that needs no name server.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let name: Endpoint = format!("localhost:{}", listener.local_addr().unwrap().port()).parse().unwrap();
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&std::net::SocketAddr::from((address(), 0)).into()).unwrap();
    socket.connect(&gateway.addr.into()).unwrap();
    let answer = connect_on(socket.into(), session(), &[gateway.addr], &name).unwrap();
    assert!(answer.is_ok(), "{:?}", answer.err());
    drop(asking);
}

fn connect_works(gateway: &Gateway) -> bool {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let destination = listener.local_addr().unwrap().into();
    matches!(try_connect(session(), &[gateway.addr], &destination), Ok(Ok(_)))
}
