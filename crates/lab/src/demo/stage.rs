//! The stage: the emulated path, its gateways, the servers on `dst`, and the file on `src`.

use super::interrupt::Interrupt;
use crate::exit::Exit;
use crate::testbed::{Security, certificates};
use anyhow::{Context, Result, bail};
use phoebus_proto::units::{ByteSize, Probability};
use phoebus_wan::model::Loss;
use phoebus_wan::testbed::{GatewayOptions, Gateways, HostReport, Sc09, Testbed};
use std::fs;
use std::io::{IsTerminal, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest wait for a server to listen.
const START_LIMIT: Duration = Duration::from_secs(20);
/// Disk space, in multiples of the file: the file, curl's copy under nginx's temporary name and its final one, and
/// scp's share.
const ROOM: u64 = 3;
/// The path of all sessions.
pub(super) const PATH: &str = "pg1/5006,pg2/5006";
/// The congestion control that most hosts start with.
pub(super) const STOCK: &str = "cubic";
/// The required programs, with their packages.
const TOOLS: [(&str, &str); 9] = [
    ("ip", "iproute2"),
    ("iperf3", "iperf3"),
    ("curl", "curl"),
    ("nginx", "nginx-light"),
    ("scp", "openssh-client"),
    ("ssh-keygen", "openssh-client"),
    ("sshd", "openssh-server"),
    ("sha256sum", "coreutils"),
    ("unshare", "util-linux"),
];

/// The running stage. Dropping it takes everything down and removes the files.
pub(crate) struct Stage {
    // In the order in which they must end.
    servers: Vec<Server>,
    _gateways: Gateways,
    testbed: Testbed,
    files: Files,
    pub(super) interrupt: Interrupt,
    path: Sc09,
    /// The path of this program, for gateways and sessions.
    pub(super) phoebus: PathBuf,
    terminal: bool,
}

/// A private directory, removed when the demo ends.
struct Files(PathBuf);

struct Server(Child);

impl Stage {
    /// Builds the path and starts everything on it.
    pub(super) fn build(directory: &Path, path: &Sc09, size: ByteSize) -> Result<Self> {
        check_tools()?;
        let interrupt = Interrupt::watch()?;
        let files = Files::create(directory, size)?;
        let phoebus = std::env::current_exe().context("cannot find this program's own file")?;
        let testbed = Testbed::up(&path.scenario()).map_err(Exit::usage)?;
        let hosts = path.scenario().hosts.into_iter().map(|host| host.name);
        let options = GatewayOptions {
            program: phoebus.clone(),
            security: Some(Security::Encrypt.name().to_owned()),
            certificates: Some(certificates(hosts).context("cannot make certificates")?),
            logs: Some(files.path("")),
            ..GatewayOptions::default()
        };
        let _gateways = testbed.start_gateways(&options)?;
        let terminal = std::io::stderr().is_terminal();
        let mut stage =
            Self { servers: Vec::new(), _gateways, testbed, files, interrupt, path: path.clone(), phoebus, terminal };
        stage.set_stock()?;
        stage.start_servers()?;
        stage.say(&format!("writing {size} of random data"));
        stage.write_data(size)?;
        Ok(stage)
    }

    /// A command in `host`, without the settings of the machine's user.
    pub(super) fn command(&self, host: &str, program: impl AsRef<std::ffi::OsStr>) -> Result<Command> {
        let mut command = self.testbed.exec(host, program)?;
        command
            .env("HOME", self.files.path(""))
            .env("PATH", search_path())
            .env_remove("LD_PRELOAD")
            .stdin(Stdio::null());
        let ours = |name: &std::ffi::OsString| name.to_string_lossy().starts_with("PHOEBUS_");
        std::env::vars_os().map(|(name, _)| name).filter(ours).for_each(|name| {
            command.env_remove(name);
        });
        if let Some(library) = std::env::var_os("PHOEBUS_PRELOAD_LIB") {
            command.env("PHOEBUS_PRELOAD_LIB", library);
        }
        Ok(command)
    }

    /// A file of the stage.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.files.path(name)
    }

    /// Bytes that `dst` has received so far, including all headers.
    pub(super) fn received(&self) -> u64 {
        self.testbed.link("lan2").map_or(0, |link| link.counters().forward.delivered.bytes)
    }

    /// Bytes of received files, including incomplete ones.
    pub(super) fn arrived(&self) -> u64 {
        let size = |entry: fs::DirEntry| entry.metadata().ok().filter(fs::Metadata::is_file).map(|meta| meta.len());
        let places = [self.files.path("received"), self.files.path("nginx/client_body")];
        places.iter().filter_map(|place| fs::read_dir(place).ok()).flatten().flatten().filter_map(size).sum()
    }

    /// Removes received files.
    pub(super) fn clear(&self) -> Result<()> {
        let received = self.files.path("received/received");
        match fs::remove_file(&received) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", received.display()))
            }
            _ => Ok(()),
        }
    }

    /// Whether servers for scp could be started: sshd must change its user, which needs real root.
    pub(super) fn has_ssh(&self) -> bool {
        self.files.path("ssh").exists()
    }

    /// Prints a progress message.
    pub(super) fn say(&self, what: &str) {
        let _ = writeln!(std::io::stderr(), "{}{what}", if self.terminal { "\r\x1b[K" } else { "" });
    }

    /// Prints a progress message that the next one overwrites; only on a terminal.
    pub(super) fn show_progress(&self, what: &str) {
        if self.terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K{what}");
        }
    }

    /// The settings of the links.
    pub(super) fn links(&self) -> [String; 3] {
        let loss = |loss: Loss| match loss {
            Loss::Bernoulli(p) if p == Probability::default() => String::new(),
            Loss::Bernoulli(p) => format!(", {}% loss", round(p.get() * 100.0)),
            other => format!(", loss {other}"),
        };
        let Sc09 { wan_rtt, lan_rtt, wan_loss, lan_loss, .. } = self.path;
        let lan = format!("{lan_rtt}{}", loss(lan_loss));
        [lan.clone(), format!("{wan_rtt}{}", loss(wan_loss)), lan]
    }

    /// Further conditions of the figures.
    pub(super) fn conditions(&self) -> Vec<String> {
        let report = self.testbed.report();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut conditions = vec![
            format!("links of {}", self.path.rate),
            format!("src starts with {STOCK}, as most hosts do"),
            format!("Linux {}, {cores} cores", report.kernel),
        ];
        if let Some(src) = report.hosts.iter().find(|host| host.name == "src").map(|host| &host.conditions) {
            conditions.push(format!("tcp_rmem {}, tcp_wmem {}", src.tcp_rmem, src.tcp_wmem));
            conditions
                .push(format!("tcp_no_metrics_save {}, tcp_fastopen {}", src.tcp_no_metrics_save, src.tcp_fastopen));
        }
        conditions
    }

    /// Makes direct connections from `src` use the congestion control that most hosts have.
    ///
    /// If the machine does not allow cubic to all users, the testbed cannot set it as the default; but a route can
    /// name any control of the kernel. Only the route to `dst` does: on the first hop it would override the shim's
    /// request.
    fn set_stock(&self) -> Result<()> {
        let by_default = |host: &HostReport| host.name == "src" && host.conditions.congestion_control == STOCK;
        if self.testbed.report().hosts.iter().any(by_default) {
            return Ok(());
        }
        let sources = self.testbed.addresses("src")?;
        for (destination, source) in self.testbed.addresses("dst")?.iter().zip(sources) {
            let mut ip = self.command("src", "ip")?;
            ip.args(["route", "replace", &destination.to_string(), "dev", "lan1", "src", &source.to_string()]);
            let output = ip.args(["congctl", STOCK]).output().context("cannot run ip")?;
            if !output.status.success() {
                bail!("cannot give src {STOCK}: {}", String::from_utf8_lossy(&output.stderr).trim());
            }
        }
        Ok(())
    }

    /// Counts of dropped segments, in both directions of all links.
    pub(super) fn lost(&self) -> String {
        let counters = self.testbed.counters();
        let directions = || counters.values().flat_map(|link| [&link.forward, &link.backward]);
        let random: u64 = directions().map(|d| d.random_drops.segments).sum();
        let queue: u64 = directions().map(|d| d.queue_drops.segments).sum();
        let delivered: u64 = directions().map(|d| d.delivered.segments).sum();
        format!("the links carried {delivered} segments, lost {random} at random and {queue} to full queues")
    }

    /// The hops of a session, from the report of `phoebus connect`.
    pub(super) fn session(&self) -> Result<String> {
        let mut connect = self.command("src", &self.phoebus)?;
        connect.args(["connect", "--path", PATH, "--verbose", "dst:80"]);
        let output = connect.output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        match said.trim().strip_prefix("phoebus: ") {
            Some(report) if output.status.success() => Ok(report.to_owned()),
            _ => bail!("phoebus connect failed: {}", said.trim()),
        }
    }

    fn start_servers(&mut self) -> Result<()> {
        let files = |name: &str| self.files.path(name).display().to_string();
        let nginx = nginx_file(&files("received"), &files("nginx"));
        fs::write(self.files.path("nginx.conf"), nginx)?;
        let mut servers = vec![
            ("iperf3", 5201, vec!["-s".into(), "--forceflush".into()]),
            ("nginx", 80, vec!["-e".into(), files("nginx.log"), "-c".into(), files("nginx.conf")]),
        ];
        if rustix::process::getuid().is_root() && !in_user_namespace() {
            prepare_ssh(&self.files.path("ssh"))?;
            // sshd needs a directory in /run that its service creates: mount a private /run.
            let run = format!(
                "mount -t tmpfs tmpfs /run && mkdir /run/sshd && exec \"$(command -v sshd)\" -De -f '{}'",
                files("ssh/sshd_config")
            );
            servers.push(("unshare", 22, vec!["-m".into(), "sh".into(), "-c".into(), run]));
        } else {
            self.say("scp is left out: sshd changes its user, which needs root itself");
        }
        for (program, port, arguments) in servers {
            let log = fs::File::create(self.files.path(&format!("{program}.out")))?;
            let mut command = self.command("dst", program)?;
            command.args(arguments).stdout(log.try_clone()?).stderr(log);
            let child = command.spawn().with_context(|| format!("cannot start {program}"))?;
            self.servers.push(Server(child));
            self.await_server(program, port)?;
        }
        Ok(())
    }

    fn await_server(&mut self, program: &str, port: u16) -> Result<()> {
        let deadline = Instant::now() + START_LIMIT;
        let address = (self.testbed.addresses("dst")?[0], port);
        while !self.testbed.run_in("dst", || TcpStream::connect(address).is_ok())? {
            let ended = self.servers.last_mut().is_some_and(|server| matches!(server.0.try_wait(), Ok(Some(_))));
            if ended || Instant::now() > deadline {
                let said = fs::read_to_string(self.files.path(&format!("{program}.out"))).unwrap_or_default();
                let last = said.lines().last().unwrap_or("it said nothing").to_owned();
                bail!("the server {program} does not listen on port {port}: {last}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn write_data(&self, size: ByteSize) -> Result<()> {
        for (name, bytes) in [("data", size.0), ("small", size.0 / super::SMALL)] {
            let mut random = fs::File::open("/dev/urandom")?.take(bytes);
            let mut file = fs::File::create(self.files.path(name))?;
            let mut buffer = vec![0; 1 << 20];
            loop {
                let n = random.read(&mut buffer)?;
                if n == 0 {
                    break;
                }
                file.write_all(&buffer[..n])?;
                self.interrupt.check()?;
            }
        }
        Ok(())
    }
}

impl Files {
    fn create(directory: &Path, size: ByteSize) -> Result<Self> {
        let shown = directory.display();
        let space = rustix::fs::statvfs(directory).map_err(|e| Exit::usage(format!("--directory: {shown}: {e}")))?;
        let (free, needed) = (space.f_bavail * space.f_frsize, size.0 * ROOM);
        if free < needed {
            let why = format!("{} MB are free in {shown}, {} MB are needed", free / 1_000_000, needed / 1_000_000);
            return Err(Exit::usage(format!("{why}; choose another --directory or a smaller --size")));
        }
        let own = directory.join(format!("phoebus-demo-{}", std::process::id()));
        let created = fs::create_dir(&own).with_context(|| format!("--directory: cannot create {}", own.display()));
        created.map_err(|error| Exit::usage(crate::exit::sentence(&error)))?;
        let files = Self(own);
        // The received files are private.
        fs::set_permissions(&files.0, fs::Permissions::from_mode(0o700))?;
        for name in ["received", "nginx"] {
            fs::create_dir(files.path(name))?;
        }
        Ok(files)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn check_tools() -> Result<()> {
    let missing: Vec<_> =
        TOOLS.iter().filter(|(tool, _)| crate::program::search(tool.as_ref(), &search_path()).is_none()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = missing.iter().map(|(tool, _)| *tool).collect();
    let mut packages: Vec<_> = missing.iter().map(|(_, package)| *package).collect();
    packages.dedup();
    let (names, packages) = (names.join(", "), packages.join(" "));
    Err(Exit::usage(format!(
        "the demo needs programs that are not here: {names}; on Debian: apt-get install {packages}"
    )))
}

/// Servers are in directories that not every user's PATH contains.
fn search_path() -> std::ffi::OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/local/sbin:/usr/sbin:/sbin");
    path
}

/// Whether root in this namespace is another user outside.
fn in_user_namespace() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    !map.split_whitespace().eq(["0", "0", "4294967295"])
}

fn nginx_file(root: &str, own: &str) -> String {
    let places: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|what| format!("  {what}_temp_path {own}/{what};\n"))
        .collect();
    format!(
        "daemon off;\nmaster_process off;\npid {own}/pid;\nevents {{}}\nhttp {{\n  access_log off;\n{places}  \
         client_max_body_size 0;\n  server {{\n    listen 80;\n    listen [::]:80;\n    root {root};\n    \
         dav_methods PUT;\n  }}\n}}\n"
    )
}

/// Keys and configuration of an sshd that only this demo can log in to.
fn prepare_ssh(directory: &Path) -> Result<()> {
    fs::create_dir(directory)?;
    let file = |name: &str| directory.join(name);
    for key in ["host", "user"] {
        let mut keygen = Command::new("ssh-keygen");
        keygen.args(["-q", "-t", "ed25519", "-N", "", "-C", "phoebus-demo", "-f"]).arg(file(key));
        let output = keygen.output().context("cannot run ssh-keygen")?;
        if !output.status.success() {
            bail!("ssh-keygen failed: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
    }
    fs::copy(file("user.pub"), file("authorized"))?;
    fs::write(file("known"), format!("dst {}", fs::read_to_string(file("host.pub"))?))?;
    // Without PAM, sshd treats an account with a locked password as a locked account.
    let shadow = fs::read_to_string("/etc/shadow").unwrap_or_default();
    let pam = if shadow.lines().any(|line| line.starts_with("root:!")) { "yes" } else { "no" };
    let own = directory.display();
    // For commands of sshd, bash runs its user's ~/.bashrc, which may take long, unless it counts as a nested shell.
    let text = format!(
        "Port 22\nHostKey {own}/host\nAuthorizedKeysFile {own}/authorized\nStrictModes no\nUsePAM {pam}\nPidFile none\n\
         PermitRootLogin yes\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nSubsystem sftp internal-sftp\n\
         SetEnv SHLVL=2\n"
    );
    fs::write(file("sshd_config"), text)?;
    Ok(())
}

/// Rounds to at most four digits, without trailing zeros.
fn round(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}
