//! What all caught connects share: settings, the listener, sessions that are being opened.

use super::attempts::Attempts;
use super::names::Names;
use phoebus_client::Options;
use phoebus_config::select::Selection;
use phoebus_config::settings::Settings;
use phoebus_proto::endpoint::Host;
use phoebus_seccomp::Listener;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::AtomicBool;

/// See the module.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) settings: Settings,
    pub(super) options: Options,
    listener: Listener,
    pub(super) attempts: Attempts,
    /// The settings without exceptions.
    wanted: Settings,
    /// The names in `PHOEBUS_ONLY`.
    selected: Names,
    /// The names in `PHOEBUS_EXCEPT`.
    excepted: Names,
    /// The first gateway's name.
    gateway: Names,
    /// Whether a failure was told that no direct connection has.
    pub(super) told: AtomicBool,
}

/// How the settings lead a connection.
pub(super) enum Choice {
    /// Through gateways, although these names of exceptions could not be looked up.
    Led { exceptions: Vec<String> },
    /// Past them.
    Direct,
    /// These names in `PHOEBUS_ONLY` decide it, and could not be looked up.
    Unknown(Vec<String>),
}

impl Shared {
    pub(super) fn new(settings: Settings, listener: Listener) -> Self {
        let names = |list: &Option<Selection>| Names::new(list.iter().flat_map(|l| l.names().map(str::to_owned)));
        let gateway = settings.path.iter().take(1).filter_map(|gateway| match &gateway.host {
            Host::Name(name) => Some(name.to_string()),
            Host::Addr(_) => None,
        });
        Self {
            options: Options::from(&settings),
            listener,
            attempts: Attempts::default(),
            wanted: Settings { except: None, ..settings.clone() },
            selected: names(&settings.only),
            excepted: names(&settings.except),
            gateway: Names::new(gateway),
            told: AtomicBool::new(false),
            settings,
        }
    }

    pub(super) fn listener(&self) -> &Listener {
        &self.listener
    }

    /// Whether the settings lead a connection to `destination` through gateways, as in the preload library. Ranges and
    /// ports decide before names are looked up.
    pub(super) async fn selects(&self, destination: SocketAddr) -> Choice {
        let (ip, wanted) = (destination.ip().to_canonical(), &self.wanted);
        let wanted = decide(&self.selected, ip, |names| wanted.selects(destination, names.iter().copied())).await;
        if wanted == Ok(false) {
            return Choice::Direct;
        }
        let mut exceptions = Vec::new();
        if let Some(except) = &self.settings.except {
            let excepted = |names: &[&str]| except.matches(destination, names.iter().copied());
            match decide(&self.excepted, ip, excepted).await {
                Ok(true) => return Choice::Direct,
                Ok(false) => {}
                Err(names) => exceptions = names,
            }
        }
        wanted.map_or_else(Choice::Unknown, |_| Choice::Led { exceptions })
    }

    /// Whether it is the first gateway or its agent. Whoever connects there speaks with it.
    pub(super) async fn is_first_hop(&self, destination: SocketAddr) -> bool {
        let destination = SocketAddr::new(destination.ip().to_canonical(), destination.port());
        let Some(gateway) = self.settings.path.first() else { return false };
        if gateway.port == destination.port() {
            let ip = destination.ip();
            let is_it = match &gateway.host {
                Host::Addr(addr) => addr.to_canonical() == ip,
                Host::Name(_) => !self.gateway.at(ip.to_canonical()).await.0.is_empty(),
            };
            if is_it {
                return true;
            }
        }
        destination.ip().is_loopback()
            && self
                .options
                .agents
                .as_ref()
                .and_then(phoebus_client::Agents::find)
                .is_some_and(|agent| agent.addresses.into_iter().flatten().any(|own| own == destination))
    }
}

/// Whether `test` holds with the names that have this address; more names never make it false.
///
/// # Errors
/// The names that decide it, and could not be looked up.
async fn decide(names: &Names, ip: IpAddr, test: impl Fn(&[&str]) -> bool) -> Result<bool, Vec<String>> {
    if test(&[]) {
        return Ok(true);
    }
    if !test(&names.all()) {
        return Ok(false);
    }
    let (there, mut unknown) = names.at(ip).await;
    if test(&there) {
        return Ok(true);
    }
    unknown.retain(|name| test(&[name]));
    if unknown.is_empty() { Ok(false) } else { Err(unknown.into_iter().map(str::to_owned).collect()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn name_that_is_not_looked_up_decides_only_where_no_range_does() {
        let none = "x".repeat(64);
        let list: Selection = "192.0.2.0/24,name.example:443,localhost:80".parse().unwrap();
        let names = Names::new([none.clone(), "localhost".to_owned()].into_iter());
        // As if the name in the list were one that cannot be looked up.
        let selects = async |to: &str| {
            let to: SocketAddr = to.parse().unwrap();
            let named = |name: &&str| if **name == none { "name.example" } else { "localhost" };
            decide(&names, to.ip(), |names| list.matches(to, names.iter().map(named))).await
        };
        assert_eq!(selects("192.0.2.1:443").await, Ok(true));
        assert_eq!(selects("198.51.100.1:22").await, Ok(false), "no name has this port");
        assert_eq!(selects("127.0.0.1:80").await, Ok(true));
        assert_eq!(selects("198.51.100.1:80").await, Ok(false));
        assert_eq!(selects("198.51.100.1:443").await, Err(vec![none.clone()]));
    }
}
