//! The loaded configuration of a running server. A reload replaces it as a whole for new connections; counters carry
//! over.

use super::config::{Config, ConfigError, Trusted};
use super::drain::FileTasks;
use super::drivers::{Drivers, Gateways};
use super::identity::IdentityMap;
use super::loaded::LoadedConfig;
use super::node_auth::Secret;
use super::session::Rules;
use crate::data::{IoThreads, KnownPaths, ObjectMemory};
use phoebus_accounts::Users;
use phoebus_accounts::count::Counts;
use phoebus_accounts::logins::Checks;
use phoebus_accounts::memory::Memory;
use phoebus_files::key::Key;
use phoebus_files::local::Turns;
use phoebus_proto::endpoint::Endpoint;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

/// State that all connections share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) config: Config,
    pub(super) users: Users,
    pub(super) proofs: IdentityMap,
    pub(super) drivers: Arc<Drivers>,
    pub(super) io_threads: IoThreads,
    /// Batches of short files that have files open.
    pub(super) batches: Turns,
    /// Memory for the chunks of objects.
    pub(super) object_memory: ObjectMemory,
    /// What is known of paths to other hosts.
    pub(super) known_paths: KnownPaths,
    /// Memory that clients take.
    pub(super) memory: Arc<Memory>,
    /// Password checks in progress, and failed logins.
    pub(super) checks: Arc<Checks>,
    /// The data nodes.
    pub(super) nodes: Option<Nodes>,
    /// Connections of each user.
    pub(super) users_now: Counts<String>,
    /// Tasks about files in progress.
    pub(super) file_tasks: FileTasks,
    /// Ports on which sessions listen for data.
    pub(super) data_ports: Counts<u16>,
    /// Connections of each address.
    pub(super) addresses: Counts<IpAddr>,
    /// All connections.
    pub(super) places: Counts<()>,
}

/// The data nodes of a front end.
#[derive(Debug)]
pub(super) struct Nodes {
    pub(super) at: Vec<Endpoint>,
    pub(super) secret: Arc<Secret>,
}

/// The configuration for new connections.
#[derive(Debug, Clone)]
pub(super) struct Current {
    pub(super) shared: Arc<Shared>,
    pub(super) rules: Arc<Rules>,
}

impl Current {
    /// Loads `config`. Counters carry over from `before`.
    ///
    /// # Errors
    /// [`ConfigError`]: something cannot be used.
    pub(super) fn of(
        config: Config,
        gateways: Option<Arc<dyn Gateways>>,
        before: Option<&Shared>,
    ) -> Result<Self, ConfigError> {
        let origin = config.origin.clone();
        Self::load(config, gateways, before).map_err(|error| origin.locate(error))
    }

    fn load(config: Config, gateways: Option<Arc<dyn Gateways>>, before: Option<&Shared>) -> Result<Self, ConfigError> {
        let made = LoadedConfig::of(&config, gateways, before.map(|before| &before.users))?;
        let name = config.name.clone().unwrap_or_else(host_name);
        let secret = made.secret;
        let nodes = match &secret {
            Some(secret) if !config.data_node => config.stripes.at()?.map(|at| Nodes { at, secret: secret.clone() }),
            _ => None,
        };
        let rules = Rules {
            stripes: nodes.as_ref().map_or(0, |nodes| nodes.at.len()),
            node: secret.filter(|_| config.data_node),
            greeting: format!("{name} Phoebus GridFTP Server {} ready.", env!("CARGO_PKG_VERSION")),
            attempts: config.limits.attempts,
            streams: config.data.streams,
            drivers: made.drivers.clone(),
            buffer: config.data.buffer.0,
            gsi: made.gsi,
            #[cfg(feature = "kerberos")]
            kerberos: made.kerberos,
            tls: made.tls,
            clear_passwords: config.tls.as_ref().is_none_or(|tls| !tls.required),
            reach: config.data.third_party_to.clone(),
            home: config.trusted.as_ref().map_or(Key::ROOT, home),
        };
        let (limits, data) = (&config.limits, &config.data);
        // Password checks that wait continue after a reload.
        let old = before.map(|before| (before, &before.config.limits));
        let checks = match old {
            Some((before, old)) if old.password_checks == limits.password_checks => before.checks.clone(),
            Some((before, _)) => Arc::new(before.checks.again(limits.password_checks)),
            None => Arc::new(Checks::new(limits.password_checks)),
        };
        // All connections of a data node come from its front end.
        let per_address = if config.data_node { u64::MAX } else { limits.memory_per_address.0 };
        let kept = (limits.memory_per_address.0, limits.memory.0);
        let memory = old.filter(|(_, old)| (old.memory_per_address.0, old.memory.0) == kept);
        let [at_once, of_one] = limits.batch_turns();
        let threads = (data.threads, data.turn.0);
        let io_threads = before.filter(|before| (before.config.data.threads, before.config.data.turn.0) == threads);
        let shared = Shared {
            io_threads: io_threads
                .map_or_else(|| IoThreads::new(threads.0, threads.1), |before| before.io_threads.clone()),
            batches: old
                .filter(|(_, old)| old.batch_turns() == limits.batch_turns())
                .map_or_else(|| Turns::new(at_once, of_one, 1), |(before, _)| before.batches.clone()),
            object_memory: before
                .filter(|before| before.config.data.object_memory.0 == data.object_memory.0)
                .map_or_else(|| ObjectMemory::new(data.object_memory.0), |before| before.object_memory.clone()),
            known_paths: before.map(|before| before.known_paths.clone()).unwrap_or_default(),
            checks,
            memory: memory.map_or_else(|| Memory::new(per_address, kept.1), |(before, _)| before.memory.clone()),
            users: made.users,
            proofs: made.proofs,
            drivers: made.drivers,
            nodes,
            users_now: before.map(|before| before.users_now.clone()).unwrap_or_default(),
            file_tasks: before.map(|before| before.file_tasks.clone()).unwrap_or_default(),
            data_ports: before.map(|before| before.data_ports.clone()).unwrap_or_default(),
            addresses: before.map(|before| before.addresses.clone()).unwrap_or_default(),
            places: before.map(|before| before.places.clone()).unwrap_or_default(),
            config,
        };
        Ok(Self { shared: Arc::new(shared), rules: Arc::new(rules) })
    }
}

/// The start directory of a client that SSH has authenticated.
fn home(trusted: &Trusted) -> Key {
    let beneath = trusted.home.strip_prefix(&trusted.root).ok();
    beneath.and_then(|path| Key::parse(path.as_os_str().as_bytes()).ok()).unwrap_or_default()
}

/// The name of this host.
fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "localhost".to_owned() } else { name.to_owned() }
}
