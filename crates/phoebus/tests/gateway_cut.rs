//! Links that fail under a session, on the emulated path: an interruption is survived, a gateway that dies behind it is
//! noticed although its reset is lost (P21, P23, invariant 1).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use phoebus_proto::units::Span;
use phoebus_wan::model::Rate;
use phoebus_wan::testbed::{Sc09, Testbed};
use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU64;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use support::{Certificates, PATIENCE, assert_reset, connect, wait_until};

/// The SC09 path at 100 Mbit/s with gateways on `pg1` and `pg2`.
struct Path {
    testbed: Testbed,
    pg2: Child,
    _pg1: Child,
    _dir: tempfile::TempDir,
}

impl Path {
    fn up(profile: &str) -> Self {
        Self::up_by("tcp", profile)
    }

    /// With this transport between the gateways.
    fn up_by(transport: &str, profile: &str) -> Self {
        let settings = Sc09 {
            wan_rtt: Span(Duration::from_millis(20)),
            lan_rtt: Span(Duration::from_millis(2)),
            rate: Rate::Limited(NonZeroU64::new(100_000_000).unwrap()),
            cc: None,
            ..Sc09::default()
        };
        let testbed = Testbed::up(&settings.scenario()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let certificates = Certificates::new();
        let (tls, security) = match transport {
            "quic" => (["pg1", "pg2"].map(|name| certificates.issue(name)), "encrypt"),
            _ => ([String::new(), String::new()], "none"),
        };
        let start = |host: &str, peer: &str| {
            let file = dir.path().join(format!("{host}.toml"));
            let next = SocketAddr::new(address(&testbed, peer), 5006);
            let listener = match transport {
                "tcp" => String::new(),
                _ => format!("[[listen]]\naddress = \"0.0.0.0:5006\"\ntransport = \"{transport}\"\n"),
            };
            let text = format!(
                "name = \"{host}\"\n{}{listener}[[listen]]\naddress = \"0.0.0.0:5006\"\n\
                 [[allow]]\nfrom = [\"0.0.0.0/0\"]\nto = [\"0.0.0.0/0\"]\n\
                 [[peer]]\nname = \"{peer}\"\naddress = \"{next}\"\nprofile = \"wan\"\n\
                 transport = \"{transport}\"\nsecurity = \"{security}\"\n[profile.wan]\n{profile}\n",
                tls[usize::from(host == "pg2")],
            );
            std::fs::write(&file, text).unwrap();
            let mut command: Command = testbed.exec(host, env!("CARGO_BIN_EXE_phoebus")).unwrap();
            let log = std::fs::File::create(dir.path().join(format!("{host}.log"))).unwrap();
            command.arg("gateway").arg("--config").arg(&file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
            command.spawn().unwrap()
        };
        let (pg2, pg1) = (start("pg2", "pg1"), start("pg1", "pg2"));
        let path = Self { testbed, pg2, _pg1: pg1, _dir: dir };
        for host in ["pg1", "pg2"] {
            let addr = path.address(host, 5006);
            let listens = || path.testbed.run_in(host, || TcpStream::connect(addr).is_ok()).unwrap();
            wait_until(listens, || format!("no gateway listens on {host}"));
        }
        path
    }

    fn address(&self, host: &str, port: u16) -> SocketAddr {
        SocketAddr::new(address(&self.testbed, host), port)
    }

    /// A session from `src` to `dst` over both gateways.
    fn session(&self) -> (TcpStream, TcpStream) {
        let dst = self.address("dst", 7000);
        let listener = self.testbed.run_in("dst", || TcpListener::bind(dst)).unwrap().unwrap();
        let gateways = [self.address("pg1", 5006), self.address("pg2", 5006)];
        let client = self.testbed.run_in("src", || connect(&gateways, dst)).unwrap().unwrap();
        let destination = listener.accept().unwrap().0;
        destination.set_read_timeout(Some(PATIENCE)).unwrap();
        (client, destination)
    }
}

fn address(testbed: &Testbed, host: &str) -> IpAddr {
    testbed.addresses(host).unwrap().iter().copied().find(IpAddr::is_ipv4).unwrap()
}

#[test]
fn a_transfer_survives_a_cut_of_ten_seconds() {
    survives_a_cut(&Path::up(""));
}

#[test]
fn a_transfer_over_udt_survives_a_cut_of_ten_seconds() {
    survives_a_cut(&Path::up_by("udt", ""));
}

#[test]
fn a_transfer_over_quic_survives_a_cut_of_ten_seconds() {
    survives_a_cut(&Path::up_by("quic", ""));
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
fn a_gateway_that_dies_behind_a_cut_is_noticed_without_its_reset() {
    let silent = "keepalive_idle = \"1s\"\nkeepalive_interval = \"1s\"\nkeepalive_probes = 2\nuser_timeout = \"3s\"";
    let mut path = Path::up(silent);
    let (mut client, mut destination) = path.session();
    client.write_all(b"x").unwrap();
    destination.read_exact(&mut [0; 1]).unwrap();
    path.testbed.link("wan").unwrap().cut();
    path.pg2.kill().unwrap();
    path.pg2.wait().unwrap();
    assert_reset(&mut destination, "destination");
    let start = Instant::now();
    assert_reset(&mut client, "client");
    assert!(start.elapsed() < PATIENCE);
}

#[test]
fn what_was_sent_before_a_reset_arrives_before_it() {
    const TOTAL: usize = 1 << 20;
    let path = Path::up("");
    let (mut client, mut destination) = path.session();
    destination.write_all(&vec![7; TOTAL]).unwrap();
    // The destination's kernel has handed over everything, while much of it is still on its way across the WAN.
    wait_until(|| send_queue(&path) == "0", || format!("{} bytes do not leave the destination", send_queue(&path)));
    support::arm(&destination);
    drop(destination);
    let mut got = Vec::new();
    let error = client.read_to_end(&mut got).expect_err("a reset must not look like an end");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    assert_eq!(got.len(), TOTAL, "a direct connection would have delivered all of it");
}

/// Bytes that the destination's end of its session has not had acknowledged, as `ss` shows them.
fn send_queue(path: &Path) -> String {
    let mut ss = path.testbed.exec("dst", "ss").unwrap();
    let output = ss.args(["-Htn", "state", "established", "sport", "=", ":7000"]).output().expect("ss of iproute2");
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_whitespace().nth(1).unwrap_or("none").to_owned()
}
