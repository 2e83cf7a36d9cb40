//! GridFTP over a path, with its data over TCP, UDT, QUIC or as objects (U14, L3). Client and server are both ours or both GCT's, or
//! GCT's client with our server.

use super::super::flows::{GOODPUT, STEADY, cpu};
use super::super::process::{Background, cpu_seconds, spent};
use super::super::results::{Metric, Reading};
use super::super::sc09::programs::stack_was_taken;
use super::super::sc09::site::Grid;
use super::super::transfer::{Client, Receiver, SET_UP, watch};
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
    /// One connection, in MODE S, in clear.
    Udt,
    /// One connection, in MODE S, encrypted: TLS on UDT.
    UdtTls,
    /// One connection.
    Quic,
    /// As objects, encrypted.
    Object,
    /// As objects in clear.
    ObjectClear,
    /// TCP or objects, as the client chooses.
    Auto,
    /// As many connections as the client chooses.
    TcpChosen,
}

impl DataTransport {
    /// The stack to request, if any.
    fn stack(self) -> Option<&'static str> {
        match self {
            Self::Tcp(_) | Self::TcpChosen => None,
            Self::Udt => Some("udt"),
            Self::UdtTls => Some("udt,tls"),
            Self::Quic => Some("quic"),
            Self::Object => Some("object"),
            Self::ObjectClear => Some("object:seal=none"),
            Self::Auto => Some("auto"),
        }
    }

    /// The drivers that the server has to allow besides TCP.
    fn drivers(self) -> &'static [&'static str] {
        match self {
            Self::Tcp(_) | Self::TcpChosen => &[],
            Self::Udt | Self::UdtTls => &["udt"],
            Self::Quic => &["quic"],
            Self::Object | Self::ObjectClear | Self::Auto => &["object"],
        }
    }
}

/// Packets that were sent beyond those that were needed, as a share of these.
pub(super) const WASTE: Metric = Metric { name: "waste", unit: "%" };

/// One monitored transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MonitoredTransfer {
    pub(super) pair: ClientAndServer,
    pub(super) over: DataTransport,
    /// From a file to a new one, instead of /dev/zero to /dev/null.
    pub(super) disk: bool,
    /// Who runs our programs.
    pub(super) user: ProgramUser,
}

/// Who runs our programs, and whether the client knows the path from its last run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProgramUser {
    /// The superuser, without a memory of paths.
    Root,
    /// The same with one.
    RootAgain,
    /// An ordinary user, without one.
    Nobody,
    /// The same with one.
    NobodyAgain,
}

impl ProgramUser {
    fn is_root(self) -> bool {
        matches!(self, Self::Root | Self::RootAgain)
    }

    /// A program and its first arguments with which it runs as this user.
    fn prefix(self) -> &'static [&'static str] {
        match self.is_root() {
            true => &[],
            false => &["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"],
        }
    }

    fn name(self) -> &'static str {
        if self.is_root() { "root" } else { "nobody" }
    }

    fn remembers(self) -> bool {
        matches!(self, Self::RootAgain | Self::NobodyAgain)
    }
}

/// If nothing arrives for this long, the path is empty: more than any round trip.
const QUIET: Duration = Duration::from_millis(500);
/// Longest wait for a path to become empty.
const SETTLED: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(20);
/// More than any transfer moves: a terabyte.
const ENDLESS: u64 = 1 << 40;

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

    /// Puts `bytes` from memory to memory with our programs, within `limit`. The rate is that of these bytes, from the first
    /// that arrives to the confirmation of all.
    pub(super) fn run_to_end(
        self,
        hosts: &Hosts,
        grid: &Grid,
        bytes: u64,
        limit: Duration,
    ) -> anyhow::Result<Vec<Reading>> {
        if self.user.remembers() && !hosts.state(self.user.name())?.join("phoebus/paths").exists() {
            // The run that finds out about the path is not measured.
            self.start_with(hosts, grid, 0, bytes)?.client.wait_for_success()?;
        }
        let mut going = self.start_with(hosts, grid, 0, bytes)?;
        let (server, client) = (going.server.pid(), going.client.pid());
        let server_before = cpu_seconds(server)?;
        let (mut first, mut steady) = (None, Steady::default());
        let client_cpu = loop {
            let arrived = going.receiver.written().saturating_sub(going.before);
            let now = Instant::now();
            if first.is_none() && going.has_data() {
                first = Some(now);
            }
            let after = first.map_or(Duration::ZERO, |first| now - first);
            steady.saw(after, arrived, bytes);
            match spent(client)? {
                (used, true) => break used,
                _ if going.began.elapsed() > limit => {
                    bail!("{} of {bytes} bytes had arrived within {} s", arrived.min(bytes), limit.as_secs())
                }
                _ => thread::sleep(LOOK),
            }
        };
        let end = Instant::now();
        going.client.wait_for_success()?;
        let server_cpu = cpu_seconds(server)? - server_before;
        let first = first.context("no data was seen")?;
        let (took, gigabytes) = ((end - first).as_secs_f64(), bytes as f64 / 1e9);
        let arrived = going.receiver.written().saturating_sub(going.before).max(1);
        let mut readings = vec![
            (GOODPUT, bytes as f64 * 8e-6 / took),
            (SET_UP, (first - going.began).as_secs_f64()),
            (cpu("client"), client_cpu / gigabytes),
            (cpu("server"), server_cpu / gigabytes),
        ];
        // What the interface has counted includes headers and what came twice.
        readings.extend(steady.rate().map(|rate| (STEADY, rate * bytes as f64 / arrived as f64)));
        readings.extend(waste(&going.client.said()).map(|waste| (WASTE, 100.0 * waste)));
        Ok(readings)
    }

    /// Starts a server and a client, as pair `nth` of those that run at the same time. Without a disk, the transfer does not
    /// end by itself.
    pub(super) fn start(self, hosts: &Hosts, grid: &Grid, nth: usize) -> anyhow::Result<RunningTransfer> {
        self.start_with(hosts, grid, nth, ENDLESS)
    }

    /// The same for so many bytes.
    fn start_with(self, hosts: &Hosts, grid: &Grid, nth: usize, bytes: u64) -> anyhow::Result<RunningTransfer> {
        // Remove the previous transfer's files, and wait until its data is on the disk.
        let target = hosts.file(&format!("target-{nth}"))?;
        if target.exists() {
            fs::remove_dir_all(&target).context("what was carried before")?;
        }
        fs::create_dir(&target)?;
        if self.disk {
            rustix::fs::sync();
        }
        let server = match self.user.is_root() {
            true => server(hosts, grid, self.pair == ClientAndServer::Gct, self.over.drivers(), nth)?,
            false => server_of(hosts, self.user, nth)?,
        };
        let client = self.client(hosts, grid, (nth, bytes), target.join("file"))?;
        let name = (self.pair == ClientAndServer::Gct).then_some("globus-gridftp-");
        let receiver = Receiver::Interface { of: server.pid(), device: hosts.server_of(nth).2, name };
        settle(receiver)?;
        let (before, began) = (receiver.written(), Instant::now());
        let client = Client::start(client, &hosts.file(&format!("client-{nth}.log"))?)?;
        Ok(RunningTransfer { client, server, began, carried: self, receiver, before })
    }

    fn client(
        self,
        hosts: &Hosts,
        grid: &Grid,
        (nth, bytes): (usize, u64),
        target: PathBuf,
    ) -> anyhow::Result<Command> {
        let (source, target) = match self.disk {
            true => (hosts.file("source")?, target),
            false => (PathBuf::from("/dev/zero"), PathBuf::from("/dev/null")),
        };
        let (source, target) = (format!("file://{}", source.display()), target.display());
        if self.pair == ClientAndServer::Ours {
            let program = std::env::current_exe().context("where this program is")?;
            let mut client = match self.user.prefix() {
                [first, rest @ ..] => {
                    let mut client = hosts.command_of(nth, first)?;
                    client.args(rest).arg(program);
                    client
                }
                [] => hosts.command_of(nth, program)?,
            };
            if self.user.remembers() {
                client.env("XDG_STATE_HOME", hosts.state(self.user.name())?);
            }
            client.args(["cp", "--json", "--verify", "none", "--attempts", "1"]);
            if !self.disk {
                client.args(["--length", &bytes.to_string()]);
            }
            if let DataTransport::Tcp(streams) = self.over {
                client.args(["--streams", &streams.to_string()]);
            }
            if let Some(stack) = self.over.stack() {
                client.args(["--stack", stack]);
            }
            client.args([source, format!("ftp://{}:{PORT}{target}", hosts.server_of(nth).1)]);
            return Ok(client);
        }
        let mut client = hosts.command_of(nth, "globus-url-copy")?;
        if !self.disk {
            client.args(["-len", &bytes.to_string()]);
        }
        match (self.over, self.over.stack()) {
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

/// The rate of a transfer from the fourth second on, until 95 % have come.
#[derive(Default)]
struct Steady {
    from: Option<(Duration, u64)>,
    to: Option<(Duration, u64)>,
}

impl Steady {
    const FROM: Duration = Duration::from_secs(3);

    /// After this time, `arrived` of `all` bytes had come.
    fn saw(&mut self, after: Duration, arrived: u64, all: u64) {
        if after < Self::FROM || arrived > all / 20 * 19 {
            return;
        }
        self.from.get_or_insert((after, arrived));
        self.to = Some((after, arrived));
    }

    /// In Mbit/s; none if it was too short.
    fn rate(&self) -> Option<f64> {
        let ((from, before), (to, after)) = self.from.zip(self.to)?;
        let time = (to - from).as_secs_f64();
        (time >= 1.0).then(|| (after - before) as f64 * 8e-6 / time)
    }
}

/// The waste of objects, according to the last line of `phoebus cp --json`.
fn waste(said: &str) -> Option<f64> {
    let last: serde_json::Value = serde_json::from_str(said.lines().last()?).ok()?;
    last.get("objects")?.get("waste")?.as_f64()
}

/// Starts the `nth` server, GCT's or ours, for clients with a certificate of `grid` and for anonymous ones; data may
/// go over TCP and `drivers`.
pub(super) fn server(
    hosts: &Hosts,
    grid: &Grid,
    is_gct: bool,
    drivers: &[&str],
    nth: usize,
) -> anyhow::Result<Background> {
    let address = hosts.server_of(nth).1.to_string();
    if is_gct {
        let mut server = hosts.at_server_of(nth, "globus-gridftp-server")?;
        grid.as_server(&mut server);
        server.args(["-p", &PORT.to_string(), "-control-interface", &address, "-data-interface", &address]);
        server.args(["-c", "/dev/null", "-aa", "-anonymous-user", "root", "-allow-root", "-l"]);
        server.arg(hosts.file("server.log")?);
        if !drivers.is_empty() {
            // GCT's driver for UDT blocks in its calls, so it needs threads.
            server.args(["-dc-whitelist", &format!("tcp,gsi,{}", drivers.join(",")), "-threads", "2"]);
        }
        return Background::start("globus-gridftp-server", server)?.listening(PORT);
    }
    let file = |name: &str| grid.file(name).display().to_string();
    let drivers: String = drivers.iter().map(|driver| format!(", \"{driver}\"")).collect();
    let text = format!(
        "listen = [\"{address}:{PORT}\"]\n[anonymous]\nroot = \"/\"\nread_only = false\n\
         [gsi]\ncertificate = \"{}\"\nkey = \"{}\"\nauthorities = \"{}\"\ngridmap = \"{}\"\n\
         [[user]]\nname = \"root\"\nroot = \"/\"\n[data]\ndrivers = [\"tcp\"{drivers}]\n",
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

/// Starts the `nth` server as an ordinary user, for anonymous clients.
fn server_of(hosts: &Hosts, user: ProgramUser, nth: usize) -> anyhow::Result<Background> {
    let [first, rest @ ..] = user.prefix() else { bail!("this user is not an ordinary one") };
    let mut server = hosts.at_server_of(nth, first)?;
    server.args(rest).arg(std::env::current_exe().context("where this program is")?);
    server.args(["serve", "--anonymous", "--root", "/", "--listen", &format!("{}:{PORT}", hosts.server_of(nth).1)]);
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
        match (self.carried.pair, self.carried.over.stack()) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steady_leaves_out_start_and_tail() {
        let mut steady = Steady::default();
        // 1 Mbit/s for 3 s, then 8 Mbit/s, then nothing.
        for (seconds, arrived) in [(0, 0), (2, 250_000), (3, 375_000), (8, 5_375_000), (9, 6_000_000), (20, 6_000_000)]
        {
            steady.saw(Duration::from_secs(seconds), arrived, 6_100_000);
        }
        assert_eq!(steady.rate(), Some(8.0));
        assert_eq!(Steady::default().rate(), None);
    }

    #[test]
    fn waste_is_that_of_the_last_line() {
        let said = "{\"event\":\"carried\"}\n{\"objects\":{\"waste\":0.0125}}\n";
        assert_eq!(waste(said), Some(0.0125));
        assert_eq!(waste("{\"objects\":null}\n"), None);
        assert_eq!(waste(""), None);
    }
}
