//! Finds running agents (S1): a file of the user, locked while the agent lives, holds its address and its secret
//! ([`phoebus_config::agent`]).
//!
//! The lock distinguishes a running agent from a killed one: the port of a killed agent may now belong to another
//! user, who must not receive what was meant for the agent.

use phoebus_config::agent::{AgentFileNames, FILE_MAX, Running, directory};
use phoebus_config::bearer::BearerPlaces;
use phoebus_config::first_hop::{By, FirstHop};
use phoebus_config::settings::Settings;
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Where the agent for some settings is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agents {
    directory: PathBuf,
    place: AgentFileNames,
    demanded: Option<FirstHop>,
}

impl Agents {
    /// The agents for `settings`; `None` without a gateway, or if the settings disable agents. `lookup` is usually
    /// [`environment::variable`](phoebus_config::environment::variable).
    pub fn of(settings: &Settings, lookup: impl Fn(&str) -> Option<String>) -> Option<Self> {
        Self::for_proxy(settings, lookup).filter(|agents| !agents.is_plain())
    }

    /// The same for programs that come by SOCKS or HTTP: these need an agent for a first hop by TCP as well.
    pub fn for_proxy(settings: &Settings, lookup: impl Fn(&str) -> Option<String>) -> Option<Self> {
        if settings.disabled {
            return None;
        }
        let demanded = settings.first_hop;
        let place = AgentFileNames::of(settings, namespace(), &BearerPlaces::source(&lookup))?;
        let directory = directory(lookup, rustix::process::geteuid().as_raw());
        Some(Self { directory, place, demanded })
    }

    /// The transport that the first hop must use, if the settings demand one strictly.
    pub fn demanded(&self) -> Option<FirstHop> {
        self.demanded.filter(|hop| hop.is_strict())
    }

    /// The note for a first hop without an agent, if the settings prefer one.
    pub(crate) fn missing(&self) -> Option<&'static str> {
        let auto = self.demanded.is_some_and(|hop| !hop.is_strict());
        auto.then_some("asked for auto as the first hop, in force is tcp: no agent runs")
    }

    /// Whether the settings demand a first hop by TCP, for which programs that open sessions themselves need no agent.
    pub fn is_plain(&self) -> bool {
        self.demanded.is_some_and(|hop| hop.by == By::Tcp)
    }

    /// The directory of the agents' files. Whoever starts an agent creates it.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Two files: the one of an agent for exactly these settings, and the one of any agent for the gateway.
    pub fn files(&self) -> [PathBuf; 2] {
        [&self.place.own, &self.place.any].map(|name| self.directory.join(name))
    }

    /// The running agent: the one for exactly these settings if they ask for a first hop, otherwise any for the
    /// gateway.
    pub fn find(&self) -> Option<Running> {
        match self.demanded {
            // Another agent may show another certificate than these settings name.
            Some(_) => self.find_own(),
            None => running(&self.files()[1]),
        }
    }

    /// The running agent for exactly these settings.
    pub fn find_own(&self) -> Option<Running> {
        running(&self.files()[0])
    }
}

/// The agent that owns this file, if it belongs to this user and is alive.
fn running(path: &Path) -> Option<Running> {
    let file = File::open(path).ok()?;
    let metadata = file.metadata().ok()?;
    let ours = metadata.uid() == rustix::process::geteuid().as_raw() && metadata.mode() & 0o077 == 0;
    // If the lock is free, the agent is dead.
    if !metadata.is_file() || !ours || flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
        return None;
    }
    let mut text = String::new();
    file.take(FILE_MAX as u64).read_to_string(&mut text).ok()?;
    Running::parse(&text)
}

/// The inode of this process's network namespace; 0 if the system does not provide it.
fn namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/net").map_or(0, |namespace| namespace.ino())
}

#[cfg(test)]
mod tests {
    use super::*;
    use phoebus_config::agent::Secret;
    use phoebus_proto::endpoint::Endpoint;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn find_returns_only_a_live_agent() {
        let home = tempfile::tempdir().unwrap();
        let lookup = |name: &str| (name == "XDG_RUNTIME_DIR").then(|| home.path().to_str().unwrap().to_owned());
        let path = Endpoint::parse_path("pg1").unwrap();
        let any = Settings { path, ..Settings::default() };
        let quic = Settings { first_hop: Some("quic".parse().unwrap()), ..any.clone() };
        let udt = Settings { first_hop: Some("udt".parse().unwrap()), ..any.clone() };
        let auto = Settings { first_hop: Some("auto".parse().unwrap()), ..any.clone() };
        let tcp = Settings { first_hop: Some("tcp".parse().unwrap()), ..any.clone() };
        assert_eq!(Agents::of(&tcp, lookup), None);
        let find = |settings: &Settings| Agents::of(settings, lookup).unwrap().find();
        assert_eq!(find(&quic), None);

        let agents = Agents::of(&quic, lookup).unwrap();
        fs::create_dir_all(agents.directory()).unwrap();
        let [own, pointer] = agents.files();
        let running = Running { addresses: [Some("127.0.0.1:9".parse().unwrap()), None], secret: Secret([1; 32]) };
        fs::write(&own, running.text()).unwrap();
        fs::set_permissions(&own, Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(own.file_name().unwrap(), &pointer).unwrap();
        assert_eq!(find(&quic), None, "nobody holds the lock");
        let lock = File::open(&own).unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        assert_eq!((find(&quic), find(&any), find(&udt)), (Some(running), Some(running), None));
        assert_eq!(find(&auto), None, "it may show a certificate that these settings do not name");
        fs::set_permissions(&own, Permissions::from_mode(0o644)).unwrap();
        assert_eq!(find(&quic), None, "others can read the secret");
        fs::set_permissions(&own, Permissions::from_mode(0o600)).unwrap();
        drop(lock);
        assert_eq!(find(&any), None);
    }
}
