//! Pools connections to peers: one for each, made when first needed, kept, and replaced after a failure. A
//! session is a stream of the connection and costs no round trip. A connection that was made with another
//! congestion control than now requested gets no more streams.

use super::failure::{is_mistrust, is_rejection, words};
use super::gauge::Gauge;
use super::known::Known;
use super::ready_signal::lock;
use super::reset_key::ResetKey;
use super::settings::{self, PAYLOAD_MAX, Windows};
use super::socket;
use super::stream::{QuicStream, Shared};
use super::threads::IoThreads;
use super::{identity, io_error};
use crate::credentials::Credentials;
use crate::error::Error;
use crate::profile::Profile;
use crate::transport::Target;
use phoebus_proto::units::Span;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, ConnectError, ConnectionError, Endpoint};
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::Mutex as Turn;

/// How long a connection without sessions is kept: the time for which a peer's address is likely to stay the
/// same.
const UNUSED: Duration = Duration::from_secs(600);

/// How often a connection that gets no more streams is checked for its end. The acknowledgement still due
/// after its last stream is sent sooner than that.
const PARTING: Duration = Duration::from_secs(1);

/// Address and certificate name of a peer.
type Key = (SocketAddr, Arc<str>);
/// The connection to a peer; the holder of the lock establishes it.
type Slot = Arc<Turn<Option<IdleConnection>>>;

/// The outgoing connections of this end.
#[derive(Debug)]
pub(super) struct Peers {
    threads: Arc<IoThreads>,
    credentials: Credentials,
    known: Arc<Known>,
    protocol: &'static [u8],
    slots: Mutex<HashMap<Key, Slot>>,
    /// One endpoint for each address family.
    endpoints: Mutex<[Option<LocalEndpoint>; 2]>,
}

#[derive(Debug, Clone)]
struct LocalEndpoint {
    endpoint: Endpoint,
    note: Option<Arc<str>>,
}

#[derive(Debug)]
struct IdleConnection {
    shared: Arc<Shared>,
    used: Instant,
}

impl Peers {
    pub(super) fn new(
        threads: Arc<IoThreads>,
        credentials: Credentials,
        known: Arc<Known>,
        protocol: &'static [u8],
    ) -> Self {
        Self { threads, credentials, known, protocol, slots: Mutex::default(), endpoints: Mutex::default() }
    }

    /// Opens a stream to `to`.
    pub(super) async fn open(&self, to: &Target, profile: &Profile, limit: Duration) -> Result<QuicStream, Error> {
        match tokio::time::timeout(limit, self.open_unhurried(to, profile)).await {
            Ok(result) => result,
            Err(_) => Err(Error::Timeout { to: to.addr.to_string(), limit: Span(limit) }),
        }
    }

    async fn open_unhurried(&self, to: &Target, profile: &Profile) -> Result<QuicStream, Error> {
        let slot = self.slot(&(to.addr, to.name.clone()));
        let control = settings::control_name(profile);
        loop {
            let (shared, is_new) = {
                let mut slot = slot.lock().await;
                match &mut *slot {
                    Some(warm) if warm.shared.is_of_use() && warm.shared.control == control => {
                        warm.used = Instant::now();
                        (warm.shared.clone(), false)
                    }
                    other => {
                        let shared = self.dial(to, profile).await?;
                        let new = IdleConnection { shared: shared.clone(), used: Instant::now() };
                        if let Some(old) = other.replace(new) {
                            self.threads.handle().spawn(outlived(old.shared, 1));
                        }
                        (shared, true)
                    }
                }
            };
            match shared.connection.open_bi().await {
                Ok((send, receive)) => return Ok(QuicStream::new(shared, send, receive)),
                // A pooled connection had died unnoticed: dial a new one.
                Err(_) if !is_new => {}
                Err(error) => return Err(refused(to, &error)),
            }
        }
    }

    async fn dial(&self, to: &Target, profile: &Profile) -> Result<Arc<Shared>, Error> {
        let failed = |source| Error::Connect { to: to.addr, source };
        let own = self.endpoint(to.addr).map_err(failed)?;
        let (gauge, proof) = (Gauge::new(), self.credentials.proof());
        let crypto =
            QuicClientConfig::try_from(self.credentials.client_config(&[self.protocol])).map_err(io::Error::other);
        let mut config = ClientConfig::new(Arc::new(crypto.map_err(failed)?));
        let payload = socket::payload(to.addr).min(PAYLOAD_MAX);
        config.transport_config(Arc::new(settings::transport(profile, payload, &gauge, None)));
        let connecting = own.endpoint.connect_with(config, to.addr, &to.name).map_err(|error| match error {
            ConnectError::InvalidServerName(name) => Error::Untrusted {
                to: to.addr.to_string(),
                reason: format!("\"{name}\" is not a name that a certificate can carry"),
            },
            error => failed(io::Error::other(error)),
        })?;
        let connection = connecting.await.map_err(|error| refused(to, &error))?;
        let shared = Arc::new(Shared {
            owners_note: Arc::default(),
            meant: Some(to.name.clone()),
            identity: identity(&connection, proof),
            connection,
            retired: AtomicBool::new(false),
            gauge,
            // The peer opens no streams on an outgoing connection.
            ahead: None,
            windows: Windows::of(profile),
            sending: settings::sending_of(profile),
            read: AtomicU64::new(0),
            control: settings::control_name(profile),
            rate: profile.rate,
            local: own.endpoint.local_addr().map_err(failed)?,
            note: settings::note(profile, own.note.as_deref()),
            threads: self.threads.clone(),
        });
        self.known.add(Arc::downgrade(&shared));
        Ok(shared)
    }

    fn slot(&self, key: &Key) -> Slot {
        let mut slots = lock(&self.slots);
        if let Some(slot) = slots.get(key) {
            return slot.clone();
        }
        // New connections are rare, so this is a cheap occasion to drop unused ones.
        slots.retain(|_, slot| match slot.try_lock() {
            Ok(slot) => slot.as_ref().is_some_and(|warm| {
                let busy = Arc::strong_count(&warm.shared) > 1 || warm.used.elapsed() < UNUSED;
                busy && warm.shared.connection.close_reason().is_none()
            }),
            Err(_) => true,
        });
        slots.entry(key.clone()).or_default().clone()
    }

    /// The endpoint for the address family of `to`, on a port that the kernel chooses.
    fn endpoint(&self, to: SocketAddr) -> io::Result<LocalEndpoint> {
        let mut endpoints = lock(&self.endpoints);
        let own = &mut endpoints[usize::from(to.is_ipv6())];
        if let Some(own) = own {
            return Ok(own.clone());
        }
        let (socket, note) = self.socket(to)?;
        let mut config = ResetKey::random()?.endpoint();
        config.max_udp_payload_size(PAYLOAD_MAX).map_err(io::Error::other)?;
        let endpoint = Endpoint::new_with_abstract_socket(config, None, socket, self.threads.runtime())?;
        self.known.add_endpoint(&endpoint);
        Ok(own.insert(LocalEndpoint { endpoint, note }).clone())
    }

    fn socket(&self, like: SocketAddr) -> io::Result<(Arc<socket::Socket>, Option<Arc<str>>)> {
        let any: IpAddr = if like.is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        let _on = self.threads.handle().enter();
        let (socket, note) = socket::open(SocketAddr::new(any, 0), PAYLOAD_MAX)?;
        socket.serve_by(self.threads.receive_pause());
        Ok((socket, note))
    }

    /// Moves all connections to new sockets, after a change of the host's addresses.
    pub(super) fn rebind(&self) -> io::Result<()> {
        for own in lock(&self.endpoints).iter().flatten() {
            let (socket, _) = self.socket(own.endpoint.local_addr()?)?;
            own.endpoint.rebind_abstract(socket)?;
        }
        Ok(())
    }
}

/// Keeps a connection that gets no more streams until its last stream has ended and the final
/// acknowledgements are sent, because dropping the connection closes it at once. `holders` references to the
/// connection, this one included, are not streams.
pub(super) async fn outlived(shared: Arc<Shared>, holders: usize) {
    let mut was_unused = false;
    while shared.connection.close_reason().is_none() {
        tokio::time::sleep(PARTING).await;
        let is_unused = Arc::strong_count(&shared) <= holders;
        if is_unused && was_unused {
            break;
        }
        was_unused = is_unused;
    }
}

/// The error of a failed connection attempt.
fn refused(to: &Target, error: &ConnectionError) -> Error {
    if is_rejection(error) {
        return Error::Rejected { to: format!("{} at {}", to.name, to.addr), reason: words(error) };
    }
    if is_mistrust(error) {
        return Error::Untrusted { to: format!("{} at {}", to.name, to.addr), reason: words(error) };
    }
    Error::Connect { to: to.addr, source: io_error(error) }
}
