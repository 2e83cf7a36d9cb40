//! GridFTP over a path, with its data over TCP, UDT, QUIC or as objects (U14, L3). Client and server are both ours or both GCT's, or
//! GCT's client with our server.

use super::super::process::Background;
use super::super::results::Reading;
use super::super::sc09::programs::stack_was_taken;
use super::super::sc09::site::Grid;
use super::super::transfer::{Client, Receiver, watch};
use super::hosts::{Hosts, PORT};
use anyhow::{Context, bail};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// Client and server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClientAndServer {
    /// `globus-url-copy` and `globus-gridftp-server`.
    Gct,
    /// `phoebus cp` and `phoebus serve`.
    Ours,
    /// `globus-url-copy` and `phoebus serve`.
    Mixed,
}

/// The transport of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DataTransport {
    /// This many connections, in MODE E.
    Tcp(u32),
    /// One connection, in MODE S.
    Udt,
    /// One connection.
    Quic,
    /// As objects.
    Object,
}

impl DataTransport {
    /// The driver to request, if any.
    fn driver(self) -> Option<&'static str> {
        match self {
            Self::Tcp(_) => None,
            Self::Udt => Some("udt"),
            Self::Quic => Some("quic"),
            Self::Object => Some("object"),
        }
    }
}

/// One monitored transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MonitoredTransfer {
    pub(super) pair: ClientAndServer,
    pub(super) over: DataTransport,
    /// From a file to a new one, instead of /dev/zero to /dev/null.
    pub(super) disk: bool,
}

/// If nothing arrives for this long, the path is empty: more than any round trip.
const QUIET: Duration = Duration::from_millis(500);
/// Longest wait for a path to become empty.
const SETTLED: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(20);
/// More than any transfer moves: a terabyte.
const ENDLESS: &str = "1099511627776";

/// A running transfer.
pub(super) struct RunningTransfer {
    pub(super) client: Client,
    pub(super) server: Background,
    pub(super) began: Instant,
    carried: MonitoredTransfer,
    receiver: Receiver,
    /// The receiver's count before the transfer.
    before: u64,
}

impl MonitoredTransfer {
    /// Puts for `seconds` from the first byte on, which has to arrive within `limit`.
    pub(super) fn run(self, hosts: &Hosts, grid: &Grid, seconds: u64, limit: Duration) -> anyhow::Result<Vec<Reading>> {
        let mut going = self.start(hosts, grid, 0)?;
        let others = [("server", going.server.pid())];
        let readings = watch(&mut going.client, going.began, going.receiver, seconds, &others, limit)?;
        going.check()?;
        Ok(readings)
    }

    /// Starts a server and a client, as pair `nth` of those that run at the same time.
    pub(super) fn start(self, hosts: &Hosts, grid: &Grid, nth: usize) -> anyhow::Result<RunningTransfer> {
        // Remove the previous transfer's files, and wait until its data is on the disk.
        let target = hosts.file(&format!("target-{nth}"))?;
        if target.exists() {
            fs::remove_dir_all(&target).context("what was carried before")?;
        }
        fs::create_dir(&target)?;
        if self.disk {
            rustix::fs::sync();
        }
        let server = server(hosts, grid, self.pair == ClientAndServer::Gct, self.over.driver(), nth)?;
        let client = self.client(hosts, grid, nth, target.join("file"))?;
        let name = (self.pair == ClientAndServer::Gct).then_some("globus-gridftp-");
        let receiver = Receiver::Interface { of: server.pid(), device: hosts.server_of(nth).2, name };
        settle(receiver)?;
        let (before, began) = (receiver.written(), Instant::now());
        let client = Client::start(client, &hosts.file(&format!("client-{nth}.log"))?)?;
        Ok(RunningTransfer { client, server, began, carried: self, receiver, before })
    }

    fn client(self, hosts: &Hosts, grid: &Grid, nth: usize, target: PathBuf) -> anyhow::Result<Command> {
        let (source, target) = match self.disk {
            true => (hosts.file("source")?, target),
            false => (PathBuf::from("/dev/zero"), PathBuf::from("/dev/null")),
        };
        let (source, target) = (format!("file://{}", source.display()), target.display());
        if self.pair == ClientAndServer::Ours {
            let mut client = hosts.command_of(nth, std::env::current_exe().context("where this program is")?)?;
            client.args(["cp", "--quiet", "--verify", "none", "--attempts", "1"]);
            if !self.disk {
                client.args(["--length", ENDLESS]);
            }
            match self.over {
                DataTransport::Tcp(streams) => client.args(["--streams", &streams.to_string()]),
                DataTransport::Udt | DataTransport::Quic | DataTransport::Object => {
                    client.args(["--stack", self.over.driver().unwrap_or_default()])
                }
            };
            client.args([source, format!("ftp://{}:{PORT}{target}", hosts.server_of(nth).1)]);
            return Ok(client);
        }
        let mut client = hosts.command_of(nth, "globus-url-copy")?;
        if !self.disk {
            client.args(["-len", ENDLESS]);
        }
        match (self.over, self.over.driver()) {
            (DataTransport::Tcp(streams), _) => {
                client.args(["-p", &streams.to_string()]);
                client.args([source, format!("ftp://{}:{PORT}{target}", hosts.server_of(nth).1)]);
            }
            (_, Some(driver)) => {
                grid.as_user(&mut client);
                // Without a login by certificate, GCT's client silently requests no driver.
                client.env("GLOBUS_THREAD_MODEL", "pthread").args(["-dbg", "-dcstack", driver]);
                client.args([source, format!("gsiftp://{}:{PORT}{target}", hosts.server_of(nth).0)]);
            }
            (_, None) => bail!("there is no driver for this"),
        }
        Ok(client)
    }
}

/// Starts the `nth` server, GCT's or ours, for clients with a certificate of `grid` and for anonymous ones; data may
/// go over `driver`.
pub(super) fn server(
    hosts: &Hosts,
    grid: &Grid,
    is_gct: bool,
    driver: Option<&str>,
    nth: usize,
) -> anyhow::Result<Background> {
    let address = hosts.server_of(nth).1.to_string();
    if is_gct {
        let mut server = hosts.at_server_of(nth, "globus-gridftp-server")?;
        grid.as_server(&mut server);
        server.args(["-p", &PORT.to_string(), "-control-interface", &address, "-data-interface", &address]);
        server.args(["-c", "/dev/null", "-aa", "-anonymous-user", "root", "-allow-root", "-l"]);
        server.arg(hosts.file("server.log")?);
        if let Some(driver) = driver {
            // GCT's driver for UDT blocks in its calls, so it needs threads.
            server.args(["-dc-whitelist", &format!("tcp,gsi,{driver}"), "-threads", "2"]);
        }
        return Background::start("globus-gridftp-server", server)?.listening(PORT);
    }
    let file = |name: &str| grid.file(name).display().to_string();
    let driver = driver.map(|driver| format!(", \"{driver}\"")).unwrap_or_default();
    let text = format!(
        "listen = [\"{address}:{PORT}\"]\n[anonymous]\nroot = \"/\"\nread_only = false\n\
         [gsi]\ncertificate = \"{}\"\nkey = \"{}\"\nauthorities = \"{}\"\ngridmap = \"{}\"\n\
         [[user]]\nname = \"root\"\nroot = \"/\"\n[data]\ndrivers = [\"tcp\"{driver}]\n",
        file("server.pem"),
        file("server.key"),
        file("certs"),
        file("grid-mapfile"),
    );
    let path = hosts.file(&format!("serve-{nth}.toml"))?;
    fs::write(&path, text).context("no configuration for phoebus serve")?;
    let mut server = hosts.at_server_of(nth, std::env::current_exe().context("where this program is")?)?;
    server.args(["serve", "--config"]).arg(path);
    Background::start("phoebus serve", server)?.listening(PORT)
}

/// Waits until no more data of an earlier transfer arrives, which would be mistaken for the first data.
fn settle(receiver: Receiver) -> anyhow::Result<()> {
    let (mut last, mut since, began) = (receiver.written(), Instant::now(), Instant::now());
    while since.elapsed() < QUIET {
        thread::sleep(LOOK);
        let now = receiver.written();
        if now != last {
            (last, since) = (now, Instant::now());
        }
        if began.elapsed() > SETTLED {
            bail!("data of the transfer before still arrive after {} s", SETTLED.as_secs());
        }
    }
    Ok(())
}

impl RunningTransfer {
    /// Whether data has arrived.
    pub(super) fn has_data(&self) -> bool {
        self.receiver.has_data(self.before)
    }

    /// How the received bytes are counted.
    pub(super) fn receiver(&self) -> Receiver {
        self.receiver
    }

    /// Checks that data used the requested driver: a silent fallback to TCP must not count. Our client fails by
    /// itself in that case.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        match (self.carried.pair, self.carried.over.driver()) {
            (ClientAndServer::Gct | ClientAndServer::Mixed, Some(driver)) => {
                stack_was_taken(&self.client.said(), driver)
            }
            _ => Ok(()),
        }
    }
}

impl Drop for RunningTransfer {
    fn drop(&mut self) {
        // Some of GCT's processes would wait for their lost client for ever.
        self.receiver.end();
    }
}
