//! The datagrams of one session: their neighbours on both sides, and counters.

use crate::datagram::Socket;
use crate::stream::DatagramRoute;
use phoebus_proto::session::datagrams::{DatagramGrant, PREFIX_LEN, Towards};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Where datagrams go from here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Onward {
    /// To the destination, as the client has sent them.
    Destination(SocketAddr),
    /// To another gateway.
    Gateway(DatagramRoute),
}

impl Onward {
    /// The same with an IPv4 address as such.
    pub(super) fn canonical(self) -> Self {
        let canonical = |to: SocketAddr| SocketAddr::new(to.ip().to_canonical(), to.port());
        match self {
            Self::Destination(to) => Self::Destination(canonical(to)),
            Self::Gateway(route) => Self::Gateway(DatagramRoute { to: canonical(route.to), ..route }),
        }
    }
}

/// What was relayed in one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Relayed {
    /// Number of datagrams.
    pub datagrams: u64,
    /// Bytes of them, without what precedes them on a hop.
    pub bytes: u64,
    /// Number of datagrams that were dropped, because there was no room to send them, or the client had sent nothing yet.
    pub dropped: u64,
}

/// The datagrams of a session.
#[derive(Debug)]
pub(super) struct Flow {
    /// What the neighbour towards the client was granted.
    pub(super) grant: DatagramGrant,
    /// The host of that neighbour.
    host: IpAddr,
    /// Index of the socket that it sends to.
    pub(super) listener: usize,
    /// Where its latest datagram came from, and the address here that it was sent to.
    client: Mutex<Option<(SocketAddr, Option<IpAddr>)>>,
    /// The socket towards the destination.
    pub(super) socket: Socket,
    onward: Onward,
    /// Round trip of the session's path.
    pub(super) rtt: Duration,
    up: Counter,
    down: Counter,
}

#[derive(Debug, Default)]
struct Counter {
    datagrams: AtomicU64,
    bytes: AtomicU64,
    dropped: AtomicU64,
}

impl Flow {
    pub(super) fn new(
        grant: DatagramGrant,
        (host, listener): (IpAddr, usize),
        socket: Socket,
        (onward, rtt): (Onward, Duration),
    ) -> Self {
        let (host, client) = (host.to_canonical(), Mutex::new(None));
        Self { grant, host, listener, client, socket, onward, rtt, up: Counter::default(), down: Counter::default() }
    }

    /// The datagram in `bytes`, which `from` has sent to the address `to` of this host, and its prefix for the next hop. `None` if
    /// it is not the neighbour's.
    pub(super) fn upwards<'a>(
        &self,
        bytes: &'a [u8],
        from: SocketAddr,
        to: Option<IpAddr>,
    ) -> Option<(Option<[u8; PREFIX_LEN]>, &'a [u8])> {
        if from.ip().to_canonical() != self.host {
            return None;
        }
        let datagram = self.grant.open(Towards::Destination, bytes)?;
        // The port of a neighbour behind address translation may change.
        *self.client.lock().unwrap_or_else(PoisonError::into_inner) = Some((from, to));
        let prefix = match &self.onward {
            Onward::Destination(_) => None,
            Onward::Gateway(route) => Some(route.grant.prefix(Towards::Destination, datagram)),
        };
        Some((prefix, datagram))
    }

    /// The datagram in `bytes`, which `from` has sent to this flow's socket, and its prefix for the neighbour towards the client.
    /// `None` if it is not the next hop's.
    pub(super) fn downwards<'a>(&self, bytes: &'a [u8], from: SocketAddr) -> Option<([u8; PREFIX_LEN], &'a [u8])> {
        let is_next_hop = (from.ip().to_canonical(), from.port()) == (self.to().ip().to_canonical(), self.to().port());
        if !is_next_hop {
            return None;
        }
        let datagram = match &self.onward {
            Onward::Destination(_) => bytes,
            Onward::Gateway(route) => route.grant.open(Towards::Client, bytes)?,
        };
        Some((self.grant.prefix(Towards::Client, datagram), datagram))
    }

    /// The address of the next hop.
    pub(super) fn to(&self) -> SocketAddr {
        match &self.onward {
            Onward::Destination(to) => *to,
            Onward::Gateway(route) => route.to,
        }
    }

    /// Where datagrams for the client go, and from which address of this host, once it has sent any.
    pub(super) fn client(&self) -> Option<(SocketAddr, Option<IpAddr>)> {
        *self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts datagrams that were sent to the destination, or else to the client.
    pub(super) fn count(&self, is_up: bool, datagrams: usize, bytes: usize) {
        let counter = if is_up { &self.up } else { &self.down };
        counter.datagrams.fetch_add(datagrams as u64, Relaxed);
        counter.bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// Counts datagrams for the destination, or else for the client, that were dropped.
    pub(super) fn count_dropped(&self, is_up: bool, datagrams: usize) {
        let counter = if is_up { &self.up } else { &self.down };
        counter.dropped.fetch_add(datagrams as u64, Relaxed);
    }

    /// What was relayed to the destination, and from it.
    pub(super) fn relayed(&self) -> [Relayed; 2] {
        [self.up.read(), self.down.read()]
    }
}

impl Counter {
    fn read(&self) -> Relayed {
        let load = |counter: &AtomicU64| counter.load(Relaxed);
        Relayed { datagrams: load(&self.datagrams), bytes: load(&self.bytes), dropped: load(&self.dropped) }
    }
}
