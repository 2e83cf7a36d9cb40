//! Listening with TCP: the kernel hands all of the profile on to each accepted connection.

use super::connection::Connection;
use super::socket::{self, Note, Purpose};
use crate::error::Error;
use crate::profile::Profile;
use crate::stream::Stream;
use crate::sys;
use crate::transport::{self, Boxed, Pending};
use rustix::net::SocketFlags;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Connections that wait to be accepted; the kernel cuts it to `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// A socket that accepts connections under a profile.
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
    /// Leaves urgent bytes in the stream, where they were sent, in the place of taking them out of it (SO_OOBINLINE): for protocols of
    /// Telnet's, whose clients send part of a command as urgent (RFC 854, Synch).
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn keep_urgent_bytes(&self) -> io::Result<()> {
        socket2::SockRef::from(&self.io).set_out_of_band_inline(true)
    }

    /// The connection, on the runtime of the caller.
    ///
    /// # Errors
    /// When the runtime has no room for it.
    pub fn into_stream(self) -> io::Result<Stream> {
        Ok(Connection::new(tokio::net::TcpStream::from_std(self.io)?, self.note).into())
    }
}

impl transport::Listener for Listener {
    fn accept(&self) -> Boxed<'_, io::Result<(Box<dyn Pending>, SocketAddr)>> {
        Box::pin(async {
            let (accepted, from) = self.accept().await?;
            Ok((Box::new(accepted) as Box<dyn Pending>, from))
        })
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.local_addr()
    }

    fn note(&self) -> Option<&str> {
        self.note()
    }
}

impl Pending for Accepted {
    /// TCP has settled everything before the connection is accepted.
    fn handshake(self: Box<Self>) -> Boxed<'static, io::Result<Stream>> {
        Box::pin(async { self.into_stream() })
    }
}
