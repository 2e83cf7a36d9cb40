//! Two gateways joined by QUIC or UDT, on the emulated path with real packets: a filter that begins to drop UDP, an
//! address that changes (only QUIC), and floods of strangers.

use crate::support;
use std::cell::Cell;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};
use support::path::{HOSTS, Path, transfer};
use support::{PATIENCE, assert_reset, wait_until};

#[test]
fn udp_filter_fails_a_session_over_quic_and_never_ends_it() {
    filtered("quic");
}

#[test]
fn udp_filter_fails_a_session_over_udt_and_never_ends_it() {
    filtered("udt");
}

fn filtered(transport: &str) {
    let path = Path::by(transport, "idle_timeout = \"3s\"");
    let (mut client, mut destination) = path.session();
    client.write_all(b"before").unwrap();
    destination.read_exact(&mut [0; 6]).unwrap();
    let sender = thread::spawn({
        move || loop {
            if let Err(error) = client.write_all(&[7; 1 << 16]) {
                return error;
            }
        }
    });
    // TCP still passes, and with it the beacon. Only silence shows the failure.
    for host in HOSTS {
        path.ip(host, "rule add ipproto udp prohibit pref 10");
    }
    assert_reset(&mut destination, "destination");
    // A writer gets the error, once.
    let error = sender.join().unwrap();
    assert!(matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "client: {error}");
    // When UDP passes again, sessions do so too.
    for host in HOSTS {
        path.ip(host, "rule del pref 10");
    }
    transfer(path.session(), 16, || {});
}

#[test]
fn session_survives_a_change_of_address() {
    let path = Path::by("quic", "");
    let (pg1, pg2) = (path.address("pg1", 0).ip(), path.address("pg2", 0).ip());
    let new: IpAddr = "10.9.0.77".parse().unwrap();
    let change = || {
        path.ip("pg2", &format!("route add {new}/32 dev wan"));
        path.ip("pg1", &format!("address add {new}/32 dev wan"));
        path.ip("pg1", &format!("route replace {pg2}/32 dev wan src {new}"));
        // For pg2, the old address no longer exists.
        path.ip("pg2", &format!("route replace blackhole {pg1}/32"));
    };
    transfer(path.session(), 256, change);
}

#[test]
fn flood_of_strangers_costs_no_sessions_or_memory_over_quic() {
    flooded("quic", initial);
}

#[test]
fn flood_of_strangers_costs_no_sessions_or_memory_over_udt() {
    flooded("udt", request);
}

fn flooded(transport: &str, packet: fn(u64) -> Vec<u8>) {
    let path = Path::by(transport, "");
    let pg2 = path.address("pg2", 5006);
    let (client, destination) = path.session();
    let memory = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", path.gateways[1].id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap().to_owned();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    };
    let before = memory();
    let (sent, back) = path.testbed.run_in("src", || flood(pg2, packet)).unwrap();
    assert!(0 < back && back <= sent, "{back} bytes back for {sent}");
    // A state for each of 50 000 attempts would need several times as much.
    assert!(memory() < before + (64 << 20), "{before} bytes have become {}", memory());
    transfer((client, destination), 16, || {});
    let is_idle = || path.status("pg2")["sessions"].as_array().is_some_and(Vec::is_empty);
    wait_until(is_idle, || path.status("pg2").to_string());
}

#[test]
fn status_tells_when_certificates_expire() {
    let path = Path::by("quic", "");
    let certificate = &path.status("pg1")["certificate"];
    let left = |field: &str| certificate[field].as_i64().unwrap();
    // From a moment ago, for one hour. The authority is valid for years.
    assert!((1..=3600).contains(&left("certificate_expires_in_s")), "{certificate}");
    assert!(left("authority_expires_in_s") > 24 * 3600, "{certificate}");
}

/// Attempts to connect from many ports, none of which continues. Returns the bytes sent, and the bytes received.
fn flood(to: SocketAddr, packet: fn(u64) -> Vec<u8>) -> (usize, usize) {
    let sockets: Vec<_> = (0..50).map(|_| UdpSocket::bind("0.0.0.0:0").unwrap()).collect();
    let (mut sent, back, mut answer) = (0, Cell::new(0), [0; 2048]);
    let mut take = |socket: &UdpSocket| {
        socket.set_nonblocking(true).unwrap();
        while let Ok(len) = socket.recv(&mut answer) {
            back.set(back.get() + len);
        }
    };
    for round in 0..1000_u64 {
        for (number, socket) in sockets.iter().enumerate() {
            sent += socket.send_to(&packet(round * 1000 + number as u64), to).unwrap_or(0);
            take(socket);
        }
        thread::sleep(Duration::from_micros(500));
    }
    // The gateway may not have read all of them yet.
    let begin = Instant::now();
    loop {
        thread::sleep(Duration::from_millis(300));
        sockets.iter().for_each(&mut take);
        if back.get() > 0 || begin.elapsed() > PATIENCE {
            return (sent, back.get());
        }
    }
}

/// A packet that looks like the first one of a connection until it is decrypted (RFC 9000, section 17.2.2).
fn initial(number: u64) -> Vec<u8> {
    let mut packet = vec![0xc3, 0, 0, 0, 1, 8];
    packet.extend_from_slice(&number.to_be_bytes());
    packet.push(8);
    packet.extend_from_slice(&(!number).to_be_bytes());
    // No token, and the length of the rest.
    packet.extend_from_slice(&[0, 0x44, 0x80]);
    packet.resize(1200, number as u8);
    packet
}

/// A request for a UDT connection, without a cookie (docs/protocol/udt4.md).
fn request(number: u64) -> Vec<u8> {
    let id = number as u32 + 1;
    // A handshake; then version, stream, first number, packet size, window, request, socket, cookie, and an address.
    let words = [0x8000_0000, 0, 0, 0, 4, 1, id, 1500, 25_600, 1, id, 0, 0, 0, 0, 0];
    words.iter().flat_map(|word: &u32| word.to_be_bytes()).collect()
}
