//! A request for a session, owned, with what the gateway knows about who asks.

use phoebus_proto::endpoint::{Endpoint, EndpointRef};
use phoebus_proto::session::message::{Open, Requirements};
use phoebus_proto::session::{List, Mode, SessionId};
use std::net::SocketAddr;

/// OPEN as this gateway understands it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Request {
    pub(crate) session: SessionId,
    pub(crate) destination: Endpoint,
    pub(crate) path: Vec<Endpoint>,
    pub(crate) visited: Vec<String>,
    /// The client's address, as the first gateway saw it.
    pub(crate) origin: Endpoint,
    pub(crate) identity: String,
    pub(crate) mode: Mode,
    pub(crate) requirements: Requirements,
    pub(crate) resumable: bool,
    /// The other end of the connection that asks.
    pub(crate) from: SocketAddr,
    /// The peer whose connection it is.
    pub(crate) peer: Option<String>,
    /// The names that the connection's certificate is for.
    pub(crate) proved: Vec<String>,
    /// Which process a client's agent is; 0 if it does not say, and for peers.
    pub(crate) instance: u64,
}

impl Request {
    /// `open` on a connection from `from`. Only a peer is believed when it says for whom it asks; `identity` is what the
    /// connection itself has shown.
    pub(crate) fn new(open: &Open<'_>, from: SocketAddr, peer: Option<&str>, identity: &str) -> Self {
        let origin = open.origin.filter(|_| peer.is_some()).map_or_else(|| from.into(), |origin| origin.to_owned());
        let identity = if peer.is_some() { open.identity } else { identity };
        Self {
            session: open.session,
            destination: open.destination.to_owned(),
            path: open.path.iter().map(|hop| hop.to_owned()).collect(),
            visited: open.visited.iter().map(str::to_owned).collect(),
            origin,
            identity: identity.to_owned(),
            mode: open.mode,
            requirements: open.requirements,
            resumable: open.resumable,
            from,
            peer: peer.map(str::to_owned),
            proved: Vec::new(),
            instance: 0,
        }
    }

    /// Calls `then` with the OPEN for the next gateway: this one, called `name`, visited, the first of the path taken off, in
    /// `mode`, and `padding` bytes longer than need be.
    pub(crate) fn onward<R>(&self, name: &str, mode: Mode, padding: u16, then: impl FnOnce(&Open<'_>) -> R) -> R {
        let path: Vec<EndpointRef<'_>> = self.path.iter().skip(1).map(Endpoint::as_ref).collect();
        let visited: Vec<&str> = self.visited.iter().map(String::as_str).chain([name]).collect();
        then(&Open {
            path: List::new(&path),
            visited: List::new(&visited),
            origin: Some(self.origin.as_ref()),
            identity: &self.identity,
            mode,
            requirements: self.requirements,
            resumable: self.resumable,
            padding,
            ..Open::new(self.session, self.destination.as_ref())
        })
    }
}
