//! The data channel: which end connects, and which connections are kept.

use super::connection::Connection;
use super::error::Error;
use super::losses::Losses;
use super::security::{ChannelSecurity, Protection};
use super::settings::Settings;
use phoebus_net::object::Port;
use phoebus_net::tcp::Tcp;
use phoebus_net::transport::{Listener, Target, Transport};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tokio::task::JoinSet;

/// A set of data connections to one peer. In extended block mode, connections stay open between transfers (GFD.20,
/// section 3.4). Clones share them.
#[derive(Debug, Clone)]
pub struct Channel(pub(super) Arc<Inner>);

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) settings: Settings,
    pub(super) way: Direction,
    kept: Mutex<Vec<Connection>>,
    losses: OnceLock<Arc<Losses>>,
}

/// How connections are made.
#[derive(Debug)]
pub(super) enum Direction {
    Connect(Vec<SocketAddr>),
    /// `port`: for datagrams, of the same number.
    Listen {
        listener: Box<dyn Listener>,
        addr: SocketAddr,
        port: Option<Port>,
    },
}

impl Channel {
    /// Connects to the addresses `to`, the stripes of the peer (U3), when a transfer begins.
    pub fn connecting(to: Vec<SocketAddr>, settings: Settings) -> Self {
        Self::new(settings, Direction::Connect(to))
    }

    /// Listens at `ip` from now on. Needs the runtime that is to watch the socket.
    ///
    /// # Errors
    /// [`Error::Net`] and [`Error::Ports`].
    pub fn listening(ip: IpAddr, settings: Settings) -> Result<Self, Error> {
        let listen = |port| listen(&settings, SocketAddr::new(ip, port));
        let (listener, port) = match settings.ports.clone() {
            None => any_port(|| listen(0))?,
            Some(ports) => {
                // A predictable port could be guessed, so the search begins at a random one.
                let (first, last) = (*ports.start(), *ports.end());
                let count = u32::from(last.saturating_sub(first)) + 1;
                let begin = settings.transport.listen(SocketAddr::new(ip, 0), &settings.profile)?.local_addr()?.port();
                let port = |i: u32| first + ((u32::from(begin) + i) % count) as u16;
                let mut tries =
                    (0..count).map(port).map(listen).skip_while(|tried| tried.as_ref().is_err_and(is_taken));
                tries.next().ok_or(Error::Ports(first, last))??
            }
        };
        let addr = listener.local_addr()?;
        Ok(Self::new(settings, Direction::Listen { listener, addr, port }))
    }

    fn new(settings: Settings, way: Direction) -> Self {
        Self(Arc::new(Inner { settings, way, kept: Mutex::default(), losses: OnceLock::new() }))
    }

    /// Whether files go as objects.
    pub fn carries_objects(&self) -> bool {
        self.0.settings.objects.is_some()
    }

    /// The same, counting what was sent again.
    #[must_use]
    pub fn counting(self, losses: Arc<Losses>) -> Self {
        // The first counter stays.
        let _ = self.0.losses.set(losses);
        self
    }

    /// The number of addresses that it connects to.
    pub fn ends(&self) -> usize {
        match &self.0.way {
            Direction::Connect(to) => to.len(),
            Direction::Listen { .. } => 0,
        }
    }

    /// The address that it listens on.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        match &self.0.way {
            Direction::Connect(_) => None,
            Direction::Listen { addr, .. } => Some(*addr),
        }
    }

    /// Whether connections carry unprotected bytes, so that the kernel can send files
    /// ([`Shape::lend`](phoebus_files::store::Shape::lend)).
    pub fn is_plain(&self) -> bool {
        let Settings { transport, security, .. } = &self.0.settings;
        let clear = matches!(security, None | Some(ChannelSecurity::Gsi { protection: Protection::Clear, .. }));
        clear && transport.name() == Tcp.name()
    }

    /// Whether the end of a stream looks the same if its sender was killed: the kernel closes TCP connections of a
    /// killed process normally, and only TLS and the like have an authenticated end. GSI records do not.
    pub fn ends_as_if_cut(&self) -> bool {
        let Settings { transport, security, .. } = &self.0.settings;
        transport.name() == Tcp.name() && matches!(security, None | Some(ChannelSecurity::Gsi { .. }))
    }

    /// The number of connections kept for the next transfer.
    pub fn kept(&self) -> usize {
        self.0.kept().len()
    }
}

/// A kept connection has no data in flight, not even an end. So it is closed cleanly.
impl Drop for Inner {
    fn drop(&mut self) {
        self.take_kept().into_iter().for_each(Connection::close);
    }
}

impl Inner {
    pub(super) fn losses(&self) -> Option<&Losses> {
        self.losses.get().map(|losses| &**losses)
    }

    fn kept(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps `connection` for the next transfer.
    pub(super) fn keep(&self, connection: Connection) {
        self.kept().push(connection);
    }

    /// Takes all kept connections.
    pub(super) fn take_kept(&self) -> Vec<Connection> {
        std::mem::take(&mut *self.kept())
    }

    /// Makes `streams` connections to each address, including kept ones that still exist.
    pub(super) async fn all(self: &Arc<Self>, streams: u32) -> Result<Vec<Connection>, Error> {
        let Direction::Connect(to) = &self.way else {
            return Err(Error::Direction("PORT, EPRT or SPOR has to say where to"));
        };
        let mut connections = Vec::new();
        for mut connection in self.take_kept() {
            if connection.has_ended().await { connection.close() } else { connections.push(connection) }
        }
        let mut connecting = JoinSet::new();
        for (i, addr) in to.iter().enumerate() {
            let have = connections.iter().filter(|connection| connection.to == i).count();
            for _ in have..streams.max(1) as usize {
                let (inner, addr) = (self.clone(), *addr);
                connecting.spawn(async move { inner.connect(addr, i).await });
            }
        }
        while let Some(connected) = connecting.join_next().await {
            connections.push(connected.map_err(|_| Error::GivenUp)??);
        }
        Ok(connections)
    }

    pub(super) async fn connect(&self, to: SocketAddr, index: usize) -> Result<Connection, Error> {
        let target = Target { addr: to, name: to.ip().to_string().into(), early: false };
        let Settings { transport, profile, reply_timeout, .. } = &self.settings;
        let stream = transport.connect(&target, profile, *reply_timeout).await?;
        Connection::up(stream, index, self.settings.security.as_ref(), true, *reply_timeout).await
    }

    /// The port for datagrams.
    pub(super) fn port(&self) -> Option<Port> {
        match &self.way {
            Direction::Listen { port, .. } => port.clone(),
            Direction::Connect(_) => None,
        }
    }

    pub(super) fn is_listening(&self) -> bool {
        matches!(self.way, Direction::Listen { .. })
    }
}

/// Listens, and binds the same port for datagrams if they are to come.
fn listen(settings: &Settings, addr: SocketAddr) -> Result<(Box<dyn Listener>, Option<Port>), phoebus_net::Error> {
    let listener = settings.transport.listen(addr, &settings.profile)?;
    let port = match settings.objects {
        Some(_) => {
            let failed = |source| phoebus_net::Error::Listen { addr, source };
            let addr = listener.local_addr().map_err(failed)?;
            Some(Port::bind(addr).map_err(failed)?)
        }
        None => None,
    };
    Ok((listener, port))
}

/// Listens on any port. The one that the kernel chooses for connections may be taken for datagrams.
fn any_port<T>(mut listen: impl FnMut() -> Result<T, phoebus_net::Error>) -> Result<T, phoebus_net::Error> {
    const TRIES: usize = 16;
    for _ in 1..TRIES {
        match listen() {
            Err(error) if is_taken(&error) => {}
            other => return other,
        }
    }
    listen()
}

fn is_taken(error: &phoebus_net::Error) -> bool {
    matches!(error, phoebus_net::Error::Listen { source, .. } if source.kind() == io::ErrorKind::AddrInUse)
}
