//! Builds a host: a thread enters new namespaces, sets them up, and returns descriptors of them.

use super::conditions::{self, HostConditions, Network};
use super::namespace::Namespaces;
use super::netlink::Netlink;
use super::{Error, Scenario, route};
use crate::live::{TRANSMIT_QUEUE_PACKETS, Tun, open_tun};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change};
use std::fmt::Write;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A host that was built.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) name: String,
    pub(super) addresses: Vec<IpAddr>,
    pub(super) namespaces: Arc<Namespaces>,
    pub(super) conditions: HostConditions,
}

/// Data that all hosts of a testbed share.
pub(super) struct Plan<'a> {
    pub(super) scenario: &'a Scenario,
    /// Files that replace those of the same names in `/etc`.
    pub(super) etc: Vec<PathBuf>,
    /// Whether the kernel supports IPv6.
    pub(super) ipv6: bool,
}

/// A host's end of a link.
pub(super) struct End {
    pub(super) link: usize,
    pub(super) tun: Tun,
}

impl Plan<'_> {
    /// Builds the host at `index`: its namespaces, and its ends of its links.
    pub(super) fn build(&self, index: usize) -> Result<(Host, Vec<End>), Error> {
        let name = &self.scenario.hosts[index].name;
        let builder = std::thread::Builder::new().name(format!("host {name}"));
        std::thread::scope(|scope| {
            let thread =
                builder.spawn_scoped(scope, || self.set_up(index)).map_err(Error::system("cannot start a thread"))?;
            thread.join().unwrap_or_else(|_| Err(Error::scenario(format!("host \"{name}\" could not be built"))))
        })
    }

    /// Sets up the host, on the first thread in its namespaces.
    fn set_up(&self, index: usize) -> Result<(Host, Vec<End>), Error> {
        let spec = &self.scenario.hosts[index];
        let at = |what: &str| format!("host \"{}\": cannot {what}", spec.name);
        let namespaces = Namespaces::unshare().map_err(Error::system(at("make its namespaces")))?;
        self.mount().map_err(Error::system(at("give it its own /etc/hosts")))?;
        rustix::system::sethostname(spec.name.as_bytes()).map_err(Error::system(at("set its host name")))?;
        let forwards = self.scenario.links.iter().filter(|link| link.ends.contains(&spec.name)).count() > 1;
        let network = Network { ipv6: self.ipv6, forwards, stock: self.scenario.stock };
        let conditions = conditions::apply(spec, &network)?;
        let ends = self.connect(index).map_err(Error::system(at("set up its interfaces")))?;
        let addresses = self.addresses(index).collect();
        Ok((Host { name: spec.name.clone(), addresses, namespaces: Arc::new(namespaces), conditions }, ends))
    }

    /// Replaces the files that would resolve names outside the testbed.
    fn mount(&self) -> io::Result<()> {
        // Mounts made here stay in this namespace; later mounts of the machine still appear here.
        mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
        for file in &self.etc {
            let target = Path::new("/etc").join(file.file_name().unwrap_or_default());
            match mount_bind(file, &target) {
                // A missing file need not be replaced, except /etc/hosts, without which there would be no
                // names.
                Err(rustix::io::Errno::NOENT) if !target.ends_with("hosts") => {}
                result => result?,
            }
        }
        // The machine's name cache would answer with the machine's names.
        if Path::new("/run/nscd").is_dir() {
            mount("tmpfs", "/run/nscd", "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, None)?;
        }
        // Shows the host's own interfaces. Some containers forbid this mount, and few programs read the file
        // system.
        let _ = mount("sysfs", "/sys", "sysfs", MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC, None);
        Ok(())
    }

    /// Sets up interfaces, addresses and routes.
    fn connect(&self, index: usize) -> io::Result<Vec<End>> {
        let name = &self.scenario.hosts[index].name;
        let mut netlink = Netlink::open()?;
        let loopback = netlink.index("lo")?;
        netlink.up(loopback, None)?;
        let mut ends = Vec::new();
        let mut interfaces = vec![None; self.scenario.links.len()];
        for (position, link) in self.scenario.links.iter().enumerate().filter(|(_, link)| link.ends.contains(name)) {
            let tun = open_tun(&link.name, link.config.mtu)?;
            let interface = netlink.index(&link.name)?;
            netlink.up(interface, Some(TRANSMIT_QUEUE_PACKETS))?;
            for address in self.addresses(index) {
                netlink.add_address(interface, address)?;
            }
            interfaces[position] = Some(interface);
            ends.push(End { link: position, tun });
        }
        if ends.is_empty() {
            for address in self.addresses(index) {
                netlink.add_address(loopback, address)?;
            }
        }
        for (other, link) in route::first_links(self.scenario, index).into_iter().enumerate() {
            let Some(interface) = link.and_then(|link| interfaces[link]) else { continue };
            for (destination, source) in self.addresses(other).zip(self.addresses(index)) {
                netlink.add_route(destination, interface, source)?;
            }
        }
        Ok(ends)
    }

    fn addresses(&self, index: usize) -> impl Iterator<Item = IpAddr> + use<> {
        let ipv6 = self.ipv6;
        route::addresses(index).into_iter().filter(move |address| ipv6 || address.is_ipv4())
    }
}

/// The content of the hosts' `/etc/hosts`.
pub(super) fn hosts_file(scenario: &Scenario, ipv6: bool) -> String {
    let mut text = String::from("127.0.0.1 localhost\n");
    if ipv6 {
        text.push_str("::1 localhost ip6-localhost ip6-loopback\n");
    }
    for (index, host) in scenario.hosts.iter().enumerate() {
        for address in route::addresses(index).into_iter().filter(|address| ipv6 || address.is_ipv4()) {
            let _ = writeln!(text, "{address} {}", host.name);
        }
    }
    text
}

/// The machine's `/etc/nsswitch.conf` with host names only from `/etc/hosts`, since no other service knows
/// them.
pub(super) fn nsswitch_file() -> String {
    let machine = fs::read_to_string("/etc/nsswitch.conf").unwrap_or_default();
    let others = machine.lines().filter(|line| !line.trim_start().starts_with("hosts:"));
    others.chain(["hosts: files"]).map(|line| format!("{line}\n")).collect()
}

/// For programs that query name servers directly: nothing listens there, so they fail at once.
pub(super) const RESOLV_FILE: &str = "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n";
