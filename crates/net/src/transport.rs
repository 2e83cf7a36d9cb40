//! The interface between session code and the protocols underneath (S15, S19, S28, U9): what a transport and
//! its connections can do, and the registry that finds a transport by name.
//!
//! A transport implements [`Transport`], [`Listener`], [`Pending`] and the three parts of [`Duplex`], and has one line in a
//! [`Registry`](crate::Registry):
//!
//! ```text
//!   Transport::connect ───────────────────────────────► Stream (a boxed Duplex)
//!   Transport::listen ──► Listener::accept ──► Pending::handshake ──► Stream
//! ```
//!
//! [`tcp`](crate::tcp) is the smallest; a library with blocking calls needs three short traits instead
//! ([`wrapblock`](crate::wrapblock)).
//!
//! Readiness is separate from reading and writing, as in the kernel: a relay waits until a stream is readable
//! before it allocates a buffer.

pub use crate::credentials::Identity;
pub use crate::duplex::{
    Boxed, Change, Duplex, DuplexControl, DuplexIo, DuplexTelemetry, Pulse, ReadThreshold, Security,
};

use crate::error::Error;
use crate::profile::Profile;
use crate::stream::Stream;
use phoebus_proto::proxy_header::Origin;
use phoebus_proto::session::Code;
use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// A protocol that carries byte streams between two hosts.
pub trait Transport: Debug + Send + Sync {
    /// The name used in configurations, reports and logs.
    fn name(&self) -> &'static str;

    /// Connects to `to` within `limit`. On a transport that shares one connection among streams, this may
    /// cost no round trip.
    ///
    /// # Errors
    /// [`Error::Connect`] and [`Error::Timeout`], and [`Error::Untrusted`] where the peer does not prove its
    /// identity.
    fn connect<'a>(&'a self, to: &'a Target, profile: &'a Profile, limit: Duration)
    -> Boxed<'a, Result<Stream, Error>>;

    /// Listens on `addr`. Must be called within the runtime that is to watch the socket.
    ///
    /// # Errors
    /// [`Error::Listen`], naming the address.
    fn listen(&self, addr: SocketAddr, profile: &Profile) -> Result<Box<dyn Listener>, Error>;

    /// The [`Pulse`]s of all connections with the peer of this name that several streams share, whichever
    /// side opened them and whether or not they are in use. Empty where each stream is a connection of its
    /// own.
    fn pulses(&self, _name: &str) -> Vec<Box<dyn Pulse>> {
        Vec::new()
    }

    /// Stops placing new streams on shared connections with the peer of this name: new streams get a new
    /// connection, perhaps with other settings, and the old one closes with its last stream. Does nothing
    /// where each stream is a connection of its own.
    fn retire(&self, _name: &str) {}
}

/// The destination of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The address to connect to.
    pub addr: SocketAddr,
    /// The name that the peer's certificate must carry, on a transport with certificates.
    pub name: Arc<str>,
    /// Whether the first bytes may be sent before the peer has answered, and so may arrive twice.
    pub early: bool,
}

/// A listening socket with a profile.
pub trait Listener: Debug + Send + Sync {
    /// Waits for the next connection. Cancel safe. It waits for nothing that the peer could delay.
    ///
    /// # Errors
    /// A lack of descriptors, for example. The listener stays usable.
    fn accept(&self) -> Boxed<'_, io::Result<(Box<dyn Pending>, SocketAddr)>>;

    /// The address that the socket listens on, with the port that the kernel chose for port 0.
    ///
    /// # Errors
    /// When the kernel does not tell.
    fn local_addr(&self) -> io::Result<SocketAddr>;

    /// Which settings of the profile are not in force, as a sentence.
    fn note(&self) -> Option<&str>;

    /// Sets the code with which, after this listener is dropped, streams are refused that peers open on
    /// already accepted connections, on a transport that shares connections. The default is
    /// [`Code::AuthRequired`], on which the peer retries once over a new connection.
    fn set_refusal_code(&self, _code: Code) {}
}

/// An accepted connection that is not yet registered with a runtime. Dropping it resets it.
pub trait Pending: Debug + Send {
    /// Reads the header by which a relay says for whom it has connected ([`proxied`](crate::proxied)). To be called at most once,
    /// before the handshake, and only if the other end is known to send one.
    ///
    /// # Errors
    /// When the peer goes away, sends no header, or one that does not count; `Unsupported` on a listener that reads none. There
    /// is no time limit: the caller sets one.
    fn origin(&mut self) -> Boxed<'_, io::Result<Origin>> {
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }

    /// Completes the transport's handshake and returns the connection, registered with the caller's runtime.
    /// The peer may send little ahead of the reader, until the stream is [widened](Stream::widen).
    ///
    /// # Errors
    /// When the peer goes away, or does not prove its identity. There is no time limit: the caller sets one.
    fn handshake(self: Box<Self>) -> Boxed<'static, io::Result<Stream>>;
}
