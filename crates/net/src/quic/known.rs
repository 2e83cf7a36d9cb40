//! All endpoints and connections of a transport, to be ended together.

use super::bell::lock;
use super::stream::Shared;
use crate::transport::Pulse;
use quinn::Endpoint;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, Weak};
use tokio::runtime::Handle;
use tokio::sync::Notify;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Known {
    endpoints: Mutex<Vec<Endpoint>>,
    /// Those of listeners that are gone, whose connections go on. A listener that comes to the same address takes one over: the
    /// socket cannot be had a second time.
    left: Mutex<Vec<Arc<Left>>>,
    connections: Mutex<Vec<Weak<Shared>>>,
}

/// An endpoint without a listener.
#[derive(Debug)]
struct Left {
    at: SocketAddr,
    endpoint: Endpoint,
    note: Option<Arc<str>>,
    /// Told when a listener has taken it over.
    taken: Notify,
}

/// Refuses new connections for as long as the endpoint is open. To one that nobody answers the peer would wait for its whole
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
        // Connections are few and made rarely.
        connections.retain(|other| other.strong_count() > 0);
        connections.push(connection);
    }

    /// The pulses of all connections with `name`: made for that name, or accepted from whoever has proved to be of it.
    pub(super) fn pulses(&self, name: &str) -> Vec<Box<dyn Pulse>> {
        self.with(name).iter().map(Shared::pulse).collect()
    }

    /// Has no more streams opened on the connections with `name`.
    pub(super) fn retire(&self, name: &str) {
        self.with(name).iter().for_each(|shared| shared.retired.store(true, Relaxed));
    }

    /// Those with `name` that have not ended.
    fn with(&self, name: &str) -> Vec<Arc<Shared>> {
        let is_with = |shared: &Shared| match &shared.meant {
            // Several peers may have one certificate.
            Some(meant) => meant.eq_ignore_ascii_case(name),
            None => shared.identity.names.iter().any(|own| own.eq_ignore_ascii_case(name)),
        };
        let named = |shared: &Arc<Shared>| shared.connection.close_reason().is_none() && is_with(shared);
        lock(&self.connections).iter().filter_map(Weak::upgrade).filter(named).collect()
    }

    /// Closes all endpoints with their connections, and waits until the peers could have heard of it.
    pub(super) async fn close(&self) {
        let mut endpoints: Vec<Endpoint> = lock(&self.endpoints).drain(..).collect();
        endpoints.extend(lock(&self.left).drain(..).map(|left| left.endpoint.clone()));
        endpoints.iter().for_each(|endpoint| endpoint.close(0u32.into(), b""));
        for endpoint in endpoints {
            endpoint.wait_idle().await;
        }
    }

    /// The listener of `endpoint`, bound to `at`, is gone: new connections are refused. The endpoint is kept until its last
    /// connection has ended, or a listener takes it over.
    pub(super) fn leave(self: &Arc<Self>, at: SocketAddr, endpoint: &Endpoint, note: Option<Arc<str>>, on: &Handle) {
        lock(&self.endpoints).retain(|endpoint| endpoint.local_addr().ok() != Some(at));
        let left = Arc::new(Left { at, endpoint: endpoint.clone(), note, taken: Notify::new() });
        lock(&self.left).push(left.clone());
        let known = self.clone();
        on.spawn(async move {
            tokio::select! {
                biased;
                // What comes from here on is the next listener's.
                () = left.taken.notified() => {}
                () = left.endpoint.wait_idle() => lock(&known.left).retain(|other| !Arc::ptr_eq(other, &left)),
                () = refuse_all(&left.endpoint) => {}
            }
        });
    }

    /// The endpoint that a listener has left at this address, with what its socket has to say.
    pub(super) fn take_over(&self, at: SocketAddr) -> Option<(Endpoint, Option<Arc<str>>)> {
        let mut all = lock(&self.left);
        let index = all.iter().position(|left| left.at == at)?;
        let left = all.swap_remove(index);
        left.taken.notify_one();
        Some((left.endpoint.clone(), left.note.clone()))
    }
}
