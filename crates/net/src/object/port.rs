//! The socket of a transfer, and waiting for it.

use crate::datagram::{Inbox, Route, Sent, Socket};
use crate::stream::DatagramRoute;
use crate::sys::{self, TooLong};
use phoebus_proto::session::datagrams::{PREFIX_LEN, Towards};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

/// The origin of all times: transfers that share a control count from the same one.
static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// A UDP socket for one transfer after the other. Clones are the same socket.
#[derive(Debug, Clone)]
pub struct Port(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    socket: Socket,
    /// An eventfd that wakes the thread.
    wake_fd: OwnedFd,
    /// What the kernel had dropped when the transfer began.
    dropped_before: AtomicU32,
    /// The gateway that relays all datagrams.
    route: Option<DatagramRoute>,
}

/// What a thread waits for, and got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Woken {
    /// Datagrams may have arrived.
    pub(super) may_receive: bool,
}

impl Port {
    /// Binds a socket to `addr`. Until a transfer begins, the kernel holds few datagrams for it.
    ///
    /// # Errors
    /// The system's, such as an address in use.
    pub fn bind(addr: SocketAddr) -> io::Result<Self> {
        Self::bind_towards(addr, None)
    }

    /// The same for datagrams that gateways relay, if `route` says so.
    ///
    /// # Errors
    /// As for [`Self::bind`].
    pub fn bind_towards(addr: SocketAddr, route: Option<DatagramRoute>) -> io::Result<Self> {
        let socket = Socket::bind(addr, TooLong::SentWhole)?;
        socket.hold_few()?;
        let wake_fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new(Inner { socket, wake_fd, dropped_before: AtomicU32::new(0), route })))
    }

    /// The address that it is bound to.
    pub fn local_addr(&self) -> SocketAddr {
        self.0.socket.local_addr()
    }

    /// Which buffers the kernel did not grant in full, as a sentence.
    pub fn note(&self) -> Option<&str> {
        self.0.socket.note().map(|note| &**note)
    }

    /// Prepares for a transfer.
    pub(super) fn begin(&self) -> io::Result<()> {
        self.0.dropped_before.store(self.0.socket.drops(), Ordering::Relaxed);
        self.0.socket.hold_many()
    }

    /// Waits for the next transfer.
    pub(super) fn end(&self) {
        // At worst, the kernel goes on holding many.
        let _ = self.0.socket.hold_few();
    }

    /// Datagrams that the kernel has dropped since the transfer began, for want of room in the socket's buffer.
    pub(super) fn drops(&self) -> u64 {
        self.0.socket.drops().wrapping_sub(self.0.dropped_before.load(Ordering::Relaxed)).into()
    }

    /// For how long datagrams may gather in the socket's buffer, `longest` at most: while a fast link fills a small part of it.
    /// Zero if the kernel's timers are too coarse for that.
    pub(super) fn receive_pause(&self, longest: Duration) -> Duration {
        const FAST: f64 = 10e9 / 8.0;
        const PART: f64 = 0.25;
        /// The kernel's timer slack.
        const SHORTEST: Duration = Duration::from_micros(50);
        let time = Duration::from_secs_f64(self.0.socket.receive_buffer() as f64 * PART / FAST);
        if time < SHORTEST { Duration::ZERO } else { time.min(longest) }
    }

    /// Bytes of datagrams that the socket holds during a transfer while nobody reads them, at least. The kernel counts what it
    /// keeps for each datagram, too, and with some network cards that makes four times its bytes.
    pub fn socket_room(&self) -> u64 {
        self.0.socket.receive_buffer() as u64 / 2
    }

    pub(super) fn now(&self) -> Duration {
        ORIGIN.elapsed()
    }

    /// Wakes the thread.
    pub(super) fn wake(&self) {
        // The counter cannot overflow: the thread resets it whenever it is not zero.
        let _ = rustix::io::write(&self.0.wake_fd, &1u64.to_ne_bytes());
    }

    /// Whether a gateway relays all datagrams.
    pub(super) fn is_relayed(&self) -> bool {
        self.0.route.is_some()
    }

    /// Bytes that go before each datagram on its way to a gateway.
    pub fn prefix_len(&self) -> usize {
        if self.0.route.is_some() { PREFIX_LEN } else { 0 }
    }

    /// Number of bytes that one call may send in datagrams of up to `len` bytes.
    pub(super) fn batch_len(&self, len: usize) -> usize {
        let prefix = self.prefix_len();
        (self.0.socket.batch_len(len + prefix) / (len + prefix)).max(1) * len
    }

    /// Sends `bytes` as datagrams of `segment` bytes.
    pub(super) fn send(&self, to: SocketAddr, bytes: &[u8], segment: usize) -> Sent {
        let route = Route { to, from: None };
        let Some(DatagramRoute { grant, .. }) = &self.0.route else {
            return self.0.socket.send(route, bytes, segment);
        };
        let mut prefixed = Vec::with_capacity(bytes.len() + bytes.len().div_ceil(segment) * PREFIX_LEN);
        for datagram in bytes.chunks(segment) {
            prefixed.extend_from_slice(&grant.prefix(Towards::Destination, datagram));
            prefixed.extend_from_slice(datagram);
        }
        self.0.socket.send(route, &prefixed, segment + PREFIX_LEN)
    }

    /// Receives with one call, and passes each datagram and its sender on. Returns whether more may have arrived.
    pub(super) fn receive(&self, inbox: &mut Inbox, mut each: impl FnMut(&mut [u8], SocketAddr)) -> bool {
        inbox.receive(&self.0.socket, |datagram, meta| match &self.0.route {
            None => each(datagram, meta.addr),
            // The gateway drops what others send it.
            Some(DatagramRoute { grant, .. }) if grant.open(Towards::Client, datagram).is_some() => {
                each(&mut datagram[PREFIX_LEN..], meta.addr);
            }
            Some(_) => {}
        })
    }

    /// Waits for a datagram, for [`Self::wake`], for room if `full`, or until `until`.
    pub(super) fn wait(&self, until: Option<Duration>, full: bool) -> Woken {
        let left = until.map(|until| until.saturating_sub(self.now()));
        let left = left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
        let room = if full { PollFlags::OUT } else { PollFlags::empty() };
        let mut fds = [PollFd::new(&self.0.socket, PollFlags::IN | room), PollFd::new(&self.0.wake_fd, PollFlags::IN)];
        // After an interruption, the next round checks everything anyway.
        let _ = poll(&mut fds, left.as_ref());
        let [socket, wake_fd] = fds.map(|fd| fd.revents());
        if !wake_fd.is_empty() {
            let _ = rustix::io::read(&self.0.wake_fd, &mut [0; 8]);
        }
        if socket.contains(PollFlags::ERR) {
            self.0.socket.clear_error();
        }
        Woken { may_receive: !socket.is_empty() }
    }
}

/// The largest packet that the path to `to` carries as far as the kernel knows, in bytes with IP's header. `None` if there
/// is no route.
pub fn path_mtu(to: SocketAddr) -> Option<u32> {
    sys::path_mtu(to)
}
