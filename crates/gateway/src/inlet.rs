//! Sessions that end in this process: what a session-aware destination takes them by (S5).

use phoebus_net::tcp::Plain;
use phoebus_proto::endpoint::Endpoint;
use phoebus_proto::session::SessionId;
use std::any::Any;
use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;

/// A session that has come to its destination.
#[derive(Debug, Clone)]
pub struct Arrival {
    /// Its identifier, the same on every hop.
    pub session: SessionId,
    /// Where it was to go, in the words of whoever asked for it.
    pub destination: Endpoint,
    /// The other end of the connection that brought it.
    pub from: SocketAddr,
    /// The client, as far as those on the way said; nobody has proved it.
    pub origin: Endpoint,
    /// The gateways on the way, as they call themselves, the first one first; likewise.
    pub visited: Vec<String>,
    /// The names that the certificate of the connection is for; none without one.
    pub proved: Vec<String>,
}

/// Tells, by being dropped, that a session is over: every byte of it went on, or both ends were reset.
pub type Guard = Box<dyn Any + Send + Sync>;

/// Takes the sessions of a gateway that is a destination and connects to nothing.
pub trait Inlet: Debug + Send + Sync {
    /// The gateway's end of a connection to whoever is to serve the session, and what is dropped when the gateway has no more to do
    /// with it. Nothing is waited for.
    ///
    /// # Errors
    /// Why it cannot be served now; the client's connect then fails as if nobody listened there.
    fn take(&self, arrival: Arrival) -> io::Result<(Plain, Guard)>;
}
