//! Who connects to whom, and which connections are kept.

use super::connection::Connection;
use super::error::Error;
use super::guard::{Guard, Protection};
use super::settings::{Losses, Settings};
use phoebus_net::tcp::Tcp;
use phoebus_net::transport::{Listener, Target, Transport};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tokio::task::JoinSet;

/// A set of data connections to the same other end, which outlives transfers: in extended block mode connections are kept,
/// and the next transfer uses them (GFD.20, section 3.4). Clones are the same.
#[derive(Debug, Clone)]
pub struct Channel(pub(super) Arc<Inner>);

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) settings: Settings,
    pub(super) way: Way,
    kept: Mutex<Vec<Connection>>,
    losses: OnceLock<Arc<Losses>>,
}

/// How connections come about.
#[derive(Debug)]
pub(super) enum Way {
    Connect(Vec<SocketAddr>),
    Listen { listener: Box<dyn Listener>, addr: SocketAddr },
}

impl Channel {
    /// One that connects to `to`, which are the stripes of the other end (U3), when a transfer begins.
    pub fn connecting(to: Vec<SocketAddr>, settings: Settings) -> Self {
        Self::new(settings, Way::Connect(to))
    }

    /// One that listens at `ip` from now on. Called within the runtime that is to watch the socket.
    ///
    /// # Errors
    /// [`Error::Net`] and [`Error::Ports`].
    pub fn listening(ip: IpAddr, settings: Settings) -> Result<Self, Error> {
        let listen = |port| settings.transport.listen(SocketAddr::new(ip, port), &settings.profile);
        let listener = match settings.ports.clone() {
            None => listen(0)?,
            Some(ports) => {
                // Beginning where the last one left off would be guessed; where the kernel happens to is not.
                let (first, last) = (*ports.start(), *ports.end());
                let count = u32::from(last.saturating_sub(first)) + 1;
                let begin = listen(0)?.local_addr()?.port();
                let port = |i: u32| first + ((u32::from(begin) + i) % count) as u16;
                let taken = |error: &phoebus_net::Error| matches!(error, phoebus_net::Error::Listen { source, .. } if source.kind() == io::ErrorKind::AddrInUse);
                let mut tries = (0..count).map(port).map(listen).skip_while(|tried| tried.as_ref().is_err_and(taken));
                tries.next().ok_or(Error::Ports(first, last))??
            }
        };
        let addr = listener.local_addr()?;
        Ok(Self::new(settings, Way::Listen { listener, addr }))
    }

    fn new(settings: Settings, way: Way) -> Self {
        Self(Arc::new(Inner { settings, way, kept: Mutex::default(), losses: OnceLock::new() }))
    }

    /// The same, which counts what becomes of what it sends.
    #[must_use]
    pub fn counting(self, losses: Arc<Losses>) -> Self {
        // Whoever was told first is.
        let _ = self.0.losses.set(losses);
        self
    }

    /// To how many addresses it connects.
    pub fn ends(&self) -> usize {
        match &self.0.way {
            Way::Connect(to) => to.len(),
            Way::Listen { .. } => 0,
        }
    }

    /// Where it listens, if it does.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        match &self.0.way {
            Way::Connect(_) => None,
            Way::Listen { addr, .. } => Some(*addr),
        }
    }

    /// Whether its connections carry bytes as they are, so that files are best sent by the kernel
    /// ([`Shape::lend`](phoebus_files::store::Shape::lend)).
    pub fn is_plain(&self) -> bool {
        let Settings { transport, guard, .. } = &self.0.settings;
        let clear = matches!(guard, None | Some(Guard::Gsi { protection: Protection::Clear, .. }));
        clear && transport.name() == Tcp.name()
    }

    /// Whether a stream's end looks the same where its sender was killed: the kernel ends TCP connections of a killed process as if it
    /// had closed them, and only TLS and the like say that it was the end. Records of GSI do not.
    pub fn ends_as_if_cut(&self) -> bool {
        let Settings { transport, guard, .. } = &self.0.settings;
        transport.name() == Tcp.name() && matches!(guard, None | Some(Guard::Gsi { .. }))
    }

    /// How many connections are kept for the next transfer.
    pub fn kept(&self) -> usize {
        self.0.kept().len()
    }
}

/// What was kept carries nothing: all of every transfer on it has been sent, its end as well. So it ends in peace.
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

    /// All connections that were kept.
    pub(super) fn take_kept(&self) -> Vec<Connection> {
        std::mem::take(&mut *self.kept())
    }

    /// So many connections to every address, those that were kept among them.
    pub(super) async fn all(self: &Arc<Self>, streams: u32) -> Result<Vec<Connection>, Error> {
        let Way::Connect(to) = &self.way else {
            return Err(Error::Direction("PORT, EPRT or SPOR has to say where to"));
        };
        let mut connections = self.take_kept();
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
        let Settings { transport, profile, patience, .. } = &self.settings;
        let stream = transport.connect(&target, profile, *patience).await?;
        Connection::up(stream, index, self.settings.guard.as_ref(), true, *patience).await
    }

    pub(super) fn is_listening(&self) -> bool {
        matches!(self.way, Way::Listen { .. })
    }
}
