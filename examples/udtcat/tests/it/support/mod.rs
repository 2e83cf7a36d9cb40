//! Peers as processes: `udtcat`, and a program on bare libudt.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Timeout against hanging: far longer than any step takes, including libudt's own timeout of a minute.
pub const PATIENCE: Duration = Duration::from_secs(180);

const PERIOD: usize = 65_521;

/// The repeating byte pattern that both ends know, the same as in `peer.cpp`.
pub fn pattern() -> &'static [u8] {
    static PATTERN: OnceLock<Vec<u8>> = OnceLock::new();
    PATTERN.get_or_init(|| {
        let mut x = 7u64;
        let mut next = || {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (x >> 56) as u8
        };
        let period: Vec<u8> = (0..PERIOD).map(|_| next()).collect();
        period.repeat(5)
    })
}

/// Writes the first `total` bytes.
pub fn feed(input: ChildStdin, total: u64) {
    feed_seen(input, total, &AtomicU64::new(0));
}

/// Like [`feed`], and counts the written bytes in `seen`.
pub fn feed_seen(mut input: ChildStdin, total: u64, seen: &AtomicU64) {
    let mut done = 0;
    while done < total {
        let at = (done % PERIOD as u64) as usize;
        let piece = (4 * PERIOD as u64).min(total - done) as usize;
        // A peer that ends early reports it itself.
        if input.write_all(&pattern()[at..at + piece]).is_err() {
            return;
        }
        done += piece as u64;
        seen.store(done, Ordering::Relaxed);
    }
}

/// Reads to the end, checks every byte, and returns how many bytes came.
pub fn drain(output: ChildStdout) -> u64 {
    drain_seen(output, &AtomicU64::new(0))
}

/// Like [`drain`], and counts the read bytes in `seen`.
pub fn drain_seen(mut output: ChildStdout, seen: &AtomicU64) -> u64 {
    let (mut done, mut buffer) = (0, vec![0; 4 * PERIOD]);
    loop {
        let n = output.read(&mut buffer).unwrap();
        let at = (done % PERIOD as u64) as usize;
        assert!(buffer[..n] == pattern()[at..at + n], "wrong bytes after {done}");
        done += n as u64;
        seen.store(done, Ordering::Relaxed);
        if n == 0 {
            return done;
        }
    }
}

/// Waits until more bytes were counted than buffers take before a connection exists.
pub fn until_moving(seen: &AtomicU64) {
    let start = Instant::now();
    while seen.load(Ordering::Relaxed) < 1 << 20 {
        assert!(start.elapsed() < PATIENCE, "nothing moves");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The program on bare libudt, built once.
pub fn libudt() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("libudt-peer-{}", std::process::id()));
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/support/peer.cpp");
        let status =
            Command::new("g++").args(["-O2", "-o"]).arg(&program).args([source, "-ludt", "-lpthread"]).status();
        assert!(status.unwrap().success(), "g++ and libudt-dev are needed; scripts/setup installs them");
        program
    })
}

pub fn udtcat() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_udtcat"))
}

/// A loopback address that no other test uses.
pub fn address() -> Ipv4Addr {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let (n, pid) = (NEXT.fetch_add(1, Ordering::Relaxed), std::process::id());
    Ipv4Addr::new(127, 1 + (pid >> 8) as u8 % 250, pid as u8, n as u8)
}

/// A process that is killed on drop.
pub struct Peer {
    child: Child,
    what: String,
}

impl Peer {
    /// Starts a program with its standard streams in pipes.
    pub fn start(mut command: Command) -> Self {
        let what = format!("{command:?}");
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        Self { child: child.unwrap_or_else(|error| panic!("{what}: {error}")), what }
    }

    pub fn stdin(&mut self) -> ChildStdin {
        self.child.stdin.take().unwrap()
    }

    pub fn stdout(&mut self) -> ChildStdout {
        self.child.stdout.take().unwrap()
    }

    /// The port that a listening libudt peer has printed.
    pub fn libudt_port(&mut self) -> u16 {
        let mut line = String::new();
        BufReader::new(self.child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        line.trim().parse().unwrap_or_else(|_| panic!("{} printed {line:?}", self.what))
    }

    /// The address that a listening `udtcat` prints.
    pub fn udtcat_addr(&mut self) -> SocketAddr {
        let stderr = self.child.stderr.as_mut().unwrap();
        loop {
            // Byte by byte: the following output is for other readers.
            let (mut line, mut byte) = (String::new(), [0]);
            while !line.ends_with('\n') {
                assert_eq!(stderr.read(&mut byte).unwrap(), 1, "{} said {line:?}", self.what);
                line.push(byte[0].into());
            }
            if let Some(addr) = line.trim_end().strip_prefix("udtcat: listening on ") {
                return addr.parse().unwrap();
            }
        }
    }

    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").args([format!("-{name}"), self.child.id().to_string()]).status();
        assert!(status.unwrap().success(), "cannot send {name} to {}", self.what);
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for its end; returns its status and standard error.
    pub fn finish(&mut self) -> (ExitStatus, String) {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(start.elapsed() < PATIENCE, "{} does not end", self.what);
            std::thread::sleep(Duration::from_millis(10));
        };
        let mut said = String::new();
        if let Some(stderr) = &mut self.child.stderr {
            stderr.read_to_string(&mut said).unwrap();
        }
        (status, said)
    }

    /// Asserts that it succeeds.
    pub fn succeeds(&mut self) {
        let (status, said) = self.finish();
        assert!(status.success(), "{}: {status}\n{said}", self.what);
    }

    /// Asserts that it exits with `code` and that its standard error contains `with`.
    pub fn fails(&mut self, code: i32, with: &str) {
        let (status, said) = self.finish();
        let mut seen = String::new();
        let _ = write!(seen, "{}: {status}\n{said}", self.what);
        assert!(status.code() == Some(code) && said.contains(with), "{seen}\nexpected {code} and {with:?}");
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
