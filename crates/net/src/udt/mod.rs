//! UDT4 over UDP sockets (S17, S20, U9): the driver of the state machines in [`phoebus_proto::udt`].
//!
//! - [`Udt`] is the transport. [`Port`] is one UDP socket with all its connections, for those who want to say which.
//! - `socket` sends and receives batches: UDP_SEGMENT, UDP_GRO and recvmmsg through quinn-udp.
//! - `driver` is the thread behind a port: what arrives, timers, what may go. It sleeps whenever nothing is due, to the
//!   microsecond, and what is due in the same millisecond goes together.
//! - `hub` is what that thread and the owners of the port and of its connections share, `connection` the owner's side of it, `listener` accepts.
//! - `settings` makes a profile into the settings of a connection.
//!
//! Bare UDT has no half-close, no reset and no trustworthy end: its shutdown packet is neither repeated until it arrives nor
//! authenticated, and says nothing about bytes that are missing. Therefore a connection here never ends, it only fails: with
//! `ECONNRESET` when the peer shuts down, with `ETIMEDOUT` when it is silent. Ends are the framing's business (S22).

mod connection;
mod driver;
mod hub;
mod listener;
mod port;
mod settings;
mod socket;

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

/// UDT as a transport. All connections to peers of one address family share a socket.
#[derive(Debug, Default)]
pub struct Udt {
    v4: Mutex<Option<Port>>,
    v6: Mutex<Option<Port>>,
    /// Ports of listeners. One whose listener is gone is taken over by the next at that address: as long as connections go on
    /// there, the socket cannot be had a second time.
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
    /// The port for connections to `to`, bound when it is first wanted.
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
