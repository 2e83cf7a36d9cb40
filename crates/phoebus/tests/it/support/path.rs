//! The emulated path of the SC09 paper with two gateways as processes, and transfers over it that are verified to the byte.

pub use super::Hop;
use super::{Certificates, PATIENCE, connect_reported, phoebus, session, wait_until};
use phoebus_proto::units::Span;
use phoebus_wan::model::{Direction, DirectionUpdate, Rate};
use phoebus_wan::testbed::{Sc09, Testbed};
use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

/// The hosts of the gateways.
pub const HOSTS: [&str; 2] = ["pg1", "pg2"];

/// How the gateways are joined.
#[derive(Clone, Copy)]
pub struct Joined<'a> {
    pub wan_rtt: Duration,
    pub transport: &'a str,
    pub security: &'a str,
    /// More lines of the section `[[peer]]` of both.
    pub peer: &'a str,
    /// Lines of the profile of the hop between them.
    pub profile: &'a str,
    /// More sections.
    pub more: &'a str,
}

impl Default for Joined<'_> {
    fn default() -> Self {
        let wan_rtt = Duration::from_millis(40);
        Self { wan_rtt, transport: "tcp", security: "encrypt", peer: "", profile: "", more: "" }
    }
}

/// The path at 100 Mbit/s with a gateway on `pg1` and one on `pg2`, each the other's peer.
pub struct Path {
    pub testbed: Testbed,
    /// In the order of [`HOSTS`].
    pub gateways: Vec<Child>,
    /// The authority of both, and the certificates that it has issued.
    pub certificates: Certificates,
    dir: tempfile::TempDir,
}

impl Path {
    /// With gateways that are listening.
    pub fn up(joined: &Joined) -> Self {
        let settings = Sc09 {
            wan_rtt: Span(joined.wan_rtt),
            lan_rtt: Span(Duration::from_millis(2)),
            rate: Rate::Limited(NonZeroU64::new(100_000_000).unwrap()),
            cc: None,
            ..Sc09::default()
        };
        let testbed = Testbed::up(&settings.scenario()).unwrap();
        let (dir, certificates) = (tempfile::tempdir().unwrap(), Certificates::new());
        let mut path = Self { testbed, gateways: Vec::new(), certificates, dir };
        for (host, peer) in [("pg1", "pg2"), ("pg2", "pg1")] {
            let config = path.configuration(joined, host, peer);
            path.start(host, &config);
        }
        for host in HOSTS {
            let addr = path.address(host, 5006);
            let listens = || path.testbed.run_in(host, || TcpStream::connect(addr).is_ok()).unwrap();
            wait_until(listens, || format!("no gateway listens on {host}"));
        }
        path
    }

    /// The same with this transport, encrypted, with these lines in its profile.
    pub fn by(transport: &str, profile: &str) -> Self {
        Self::up(&Joined { transport, profile, ..Joined::default() })
    }

    fn configuration(&self, joined: &Joined, host: &str, peer: &str) -> String {
        let Joined { transport, security, peer: terms, profile, more, .. } = joined;
        let tls = if *security == "none" { String::new() } else { self.certificates.issue(host) };
        let by = match *transport {
            "tcp" => None,
            "auto" => Some("quic"),
            other => Some(other),
        };
        let listener = by.map_or_else(String::new, |by| {
            format!(
                "[[listen]]\naddress = \"0.0.0.0:5006\"\ntransport = \"{by}\"\nsecurity = \"{security}\"\n\
                 profile = \"wan\"\n"
            )
        });
        let next = self.address(peer, 5006);
        format!(
            "name = \"{host}\"\n{tls}[admin]\nsocket = \"{host}.sock\"\n\
             [[listen]]\naddress = \"0.0.0.0:5006\"\n{listener}\
             [[allow]]\nfrom = [\"0.0.0.0/0\"]\nto = [\"0.0.0.0/0\"]\n\
             [[peer]]\nname = \"{peer}\"\naddress = \"{next}\"\ntransport = \"{transport}\"\n\
             security = \"{security}\"\nprofile = \"wan\"\n{terms}\n[profile.wan]\n{profile}\n{more}\n"
        )
    }

    fn start(&mut self, host: &str, config: &str) {
        let file = self.file(host, "toml");
        std::fs::write(&file, config).unwrap();
        let log = std::fs::File::create(self.file(host, "log")).unwrap();
        let mut command = self.testbed.exec(host, env!("CARGO_BIN_EXE_phoebus")).unwrap();
        command.arg("gateway").arg("--config").arg(file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.gateways.push(command.current_dir(self.dir.path()).spawn().unwrap());
    }

    pub fn file(&self, host: &str, end: &str) -> PathBuf {
        self.dir.path().join(format!("{host}.{end}"))
    }

    pub fn address(&self, host: &str, port: u16) -> SocketAddr {
        let ip = self.testbed.addresses(host).unwrap().iter().copied().find(IpAddr::is_ipv4).unwrap();
        SocketAddr::new(ip, port)
    }

    /// A session from `src` to a destination of its own at `dst`, over both gateways.
    pub fn session(&self) -> (TcpStream, TcpStream) {
        let (client, destination, _) = self.session_reported();
        (client, destination)
    }

    /// The same, with the gateways' reports about their hops.
    pub fn session_reported(&self) -> (TcpStream, TcpStream, Vec<Hop>) {
        let dst = self.address("dst", 0);
        let listener = self.testbed.run_in("dst", || TcpListener::bind(dst)).unwrap().unwrap();
        let dst = listener.local_addr().unwrap();
        let gateways = HOSTS.map(|host| self.address(host, 5006));
        let opened = self.testbed.run_in("src", || connect_reported(session(), &gateways, &dst.into())).unwrap();
        let (client, hops) = opened.unwrap().unwrap();
        let destination = listener.accept().unwrap().0;
        destination.set_read_timeout(Some(PATIENCE)).unwrap();
        (client, destination, hops)
    }

    /// The answer of the gateway on `host` to `phoebus status`; null while it does not answer.
    pub fn status(&self, host: &str) -> serde_json::Value {
        let socket = self.file(host, "sock");
        let output = phoebus().args(["status", "--json", "--gateway"]).arg(socket).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    /// The report of `pg1` about its connections to `pg2`.
    pub fn pool(&self) -> serde_json::Value {
        self.status("pg1")["pools"][0].clone()
    }

    /// Waits until `pg1` has at least so many ready connections, and uses `transport`.
    pub fn until_ready(&self, transport: &str, idle: u64) {
        let is_ready = || {
            let pool = self.pool();
            pool["transport"] == transport && pool["idle"].as_u64().is_some_and(|ready| ready >= idle)
        };
        wait_until(is_ready, || format!("{idle} by {transport} are not ready: {:#}", self.pool()));
    }

    /// Runs a program on a host.
    pub fn run(&self, host: &str, program: &str, arguments: &[&str]) {
        let output = self.testbed.exec(host, program).unwrap().args(arguments).output().expect(program);
        assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Runs iproute2 on a host.
    pub fn ip(&self, host: &str, arguments: &str) {
        self.run(host, "ip", &arguments.split_whitespace().collect::<Vec<_>>());
    }

    /// Drops 5 % of the packets on the WAN, each way, and reorders the rest.
    pub fn lose_and_reorder(&self) {
        let update = DirectionUpdate {
            loss: Some("5%".parse().unwrap()),
            jitter: Some(Span(Duration::from_millis(5))),
            reorder: Some(true),
            ..DirectionUpdate::default()
        };
        let wan = self.testbed.link("wan").unwrap();
        [Direction::Forward, Direction::Backward].into_iter().for_each(|direction| wan.update(direction, &update));
    }

    /// Sends a signal to a gateway, by its index in [`HOSTS`].
    pub fn signal(&self, gateway: usize, signal: i32) {
        let pid = rustix::process::Pid::from_child(&self.gateways[gateway]);
        let signal = rustix::process::Signal::from_named_raw(signal).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    pub fn log(&self, host: &str) -> String {
        std::fs::read_to_string(self.file(host, "log")).unwrap_or_default()
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

/// Bytes that differ everywhere.
pub fn block(number: usize) -> Vec<u8> {
    let mut state = number as u64 * 2 + 1;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..1 << 16).map(next).collect()
}

/// A transfer of so many blocks. `meanwhile` runs once a quarter has arrived. Every byte is verified, and the clean end
/// at both sides.
pub fn transfer((client, mut destination): (TcpStream, TcpStream), blocks: usize, meanwhile: impl FnOnce()) {
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
