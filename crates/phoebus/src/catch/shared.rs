//! What all caught connects share: settings, the listener, sessions that are being opened.

use super::attempts::Attempts;
use super::names::Names;
use phoebus_client::Options;
use phoebus_config::settings::Settings;
use phoebus_proto::endpoint::Host;
use phoebus_seccomp::Listener;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;

/// See the module.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) settings: Settings,
    pub(super) options: Options,
    listener: Listener,
    pub(super) attempts: Attempts,
    /// The names in the lists of destinations.
    selected: Names,
    /// The first gateway's name.
    gateway: Names,
    /// Whether a failure was told that no direct connection has.
    pub(super) told: AtomicBool,
}

impl Shared {
    pub(super) fn new(settings: Settings, listener: Listener) -> Self {
        let lists = settings.only.iter().chain(&settings.except);
        let selected = Names::new(lists.flat_map(|list| list.names().map(str::to_owned)));
        let gateway = settings.path.iter().take(1).filter_map(|gateway| match &gateway.host {
            Host::Name(name) => Some(name.to_string()),
            Host::Addr(_) => None,
        });
        Self {
            options: Options::from(&settings),
            listener,
            attempts: Attempts::default(),
            selected,
            gateway: Names::new(gateway),
            told: AtomicBool::new(false),
            settings,
        }
    }

    pub(super) fn listener(&self) -> &Listener {
        &self.listener
    }

    /// Whether the settings lead a connection to `destination` through gateways, as in the preload library.
    pub(super) async fn selects(&self, destination: SocketAddr) -> bool {
        let ip = destination.ip().to_canonical();
        let pairs = self.selected.pairs().await;
        let names = pairs.iter().filter(|(_, known)| known.to_canonical() == ip).map(|(name, _)| &name[..]);
        self.settings.selects(destination, names)
    }

    /// Whether it is the first gateway or its agent. Whoever connects there speaks with it.
    pub(super) async fn is_first_hop(&self, destination: SocketAddr) -> bool {
        let destination = SocketAddr::new(destination.ip().to_canonical(), destination.port());
        let Some(gateway) = self.settings.path.first() else { return false };
        if gateway.port == destination.port() {
            let ip = destination.ip();
            let is_it = match &gateway.host {
                Host::Addr(addr) => addr.to_canonical() == ip,
                Host::Name(_) => self.gateway.pairs().await.iter().any(|(_, known)| known.to_canonical() == ip),
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
