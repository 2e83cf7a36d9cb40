//! Listeners: bound, accepting, and taken over by the next configuration.

use crate::config::{Config, Listen};
use crate::connection::{self, Terms};
use crate::gateway::StartError;
use crate::shared::Shared;
use crate::transports::Transports;
use phoebus_net::reason;
use phoebus_net::transport::Listener;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::SetOnce;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{sleep, timeout};
use tracing::{error, info, warn};

/// Pause before an address is tried again that another socket still has.
const BIND_AGAIN: Duration = Duration::from_millis(200);
/// How long a socket may take to close after its listener has gone.
const RELEASE: Duration = Duration::from_secs(5);
/// Pause before it is looked again whether listeners that were told to go have gone: they do so in less.
const GONE_YET: Duration = Duration::from_millis(1);
/// Pause after a failure to accept.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Where a listener is once it is bound.
pub(crate) type Place = Arc<SetOnce<Arc<dyn Listener>>>;

/// A listener that accepts.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) listen: Listen,
    pub(crate) bound: SocketAddr,
    pub(crate) task: JoinHandle<()>,
    /// Once it is bound.
    pub(crate) listener: Place,
}

/// A listener that was told to go, in this task. What it listened on is in use for a moment longer.
#[derive(Debug)]
struct Leaver {
    listen: Listen,
    task: JoinHandle<()>,
    since: Instant,
}

/// Listeners that were told to go a moment ago.
#[derive(Debug, Default)]
pub(crate) struct Going(Vec<Leaver>);

impl Going {
    /// Tells these to go, and returns what knows whether they have.
    pub(crate) fn tell(&mut self, all: impl IntoIterator<Item = Running>) -> Vec<AbortHandle> {
        self.0.retain(Leaver::is_going);
        let before = self.0.len();
        // What else holds the listener is dropped here.
        self.0.extend(all.into_iter().map(|Running { listen, task, .. }| {
            task.abort();
            Leaver { listen, task, since: Instant::now() }
        }));
        self.0[before..].iter().map(|leaver| leaver.task.abort_handle()).collect()
    }

    /// Whether one of them may still have the address of `listen`.
    pub(crate) fn has(&self, listen: &Listen) -> bool {
        self.0.iter().any(|leaver| leaver.is_going() && leaver.listen.is_at(listen))
    }

    /// The task of the last one that had the address of `listen`.
    pub(crate) fn take(&mut self, listen: &Listen) -> Option<JoinHandle<()>> {
        let last = self.0.iter().rposition(|leaver| leaver.listen.is_at(listen))?;
        Some(self.0.swap_remove(last).task)
    }
}

impl Leaver {
    fn is_going(&self) -> bool {
        !self.task.is_finished() || self.since.elapsed() < RELEASE
    }
}

/// What a reload has changed about listeners and is not done yet.
#[derive(Debug)]
pub(crate) struct Settling {
    pub(crate) going: Vec<AbortHandle>,
    /// Those that wait for an address: where, and what is set once they have it.
    pub(crate) coming: Vec<(SocketAddr, Place)>,
}

impl Settling {
    /// Waits until all of it is done, though not for ever: another socket may have an address. Returns the addresses that are not
    /// listened on.
    pub(crate) async fn settled(self) -> Vec<SocketAddr> {
        let settled = async {
            for (_, listener) in &self.coming {
                listener.wait().await;
            }
            while self.going.iter().any(|task| !task.is_finished()) {
                sleep(GONE_YET).await;
            }
        };
        let _ = timeout(RELEASE, settled).await;
        self.coming.iter().filter(|(_, listener)| !listener.initialized()).map(|(addr, _)| *addr).collect()
    }
}

/// A listener that is bound and does not accept yet.
pub(crate) struct Bound {
    listen: Listen,
    listener: Arc<dyn Listener>,
    addr: SocketAddr,
}

/// Binds a listener of `config`, and says where it stands if that cannot be.
pub(crate) fn bind(config: &Config, transports: &Transports, listen: &Listen) -> Result<Bound, StartError> {
    let place = || config.listeners.iter().position(|one| one == listen).and_then(|n| config.places.listeners.get(n));
    let failed = |source| StartError::Listen { place: place().cloned().unwrap_or_default(), source };
    bind_anew(transports, listen).map_err(failed)
}

/// Accepts on `bound` from now on.
pub(crate) fn run(shared: &Arc<Shared>, bound: Bound) -> Running {
    let Bound { listen, listener, addr } = bound;
    info!(address = %addr, transport = listen.transport, "listening");
    if let Some(note) = listener.note() {
        warn!(address = %addr, "{note}");
    }
    Running {
        listener: Arc::new(SetOnce::new_with(Some(listener.clone()))),
        task: tokio::spawn(accept(shared.clone(), listener, Terms::of(&listen, &shared.setup().config))),
        listen,
        bound: addr,
    }
}

/// Takes over an address whose listener has just been told to go: the task `before`.
pub(crate) fn run_when_free(
    shared: &Arc<Shared>,
    transports: Arc<Transports>,
    listen: Listen,
    before: Option<JoinHandle<()>>,
) -> Running {
    let (shared, wanted, bound) = (shared.clone(), listen.clone(), listen.address);
    let listener: Place = Arc::default();
    let place = listener.clone();
    let task = tokio::spawn(async move {
        if let Some(before) = before {
            // It ends as soon as it is told to.
            let _ = before.await;
        }
        loop {
            match bind_anew(&transports, &wanted) {
                Ok(bound) => {
                    info!(address = %bound.addr, transport = wanted.transport, "listening again");
                    let terms = Terms::of(&wanted, &shared.setup().config);
                    let _ = place.set(bound.listener.clone());
                    drop(place);
                    break accept(shared, bound.listener, terms).await;
                }
                Err(error) => {
                    error!("{error}; trying again");
                    sleep(BIND_AGAIN).await;
                }
            }
        }
    });
    Running { listen, bound, task, listener }
}

fn bind_anew(transports: &Transports, listen: &Listen) -> Result<Bound, phoebus_net::Error> {
    let listener = transports.listen(listen)?;
    let addr = listener.local_addr().unwrap_or(listen.address);
    Ok(Bound { listen: listen.clone(), listener: listener.into(), addr })
}

/// Accepts for ever. Nothing is read here, so that no peer holds up another.
async fn accept(shared: Arc<Shared>, listener: Arc<dyn Listener>, terms: Arc<Terms>) {
    loop {
        match listener.accept().await {
            Ok((accepted, from)) => connection::serve(&shared, accepted, from, terms.clone()),
            // The peer has gone before it was accepted.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                // Out of descriptors, most likely; without a pause this would spin.
                warn!("cannot accept: {}", reason(&error));
                sleep(ACCEPT_AGAIN).await;
            }
        }
    }
}
