//! The way to a server, where it is another than the network's own: sessions through gateways (P29, S1).
//!
//! Servers of FTP take data connections only from the address that the control connection comes from (RFC 2577), so that both go
//! the same way, and come out of the last gateway. The one exception is GridFTP whose data connections prove who they are
//! (DCAU A): then only data goes through gateways, and commands go directly.

use phoebus_net::transport::{Boxed, Transport};
use phoebus_net::{Error, Stream};
use phoebus_proto::endpoint::{Endpoint, Host};
use phoebus_proto::session::Code;
use std::fmt::Debug;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixStream;

/// How connections to servers come about.
pub trait Way: Debug + Send + Sync {
    /// Makes a control connection to `server` within `limit`.
    ///
    /// # Errors
    /// Of the network, or of whoever is on the way.
    fn reach<'a>(&'a self, server: &'a Endpoint, limit: Duration) -> Boxed<'a, Result<Reached, Error>>;

    /// What carries data connections to `server` beside a control connection that was made without this way.
    fn data(&self) -> Arc<dyn Transport>;

    /// Whether data connections go this way, too, of which servers know nothing that are to send to each other.
    fn carries_data(&self) -> bool {
        true
    }

    /// Opens a byte stream to a relay at the server's host, for data inside what carries the control connection
    /// (`docs/protocol/gridftp.md`, "Data inside SSH"); the relay's greeting has begun to come.
    ///
    /// # Errors
    /// Of the network, or of whoever is on the way; [`Code::Requirement`] where this way has no such thing.
    fn beside(&self, limit: Duration) -> Boxed<'_, Result<Beside, Error>> {
        let _ = limit;
        let reason = "this way carries no data beside commands".to_owned();
        Box::pin(async { Err(Error::Carrier { code: Code::Requirement, reason }) })
    }

    /// What host `server` is, by whoever leads there: what this end calls it may be a name of his own. None if he does not say.
    fn host<'a>(&'a self, server: &'a Endpoint, limit: Duration) -> Boxed<'a, Option<Host>> {
        let _ = (server, limit);
        Box::pin(async { None })
    }
}

/// A byte stream to a relay.
#[derive(Debug)]
pub struct Beside {
    /// The stream.
    pub io: UnixStream,
    /// What is kept for as long as it is: the process that carries it, say.
    pub held: Box<dyn Held>,
}

/// What is kept while something else is.
pub trait Held: Debug + Send + Sync {}

impl<T: Debug + Send + Sync> Held for T {}

/// A control connection that was made.
#[derive(Debug)]
pub struct Reached {
    /// The connection.
    pub stream: Stream,
    /// The server, as it is called where the way ends.
    pub server: SocketAddr,
    /// What carries the data connections that go with it; none if they are the network's own.
    pub data: Option<Arc<dyn Transport>>,
}
