//! QUIC (RFC 9000, RFC 9001, RFC 9002), implemented by quinn: one connection to each peer, with a stream for each session
//! (S12, S15, S21).
//!
//! - [`Quic`] is the transport, [`Options`] its configuration; a gateway keeps a [`ResetKey`] across restarts, and several
//!   transports may share [`Threads`].
//! - `peers` makes and pools outgoing connections, `listener` accepts incoming ones; `stream` implements the connection
//!   interface, `receive` and `assembly` reorder received bytes, and `ahead` limits them.
//! - `known` registers endpoints and connections, `failure` describes how they end.
//! - `settings` turns a profile into quinn's settings; `model` is the congestion control, `rate` limits a stream,
//!   `gauge` measures what quinn does not report.
//! - `threads` are the threads that run all of it, `socket` is the UDP socket with its `batch`, `ready_signal` provides readiness,
//!   `timer` precise timers.
//!
//! Both ends present certificates (`crate::credentials`), and all bytes are encrypted. A stream's end and its reset are
//! authenticated, so sessions use a stream as it is, without framing.
//!
//! 0-RTT is off. Anyone can record and replay 0-RTT data. A gateway would refuse a replayed OPEN if it remembers the first,
//! but a restarted gateway does not. 0-RTT would also gain nothing: connections to peers are pooled, so a session finds
//! the handshake done.

mod ahead;
mod assembly;
mod batch;
mod failure;
mod gauge;
mod known;
mod listener;
mod model;
mod peers;
mod rate;
mod ready_signal;
mod receive;
mod receive_pause;
mod reset_key;
mod settings;
mod socket;
mod stream;
mod threads;
mod timer;

pub use reset_key::ResetKey;

use crate::credentials::{Credentials, Proof};
use crate::error::Error;
use crate::profile::Profile;
use crate::stream::Stream;
use crate::transport::{Boxed, Identity, Listener, Pulse, Target, Transport};
use failure::Failure;
use known::Known;
use peers::Peers;
use quinn::{Connection, ConnectionError};
use rustls::pki_types::CertificateDer;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use threads::IoThreads;

/// The name of the session protocol in the handshake (RFC 7301; `docs/protocol/session.md`).
pub const ALPN: &[u8] = b"phoebus/1";

/// Settings of the transport besides profiles.
#[derive(Debug, Clone)]
pub struct Options {
    /// The application protocol, on which both ends must agree in the handshake (ALPN, RFC 7301). [`ALPN`] by
    /// default.
    pub protocol: &'static [u8],
    /// The key for stateless resets of accepted connections; `None` uses a key that does not outlive the
    /// process.
    pub reset_key: Option<ResetKey>,
}

impl Default for Options {
    fn default() -> Self {
        Self { protocol: ALPN, reset_key: None }
    }
}

/// The threads that run QUIC. They end with the last transport and connection that uses them.
#[derive(Debug, Clone)]
pub struct Threads(Arc<IoThreads>);

impl Threads {
    /// Starts one thread for every two processors.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn start() -> io::Result<Self> {
        IoThreads::start().map(Self)
    }
}

/// The QUIC transport.
#[derive(Debug)]
pub struct Quic {
    threads: Arc<IoThreads>,
    credentials: Credentials,
    options: Options,
    known: Arc<Known>,
    peers: Peers,
}

impl Quic {
    /// Creates a transport that uses these credentials for outgoing and accepted connections.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn new(credentials: Credentials, options: Options) -> io::Result<Self> {
        Ok(Self::on(&Threads::start()?, credentials, options))
    }

    /// As [`Quic::new`], on threads that other transports may share.
    pub fn on(threads: &Threads, credentials: Credentials, options: Options) -> Self {
        let (threads, known) = (threads.0.clone(), Arc::new(Known::default()));
        let peers = Peers::new(threads.clone(), credentials.clone(), known.clone(), options.protocol);
        Self { threads, credentials, options, known, peers }
    }

    /// Creates a transport that can take over addresses whose listeners of this transport are gone while
    /// their connections live on.
    #[must_use]
    pub fn successor(&self, credentials: Credentials, options: Options) -> Self {
        let (threads, known) = (self.threads.clone(), self.known.clone());
        let peers = Peers::new(threads.clone(), credentials.clone(), known.clone(), options.protocol);
        Self { threads, credentials, options, known, peers }
    }

    /// As [`Transport::listen`], with other credentials for the accepted connections:
    /// [open](Credentials::open) ones, for example.
    ///
    /// # Errors
    /// [`Error::Listen`], naming the address.
    pub fn listen_as(
        &self,
        addr: SocketAddr,
        profile: &Profile,
        credentials: &Credentials,
    ) -> Result<Box<dyn Listener>, Error> {
        match listener::listen(addr, profile, credentials, &self.options, &self.threads, &self.known) {
            Ok(listener) => Ok(Box::new(listener)),
            Err(source) => Err(Error::Listen { addr, source }),
        }
    }

    /// Moves all outgoing connections to new sockets, after a change of the host's addresses. Their sessions
    /// continue.
    ///
    /// # Errors
    /// When no socket can be opened.
    pub fn rebind(&self) -> io::Result<()> {
        self.peers.rebind()
    }

    /// Closes all connections, accepted ones included, and waits some round trips so that the peers can
    /// receive the close. A peer considers a connection that is not closed before the process exits alive
    /// until its idle time-out.
    pub async fn close(&self) {
        self.known.close().await;
    }
}

impl Transport for Quic {
    fn name(&self) -> &'static str {
        "quic"
    }

    fn connect<'a>(
        &'a self,
        to: &'a Target,
        profile: &'a Profile,
        limit: Duration,
    ) -> Boxed<'a, Result<Stream, Error>> {
        Box::pin(async move { Ok(Stream::from(self.peers.open(to, profile, limit).await?)) })
    }

    fn listen(&self, addr: SocketAddr, profile: &Profile) -> Result<Box<dyn Listener>, Error> {
        self.listen_as(addr, profile, &self.credentials)
    }

    fn pulses(&self, name: &str) -> Vec<Box<dyn Pulse>> {
        self.known.pulses(name)
    }

    fn retire(&self, name: &str) {
        self.known.retire(name);
    }
}

/// The identity that the peer of a connection has proved; `proof` was taken before the handshake.
fn identity(connection: &Connection, proof: Proof) -> Identity {
    let shown = connection.peer_identity().and_then(|shown| shown.downcast::<Vec<CertificateDer<'static>>>().ok());
    proof.of(shown.as_deref().map_or(&[], Vec::as_slice))
}

fn io_error(error: &ConnectionError) -> io::Error {
    Failure::Lost(error.clone()).into()
}
