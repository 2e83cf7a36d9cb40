//! Listeners: binding, accepting, and replacement by the next configuration.

use crate::accept;
use crate::config::{Config, Listen};
use crate::listener_settings::ListenerSettings;
use crate::shared::Shared;
use crate::start_error::StartError;
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

/// Pause before another attempt to bind an address that another socket still has.
const BIND_AGAIN: Duration = Duration::from_millis(200);
/// Longest time for a socket to close after its listener has ended.
const RELEASE: Duration = Duration::from_secs(5);
/// Pause between checks whether aborted listeners have ended; they take less than this.
const GONE_YET: Duration = Duration::from_millis(1);
/// Pause after a failure to accept.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Holds a listener once it is bound.
pub(crate) type BoundListener = Arc<SetOnce<Arc<dyn Listener>>>;

/// A listener that accepts.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) listen: Listen,
    pub(crate) bound: SocketAddr,
    pub(crate) task: JoinHandle<()>,
    /// Set once it is bound.
    pub(crate) listener: BoundListener,
}

/// A listener whose task was aborted. Its address stays in use for a moment.
#[derive(Debug)]
struct ClosingListener {
    listen: Listen,
    task: JoinHandle<()>,
    since: Instant,
}

/// Listeners that were aborted a moment ago.
#[derive(Debug, Default)]
pub(crate) struct ClosingListeners(Vec<ClosingListener>);

impl ClosingListeners {
    /// Aborts these, and returns handles that show whether they have ended.
    pub(crate) fn close(&mut self, all: impl IntoIterator<Item = Running>) -> Vec<AbortHandle> {
        self.0.retain(ClosingListener::is_closing);
        let before = self.0.len();
        // This drops the other reference to the listener.
        self.0.extend(all.into_iter().map(|Running { listen, task, .. }| {
            task.abort();
            ClosingListener { listen, task, since: Instant::now() }
        }));
        self.0[before..].iter().map(|listener| listener.task.abort_handle()).collect()
    }

    /// Whether one of them may still hold the address of `listen`.
    pub(crate) fn has(&self, listen: &Listen) -> bool {
        self.0.iter().any(|listener| listener.is_closing() && listener.listen.is_at(listen))
    }

    /// The task of the last one that had the address of `listen`.
    pub(crate) fn take(&mut self, listen: &Listen) -> Option<JoinHandle<()>> {
        let last = self.0.iter().rposition(|listener| listener.listen.is_at(listen))?;
        Some(self.0.swap_remove(last).task)
    }
}

impl ClosingListener {
    fn is_closing(&self) -> bool {
        !self.task.is_finished() || self.since.elapsed() < RELEASE
    }
}

/// Changes of listeners that a reload has started and that are not complete.
#[derive(Debug)]
pub(crate) struct Settling {
    pub(crate) closing: Vec<AbortHandle>,
    /// Listeners that wait for an address: the address, and what is set once they have it.
    pub(crate) pending: Vec<(SocketAddr, BoundListener)>,
}

impl Settling {
    /// Waits until all changes are complete, for at most `RELEASE`, since another socket may hold an address. Returns
    /// the addresses that are not listened on.
    pub(crate) async fn settled(self) -> Vec<SocketAddr> {
        let settled = async {
            for (_, listener) in &self.pending {
                listener.wait().await;
            }
            while self.closing.iter().any(|task| !task.is_finished()) {
                sleep(GONE_YET).await;
            }
        };
        let _ = timeout(RELEASE, settled).await;
        self.pending.iter().filter(|(_, listener)| !listener.initialized()).map(|(addr, _)| *addr).collect()
    }
}

/// A bound listener that does not accept yet.
pub(crate) struct Bound {
    listen: Listen,
    listener: Arc<dyn Listener>,
    addr: SocketAddr,
}

/// Binds a listener of `config`. An error gives its position in the file.
pub(crate) fn bind(config: &Config, transports: &Transports, listen: &Listen) -> Result<Bound, StartError> {
    let place = || config.listeners.iter().position(|one| one == listen).and_then(|n| config.places.listeners.get(n));
    let failed = |source| StartError::Listen { place: place().cloned().unwrap_or_default(), source };
    bind_anew(transports, listen).map_err(failed)
}

/// Starts to accept on `bound`.
pub(crate) fn run(shared: &Arc<Shared>, bound: Bound) -> Running {
    let Bound { listen, listener, addr } = bound;
    info!(address = %addr, transport = listen.transport, "listening");
    if let Some(note) = listener.note() {
        warn!(address = %addr, "{note}");
    }
    Running {
        listener: Arc::new(SetOnce::new_with(Some(listener.clone()))),
        task: tokio::spawn(accept(shared.clone(), listener, ListenerSettings::of(&listen, &shared.setup().config))),
        listen,
        bound: addr,
    }
}

/// Takes over an address whose listener, the task `before`, was just aborted.
pub(crate) fn run_when_address_is_free(
    shared: &Arc<Shared>,
    transports: Arc<Transports>,
    listen: Listen,
    before: Option<JoinHandle<()>>,
) -> Running {
    let (shared, wanted, bound) = (shared.clone(), listen.clone(), listen.address);
    let listener: BoundListener = Arc::default();
    let place = listener.clone();
    let task = tokio::spawn(async move {
        if let Some(before) = before {
            // An aborted task ends at once.
            let _ = before.await;
        }
        loop {
            match bind_anew(&transports, &wanted) {
                Ok(bound) => {
                    info!(address = %bound.addr, transport = wanted.transport, "listening again");
                    let settings = ListenerSettings::of(&wanted, &shared.setup().config);
                    let _ = place.set(bound.listener.clone());
                    drop(place);
                    break accept(shared, bound.listener, settings).await;
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

/// Accepts connections for ever. It reads nothing, so that no peer delays another.
async fn accept(shared: Arc<Shared>, listener: Arc<dyn Listener>, settings: Arc<ListenerSettings>) {
    loop {
        match listener.accept().await {
            Ok((pending, from)) => accept::take_in(&shared, pending, from, settings.clone()),
            // The peer closed before it was accepted.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                // Probably out of descriptors; without a pause this would spin.
                warn!("cannot accept: {}", reason(&error));
                sleep(ACCEPT_AGAIN).await;
            }
        }
    }
}
