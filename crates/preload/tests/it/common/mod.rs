//! Shared parts of the tests: the library, C programs, running them with a time limit, and a gateway that a test
//! controls.

#![allow(dead_code, reason = "every test file uses a part of this")]

pub mod gateways;
pub mod peer;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Long enough for any test on a busy machine. A test that takes longer hangs.
pub const LIMIT: Duration = Duration::from_secs(240);

/// The output of a program, and how it ended.
#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    pub out: String,
    pub err: String,
}

impl Ended {
    /// Asserts success, and returns what was printed.
    #[track_caller]
    pub fn ok(self) -> String {
        assert!(self.status.success(), "{}\nstdout: {}\nstderr: {}", self.status, self.out, self.err);
        self.out
    }
}

/// The directory of cargo's build products.
pub fn target() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().and_then(Path::parent).unwrap().to_owned()
}

/// The shim.
pub fn library() -> PathBuf {
    let built = [target().join("libphoebus_preload.so"), target().join("deps/libphoebus_preload.so")];
    let newest =
        built.iter().filter(|file| file.exists()).max_by_key(|file| file.metadata().unwrap().modified().unwrap());
    newest.expect("libphoebus_preload.so is not in the target directory: run `make build`").clone()
}

/// The `phoebus` command.
pub fn phoebus() -> PathBuf {
    let file = target().join("phoebus");
    assert!(file.exists(), "{} is missing: run `make build`", file.display());
    file
}

/// The path of the program `name`, wherever a Debian package may put it.
pub fn program(name: &str) -> PathBuf {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap());
    let found = std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.exists());
    found.unwrap_or_else(|| panic!("{name} is not installed: run `scripts/setup test`"))
}

/// Compiles a C program of `tests/c`, once for all tests of a file.
pub fn compile(name: &str, flags: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(format!("{name}.c"));
    let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    let mut compiler = Command::new(program("cc"));
    compiler.args(["-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]).arg(&to).arg(&source).args(flags);
    assert!(compiler.status().unwrap().success(), "{} does not compile", source.display());
    to
}

/// A command without any settings of the user who runs the tests.
pub fn plain(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("PHOEBUS_") || name.ends_with("_proxy")) {
            command.env_remove(name);
        }
    }
    // No settings file of that user either.
    command.env("HOME", "/nonexistent").env_remove("XDG_CONFIG_HOME").env("LC_ALL", "C");
    command
}

/// A command with the shim in it.
pub fn preloaded(program: impl AsRef<std::ffi::OsStr>, gateway: impl std::fmt::Display) -> Command {
    let mut command = plain(program);
    command.env("LD_PRELOAD", library()).env("PHOEBUS_GW", gateway.to_string());
    command
}

/// Runs a command to its end.
#[track_caller]
pub fn run(command: &mut Command) -> Ended {
    let shown = format!("{command:?}");
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    fn collect(mut from: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = from.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        })
    }
    let out = collect(child.stdout.take().unwrap());
    let err = collect(child.stderr.take().unwrap());
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if begun.elapsed() > LIMIT {
            let _ = child.kill();
            let _ = child.wait();
            panic!("{shown} hangs\nstdout: {}\nstderr: {}", out.join().unwrap(), err.join().unwrap());
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    Ended { status, out: out.join().unwrap(), err: err.join().unwrap() }
}
