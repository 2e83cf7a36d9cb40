//! The seam between those who relay sessions and the protocols underneath (S15, S19, S28, U9): what a transport can do, what
//! its connections can do, and the registry in which a transport is found by its name.
//!
//! A transport is a module that implements four traits, and one line in a [`Registry`](crate::Registry):
//!
//! ```text
//!   Transport::connect ───────────────────────────────► Stream (a boxed Duplex)
//!   Transport::listen ──► Listener::accept ──► Pending::handshake ──► Stream
//! ```
//!
//! [`tcp`](crate::tcp) is the smallest; a library with blocking calls needs three short traits instead
//! ([`wrapblock`](crate::wrapblock)).
//!
//! Readiness is asked for and waited for apart from reading and writing, as the kernel does it: whoever relays waits for a
//! stream that could be read before it takes a buffer for what comes.

pub use crate::credentials::Identity;
pub use crate::duplex::{Boxed, Change, Duplex, Pulse, Security};

use crate::error::Error;
use crate::profile::Profile;
use crate::stream::Stream;
use phoebus_proto::session::Code;
use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// A protocol that carries byte streams between two hosts.
pub trait Transport: Debug + Send + Sync {
    /// As configurations, reports and logs name it.
    fn name(&self) -> &'static str;

    /// Connects to `to` within `limit`. Where several streams share one connection, this may cost no round trip.
    ///
    /// # Errors
    /// [`Error::Connect`] and [`Error::Timeout`], and [`Error::Untrusted`] where the other end does not prove who it is.
    fn connect<'a>(&'a self, to: &'a Target, profile: &'a Profile, limit: Duration)
    -> Boxed<'a, Result<Stream, Error>>;

    /// Listens on `addr`. Called within the runtime that is to watch the socket.
    ///
    /// # Errors
    /// [`Error::Listen`], naming the address.
    fn listen(&self, addr: SocketAddr, profile: &Profile) -> Result<Box<dyn Listener>, Error>;

    /// The pulses of what was connected to the peer of this name, from either side, and is shared by several streams, used at present
    /// or not. None where each stream is a connection of its own.
    fn pulses(&self, _name: &str) -> Vec<Box<dyn Pulse>> {
        Vec::new()
    }

    /// Has no more streams go over what was connected to the peer of this name and is shared by several: new ones get a new
    /// connection, with other settings maybe, and the old one ends with its last stream. Nothing to do where each stream is a
    /// connection of its own.
    fn retire(&self, _name: &str) {}
}

/// Whom to connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Where it listens.
    pub addr: SocketAddr,
    /// What its certificate has to say, on a transport that has certificates.
    pub name: Arc<str>,
    /// Whether the first bytes may go before the other end has answered, and so arrive twice.
    pub early: bool,
}

/// A socket that accepts connections under a profile.
pub trait Listener: Debug + Send + Sync {
    /// The next connection; cancel safe. Nothing is waited for that the other end could delay.
    ///
    /// # Errors
    /// A lack of descriptors, say. The listener stays usable.
    fn accept(&self) -> Boxed<'_, io::Result<(Box<dyn Pending>, SocketAddr)>>;

    /// The address that is listened on, with the port that the kernel chose for 0.
    ///
    /// # Errors
    /// When the kernel does not say.
    fn local_addr(&self) -> io::Result<SocketAddr>;

    /// What the profile asked for and was not to be had, as a sentence.
    fn note(&self) -> Option<&str>;

    /// With what code streams are refused that are opened on its accepted connections once it is dropped, where streams share
    /// connections. [`Code::AuthRequired`] unless this is called: whoever asks does so once more on a new connection.
    fn part(&self, _code: Code) {}
}

/// A connection that was accepted and belongs to no runtime yet. Dropped, it is reset.
pub trait Pending: Debug + Send {
    /// The connection, on the runtime of the caller, once both ends have settled what the transport wants settled. Its peer may
    /// send little ahead of what is read, until the stream is [widened](Stream::widen).
    ///
    /// # Errors
    /// When the other end goes away, or does not prove who it is. There is no time limit: the caller has one.
    fn handshake(self: Box<Self>) -> Boxed<'static, io::Result<Stream>>;
}
