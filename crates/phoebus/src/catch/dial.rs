//! Connects a caller's socket to a gateway or agent, and takes that back.

use super::address;
use phoebus_net::{Error, tcp, watch};
use phoebus_proto::units::Span;
use phoebus_seccomp::socket;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::sockopt::{ipv6_v6only, set_ipv6_v6only, set_tcp_congestion, socket_error, tcp_congestion};
use rustix::net::{AddressFamily, connect_unspec};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::timeout;

/// The connected socket, watched for readiness.
pub(super) type Watched = AsyncFd<Arc<OwnedFd>>;

/// What was changed on a socket for the way to a gateway.
#[derive(Debug, Default)]
pub(super) struct Changes {
    congestion_control: Option<String>,
    is_widened: bool,
}

/// Connects the socket to one of `addresses`, each within `limit`.
///
/// # Errors
/// That of the last address.
pub(super) async fn dial(
    socket: &Arc<OwnedFd>,
    domain: AddressFamily,
    addresses: &[SocketAddr],
    changes: &mut Changes,
    limit: Duration,
) -> Result<(Watched, SocketAddr), Error> {
    let mut last = None;
    // Those of the socket's own family first.
    let is_other = |address: &&SocketAddr| address.is_ipv6() != (domain == AddressFamily::INET6);
    let (others, own): (Vec<_>, Vec<_>) = addresses.iter().partition(is_other);
    for to in own.into_iter().chain(others).copied() {
        let connected = match fit(socket, domain, to, changes) {
            Ok(()) => timeout(limit, connect(socket, &address::bytes(to, domain))).await,
            Err(errno) => Ok(Err(errno)),
        };
        last = Some(match connected {
            Ok(Ok(watched)) => return Ok((watched, to)),
            Ok(Err(errno)) => Error::Connect { to, source: errno.into() },
            Err(_) => Error::Timeout { to: to.to_string(), limit: Span(limit) },
        });
        let _ = connect_unspec(socket);
    }
    let nowhere = SocketAddr::from(([0; 4], 0));
    Err(last.unwrap_or_else(|| Error::Connect { to: nowhere, source: io::ErrorKind::AddrNotAvailable.into() }))
}

/// Whether the socket reaches addresses of this family; an IPv6 socket is made to reach IPv4.
fn fit(socket: &OwnedFd, domain: AddressFamily, to: SocketAddr, changes: &mut Changes) -> Result<(), Errno> {
    match (domain == AddressFamily::INET6, to) {
        (false, SocketAddr::V6(_)) => Err(Errno::AFNOSUPPORT),
        (true, SocketAddr::V4(_)) if ipv6_v6only(socket)? => {
            set_ipv6_v6only(socket, false)?;
            changes.is_widened = true;
            Ok(())
        }
        _ => Ok(()),
    }
}

async fn connect(socket: &Arc<OwnedFd>, address: &[u8]) -> Result<Watched, Errno> {
    match socket::begin(socket, address) {
        Ok(()) | Err(Errno::INPROGRESS) => {}
        Err(errno) => return Err(errno),
    }
    let errno = |error: io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    // Watched only now: an unconnected socket counts as writable.
    let watched = watch(socket.clone(), Interest::READABLE | Interest::WRITABLE).map_err(errno)?;
    watched.writable().await.map_err(errno)?.retain_ready();
    socket_error(socket)??;
    // Another thread may have consumed the error.
    if tcp::stats(socket).map_err(errno)?.closed {
        return Err(Errno::CONNABORTED);
    }
    Ok(watched)
}

/// Asks for a congestion control, unless the program seems to have chosen one. Returns a note if it is not in force.
pub(super) fn tune(socket: &OwnedFd, wanted: Option<&str>, changes: &mut Changes) -> String {
    let has = tcp_congestion(socket).unwrap_or_default();
    let usual = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_default();
    let Some(wanted) = wanted.filter(|wanted| *wanted != has && has == usual.trim()) else { return String::new() };
    match set_tcp_congestion(socket, wanted) {
        Ok(()) => {
            changes.congestion_control.get_or_insert(has);
            String::new()
        }
        Err(_) => format!("asked for {wanted}, in force is {has}"),
    }
}

/// Makes the socket as it was before, and unconnected.
pub(super) fn take_back(socket: &OwnedFd, changes: &Changes) {
    let _ = connect_unspec(socket);
    if let Some(had) = &changes.congestion_control {
        let _ = set_tcp_congestion(socket, had);
    }
    if changes.is_widened {
        let _ = set_ipv6_v6only(socket, true);
    }
}
