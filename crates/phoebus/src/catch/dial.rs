//! Connects a caller's socket to a gateway or agent, and takes that back.

use super::address;
use phoebus_net::{Error, watch};
use phoebus_proto::units::Span;
use phoebus_seccomp::socket::{self, State};
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
use tokio::time::{Instant, timeout};

/// Most addresses that are tried, as for sockets of Phoebus's own.
const ATTEMPTS_MAX: usize = 8;

/// The connected socket, watched for readiness.
pub(super) type Watched = AsyncFd<Arc<OwnedFd>>;

/// A caller's socket, until a session is open on it. Without one, it becomes again what it was.
#[derive(Debug)]
pub(super) struct Borrowed {
    socket: Arc<OwnedFd>,
    domain: AddressFamily,
    /// The congestion control that it had.
    congestion_control: Option<String>,
    /// Whether it was made to reach IPv4, too.
    is_widened: bool,
    is_kept: bool,
}

impl Borrowed {
    /// Borrows a socket of this family.
    pub(super) fn new(socket: Arc<OwnedFd>, domain: AddressFamily) -> Self {
        Self { socket, domain, congestion_control: None, is_widened: false, is_kept: false }
    }

    pub(super) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Connects it to one of `addresses`, all within `limit`. Each has an equal share of the time that is left.
    ///
    /// # Errors
    /// That of the last address that was tried.
    pub(super) async fn dial(
        &mut self,
        addresses: &[SocketAddr],
        limit: Duration,
    ) -> Result<(Watched, SocketAddr), Error> {
        let deadline = Instant::now() + limit;
        let is_six = self.domain == AddressFamily::INET6;
        // Those of the socket's own family first. Only a socket of IPv6 reaches others.
        let (own, others): (Vec<_>, Vec<_>) = addresses.iter().copied().partition(|to| to.is_ipv6() == is_six);
        let reached: Vec<_> = own.iter().chain(others.iter().filter(|_| is_six)).copied().take(ATTEMPTS_MAX).collect();
        let nowhere = SocketAddr::from(([0; 4], 0));
        let mut error = match others.first() {
            Some(to) => Error::Connect { to: *to, source: Errno::AFNOSUPPORT.into() },
            None => Error::Connect { to: nowhere, source: io::ErrorKind::AddrNotAvailable.into() },
        };
        for (tried, to) in reached.iter().copied().enumerate() {
            let share = deadline.saturating_duration_since(Instant::now()) / (reached.len() - tried) as u32;
            let connected = match self.fit(to) {
                Ok(()) => timeout(share, connect(&self.socket, &address::bytes(to, self.domain))).await,
                Err(errno) => Ok(Err(errno)),
            };
            error = match connected {
                Ok(Ok(watched)) => return Ok((watched, to)),
                Ok(Err(errno)) => Error::Connect { to, source: errno.into() },
                Err(_) => Error::Timeout { to: to.to_string(), limit: Span(limit) },
            };
            self.disconnect();
        }
        Err(error)
    }

    /// Prepares it for an address of this family: an IPv6 socket is made to reach IPv4.
    fn fit(&mut self, to: SocketAddr) -> Result<(), Errno> {
        // The SYN would wait for bytes of the program, whose connect has to wait for the session.
        socket::connect_at_once(&self.socket)?;
        match (self.domain == AddressFamily::INET6, to) {
            (true, SocketAddr::V4(_)) if ipv6_v6only(&self.socket)? => {
                set_ipv6_v6only(&self.socket, false)?;
                self.is_widened = true;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Asks for a congestion control, unless the program seems to have chosen one. Returns a note if it is not in force.
    pub(super) fn tune(&mut self, wanted: Option<&str>) -> String {
        let has = tcp_congestion(&self.socket).unwrap_or_default();
        let usual = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_default();
        let Some(wanted) = wanted.filter(|wanted| *wanted != has && has == usual.trim()) else {
            return String::new();
        };
        match set_tcp_congestion(&self.socket, wanted) {
            Ok(()) => {
                self.congestion_control.get_or_insert(has);
                String::new()
            }
            Err(_) => format!("asked for {wanted}, in force is {has}"),
        }
    }

    /// Makes it unconnected, without an error that the program would find (SO_ERROR).
    fn disconnect(&self) {
        let _ = connect_unspec(&self.socket);
        let _ = socket_error(&self.socket);
    }

    /// Leaves it as it is, with its session.
    pub(super) fn keep(mut self) {
        self.is_kept = true;
    }

    /// Makes it unconnected, and as it was before.
    pub(super) fn take_back(&mut self) {
        self.disconnect();
        if let Some(had) = self.congestion_control.take() {
            let _ = set_tcp_congestion(&self.socket, &had);
        }
        if std::mem::take(&mut self.is_widened) {
            let _ = set_ipv6_v6only(&self.socket, true);
        }
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        if !self.is_kept {
            self.take_back();
        }
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
    if socket::state(socket)? == State::Closed {
        return Err(Errno::CONNABORTED);
    }
    Ok(watched)
}
