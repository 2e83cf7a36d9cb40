//! A server in this process, and programs that run against it.

#![allow(dead_code, reason = "each test file uses its own part")]

pub mod credentials;
pub mod flow;
pub mod gct;
pub mod lab;
pub mod log;
pub mod port;
pub mod works;

use phoebus_gridftp::server::config::ConfigError;
use phoebus_gridftp::server::config::{Anonymous, Gsi, User};
use phoebus_gridftp::server::{Config, Quota, Reloader, Server};
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// Time limit against hanging, far longer than any step takes.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A running server.
pub struct Serve {
    runtime: Option<Runtime>,
    addr: SocketAddr,
    /// Its initial configuration, and the sender of a new one.
    config: Config,
    reloader: Reloader,
    /// `root` is what it serves, and `local` the clients' directory.
    dir: TempDir,
}

impl Serve {
    /// A server that lets everybody do everything.
    pub fn writable() -> Self {
        Self::with(|_| {})
    }

    /// A server that lets everybody read.
    pub fn reading() -> Self {
        Self::with(|config| config.anonymous.as_mut().unwrap().read_only = true)
    }

    /// A server with a changed configuration.
    pub fn with(change: impl FnOnce(&mut Config)) -> Self {
        Self::on(2, change)
    }

    /// The same with this number of threads.
    pub fn on(threads: usize, change: impl FnOnce(&mut Config)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs::create_dir(&root).unwrap();
        fs::create_dir(dir.path().join("local")).unwrap();
        let anonymous =
            Anonymous { root, read_only: false, quota: Quota::default(), account: None, third_party: false };
        let listen = vec!["127.0.0.1:0".parse().unwrap()];
        let mut config = Config { listen, anonymous: Some(anonymous), ..Config::default() };
        change(&mut config);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build().unwrap();
        let server = runtime.block_on(async { Server::start(config.clone()) }).unwrap();
        let (addr, reloader) = (server.addresses()[0], server.reloader());
        runtime.spawn(server.run(std::future::pending()));
        Self { runtime: Some(runtime), addr, config, reloader, dir }
    }

    /// A server that trusts the lab's authority, and whose user is jane.
    pub fn to_grid(lab: &lab::Lab) -> Self {
        Self::to_grid_with(lab, |_| {})
    }

    /// The same with a changed configuration.
    pub fn to_grid_with(lab: &lab::Lab, change: impl FnOnce(&mut Config)) -> Self {
        Self::with(|config| {
            let root = config.anonymous.take().unwrap().root;
            config.users = vec![User {
                name: "jane".to_owned(),
                password: None,
                root,
                read_only: false,
                quota: Quota::default(),
                account: None,
                third_party: false,
            }];
            config.gsi = Some(Gsi {
                certificate: lab.path("host.pem"),
                key: lab.path("host.key"),
                authorities: lab.path("certs"),
                gridmap: lab.path("grid-mapfile"),
            });
            change(config);
        })
    }

    /// Applies this change of its configuration to connections from now on.
    pub fn reload(&self, change: impl FnOnce(&mut Config)) -> Result<(), ConfigError> {
        let mut config = self.config.clone();
        change(&mut config);
        self.reloader.reload(config)
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.addr.port()
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The URL of a path in it.
    pub fn url(&self, path: &str) -> String {
        format!("ftp://{}/{path}", self.addr)
    }

    /// The path on disk.
    pub fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join("root").join(path)
    }

    /// The clients' directory.
    pub fn local(&self) -> PathBuf {
        self.dir.path().join("local")
    }

    /// Names beneath the root that begin with a dot: leftover drafts and journals.
    pub fn hidden(&self) -> Vec<String> {
        hidden(&self.path(""))
    }
}

/// Names beneath `dir` that begin with a dot and stay. A client that has gone does not wait for the removal of its
/// drafts.
pub fn hidden(dir: &Path) -> Vec<String> {
    let begin = Instant::now();
    loop {
        // find(1) reports an error for a file that disappears during its search.
        let found = run(Command::new("find").arg(dir).args(["-name", ".*", "-printf", "%P\\n"]));
        let names = String::from_utf8_lossy(&found.stdout);
        let names: Vec<_> = names.lines().filter(|name| !name.is_empty()).map(str::to_owned).collect();
        if names.is_empty() && found.status.success() || begin.elapsed() > PATIENCE {
            return names;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        // Do not wait for transfers that a failed test left behind.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
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

/// Runs a Python script with ftplib: `login()` makes a connection, and `dir` is the client's directory.
pub fn python(serve: &Serve, script: &str) -> Output {
    python_by(Command::new("python3"), serve, script)
}

/// The same with this interpreter and these variables.
pub fn python_by(mut command: Command, serve: &Serve, script: &str) -> Output {
    let before = "import ftplib, io, os, socket, struct, sys, time\n\
        host, port, dir = '127.0.0.1', int(sys.argv[1]), sys.argv[2]\n\
        def login(name='anonymous', password='me@'):\n    f = ftplib.FTP(timeout=30)\n    f.connect(host, port)\n    f.login(name, password)\n    return f\n\
        class Resuming(ftplib.FTP_TLS):\n    def ntransfercmd(self, cmd, rest=None):\n        s, size = ftplib.FTP.ntransfercmd(self, cmd, rest)\n        if self._prot_p: s = self.context.wrap_socket(s, server_hostname=self.host, session=self.sock.session)\n        return s, size\n\
        def refused(f, line, *codes):\n    try: a = f.sendcmd(line)\n    except ftplib.Error as e: a = str(e)\n    assert a[:3] in codes, (line, a)\n    return a\n\
        def answer(f):\n    try: return f.voidresp()\n    except ftplib.Error as e: return str(e)\n\
        def reset(s): s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0)); s.close()\n";
    command.args(["-c", &[before, script].concat(), &serve.port().to_string()]).arg(serve.local());
    run(&mut command)
}

/// The output of a program that succeeded.
pub fn ok(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}\n{}", output.status, text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}
