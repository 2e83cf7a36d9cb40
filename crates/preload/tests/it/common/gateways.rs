//! Two real gateways on loopback, a session through both, and the report that proves it.

use super::{LIMIT, phoebus, plain, preloaded};
use serde_json::Value;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

/// The gateways; they end with this value.
pub struct Gateways {
    pub path: String,
    pub room: tempfile::TempDir,
    processes: Vec<Child>,
}

impl Gateways {
    pub fn start() -> Self {
        let room = tempfile::tempdir().unwrap();
        let [first, second] = [address(), address()];
        let allow = "[[allow]]\nfrom = [\"127.0.0.0/8\"]\nto = [\"127.0.0.0/8\"]\n";
        let config = |name: &str, address, peer: &str, other| {
            let peer = format!(
                "[[peer]]\nname = \"{peer}\"\naddress = \"{other}\"\nsecurity = \"none\"\nfrom = [\"127.0.0.0/8\"]\n"
            );
            let text = format!("name = \"{name}\"\n[[listen]]\naddress = \"{address}\"\n{peer}{allow}");
            let file = room.path().join(name);
            std::fs::write(&file, text).unwrap();
            file
        };
        let files = [config("pg1", first, "pg2", second), config("pg2", second, "pg1", first)];
        let start = |file: &PathBuf| {
            let mut command = plain(phoebus());
            command.args(["gateway", "--config"]).arg(file).stdin(Stdio::null()).stderr(Stdio::null());
            command.spawn().unwrap()
        };
        let processes = files.iter().map(start).collect();
        for address in [first, second] {
            until_listening(address);
        }
        Self { path: format!("{first},{second}"), room, processes }
    }

    /// A command whose connections on loopback go through both gateways.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = preloaded(program, self.path.split(',').next().unwrap());
        command.env("PHOEBUS_PATH", &self.path).env("PHOEBUS_ONLY", "127.0.0.0/8");
        command.env("PHOEBUS_REPORT", self.report()).env("HOME", self.room.path());
        command
    }

    /// A path in the directory.
    pub fn file(&self, name: &str) -> PathBuf {
        self.room.path().join(name)
    }

    fn report(&self) -> PathBuf {
        self.file("report")
    }

    /// The reports so far.
    pub fn reports(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.report()).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
    }

    /// Asserts that so many sessions were opened since the last call, each through both gateways.
    #[track_caller]
    pub fn carried(&self, at_least: usize) {
        let reports = self.reports();
        let _ = std::fs::remove_file(self.report());
        let opened: Vec<_> = reports.iter().filter(|report| report["event"] == "opened").collect();
        assert!(opened.len() >= at_least, "{} sessions, {at_least} expected: {reports:#?}", opened.len());
        for report in opened {
            let from: Vec<_> = report["hops"].as_array().unwrap().iter().map(|hop| hop["from"].clone()).collect();
            assert_eq!(from, ["client", "pg1", "pg2"], "{report:#?}");
        }
    }
}

impl Drop for Gateways {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// An address that no other test uses: all of 127.0.0.0/8 is this host's.
pub fn address() -> SocketAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let pid = std::process::id();
    SocketAddr::from(([127, 192 + (pid >> 8) as u8 % 63, pid as u8, NEXT.fetch_add(1, Ordering::Relaxed)], 5006))
}

/// Waits until a program listens there, without a connection: a server may take that for its client, and iperf3's
/// closes its listener after that client has gone, and resets other connections made meanwhile.
#[track_caller]
pub fn until_listening(address: SocketAddr) {
    let begun = Instant::now();
    while !is_listening(address) {
        assert!(begun.elapsed() < LIMIT, "nobody listens at {address}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether a program listens at an IPv4 address, by the kernel's list (proc_pid_net(5)).
fn is_listening(address: SocketAddr) -> bool {
    const LISTEN: &str = "0A";
    let IpAddr::V4(ip) = address.ip() else { panic!("{address} is no IPv4 address") };
    let own = format!("{:08X}:{:04X}", u32::from_ne_bytes(ip.octets()), address.port());
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .any(|line| line[1] == own && line[3] == LISTEN)
}

/// A server of a test, killed on drop.
pub struct Server(pub Child);

impl Server {
    /// Starts a server and waits until it listens.
    pub fn start(command: &mut Command, address: SocketAddr) -> Self {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let server = Self(child);
        until_listening(address);
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A file of so many bytes, each megabyte of it different.
pub fn payload(file: &Path, len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    std::fs::write(file, &bytes).unwrap();
    bytes
}
