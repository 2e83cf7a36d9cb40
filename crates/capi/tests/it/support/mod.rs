//! Shared parts of the tests: C programs linked with this library, gateways for one test, a destination that greets.

#![allow(dead_code, unused_imports, reason = "every test file uses a part of this")]

#[path = "../../../../preload/tests/it/common/mod.rs"]
mod common;

pub use common::gateways::{Gateways, address, until_listening};
pub use common::{Ended, LIMIT, phoebus, plain, program, run, target};

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The library of this build.
pub fn library() -> PathBuf {
    let built = [target().join("libphoebus.so"), target().join("deps/libphoebus.so")];
    let newest =
        built.iter().filter(|file| file.exists()).max_by_key(|file| file.metadata().unwrap().modified().unwrap());
    newest.expect("libphoebus.so is not in the target directory: run `make build`").clone()
}

pub fn include() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("include")
}

/// A C program of `tests/c`, linked with the library, and a directory in which the library has its installed name.
pub struct Program {
    file: PathBuf,
    _place: tempfile::TempDir,
}

impl Program {
    /// Compiles it with these additional flags.
    pub fn compile(name: &str, flags: &[&str]) -> Self {
        let place = tempfile::tempdir().unwrap();
        for name in ["libphoebus.so", "libphoebus.so.0.1"] {
            std::os::unix::fs::symlink(library(), place.path().join(name)).unwrap();
        }
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(format!("{name}.c"));
        let file = place.path().join(name);
        let mut compiler = Command::new(program("cc"));
        compiler.args(["-std=c11", "-g", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-pthread", "-I"]);
        compiler.arg(include()).args(flags).arg("-o").arg(&file).arg(&source);
        compiler.arg("-L").arg(place.path()).arg("-lphoebus").arg(format!("-Wl,-rpath,{}", place.path().display()));
        assert!(compiler.status().unwrap().success(), "{} does not compile", source.display());
        Self { file, _place: place }
    }

    /// The command that runs the program.
    pub fn command(&self) -> Command {
        plain(&self.file)
    }

    /// The command that runs it under Valgrind: a memory error or a leak gives exit code 99.
    pub fn checked(&self) -> Command {
        self.under_valgrind(&[])
    }

    /// Like `checked`, but without checks for uninitialized values: Valgrind cannot follow the cipher's assembler
    /// code.
    pub fn checked_but_for_values(&self) -> Command {
        self.under_valgrind(&["--undef-value-errors=no"])
    }

    fn under_valgrind(&self, options: &[&str]) -> Command {
        let mut command = plain(program("valgrind"));
        command.args(["--quiet", "--error-exitcode=99", "--leak-check=full"]);
        command.args(["--errors-for-leak-kinds=definite,indirect", "--fair-sched=yes"]);
        command.args(options).arg("--").arg(&self.file);
        command
    }

    /// Like `checked`, but without leak checks: a child of fork has copies of what its parent's threads were using,
    /// which nothing frees.
    pub fn checked_but_for_leaks(&self) -> Command {
        let mut command = plain(program("valgrind"));
        command.args(["--quiet", "--error-exitcode=99", "--leak-check=no", "--fair-sched=yes", "--"]).arg(&self.file);
        command
    }
}

/// A gateway with the given configuration, killed on drop.
pub struct OneGateway {
    pub address: SocketAddr,
    pub room: tempfile::TempDir,
    process: Child,
}

impl OneGateway {
    /// `more` is the configuration after the name and a listener without protection.
    pub fn start(more: impl FnOnce(&Path, SocketAddr) -> String) -> Self {
        let room = tempfile::tempdir().unwrap();
        let address = address();
        let text = format!("name = \"pg1\"\n[[listen]]\naddress = \"{address}\"\n{}", more(room.path(), address));
        let file = room.path().join("gateway.toml");
        fs::write(&file, text).unwrap();
        let mut command = plain(phoebus());
        let process = command.args(["gateway", "--config"]).arg(&file).stdin(Stdio::null()).stderr(Stdio::null());
        let process = process.spawn().unwrap();
        until_listening(address);
        Self { address, room, process }
    }
}

impl Drop for OneGateway {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Certificates of a temporary authority for these names, in `directory`.
pub fn certificates(directory: &Path, names: &[&str]) {
    run(plain(phoebus()).args(["cert", "init", "--dir"]).arg(directory).args(names)).ok();
}

/// A destination that sends a greeting at once, and then echoes until the end. It lives as long as the test's
/// process.
pub fn greeter() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let (mut to, mut from) = (&stream, BufReader::new(&stream));
                to.write_all(b"hello\n")?;
                loop {
                    let n = {
                        let bytes = from.fill_buf()?;
                        to.write_all(bytes)?;
                        bytes.len()
                    };
                    if n == 0 {
                        return stream.shutdown(std::net::Shutdown::Write);
                    }
                    from.consume(n);
                }
            });
        }
    });
    address
}

/// Reads to the end.
pub fn all(mut from: impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    from.read_to_end(&mut bytes).unwrap();
    bytes
}
