//! Data connections between ends that have exchanged keys over the control connection, without certificate authorities:
//! the drivers `quic` and, over any other, `tls` (`docs/protocol/gridftp.md`; S12, U9).
//!
//! ```text
//!   client                                                    server
//!   SITE SETNETSTACK quic:key=sha256-<the client's> ────────►
//!                    ◄──────── 250 quic:key=sha256-<the server's>
//! ```
//!
//! Each end makes a key for each control connection ([`OwnKey`]) and accepts only the other's ([`quic`], [`Pinned`]).
//! So the peer of a data connection is as certain as that of the control connection, and data is always encrypted.
//!
//! QUIC has a stream for each data connection. Those of one transfer to one address share a QUIC connection. The
//! connecting end sends one byte first, since a stream exists for the peer only with its first byte.

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

/// Protocol name (ALPN, RFC 7301), so that no other protocol is confused with this.
const PROTOCOL: &[u8] = b"phoebus-data/1";

/// First byte of a stream, sent by the connecting end.
const OPENING: u8 = 0;

/// This end's key, for all data connections of a control connection. Clones share it.
#[derive(Debug, Clone)]
pub struct OwnKey(Ephemeral);

impl OwnKey {
    /// Makes a key.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn new() -> Result<Self, CredentialsError> {
        Ephemeral::make().map(Self)
    }

    /// The fingerprint to send to the other end.
    pub fn pin(&self) -> Pin {
        Pin(self.0.fingerprint())
    }
}

/// A QUIC transport between this end and the end with the key `peer`.
///
/// # Errors
/// A thread cannot be started.
pub fn quic(own: &OwnKey, peer: Pin) -> io::Result<Arc<dyn Transport>> {
    let options = Options { protocol: PROTOCOL, ..Options::default() };
    Ok(Arc::new(Streams(Quic::on(&threads()?, Credentials::pinned(&own.0, peer.0), options))))
}

/// The threads of all such transports.
fn threads() -> io::Result<Threads> {
    static THREADS: Mutex<Option<Threads>> = Mutex::new(None);
    let mut threads = THREADS.lock().unwrap_or_else(PoisonError::into_inner);
    match &*threads {
        Some(threads) => Ok(threads.clone()),
        None => Ok(threads.insert(Threads::start()?).clone()),
    }
}

/// TLS on a connection of any transport. The connecting end is the TLS client.
#[derive(Debug, Clone)]
pub struct Pinned(Credentials);

impl Pinned {
    /// For this end's key and the peer's.
    pub fn new(own: &OwnKey, peer: Pin) -> Self {
        Self(Credentials::pinned(&own.0, peer.0))
    }

    /// The configuration of the TLS client, for `protocol`.
    pub(crate) fn client(&self, protocol: &[u8]) -> Arc<ClientConfig> {
        self.0.client_config(&[protocol])
    }

    /// The configuration of the TLS server.
    pub(crate) fn server(&self, protocol: &[u8]) -> Arc<ServerConfig> {
        self.0.server_config(&[protocol])
    }

    pub(super) async fn up(&self, stream: &Stream, connected: bool, reply_timeout: Duration) -> Result<Tls, Error> {
        let up = match connected {
            true => Tls::connect(self.client(PROTOCOL), nobody(), stream, reply_timeout).await,
            false => Tls::accept(self.server(PROTOCOL), Tickets::AtOnce, stream, reply_timeout).await,
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

/// Keys have no names. This one is sent as a placeholder, and never checked.
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
                // Streams share a connection, with the profile of the first.
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
                    // The peer is authenticated, so its failure is reported as a cut.
                    Err(_) => return Ok(stream),
                }
            }
        })
    }
}
