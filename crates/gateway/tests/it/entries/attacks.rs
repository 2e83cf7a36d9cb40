//! Programs that mean harm, or are broken.

use super::{ALL, BY, By, No, connect, http_answer, http_request, session, socks_request};
use crate::support::{ALLOW_ALL, PATIENCE, Pg, destination, expect};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Instant;

/// Rules that refuse other destinations than those on loopback.
const ALLOW_LOOPBACK: &str = "[[allow]]\nfrom = [\"127.0.0.0/8\"]\nto = [\"127.0.0.0/8\"]\n";

/// Reads what there is, to an end or a reset.
fn rest(mut stream: &TcpStream) -> Vec<u8> {
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    rest
}

fn hasty() -> Pg {
    Pg::start("pg1", &format!("{ALL}[limits]\nhandshake_timeout = \"400ms\"\n{ALLOW_ALL}"))
}

#[test]
fn slow_requests_end_at_the_deadline_although_bytes_keep_coming() {
    let pg = hasty();
    let long = format!("CONNECT a:1 HTTP/1.1\r\nX: {}", "a".repeat(8000));
    let slow = [&[5, 255][..], &[1; 200]].concat();
    for (bytes, answer) in [(long.as_bytes(), "HTTP/1.1 408 "), (&slow[..], "")] {
        let stream = connect(&pg);
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| {
                for byte in bytes.chunks(1) {
                    if (&stream).write_all(byte).is_err() {
                        return;
                    }
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
                panic!("the gateway has read all of it");
            });
            let said = rest(&stream);
            assert!(said.starts_with(answer.as_bytes()), "{said:?}");
            stream.shutdown(Shutdown::Both).unwrap_or_default();
            sender.join().unwrap();
        });
    }
    // Nothing at all.
    assert!(rest(&connect(&pg)).is_empty());
    pg.until(|status| status.handshakes == 0 && status.totals.handshakes_failed == 3, "they are gone");
}

#[test]
fn endless_heads_and_garbage_are_refused() {
    let pg = Pg::start("pg1", &format!("{ALL}{ALLOW_ALL}"));
    for (begin, status) in [("CONNECT a:1 HTTP/1.1\r\nX: ", 431), ("GET / HTTP/1.1\r\nX: ", 431)] {
        let mut stream = connect(&pg);
        stream.write_all(format!("{begin}{}", "a".repeat(64 << 10)).as_bytes()).unwrap();
        assert!(matches!(http_answer(stream).unwrap_err(), No::Http(got, _) if got == status));
    }
    for first in [0x05, b'C', 0x00, 0x16, 0xff] {
        let stream = connect(&pg);
        let mut garbage = crate::support::pattern(64 << 10, 7);
        garbage[0] = first;
        let _ = (&stream).write_all(&garbage);
        let _ = stream.shutdown(Shutdown::Write);
        rest(&stream);
    }
    pg.until(|status| status.handshakes == 0, "they are gone");
    session(By::Http, &pg);
}

#[test]
fn pipelined_bytes_belong_to_the_tunnel_and_only_once_it_is_open() {
    let pg = Pg::start("pg1", &format!("{ALL}{ALLOW_LOOPBACK}"));
    let (listener, addr) = destination();
    let host = addr.ip().to_string();
    let second = http_request("127.0.0.1", 1, "");
    for by in BY {
        let mut stream = connect(&pg);
        let request = match by {
            By::Http => http_request(&host, addr.port(), "").into_bytes(),
            By::Socks => [&[5, 1, 0][..], &socks_request(&host, addr.port())].concat(),
        };
        stream.write_all(&[&request, second.as_bytes()].concat()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        expect(&mut server, second.as_bytes());
        let answer = match by {
            By::Http => &b"HTTP/1.1 200 Connection established\r\n\r\n"[..],
            By::Socks => &[5, 0, 5, 0, 0, 1, 0, 0, 0, 0, 0, 0],
        };
        expect(&mut stream, answer);
        server.write_all(b"x").unwrap();
        expect(&mut stream, b"x");
    }
    // Behind a refusal, they are nobody's.
    let mut stream = connect(&pg);
    let refused = http_request("192.0.2.1", 1, "");
    stream.write_all(format!("{refused}{}", http_request(&host, addr.port(), "")).as_bytes()).unwrap();
    assert!(matches!(http_answer(stream).unwrap_err(), No::Http(403, _)));
    listener.set_nonblocking(true).unwrap();
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn odd_hosts_and_bodies_are_refused() {
    let pg = Pg::start("pg1", &format!("{ALL}{ALLOW_ALL}"));
    let (listener, addr) = destination();
    let (host, port) = (addr.ip().to_string(), addr.port());
    let ask = |request: String| {
        let mut stream = connect(&pg);
        stream.write_all(request.as_bytes()).unwrap();
        match http_answer(stream).unwrap_err() {
            No::Http(status, _) => status,
            no => panic!("{no:?}"),
        }
    };
    for (request, status) in [
        (http_request(&host, port, "Content-Length: 3\r\n") + "abc", 400),
        (http_request(&host, port, "Transfer-Encoding: chunked\r\n") + "0\r\n\r\n", 400),
        (format!("CONNECT {host}:{port}\nX: y HTTP/1.1\r\nHost: a\r\n\r\n"), 400),
        (format!("CONNECT {host}%0d%0aX:{port} HTTP/1.1\r\nHost: a\r\n\r\n"), 400),
        (format!("CONNECT {}:{port} HTTP/1.0\r\n\r\n", "a".repeat(255)), 400),
        (format!("GET http://{host}:{port}/ HTTP/1.1\r\nHost: {host}\r\n\r\n"), 405),
        (format!("POST http://{host}:{port}/ HTTP/1.1\r\nHost: {host}\r\nContent-Length: 3\r\n\r\nabc"), 405),
    ] {
        assert_eq!(ask(request.clone()), status, "{request}");
    }
    listener.set_nonblocking(true).unwrap();
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn program_that_reads_nothing_is_let_go() {
    let pg = Pg::start("pg1", &format!("{ALL}{ALLOW_LOOPBACK}"));
    let mut stream = connect(&pg);
    // It asks, is refused, and goes on sending.
    stream.write_all(http_request("192.0.2.1", 1, "").as_bytes()).unwrap();
    let begun = Instant::now();
    while stream.write_all(&[b'x'; 4096]).is_ok() {
        assert!(begun.elapsed() < PATIENCE, "the gateway reads for ever");
    }
    pg.until(|status| status.handshakes == 0, "it is gone");
}

#[test]
fn half_open_requests_are_bounded_by_the_limits_on_handshakes() {
    let limits = "[limits]\nhandshakes = 40\nhandshakes_per_source = 30\n";
    let pg = Pg::start("pg1", &format!("{ALL}{limits}{ALLOW_ALL}"));
    let begin = |n: usize| {
        // Who is turned away may see that at once.
        let mut stream = TcpStream::connect(pg.addr).ok()?;
        let begun: &[u8] = if n.is_multiple_of(2) { &[5] } else { b"CONNECT " };
        let _ = stream.write_all(begun);
        Some(stream)
    };
    let open: Vec<_> = (0..200).map(begin).collect();
    pg.until(|status| status.totals.handshakes_shed == 170, "all others are turned away");
    assert_eq!(pg.status().handshakes, 30);
    drop(open);
    pg.until(|status| status.handshakes == 0, "they are gone");
    session(By::Socks, &pg);
}
