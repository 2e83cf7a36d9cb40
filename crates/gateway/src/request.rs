//! A request for a session, in owned form, with what the gateway knows about the requester.

use crate::listener_settings::ListenerSettings;
use phoebus_net::Stream;
use phoebus_net::transport::Security;
use phoebus_proto::endpoint::{Endpoint, EndpointRef, Host};
use phoebus_proto::entry::Entry;
use phoebus_proto::session::message::{Open, Requirements, feature};
use phoebus_proto::session::{List, Mode, Principal, SessionId};
use std::net::{IpAddr, SocketAddr};

/// The contents of OPEN, and its origin.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Request {
    pub(crate) session: SessionId,
    pub(crate) destination: Endpoint,
    pub(crate) path: Vec<Endpoint>,
    pub(crate) visited: Vec<String>,
    /// The client's address, as the first gateway saw it.
    pub(crate) origin: Endpoint,
    /// On whose behalf it comes.
    pub(crate) principal: Principal,
    pub(crate) mode: Mode,
    pub(crate) requirements: Requirements,
    pub(crate) resumable: bool,
    /// Features that every hop must have, including the last.
    pub(crate) required: u64,
    /// The number of connections that the requester wants for the hop.
    pub(crate) streams: u16,
    /// Whether the requester wants datagrams beside the session.
    pub(crate) datagrams: bool,
    /// Whether this gateway asks the next one for them.
    pub(crate) asks_for_datagrams: bool,
    /// The way by which it came.
    pub(crate) entry: Entry,
    /// The other end of the requesting connection.
    pub(crate) from: SocketAddr,
    /// The peer, if the connection is a peer's.
    pub(crate) peer: Option<String>,
    /// The names in the connection's certificate.
    pub(crate) proved: Vec<String>,
    /// The process of a client's agent; 0 if it does not say, and for peers.
    pub(crate) instance: u64,
    /// How it arrived.
    pub(crate) arrival: Arrival,
}

/// The connection that a request arrived on.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Arrival {
    /// The address of the listener, as it is configured.
    pub(crate) listener: Option<SocketAddr>,
    pub(crate) transport: Box<str>,
    /// Its protection.
    pub(crate) security: Security,
}

impl Arrival {
    pub(crate) fn of(settings: &ListenerSettings, stream: &Stream) -> Self {
        Self { listener: Some(settings.address), transport: settings.transport.clone(), security: stream.security() }
    }
}

/// What this gateway requests for a hop of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HopOptions {
    pub(crate) mode: Mode,
    /// The number of connections.
    pub(crate) streams: u16,
    /// Padding of the request, in bytes.
    pub(crate) padding: u16,
}

impl Request {
    /// The request in `open`, which arrived on a connection from `from`. Only a peer may name another client as the
    /// origin, and ask for another principal; otherwise, `own` is who the connection itself has proved to be.
    pub(crate) fn new(open: &Open<'_>, from: SocketAddr, peer: Option<&str>, own: Principal) -> Self {
        let origin = open.origin.filter(|_| peer.is_some()).map_or_else(|| from.into(), |origin| origin.to_owned());
        let principal = match peer {
            Some(peer) => Principal { spoken_for_by: peer.to_owned(), ..open.principal.to_owned() },
            None => own,
        };
        Self {
            session: open.session,
            destination: open.destination.to_owned(),
            path: open.path.iter().map(|hop| hop.to_owned()).collect(),
            visited: open.visited.iter().map(str::to_owned).collect(),
            origin,
            principal,
            mode: open.mode,
            requirements: open.requirements,
            resumable: open.resumable,
            required: open.required,
            streams: open.streams,
            datagrams: open.datagrams || open.required & feature::DATAGRAMS != 0,
            asks_for_datagrams: true,
            entry: Entry::Session,
            from,
            peer: peer.map(str::to_owned),
            proved: Vec::new(),
            instance: 0,
            arrival: Arrival::default(),
        }
    }

    /// Whether the destination takes part in the session.
    pub(crate) fn is_to_aware(&self) -> bool {
        self.required & feature::AWARE != 0
    }

    /// Whether the session must have datagrams beside it.
    pub(crate) fn requires_datagrams(&self) -> bool {
        self.required & feature::DATAGRAMS != 0
    }

    /// The source that its connections are counted for. A peer requests sessions for many clients, and each counts for
    /// itself.
    pub(crate) fn source(&self) -> IpAddr {
        match self.origin.host {
            Host::Addr(addr) if self.peer.is_some() => addr,
            _ => self.from.ip(),
        }
    }

    /// Calls `then` with the OPEN for the next gateway: `name` (this gateway) added to the visited ones, the first
    /// entry of the path removed, and the hop's options from `manner`.
    pub(crate) fn onward<R>(&self, name: &str, manner: HopOptions, then: impl FnOnce(&Open<'_>) -> R) -> R {
        let HopOptions { mode, streams, padding } = manner;
        let path: Vec<EndpointRef<'_>> = self.path.iter().skip(1).map(Endpoint::as_ref).collect();
        let visited: Vec<&str> = self.visited.iter().map(String::as_str).chain([name]).collect();
        self.principal.lend(|principal| {
            then(&Open {
                path: List::new(&path),
                visited: List::new(&visited),
                origin: Some(self.origin.as_ref()),
                principal,
                mode,
                requirements: self.requirements,
                resumable: self.resumable,
                required: self.required,
                padding,
                streams,
                datagrams: self.datagrams && self.asks_for_datagrams,
                ..Open::new(self.session, self.destination.as_ref())
            })
        })
    }
}
