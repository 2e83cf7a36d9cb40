//! A port: one UDP socket, its endpoint, and the way to the thread behind it.

use super::connection::Connection;
use super::driver::Driver;
use super::link::Link;
use super::listener::Listener;
use super::settings;
use super::socket::Socket;
use crate::error::Error;
use crate::profile::Profile;
use crate::stream::Stream;
use phoebus_proto::udt::{self, CloseReason, Config, ConfigError, Endpoint};
use phoebus_proto::units::Span;
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc};

/// A UDP socket that any number of UDT connections share: outgoing ones, accepted ones, and such that meet in a rendezvous.
/// A clone is the same port. When the last is dropped, connections that are still open go on.
#[derive(Debug, Clone)]
pub struct Port(Arc<Owner>);

/// Stops the driver, once it has no more connections, when nobody has the port any more.
#[derive(Debug)]
struct Owner(Arc<Hub>);

/// What the owners of a port and its connections share with its driver.
#[derive(Debug)]
pub(super) struct Hub {
    pub(super) socket: Socket,
    /// Zero of all times.
    began: Instant,
    desk: Mutex<Desk>,
    errands: Mutex<Errands>,
    /// Wakes the driver.
    pub(super) bell: OwnedFd,
    /// Connections that have not ended, or have not told their peer so.
    unsettled: AtomicUsize,
    settled: Notify,
}

/// Who is told of newcomers.
#[derive(Debug)]
pub(super) struct Desk {
    pub(super) endpoint: Endpoint,
    pub(super) acceptor: Option<mpsc::Sender<Arc<Link>>>,
}

/// What the driver is to do when it comes round.
#[derive(Debug, Default)]
pub(super) struct Errands {
    pub(super) new: Vec<Arc<Link>>,
    /// Connections that have something to do sooner than they had said.
    pub(super) kicked: Vec<u32>,
    pub(super) stop: bool,
    /// The driver is gone.
    pub(super) dead: bool,
}

impl Port {
    /// Connections that wait to be accepted; further ones are not answered, and ask again.
    const BACKLOG: usize = 1024;

    /// Binds a socket, and starts the thread that drives it.
    ///
    /// # Errors
    /// What the system says: an address in use, say.
    pub fn bind(addr: SocketAddr) -> io::Result<Self> {
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).map_err(|error| io::Error::other(error.to_string()))?;
        let hub = Arc::new(Hub {
            socket: Socket::bind(addr)?,
            began: Instant::now(),
            desk: Mutex::new(Desk { endpoint: Endpoint::new(seed), acceptor: None }),
            errands: Mutex::default(),
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            unsettled: AtomicUsize::new(0),
            settled: Notify::new(),
        });
        let mut driver = Driver::new(hub.clone());
        std::thread::Builder::new().name("udt".to_owned()).spawn(move || driver.run())?;
        Ok(Self(Arc::new(Owner(hub))))
    }

    /// The port of `hub`, whose owners are all gone while connections on it go on; `None` where it has an owner, or is closed.
    pub(super) fn take_over(hub: Arc<Hub>) -> Option<Self> {
        let mut errands = hub.errands();
        if errands.dead || !errands.stop {
            return None;
        }
        errands.stop = false;
        drop(errands);
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

    /// Connects to a peer that does the same at the same time (a rendezvous): each names the other's port.
    ///
    /// # Errors
    /// [`Error::Connect`] and [`Error::Timeout`].
    pub async fn meet(&self, to: SocketAddr, profile: &Profile, limit: Duration) -> Result<Stream, Error> {
        self.open(to, profile, limit, Endpoint::meet).await
    }

    /// Accepts connections from now on. A port has one listener; a new one takes the place of the old one.
    ///
    /// # Errors
    /// [`Error::Listen`] if the profile has settings that UDT cannot have.
    pub fn listen(&self, profile: &Profile) -> Result<Listener, Error> {
        let addr = self.local_addr();
        let failed = |source| Error::Listen { addr, source };
        let config = Arc::new(settings::config(profile, addr, None).map_err(failed)?);
        let (sender, receiver) = mpsc::channel(Self::BACKLOG);
        let mut desk = self.0.0.desk();
        desk.endpoint.listen(Some(config)).map_err(|error| failed(io::Error::other(error)))?;
        desk.acceptor = Some(sender);
        drop(desk);
        Ok(Listener::new(self.clone(), receiver))
    }

    /// Connections that are remembered: open ones, and those that ended some seconds ago at most.
    pub fn connections(&self) -> usize {
        self.0.0.desk().endpoint.len()
    }

    /// Waits until every connection has ended and its peer was told: what a process does before it exits. Connections that
    /// were [disarmed](Stream::disarm) have delivered everything by then, or given up.
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

    /// Whether the port can still be used.
    pub(super) fn is_alive(&self) -> bool {
        !self.0.0.errands().dead
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
        let connection = ask(&mut hub.desk().endpoint, hub.now(), to, config);
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
        self.0.errands().stop = true;
        self.0.ring();
    }
}

impl Hub {
    /// The time.
    pub(super) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    pub(super) fn desk(&self) -> MutexGuard<'_, Desk> {
        // Nothing that is held across can be left half done by a panic.
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn errands(&self) -> MutexGuard<'_, Errands> {
        self.errands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a new connection to the driver.
    pub(super) fn register(
        self: &Arc<Self>,
        connection: udt::Connection,
        local: Option<std::net::IpAddr>,
    ) -> io::Result<Arc<Link>> {
        let link = Arc::new(Link::new(self.clone(), connection, local));
        let mut errands = self.errands();
        if errands.dead {
            return Err(io::Error::other("the thread that drives UDT has died"));
        }
        self.unsettled.fetch_add(1, Ordering::AcqRel);
        errands.new.push(link.clone());
        drop(errands);
        self.ring();
        Ok(link)
    }

    /// Has the driver look at a connection at once.
    pub(super) fn kick(&self, socket: u32) {
        let mut errands = self.errands();
        errands.kicked.push(socket);
        let first = errands.kicked.len() == 1;
        drop(errands);
        if first {
            self.ring();
        }
    }

    /// A connection has ended, and its peer knows as far as that can be.
    pub(super) fn settle(&self) {
        if self.unsettled.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.settled.notify_waiters();
        }
    }

    fn ring(&self) {
        // The counter cannot overflow: the driver reads it whenever it is not zero.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }
}
