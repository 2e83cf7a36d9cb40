//! The report of a testbed, at any time and at its end: as text for people, and as JSON for programs.

use super::{HostConditions, Link, Testbed};
use crate::model::{DirectionConfig, LinkConfig, LinkCounters};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;

/// A testbed's conditions, and its links' settings and counters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The testbed's name.
    pub name: String,
    /// The process that owns it.
    pub pid: u32,
    /// The kernel's release.
    pub kernel: String,
    /// Whether the hosts' TCP keeps the system's settings.
    pub stock: bool,
    /// The hosts, in the order of the scenario.
    pub hosts: Vec<HostReport>,
    /// The links, in the order of the scenario.
    pub links: Vec<LinkReport>,
    /// The gateways that were started with the testbed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gateways: Vec<GatewayReport>,
}

/// A host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostReport {
    /// Its name.
    pub name: String,
    /// Its addresses: IPv4, then IPv6.
    pub addresses: Vec<IpAddr>,
    /// Its TCP settings.
    #[serde(flatten)]
    pub conditions: HostConditions,
}

/// A link.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LinkReport {
    /// Its name.
    pub name: String,
    /// The two hosts; packets from the first go forward.
    pub ends: [String; 2],
    /// The current settings.
    pub config: LinkConfig,
    /// The counters since the link's start.
    pub counters: LinkCounters,
}

/// A gateway.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GatewayReport {
    /// The host that it runs on.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// How it ended, if it ended before its testbed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
}

impl Testbed {
    /// The current report.
    pub fn report(&self) -> Report {
        let hosts = self.hosts.iter().map(|host| HostReport {
            name: host.name.clone(),
            addresses: host.addresses.clone(),
            conditions: host.conditions.clone(),
        });
        Report {
            name: self.name().to_owned(),
            pid: std::process::id(),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            stock: self.scenario.stock,
            hosts: hosts.collect(),
            links: self.links.iter().map(LinkReport::new).collect(),
            gateways: Vec::new(),
        }
    }
}

impl LinkReport {
    fn new(link: &Link) -> Self {
        Self {
            name: link.name().to_owned(),
            ends: link.ends().map(str::to_owned),
            config: link.config(),
            counters: link.counters(),
        }
    }
}

/// Formats the conditions in lines; hosts with equal conditions share one.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "testbed {}: {} hosts, {} links, Linux {}",
            self.name,
            self.hosts.len(),
            self.links.len(),
            self.kernel
        )?;
        for LinkReport { name, ends: [a, b], config, .. } in &self.links {
            let LinkConfig { seed, mtu, forward, backward } = config;
            let both = if forward == backward { "each way" } else { "forward" };
            write!(f, "  {name} {a} - {b}: {both} {}", Settings(forward))?;
            if forward != backward {
                write!(f, "; backward {}", Settings(backward))?;
            }
            writeln!(f, "; MTU {mtu}, seed {seed}")?;
        }
        let mut told: Vec<&HostConditions> = Vec::new();
        for host in &self.hosts {
            if !told.contains(&&host.conditions) {
                told.push(&host.conditions);
                let same = self.hosts.iter().filter(|other| other.conditions == host.conditions);
                let names: Vec<_> = same.map(|other| other.name.as_str()).collect();
                let stock = if self.stock { " (stock)" } else { "" };
                writeln!(f, "  {}{stock}: {}", names.join(", "), host.conditions)?;
            }
        }
        for GatewayReport { host, pid, ended } in &self.gateways {
            let state = ended.as_deref().unwrap_or("running");
            writeln!(f, "  gateway on {host}: process {pid}, {state}")?;
        }
        Ok(())
    }
}

/// The settings of one direction in a line, without those that have no effect.
struct Settings<'a>(&'a DirectionConfig);

impl fmt::Display for Settings<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DirectionConfig { delay, jitter, reorder, loss, rate, queue } = self.0;
        write!(f, "delay {delay}")?;
        if !jitter.0.is_zero() {
            write!(f, " jitter {jitter}{}", if *reorder { " with reordering" } else { "" })?;
        }
        write!(f, ", loss {loss}, rate {rate}, queue {queue}")
    }
}
