//! A host for the compared programs, with a directory for files.

use super::super::iperf;
use super::super::process::{self, Background, NO_HOME};
use super::super::transfer::Receiver;
use super::super::wan::control_routes;
use anyhow::Context;
use phoebus_proto::units::ByteSize;
use phoebus_wan::model::{DirectionConfig, LinkConfig, Rate};
use phoebus_wan::testbed::{HostSpec, LinkSpec, Scenario, Testbed};
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The only host without a path; with one there are two, and the client is at the first.
const HOST: &str = "loop";
const ENDS: [&str; 2] = ["src", "dst"];
/// The link between them, and its interface at either end.
pub(super) const LINK: &str = "wan";
/// With several clients and servers whose paths share one link: the routers at its ends, and the links to the
/// servers.
const ROUTERS: [&str; 2] = ["r1", "r2"];
const DOWN: [&str; 3] = ["down1", "down2", "down3"];
const LOCAL: &str = "127.0.0.1";
pub(super) const PORT: u16 = 2811;
/// Most that a socket gets on a testbed's hosts.
const UNBOUNDED: u64 = 128 << 20;
/// Time to start and end.
pub(super) const AROUND: Duration = Duration::from_secs(3);
/// The directories in which Debian installs servers.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The current directory is on a disk; temporary files may be in memory.
fn place() -> anyhow::Result<tempfile::TempDir> {
    tempfile::tempdir_in(".").context("no place for files in the current directory")
}

fn link(name: &str, ends: [&str; 2], seed: u64, config: DirectionConfig) -> LinkSpec {
    LinkSpec { name: name.to_owned(), ends: ends.map(str::to_owned), config: LinkConfig::symmetric(seed, config) }
}

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
    /// The name of its processes in the kernel.
    fn process(self) -> &'static str {
        match self {
            Self::Gct => "globus-gridftp-",
            Self::Ours => "phoebus",
            Self::Rsync => "rsync",
        }
    }
}

/// A running server.
pub(super) struct RunningServer {
    pub(super) process: Background,
    server: Server,
}

impl RunningServer {
    pub(super) fn new(process: Background, server: Server) -> Self {
        Self { process, server }
    }

    /// Matches its processes, so that all of them can be ended.
    pub(super) fn receiver(&self) -> Receiver {
        match self.server {
            Server::Ours => Receiver::Process(self.process.pid()),
            other => Receiver::Children { of: self.process.pid(), name: other.process() },
        }
    }
}

/// The host, or the hosts.
pub(in crate::bench) struct Hosts {
    pub(super) host: Testbed,
    files: tempfile::TempDir,
    endpoints: Vec<Endpoints>,
}

/// The hosts of a client and its server.
struct Endpoints {
    client: String,
    server: String,
    address: IpAddr,
    /// The server's interface.
    device: &'static str,
}

impl Hosts {
    pub(super) fn new() -> anyhow::Result<Self> {
        let host = Testbed::up(&Scenario { hosts: vec![HostSpec::new(HOST)], stock: true, ..Scenario::default() })?;
        let address = Ipv4Addr::LOCALHOST.into();
        let ends = Endpoints { client: HOST.into(), server: HOST.into(), address, device: "lo" };
        let hosts = Self { host, files: place()?, endpoints: vec![ends] };
        // A network namespace cannot choose a default congestion control that the machine does not allow to all
        // users.
        let mut route = hosts.command("ip")?;
        route.args(["route", "replace", "local", LOCAL, "dev", "lo", "table", "local", "congctl", "cubic"]);
        process::run("ip, of iproute2", route, AROUND).context("no route under cubic")?;
        Ok(hosts)
    }

    /// Two hosts with a path between them. Sockets that request no congestion control use `control`, by their routes.
    pub(super) fn with_path(path: DirectionConfig, seed: u64, control: &str) -> anyhow::Result<Self> {
        Self::with_path_of_mtu(path, LinkConfig::MTU_DEFAULT, seed, control)
    }

    /// The same with this MTU.
    pub(super) fn with_path_of_mtu(path: DirectionConfig, mtu: u16, seed: u64, control: &str) -> anyhow::Result<Self> {
        let mut link = link(LINK, ENDS, seed, path);
        link.config.mtu = mtu;
        let links = vec![link];
        Self::with(ENDS.map(HostSpec::new).into(), links, &[(ENDS[0].into(), ENDS[1].into(), LINK)], control)
    }

    /// A client and a server for each of at most three flows, whose paths share only this link.
    pub(super) fn with_flows(path: DirectionConfig, seed: u64, control: &str) -> anyhow::Result<Self> {
        let endpoints: Vec<_> =
            (1..).zip(DOWN).map(|(nth, down)| (format!("src{nth}"), format!("dst{nth}"), down)).collect();
        let ends = endpoints.iter().flat_map(|(client, server, _)| [client.as_str(), server.as_str()]);
        let hosts = ends.chain(ROUTERS).map(HostSpec::new).collect();
        let free = DirectionConfig { rate: Rate::Unlimited, queue: ByteSize(64 << 20), ..DirectionConfig::default() };
        let mut links = vec![link(LINK, ROUTERS, seed, path)];
        for (client, server, down) in &endpoints {
            links.push(link(&down.replace("down", "up"), [client, ROUTERS[0]], seed, free.clone()));
            links.push(link(down, [ROUTERS[1], server], seed, free.clone()));
        }
        Self::with(hosts, links, &endpoints, control)
    }

    fn with(
        hosts: Vec<HostSpec>,
        links: Vec<LinkSpec>,
        endpoints: &[(String, String, &'static str)],
        control: &str,
    ) -> anyhow::Result<Self> {
        let host = Testbed::up(&Scenario { hosts, links, ..Scenario::default() })?;
        let ends = |(client, server, device): &(String, String, &'static str)| {
            let address = host.addresses(server)?.iter().copied().find(IpAddr::is_ipv4).context("no IPv4 address")?;
            Ok(Endpoints { client: client.clone(), server: server.clone(), address, device })
        };
        let endpoints = endpoints.iter().map(ends).collect::<anyhow::Result<Vec<_>>>()?;
        let hosts = Self { host, files: place()?, endpoints };
        for ends in &hosts.endpoints {
            for host in [&ends.client, &ends.server] {
                control_routes(hosts.at(host, "sh".as_ref())?, control)?;
            }
        }
        Ok(hosts)
    }

    /// Limits the buffers of sockets that request none, at both ends: to the window of a program that requests
    /// buffers of `bytes`, or to the default of experiments.
    pub(super) fn bound_buffers(&self, bytes: Option<u64>) -> anyhow::Result<()> {
        // The kernel gives twice the requested size, and uses half of it for overhead.
        let most = bytes.map_or(UNBOUNDED, |bytes| 2 * bytes);
        let script = format!(
            "cd /proc/sys/net/ipv4 && for n in tcp_rmem tcp_wmem; do set -- $(cat $n) && echo $1 $2 {most} > $n || exit 1; done"
        );
        for mut shell in [self.command("sh")?, self.at_server("sh")?] {
            shell.args(["-c", &script]);
            process::run("bounding buffers", shell, AROUND)?;
        }
        Ok(())
    }

    /// The rate of iperf3 from client to server over this many streams, in Mbit/s.
    pub(super) fn iperf(&self, seconds: u64, streams: u32, control: &str, limit: Duration) -> anyhow::Result<f64> {
        const PORT: u16 = 5201;
        let _server = iperf::serve(self.at_server(iperf::PROGRAM)?, PORT)?;
        let test = iperf::Test { seconds, streams, reverse: false, congestion_control: Some(control) };
        Ok(test.run(self.command(iperf::PROGRAM)?, (self.address(), PORT).into(), limit)?.goodput)
    }

    /// The full path of the file with this name.
    pub(super) fn file(&self, name: &str) -> anyhow::Result<PathBuf> {
        Ok(std::path::absolute(self.files.path())?.join(name))
    }

    /// A directory in which the programs of this user keep what they know. Any user can write there.
    pub(super) fn state(&self, user: &str) -> anyhow::Result<PathBuf> {
        let state = self.file(&format!("state-{user}"))?;
        fs::create_dir_all(&state)?;
        for path in [self.files.path(), &state] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o777))?;
        }
        Ok(state)
    }

    /// The conditions of these hosts.
    pub(super) fn conditions(&self) -> Vec<(String, String)> {
        let hosts = self.host.report().hosts.into_iter();
        let name = |host: &str| if host == HOST { "loopback of its own".to_owned() } else { format!("host {host}") };
        let mut all: Vec<_> = hosts.map(|host| (name(&host.name), host.conditions.to_string())).collect();
        all.push(("congestion control".into(), "cubic, by the routes".into()));
        all
    }

    /// The first server's address.
    pub(super) fn address(&self) -> IpAddr {
        self.endpoints[0].address
    }

    /// The `nth` server's host, its address, and the interface that counts what it receives.
    pub(super) fn server_of(&self, nth: usize) -> (&str, IpAddr, &'static str) {
        let ends = &self.endpoints[nth];
        (&ends.server, ends.address, ends.device)
    }

    /// A command at the client's host.
    pub(super) fn command(&self, program: impl AsRef<Path>) -> anyhow::Result<Command> {
        self.command_of(0, program)
    }

    /// A command at the `nth` client's host.
    pub(super) fn command_of(&self, nth: usize, program: impl AsRef<Path>) -> anyhow::Result<Command> {
        self.at(&self.endpoints[nth].client, program.as_ref())
    }

    /// A command at the server's host.
    pub(super) fn at_server(&self, program: impl AsRef<Path>) -> anyhow::Result<Command> {
        self.at_server_of(0, program)
    }

    /// A command at the `nth` server's host.
    pub(super) fn at_server_of(&self, nth: usize, program: impl AsRef<Path>) -> anyhow::Result<Command> {
        self.at(&self.endpoints[nth].server, program.as_ref())
    }

    fn at(&self, host: &str, program: &Path) -> anyhow::Result<Command> {
        let mut command = self.host.exec(host, program)?;
        command.env_clear().env("PATH", PATH).env("HOME", NO_HOME).current_dir(self.files.path());
        Ok(command)
    }

    /// `phoebus` at the client's host.
    pub(super) fn phoebus(&self) -> anyhow::Result<Command> {
        self.command(std::env::current_exe().context("where this program is")?)
    }

    /// Starts a server that accepts everybody.
    pub(super) fn server(&self, server: Server) -> anyhow::Result<RunningServer> {
        let address = self.address().to_string();
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
        Ok(RunningServer { process: Background::start(name, command)?.listening(PORT)?, server })
    }

    /// The URL of the file at `path` on a server of this kind.
    pub(super) fn url(&self, server: Server, path: &str) -> String {
        let address = self.address();
        match server {
            Server::Rsync => format!("rsync://{address}:{PORT}/all{path}"),
            Server::Gct | Server::Ours => format!("ftp://{address}:{PORT}{path}"),
        }
    }
}
