//! Accepts QUIC connections, and hands each of their streams to the caller as a connection of its own.
//!
//! Bounds on the cost of a stranger: an Initial from an unvalidated address is answered with a Retry of a
//! tenth of its size and forgotten (RFC 9000, section 8.1.2). The Retry costs an honest peer one round trip
//! per connection. Handshakes have a time-out and a limit; only those with a trusted certificate become
//! connections.

use super::ahead::{Ahead, Sources};
use super::failure::words;
use super::gauge::Gauge;
use super::known::Known;
use super::peers::outlived;
use super::reset_key::ResetKey;
use super::settings::{self, PAYLOAD_MAX, Windows};
use super::socket;
use super::stream::{QuicStream, Shared};
use super::threads::IoThreads;
use super::{Options, identity};
use crate::credentials::Credentials;
use crate::profile::Profile;
use crate::stream::Stream;
use crate::transport::{Boxed, DuplexControl, Listener, Pending};
use phoebus_proto::session::Code;
use quinn::crypto::rustls::QuicServerConfig;
use quinn::{Connection, Endpoint, Incoming, ServerConfig};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{Mutex, Semaphore, SemaphorePermit, mpsc, watch};
use tokio::time::timeout;

/// Most concurrent handshakes of validated addresses: each costs a signature, about a tenth of a millisecond.
const HANDSHAKES_MAX: usize = 256;
/// Longest handshake: some round trips of the longest path, with losses.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// Most concurrent connections; a peer usually has one.
const CONNECTIONS_MAX: usize = 4096;
/// Most Initials that wait for processing, and most bytes kept of what follows the first datagram of a
/// handshake, for one and for all.
const INCOMING_MAX: usize = 1024;
const INCOMING_BYTES: u64 = 64 << 10;
const INCOMING_BYTES_TOTAL: u64 = 16 << 20;
/// Most streams that wait to be accepted; beyond it, reading further streams from connections pauses.
const BACKLOG: usize = 1024;

/// A QUIC listener; see the module documentation.
#[derive(Debug)]
pub(super) struct QuicListener {
    arrived: Mutex<mpsc::Receiver<(Arrived, SocketAddr)>>,
    local: SocketAddr,
    note: Option<Arc<str>>,
    /// Set when the listener is dropped: the code with which new streams are refused from then on. Accepted
    /// streams live on.
    over: watch::Sender<Option<Code>>,
    /// The code to put there.
    parting: OnceLock<Code>,
    endpoint: Endpoint,
    socket_note: Option<Arc<str>>,
    threads: Arc<IoThreads>,
    known: Arc<Known>,
}

/// An accepted stream, or a report of a refused peer.
#[derive(Debug)]
enum Arrived {
    Stream(Box<QuicStream>),
    /// The peer failed the handshake, for this reason.
    Refused(String),
}

/// The common state of all connections of a listener.
struct Server {
    base: ServerConfig,
    credentials: Credentials,
    protocol: &'static [u8],
    profile: Profile,
    local: SocketAddr,
    note: Option<Arc<str>>,
    threads: Arc<IoThreads>,
    known: Arc<Known>,
    arrived: mpsc::Sender<(Arrived, SocketAddr)>,
    handshakes: Semaphore,
    sources: Arc<Sources>,
}

/// Listens on `addr`.
///
/// # Errors
/// When the address is not available.
pub(super) fn listen(
    addr: SocketAddr,
    profile: &Profile,
    credentials: &Credentials,
    options: &Options,
    threads: &Arc<IoThreads>,
    known: &Arc<Known>,
) -> io::Result<QuicListener> {
    let on = threads.handle();
    let _on = on.enter();
    let base = base(credentials, options.protocol)?;
    let (endpoint, socket_note) = match known.take_over(addr) {
        Some((endpoint, note)) => {
            endpoint.set_server_config(Some(base.clone()));
            (endpoint, note)
        }
        None => {
            let (socket, note) = socket::open(addr, PAYLOAD_MAX)?;
            socket.serve_by(threads.receive_pause());
            let key = options.reset_key.clone().map_or_else(ResetKey::random, Ok)?;
            let mut config = key.endpoint();
            config.max_udp_payload_size(PAYLOAD_MAX).map_err(io::Error::other)?;
            let endpoint = Endpoint::new_with_abstract_socket(config, Some(base.clone()), socket, threads.runtime())?;
            (endpoint, note)
        }
    };
    let note = settings::note(profile, socket_note.as_deref());
    known.add_endpoint(&endpoint);
    let local = endpoint.local_addr()?;
    let (arrived, waiting) = mpsc::channel(BACKLOG);
    let (over, is_over) = watch::channel(None);
    let server = Arc::new(Server {
        base,
        credentials: credentials.clone(),
        protocol: options.protocol,
        profile: profile.clone(),
        local,
        note: note.clone(),
        threads: threads.clone(),
        known: known.clone(),
        arrived,
        handshakes: Semaphore::new(HANDSHAKES_MAX),
        sources: Arc::default(),
    });
    on.spawn(accept_all(endpoint.clone(), server, is_over));
    let (threads, known) = (threads.clone(), known.clone());
    let arrived = Mutex::new(waiting);
    Ok(QuicListener { arrived, local, note, over, parting: OnceLock::new(), endpoint, socket_note, threads, known })
}

/// The part of the configuration that does not depend on the peer.
fn base(credentials: &Credentials, protocol: &[u8]) -> io::Result<ServerConfig> {
    let crypto = QuicServerConfig::try_from(credentials.server_config(&[protocol])).map_err(io::Error::other)?;
    let mut config = ServerConfig::with_crypto(Arc::new(crypto));
    config
        .max_incoming(INCOMING_MAX)
        .incoming_buffer_size(INCOMING_BYTES)
        .incoming_buffer_size_total(INCOMING_BYTES_TOTAL)
        // A peer whose address changes keeps its sessions; QUIC validates the new address.
        .migration(true);
    Ok(config)
}

async fn accept_all(endpoint: Endpoint, server: Arc<Server>, mut over: watch::Receiver<Option<Code>>) {
    loop {
        let incoming = tokio::select! {
            biased;
            _ = over.changed() => None,
            incoming = endpoint.accept() => incoming,
        };
        let Some(incoming) = incoming else { break };
        if !incoming.remote_address_validated() {
            // Fails only for a validated address.
            let _ = incoming.retry();
        } else if endpoint.open_connections() >= CONNECTIONS_MAX || server.handshakes.available_permits() == 0 {
            incoming.refuse();
        } else {
            let (server, over) = (server.clone(), over.clone());
            tokio::spawn(async move {
                if let Ok(permit) = server.handshakes.try_acquire() {
                    server.serve(incoming, permit, over).await;
                }
            });
        }
    }
}

impl Server {
    /// Accepts one connection, and hands on its streams until it or the listener ends.
    async fn serve(&self, incoming: Incoming, permit: SemaphorePermit<'_>, mut over: watch::Receiver<Option<Code>>) {
        let from = incoming.remote_address();
        let gauge = Gauge::new();
        let (crypto, proof) = self.credentials.server_handshake(&[self.protocol]);
        let windows = Windows::of(&self.profile);
        let ahead = Ahead::new(self.sources.enter(from.ip(), self.profile.handshake_buffer.0), windows.receive);
        let connection = match timeout(HANDSHAKE_LIMIT, self.handshake(incoming, crypto, &gauge, ahead.begin())).await {
            Ok(Ok(connection)) => connection,
            Ok(Err(reason)) => return self.refused(from, reason),
            Err(_) => return self.refused(from, "the handshake took too long".to_owned()),
        };
        drop(permit);
        let shared = Arc::new(Shared {
            owners_note: Arc::default(),
            meant: None,
            identity: identity(&connection, proof),
            connection: connection.clone(),
            retired: AtomicBool::new(false),
            gauge,
            ahead: Some(ahead),
            windows,
            sending: settings::sending_of(&self.profile),
            read: AtomicU64::new(0),
            control: settings::control_name(&self.profile),
            rate: self.profile.rate,
            local: self.local,
            note: self.note.clone(),
            threads: self.threads.clone(),
        });
        self.known.add(Arc::downgrade(&shared));
        loop {
            let stream = tokio::select! {
                biased;
                _ = over.changed() => break,
                stream = connection.accept_bi() => stream,
            };
            let Ok((send, receive)) = stream else { return };
            let stream = Arrived::Stream(Box::new(QuicStream::new(shared.clone(), send, receive)));
            if self.arrived.send((stream, connection.remote_address())).await.is_err() {
                break;
            }
        }
        let code = over.borrow().unwrap_or(Code::AuthRequired);
        refuse_streams(shared, code).await;
    }

    /// Completes the handshake. The connection's initial receive window is `ahead` bytes.
    async fn handshake(
        &self,
        incoming: Incoming,
        crypto: Arc<rustls::ServerConfig>,
        gauge: &Arc<Gauge>,
        ahead: u64,
    ) -> Result<Connection, String> {
        let crypto = QuicServerConfig::try_from(crypto).map_err(|e| e.to_string())?;
        let mut config = self.base.clone();
        config.crypto = Arc::new(crypto);
        let payload = socket::payload(incoming.remote_address()).min(PAYLOAD_MAX);
        config.transport = Arc::new(settings::transport(&self.profile, payload, gauge, Some(ahead)));
        let connecting = incoming.accept_with(Arc::new(config)).map_err(|error| words(&error))?;
        connecting.await.map_err(|error| words(&error))
    }

    /// Reports the refused peer to the accepting task, if its queue has room, so that the log can name the
    /// peer.
    fn refused(&self, from: SocketAddr, reason: String) {
        let _ = self.arrived.try_send((Arrived::Refused(reason), from));
    }
}

/// Refuses new streams of a connection whose listener is gone, until its accepted streams have ended.
async fn refuse_streams(shared: Arc<Shared>, code: Code) {
    let over = outlived(shared.clone(), 2);
    let mut over = pin!(over);
    loop {
        let stream = tokio::select! {
            () = &mut over => return,
            stream = shared.connection.accept_bi() => stream,
        };
        let Ok((send, receive)) = stream else { return };
        // Dropping the stream resets it.
        QuicStream::new(shared.clone(), send, receive).set_reset_code(code);
    }
}

impl Listener for QuicListener {
    fn accept(&self) -> Boxed<'_, io::Result<(Box<dyn Pending>, SocketAddr)>> {
        Box::pin(async {
            let arrived = self.arrived.lock().await.recv().await;
            let (arrived, from) = arrived.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected))?;
            Ok((Box::new(arrived) as Box<dyn Pending>, from))
        })
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.local)
    }

    fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    fn set_refusal_code(&self, code: Code) {
        // Only the first call has an effect.
        let _ = self.parting.set(code);
    }
}

impl Pending for Arrived {
    fn handshake(self: Box<Self>) -> Boxed<'static, io::Result<Stream>> {
        Box::pin(async {
            match *self {
                Self::Stream(stream) => Ok(Stream::from(*stream)),
                Self::Refused(reason) => Err(crate::error::Coded { code: Code::AuthFailed, reason }.into()),
            }
        })
    }
}

impl Drop for QuicListener {
    fn drop(&mut self) {
        self.over.send_replace(Some(self.parting.get().copied().unwrap_or(Code::AuthRequired)));
        self.known.leave(self.local, &self.endpoint, self.socket_note.take(), self.threads.handle());
    }
}
