//! The control stream of an object transfer: messages over a data connection.

use super::super::super::acceptor::Acceptor;
use super::super::super::channel::{Direction, Inner};
use super::super::super::connection::Connection;
use super::super::super::error::Error;
use super::super::super::known_paths::Ends;
use phoebus_net::object::{self, OVERHEAD, Path, Port, Secret};
use phoebus_proto::object::{Inbox, Message, Seal, Shape};
use phoebus_proto::session::Code;
use phoebus_proto::session::datagrams::PREFIX_LEN;
use phoebus_proto::text::is_unprintable;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Label of the secret that the TLS of the control stream exports (RFC 8446, section 7.5).
const LABEL: &[u8] = b"EXPORTER-phoebus-object";

/// How long the last words of a control stream may take, after which nothing depends on them.
pub(super) const LAST_WORDS: Duration = Duration::from_secs(2);

/// Bytes that are read at once.
const READ: usize = 4096;

/// The control stream.
#[derive(Debug)]
pub(super) struct Control {
    connection: Connection,
    /// Whether this end has made it.
    is_own: bool,
    inbox: Inbox,
    stall_timeout: Duration,
}

impl Control {
    /// Connects, or accepts a connection. `peer_begins`: the peer sends the first message.
    ///
    /// # Errors
    /// Connecting fails, or no permitted peer connects.
    pub(super) async fn between(inner: &Arc<Inner>, peer_begins: bool) -> Result<Self, Error> {
        if matches!(&inner.way, Direction::Connect(to) if to.len() != 1) {
            return Err(Error::Object("data nodes do not take objects (driver object)".to_owned()));
        }
        let connection =
            Acceptor::of(inner, peer_begins).one().await.map_err(|error| without_datagrams(inner, error))?;
        let (is_own, stall_timeout) = (!inner.is_listening(), inner.settings.stall_timeout);
        Ok(Self { connection, is_own, inbox: Inbox::default(), stall_timeout })
    }

    /// The port for datagrams, and the path to the peer's, to which the first check goes at once. `sends`: this end is the sender,
    /// for which datagrams have to get through in time.
    ///
    /// # Errors
    /// There is no port.
    pub(super) fn path(&self, inner: &Inner, keys: (Shape, Seal, &Secret), sends: bool) -> Result<(Port, Path), Error> {
        let (to, within) = (self.datagrams_to()?, inner.settings.datagram_timeout.min(self.stall_timeout * 3 / 4));
        if self.is_own {
            // From the address that the peer knows.
            let port = Port::bind_towards(SocketAddr::new(self.own_addr()?.ip(), 0), self.connection.datagrams())?;
            let path = Path::connected(&port, to, keys, within);
            return Ok((port, path));
        }
        let port = inner.port().ok_or_else(|| Error::Object("there is no port for datagrams".to_owned()))?;
        // The end that checks is to fail first: it may have another way.
        let path = Path::accepted(&port, to.ip(), keys, sends.then_some(within * 2));
        Ok((port, path))
    }

    /// Where datagrams go: to the peer, or to the gateway that relays them.
    pub(super) fn datagrams_to(&self) -> Result<SocketAddr, Error> {
        match self.connection.datagrams() {
            Some(route) => Ok(route.to),
            None => self.peer(),
        }
    }

    /// The ends of the path of datagrams, as far as this end knows.
    pub(super) fn ends(&self, inner: &Inner) -> Result<Ends, Error> {
        let via = self.connection.datagrams().map(|route| route.to.ip());
        let to = match &inner.way {
            Direction::Connect(to) if via.is_some() => to[0].ip(),
            _ => self.peer()?.ip(),
        };
        Ok(Ends { from: self.own_addr()?.ip(), to, via, is_own: self.is_own })
    }

    /// The longest packets to the other end, and the longest that routers are likely to pass: what TCP has agreed on may be
    /// less than the path's MTU, as behind routers that lower its segment size.
    ///
    /// # Errors
    /// There is no route.
    pub(super) fn longest_packets(&self, to: SocketAddr) -> Result<(u32, u32), Error> {
        /// What TCP's options take of each segment: time stamps.
        const OPTIONS: u32 = 12;
        let route = self.connection.datagrams();
        let prefix = if route.is_some() { PREFIX_LEN } else { 0 };
        let headers = (OVERHEAD + prefix) as u32 + if to.is_ipv6() { 48 } else { 28 };
        let none = || Error::Object(format!("there is no route for datagrams to {to}"));
        let mtu = object::path_mtu(to).ok_or_else(none)?;
        let of_tcp = if to.is_ipv6() { 60 } else { 40 };
        let usual = match self.connection.segment_size() {
            Some(segment) if segment + of_tcp + OPTIONS < mtu => segment + of_tcp,
            _ => mtu,
        };
        let relayed = self.longest_relayed().unwrap_or(u32::MAX);
        Ok((mtu.saturating_sub(headers).min(relayed), usual.saturating_sub(headers).min(relayed)))
    }

    /// The longest packets that gateways relay, if they do.
    pub(super) fn longest_relayed(&self) -> Option<u32> {
        self.connection.datagrams().map(|route| u32::from(route.grant.longest).saturating_sub(OVERHEAD as u32))
    }

    /// Whether this end has made the connection.
    pub(super) fn is_own(&self) -> bool {
        self.is_own
    }

    /// The secret for the datagrams of a transfer. `None` if the control stream is not protected by TLS.
    pub(super) fn secret(&self, transfer: u32) -> Option<Secret> {
        self.connection.exported(LABEL, &transfer.to_be_bytes()).map(Secret)
    }

    /// This end's address.
    pub(super) fn own_addr(&self) -> Result<SocketAddr, Error> {
        Ok(self.connection.local_addr()?)
    }

    /// The address of the other end.
    pub(super) fn peer(&self) -> Result<SocketAddr, Error> {
        Ok(self.connection.peer_addr()?)
    }

    /// Sends a message. Not cancel safe.
    ///
    /// # Errors
    /// The connection has failed, or the peer reads nothing.
    pub(super) async fn send(&mut self, message: &Message) -> Result<(), Error> {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        self.connection.write(&bytes, false, self.stall_timeout).await
    }

    /// The next message. Cancel safe.
    ///
    /// # Errors
    /// The connection has failed or ended, the peer breaks the protocol, or it has given up.
    pub(super) async fn next(&mut self) -> Result<Message, Error> {
        loop {
            match self.inbox.pop().map_err(|error| Error::Object(error.to_string()))? {
                Some(Message::Failed { reason }) => {
                    // It reaches terminals, by way of a client that may not expect more than text.
                    let reason = reason.replace(is_unprintable, "?");
                    return Err(Error::Object(format!("the peer gives up: {reason}")));
                }
                Some(message) => return Ok(message),
                None => {}
            }
            let mut bytes = [0; READ];
            match self.connection.read(&mut bytes).await? {
                0 => return Err(Error::Object("the control stream ended before the transfer did".to_owned())),
                len => self.inbox.push(&bytes[..len]),
            }
        }
    }

    /// The same within `limit`.
    ///
    /// # Errors
    /// The same, or nothing came.
    pub(super) async fn next_within(&mut self, limit: Duration) -> Result<Message, Error> {
        timeout(limit, self.next()).await.map_err(|_| Error::Silent(limit))?
    }

    /// Tells the peer why this end gives up, as far as possible without waiting long, and returns the error.
    pub(super) async fn fail(&mut self, inner: &Inner, error: Error) -> Error {
        if let (Error::NoDatagrams(why), Some(losses)) = (&error, inner.losses()) {
            losses.note_no_datagrams(why);
        }
        let _ = timeout(LAST_WORDS, self.send(&Message::Failed { reason: error.to_string() })).await;
        error
    }

    /// The connection.
    pub(super) fn into_connection(self) -> Connection {
        self.connection
    }
}

/// The error of a control stream that was not opened. Gateways that relay no datagrams leave other ways.
fn without_datagrams(inner: &Inner, error: Error) -> Error {
    match error {
        Error::Net(phoebus_net::Error::Carrier { code: Code::NoDatagrams, reason }) => {
            if let Some(losses) = inner.losses() {
                losses.note_no_datagrams(&reason);
            }
            Error::NotRelayed(reason)
        }
        other => other,
    }
}

/// The error for a message that is not allowed now.
pub(super) fn unexpected(message: &Message, expected: &str) -> Error {
    Error::Object(format!("the peer sent {}; {expected} was expected", message.name()))
}
