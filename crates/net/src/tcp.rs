//! Listening and connecting with TCP under a profile (S18, P17, RFC 7413, RFC 8684).

use crate::error::Error;
use crate::profile::Profile;
use crate::socket::{self, Note, Purpose};
use crate::stream::Stream;
use crate::sys;
use phoebus_proto::units::Span;
use rustix::net::SocketFlags;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::TcpSocket;

/// Connections that wait to be accepted; the kernel cuts it to `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// A socket that accepts connections under a profile: the kernel hands all of the profile on to each of them.
#[derive(Debug)]
pub struct Listener {
    io: AsyncFd<TcpListener>,
    note: Note,
}

/// A connection that was accepted and belongs to no runtime yet. Dropped, it is reset.
#[derive(Debug)]
pub struct Accepted {
    io: TcpStream,
    note: Note,
}

/// Listens on `addr`.
///
/// # Errors
/// [`Error::Listen`], naming the address.
pub fn listen(addr: SocketAddr, profile: &Profile) -> Result<Listener, Error> {
    let failed = |source| Error::Listen { addr, source };
    let (socket, note) = socket::open(addr, profile, Purpose::Listen).map_err(failed)?;
    // A restarted gateway must not wait for its old connections' TIME-WAIT.
    socket.set_reuse_address(true).map_err(failed)?;
    if addr.is_ipv6() {
        // An IPv4 listener is configured as such, so that rules about addresses mean what they say.
        socket.set_only_v6(true).map_err(failed)?;
    }
    socket.bind(&addr.into()).map_err(failed)?;
    socket.listen(BACKLOG).map_err(failed)?;
    let io = sys::watched(socket.into()).map_err(failed)?;
    Ok(Listener { io, note })
}

impl Listener {
    /// The next connection; cancel safe. Nothing is read from it here, so that a slow peer holds up nobody.
    ///
    /// # Errors
    /// What `accept(2)` gives: a lack of descriptors, say. The listener stays usable.
    pub async fn accept(&self) -> io::Result<(Accepted, SocketAddr)> {
        const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);
        let accept = |io: &TcpListener| Ok(rustix::net::acceptfrom_with(io, FLAGS)?);
        let (io, from) = self.io.async_io(Interest::READABLE, accept).await?;
        let from = from.and_then(|from| from.try_into().ok());
        let from = from.ok_or_else(|| io::Error::from(io::ErrorKind::ConnectionAborted))?;
        Ok((Accepted { io: io.into(), note: self.note.clone() }, from))
    }

    /// The address that is listened on, with the port that the kernel chose for 0.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.io.get_ref().local_addr()
    }

    /// What the profile asked for and the kernel did not grant, as a sentence.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }
}

impl Accepted {
    /// The connection, on the runtime of the caller.
    ///
    /// # Errors
    /// When the runtime has no room for it.
    pub fn into_stream(self) -> io::Result<Stream> {
        Ok(Stream::new(tokio::net::TcpStream::from_std(self.io)?, self.note))
    }
}

/// Connects to `to` within `limit`.
///
/// # Errors
/// [`Error::Connect`] and [`Error::Timeout`].
pub async fn connect(to: SocketAddr, profile: &Profile, limit: Duration) -> Result<Stream, Error> {
    start(to, profile, limit, Purpose::Connect).await
}

/// As [`connect`], but with fast open where the profile has it and a cookie is cached: then this returns at once, the
/// first write goes into the SYN, and a refusal shows when the answer is read. Only for a protocol whose first bytes may
/// arrive twice.
///
/// # Errors
/// [`Error::Connect`] and [`Error::Timeout`].
pub async fn connect_with_data(to: SocketAddr, profile: &Profile, limit: Duration) -> Result<Stream, Error> {
    start(to, profile, limit, Purpose::ConnectWithData).await
}

async fn start(to: SocketAddr, profile: &Profile, limit: Duration, purpose: Purpose) -> Result<Stream, Error> {
    let failed = |source| Error::Connect { to, source };
    let (socket, note) = socket::open(to, profile, purpose).map_err(failed)?;
    let socket = TcpSocket::from_std_stream(socket.into());
    match tokio::time::timeout(limit, socket.connect(to)).await {
        Ok(Ok(io)) => Ok(Stream::new(io, note)),
        Ok(Err(source)) => Err(failed(source)),
        Err(_) => Err(Error::Timeout { to: to.to_string(), limit: Span(limit) }),
    }
}
