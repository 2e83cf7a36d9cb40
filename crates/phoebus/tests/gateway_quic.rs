//! What two gateways joined by QUIC have to survive, on the emulated path with real packets: loss with reordering, a
//! filter that begins to drop UDP, processes that stand still, an address that changes, and floods of strangers.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use phoebus_proto::units::Span;
use phoebus_wan::model::{Direction, DirectionUpdate, Rate};
use phoebus_wan::testbed::{Sc09, Testbed};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;
use support::{Certificates, PATIENCE, assert_reset, connect, wait_until};

/// The SC09 path at 100 Mbit/s with gateways on `pg1` and `pg2`, joined by QUIC.
struct Path {
    testbed: Testbed,
    gateways: [Child; 2],
    dir: tempfile::TempDir,
}

impl Path {
    fn up(profile: &str) -> Self {
        let settings = Sc09 {
            wan_rtt: Span(Duration::from_millis(40)),
            lan_rtt: Span(Duration::from_millis(2)),
            rate: Rate::Limited(NonZeroU64::new(100_000_000).unwrap()),
            cc: None,
            ..Sc09::default()
        };
        let testbed = Testbed::up(&settings.scenario()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let certificates = Certificates::new();
        let start = |host: &str, peer: &str| {
            let file = dir.path().join(format!("{host}.toml"));
            let next = SocketAddr::new(address(&testbed, peer), 5006);
            let text = format!(
                "name = \"{host}\"\n{}[admin]\nsocket = \"{host}.sock\"\n\
                 [[listen]]\naddress = \"0.0.0.0:5006\"\n\
                 [[listen]]\naddress = \"0.0.0.0:5006\"\ntransport = \"quic\"\nprofile = \"wan\"\n\
                 [[allow]]\nfrom = [\"0.0.0.0/0\"]\nto = [\"0.0.0.0/0\"]\n\
                 [[peer]]\nname = \"{peer}\"\naddress = \"{next}\"\ntransport = \"quic\"\nprofile = \"wan\"\n\
                 [profile.wan]\n{profile}\n",
                certificates.issue(host),
            );
            std::fs::write(&file, text).unwrap();
            let mut command: Command = testbed.exec(host, env!("CARGO_BIN_EXE_phoebus")).unwrap();
            let log = std::fs::File::create(dir.path().join(format!("{host}.log"))).unwrap();
            command.arg("gateway").arg("--config").arg(&file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
            command.current_dir(dir.path()).spawn().unwrap()
        };
        let gateways = [start("pg1", "pg2"), start("pg2", "pg1")];
        let path = Self { testbed, gateways, dir };
        for host in ["pg1", "pg2"] {
            let addr = path.address(host, 5006);
            let listens = || path.testbed.run_in(host, || TcpStream::connect(addr).is_ok()).unwrap();
            wait_until(listens, || format!("no gateway listens on {host}: {}", path.log(host)));
        }
        path
    }

    fn address(&self, host: &str, port: u16) -> SocketAddr {
        SocketAddr::new(address(&self.testbed, host), port)
    }

    fn log(&self, host: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(format!("{host}.log"))).unwrap()
    }

    /// A session from `src` to a destination of its own over both gateways.
    fn session(&self) -> (TcpStream, TcpStream) {
        let dst = self.address("dst", 0);
        let listener = self.testbed.run_in("dst", || TcpListener::bind(dst)).unwrap().unwrap();
        let dst = listener.local_addr().unwrap();
        let gateways = [self.address("pg1", 5006), self.address("pg2", 5006)];
        let client = self.testbed.run_in("src", || connect(&gateways, dst)).unwrap().unwrap();
        let destination = listener.accept().unwrap().0;
        destination.set_read_timeout(Some(PATIENCE)).unwrap();
        (client, destination)
    }

    /// Runs iproute2 on a host.
    fn ip(&self, host: &str, arguments: &str) {
        let mut ip = self.testbed.exec(host, "ip").unwrap();
        let output = ip.args(arguments.split_whitespace()).output().expect("ip of iproute2");
        assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// What a gateway tells `phoebus status`.
    fn status(&self, host: &str) -> serde_json::Value {
        let socket: PathBuf = self.dir.path().join(format!("{host}.sock"));
        let mut status = support::phoebus();
        let output = status.args(["status", "--json", "--gateway"]).arg(socket).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn signal(&self, gateway: usize, signal: i32) {
        let pid = rustix::process::Pid::from_child(&self.gateways[gateway]);
        let signal = rustix::process::Signal::from_named_raw(signal).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

impl Drop for Path {
    fn drop(&mut self) {
        for gateway in &mut self.gateways {
            let _ = gateway.kill();
            let _ = gateway.wait();
        }
        if thread::panicking() {
            eprintln!("pg1:\n{}\npg2:\n{}", self.log("pg1"), self.log("pg2"));
        }
    }
}

fn address(testbed: &Testbed, host: &str) -> IpAddr {
    testbed.addresses(host).unwrap().iter().copied().find(IpAddr::is_ipv4).unwrap()
}

/// Bytes that differ everywhere.
fn block(number: usize) -> Vec<u8> {
    let mut state = number as u64 * 2 + 1;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..1 << 16).map(next).collect()
}

/// A transfer of so many blocks, during which `meanwhile` happens once a quarter has arrived; verified to the byte, and to
/// the end that both sides see.
fn transfer((client, mut destination): (TcpStream, TcpStream), blocks: usize, meanwhile: impl FnOnce()) {
    let sender = thread::spawn(move || {
        let mut client = client;
        for number in 0..blocks {
            client.write_all(&block(number)).unwrap();
        }
        client.shutdown(Shutdown::Write).unwrap();
        client.read(&mut [0; 1]).unwrap()
    });
    let (mut got, mut meanwhile) = (vec![0; 1 << 16], Some(meanwhile));
    for number in 0..blocks {
        destination.read_exact(&mut got).unwrap();
        assert!(got == block(number), "block {number} was changed");
        if number == blocks / 4
            && let Some(meanwhile) = meanwhile.take()
        {
            meanwhile();
        }
    }
    assert_eq!(destination.read(&mut got).unwrap(), 0, "more than was sent");
    destination.shutdown(Shutdown::Write).unwrap();
    assert_eq!(sender.join().unwrap(), 0, "the client sees the end");
}

#[test]
fn a_transfer_survives_loss_and_reordering() {
    let path = Path::up("");
    let wan = path.testbed.link("wan").unwrap();
    for direction in [Direction::Forward, Direction::Backward] {
        let update = DirectionUpdate {
            loss: Some("5%".parse().unwrap()),
            jitter: Some(Span(Duration::from_millis(5))),
            reorder: Some(true),
            ..DirectionUpdate::default()
        };
        wan.update(direction, &update);
    }
    transfer(path.session(), 256, || {});
    let counters = wan.counters();
    assert!(counters.forward.random_drops.segments > 100, "nothing was lost: {counters:?}");
}

#[test]
fn a_filter_that_begins_to_drop_udp_fails_the_session_and_never_ends_it() {
    let path = Path::up("idle_timeout = \"3s\"");
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
    // TCP still passes, and with it the beacon: silence alone shows what has happened.
    for host in ["pg1", "pg2"] {
        path.ip(host, "rule add ipproto udp prohibit pref 10");
    }
    assert_reset(&mut destination, "destination");
    // Whoever writes is told, and nobody a second time.
    let error = sender.join().unwrap();
    assert!(matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "client: {error}");
    // And once it passes again, so do sessions.
    for host in ["pg1", "pg2"] {
        path.ip(host, "rule del pref 10");
    }
    transfer(path.session(), 16, || {});
}

#[test]
fn a_gateway_that_stands_still_for_longer_than_the_time_out_leaves_no_clean_end() {
    let path = Path::up("idle_timeout = \"3s\"");
    for stopped in [0, 1] {
        let (mut client, mut destination) = path.session();
        client.write_all(b"before").unwrap();
        destination.read_exact(&mut [0; 6]).unwrap();
        path.signal(stopped, libc::SIGSTOP);
        thread::sleep(Duration::from_secs(8));
        path.signal(stopped, libc::SIGCONT);
        assert_reset(&mut client, "client");
        assert_reset(&mut destination, "destination");
        transfer(path.session(), 16, || {});
    }
}

#[test]
fn a_gateway_that_stands_still_for_less_than_the_time_out_costs_no_session() {
    let path = Path::up("");
    let pause = || {
        for stopped in [0, 1] {
            path.signal(stopped, libc::SIGSTOP);
            thread::sleep(Duration::from_secs(4));
            path.signal(stopped, libc::SIGCONT);
        }
    };
    transfer(path.session(), 256, pause);
}

#[test]
fn a_session_goes_on_when_the_gateways_address_changes() {
    let path = Path::up("");
    let (pg1, pg2) = (path.address("pg1", 0).ip(), path.address("pg2", 0).ip());
    let new: IpAddr = "10.9.0.77".parse().unwrap();
    let change = || {
        path.ip("pg2", &format!("route add {new}/32 dev wan"));
        path.ip("pg1", &format!("address add {new}/32 dev wan"));
        path.ip("pg1", &format!("route replace {pg2}/32 dev wan src {new}"));
        // The old address is nobody's any more, as far as pg2 goes.
        path.ip("pg2", &format!("route replace blackhole {pg1}/32"));
    };
    transfer(path.session(), 256, change);
}

#[test]
fn a_flood_of_strangers_costs_neither_sessions_nor_memory() {
    let path = Path::up("");
    let pg2 = path.address("pg2", 5006);
    let (client, destination) = path.session();
    let memory = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", path.gateways[1].id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap().to_owned();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    };
    let before = memory();
    let (sent, back) = path.testbed.run_in("src", || flood(pg2)).unwrap();
    assert!(back < sent, "{back} bytes back for {sent}");
    // A state for each of 50 000 beginnings would be several times that.
    assert!(memory() < before + (64 << 20), "{before} bytes have become {}", memory());
    transfer((client, destination), 16, || {});
    let is_idle = || path.status("pg2")["sessions"].as_array().unwrap().is_empty();
    wait_until(is_idle, || path.status("pg2").to_string());
}

#[test]
fn monitoring_sees_when_certificates_expire() {
    let path = Path::up("");
    let certificate = &path.status("pg1")["certificate"];
    let left = |field: &str| certificate[field].as_i64().unwrap();
    // For one hour, from a moment ago on; the authority for years.
    assert!((1..=3600).contains(&left("certificate_expires_in_s")), "{certificate}");
    assert!(left("authority_expires_in_s") > 24 * 3600, "{certificate}");
}

/// Beginnings of connections from many ports, of which none is ever continued. Returns bytes sent and bytes that came back.
fn flood(to: SocketAddr) -> (usize, usize) {
    let sockets: Vec<_> = (0..50).map(|_| UdpSocket::bind("0.0.0.0:0").unwrap()).collect();
    let (mut sent, mut back, mut answer) = (0, 0, [0; 2048]);
    let mut take = |socket: &UdpSocket| {
        socket.set_nonblocking(true).unwrap();
        while let Ok(len) = socket.recv(&mut answer) {
            back += len;
        }
    };
    for round in 0..1000_u64 {
        for (number, socket) in sockets.iter().enumerate() {
            let packet = initial(round * 1000 + number as u64);
            sent += socket.send_to(&packet, to).unwrap_or(0);
            take(socket);
        }
        thread::sleep(Duration::from_micros(500));
    }
    thread::sleep(Duration::from_millis(300));
    sockets.iter().for_each(take);
    (sent, back)
}

/// What looks like the first packet of a connection until it is decrypted (RFC 9000, section 17.2.2).
fn initial(number: u64) -> Vec<u8> {
    let mut packet = vec![0xc3, 0, 0, 0, 1, 8];
    packet.extend_from_slice(&number.to_be_bytes());
    packet.push(8);
    packet.extend_from_slice(&(!number).to_be_bytes());
    // No token, and as long as all that follows.
    packet.extend_from_slice(&[0, 0x44, 0x80]);
    packet.resize(1200, number as u8);
    packet
}
