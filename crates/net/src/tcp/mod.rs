//! TCP (S13, S14, S18, P17, P37, RFC 9293, RFC 7413, RFC 8684).
//!
//! - [`Tcp`] is the transport; [`connect`], [`connect_with_data`] and [`listen`] are for callers that need TCP in particular.
//! - [`Plain`] is a connection of an application, without a runtime.
//! - `socket` applies a profile to a socket, `connection` operates an open one, `info` reads the kernel's statistics,
//!   `unsent` keeps its queue short at low rates.

mod connection;
mod info;
mod listener;
mod plain;
mod socket;
mod unsent;

pub use info::stats;
pub use listener::{Accepted, Listener, listen};
pub use plain::Plain;
pub use socket::has_congestion_control;

use crate::congestion_control::CongestionControl;
use crate::error::Error;
use crate::profile::Profile;
use crate::stream::Stream;
use crate::sys;
use crate::transport::{self, Boxed, Target, Transport};
use connection::Connection;
use phoebus_proto::units::Span;
use socket::Purpose;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::time::Duration;
use tokio::net::TcpSocket;

/// The TCP transport.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tcp;

impl Transport for Tcp {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn connect<'a>(
        &'a self,
        to: &'a Target,
        profile: &'a Profile,
        limit: Duration,
    ) -> Boxed<'a, Result<Stream, Error>> {
        let purpose = if to.early { Purpose::ConnectWithData } else { Purpose::Connect };
        Box::pin(start(to.addr, profile, limit, purpose))
    }

    fn listen(&self, addr: SocketAddr, profile: &Profile) -> Result<Box<dyn transport::Listener>, Error> {
        Ok(Box::new(listen(addr, profile)?))
    }
}

/// TCP from the address of another host (IP_TRANSPARENT, IPV6_TRANSPARENT), with a port of the kernel's choice. It needs
/// CAP_NET_RAW or CAP_NET_ADMIN, and answers reach this host only if it is on their way.
#[derive(Debug, Clone, Copy)]
pub struct TcpFrom(pub IpAddr);

impl Transport for TcpFrom {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn connect<'a>(
        &'a self,
        to: &'a Target,
        profile: &'a Profile,
        limit: Duration,
    ) -> Boxed<'a, Result<Stream, Error>> {
        Box::pin(start_from(Some(self.0), to.addr, profile, limit, Purpose::Connect))
    }

    fn listen(&self, addr: SocketAddr, profile: &Profile) -> Result<Box<dyn transport::Listener>, Error> {
        Tcp.listen(addr, profile)
    }
}

/// Whether this process may connect from addresses of other hosts.
///
/// # Errors
/// It may not; `PermissionDenied` without CAP_NET_RAW and CAP_NET_ADMIN.
pub fn may_use_other_addresses() -> io::Result<()> {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
    sys::use_other_addresses(socket.as_fd(), false)
}

/// Whether this process may use the congestion control (`net.ipv4.tcp_allowed_congestion_control`, and the
/// kernel's modules).
pub fn may_use(control: CongestionControl) -> bool {
    socket::may_use(control)
}

/// Connects to `to` within `limit`.
///
/// # Errors
/// [`Error::Connect`] and [`Error::Timeout`].
pub async fn connect(to: SocketAddr, profile: &Profile, limit: Duration) -> Result<Stream, Error> {
    start(to, profile, limit, Purpose::Connect).await
}

/// As [`connect`], but with fast open if the profile enables it and a cookie is cached. Then it returns at
/// once, the first write travels in the SYN, and a refusal appears when the answer is read. Only for a
/// protocol whose first bytes may arrive twice.
///
/// # Errors
/// [`Error::Connect`] and [`Error::Timeout`].
pub async fn connect_with_data(to: SocketAddr, profile: &Profile, limit: Duration) -> Result<Stream, Error> {
    start(to, profile, limit, Purpose::ConnectWithData).await
}

async fn start(to: SocketAddr, profile: &Profile, limit: Duration, purpose: Purpose) -> Result<Stream, Error> {
    start_from(None, to, profile, limit, purpose).await
}

async fn start_from(
    source: Option<IpAddr>,
    to: SocketAddr,
    profile: &Profile,
    limit: Duration,
    purpose: Purpose,
) -> Result<Stream, Error> {
    let failed = |source| Error::Connect { to, source };
    let (socket, note) = socket::open(to, profile, purpose).map_err(failed)?;
    if let Some(source) = source {
        sys::use_other_addresses(socket.as_fd(), source.is_ipv6()).map_err(failed)?;
        socket.bind(&SocketAddr::new(source, 0).into()).map_err(failed)?;
    }
    let socket = TcpSocket::from_std_stream(socket.into());
    match tokio::time::timeout(limit, socket.connect(to)).await {
        Ok(Ok(io)) => Ok(Connection::new(io, note).into()),
        Ok(Err(source)) => Err(failed(source)),
        Err(_) => Err(Error::Timeout { to: to.to_string(), limit: Span(limit) }),
    }
}
