//! Accepts clients, as many as may be, until told to end.

use super::config::{Config, ConfigError, Trusted};
use super::connection::Connection;
use super::count::{Counts, network};
use super::drivers::{Drivers, Gateways};
use super::made::Made;
use super::session::Rules;
use super::stripes::Nodes;
use super::users::Users;
use crate::control::Link;
use crate::data::Carriers;
use phoebus_files::key::Key;
use phoebus_net::tcp::{self, Listener};
use phoebus_net::{Profile, Stream};
use phoebus_proto::gridftp::reply::Reply;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

/// How long is waited after a connection could not be accepted, for lack of descriptors say.
const PAUSE: Duration = Duration::from_millis(100);

/// How long a client that is one too many may take to be told so.
const FAREWELL: Duration = Duration::from_secs(5);

/// How long sessions that are stopped may take to put away what they have: moments, unless a disk is stuck.
const PUT_AWAY: Duration = Duration::from_secs(30);

/// What all connections share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) config: Config,
    pub(super) users: Users,
    pub(super) drivers: Arc<Drivers>,
    pub(super) carriers: Carriers,
    /// Who moves data in this server's place.
    pub(super) nodes: Option<Nodes>,
    /// Connections by user.
    pub(super) users_now: Counts<String>,
    /// Connections by address.
    addresses: Counts<IpAddr>,
    places: Arc<Semaphore>,
}

/// Whether sessions are to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// As long as they like.
    No,
    /// Until what they are doing is done.
    Soon,
    /// Not at all: what they are doing is stopped, and put away.
    Now,
}

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    listeners: Vec<(Listener, SocketAddr)>,
    rules: Arc<Rules>,
}

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration makes no sense, or names directories that are not there.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An address cannot be listened on.
    #[error(transparent)]
    Listen(#[from] phoebus_net::Error),
}

impl Server {
    /// Opens directories and listens. Called within a runtime.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(config: Config) -> Result<Self, StartError> {
        Self::start_with(config, None)
    }

    /// The same, with `gateways` for those who ask that data goes through some.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start_with(config: Config, gateways: Option<Arc<dyn Gateways>>) -> Result<Self, StartError> {
        let made = Made::of(&config, gateways)?;
        let mut listeners = Vec::new();
        for &addr in &config.listen {
            let listener = tcp::listen(addr, &Profile::default())?;
            let bound = listener.local_addr().map_err(|source| phoebus_net::Error::Listen { addr, source })?;
            listeners.push((listener, bound));
        }
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
            home: config.trusted.as_ref().map_or(Key::ROOT, home),
        };
        let places = Arc::new(Semaphore::new(config.limits.connections.min(Semaphore::MAX_PERMITS)));
        let shared = Shared {
            carriers: Carriers::new(config.data.threads, config.data.turn.0),
            config,
            users: made.users,
            drivers: made.drivers,
            nodes,
            users_now: Counts::default(),
            addresses: Counts::default(),
            places,
        };
        Ok(Self { shared: Arc::new(shared), listeners, rules: Arc::new(rules) })
    }

    /// Looks for what would keep a server from being started with it, or its users from their files: opens all that it names, and listens
    /// nowhere. Called within a runtime.
    ///
    /// # Errors
    /// [`ConfigError`], naming the setting.
    pub async fn check(config: &Config, gateways: Option<Arc<dyn Gateways>>) -> Result<(), ConfigError> {
        Made::of(config, gateways)?.users.look().await
    }

    /// Where it listens, with the ports that the kernel chose for 0.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.iter().map(|(_, addr)| *addr).collect()
    }

    /// Serves the one at the other end of `stream`, and nobody else, until one of the two has enough.
    ///
    /// # Errors
    /// The stream does not say where it leads.
    pub async fn serve_one(self, stream: Stream) -> io::Result<()> {
        let peer = stream.peer_addr()?;
        let (_ending, told) = watch::channel(Ending::No);
        welcome(self.shared, Link::new(stream), peer, self.rules, told).await;
        Ok(())
    }

    /// Serves until `end` is ready. Then nobody new is accepted, sessions end with what they are doing, or are stopped when
    /// `limits.drain` has passed; returns how many were.
    pub async fn run(self, end: impl Future<Output = ()>) -> usize {
        let (ending, told) = watch::channel(Ending::No);
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
        tokio::pin!(end);
        loop {
            tokio::select! {
                () = &mut end => break,
                Some((client, peer)) = clients.recv() => {
                    let (shared, rules, told) = (self.shared.clone(), self.rules.clone(), told.clone());
                    sessions.spawn(async move {
                        let Ok(stream) = client.into_stream() else { return };
                        welcome(shared, Link::new(stream), peer, rules, told).await;
                    });
                }
                Some(_) = sessions.join_next(), if !sessions.is_empty() => {}
            }
        }
        accepting.abort_all();
        let _ = ending.send(Ending::Soon);
        let drained = async { while sessions.join_next().await.is_some() {} };
        if tokio::time::timeout(self.shared.config.limits.drain.0, drained).await.is_ok() {
            return 0;
        }
        let unfinished = sessions.len();
        let _ = ending.send(Ending::Now);
        let stopped = async { while sessions.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(PUT_AWAY, stopped).await;
        unfinished
    }
}

/// Where one is to begin with of whom all is known.
fn home(trusted: &Trusted) -> Key {
    let beneath = trusted.home.strip_prefix(&trusted.root).ok();
    beneath.and_then(|path| Key::parse(path.as_os_str().as_bytes()).ok()).unwrap_or_default()
}

/// Serves a client, if there is room for him.
async fn welcome(
    shared: Arc<Shared>,
    mut link: Link,
    peer: SocketAddr,
    rules: Arc<Rules>,
    told: watch::Receiver<Ending>,
) {
    let place = shared.places.clone().try_acquire_owned();
    // All that come to a data node come from its front end.
    let most = if shared.config.data_node { usize::MAX } else { shared.config.limits.per_address };
    let counted = shared.addresses.add(network(peer.ip()), most);
    if let (Ok(_place), Some(_counted)) = (place, counted) {
        return Connection::serve(shared, link, peer, rules, told).await;
    }
    tracing::warn!(%peer, "there are too many connections");
    let refusal = Reply::new(421, "there are too many connections; try again later");
    if link.write(&refusal.encode(), FAREWELL).await.is_ok() {
        let _ = link.close().await;
    }
}

/// What this host calls itself.
fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "localhost".to_owned() } else { name.to_owned() }
}
