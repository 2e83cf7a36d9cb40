//! Testbeds: hosts, the emulated links between them, names and routes, on one machine (`S30`).
//!
//! ```no_run
//! use phoebus_wan::testbed::{Scenario, Testbed};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let testbed = Testbed::up(&Scenario::sc09())?; // src – pg1 – pg2 – dst over lan1, wan, lan2
//! let mut server = testbed.exec("dst", "iperf3")?.arg("-s").spawn()?; // a std::process::Command that enters the host
//! let status = testbed.exec("src", "iperf3")?.args(["-c", "dst", "-t", "2"]).status()?; // names resolve
//! assert!(status.success());
//! testbed.link("wan")?.cut();
//! println!("{:?}", testbed.link("wan")?.counters().forward.cut_drops);
//! server.kill()?;
//! // Dropping the testbed ends whatever still runs in its hosts; so does the death of this process.
//! # Ok(())
//! # }
//! ```
//!
//! [`Testbed::run_in`] runs a closure on a thread inside a host: a socket that it creates belongs to that
//! host and can be used from anywhere. Building needs root, or [`gain_privileges`] before the process starts
//! its second thread.
//!
//! # Hosts
//!
//! A host is a network, a mount and a UTS namespace without names, which exist as long as a process is in them or holds them:
//!
//! - a TUN interface per link, with the link's name; one IPv4 and one IPv6 address, the same on all interfaces; a route to
//!   every other host along the path with the least delay; hosts on several links forward packets;
//! - `/etc/hosts` with the name of every host, and `/etc/nsswitch.conf` and `/etc/resolv.conf` that select it as the only
//!   source of names, so that unknown names fail at once;
//! - the TCP settings that experiments fix ([`HostConditions`]), unless the scenario says `stock`.
//!
//! Hosts share the machine's file system, process ids and users. Nothing of the machine is changed.
//!
//! # Teardown
//!
//! [`Testbed::down`] and `Drop` stop the links; a sentinel process then ends all programs in the hosts and removes the state
//! directory (see `sentinel.rs`). The sentinel does the same when the owner of the testbed dies, even by SIGKILL.

mod conditions;
mod configuration;
mod control;
mod descriptors;
mod environment;
mod error;
mod file;
mod gateway_options;
mod gateways;
mod host;
mod leftovers;
mod link;
mod namespace;
mod netlink;
mod report;
mod route;
mod run;
mod sc09;
mod scenario;
mod sentinel;
mod state;
mod supervisor;

pub use conditions::{HostConditions, TCP_MEMORY_MAX};
pub use control::Remote;
pub use environment::{ENV_ADMIN, ENV_DIRECTORY, ENV_HOST, ENV_NAME};
pub use error::Error;
pub use gateway_options::{Certificates, GatewayOptions};
pub use gateways::{Gateway, Gateways};
pub use link::Link;
pub use namespace::{Namespaces, gain_privileges};
pub use report::{GatewayReport, HostReport, LinkReport, Report};
pub use run::{Outcome, run};
pub use sc09::Sc09;
pub use scenario::{HostSpec, LinkSpec, Scenario};
pub use state::{Found, State};
pub use supervisor::{Order, Supervisor, supervise};

use crate::live::Tun;
use crate::model::LinkCounters;
use sentinel::Sentinel;
use state::StateDir;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::net::IpAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// A running testbed. Dropping it takes it down.
#[derive(Debug)]
pub struct Testbed {
    state: StateDir,
    scenario: Scenario,
    hosts: Vec<host::Host>,
    links: Vec<Link>,
    sentinel: Sentinel,
}

impl Testbed {
    /// Builds `scenario` under a generated name.
    ///
    /// # Errors
    ///
    /// [`Error::Scenario`] if it cannot be built, [`Error::NotPermitted`] without root, [`Error::System`] for
    /// other failures of the machine.
    pub fn up(scenario: &Scenario) -> Result<Self, Error> {
        Self::build(None, scenario)
    }

    /// Builds `scenario` as `name`: up to 32 letters, digits and dashes, not used by a running testbed of
    /// this user.
    pub fn up_as(name: &str, scenario: &Scenario) -> Result<Self, Error> {
        Self::build(Some(name), scenario)
    }

    fn build(name: Option<&str>, scenario: &Scenario) -> Result<Self, Error> {
        scenario.check()?;
        namespace::check_privileges()?;
        let ipv6 = Path::new("/proc/sys/net/ipv6").exists();
        let state = StateDir::create(name)?;
        match Self::set_up(&state, scenario, ipv6) {
            Ok((hosts, links, sentinel)) => Ok(Self { state, scenario: scenario.clone(), hosts, links, sentinel }),
            Err(error) => {
                state.abandon();
                Err(error)
            }
        }
    }

    fn set_up(
        state: &StateDir,
        scenario: &Scenario,
        ipv6: bool,
    ) -> Result<(Vec<host::Host>, Vec<Link>, Sentinel), Error> {
        let etc = vec![
            state.write("hosts", &host::hosts_file(scenario, ipv6))?,
            state.write("nsswitch.conf", &host::nsswitch_file())?,
            state.write("resolv.conf", host::RESOLV_FILE)?,
        ];
        let plan = host::Plan { scenario, etc, ipv6 };
        let mut hosts = Vec::with_capacity(scenario.hosts.len());
        let mut tuns: Vec<[Option<Tun>; 2]> = scenario.links.iter().map(|_| [None, None]).collect();
        for index in 0..scenario.hosts.len() {
            let (host, ends) = plan.build(index)?;
            for end in ends {
                let side = usize::from(scenario.links[end.link].ends[0] != host.name);
                tuns[end.link][side] = Some(end.tun);
            }
            hosts.push(host);
        }
        state.record(hosts.iter().filter_map(|host| host.namespaces.net_inode().ok()).collect())?;
        let pairs = scenario.links.iter().zip(tuns);
        let joined = pairs.filter_map(|(link, [a, b])| Some(Link::start(link, [a?, b?])));
        let links = joined.collect::<Result<Vec<_>, _>>()?;
        let sentinel = Sentinel::start(state, hosts.iter().map(|host| &*host.namespaces))?;
        Ok((hosts, links, sentinel))
    }

    /// The name by which `phoebus testbed` commands find it.
    pub fn name(&self) -> &str {
        self.state.name()
    }

    /// A directory for files of the testbed, removed with it.
    pub fn directory(&self) -> &Path {
        self.state.path()
    }

    /// The scenario.
    pub fn scenario(&self) -> &Scenario {
        &self.scenario
    }

    /// A command that runs `program` inside `host`, in this process's working directory, with its user and
    /// environment.
    ///
    /// The child is the program itself: its process id, signals and exit status are the program's.
    pub fn exec(&self, host: &str, program: impl AsRef<OsStr>) -> Result<Command, Error> {
        let mut command = Command::new(program);
        let host = self.host(host)?;
        environment::identify(&mut command, self.directory(), Some(&host.name));
        host.namespaces.enter_on_spawn(&mut command);
        Ok(command)
    }

    /// Runs `work` on a new thread inside `host` and returns its result. Sockets that it opens belong to the
    /// host permanently; name lookups use the host's names.
    pub fn run_in<T: Send>(&self, host: &str, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
        let host = self.host(host)?;
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| host.namespaces.enter_thread().map(|()| work()));
            match thread.join() {
                Ok(result) => result.map_err(Error::system(format!("cannot enter host \"{}\"", host.name))),
                // The panic came from the caller's closure.
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// The addresses of `host`: IPv4, then IPv6 if the kernel supports it.
    pub fn addresses(&self, host: &str) -> Result<&[IpAddr], Error> {
        Ok(&self.host(host)?.addresses)
    }

    /// The namespaces of `host`, to enter it by other means.
    pub fn namespaces(&self, host: &str) -> Result<Arc<Namespaces>, Error> {
        Ok(Arc::clone(&self.host(host)?.namespaces))
    }

    /// The link called `name`.
    pub fn link(&self, name: &str) -> Result<&Link, Error> {
        self.links.iter().find(|link| link.name() == name).ok_or_else(|| Error::UnknownLink {
            testbed: self.name().into(),
            link: name.into(),
            known: list(self.links.iter().map(Link::name)),
        })
    }

    /// All links, in the order of the scenario.
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// The counters of every link, by its name.
    pub fn counters(&self) -> BTreeMap<String, LinkCounters> {
        self.links.iter().map(|link| (link.name().to_owned(), link.counters())).collect()
    }

    /// Takes the testbed down and returns its last report.
    pub fn down(mut self) -> Report {
        // Programs end first, so that their last packets are counted.
        self.sentinel.finish();
        self.report()
    }

    fn host(&self, name: &str) -> Result<&host::Host, Error> {
        self.hosts.iter().find(|host| host.name == name).ok_or_else(|| Error::UnknownHost {
            testbed: self.name().into(),
            host: name.into(),
            known: list(self.hosts.iter().map(|host| host.name.as_str())),
        })
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        self.sentinel.finish();
    }
}

/// Formats `a, b and c`.
fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<_> = names.collect();
    match names.split_last() {
        None => "none".into(),
        Some((only, [])) => (*only).into(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
    }
}
