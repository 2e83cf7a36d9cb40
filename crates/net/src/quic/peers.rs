//! Connections to peers: one to each, made when it is first needed, kept, and made again when it has died. A session is a
//! stream of it and costs no round trip. One that was made with another congestion control than is wanted gets no more streams.

use super::bell::lock;
use super::drivers::Drivers;
use super::failure::{is_mistrust, words};
use super::gauge::Gauge;
use super::known::Known;
use super::reset_key::ResetKey;
use super::settings::{self, PAYLOAD_MAX, Windows};
use super::socket;
use super::stream::{QuicStream, Shared};
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

/// How long a connection without sessions is kept: as long as an address of a peer may be one that it had before.
const UNUSED: Duration = Duration::from_secs(600);

/// How often a connection that gets no more streams is looked at. What is owed at the end of the last one, an acknowledgement,
/// is sent in less.
const PARTING: Duration = Duration::from_secs(1);

/// Where a peer is, and what it has to call itself.
type Key = (SocketAddr, Arc<str>);
/// The connection to a peer; whoever holds the lock makes it.
type Slot = Arc<Turn<Option<Warm>>>;

/// All connections that this end has made.
#[derive(Debug)]
pub(super) struct Peers {
    drivers: Arc<Drivers>,
    credentials: Credentials,
    known: Arc<Known>,
    protocol: &'static [u8],
    slots: Mutex<HashMap<Key, Slot>>,
    /// One for each family of addresses.
    endpoints: Mutex<[Option<Own>; 2]>,
}

#[derive(Debug, Clone)]
struct Own {
    endpoint: Endpoint,
    note: Option<Arc<str>>,
}

#[derive(Debug)]
struct Warm {
    shared: Arc<Shared>,
    used: Instant,
}

impl Peers {
    pub(super) fn new(
        drivers: Arc<Drivers>,
        credentials: Credentials,
        known: Arc<Known>,
        protocol: &'static [u8],
    ) -> Self {
        Self { drivers, credentials, known, protocol, slots: Mutex::default(), endpoints: Mutex::default() }
    }

    /// A new stream to `to`.
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
                        let new = Warm { shared: shared.clone(), used: Instant::now() };
                        if let Some(old) = other.replace(new) {
                            self.drivers.handle().spawn(outlived(old.shared, 1));
                        }
                        (shared, true)
                    }
                }
            };
            match shared.connection.open_bi().await {
                Ok((send, receive)) => return Ok(QuicStream::new(shared, send, receive)),
                // It was dead, and nobody had noticed.
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
                reason: format!("\"{name}\" is no name that a certificate could be for"),
            },
            error => failed(io::Error::other(error)),
        })?;
        let connection = connecting.await.map_err(|error| refused(to, &error))?;
        let shared = Arc::new(Shared {
            meant: Some(to.name.clone()),
            identity: identity(&connection, proof),
            connection,
            retired: AtomicBool::new(false),
            gauge,
            // The peer opens no streams.
            ahead: None,
            windows: Windows::of(profile),
            sending: settings::sending_of(profile),
            read: AtomicU64::new(0),
            control: settings::control_name(profile),
            rate: profile.rate,
            local: own.endpoint.local_addr().map_err(failed)?,
            note: settings::note(profile, own.note.as_deref()),
            _drivers: self.drivers.clone(),
        });
        self.known.add(Arc::downgrade(&shared));
        Ok(shared)
    }

    fn slot(&self, key: &Key) -> Slot {
        let mut slots = lock(&self.slots);
        if let Some(slot) = slots.get(key) {
            return slot.clone();
        }
        // Connections that are made are rare, and a good time to look at those that nobody uses.
        slots.retain(|_, slot| match slot.try_lock() {
            Ok(slot) => slot.as_ref().is_some_and(|warm| {
                let busy = Arc::strong_count(&warm.shared) > 1 || warm.used.elapsed() < UNUSED;
                busy && warm.shared.connection.close_reason().is_none()
            }),
            Err(_) => true,
        });
        slots.entry(key.clone()).or_default().clone()
    }

    /// The endpoint for addresses like `to`, whose own port the kernel chooses.
    fn endpoint(&self, to: SocketAddr) -> io::Result<Own> {
        let mut endpoints = lock(&self.endpoints);
        let own = &mut endpoints[usize::from(to.is_ipv6())];
        if let Some(own) = own {
            return Ok(own.clone());
        }
        let (socket, note) = self.socket(to)?;
        let mut config = ResetKey::random()?.endpoint();
        config.max_udp_payload_size(PAYLOAD_MAX).map_err(io::Error::other)?;
        let endpoint = Endpoint::new_with_abstract_socket(config, None, socket, self.drivers.runtime())?;
        self.known.add_endpoint(&endpoint);
        Ok(own.insert(Own { endpoint, note }).clone())
    }

    fn socket(&self, like: SocketAddr) -> io::Result<(Arc<socket::Socket>, Option<Arc<str>>)> {
        let any: IpAddr = if like.is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        let _on = self.drivers.handle().enter();
        socket::open(SocketAddr::new(any, 0), PAYLOAD_MAX)
    }

    /// Moves all connections to new sockets, as when the host's addresses have changed.
    pub(super) fn rebind(&self) -> io::Result<()> {
        for own in lock(&self.endpoints).iter().flatten() {
            let (socket, _) = self.socket(own.endpoint.local_addr()?)?;
            own.endpoint.rebind_abstract(socket)?;
        }
        Ok(())
    }
}

/// Keeps a connection that gets no more streams until the last one on it is over, and what is owed for that has gone out: dropped,
/// it is closed at once. So many `holders` are no streams, this one among them.
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

/// Why a connection could not be made.
fn refused(to: &Target, error: &ConnectionError) -> Error {
    if is_mistrust(error) {
        return Error::Untrusted { to: format!("{} at {}", to.name, to.addr), reason: words(error) };
    }
    Error::Connect { to: to.addr, source: io_error(error) }
}
