//! Accepts clients, as many as may be, until told to end.

use super::config::{Config, ConfigError};
use super::connection::Connection;
use super::count::network;
use super::current::Current;
use super::drivers::Gateways;
use super::made::Made;
use super::sweep::sweep;
use crate::control::Link;
use phoebus_net::tcp::{self, Listener};
use phoebus_net::{Profile, Stream};
use phoebus_proto::gridftp::reply::Reply;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How long is waited after a connection could not be accepted, for lack of descriptors say.
const PAUSE: Duration = Duration::from_millis(100);

/// How long a client that is one too many may take to be told so.
const FAREWELL: Duration = Duration::from_secs(5);

/// How long sessions that are stopped have at least to put away what they have: moments, unless a disk is stuck. What a disk has not taken by
/// then is taken up again as after a crash.
const PUT_AWAY: Duration = Duration::from_secs(1);

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
    current: Arc<Mutex<Current>>,
    gateways: Option<Arc<dyn Gateways>>,
    listeners: Vec<(Listener, SocketAddr)>,
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
        let current = Current::of(config.clone(), gateways.clone(), None)?;
        let mut listeners = Vec::new();
        for &addr in &config.listen {
            let listener = tcp::listen(addr, &Profile::default())?;
            let bound = listener.local_addr().map_err(|source| phoebus_net::Error::Listen { addr, source })?;
            listeners.push((listener, bound));
        }
        Ok(Self { current: Arc::new(Mutex::new(current)), gateways, listeners })
    }

    /// Looks for what would keep a server from being started with it, or its users from their files: opens all that it names, and listens
    /// nowhere. Called within a runtime.
    ///
    /// # Errors
    /// [`ConfigError`], naming the setting.
    pub async fn check(config: &Config, gateways: Option<Arc<dyn Gateways>>) -> Result<(), ConfigError> {
        Made::of(config, gateways, None)?.users.look().await
    }

    /// What changes what it serves while it runs.
    pub fn reloader(&self) -> Reloader {
        Reloader { current: self.current.clone(), gateways: self.gateways.clone() }
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
        let current = now(&self.current);
        if let Some(hub) = current.shared.drivers.hub() {
            hub.is_of(peer.ip());
        }
        let (_ending, told) = watch::channel(Ending::No);
        welcome(current, Link::new(stream), peer, told).await;
        Ok(())
    }

    /// Serves until `end` is ready. Then nobody new is accepted, and sessions end with what they are doing. All is over when
    /// `limits.drain` has passed: a moment before, what goes on is stopped. Returns how many sessions were.
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
        let data_node = now(&self.current).shared.config.data_node;
        let mut helpers = JoinSet::new();
        // What a data node writes to are its front end's drafts.
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
                        // Clients send ABOR, or what goes before it, as urgent data; a byte that was lost would spoil the line.
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
        let _ = ending.send(Ending::Soon);
        let drain = now(&self.current).shared.config.limits.drain.0;
        let putting_away = PUT_AWAY.min(drain / 4);
        let drained = async { while sessions.join_next().await.is_some() {} };
        if tokio::time::timeout(drain - putting_away, drained).await.is_ok() {
            return 0;
        }
        let unfinished = sessions.len();
        let _ = ending.send(Ending::Now);
        let stopped = async { while sessions.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(PUT_AWAY, stopped).await;
        unfinished
    }
}

/// Changes what a running server serves. Clones are of the same server.
#[derive(Debug, Clone)]
pub struct Reloader {
    current: Arc<Mutex<Current>>,
    gateways: Option<Arc<dyn Gateways>>,
}

impl Reloader {
    /// Serves by `config` those who connect from here on; who is connected keeps what he has. All that it names is opened and read
    /// anew: directories, keys, certificates, revocation lists, the grid-mapfile. Connections that there are count against its limits.
    /// Whether it listens elsewhere, or is a data node, is not changed. Blocks while files are read.
    ///
    /// # Errors
    /// [`ConfigError`]; then nothing is changed.
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

/// Serves a client, if there is room for him.
async fn welcome(current: Current, mut link: Link, peer: SocketAddr, told: watch::Receiver<Ending>) {
    let Current { shared, rules } = current;
    let place = shared.places.add((), shared.config.limits.connections);
    // All that come to a data node come from its front end.
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
