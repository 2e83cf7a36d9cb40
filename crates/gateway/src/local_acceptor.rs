//! Sessions that end in this process: the interface through which a session-aware destination accepts them (S5).

use phoebus_net::tcp::Plain;
use phoebus_proto::endpoint::Endpoint;
use phoebus_proto::session::{Principal, SessionId};
use std::any::Any;
use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;

/// A session that has reached its destination.
#[derive(Debug, Clone)]
pub struct IncomingSession {
    /// Its identifier, the same on every hop.
    pub session: SessionId,
    /// The destination, as the requester named it.
    pub destination: Endpoint,
    /// The other end of the connection that brought it.
    pub from: SocketAddr,
    /// The client, as the gateways on the path report it; not authenticated.
    pub origin: Endpoint,
    /// The gateways on the path, by the names that they give themselves, in order; not authenticated.
    pub visited: Vec<String>,
    /// The names in the connection's certificate; empty without one.
    pub proved: Vec<String>,
    /// On whose behalf it was opened: authenticated by this end, or by the neighbour that speaks for it.
    pub principal: Principal,
}

/// Its drop signals that a session is over: every byte was forwarded, or both ends were reset.
pub type Guard = Box<dyn Any + Send + Sync>;

/// Accepts the sessions of a gateway that is a destination and connects to nothing.
pub trait LocalAcceptor: Debug + Send + Sync {
    /// Returns the gateway's end of a connection to the server of the session, and a guard that is dropped when the
    /// gateway is done with the session. Must not block.
    ///
    /// # Errors
    /// If the session cannot be served now. The client's connect then fails as if nothing listened at the destination.
    fn take(&self, arrival: IncomingSession) -> io::Result<(Plain, Guard)>;
}
