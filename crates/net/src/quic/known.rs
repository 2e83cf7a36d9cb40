//! Registers all endpoints and connections of a transport, so that they can be found and closed together.

use super::ready_signal::lock;
use super::stream::Shared;
use crate::transport::Pulse;
use quinn::Endpoint;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, Weak};
use tokio::runtime::Handle;
use tokio::sync::Notify;

/// The register; see the module documentation.
#[derive(Debug, Default)]
pub(super) struct Known {
    endpoints: Mutex<Vec<Endpoint>>,
    /// Endpoints whose listener is gone but whose connections live on. A new listener on the same address
    /// takes one over, because the socket cannot be bound a second time.
    left: Mutex<Vec<Arc<Left>>>,
    connections: Mutex<Vec<Weak<Shared>>>,
}

/// An endpoint without a listener.
#[derive(Debug)]
struct Left {
    at: SocketAddr,
    endpoint: Endpoint,
    note: Option<Arc<str>>,
    /// Notified when a listener has taken the endpoint over.
    taken: Notify,
}

/// Refuses new connections while the endpoint is open. Without an answer, the peer would wait for its whole
/// time-out.
async fn refuse_all(endpoint: &Endpoint) {
    while let Some(incoming) = endpoint.accept().await {
        incoming.refuse();
    }
}

impl Known {
    pub(super) fn add_endpoint(&self, endpoint: &Endpoint) {
        lock(&self.endpoints).push(endpoint.clone());
    }

    pub(super) fn add(&self, connection: Weak<Shared>) {
        let mut connections = lock(&self.connections);
        // Removing dead entries here is cheap: connections are few and rarely made.
        connections.retain(|other| other.strong_count() > 0);
        connections.push(connection);
    }

    /// The pulses of all connections with `name`: made to that name, or accepted from a peer that has proved
    /// it.
    pub(super) fn pulses(&self, name: &str) -> Vec<Box<dyn Pulse>> {
        self.with(name).iter().map(Shared::pulse).collect()
    }

    /// Stops placing new streams on the connections with `name`.
    pub(super) fn retire(&self, name: &str) {
        self.with(name).iter().for_each(|shared| shared.retired.store(true, Relaxed));
    }

    /// The live connections with `name`.
    fn with(&self, name: &str) -> Vec<Arc<Shared>> {
        let is_with = |shared: &Shared| match &shared.meant {
            // Several peers may share one certificate, so the dialled name decides.
            Some(meant) => meant.eq_ignore_ascii_case(name),
            None => shared.identity.names.iter().any(|own| own.eq_ignore_ascii_case(name)),
        };
        let named = |shared: &Arc<Shared>| shared.connection.close_reason().is_none() && is_with(shared);
        lock(&self.connections).iter().filter_map(Weak::upgrade).filter(named).collect()
    }

    /// Closes all endpoints with their connections, and waits until the peers could have received the close.
    pub(super) async fn close(&self) {
        let mut endpoints: Vec<Endpoint> = lock(&self.endpoints).drain(..).collect();
        endpoints.extend(lock(&self.left).drain(..).map(|left| left.endpoint.clone()));
        endpoints.iter().for_each(|endpoint| endpoint.close(0u32.into(), b""));
        for endpoint in endpoints {
            endpoint.wait_idle().await;
        }
    }

    /// Keeps `endpoint`, bound to `at`, after its listener is gone, and refuses new connections on it, until
    /// its last connection has ended or a listener takes it over.
    pub(super) fn leave(self: &Arc<Self>, at: SocketAddr, endpoint: &Endpoint, note: Option<Arc<str>>, on: &Handle) {
        lock(&self.endpoints).retain(|endpoint| endpoint.local_addr().ok() != Some(at));
        let left = Arc::new(Left { at, endpoint: endpoint.clone(), note, taken: Notify::new() });
        lock(&self.left).push(left.clone());
        let known = self.clone();
        on.spawn(async move {
            tokio::select! {
                biased;
                // From here on, the new listener accepts.
                () = left.taken.notified() => {}
                () = left.endpoint.wait_idle() => lock(&known.left).retain(|other| !Arc::ptr_eq(other, &left)),
                () = refuse_all(&left.endpoint) => {}
            }
        });
    }

    /// The endpoint that a listener has left at this address, with the note of its socket.
    pub(super) fn take_over(&self, at: SocketAddr) -> Option<(Endpoint, Option<Arc<str>>)> {
        let mut all = lock(&self.left);
        let index = all.iter().position(|left| left.at == at)?;
        let left = all.swap_remove(index);
        left.taken.notify_one();
        Some((left.endpoint.clone(), left.note.clone()))
    }
}
