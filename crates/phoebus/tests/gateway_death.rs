//! A gateway that dies takes its sessions with it, and every end still open learns that they failed (invariant 1, P23).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use support::{Gateway, assert_reset, pair, session_over, wait_until};

/// Runs `test` twice over two gateways: it gets the one to kill, and a session. The first time the first gateway dies, the
/// second time the second.
fn with_each_victim(test: impl Fn(&mut Gateway, TcpStream, TcpStream)) {
    for first_dies in [true, false] {
        let (mut first, mut second) = pair("", "");
        let (client, destination) = session_over(&[first.addr, second.addr]);
        test(if first_dies { &mut first } else { &mut second }, client, destination);
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
        // The destination has read the end of the client's stream, which was true; what it still writes fails.
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

/// Whether a write meets the reset.
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
fn a_gateway_that_comes_back_serves_new_sessions() {
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
