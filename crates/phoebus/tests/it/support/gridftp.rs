//! GridFTP as Debian ships it, on the ends of the emulated path: servers, clients with the XIO driver, and their
//! results.

use super::path::{HOSTS, Joined, Path, block};
use super::{PATIENCE, wait_until};
use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path as FilePath, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;

/// The ends, and the gateway next to each.
const ENDS: [(&str, &str); 2] = [("src", "pg1"), ("dst", "pg2")];

/// The path with the files that GridFTP needs.
pub struct Grid {
    pub path: Path,
    /// Variables that all programs have, beside those set here.
    pub environment: Vec<(&'static str, PathBuf)>,
    /// Whether programs call gateways by name rather than by address.
    pub by_name: bool,
    security: Security,
    dir: tempfile::TempDir,
}

/// A running `globus-gridftp-server`. Dropping it ends it.
pub struct Server {
    pub host: &'static str,
    pub port: u16,
    child: Child,
    log: PathBuf,
}

impl Grid {
    pub fn up(joined: &Joined) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let security = Security::create(&dir.path().join("gsi"));
        Self { path: Path::up(joined), environment: Vec::new(), by_name: false, security, dir }
    }

    /// The driver's stack over both gateways, the same for both ends, with further options.
    pub fn stack(&self, options: &str) -> String {
        let [pg1, pg2] = HOSTS.map(|host| self.gateway(host));
        format!("phoebus:path={pg1}|{pg2}{options}")
    }

    /// The text by which programs know the gateway on a host.
    pub fn gateway(&self, host: &str) -> String {
        if self.by_name { format!("{host}/5006") } else { self.path.address(host, 5006).to_string() }
    }

    /// A file of so many blocks with bytes that differ everywhere.
    pub fn file(&self, name: &str, blocks: usize) -> PathBuf {
        let file = self.place(name);
        fs::write(&file, (0..blocks).flat_map(block).collect::<Vec<_>>()).unwrap();
        file
    }

    /// A sparse file of zeros that takes longer to copy than any test lasts.
    pub fn endless(&self, name: &str) -> PathBuf {
        let file = self.place(name);
        fs::File::create(&file).unwrap().set_len(1 << 36).unwrap();
        file
    }

    /// The path of a file with this name. Both ends share their file system.
    pub fn place(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A program on one end, as a user there runs it, with the driver at hand and that host's own gateway configured.
    pub fn program(&self, host: &str, name: &str) -> Command {
        let gateway = ENDS.iter().find(|(end, _)| *end == host).unwrap().1;
        let mut command = self.path.testbed.exec(host, program(name)).unwrap();
        let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap());
        command.env_clear().env("PATH", path).env("HOME", "/nonexistent").env("LD_LIBRARY_PATH", libraries());
        command.env("PHOEBUS_GW", self.gateway(gateway)).envs(self.environment.iter().cloned());
        command.env("PHOEBUS_REPORT", self.report_file(host)).current_dir(self.dir.path()).stdin(Stdio::null());
        self.security.as_user(&mut command);
        command
    }

    /// The same with a time limit against hanging, longer than any step takes even on a busy machine.
    pub fn bounded(&self, host: &str, name: &str) -> Command {
        let mut command = self.program(host, "timeout");
        command.args(["-k", "5", &(4 * PATIENCE).as_secs().to_string()]).arg(program(name));
        command
    }

    /// A server for `ftp://` without logins.
    pub fn anonymous(&self, host: &'static str, port: u16, arguments: &[&str]) -> Server {
        self.server(host, port, &[&["-aa", "-anonymous-user", "root"], arguments].concat())
    }

    /// A server for `gsiftp://`.
    pub fn secure(&self, host: &'static str, port: u16, arguments: &[&str]) -> Server {
        self.server(host, port, arguments)
    }

    fn server(&self, host: &'static str, port: u16, arguments: &[&str]) -> Server {
        let log = self.place(&format!("{host}-{port}.log"));
        let addr = self.path.address(host, port);
        let mut command = self.program(host, "globus-gridftp-server");
        self.security.as_server(&mut command);
        let ip = addr.ip().to_string();
        command.args(["-p", &port.to_string(), "-control-interface", &ip, "-data-interface", &ip, "-c", "/dev/null"]);
        command.args(["-allow-root", "-d", "ALL", "-log-module", "stdio:buffer=0", "-l"]).arg(&log);
        command.arg("-Z").arg(self.transfers(host, port)).args(arguments);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut server = Server { host, port, child, log };
        let listens = || self.path.testbed.run_in(host, || TcpStream::connect(addr).is_ok()).unwrap();
        let ended = |server: &mut Server| server.child.try_wait().unwrap();
        wait_until(|| ended(&mut server).is_some() || listens(), || format!("no server listens on {host}"));
        assert!(ended(&mut server).is_none(), "the server ended at its start:\n{}", server.log());
        server
    }

    /// Waits for this text in a server's transfer log, which is written with a delay.
    #[track_caller]
    pub fn until_logged(&self, host: &str, port: u16, says: &str) {
        let log = || fs::read_to_string(self.transfers(host, port)).unwrap_or_default();
        wait_until(|| log().contains(says), || format!("no \"{says}\" of {host}: {}", log()));
    }

    /// The transfer log of a server.
    pub fn transfers(&self, host: &str, port: u16) -> PathBuf {
        self.place(&format!("{host}-{port}.transfers"))
    }

    /// `globus-url-copy` on `src`.
    pub fn copy(&self, arguments: &[&str]) -> Output {
        self.copy_with(arguments, |_| {})
    }

    /// The same, with changes to the command.
    pub fn copy_with(&self, arguments: &[&str], change: impl FnOnce(&mut Command)) -> Output {
        let mut command = self.bounded("src", "globus-url-copy");
        command.args(arguments);
        change(&mut command);
        command.output().unwrap()
    }

    /// The same, started by another program.
    pub fn copy_by(&self, before: &str, with: &[&str], arguments: &[&str]) -> Output {
        let mut command = self.bounded("src", before);
        command.args(with).arg(program("globus-url-copy")).args(arguments);
        command.output().unwrap()
    }

    /// Copies a file over an existing one, and asserts that the copy is the same.
    #[track_caller]
    pub fn copies(&self, arguments: &[&str], from: &FilePath, to: &FilePath) {
        let _ = fs::remove_file(to);
        let output = self.copy(arguments);
        assert!(output.status.success(), "{arguments:?}: {}: {}", output.status, said(&output));
        assert!(fs::read(from).unwrap() == fs::read(to).unwrap(), "{arguments:?}: the copy differs");
    }

    /// Bytes that each gateway has relayed since its start, once no session is open.
    pub fn counted(&self) -> [u64; 2] {
        HOSTS.map(|host| {
            let mut status = serde_json::Value::Null;
            let mut is_idle = || {
                status = self.path.status(host);
                status["sessions"].as_array().is_some_and(Vec::is_empty)
            };
            wait_until(&mut is_idle, || format!("sessions of {host} do not end"));
            ["bytes_up", "bytes_down"].iter().map(|which| status["totals"][which].as_u64().unwrap()).sum()
        })
    }

    /// Does `work`, and asserts that at least so many bytes went through each gateway; if 0, none at all.
    #[track_caller]
    pub fn counting(&self, bytes: u64, work: impl FnOnce()) {
        let before = self.counted();
        work();
        let after = self.counted();
        let grew = [after[0] - before[0], after[1] - before[1]];
        let right = grew.iter().all(|grew| if bytes == 0 { *grew == 0 } else { *grew >= bytes });
        assert!(right, "{bytes} bytes were to go through the gateways, and {grew:?} did");
    }

    /// The driver's reports on a host since the last call.
    pub fn reports(&self, host: &str) -> Vec<serde_json::Value> {
        let file = self.report_file(host);
        let text = fs::read_to_string(&file).unwrap_or_default();
        let _ = fs::remove_file(&file);
        text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
    }

    /// Asserts that since the last call only `host` opened sessions, this many, all over the gateway next to it and
    /// then the other.
    #[track_caller]
    pub fn entered_at(&self, host: &str, sessions: usize) {
        for (end, gateway) in ENDS {
            let reports = self.reports(end);
            let ways: Vec<_> = reports.iter().map(way).collect();
            let other = HOSTS.into_iter().find(|other| *other != gateway).unwrap();
            let expected = if end == host { sessions } else { 0 };
            assert_eq!(ways.len(), expected, "sessions of {end}: {reports:#?}");
            for way in ways {
                assert_eq!(way[..2], [gateway, other], "from {end}: {way:?}");
            }
        }
    }

    /// Asserts that since the last call only `from` opened sessions, this many, and that `to` took part in exactly
    /// these.
    #[track_caller]
    pub fn took_part(&self, from: &str, to: &str, sessions: usize) {
        let (opened, accepted) = (self.reports(from), self.reports(to));
        let ids = |reports: &[serde_json::Value], event| {
            assert!(reports.iter().all(|report| report["event"] == event), "{event}: {reports:#?}");
            reports.iter().map(|report| report["session"].to_string()).collect::<std::collections::BTreeSet<_>>()
        };
        let (ours, theirs) = (ids(&opened, "opened"), ids(&accepted, "accepted"));
        assert_eq!((ours.len(), &ours), (sessions, &theirs), "from {from} to {to}");
        let last = ENDS.iter().find(|(end, _)| *end == to).unwrap().1;
        let client = self.path.address(from, 0).ip().to_string();
        for report in accepted {
            assert_eq!(report["hops"][0]["from"], last, "{report:#}");
            assert!(report["client"].as_str().unwrap().starts_with(&client), "{client}: {report:#}");
        }
    }

    fn report_file(&self, host: &str) -> PathBuf {
        self.place(&format!("{host}.report"))
    }

    /// Waits until something listens on a port of a host, without connecting to it.
    pub fn until_listening(&self, host: &str, port: u16) {
        let table = || {
            let read = |name| fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap_or_default();
            ["tcp", "tcp6"].map(read).concat()
        };
        // The local address is the second column, the state the fourth; 0A is LISTEN (proc_pid_net(5)).
        let listens = |line: &str| {
            let columns: Vec<_> = line.split_whitespace().collect();
            columns.len() > 3 && columns[1].ends_with(&format!(":{port:04X}")) && columns[3] == "0A"
        };
        let is_there = || self.path.testbed.run_in(host, table).unwrap().lines().any(listens);
        wait_until(is_there, || format!("nothing listens on port {port} of {host}"));
    }

    /// Waits until no GridFTP program runs on the ends but these servers.
    pub fn until_quiet(&self, servers: &[&Server]) {
        let inode = || fs::metadata("/proc/thread-self/ns/net").unwrap().ino();
        let inodes = ENDS.map(|(end, _)| self.path.testbed.run_in(end, inode).unwrap());
        let own: Vec<_> = servers.iter().map(|server| server.child.id().to_string()).collect();
        let left = || {
            let mut left = Vec::new();
            for entry in fs::read_dir("/proc").unwrap().flatten() {
                let pid = entry.file_name().into_string().unwrap_or_default();
                let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
                let inside = || fs::metadata(entry.path().join("ns/net")).is_ok_and(|net| inodes.contains(&net.ino()));
                if name.starts_with("globus") && !own.contains(&pid) && inside() {
                    left.push(format!("{pid} {}", name.trim()));
                }
            }
            left
        };
        wait_until(|| left().is_empty(), || format!("left hanging: {:?}", left()));
    }
}

impl Server {
    /// The address for a URL with this scheme.
    pub fn url(&self, scheme: &str, file: &FilePath) -> String {
        format!("{scheme}://{}:{}{}", self.host, self.port, file.display())
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Kills the processes that serve clients. Returns their number.
    pub fn kill_children(&self) -> usize {
        let file = format!("/proc/{0}/task/{0}/children", self.child.id());
        let children = fs::read_to_string(file).unwrap();
        let pids = children.split_whitespace().filter_map(|pid| rustix::process::Pid::from_raw(pid.parse().ok()?));
        pids.filter(|pid| rustix::process::kill_process(*pid, rustix::process::Signal::KILL).is_ok()).count()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("log of the server on {}:\n{}", self.host, self.log());
        }
    }
}

/// The hops of a reported session.
fn way(report: &serde_json::Value) -> Vec<&str> {
    report["hops"].as_array().unwrap().iter().map(|hop| hop["to"].as_str().unwrap()).collect()
}

/// The output of a program, and the signal that ended it, if one did: globus-url-copy sometimes dies of SIGSEGV at its
/// exit and prints nothing.
pub fn said(output: &Output) -> String {
    let signal = output.status.signal().map_or_else(String::new, |_| format!("\n{}", output.status));
    format!("{}{}{signal}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// The URL of a local file.
pub fn local(file: &FilePath) -> String {
    format!("file://{}", file.display())
}

fn program(name: &str) -> PathBuf {
    if name == "phoebus" {
        return PathBuf::from(env!("CARGO_BIN_EXE_phoebus"));
    }
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap());
    let found = std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.exists());
    found.unwrap_or_else(|| panic!("{name} is not installed: run `scripts/setup test`"))
}

/// A directory with the driver, built from `xio/`, and libphoebus under its installed name.
fn libraries() -> &'static FilePath {
    static PLACE: OnceLock<PathBuf> = OnceLock::new();
    PLACE.get_or_init(|| {
        let target = FilePath::new(env!("CARGO_BIN_EXE_phoebus")).parent().unwrap();
        let library = target.join("libphoebus.so");
        assert!(library.exists(), "{} is missing: run `make build`", library.display());
        let source = FilePath::new(env!("CARGO_MANIFEST_DIR")).join("../../xio");
        let place = FilePath::new(env!("CARGO_TARGET_TMPDIR")).join(format!("xio-{}", std::process::id()));
        // Left by an earlier process with the same number.
        let _ = fs::remove_dir_all(&place);
        let mut make = Command::new(program("make"));
        make.arg("-s").arg("-C").arg(&source).arg(format!("OUT={}", place.display()));
        make.arg(format!("PHOEBUS_CFLAGS=-I{}", source.join("../crates/capi/include").display()));
        make.arg(format!("PHOEBUS_LIBS=-L{} -lphoebus", target.display()));
        let built = make.output().unwrap();
        assert!(built.status.success(), "the driver does not build: {}", said(&built));
        let objdump = Command::new(program("objdump")).arg("-p").arg(&library).output().unwrap();
        let text = said(&objdump);
        let name = text.lines().find_map(|line| line.trim().strip_prefix("SONAME")).unwrap().trim();
        symlink(&library, place.join(name)).unwrap();
        place
    })
}

/// A temporary authority with a certificate for both servers and one for the user.
struct Security(PathBuf);

impl Security {
    fn create(dir: &FilePath) -> Self {
        fs::create_dir_all(dir.join("certs")).unwrap();
        let script = include_str!("../../../../lab/src/bench/sc09/gsi.sh");
        let made = Command::new("sh").args(["-eu", "-c", script]).current_dir(dir).output().unwrap();
        assert!(made.status.success(), "no certificates: {}", said(&made));
        for key in ["server.key", "user.key"] {
            fs::set_permissions(dir.join(key), fs::Permissions::from_mode(0o600)).unwrap();
        }
        let security = Self(dir.to_owned());
        let mut proxy = Command::new(program("grid-proxy-init"));
        proxy.args(["-q", "-bits", "2048"]).env_clear().env("HOME", "/nonexistent");
        security.as_user(&mut proxy);
        let proxied = proxy.output().unwrap();
        assert!(proxied.status.success(), "no proxy certificate: {}", said(&proxied));
        security
    }

    fn as_user(&self, command: &mut Command) {
        command.env("X509_CERT_DIR", self.0.join("certs")).env("X509_USER_PROXY", self.0.join("proxy"));
        command.env("X509_USER_CERT", self.0.join("user.pem")).env("X509_USER_KEY", self.0.join("user.key"));
    }

    fn as_server(&self, command: &mut Command) {
        command.env_remove("X509_USER_PROXY").env("GRIDMAP", self.0.join("grid-mapfile"));
        command.env("X509_USER_CERT", self.0.join("server.pem")).env("X509_USER_KEY", self.0.join("server.key"));
    }
}
