//! Data connections whose ends know each other by keys that they have told over the control connection, without certificates of
//! any authority: the drivers `quic` and, over any other, `tls` (`docs/protocol/gridftp.md`; S12, U9).
//!
//! ```text
//!   client                                                    server
//!   SITE SETNETSTACK quic:key=sha256-<the client's> ────────►
//!                    ◄──────── 250 quic:key=sha256-<the server's>
//! ```
//!
//! Each end makes a key of its own for each control connection ([`Own`]) and then takes the other's and no other
//! ([`quic`], [`Pinned`]). So who is at the other end of a data connection is as sure as who is at that of the control
//! connection, and what goes over it is encrypted in any case.
//!
//! QUIC has a stream for each data connection; those of one transfer to one address share a connection of QUIC's. The end
//! that connects begins with one byte, since a stream does not exist for the other end before something has come over it.

use super::error::Error;
use crate::tls::{Tickets, Tls};
use phoebus_net::credentials::{Credentials, CredentialsError, Ephemeral};
use phoebus_net::quic::{Options, Quic, Threads};
use phoebus_net::transport::{Boxed, Change, Listener, Pending, Target, Transport};
use phoebus_net::{Error as NetError, Profile, Stream};
use phoebus_proto::gridftp::pin::Pin;
use phoebus_proto::units::Span;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ServerConfig};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::timeout;

/// What is spoken over these connections, by which no other protocol is taken for it (RFC 7301).
const PROTOCOL: &[u8] = b"phoebus-data/1";

/// What a stream begins with, said by the end that connects.
const OPENING: u8 = 0;

/// This end's key, for all data connections of one control connection. Clones are the same.
#[derive(Debug, Clone)]
pub struct Own(Ephemeral);

impl Own {
    /// Makes one.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn new() -> Result<Self, CredentialsError> {
        Ephemeral::make().map(Self)
    }

    /// What the other end is to be told.
    pub fn pin(&self) -> Pin {
        Pin(self.0.fingerprint())
    }
}

/// What carries data connections by QUIC between this end and the one of that key.
///
/// # Errors
/// When a thread cannot be started.
pub fn quic(own: &Own, peer: Pin) -> io::Result<Arc<dyn Transport>> {
    let options = Options { protocol: PROTOCOL, ..Options::default() };
    Ok(Arc::new(Streams(Quic::on(&threads()?, Credentials::pinned(&own.0, peer.0), options))))
}

/// The threads of all of them.
fn threads() -> io::Result<Threads> {
    static THREADS: Mutex<Option<Threads>> = Mutex::new(None);
    let mut threads = THREADS.lock().unwrap_or_else(PoisonError::into_inner);
    match &*threads {
        Some(threads) => Ok(threads.clone()),
        None => Ok(threads.insert(Threads::start()?).clone()),
    }
}

/// The same by TLS on a connection of any transport; the side that connects is TLS's client.
#[derive(Debug, Clone)]
pub struct Pinned(Credentials);

impl Pinned {
    /// Between this end and the one of that key.
    pub fn new(own: &Own, peer: Pin) -> Self {
        Self(Credentials::pinned(&own.0, peer.0))
    }

    /// What this end needs as TLS's client, to speak `protocol`.
    pub(crate) fn client(&self, protocol: &[u8]) -> Arc<ClientConfig> {
        self.0.client_config(&[protocol])
    }

    /// The same as TLS's server.
    pub(crate) fn server(&self, protocol: &[u8]) -> Arc<ServerConfig> {
        self.0.server_config(&[protocol])
    }

    pub(super) async fn up(&self, stream: &Stream, connected: bool, patience: Duration) -> Result<Tls, Error> {
        let up = match connected {
            true => Tls::connect(self.client(PROTOCOL), nobody(), stream, patience).await,
            false => Tls::accept(self.server(PROTOCOL), Tickets::AtOnce, stream, patience).await,
        };
        up.map_err(|error| {
            let another = error.get_ref().and_then(|inner| inner.downcast_ref()).is_some_and(|error| {
                let another = rustls::CertificateError::ApplicationVerificationFailure;
                matches!(error, rustls::Error::InvalidCertificate(shown) if *shown == another)
            });
            if another { Error::Key } else { Error::Tls(error) }
        })
    }
}

/// Keys have no names: what is said in the place of one, and never looked at.
pub(crate) fn nobody() -> ServerName<'static> {
    ServerName::from(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
}

#[derive(Debug)]
struct Streams(Quic);

impl Transport for Streams {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn connect<'a>(
        &'a self,
        to: &'a Target,
        profile: &'a Profile,
        limit: Duration,
    ) -> Boxed<'a, Result<Stream, NetError>> {
        Box::pin(async move {
            let stream = self.0.connect(to, profile, limit).await?;
            let failed = |source| NetError::Connect { to: to.addr, source };
            if profile.rate.is_some() {
                // Streams share a connection whose profile was the first one's.
                stream.set(Change::Rate(profile.rate)).map_err(failed)?;
            }
            let late = || NetError::Timeout { to: to.addr.to_string(), limit: Span(limit) };
            timeout(limit, say(&stream)).await.map_err(|_| late())?.map_err(failed)?;
            Ok(stream)
        })
    }

    fn listen(&self, addr: SocketAddr, profile: &Profile) -> Result<Box<dyn Listener>, NetError> {
        Ok(Box::new(Listening(self.0.listen(addr, profile)?)))
    }
}

async fn say(stream: &Stream) -> io::Result<()> {
    loop {
        match stream.try_write(&[OPENING], false) {
            Ok(1) => return Ok(()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        stream.writable().await?;
    }
}

#[derive(Debug)]
struct Listening(Box<dyn Listener>);

impl Listener for Listening {
    fn accept(&self) -> Boxed<'_, io::Result<(Box<dyn Pending>, SocketAddr)>> {
        Box::pin(async {
            let (pending, from) = self.0.accept().await?;
            Ok((Box::new(Arrived(pending)) as Box<dyn Pending>, from))
        })
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    fn note(&self) -> Option<&str> {
        self.0.note()
    }
}

#[derive(Debug)]
struct Arrived(Box<dyn Pending>);

impl Pending for Arrived {
    fn handshake(self: Box<Self>) -> Boxed<'static, io::Result<Stream>> {
        Box::pin(async move {
            let stream = self.0.handshake().await?;
            let mut first = [0];
            loop {
                match stream.try_read(&mut first) {
                    Ok(1) if first == [OPENING] => return Ok(stream),
                    Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                    Ok(_) => {
                        let why = "the stream begins with another byte than data connections do";
                        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock && stream.readable().await.is_ok() => {}
                    // It is known whose it is: whoever uses it hears that it was cut.
                    Err(_) => return Ok(stream),
                }
            }
        })
    }
}
