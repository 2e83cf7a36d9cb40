//! Connections to servers through gateways (P29, S1).
//!
//! FTP servers accept data connections only from the address of the control connection (RFC 2577). So both take the
//! same path, and leave the last gateway. The exception is GridFTP with authenticated data connections (DCAU A): then
//! only data goes through gateways, and commands go directly.

use phoebus_net::transport::{Boxed, Transport};
use phoebus_net::{Error, Stream};
use phoebus_proto::endpoint::{Endpoint, Host};
use phoebus_proto::session::Code;
use std::fmt::Debug;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixStream;

/// Opens the connections to servers.
pub trait Route: Debug + Send + Sync {
    /// Opens a control connection to `server` within `limit`.
    ///
    /// # Errors
    /// Errors of the network or of a gateway.
    fn reach<'a>(&'a self, server: &'a Endpoint, limit: Duration) -> Boxed<'a, Result<ControlStream, Error>>;

    /// The transport of data connections to `server`, if the control connection was opened directly.
    fn data(&self) -> Arc<dyn Transport>;

    /// The transport of control streams of objects, beside which the path carries datagrams; `None` if they are like other data
    /// connections. Connecting fails with [`Code::Requirement`] if it carries none.
    fn objects(&self) -> Option<Arc<dyn Transport>> {
        None
    }

    /// Whether data connections go through gateways too. Servers that send to each other know nothing of those.
    fn carries_data(&self) -> bool {
        true
    }

    /// Opens a byte stream to a relay on the server's host, for data inside SSH (`docs/protocol/gridftp.md`, "Data
    /// inside SSH"). The relay's greeting has begun to arrive.
    ///
    /// # Errors
    /// Errors of the network or of a gateway; [`Code::Requirement`] if this path has no relays.
    fn beside(&self, limit: Duration) -> Boxed<'_, Result<RelayStream, Error>> {
        let _ = limit;
        let reason = "this way carries no data beside commands".to_owned();
        Box::pin(async { Err(Error::Carrier { code: Code::Requirement, reason }) })
    }

    /// The real host name of `server`, if the path knows one: the name here may be an alias.
    fn host<'a>(&'a self, server: &'a Endpoint, limit: Duration) -> Boxed<'a, Option<Host>> {
        let _ = (server, limit);
        Box::pin(async { None })
    }
}

/// A byte stream to a relay.
#[derive(Debug)]
pub struct RelayStream {
    /// The stream.
    pub io: UnixStream,
    /// Resources of the stream, such as the process behind it.
    pub held: Box<dyn KeepAlive>,
}

/// Keeps resources alive.
pub trait KeepAlive: Debug + Send + Sync {}

impl<T: Debug + Send + Sync> KeepAlive for T {}

/// An open control connection.
#[derive(Debug)]
pub struct ControlStream {
    /// The connection.
    pub stream: Stream,
    /// The server, as it is named at the end of the path.
    pub server: SocketAddr,
    /// The transport of its data connections. `None`: the network.
    pub data: Option<Arc<dyn Transport>>,
}
