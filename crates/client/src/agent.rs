//! Running agents, as programs find them (S1): a file of the user's own, locked for as long as the agent lives, says where it
//! listens and what it wants to hear ([`phoebus_proto::agent`]).
//!
//! The lock is what tells a running agent from one that was killed: its port may be another user's by now, who must not get
//! what was meant for the agent.

use phoebus_proto::agent::{FILE_MAX, Place, Running, directory};
use phoebus_proto::first_hop::{By, FirstHop};
use phoebus_proto::settings::Settings;
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Where the agent for some settings is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agents {
    directory: PathBuf,
    place: Place,
    demanded: Option<FirstHop>,
}

impl Agents {
    /// For `settings`; none without a gateway, or where an agent is not to be used. `lookup` is usually
    /// [`environment::variable`](crate::environment::variable).
    pub fn of(settings: &Settings, lookup: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let demanded = settings.first_hop;
        if settings.disabled || demanded.is_some_and(|hop| hop.by == By::Tcp) {
            return None;
        }
        let place = Place::of(settings, namespace())?;
        let directory = directory(lookup, rustix::process::geteuid().as_raw());
        Some(Self { directory, place, demanded })
    }

    /// What carries the first hop, where that is demanded: then it is carried so or not at all.
    pub fn demanded(&self) -> Option<FirstHop> {
        self.demanded.filter(|hop| hop.is_strict())
    }

    /// What is to be said of a first hop without an agent that was to have one if there is any.
    pub(crate) fn missing(&self) -> Option<&'static str> {
        let auto = self.demanded.is_some_and(|hop| !hop.is_strict());
        auto.then_some("asked for auto as the first hop, in force is tcp: no agent runs")
    }

    /// The directory that agents leave their files in; who starts one makes it.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The agent's file for just these settings, and the name by which any agent for the gateway is found.
    pub fn files(&self) -> [PathBuf; 2] {
        [&self.place.own, &self.place.any].map(|name| self.directory.join(name))
    }

    /// The agent that runs: the one for these settings where a first hop is asked for, otherwise any for the gateway.
    pub fn find(&self) -> Option<Running> {
        let any = || running(&self.files()[1]);
        match self.demanded {
            Some(hop) if hop.is_strict() => self.find_own(),
            Some(_) => self.find_own().or_else(any),
            None => any(),
        }
    }

    /// The agent with just these settings that runs.
    pub fn find_own(&self) -> Option<Running> {
        running(&self.files()[0])
    }
}

/// The agent whose file this is, if it is this user's and lives.
fn running(path: &Path) -> Option<Running> {
    let file = File::open(path).ok()?;
    let metadata = file.metadata().ok()?;
    let ours = metadata.uid() == rustix::process::geteuid().as_raw() && metadata.mode() & 0o077 == 0;
    // Whoever gets the lock finds nobody who holds it.
    if !metadata.is_file() || !ours || flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
        return None;
    }
    let mut text = String::new();
    file.take(FILE_MAX as u64).read_to_string(&mut text).ok()?;
    Running::parse(&text)
}

/// The number of this process's network namespace, 0 where the system does not say.
fn namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/net").map_or(0, |namespace| namespace.ino())
}

#[cfg(test)]
mod tests {
    use super::*;
    use phoebus_proto::agent::Secret;
    use phoebus_proto::endpoint::Endpoint;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_an_agent_that_lives_is_found() {
        let home = tempfile::tempdir().unwrap();
        let lookup = |name: &str| (name == "XDG_RUNTIME_DIR").then(|| home.path().to_str().unwrap().to_owned());
        let path = Endpoint::parse_path("pg1").unwrap();
        let any = Settings { path, ..Settings::default() };
        let quic = Settings { first_hop: Some("quic".parse().unwrap()), ..any.clone() };
        let udt = Settings { first_hop: Some("udt".parse().unwrap()), ..any.clone() };
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
        fs::set_permissions(&own, Permissions::from_mode(0o644)).unwrap();
        assert_eq!(find(&quic), None, "others can read the secret");
        fs::set_permissions(&own, Permissions::from_mode(0o600)).unwrap();
        drop(lock);
        assert_eq!(find(&any), None);
    }
}
