//! A port: one UDP socket and the thread that drives it.

use super::connection::Connection;
use super::hub::Hub;
use super::port_thread::PortThread;
use super::settings;
use crate::error::Error;
use crate::profile::Profile;
use crate::stream::Stream;
use phoebus_proto::udt::{self, CloseReason, Config, ConfigError, Endpoint};
use phoebus_proto::units::Span;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A UDP socket shared by any number of UDT connections: outgoing, accepted and rendezvous ones. Clones are
/// the same port. Open connections survive the drop of the last clone.
#[derive(Debug, Clone)]
pub struct Port(Arc<Owner>);

/// When the last owner is gone, makes the driver stop once it has no more connections.
#[derive(Debug)]
struct Owner(Arc<Hub>);

impl Port {
    /// Binds a socket, and starts the thread that drives it.
    ///
    /// # Errors
    /// The system's error: an address in use, for example.
    pub fn bind(addr: SocketAddr) -> io::Result<Self> {
        let hub = Arc::new(Hub::bind(addr)?);
        let mut driver = PortThread::new(hub.clone());
        std::thread::Builder::new().name("udt".to_owned()).spawn(move || driver.run())?;
        Ok(Self(Arc::new(Owner(hub))))
    }

    /// Takes over the port of `hub`, whose connections live on without an owner; `None` if it still has an
    /// owner or its driver has ended.
    pub(super) fn take_over(hub: Arc<Hub>) -> Option<Self> {
        let mut requests = hub.requests();
        if requests.dead || !requests.stop {
            return None;
        }
        requests.stop = false;
        drop(requests);
        Some(Self(Arc::new(Owner(hub))))
    }

    /// The address that the socket is bound to.
    pub fn local_addr(&self) -> SocketAddr {
        self.0.0.socket.local_addr()
    }

    /// Connects to a listener.
    ///
    /// # Errors
    /// [`Error::Connect`] and [`Error::Timeout`].
    pub async fn connect(&self, to: SocketAddr, profile: &Profile, limit: Duration) -> Result<Stream, Error> {
        self.open(to, profile, limit, Endpoint::connect).await
    }

    /// Connects to a peer that connects back at the same time (rendezvous): each names the other's port.
    ///
    /// # Errors
    /// [`Error::Connect`] and [`Error::Timeout`].
    pub async fn meet(&self, to: SocketAddr, profile: &Profile, limit: Duration) -> Result<Stream, Error> {
        self.open(to, profile, limit, Endpoint::rendezvous).await
    }

    /// Number of connections in the table: open ones, and those that ended at most some seconds ago.
    pub fn connections(&self) -> usize {
        self.0.0.accepting().endpoint.len()
    }

    /// Waits until every connection has ended and has told its peer; a process calls it before it exits. By
    /// then, [disarmed](Stream::disarm) connections have delivered everything or given up.
    pub async fn settled(&self) {
        let hub = &self.0.0;
        loop {
            let mut notified = std::pin::pin!(hub.settled.notified());
            notified.as_mut().enable();
            if hub.unsettled.load(Ordering::Acquire) == 0 {
                return;
            }
            notified.await;
        }
    }

    /// Whether the port is still usable.
    pub(super) fn is_alive(&self) -> bool {
        !self.0.0.requests().dead
    }

    pub(super) fn hub(&self) -> &Arc<Hub> {
        &self.0.0
    }

    async fn open(
        &self,
        to: SocketAddr,
        profile: &Profile,
        limit: Duration,
        ask: impl FnOnce(&mut Endpoint, Duration, SocketAddr, Arc<Config>) -> Result<udt::Connection, ConfigError>,
    ) -> Result<Stream, Error> {
        let failed = |source| Error::Connect { to, source };
        if to.is_ipv6() != self.local_addr().is_ipv6() {
            return Err(failed(io::Error::from_raw_os_error(libc::EAFNOSUPPORT)));
        }
        let hub = &self.0.0;
        let config = Arc::new(settings::config(profile, to, Some(limit)).map_err(failed)?);
        let connection = ask(&mut hub.accepting().endpoint, hub.now(), to, config);
        let connection = connection.map_err(|error| failed(io::Error::other(error)))?;
        let connection = Connection::new(hub.register(connection, None).map_err(failed)?);
        match connection.opened().await {
            Ok(()) => Ok(connection.into()),
            Err(_) if matches!(connection.reason(), Some(CloseReason::ConnectTimeout(_))) => {
                Err(Error::Timeout { to: to.to_string(), limit: Span(limit) })
            }
            Err(error) => Err(failed(error)),
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.requests().stop = true;
        self.0.wake_driver();
    }
}
