//! Builds drivers for tests, and provides the byte pattern and helpers to move it over streams.
#![allow(clippy::unwrap_used, dead_code, reason = "a failed step fails the test; not every test uses all of it")]

pub(crate) mod namespace;

use phoebus_net::Stream;
use phoebus_net::driver::Library;
use phoebus_net::transport::Target;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;
use tempfile::TempDir;

/// Guards against hanging; nothing is expected to take this long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

pub(crate) fn target(addr: SocketAddr) -> Target {
    Target { addr, name: "".into(), early: false }
}

/// A directory in which libraries are built.
pub(crate) struct Workshop(pub(crate) TempDir);

impl Workshop {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// Compiles `source` to `name` in this directory, as the guide documents.
    pub(crate) fn compile(&self, compiler: &str, source: &Path, name: &str, more: &[&str]) -> PathBuf {
        let output = self.0.path().join(name);
        let include = root("crates/net/include");
        let mut command = Command::new(compiler);
        command.args(["-Wall", "-Wextra", "-Werror", "-O2", "-I"]).arg(include).arg("-o").arg(&output).arg(source);
        let done = command.args(more).output().unwrap_or_else(|error| panic!("{compiler}: {error}; see scripts/setup"));
        assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
        std::fs::set_permissions(&output, PermissionsExt::from_mode(0o755)).unwrap();
        output
    }

    /// Builds the example driver `tcp`.
    pub(crate) fn tcp(&self) -> PathBuf {
        self.compile("cc", &example("tcp/tcp_driver.c"), "tcp_driver.so", &["-shared", "-fPIC"])
    }

    /// Builds the example driver `libudt`.
    pub(crate) fn libudt(&self) -> PathBuf {
        self.compile("g++", &example("libudt/libudt_driver.cpp"), "libudt_driver.so", &["-shared", "-fPIC", "-ludt"])
    }

    /// Builds a plain libudt program that sends or receives the test pattern.
    pub(crate) fn libudt_peer(&self) -> PathBuf {
        self.compile("g++", &root("examples/udtcat/tests/it/support/peer.cpp"), "peer", &["-ludt", "-lpthread"])
    }

    /// Builds a library from `source`.
    pub(crate) fn library(&self, name: &str, source: &str) -> PathBuf {
        let file = self.0.path().join(format!("{name}.c"));
        std::fs::write(&file, source).unwrap();
        self.compile("cc", &file, &format!("{name}.so"), &["-shared", "-fPIC"])
    }
}

fn example(path: &str) -> PathBuf {
    root("examples/drivers").join(path)
}

/// A path in the repository: the packages that use this are two levels below its root.
fn root(path: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(path)
}

pub(crate) fn load(file: &Path) -> Library {
    Library::load(file).unwrap_or_else(|error| panic!("{error}"))
}

/// The test pattern from `offset` on, the same as in `peer.cpp`. Its period is prime, so that a shift by a
/// buffer size shows.
pub(crate) fn pattern(offset: u64, len: usize) -> Vec<u8> {
    const PERIOD: usize = 65_521;
    static ONCE: OnceLock<Vec<u8>> = OnceLock::new();
    let period = ONCE.get_or_init(|| {
        let mut x = 7u64;
        let mut next = || {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (x >> 56) as u8
        };
        (0..PERIOD).map(|_| next()).collect()
    });
    let start = (offset % PERIOD as u64) as usize;
    period.iter().cycle().skip(start).take(len).copied().collect()
}

/// Writes `len` bytes of the pattern.
pub(crate) async fn send(stream: &Stream, len: u64) -> io::Result<()> {
    let mut sent = 0;
    while sent < len {
        let bytes = pattern(sent, usize::try_from(len - sent).unwrap().min(65536));
        let mut left = &bytes[..];
        while !left.is_empty() {
            stream.writable().await?;
            match stream.try_write(left, false) {
                Ok(n) => left = &left[n..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        sent += bytes.len() as u64;
    }
    Ok(())
}

/// Reads up to `most` bytes, checks that they are the pattern from `from` on, and returns how many came
/// before the end.
pub(crate) async fn receive(stream: &Stream, from: u64, most: u64) -> io::Result<u64> {
    let (mut got, mut buffer) = (0, vec![0; 65536]);
    while got < most {
        stream.readable().await?;
        let room = buffer.len().min(usize::try_from(most - got).unwrap());
        match stream.try_read(&mut buffer[..room]) {
            Ok(0) => break,
            Ok(n) => {
                let at = from + got;
                assert!(buffer[..n] == pattern(at, n), "a wrong byte among {n} from {at} on");
                got += n as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(got)
}
