//! Listening with TCP. Accepted connections inherit the whole profile from the listening socket.

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

/// Length of the accept queue; the kernel limits it to `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// A listening socket with a profile.
#[derive(Debug)]
pub struct Listener {
    io: AsyncFd<TcpListener>,
    note: Note,
}

/// An accepted connection that is not yet registered with a runtime. Dropping it resets it.
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
        // IPv4 needs a listener of its own in the configuration, so that address rules never see IPv4-mapped
        // addresses.
        socket.set_only_v6(true).map_err(failed)?;
    }
    socket.bind(&addr.into()).map_err(failed)?;
    socket.listen(BACKLOG).map_err(failed)?;
    let io = sys::watch_listener(socket.into()).map_err(failed)?;
    Ok(Listener { io, note })
}

impl Listener {
    /// Waits for the next connection. Cancel safe. It reads nothing, so a slow peer delays nobody.
    ///
    /// # Errors
    /// The errors of `accept(2)`: a lack of descriptors, for example. The listener stays usable.
    pub async fn accept(&self) -> io::Result<(Accepted, SocketAddr)> {
        const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);
        let accept = |io: &TcpListener| Ok(rustix::net::acceptfrom_with(io, FLAGS)?);
        let (io, from) = self.io.async_io(Interest::READABLE, accept).await?;
        let from = from.and_then(|from| from.try_into().ok());
        let from = from.ok_or_else(|| io::Error::from(io::ErrorKind::ConnectionAborted))?;
        Ok((Accepted { io: io.into(), note: self.note.clone() }, from))
    }

    /// The address that the socket listens on, with the port that the kernel chose for port 0.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.io.get_ref().local_addr()
    }

    /// Which settings of the profile are not in force, as a sentence.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }
}

impl Accepted {
    /// Keeps urgent bytes in the stream at their place (SO_OOBINLINE) instead of separating them: for
    /// Telnet-like protocols, whose clients send part of a command as urgent data (RFC 854, Synch).
    ///
    /// # Errors
    /// When the kernel refuses the option.
    pub fn keep_urgent_bytes(&self) -> io::Result<()> {
        socket2::SockRef::from(&self.io).set_out_of_band_inline(true)
    }

    /// Registers the connection with the caller's runtime.
    ///
    /// # Errors
    /// When the runtime cannot register it.
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
    /// TCP's handshake completes before `accept` returns the connection.
    fn handshake(self: Box<Self>) -> Boxed<'static, io::Result<Stream>> {
        Box::pin(async { self.into_stream() })
    }
}
