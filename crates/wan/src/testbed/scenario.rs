//! The content of a testbed: hosts, the links between them, and their settings; from code or from a file.
//!
//! The path of the SC09 paper (`S30`) is [`Scenario::sc09`]: `src`, `pg1`, `pg2` and `dst` in a row. A
//! scenario file is TOML:
//!
//! ```toml
//! seed = 1
//!
//! [[host]]
//! name = "left"
//! [[host]]
//! name = "right"
//!
//! [[link]]
//! name = "lan"
//! ends = ["left", "right"]
//! delay = "4ms"              # one way; this and the next hold for both directions
//! rate = "1gbit"
//! backward = { loss = "1%" } # from right to left
//! ```
//!
//! Unknown keys and scenarios that cannot be built are refused, with line and column.

use super::Error;
use crate::model::LinkConfig;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// Hosts and the links between them.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Scenario {
    /// The hosts. Names are unique, because every host's `/etc/hosts` lists them all.
    pub hosts: Vec<HostSpec>,
    /// The links, each with its own name.
    pub links: Vec<LinkSpec>,
    /// Keeps the system's TCP settings on the hosts, instead of those that experiments fix.
    pub stock: bool,
}

/// One host: a network namespace with one IPv4 and one IPv6 address and a name.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct HostSpec {
    /// Its name: up to 63 letters, digits and dashes.
    pub name: String,
    /// Whether a gateway runs here if the testbed is started with gateways.
    pub gateway: bool,
    /// Its default congestion control. If the kernel refuses it, the testbed's conditions say so.
    pub congestion_control: Option<String>,
    /// Further sysctl settings below `net.`, by name.
    pub sysctl: BTreeMap<String, String>,
}

/// One link. Both hosts' interfaces to it have its name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LinkSpec {
    /// Its name: up to 15 letters, digits and dashes, the kernel's limit for interfaces.
    pub name: String,
    /// The two hosts; packets from the first go forward.
    pub ends: [String; 2],
    /// Its settings.
    pub config: LinkConfig,
}

/// A problem that prevents a scenario from being built.
#[derive(Debug)]
pub(super) struct Flaw {
    pub(super) at: FaultyPart,
    pub(super) message: String,
}

/// The faulty part of a scenario; a file knows its line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FaultyPart {
    Whole,
    Host(usize),
    Link(usize),
    Ends(usize),
    Mtu(usize),
}

impl Scenario {
    /// Most hosts, more than any experiment needs; each costs namespaces and memory of the machine.
    pub const HOSTS_MAX: usize = 250;
    /// IPv6 requires this MTU on every link (RFC 8200 §5).
    pub const MTU_MIN: u16 = 1280;

    /// Checks what the types do not: names, ends, sizes, and that every host can reach every other.
    pub fn check(&self) -> Result<(), Error> {
        self.flaw().map_or(Ok(()), |flaw| Err(Error::scenario(flaw.message)))
    }

    /// The index of the host called `name`.
    pub fn host(&self, name: &str) -> Option<usize> {
        self.hosts.iter().position(|host| host.name == name)
    }

    /// The first problem that prevents the scenario from being built.
    pub(super) fn flaw(&self) -> Option<Flaw> {
        let flaw = |at, message| Some(Flaw { at, message });
        if self.hosts.is_empty() {
            return flaw(FaultyPart::Whole, "a scenario needs at least one [[host]]".into());
        }
        if self.hosts.len() > Self::HOSTS_MAX {
            let message = format!("{} hosts are more than the {} of a testbed", self.hosts.len(), Self::HOSTS_MAX);
            return flaw(FaultyPart::Whole, message);
        }
        let mut names = HashSet::new();
        for (index, host) in self.hosts.iter().enumerate() {
            if let Some(message) = host.flaw(&mut names) {
                return flaw(FaultyPart::Host(index), message);
            }
        }
        let mut names = HashSet::new();
        for (index, link) in self.links.iter().enumerate() {
            if let Some(message) = link.name_flaw(&mut names) {
                return flaw(FaultyPart::Link(index), message);
            }
            if let Some(message) = link.ends_flaw(self) {
                return flaw(FaultyPart::Ends(index), message);
            }
            if link.config.mtu < Self::MTU_MIN {
                let (name, mtu, least) = (&link.name, link.config.mtu, Self::MTU_MIN);
                let message =
                    format!("link \"{name}\" has an MTU of {mtu}; expected at least {least}, which IPv6 needs");
                return flaw(FaultyPart::Mtu(index), message);
            }
        }
        let index = self.unreachable()?;
        let (host, first) = (&self.hosts[index].name, &self.hosts[0].name);
        flaw(FaultyPart::Host(index), format!("host \"{host}\" cannot be reached from \"{first}\": no links join them"))
    }

    /// A host that no chain of links joins to the first host.
    fn unreachable(&self) -> Option<usize> {
        let mut reached = BTreeSet::from([self.hosts.first()?.name.as_str()]);
        loop {
            let before = reached.len();
            for link in &self.links {
                if link.ends.iter().any(|end| reached.contains(end.as_str())) {
                    reached.extend(link.ends.iter().map(String::as_str));
                }
            }
            if reached.len() == before {
                return self.hosts.iter().position(|host| !reached.contains(host.name.as_str()));
            }
        }
    }
}

impl HostSpec {
    /// A host called `name` with default settings.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    fn flaw<'a>(&'a self, names: &mut HashSet<&'a str>) -> Option<String> {
        let name = &self.name;
        if !is_label(name, 63) || name == "localhost" {
            return Some(format!(
                "\"{name}\" cannot name a host: expected up to 63 letters, digits and dashes, not \"localhost\""
            ));
        }
        if !names.insert(name) {
            return Some(format!("a second host is called \"{name}\"; expected a name of its own"));
        }
        // A path outside /proc/sys/net would let a scenario change the machine.
        let safe = |key: &str| {
            key.strip_prefix("net.").is_some_and(|rest| {
                rest.split('.').all(|part| {
                    !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b))
                })
            })
        };
        let odd = self.sysctl.keys().find(|key| !safe(key))?;
        Some(format!(
            "\"{odd}\" is not a setting of a host's network: expected one below net., such as net.ipv4.tcp_sack"
        ))
    }
}

impl LinkSpec {
    fn name_flaw<'a>(&'a self, names: &mut HashSet<&'a str>) -> Option<String> {
        let name = &self.name;
        if !is_label(name, 15) || name == "lo" {
            return Some(format!(
                "\"{name}\" cannot name a link: expected up to 15 letters, digits and dashes, not \"lo\""
            ));
        }
        if !names.insert(name) {
            return Some(format!("a second link is called \"{name}\"; expected a name of its own"));
        }
        None
    }

    fn ends_flaw(&self, scenario: &Scenario) -> Option<String> {
        let Self { name, ends, .. } = self;
        if let Some(end) = ends.iter().find(|end| scenario.host(end).is_none()) {
            return Some(format!("link \"{name}\" ends at \"{end}\", which is no [[host]] of the scenario"));
        }
        let [a, b] = ends;
        (a == b).then(|| format!("both ends of link \"{name}\" are \"{a}\"; expected two hosts"))
    }
}

/// Whether `name` is a label of a domain name (RFC 1123 §2.1) of at most `max` characters.
pub(super) fn is_label(name: &str, max: usize) -> bool {
    !name.is_empty()
        && name.len() <= max
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
        && !name.starts_with('-')
        && !name.ends_with('-')
}
