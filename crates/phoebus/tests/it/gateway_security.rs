//! Certificates and secrets of gateways as processes: invalid files at a reload, warnings in the log, and how a
//! restarted gateway tells its peers about lost sessions (P2, P9, P23, invariant 1).

use crate::support;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;
use support::{
    Certificates, Gateway, PATIENCE, address, assert_reset, connect_reported, session, session_over, wait_until,
};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// `[[peer]]` over TLS, with no connections made ahead of need.
fn peer(name: &str, addr: SocketAddr) -> String {
    format!("[[peer]]\nname = \"{name}\"\naddress = \"{addr}\"\nfrom = [\"127.0.0.0/8\"]\npool = {{ min = 0 }}\n")
}

fn both_ways(client: &mut TcpStream, destination: &mut TcpStream) {
    client.write_all(b"question").unwrap();
    destination.read_exact(&mut [0; 8]).unwrap();
    destination.write_all(b"answer").unwrap();
    client.read_exact(&mut [0; 6]).unwrap();
}

#[test]
fn unusable_files_change_nothing_and_are_named() {
    let certificates = Certificates::new();
    let addrs = [address(), address()].map(|addr| SocketAddr::from((addr, 5006)));
    let tls = certificates.issue("pg2");
    let second = Gateway::start_at(addrs[1], "pg2", &(tls.clone() + &peer("pg1", addrs[0])));
    let first = Gateway::start_at(addrs[0], "pg1", &(certificates.issue("pg1") + &peer("pg2", addrs[1])));
    let (mut client, mut destination) = session_over(&addrs);
    let file = certificates.file("pg2.pem");
    let good = std::fs::read_to_string(&file).unwrap();
    let others = std::fs::read_to_string(certificates.file("pg1.pem")).unwrap();
    let cases = [
        (good.replace("MII", "M!I"), "the section that begins here is not base64"),
        (others, "is not the private key of the certificate in"),
        (String::new(), "holds no certificate"),
    ];
    let mut open = Vec::new();
    for (text, expected) in cases {
        std::fs::write(&file, text).unwrap();
        second.signal(libc::SIGHUP);
        second.wait_for_log(expected);
        both_ways(&mut client, &mut destination);
        // All existing connections have a session, so this one needs a handshake.
        open.push(session_over(&addrs));
    }
    let said = second.log().matches("the new configuration cannot be used, the old one stays in force").count();
    assert_eq!(said, 3, "{}", second.log());
    assert!(!second.log().contains("other certificates are in force"));
    // Valid files are accepted, and the session continues.
    certificates.issue("pg2");
    second.signal(libc::SIGHUP);
    second.wait_for_log("other certificates are in force");
    session_over(&addrs);
    both_ways(&mut client, &mut destination);
    drop(first);
}

#[test]
fn log_warns_of_expiry_once_and_after_each_reload() {
    let certificates = Certificates::new();
    let tls = certificates.issue_for("pg1", 5 * DAY);
    let gateway = Gateway::start("pg1", &tls);
    let warnings = || gateway.log().matches("or its authority expires in ").count();
    wait_until(|| warnings() == 1, || format!("no warning:\n{}", gateway.log()));
    // Renewed, but for too short a time.
    certificates.issue_for("pg1", 3 * DAY);
    gateway.reload("pg1", &tls);
    wait_until(|| warnings() == 2, || format!("no second warning:\n{}", gateway.log()));
    gateway.wait_for_log("or its authority expires in 2 days");
    certificates.issue_for("pg1", 90 * DAY);
    gateway.reload("pg1", &tls);
    let is_renewed = || {
        let certificate = gateway.status()["certificate"].clone();
        certificate["certificate_expires_in_s"].as_u64().is_some_and(|left| left > 80 * 24 * 3600)
    };
    wait_until(is_renewed, || gateway.status().to_string());
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(warnings(), 2, "one warning for each certificate, and none for a good one:\n{}", gateway.log());
}

#[test]
fn new_reset_key_needs_a_restart_and_the_log_says_so() {
    let certificates = Certificates::new();
    let addr = SocketAddr::from((address(), 5006));
    let (tls, quic) = (certificates.issue("pg1"), format!("[[listen]]\naddress = \"{addr}\"\ntransport = \"quic\"\n"));
    let gateway = Gateway::start_at(addr, "pg1", &(tls.clone() + &quic));
    gateway.reload("pg1", &(tls.clone() + &quic));
    gateway.wait_for_log("the configuration was reloaded");
    assert!(!gateway.log().contains("tls.reset_key"), "{}", gateway.log());
    gateway.reload("pg1", &format!("{tls}reset_key = \"other.reset\"\n{quic}"));
    gateway.wait_for_log("tls.reset_key has changed; it takes a restart");
    assert!(!gateway.file("other.reset").exists());
}

/// pg2 listens for QUIC where it does not listen for TCP, so there can be no beacon. Only the secret that it has stored
/// lets it tell its peer about the restart.
#[test]
fn restart_without_a_beacon_is_told_by_the_stored_secret() {
    const SILENCE: Duration = Duration::from_secs(600);
    assert!(SILENCE > 5 * PATIENCE);
    let patience = format!("[profile.default]\nidle_timeout = \"{}s\"\n", SILENCE.as_secs());
    let certificates = Certificates::new();
    let addrs = [address(), address(), address()].map(|addr| SocketAddr::from((addr, 5006)));
    let quic = addrs[2];
    let text = format!(
        "{}[[listen]]\naddress = \"{quic}\"\ntransport = \"quic\"\n{}{patience}",
        certificates.issue("pg2"),
        peer("pg1", addrs[0])
    );
    let mut second = Gateway::start_at(addrs[1], "pg2", &text);
    let next = peer("pg2", quic).replace("pool", "transport = \"quic\"\npool");
    let first = Gateway::start_at(addrs[0], "pg1", &format!("{}{next}{patience}", certificates.issue("pg1")));
    first.wait_for_log("no TCP connection beside quic: if pg2 dies, sessions fail only after its silence");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let open = || connect_reported(session(), &[addrs[0], quic], &listener.local_addr().unwrap().into());
    let (mut client, hops) = open().unwrap().unwrap();
    assert!(hops[0].note.contains("no TCP connection beside it tells of the peer's death"), "{hops:?}");
    let mut destination = listener.accept().unwrap().0;
    destination.set_read_timeout(Some(PATIENCE)).unwrap();
    both_ways(&mut client, &mut destination);
    second.kill();
    assert_reset(&mut destination, "destination");
    let second = Gateway::start_at(addrs[1], "pg2", &text);
    // These bytes are answered with a stateless reset, unless a late acknowledgement already was.
    match client.write_all(b"is anybody there?") {
        Ok(()) => assert_reset(&mut client, "client"),
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
    }
    let (mut client, hops) = open().unwrap().unwrap();
    assert_eq!(hops[0].transport, "quic");
    both_ways(&mut client, &mut listener.accept().unwrap().0);
    drop((first, second));
}
