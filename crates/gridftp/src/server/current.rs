//! What a server serves at a time: its configuration and all that was read of it. Another one takes its place as a whole, for those who
//! connect from then on; what is counted goes on.

use super::amid::Moving;
use super::config::{Config, ConfigError, Trusted};
use super::count::Counts;
use super::drivers::{Drivers, Gateways};
use super::logins::Checks;
use super::made::Made;
use super::memory::Memory;
use super::session::Rules;
use super::stripes::Nodes;
use super::users::Users;
use crate::data::Carriers;
use phoebus_files::key::Key;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

/// What all connections share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) config: Config,
    pub(super) users: Users,
    pub(super) drivers: Arc<Drivers>,
    pub(super) carriers: Carriers,
    /// What is kept for clients.
    pub(super) memory: Arc<Memory>,
    /// Passwords that are looked at, and logins that failed.
    pub(super) checks: Arc<Checks>,
    /// Who moves data in this server's place.
    pub(super) nodes: Option<Nodes>,
    /// Connections by user.
    pub(super) users_now: Counts<String>,
    /// Transfers that are under way.
    pub(super) moving: Moving,
    /// Ports on which sessions listen for data connections.
    pub(super) data_ports: Counts<u16>,
    /// Connections by address.
    pub(super) addresses: Counts<IpAddr>,
    /// All connections.
    pub(super) places: Counts<()>,
}

/// What new connections are served by.
#[derive(Debug, Clone)]
pub(super) struct Current {
    pub(super) shared: Arc<Shared>,
    pub(super) rules: Arc<Rules>,
}

impl Current {
    /// By `config`, all of which is opened and read; what is counted is that of `before`.
    ///
    /// # Errors
    /// [`ConfigError`]: what cannot be used.
    pub(super) fn of(
        config: Config,
        gateways: Option<Arc<dyn Gateways>>,
        before: Option<&Shared>,
    ) -> Result<Self, ConfigError> {
        let made = Made::of(&config, gateways, before.map(|before| (&before.config, &before.users)))?;
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
        // What waits for its turn, or for its delay to pass, does so across a change.
        let old = before.map(|before| (before, &before.config.limits));
        let checks = match old {
            Some((before, old)) if old.password_checks == limits.password_checks => before.checks.clone(),
            Some((before, _)) => Arc::new(before.checks.again(limits.password_checks)),
            None => Arc::new(Checks::new(limits.password_checks)),
        };
        // All that come to a data node come from its front end.
        let per_address = if config.data_node { u64::MAX } else { limits.memory_per_address.0 };
        let kept = (limits.memory_per_address.0, limits.memory.0);
        let memory = old.filter(|(_, old)| (old.memory_per_address.0, old.memory.0) == kept);
        let threads = (data.threads, data.turn.0);
        let carriers = before.filter(|before| (before.config.data.threads, before.config.data.turn.0) == threads);
        let shared = Shared {
            carriers: carriers.map_or_else(|| Carriers::new(threads.0, threads.1), |before| before.carriers.clone()),
            checks,
            memory: memory.map_or_else(|| Memory::new(per_address, kept.1), |(before, _)| before.memory.clone()),
            users: made.users,
            drivers: made.drivers,
            nodes,
            users_now: before.map(|before| before.users_now.clone()).unwrap_or_default(),
            moving: before.map(|before| before.moving.clone()).unwrap_or_default(),
            data_ports: before.map(|before| before.data_ports.clone()).unwrap_or_default(),
            addresses: before.map(|before| before.addresses.clone()).unwrap_or_default(),
            places: before.map(|before| before.places.clone()).unwrap_or_default(),
            config,
        };
        Ok(Self { shared: Arc::new(shared), rules: Arc::new(rules) })
    }
}

/// Where one is to begin with of whom all is known.
fn home(trusted: &Trusted) -> Key {
    let beneath = trusted.home.strip_prefix(&trusted.root).ok();
    beneath.and_then(|path| Key::parse(path.as_os_str().as_bytes()).ok()).unwrap_or_default()
}

/// What this host calls itself.
fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "localhost".to_owned() } else { name.to_owned() }
}
