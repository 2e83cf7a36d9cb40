//! A host of its own, with a place for files, and the programs that are compared in it.

use super::super::process::{self, Background};
use super::super::transfer::Receiver;
use anyhow::Context;
use phoebus_wan::model::{DirectionConfig, LinkConfig};
use phoebus_wan::testbed::{HostSpec, LinkSpec, Scenario, Testbed};
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The one host of a room, or the two of one with a path between them; the client is at the first.
const HOST: &str = "loop";
const ENDS: [&str; 2] = ["src", "dst"];
/// The link between them, and its interface at either end.
pub(super) const LINK: &str = "wan";
const LOCAL: &str = "127.0.0.1";
const PORT: u16 = 2811;
/// Starting and ending.
pub(super) const AROUND: Duration = Duration::from_secs(3);
/// Where Debian has servers.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Server {
    /// `globus-gridftp-server`.
    Gct,
    /// `phoebus serve`.
    Ours,
    /// `rsync --daemon`.
    Rsync,
}

impl Server {
    /// What its processes are called by the kernel.
    fn process(self) -> &'static str {
        match self {
            Self::Gct => "globus-gridftp-",
            Self::Ours => "phoebus",
            Self::Rsync => "rsync",
        }
    }
}

/// A server that runs.
pub(super) struct Running {
    pub(super) process: Background,
    server: Server,
}

impl Running {
    /// What its processes are known by, so that none is left.
    pub(super) fn receiver(&self) -> Receiver {
        match self.server {
            Server::Ours => Receiver::Process(self.process.pid()),
            other => Receiver::Children { of: self.process.pid(), name: other.process() },
        }
    }
}

/// The host.
pub(in crate::bench) struct Room {
    pub(super) host: Testbed,
    files: tempfile::TempDir,
    /// Where clients and servers are.
    ends: [&'static str; 2],
    /// The servers' address.
    pub(super) address: IpAddr,
}

impl Room {
    pub(super) fn new() -> anyhow::Result<Self> {
        let host = Testbed::up(&Scenario { hosts: vec![HostSpec::new(HOST)], stock: true, ..Scenario::default() })?;
        // Where the current directory is there are disks; temporary files may be in memory.
        let files = tempfile::tempdir_in(".").context("no place for files in the current directory")?;
        let room = Self { host, files, ends: [HOST; 2], address: Ipv4Addr::LOCALHOST.into() };
        // The default of a network namespace can be only what the machine allows all users.
        let mut route = room.command("ip")?;
        route.args(["route", "replace", "local", LOCAL, "dev", "lo", "table", "local", "congctl", "cubic"]);
        process::run("ip, of iproute2", route, AROUND).context("no route under cubic")?;
        Ok(room)
    }

    /// Two hosts with a path between them, whose routes have this congestion control, which everybody gets who asks for
    /// no other.
    pub(super) fn with_path(path: DirectionConfig, seed: u64, control: &str) -> anyhow::Result<Self> {
        let link = LinkSpec {
            name: LINK.to_owned(),
            ends: ENDS.map(str::to_owned),
            config: LinkConfig::symmetric(seed, path),
        };
        let hosts = ENDS.map(HostSpec::new).into();
        let host = Testbed::up(&Scenario { hosts, links: vec![link], ..Scenario::default() })?;
        let files = tempfile::tempdir_in(".").context("no place for files in the current directory")?;
        let address = host.addresses(ENDS[1])?.iter().copied().find(IpAddr::is_ipv4).context("no IPv4 address")?;
        let room = Self { host, files, ends: ENDS, address };
        let script = format!(
            "ip -4 route show | sed 's/ congctl.*//' | while read -r route; do ip route replace $route congctl {control} || exit 1; done"
        );
        for end in [room.command("sh")?, room.at_server("sh")?] {
            let mut command = end;
            command.args(["-c", &script]);
            process::run("a route's congestion control", command, AROUND)?;
        }
        Ok(room)
    }

    /// Where a file of this name is, by its whole path.
    pub(super) fn file(&self, name: &str) -> anyhow::Result<PathBuf> {
        Ok(std::path::absolute(self.files.path())?.join(name))
    }

    /// What holds in it.
    pub(super) fn conditions(&self) -> Vec<(String, String)> {
        let hosts = self.host.report().hosts.into_iter();
        let mut all: Vec<_> =
            hosts.map(|host| ("loopback of its own".to_owned(), host.conditions.to_string())).collect();
        all.push(("congestion control".into(), "cubic, by the routes".into()));
        all
    }

    /// A command where clients are.
    pub(super) fn command(&self, program: impl AsRef<Path>) -> anyhow::Result<Command> {
        self.at(self.ends[0], program.as_ref())
    }

    /// A command where servers are.
    pub(super) fn at_server(&self, program: impl AsRef<Path>) -> anyhow::Result<Command> {
        self.at(self.ends[1], program.as_ref())
    }

    fn at(&self, host: &str, program: &Path) -> anyhow::Result<Command> {
        let mut command = self.host.exec(host, program)?;
        command.env_clear().env("PATH", PATH).env("HOME", "/nonexistent").current_dir(self.files.path());
        Ok(command)
    }

    /// `phoebus`, where clients are.
    pub(super) fn phoebus(&self) -> anyhow::Result<Command> {
        self.command(std::env::current_exe().context("where this program is")?)
    }

    /// A server that lets everybody in.
    pub(super) fn server(&self, server: Server) -> anyhow::Result<Running> {
        let address = self.address.to_string();
        let (name, command) = match server {
            Server::Ours => {
                let mut command = self.at_server(std::env::current_exe().context("where this program is")?)?;
                command.args(["serve", "--root", "/", "--anonymous", "--listen", &format!("{address}:{PORT}")]);
                ("phoebus serve", command)
            }
            Server::Gct => {
                let mut command = self.at_server("globus-gridftp-server")?;
                command.args(["-p", &PORT.to_string(), "-control-interface", &address, "-data-interface", &address]);
                command.args(["-c", "/dev/null", "-aa", "-anonymous-user", "root", "-allow-root", "-l"]);
                command.arg(self.file("server.log")?);
                ("globus-gridftp-server", command)
            }
            Server::Rsync => {
                let module = "use chroot = no\nuid = root\ngid = root\n[all]\npath = /\nread only = no\n";
                fs::write(self.file("rsyncd.conf")?, module).context("cannot write rsync's configuration")?;
                let mut command = self.at_server("rsync")?;
                command.args(["--daemon", "--no-detach", "--address", &address, "--port", &PORT.to_string()]);
                command.arg("--config").arg(self.file("rsyncd.conf")?);
                ("rsync, as a daemon", command)
            }
        };
        Ok(Running { process: Background::start(name, command)?.listening(PORT)?, server })
    }

    /// What a server of this kind calls the file at `path`.
    pub(super) fn url(&self, server: Server, path: &str) -> String {
        let address = self.address;
        match server {
            Server::Rsync => format!("rsync://{address}:{PORT}/all{path}"),
            Server::Gct | Server::Ours => format!("ftp://{address}:{PORT}{path}"),
        }
    }
}
