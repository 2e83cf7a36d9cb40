//! Links that fail under a session, on the emulated path: a session survives an interruption, and notices that a
//! gateway has died behind it although the reset is lost (P21, P23, invariant 1).

use crate::support;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::thread;
use std::time::{Duration, Instant};
use support::path::{Joined, Path};
use support::{PATIENCE, assert_reset, wait_until};

/// The path with this transport between the gateways, protected only if the transport requires it.
fn up(transport: &str, profile: &str) -> Path {
    let security = if transport == "quic" { "encrypt" } else { "none" };
    Path::up(&Joined { wan_rtt: Duration::from_millis(20), transport, security, profile, ..Joined::default() })
}

#[test]
fn a_transfer_survives_a_cut_of_ten_seconds() {
    survives_a_cut(&up("tcp", ""));
}

#[test]
fn a_transfer_over_udt_survives_a_cut_of_ten_seconds() {
    survives_a_cut(&up("udt", ""));
}

#[test]
fn a_transfer_over_quic_survives_a_cut_of_ten_seconds() {
    survives_a_cut(&up("quic", ""));
}

fn survives_a_cut(path: &Path) {
    const TOTAL: usize = 32 << 20;
    let (client, mut destination) = path.session();
    let block: Vec<u8> = (0..1 << 16).map(|i| (i % 251) as u8).collect();
    let sender = thread::spawn({
        let (mut client, block) = (client, block.clone());
        move || {
            for _ in 0..TOTAL / block.len() {
                client.write_all(&block).unwrap();
            }
            client.shutdown(Shutdown::Write).unwrap();
            client.read(&mut [0; 1]).unwrap()
        }
    });
    let mut got = vec![0; 4 << 20];
    destination.read_exact(&mut got).unwrap();
    let wan = path.testbed.link("wan").unwrap();
    wan.cut();
    thread::sleep(Duration::from_secs(10));
    let counters = wan.counters();
    assert!(counters.forward.cut_drops.segments > 0, "the cut has met no packet: {counters:?}");
    wan.heal();
    destination.read_to_end(&mut got).unwrap();
    assert_eq!(got.len(), TOTAL);
    assert!(got.chunks(block.len()).all(|part| part == block), "the data was changed");
    destination.shutdown(Shutdown::Write).unwrap();
    assert_eq!(sender.join().unwrap(), 0, "the client sees the end");
}

#[test]
fn gateway_that_dies_behind_a_cut_is_noticed_without_a_reset() {
    let silent = "keepalive_idle = \"1s\"\nkeepalive_interval = \"1s\"\nkeepalive_probes = 2\nuser_timeout = \"3s\"";
    let mut path = up("tcp", silent);
    let (mut client, mut destination) = path.session();
    client.write_all(b"x").unwrap();
    destination.read_exact(&mut [0; 1]).unwrap();
    path.testbed.link("wan").unwrap().cut();
    path.gateways[1].kill().unwrap();
    path.gateways[1].wait().unwrap();
    assert_reset(&mut destination, "destination");
    let start = Instant::now();
    assert_reset(&mut client, "client");
    assert!(start.elapsed() < PATIENCE);
}

#[test]
fn bytes_sent_before_a_reset_arrive_before_it() {
    const TOTAL: usize = 1 << 20;
    let path = up("tcp", "");
    let (mut client, mut destination) = path.session();
    let port = destination.local_addr().unwrap().port();
    destination.write_all(&vec![7; TOTAL]).unwrap();
    // The destination's kernel has handed over everything, while much of it is still on its way across the WAN.
    wait_until(
        || send_queue(&path, port) == "0",
        || format!("{} bytes do not leave the destination", send_queue(&path, port)),
    );
    support::arm(&destination);
    drop(destination);
    let mut got = Vec::new();
    let error = client.read_to_end(&mut got).expect_err("a reset must not look like an end");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    assert_eq!(got.len(), TOTAL, "a direct connection would have delivered all of it");
}

/// Bytes without an acknowledgement at the destination's end of its session, from `ss`.
fn send_queue(path: &Path, port: u16) -> String {
    let mut ss = path.testbed.exec("dst", "ss").unwrap();
    let output =
        ss.args(["-Htn", "state", "established", "sport", "=", &format!(":{port}")]).output().expect("ss of iproute2");
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_whitespace().nth(1).unwrap_or("none").to_owned()
}
