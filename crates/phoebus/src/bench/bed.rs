//! The path of the experiments over a WAN (S30): `src` – `pg1` – `pg2` – `dst`, with all that is compared in the middle hosts
//! at once: HAProxy, socat and Phoebus. Whoever is not asked sleeps, so rows can take turns within one bed.

use super::gateway;
use super::haproxy;
use super::process::Background;
use crate::run::find_library;
use anyhow::{Context, anyhow, bail};
use phoebus_proto::endpoint::DEFAULT_PORT;
use phoebus_wan::testbed::{GatewayOptions, Gateways, Sc09, Testbed};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;

/// How a program at `src` reaches a server at `dst`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// By the network alone.
    Direct,
    /// Through HAProxy on both middle hosts.
    Haproxy,
    /// Through socat on both middle hosts.
    Socat,
    /// Through gateways on both, by the preload shim.
    Phoebus,
}

/// The servers at `dst` that experiments use, by port.
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

/// A running path. Dropping it takes everything down.
pub(crate) struct Bed {
    gateways: Option<Gateways>,
    relays: Vec<Background>,
    servers: Vec<Background>,
    gateway_cc: String,
    /// The hosts and links.
    pub(crate) testbed: Testbed,
}

/// Above the port of a service, where HAProxy and socat listen for it.
const HAPROXY_OFFSET: u16 = 2000;
const SOCAT_OFFSET: u16 = 3000;
/// Sessions through HAProxy at once: more than any experiment over a WAN opens.
const SESSIONS: usize = 1000;

impl Service {
    /// The port at `dst`.
    pub(crate) fn port(self) -> u16 {
        self as u16
    }
}

impl Bed {
    /// Builds the path, and starts relays to `services`; gateways when they are first needed. All that the middle hosts
    /// send is under the congestion control that `settings` has for them, which they must have.
    pub(crate) fn up(settings: &Sc09, services: &[Service]) -> anyhow::Result<Self> {
        let gateway_cc =
            settings.gateway_cc.clone().ok_or_else(|| anyhow!("the gateways' congestion control is not set"))?;
        let testbed = Testbed::up(&settings.scenario())?;
        let mut bed = Self { gateways: None, relays: Vec::new(), servers: Vec::new(), gateway_cc, testbed };
        bed.start_relays(services)?;
        Ok(bed)
    }

    /// The path without anything in the middle hosts: for rows that go direct.
    pub(crate) fn bare(settings: &Sc09) -> anyhow::Result<Self> {
        let testbed = Testbed::up(&settings.scenario())?;
        Ok(Self { gateways: None, relays: Vec::new(), servers: Vec::new(), gateway_cc: String::new(), testbed })
    }

    /// A command that will run in `host`.
    pub(crate) fn command(&self, host: &str, program: &str) -> anyhow::Result<Command> {
        Ok(self.testbed.exec(host, program)?)
    }

    /// A command that will run one of our own peer programs in `host`.
    pub(crate) fn peer(&self, host: &str, arguments: &[&str]) -> anyhow::Result<Command> {
        let mut command = self.testbed.exec(host, gateway::program())?;
        command.args(["bench", "peer"]).args(arguments);
        Ok(command)
    }

    /// Starts `command` as a server of this bed, and waits until it listens.
    pub(crate) fn serve(&mut self, name: &str, command: Command, port: u16) -> anyhow::Result<()> {
        self.servers.push(Background::start(name, command)?.listening(port)?);
        Ok(())
    }

    /// The IPv4 address of `host`.
    pub(crate) fn address(&self, host: &str) -> anyhow::Result<IpAddr> {
        let addresses = self.testbed.addresses(host)?;
        addresses.iter().copied().find(IpAddr::is_ipv4).ok_or_else(|| anyhow!("{host} has no IPv4 address"))
    }

    /// Where a program at `src` connects to in order to reach `service` this way.
    pub(crate) fn entrance(&self, way: Way, service: Service) -> anyhow::Result<SocketAddr> {
        let (host, offset) = match way {
            Way::Direct | Way::Phoebus => ("dst", 0),
            Way::Haproxy => ("pg1", HAPROXY_OFFSET),
            Way::Socat => ("pg1", SOCAT_OFFSET),
        };
        Ok(SocketAddr::new(self.address(host)?, service.port() + offset))
    }

    /// Gives `command`, which runs at `src`, what it needs to go this way: through Phoebus, the two variables of P32, and
    /// the first hop's congestion control.
    pub(crate) fn lead(&mut self, command: &mut Command, way: Way, cc: Option<&str>) -> anyhow::Result<()> {
        if way != Way::Phoebus {
            return Ok(());
        }
        if self.gateways.is_none() {
            self.restart_gateways()?;
        }
        // By address, as all other rows: no row looks up a name within its time.
        command.env("LD_PRELOAD", find_library()?.file);
        command.env("PHOEBUS_PATH", format!("{}/{DEFAULT_PORT},pg2/{DEFAULT_PORT}", self.address("pg1")?));
        if let Some(cc) = cc {
            command.env("PHOEBUS_CC", cc);
        }
        Ok(())
    }

    /// Starts both gateways anew: without a connection that has carried anything.
    pub(crate) fn restart_gateways(&mut self) -> anyhow::Result<()> {
        self.gateways = None;
        let profile = BTreeMap::from([("congestion_control".to_owned(), self.gateway_cc.clone())]);
        let options = GatewayOptions {
            program: gateway::program(),
            wan: profile.clone(),
            lan: profile,
            ..GatewayOptions::default()
        };
        self.gateways = Some(self.testbed.start_gateways(&options)?);
        Ok(())
    }

    /// That everything in the middle still runs.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        for gateway in self.gateways.iter_mut().flat_map(Gateways::report) {
            if let Some(how) = gateway.ended {
                bail!("the gateway on {} ended: {how}", gateway.host);
            }
        }
        self.relays.iter_mut().chain(&mut self.servers).try_for_each(Background::check)
    }

    fn start_relays(&mut self, services: &[Service]) -> anyhow::Result<()> {
        let any = |port| SocketAddr::from(([0, 0, 0, 0], port));
        for (host, next) in [("pg2", "dst"), ("pg1", "pg2")] {
            let to = self.address(next)?;
            // The last relay leads to the service itself, the one before to the same relay there.
            let target = |port: u16, offset: u16| SocketAddr::new(to, if next == "dst" { port } else { port + offset });
            let relays: Vec<_> = services
                .iter()
                .map(|service| (any(service.port() + HAPROXY_OFFSET), target(service.port(), HAPROXY_OFFSET)))
                .collect();
            let name = format!("haproxy-{host}");
            let command = self.command(host, haproxy::PROGRAM)?;
            self.relays.push(haproxy::start(command, &name, self.testbed.directory(), &relays, SESSIONS)?);
            for service in services {
                let listen = service.port() + SOCAT_OFFSET;
                let mut socat = self.command(host, "socat")?;
                socat.arg(format!("TCP4-LISTEN:{listen},fork,reuseaddr,backlog=128,nodelay"));
                socat.arg(format!("TCP4:{},nodelay", target(service.port(), SOCAT_OFFSET)));
                let server = Background::start(&format!("socat-{host}"), socat)?.listening(listen);
                self.relays.push(server.context("the chain of socat")?);
            }
        }
        Ok(())
    }
}
