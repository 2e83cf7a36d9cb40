//! The server's end of data inside SSH (`docs/protocol/gridftp.md`). Relays, which further logins of the same user have
//! started, bring data connections to a socket that accepts only this user's processes with the secret of this
//! session's ticket.

use crate::data::inside::{carry, next, say};
use phoebus_net::pair::{Ends, Pair};
use phoebus_net::transport::{Boxed, Listener, Pending, Target, Transport};
use phoebus_net::{Error, Profile, Stream};
use phoebus_proto::gridftp::inside::{DRIVER, Frame, Ticket};
use phoebus_proto::hex::hex;
use ring::rand::{SecureRandom, SystemRandom};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener as StdListener};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;

/// Longest wait for a relay's ticket, which follows the login by one round trip.
const SECRET_TIME_MAX: Duration = Duration::from_secs(60);

/// Most relays at a time: the most connections of a file.
const RELAYS: usize = 256;

/// Most connections that wait for a transfer on one port. More than any transfer has.
const WAITING: usize = 256;

/// Pause after a failed accept, for example without free descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// First and last virtual port. They are no ports of the network; the range excludes those of services all the same.
const PORTS: (u16, u16) = (1024, u16::MAX);

/// Accepts relays. Clones share their state.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hub(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    ticket: OnceLock<Ticket>,
    /// Address of the client, which all of its connections have.
    client: OnceLock<IpAddr>,
    ports: Mutex<Ports>,
}

#[derive(Debug, Default)]
struct Ports {
    last: u16,
    waiting: BTreeMap<u16, mpsc::Sender<Stream>>,
}

/// The socket name by which processes on this host find the server of a ticket.
///
/// # Errors
/// Never, for names that this module makes.
pub fn socket_of(name: &[u8; 16]) -> io::Result<UnixAddr> {
    UnixAddr::from_abstract_name(format!("phoebus-data-{}", hex(name)))
}

impl Hub {
    /// Records the address of the client.
    pub(super) fn set_client(&self, client: IpAddr) {
        // A session has one client.
        let _ = self.0.client.set(client);
    }

    /// Makes the ticket, and starts to accept relays with the first call. Needs a runtime.
    ///
    /// # Errors
    /// The system lacks random bytes, or a socket.
    pub(crate) fn ticket(&self) -> io::Result<Ticket> {
        if let Some(ticket) = self.0.ticket.get() {
            return Ok(*ticket);
        }
        let mut ticket = Ticket { name: [0; 16], secret: [0; 32] };
        let random = SystemRandom::new();
        let filled = random.fill(&mut ticket.name).and_then(|()| random.fill(&mut ticket.secret));
        filled.map_err(|_| io::Error::other("the system has no random bytes"))?;
        let listener = StdListener::bind_addr(&socket_of(&ticket.name)?)?;
        listener.set_nonblocking(true)?;
        let listener = UnixListener::from_std(listener)?;
        let ticket = *self.0.ticket.get_or_init(|| ticket);
        tokio::spawn(accept(Arc::downgrade(&self.0), listener, ticket));
        Ok(ticket)
    }
}

impl Shared {
    fn ports(&self) -> MutexGuard<'_, Ports> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn client(&self) -> SocketAddr {
        let client = self.client.get().copied().unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        SocketAddr::new(client, 0)
    }
}

/// Accepts relays while the hub exists.
async fn accept(shared: Weak<Shared>, listener: UnixListener, ticket: Ticket) {
    let places = Arc::new(Semaphore::new(RELAYS));
    while let Ok(place) = places.clone().acquire_owned().await {
        match listener.accept().await {
            Ok((io, _)) => {
                let shared = shared.clone();
                tokio::spawn(async move {
                    if let Err(error) = relay(&shared, io, &ticket).await {
                        tracing::debug!(%error, "a relay of data connections has ended");
                    }
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a relay of data connections could not be accepted");
                tokio::time::sleep(PAUSE).await;
            }
        }
        if shared.strong_count() == 0 {
            return;
        }
    }
}

/// Forwards the data connections of one relay, one after the other.
async fn relay(shared: &Weak<Shared>, mut io: UnixStream, ticket: &Ticket) -> io::Result<()> {
    // Any user of this host can connect to the socket.
    if io.peer_cred()?.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut secret = [0; 32];
    let shown = timeout(SECRET_TIME_MAX, io.read_exact(&mut secret));
    shown.await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    // Constant-time comparison.
    if secret.iter().zip(&ticket.secret).fold(0, |differ, (a, b)| differ | (a ^ b)) != 0 {
        say(&mut io, Frame::Refused).await?;
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    say(&mut io, Frame::Opened).await?;
    loop {
        let port = match next(&mut io).await {
            Ok(Frame::Open(port)) => port,
            Ok(_) => return Err(io::ErrorKind::InvalidData.into()),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        };
        let Some(shared) = shared.upgrade() else { return Ok(()) };
        let (pair, other) = Pair::in_process()?;
        let ends = Arc::new(Ends::default());
        let stream = pair.into_stream_with_ends((shared.client(), shared.client()), ends.clone());
        let waiting = shared.ports().waiting.get(&port).cloned();
        drop(shared);
        if waiting.is_some_and(|waiting| waiting.try_send(stream).is_ok()) {
            say(&mut io, Frame::Opened).await?;
            carry(&mut io, other, &ends).await?;
        } else {
            say(&mut io, Frame::Refused).await?;
        }
    }
}

impl Transport for Hub {
    fn name(&self) -> &'static str {
        DRIVER
    }

    fn connect<'a>(&'a self, to: &'a Target, _: &'a Profile, _: Duration) -> Boxed<'a, Result<Stream, Error>> {
        let why = "data inside SSH goes over connections that the client makes (PASV, EPSV)";
        let source = io::Error::new(io::ErrorKind::Unsupported, why);
        Box::pin(async move { Err(Error::Connect { to: to.addr, source }) })
    }

    fn listen(&self, addr: SocketAddr, _: &Profile) -> Result<Box<dyn Listener>, Error> {
        let (sender, arriving) = mpsc::channel(WAITING);
        let mut ports = self.0.ports();
        let range = usize::from(PORTS.1 - PORTS.0) + 1;
        let after = |port: u16| if (PORTS.0..PORTS.1).contains(&port) { port + 1 } else { PORTS.0 };
        let mut port = after(ports.last);
        for _ in 0..range {
            if !ports.waiting.contains_key(&port) {
                break;
            }
            port = after(port);
        }
        ports.last = port;
        ports.waiting.insert(port, sender);
        drop(ports);
        let addr = SocketAddr::new(addr.ip(), port);
        Ok(Box::new(RelayListener { shared: self.0.clone(), arriving: tokio::sync::Mutex::new(arriving), addr }))
    }
}

/// The listener of one transfer.
#[derive(Debug)]
struct RelayListener {
    shared: Arc<Shared>,
    arriving: tokio::sync::Mutex<mpsc::Receiver<Stream>>,
    addr: SocketAddr,
}

impl Drop for RelayListener {
    fn drop(&mut self) {
        self.shared.ports().waiting.remove(&self.addr.port());
    }
}

impl Listener for RelayListener {
    fn accept(&self) -> Boxed<'_, io::Result<(Box<dyn Pending>, SocketAddr)>> {
        Box::pin(async {
            // The sender stays registered while this listener exists.
            let stream = self.arriving.lock().await.recv().await.ok_or(io::ErrorKind::BrokenPipe)?;
            Ok((Box::new(Arrived(stream)) as Box<dyn Pending>, self.shared.client()))
        })
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.addr)
    }

    fn note(&self) -> Option<&str> {
        None
    }
}

#[derive(Debug)]
struct Arrived(Stream);

impl Pending for Arrived {
    fn handshake(self: Box<Self>) -> Boxed<'static, io::Result<Stream>> {
        Box::pin(async move { Ok(self.0) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    async fn connect(ticket: &Ticket) -> UnixStream {
        let stream = std::os::unix::net::UnixStream::connect_addr(&socket_of(&ticket.name).unwrap()).unwrap();
        stream.set_nonblocking(true).unwrap();
        UnixStream::from_std(stream).unwrap()
    }

    #[tokio::test]
    async fn relayed_connections_need_the_ticket() {
        let hub = Hub::default();
        hub.set_client("192.0.2.9".parse().unwrap());
        let ticket = hub.ticket().unwrap();
        assert_eq!(hub.ticket().unwrap(), ticket);
        let mut other = connect(&ticket).await;
        other.write_all(&[0; 32]).await.unwrap();
        assert_eq!(next(&mut other).await.unwrap(), Frame::Refused);
        assert!(next(&mut other).await.is_err(), "it is gone");
        let mut io = connect(&ticket).await;
        io.write_all(&ticket.secret).await.unwrap();
        assert_eq!(next(&mut io).await.unwrap(), Frame::Opened);
        // Nobody listens on this port.
        say(&mut io, Frame::Open(7)).await.unwrap();
        assert_eq!(next(&mut io).await.unwrap(), Frame::Refused);
        let listener = hub.listen("192.0.2.1:0".parse().unwrap(), &Profile::default()).unwrap();
        let another = hub.listen("192.0.2.1:0".parse().unwrap(), &Profile::default()).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_ne!(port, another.local_addr().unwrap().port());
        say(&mut io, Frame::Open(port)).await.unwrap();
        assert_eq!(next(&mut io).await.unwrap(), Frame::Opened);
        let (pending, from) = listener.accept().await.unwrap();
        assert_eq!(from.ip().to_string(), "192.0.2.9");
        let stream = pending.handshake().await.unwrap();
        stream.shutdown_write().unwrap();
        assert_eq!(next(&mut io).await.unwrap(), Frame::End);
        say(&mut io, Frame::End).await.unwrap();
        drop(listener);
        say(&mut io, Frame::Open(port)).await.unwrap();
        assert_eq!(next(&mut io).await.unwrap(), Frame::Refused);
    }
}
