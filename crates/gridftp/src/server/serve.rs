//! Accepts clients within the limits, until the shutdown.

use super::config::{Config, ConfigError};
use super::connection::Connection;
use super::current::Current;
use super::drivers::Gateways;
use super::loaded::LoadedConfig;
use super::shutdown::Shutdown;
use super::sweep::sweep;
use crate::control::Link;
use phoebus_accounts::count::network;
use phoebus_net::tcp::{self, Listener};
use phoebus_net::{Profile, Stream};
use phoebus_proto::gridftp::reply::Reply;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Pause after a failed accept, for example without free descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Time to send the refusal to a client beyond the limit.
const FAREWELL: Duration = Duration::from_secs(5);

/// Time that stopped sessions have at least to save what they received. Moments, unless a disk hangs; what is not saved
/// is recovered as after a crash.
const PUT_AWAY: Duration = Duration::from_secs(1);

/// A listening server.
#[derive(Debug)]
pub struct Server {
    current: Arc<Mutex<Current>>,
    gateways: Option<Arc<dyn Gateways>>,
    listeners: Vec<(Listener, SocketAddr)>,
}

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is invalid, or names directories that do not exist.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The server cannot listen on an address.
    #[error(transparent)]
    Listen(#[from] phoebus_net::Error),
}

impl Server {
    /// Opens all files of the configuration and listens. Needs a runtime.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(config: Config) -> Result<Self, StartError> {
        Self::start_with(config, None)
    }

    /// The same, with `gateways` for data connections that clients want through gateways.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start_with(config: Config, gateways: Option<Arc<dyn Gateways>>) -> Result<Self, StartError> {
        let current = Current::of(config.clone(), gateways.clone(), None)?;
        let mut listeners = Vec::new();
        for &addr in &config.listen {
            let listener = tcp::listen(addr, &Profile::default())?;
            let bound = listener.local_addr().map_err(|source| phoebus_net::Error::Listen { addr, source })?;
            listeners.push((listener, bound));
        }
        Ok(Self { current: Arc::new(Mutex::new(current)), gateways, listeners })
    }

    /// Checks that a server can start with this configuration and that users can reach their files. Opens everything,
    /// but does not listen. Needs a runtime.
    ///
    /// # Errors
    /// [`ConfigError`], naming the setting.
    pub async fn check(config: &Config, gateways: Option<Arc<dyn Gateways>>) -> Result<(), ConfigError> {
        let load = async { Ok(LoadedConfig::of(config, gateways, None)?.users.look().await?) };
        load.await.map_err(|error| config.origin.locate(error))
    }

    /// A handle that replaces the configuration of this server.
    pub fn reloader(&self) -> Reloader {
        Reloader { current: self.current.clone(), gateways: self.gateways.clone() }
    }

    /// The addresses that it listens on, with the ports that the kernel chose for 0.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.iter().map(|(_, addr)| *addr).collect()
    }

    /// Serves only the client at the other end of `stream`, until either side closes.
    ///
    /// # Errors
    /// The stream has no addresses.
    pub async fn serve_one(self, stream: Stream) -> io::Result<()> {
        let peer = stream.peer_addr()?;
        let current = now(&self.current);
        if let Some(hub) = current.shared.drivers.hub() {
            hub.set_client(peer.ip());
        }
        let (_ending, told) = watch::channel(Shutdown::None);
        welcome(current, Link::new(stream), peer, told).await;
        Ok(())
    }

    /// Serves until `end` is ready. Then it accepts nobody new, and sessions finish what they are doing. Sessions that
    /// remain shortly before `limits.drain` has passed are stopped. Returns their number.
    pub async fn run(self, end: impl Future<Output = ()>) -> usize {
        let (ending, told) = watch::channel(Shutdown::None);
        let mut sessions = JoinSet::new();
        let mut accepting = JoinSet::new();
        let (accepted, mut clients) = tokio::sync::mpsc::channel(16);
        for (listener, addr) in self.listeners {
            let accepted = accepted.clone();
            accepting.spawn(async move {
                loop {
                    match listener.accept().await {
                        Ok(client) => drop(accepted.send(client).await),
                        Err(error) => {
                            tracing::warn!(%addr, %error, "a connection could not be accepted");
                            tokio::time::sleep(PAUSE).await;
                        }
                    }
                }
            });
        }
        let data_node = now(&self.current).shared.config.data_node;
        let mut helpers = JoinSet::new();
        // A data node writes to drafts of its front end, which the front end sweeps.
        if !data_node {
            helpers.spawn(sweep(self.current.clone()));
        }
        tokio::pin!(end);
        loop {
            tokio::select! {
                () = &mut end => break,
                Some((client, peer)) = clients.recv() => {
                    let (current, told) = (now(&self.current), told.clone());
                    sessions.spawn(async move {
                        // Clients send ABOR, or the Telnet commands before it, as urgent data. A lost byte would damage
                        // the line.
                        if let Err(error) = client.keep_urgent_bytes() {
                            tracing::warn!(%peer, %error, "urgent data of a client would be lost");
                        }
                        let Ok(stream) = client.into_stream() else { return };
                        welcome(current, Link::new(stream), peer, told).await;
                    });
                }
                Some(_) = sessions.join_next(), if !sessions.is_empty() => {}
            }
        }
        accepting.abort_all();
        helpers.abort_all();
        let _ = ending.send(Shutdown::Draining);
        let drain = now(&self.current).shared.config.limits.drain.0;
        let putting_away = PUT_AWAY.min(drain / 4);
        let drained = async { while sessions.join_next().await.is_some() {} };
        if tokio::time::timeout(drain - putting_away, drained).await.is_ok() {
            return 0;
        }
        let unfinished = sessions.len();
        let _ = ending.send(Shutdown::Now);
        let stopped = async { while sessions.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(putting_away, stopped).await;
        unfinished
    }
}

/// Replaces the configuration of a running server. Clones refer to the same server.
#[derive(Debug, Clone)]
pub struct Reloader {
    current: Arc<Mutex<Current>>,
    gateways: Option<Arc<dyn Gateways>>,
}

impl Reloader {
    /// Serves new connections by `config`; existing ones keep theirs. Reads all files again: directories, keys,
    /// certificates, revocation lists, the grid-mapfile. Existing connections count against the new limits. Addresses
    /// and the role as data node do not change. Blocks on files.
    ///
    /// # Errors
    /// [`ConfigError`]. Then nothing has changed.
    pub fn reload(&self, config: Config) -> Result<(), ConfigError> {
        let before = now(&self.current);
        let fixed = &before.shared.config;
        let config = Config { listen: fixed.listen.clone(), data_node: fixed.data_node, ..config };
        let new = Current::of(config, self.gateways.clone(), Some(&before.shared))?;
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }
}

fn now(current: &Mutex<Current>) -> Current {
    current.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Serves a client, if there is room.
async fn welcome(current: Current, mut link: Link, peer: SocketAddr, told: watch::Receiver<Shutdown>) {
    let Current { shared, rules } = current;
    let place = shared.places.add((), shared.config.limits.connections);
    // All connections of a data node come from its front end, so the limit per address does not apply.
    let most = if shared.config.data_node { usize::MAX } else { shared.config.limits.per_address };
    let counted = shared.addresses.add(network(peer.ip()), most);
    if let (Some(_place), Some(_counted)) = (place, counted) {
        return Connection::serve(shared, link, peer, rules, told).await;
    }
    tracing::warn!(%peer, "there are too many connections");
    let refusal = Reply::new(421, "there are too many connections; try again later");
    if link.write(&refusal.encode(), FAREWELL).await.is_ok() {
        let _ = link.close().await;
    }
}
