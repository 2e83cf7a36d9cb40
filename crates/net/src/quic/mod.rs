//! QUIC (RFC 9000, RFC 9001, RFC 9002), by quinn: one connection to each peer, and a stream of it for each session (S12, S15,
//! S21).
//!
//! - [`Quic`] is the transport, [`Options`] what can be chosen; [`ResetKey`] is what a gateway keeps across restarts, and
//!   [`Threads`] what several transports can share.
//! - `peers` makes connections and keeps them, `listener` accepts them; `stream` is a stream as a connection of the seam,
//!   `receive` and `assembly` put its bytes in order.
//! - `known` is what there is of them, `failure` how they end.
//! - `settings` turns a profile into quinn's settings; `model` is the congestion control, `rate` the bound on a stream,
//!   `gauge` what statistics need besides quinn's.
//! - `drivers` are the threads on which all of it runs, `socket` the UDP socket under it with its `batch`, `bell` its readiness,
//!   `timer` its clock.
//!
//! Both ends show certificates (`crate::credentials`), and all bytes are encrypted. A stream's end and its reset are the
//! peer's: nobody on the path can forge them, so that sessions go over a stream as they are, unframed.
//!
//! 0-RTT is off. What comes with it can be recorded and sent again by anyone; an OPEN would be refused the second time,
//! but only by a gateway that remembers the first, which one that was restarted does not. And it would gain nothing:
//! connections to peers are kept, so that a session finds its handshake done.

mod ahead;
mod assembly;
mod batch;
mod bell;
mod drivers;
mod failure;
mod gauge;
mod known;
mod listener;
mod model;
mod peers;
mod rate;
mod receive;
mod reset_key;
mod settings;
mod socket;
mod stream;
mod timer;

pub use reset_key::ResetKey;

use crate::credentials::{Credentials, Proof};
use crate::error::Error;
use crate::profile::Profile;
use crate::stream::Stream;
use crate::transport::{Boxed, Identity, Listener, Pulse, Target, Transport};
use drivers::Drivers;
use failure::Failure;
use known::Known;
use peers::Peers;
use quinn::{Connection, ConnectionError};
use rustls::pki_types::CertificateDer;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The name of the session protocol in the handshake (RFC 7301; `docs/protocol/session.md`).
pub const ALPN: &[u8] = b"phoebus/1";

/// What can be chosen besides profiles.
#[derive(Debug, Clone)]
pub struct Options {
    /// What is spoken over the connections: both ends have to say the same in the handshake (RFC 7301). [`ALPN`] by default.
    pub protocol: &'static [u8],
    /// For the connections that a listener accepts; none: one that does not outlive the process.
    pub reset_key: Option<ResetKey>,
}

impl Default for Options {
    fn default() -> Self {
        Self { protocol: ALPN, reset_key: None }
    }
}

/// The threads on which QUIC runs. They end with the last of the transports and connections that use them.
#[derive(Debug, Clone)]
pub struct Threads(Arc<Drivers>);

impl Threads {
    /// As many as half the processors.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn start() -> io::Result<Self> {
        Drivers::start().map(Self)
    }
}

/// QUIC as a transport.
#[derive(Debug)]
pub struct Quic {
    drivers: Arc<Drivers>,
    credentials: Credentials,
    options: Options,
    known: Arc<Known>,
    peers: Peers,
}

impl Quic {
    /// With these credentials for its connections, those that it makes and those that it accepts.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn new(credentials: Credentials, options: Options) -> io::Result<Self> {
        Ok(Self::on(&Threads::start()?, credentials, options))
    }

    /// The same on threads that others use, too.
    pub fn on(threads: &Threads, credentials: Credentials, options: Options) -> Self {
        let (drivers, known) = (threads.0.clone(), Arc::new(Known::default()));
        let peers = Peers::new(drivers.clone(), credentials.clone(), known.clone(), options.protocol);
        Self { drivers, credentials, options, known, peers }
    }

    /// Another one, which takes over addresses that listeners of this one have left while their connections go on.
    #[must_use]
    pub fn successor(&self, credentials: Credentials, options: Options) -> Self {
        let (drivers, known) = (self.drivers.clone(), self.known.clone());
        let peers = Peers::new(drivers.clone(), credentials.clone(), known.clone(), options.protocol);
        Self { drivers, credentials, options, known, peers }
    }

    /// As [`Transport::listen`], with other credentials for what is accepted there: [open](Credentials::open) ones, say.
    ///
    /// # Errors
    /// [`Error::Listen`], naming the address.
    pub fn listen_as(
        &self,
        addr: SocketAddr,
        profile: &Profile,
        credentials: &Credentials,
    ) -> Result<Box<dyn Listener>, Error> {
        match listener::listen(addr, profile, credentials, &self.options, &self.drivers, &self.known) {
            Ok(listener) => Ok(Box::new(listener)),
            Err(source) => Err(Error::Listen { addr, source }),
        }
    }

    /// Moves the connections that were made from here to new sockets, as when the host's addresses have changed. The
    /// sessions on them go on.
    ///
    /// # Errors
    /// When there is no socket to be had.
    pub fn rebind(&self) -> io::Result<()> {
        self.peers.rebind()
    }

    /// Closes all connections, those of listeners too, and waits until their peers could have heard of it: some round
    /// trips. What is not closed so when the process ends, peers take for alive until they hear nothing for long.
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

/// Who the other end of a connection has proved to be, `proof` being of the handshake's beginning.
fn identity(connection: &Connection, proof: Proof) -> Identity {
    let shown = connection.peer_identity().and_then(|shown| shown.downcast::<Vec<CertificateDer<'static>>>().ok());
    proof.of(shown.as_deref().map_or(&[], Vec::as_slice))
}

fn io_error(error: &ConnectionError) -> io::Error {
    Failure::Lost(error.clone()).into()
}
