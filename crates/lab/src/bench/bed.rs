//! The path of the experiments over a WAN (S30): `src` – `pg1` – `pg2` – `dst`. HAProxy, socat and Phoebus all run in
//! the middle hosts at the same time. Idle programs sleep, so rows can take turns on one bed.

use super::gateway;
use super::haproxy::{self, Relay, Tls};
use super::hop::Wan;
use super::process::{self, Background};
use crate::program::find_library;
use crate::testbed::certificates;
use anyhow::{Context, anyhow, bail};
use phoebus_proto::endpoint::DEFAULT_PORT;
use phoebus_wan::testbed::{Gateways, Sc09, Testbed};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::time::Duration;

/// How a program at `src` reaches a server at `dst`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BedRoute {
    /// By the network alone.
    Direct,
    /// Through HAProxy on both middle hosts.
    Haproxy,
    /// The same, with TLS between them.
    HaproxyTls,
    /// Through socat on both middle hosts.
    Socat,
    /// Through gateways on both middle hosts, with the preload shim.
    Phoebus,
}

/// The servers at `dst` that experiments use, with their ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Service {
    /// iperf3.
    Iperf = 5201,
    /// [`super::peer`]'s sink.
    Sink = 5202,
    /// [`super::peer`]'s echo.
    Echo = 5203,
}

/// A running path. Dropping it stops everything.
pub(crate) struct Bed {
    /// Agents, by the transport of the first hop.
    agents: BTreeMap<&'static str, Background>,
    gateways: Option<Gateways>,
    relays: Vec<(BedRoute, Background)>,
    servers: Vec<Background>,
    wan: Wan,
    lan_cc: String,
    /// The hosts and links.
    pub(crate) testbed: Testbed,
}

/// All hosts of the path.
const HOSTS: [&str; 4] = ["src", "pg1", "pg2", "dst"];
/// Longest wait for an agent to connect to its gateway.
const AGENT_START: Duration = Duration::from_secs(10);
/// How long an unused agent stays: longer than an experiment spends on other rows.
const AGENT_IDLE: &str = "24h";
/// The hosts of the gateways of [`Bed::joined`].
const GATEWAYS: [&str; 2] = ["pg1", "pg2"];
/// The hosts of relays, each with the host that it leads to, in the order in which they start.
const CHAIN: [(&str, &str); 2] = [("pg2", "dst"), ("pg1", "pg2")];
/// Time limit of a setting's command.
const SETTING: Duration = Duration::from_secs(10);
/// The default congestion control of gateways towards the ends.
const LAN_CC: &str = "bbr";
/// Offset from a service's port to the port on which HAProxy listens for it; socat has its own.
const HAPROXY_OFFSET: u16 = 2000;
const SOCAT_OFFSET: u16 = 3000;
const HAPROXY_TLS_OFFSET: u16 = 4000;
/// Most sessions through HAProxy at the same time: more than any experiment over a WAN opens.
const SESSIONS: usize = 1000;

impl Service {
    /// The port at `dst`.
    pub(crate) fn port(self) -> u16 {
        self as u16
    }
}

impl Bed {
    /// Builds the path, and starts relays to `services`. Gateways start when they are first needed. Everything that
    /// the middle hosts send uses the congestion control of `settings`, which the kernel must have.
    pub(crate) fn up(settings: &Sc09, services: &[Service]) -> anyhow::Result<Self> {
        let gateway_cc = settings.gateway_cc.as_deref();
        let gateway_cc = gateway_cc.ok_or_else(|| anyhow!("the gateways' congestion control is not set"))?;
        let mut bed = Self::joined(settings, Wan::plain(gateway_cc))?;
        bed.start_haproxy(services)?;
        bed.start_socat(services)?;
        Ok(bed)
    }

    /// The path with gateways joined by `wan`, and without other relays. The gateways' hosts keep the windows of idle
    /// connections, as gateways advise for TCP's congestion controls that need it.
    pub(crate) fn joined(settings: &Sc09, wan: Wan) -> anyhow::Result<Self> {
        let bed = Self { wan, ..Self::bare(settings)? };
        for host in GATEWAYS {
            let mut command = bed.command(host, "sh")?;
            command.args(["-c", "echo 0 > /proc/sys/net/ipv4/tcp_slow_start_after_idle"]);
            process::run("a setting of the gateways' hosts", command, SETTING)?;
        }
        Ok(bed)
    }

    /// The path with nothing in the middle hosts, for direct rows.
    pub(crate) fn bare(settings: &Sc09) -> anyhow::Result<Self> {
        let testbed = Testbed::up(&settings.scenario())?;
        let lan_cc = settings.gateway_cc.clone().unwrap_or_else(|| LAN_CC.to_owned());
        let wan = Wan::plain(&lan_cc);
        Ok(Self {
            agents: BTreeMap::new(),
            gateways: None,
            relays: Vec::new(),
            servers: Vec::new(),
            wan,
            lan_cc,
            testbed,
        })
    }

    /// A command that runs in `host`.
    pub(crate) fn command(&self, host: &str, program: &str) -> anyhow::Result<Command> {
        Ok(self.testbed.exec(host, program)?)
    }

    /// A command that runs one of our own peer programs in `host`.
    pub(crate) fn peer(&self, host: &str, arguments: &[&str]) -> anyhow::Result<Command> {
        let mut command = self.testbed.exec(host, gateway::program())?;
        command.args(["bench", "peer"]).args(arguments);
        Ok(command)
    }

    /// Starts a peer program at `dst` as a server of this bed, and waits until it listens.
    pub(crate) fn serve_peer(&mut self, program: &str, service: Service) -> anyhow::Result<()> {
        let command = self.peer("dst", &[program, &format!("0.0.0.0:{}", service.port())])?;
        self.servers.push(Background::start(&format!("the {program}"), command)?.listening(service.port())?);
        Ok(())
    }

    /// The IPv4 address of `host`.
    pub(crate) fn address(&self, host: &str) -> anyhow::Result<IpAddr> {
        let addresses = self.testbed.addresses(host)?;
        addresses.iter().copied().find(IpAddr::is_ipv4).ok_or_else(|| anyhow!("{host} has no IPv4 address"))
    }

    /// The address to which a program at `src` connects to reach `service` this way.
    pub(crate) fn entrance(&self, way: BedRoute, service: Service) -> anyhow::Result<SocketAddr> {
        let (host, offset) = match way {
            BedRoute::Direct | BedRoute::Phoebus => ("dst", 0),
            BedRoute::Haproxy => ("pg1", HAPROXY_OFFSET),
            BedRoute::HaproxyTls => ("pg1", HAPROXY_TLS_OFFSET),
            BedRoute::Socat => ("pg1", SOCAT_OFFSET),
        };
        Ok(SocketAddr::new(self.address(host)?, service.port() + offset))
    }

    /// Sets the environment of `command`, which runs at `src`, to go this way: through Phoebus, the two variables of
    /// P32, and the first hop's congestion control.
    pub(crate) fn route(&mut self, command: &mut Command, way: BedRoute, cc: Option<&str>) -> anyhow::Result<()> {
        if way != BedRoute::Phoebus {
            return Ok(());
        }
        self.start_gateways()?;
        // Addresses instead of names, as for all other rows: no row spends time on a name lookup.
        command.env("LD_PRELOAD", find_library()?.file);
        command.env("PHOEBUS_PATH", format!("{}/{DEFAULT_PORT},pg2/{DEFAULT_PORT}", self.address("pg1")?));
        command.env("PHOEBUS_FIRST_HOP", "tcp");
        if let Some(cc) = cc {
            command.env("PHOEBUS_CC", cc);
        }
        Ok(())
    }

    /// Sets the environment of `command`, which runs at `src`, to go through Phoebus by an agent there, which carries
    /// the first hop over `first_hop`, a value of `PHOEBUS_FIRST_HOP`. Returns the agent's process.
    pub(crate) fn route_by_agent(&mut self, command: &mut Command, first_hop: &'static str) -> anyhow::Result<u32> {
        self.start_gateways()?;
        let file = |name: &str| self.testbed.directory().join(name);
        // By name, to match the gateway's certificate.
        let variables = [
            ("PHOEBUS_PATH", format!("pg1/{DEFAULT_PORT},pg2/{DEFAULT_PORT}").into()),
            ("PHOEBUS_FIRST_HOP", first_hop.into()),
            ("PHOEBUS_AGENT_IDLE", AGENT_IDLE.into()),
            ("PHOEBUS_CERT", file("src.pem").into_os_string()),
            ("PHOEBUS_KEY", file("src.key").into_os_string()),
            ("PHOEBUS_CA", file("authority.pem").into_os_string()),
            ("XDG_RUNTIME_DIR", self.testbed.directory().as_os_str().to_owned()),
        ];
        command.env("LD_PRELOAD", find_library()?.file).envs(variables.clone());
        let agent = match self.agents.entry(first_hop) {
            Entry::Occupied(running) => running.into_mut(),
            Entry::Vacant(place) => {
                let mut agent = self.testbed.exec("src", gateway::program())?;
                agent.arg("agent").envs(variables);
                place.insert(Background::until_it_says("the agent", agent, AGENT_START)?.0)
            }
        };
        Ok(agent.pid())
    }

    fn start_gateways(&mut self) -> anyhow::Result<()> {
        if self.gateways.is_none() { self.restart_gateways() } else { Ok(()) }
    }

    /// Restarts both gateways, so that none of their connections has carried data.
    pub(crate) fn restart_gateways(&mut self) -> anyhow::Result<()> {
        // Agents would keep running, with connections that have carried data.
        self.agents.clear();
        self.gateways = None;
        let options = self.wan.gateways(&self.lan_cc, &HOSTS)?;
        self.gateways = Some(self.testbed.start_gateways(&options)?);
        Ok(())
    }

    /// The gateway on `host`, if it was started.
    pub(crate) fn gateway(&mut self, host: &str) -> Option<&mut phoebus_wan::testbed::Gateway> {
        self.gateways.as_mut()?.get(host)
    }

    /// The processes of the gateways, if they were started.
    pub(crate) fn gateway_pids(&mut self) -> Vec<u32> {
        self.gateways.iter_mut().flat_map(Gateways::report).map(|gateway| gateway.pid).collect()
    }

    /// The processes in the middle hosts that relay this way, the one on `pg1` first.
    pub(crate) fn relay_pids(&mut self, way: BedRoute) -> Vec<u32> {
        if way == BedRoute::Phoebus {
            return self.gateway_pids();
        }
        let mut pids: Vec<_> = self.relays.iter().filter(|(of, _)| *of == way).map(|(_, relay)| relay.pid()).collect();
        // The last relay starts first.
        pids.reverse();
        pids
    }

    /// Checks that everything in the middle is still running.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        for gateway in self.gateways.iter_mut().flat_map(Gateways::report) {
            if let Some(how) = gateway.ended {
                bail!("the gateway on {} ended: {how}", gateway.host);
            }
        }
        let relays = self.relays.iter_mut().map(|(_, relay)| relay);
        relays.chain(&mut self.servers).chain(self.agents.values_mut()).try_for_each(Background::check)
    }

    /// Starts HAProxy on both middle hosts.
    pub(crate) fn start_haproxy(&mut self, services: &[Service]) -> anyhow::Result<()> {
        for (host, next) in CHAIN {
            let relays = self.relay_list(next, services, HAPROXY_OFFSET, Tls::Off)?;
            let command = self.command(host, haproxy::PROGRAM)?;
            let relay =
                haproxy::start(command, &format!("haproxy-{host}"), self.testbed.directory(), &relays, SESSIONS)?;
            self.relays.push((BedRoute::Haproxy, relay));
        }
        Ok(())
    }

    /// Starts HAProxy on both middle hosts, with TLS between them.
    pub(crate) fn start_haproxy_tls(&mut self, services: &[Service]) -> anyhow::Result<()> {
        let [_, tls_host] = GATEWAYS;
        let issued = certificates(std::iter::once(tls_host.to_owned()))?;
        let (certificate, key) = issued.hosts.get(tls_host).context("no certificate was issued")?;
        let write = |name: &str, text: &str| {
            let file = self.testbed.directory().join(name);
            fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
        };
        write(haproxy::CERTIFICATE, &format!("{certificate}{key}"))?;
        write(haproxy::AUTHORITY, &issued.authority)?;
        for (host, next) in CHAIN {
            let tls = if host == tls_host { Tls::Accepted } else { Tls::Made(tls_host) };
            let relays = self.relay_list(next, services, HAPROXY_TLS_OFFSET, tls)?;
            let command = self.command(host, haproxy::PROGRAM)?;
            let name = format!("haproxy-tls-{host}");
            let relay = haproxy::start(command, &name, self.testbed.directory(), &relays, SESSIONS)?;
            self.relays.push((BedRoute::HaproxyTls, relay));
        }
        Ok(())
    }

    /// The relays of one host of the [`CHAIN`] to `next`.
    fn relay_list(&self, next: &str, services: &[Service], offset: u16, tls: Tls) -> anyhow::Result<Vec<Relay>> {
        let to = self.address(next)?;
        let relay = |service: &Service| {
            let listen = SocketAddr::from(([0, 0, 0, 0], service.port() + offset));
            Relay { listen, to: SocketAddr::new(to, next_port(next, *service, offset)), tls }
        };
        Ok(services.iter().map(relay).collect())
    }

    fn start_socat(&mut self, services: &[Service]) -> anyhow::Result<()> {
        for (host, next) in CHAIN {
            let to = self.address(next)?;
            for service in services {
                let listen = service.port() + SOCAT_OFFSET;
                let target = SocketAddr::new(to, next_port(next, *service, SOCAT_OFFSET));
                let mut socat = self.command(host, "socat")?;
                socat.arg(format!("TCP4-LISTEN:{listen},fork,reuseaddr,backlog=128,nodelay"));
                socat.arg(format!("TCP4:{target},nodelay"));
                let server = Background::start(&format!("socat-{host}"), socat)?.listening(listen);
                self.relays.push((BedRoute::Socat, server.context("the chain of socat")?));
            }
        }
        Ok(())
    }
}

/// The port at `next` on which a relay reaches `service`: the last relay leads to the service itself, the one before
/// it to the next relay.
fn next_port(next: &str, service: Service, offset: u16) -> u16 {
    if next == "dst" { service.port() } else { service.port() + offset }
}
