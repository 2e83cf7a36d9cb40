//! All endpoints and connections of a transport, to be ended together.

use super::bell::lock;
use super::stream::Shared;
use quinn::{Endpoint, VarInt};
use std::net::SocketAddr;
use std::sync::{Mutex, Weak};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Known {
    endpoints: Mutex<Vec<Endpoint>>,
    connections: Mutex<Vec<Weak<Shared>>>,
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

    /// Ends all connections with those who have proved to be `name`.
    pub(super) fn abandon(&self, name: &str, code: VarInt, reason: &str) {
        let named = |shared: &Shared| shared.identity.names.iter().any(|own| own.eq_ignore_ascii_case(name));
        for shared in lock(&self.connections).iter().filter_map(Weak::upgrade).filter(|shared| named(shared)) {
            shared.connection.close(code, reason.as_bytes());
        }
    }

    /// Closes all endpoints with their connections, and waits until the peers could have heard of it.
    pub(super) async fn close(&self) {
        let endpoints: Vec<Endpoint> = lock(&self.endpoints).drain(..).collect();
        endpoints.iter().for_each(|endpoint| endpoint.close(0u32.into(), b""));
        for endpoint in endpoints {
            endpoint.wait_idle().await;
        }
    }

    /// Forgets the endpoint of a listener that is gone.
    pub(super) fn remove_endpoint(&self, local: SocketAddr) {
        lock(&self.endpoints).retain(|endpoint| endpoint.local_addr().ok() != Some(local));
    }
}
