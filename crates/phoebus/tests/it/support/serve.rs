//! `phoebus serve` as a process, and programs that run against it.

use super::PATIENCE;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A running server. Dropped, it is killed.
pub struct Serve {
    child: Child,
    addr: SocketAddr,
    /// Its arguments, without its address.
    arguments: Vec<String>,
    /// `root` is what it serves, and `local` the clients' directory. The log and the configuration are here, too.
    dir: TempDir,
}

impl Serve {
    /// A server that lets everybody do everything.
    pub fn writable() -> Self {
        Self::start(|dir| {
            ["--anonymous", "--root"]
                .map(str::to_owned)
                .into_iter()
                .chain([dir.join("root").display().to_string()])
                .collect()
        })
    }

    /// A server that lets everybody read.
    pub fn reading() -> Self {
        Self::start(|dir| {
            let root = dir.join("root").display().to_string();
            ["--anonymous".to_owned(), "--read-only".to_owned(), "--root".to_owned(), root].into()
        })
    }

    /// A server with this configuration, in which `ROOT` stands for the served directory.
    pub fn configured(config: &str) -> Self {
        Self::start(|dir| configuration(dir, &config.replace("ROOT", "root")))
    }

    /// The same, with this search path for programs.
    pub fn configured_under(path: &str, config: &str) -> Self {
        Self::start_at(0, Some(path), |dir| configuration(dir, &config.replace("ROOT", "root")))
    }

    /// The same at a port that no other program gets while it is down.
    pub fn that_comes_back(config: &str) -> Self {
        Self::start_at(super::port::free(), None, |dir| configuration(dir, &config.replace("ROOT", "root")))
    }

    /// A data node with this configuration, used as it is.
    pub fn data_node(config: &str) -> Self {
        Self::start(|dir| [vec!["--data-node".to_owned()], configuration(dir, config)].concat())
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn start(arguments: impl FnOnce(&Path) -> Vec<String>) -> Self {
        Self::start_at(0, None, arguments)
    }

    fn start_at(port: u16, path: Option<&str>, arguments: impl FnOnce(&Path) -> Vec<String>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["root", "local"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let arguments = arguments(dir.path());
        let (child, addr) = launch(dir.path(), &format!("127.0.0.1:{port}"), &arguments, path);
        Self { child, addr, arguments, dir }
    }

    /// Kills it as a power failure does, and starts it again at the same address. The log starts again, too.
    pub fn killed_and_started_again(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        (self.child, self.addr) = launch(self.dir.path(), &self.addr.to_string(), &self.arguments, None);
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.addr.port()
    }

    /// The URL of a path in it.
    pub fn url(&self, path: &str) -> String {
        format!("ftp://{}/{path}", self.addr)
    }

    /// The path on disk.
    pub fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join("root").join(path)
    }

    /// The clients' directory. The file `pid` there has the server's process number.
    pub fn local(&self) -> PathBuf {
        self.dir.path().join("local")
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    /// Names beneath the root that begin with a dot: leftover drafts and journals.
    pub fn hidden(&self) -> Vec<String> {
        super::ftp::hidden(&self.path(""))
    }

    /// Waits for its end.
    pub fn ended(mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "the server does not end:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The arguments for this configuration, in a file.
fn configuration(dir: &Path, config: &str) -> Vec<String> {
    let file = dir.join("serve.toml");
    fs::write(&file, config).unwrap();
    ["--config".to_owned(), file.display().to_string()].into()
}

fn launch(dir: &Path, listen: &str, arguments: &[String], path: Option<&str>) -> (Child, SocketAddr) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_phoebus"));
    command.envs(path.map(|path| ("PATH", path)));
    command.args(["serve", "--listen", listen]).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(dir.join("log")).unwrap());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let addr = line.trim().strip_prefix("listening on ").map(|addr| addr.parse().unwrap());
    fs::write(dir.join("local/pid"), child.id().to_string()).unwrap();
    let log = || fs::read_to_string(dir.join("log")).unwrap();
    let addr = addr.unwrap_or_else(|| panic!("the server says {line:?}:\n{}", log()));
    (child, addr)
}

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a program to its end, in bounded time.
pub fn run(command: &mut Command) -> Output {
    let program = command.get_program().to_owned();
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.unwrap_or_else(|error| panic!("{program:?}: {error}; scripts/setup installs it"));
    let pid = child.id();
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(child.wait_with_output()));
    match ended.recv_timeout(5 * PATIENCE) {
        Ok(output) => output.unwrap(),
        Err(_) => {
            let _ = Command::new("kill").args(["-9", &pid.to_string()]).status();
            let output = ended.recv_timeout(PATIENCE).unwrap().unwrap();
            panic!(
                "{program:?} hangs:\n{}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            );
        }
    }
}

/// The output of a program with this input.
pub fn with_input(command: &mut Command, input: &[u8]) -> String {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// Bytes that differ everywhere, the same every time.
pub fn bytes(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend(state.to_le_bytes());
    }
    out.truncate(len);
    out
}
