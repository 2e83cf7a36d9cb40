//! UDT4 over UDP sockets (S17, S20, U9): runs the state machines of [`phoebus_proto::udt`].
//!
//! - [`Udt`] is the transport. [`Port`] is one UDP socket with all its connections, for callers that choose the socket.
//! - `socket` sends and receives batches: UDP_SEGMENT, UDP_GRO and recvmmsg through quinn-udp.
//! - `port_thread` is the thread behind a port: it receives, runs timers and sends. It sleeps, with microsecond precision,
//!   whenever nothing is due, and sends everything due in the same millisecond together.
//! - `hub` is the state that this thread shares with the owners of the port and of its connections; `connection` is the
//!   owner's side, `listener` accepts connections.
//! - `settings` turns a profile into the settings of a connection.
//!
//! Bare UDT has no half-close, no reset and no authenticated close: its shutdown packet is neither retransmitted nor
//! authenticated, and says nothing about missing bytes. Therefore a connection here never ends cleanly, it only fails: with
//! `ECONNRESET` when the peer shuts down, with `ETIMEDOUT` when it is silent. The session framing adds ends (S22).

mod connection;
mod hub;
mod listener;
mod port;
mod port_thread;
mod settings;

pub use listener::{Accepted, Listener};
pub use port::Port;

use crate::error::Error;
use crate::profile::Profile;
use crate::stream::Stream;
use crate::transport::{self, Boxed, Target, Transport};
use hub::Hub;
use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// The UDT transport. All outgoing connections of one address family share a socket.
#[derive(Debug, Default)]
pub struct Udt {
    v4: Mutex<Option<Port>>,
    v6: Mutex<Option<Port>>,
    /// Ports of listeners. A new listener on an address takes over the port of a former one: while
    /// connections live on there, the socket cannot be bound a second time.
    bound: Mutex<HashMap<SocketAddr, Weak<Hub>>>,
}

impl Transport for Udt {
    fn name(&self) -> &'static str {
        "udt"
    }

    fn connect<'a>(
        &'a self,
        to: &'a Target,
        profile: &'a Profile,
        limit: Duration,
    ) -> Boxed<'a, Result<Stream, Error>> {
        Box::pin(async move {
            let port = self.port(to.addr).map_err(|source| Error::Connect { to: to.addr, source })?;
            port.connect(to.addr, profile, limit).await
        })
    }

    fn listen(&self, addr: SocketAddr, profile: &Profile) -> Result<Box<dyn transport::Listener>, Error> {
        let mut bound = self.bound.lock().unwrap_or_else(PoisonError::into_inner);
        bound.retain(|_, hub| hub.strong_count() > 0);
        let port = match bound.get(&addr).and_then(Weak::upgrade).and_then(Port::take_over) {
            Some(port) => port,
            None => Port::bind(addr).map_err(|source| Error::Listen { addr, source })?,
        };
        bound.insert(port.local_addr(), Arc::downgrade(port.hub()));
        Ok(Box::new(port.listen(profile)?))
    }
}

impl Udt {
    /// The port for connections to `to`, bound on first use.
    fn port(&self, to: SocketAddr) -> std::io::Result<Port> {
        let (slot, any): (_, SocketAddr) = match to {
            SocketAddr::V4(_) => (&self.v4, (Ipv4Addr::UNSPECIFIED, 0).into()),
            SocketAddr::V6(_) => (&self.v6, (Ipv6Addr::UNSPECIFIED, 0).into()),
        };
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(port) = slot.as_ref().filter(|port| port.is_alive()) {
            return Ok(port.clone());
        }
        Ok(slot.insert(Port::bind(any)?).clone())
    }
}
