//! A UDP socket that sends and receives batches through quinn-udp (UDP_SEGMENT, UDP_GRO), with large buffers, and
//! that filters errors that do not concern a connection.

mod inbox;

pub(crate) use inbox::{Inbox, RECEIVED_MAX};

use crate::sys::{self, TooLong};
use quinn_udp::{RecvMeta, UdpSockRef, UdpSocketState};
use socket2::{Domain, Protocol, SockRef, Type};
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// Requested receive buffer, in bytes: 40 ms at 1.6 Gbit/s until the driver reads.
const RECEIVE_BUFFER: usize = 8 << 20;
/// The same for a process that may exceed the system's limit: a busy machine keeps a thread waiting longer,
/// and a full buffer loses a whole coalesced batch at a time.
const RECEIVE_BUFFER_PRIVILEGED: i32 = 64 << 20;
/// The same for a socket to which nobody is expected to send.
const RECEIVE_BUFFER_IDLE: usize = 64 << 10;
/// Requested send buffer, in bytes, for the time until the link takes the packets.
const SEND_BUFFER: usize = 4 << 20;

/// A UDP socket.
#[derive(Debug)]
pub(crate) struct Socket {
    io: UdpSocket,
    state: UdpSocketState,
    local: SocketAddr,
    too_long: TooLong,
    /// Bytes that the kernel holds for this process, as far as they fit into its own bookkeeping.
    receive_buffer: usize,
    note: Option<Arc<str>>,
}

/// Destination and source of a batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Route {
    pub(crate) to: SocketAddr,
    /// The source address, where the socket has several.
    pub(crate) from: Option<IpAddr>,
}

/// The outcome of sending a batch.
#[derive(Debug)]
pub(crate) enum Sent {
    /// The batch was sent, or dropped as a full network would.
    Gone,
    /// The socket has no room: send again when it is writable.
    Full,
    /// The kernel refuses the batch.
    Refused(io::Error),
}

impl Socket {
    /// Binds a socket, whose long packets are treated like that.
    pub(crate) fn bind(addr: SocketAddr, too_long: TooLong) -> io::Result<Self> {
        let socket = socket2::Socket::new(Domain::for_address(addr), Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
        if addr.is_ipv6() {
            // IPv4 needs a listener of its own in the configuration, as with TCP.
            socket.set_only_v6(true)?;
        }
        enlarge(&socket)?;
        socket.set_send_buffer_size(SEND_BUFFER)?;
        let granted = socket.recv_buffer_size()? / 2;
        let note = (granted < RECEIVE_BUFFER).then(|| {
            format!(
                "asked for a receive buffer of {RECEIVE_BUFFER} bytes for UDP, got {granted}, and may lose packets at \
                 high rates; to change it: sysctl -w net.core.rmem_max={RECEIVE_BUFFER}"
            )
            .into()
        });
        socket.bind(&addr.into())?;
        let io = UdpSocket::from(socket);
        let state = UdpSocketState::new(UdpSockRef::from(&io))?;
        sys::treat_too_long(io.as_fd(), addr.is_ipv6(), too_long)?;
        Ok(Self { local: io.local_addr()?, io, state, too_long, receive_buffer: granted, note })
    }

    /// Lets the kernel hold few datagrams, since nobody is expected to send any. [`Self::hold_many`] ends that.
    pub(crate) fn hold_few(&self) -> io::Result<()> {
        SockRef::from(&self.io).set_recv_buffer_size(RECEIVE_BUFFER_IDLE)
    }

    /// Lets the kernel hold so many bytes of datagrams, within its own limit.
    pub(crate) fn hold(&self, bytes: usize) -> io::Result<()> {
        SockRef::from(&self.io).set_recv_buffer_size(bytes)
    }

    /// Lets the kernel hold as many datagrams as after [`Self::bind`].
    pub(crate) fn hold_many(&self) -> io::Result<()> {
        enlarge(&SockRef::from(&self.io))
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Size of the kernel's receive buffer, in bytes.
    pub(crate) fn receive_buffer(&self) -> usize {
        self.receive_buffer
    }

    /// Datagrams that the kernel has dropped for want of room in the receive buffer, modulo 2³². 0 if it does not say.
    pub(crate) fn drops(&self) -> u32 {
        sys::dropped_datagrams(self.io.as_fd()).unwrap_or(0)
    }

    /// Which buffers the kernel did not grant in full, as a sentence.
    pub(crate) fn note(&self) -> Option<&Arc<str>> {
        self.note.as_ref()
    }

    /// Number of bytes that one call may send in packets of up to `packet` bytes.
    pub(crate) fn batch_len(&self, packet: usize) -> usize {
        // Payload of the largest IPv4 packet, in bytes.
        const LONGEST: usize = 65_507;
        if self.state.max_gso_segments() > 1 { LONGEST } else { packet }
    }

    pub(crate) fn send(&self, route: Route, bytes: &[u8], segment: usize) -> Sent {
        let whole = quinn_udp::Transmit {
            destination: route.to,
            ecn: None,
            contents: bytes,
            segment_size: (segment < bytes.len()).then_some(segment),
            src_ip: route.from,
        };
        if whole.segment_size.is_none() || self.state.max_gso_segments() > 1 {
            match self.send_once(&whole) {
                // The kernel has refused to segment, which quinn-udp now reports; or it has learnt that the
                // path MTU is below the segment size. Single packets can still go, in fragments if need be.
                Sent::Refused(error)
                    if whole.segment_size.is_some()
                        && (self.state.max_gso_segments() == 1 || error.raw_os_error() == Some(libc::EMSGSIZE)) => {}
                sent => return sent,
            }
        }
        for contents in bytes.chunks(segment) {
            match self.send_once(&quinn_udp::Transmit { contents, segment_size: None, ..whole.clone() }) {
                Sent::Gone => {}
                other => return other,
            }
        }
        Sent::Gone
    }

    /// Sends one datagram without permitting fragmentation. A datagram that is too long is dropped without an
    /// error.
    pub(crate) fn send_whole(&self, route: Route, bytes: &[u8]) {
        let v6 = self.local.is_ipv6();
        if sys::treat_too_long(self.io.as_fd(), v6, TooLong::Refused).is_ok() {
            let Route { to: destination, from: src_ip } = route;
            let whole = quinn_udp::Transmit { destination, ecn: None, contents: bytes, segment_size: None, src_ip };
            let _ = self.send_once(&whole);
        }
        // Restores the setting from `bind`.
        let _ = sys::treat_too_long(self.io.as_fd(), v6, self.too_long);
    }

    /// Receives into as many of `buffers` as needed, and returns their number; `None` if nothing has arrived.
    pub(crate) fn receive(&self, buffers: &mut [IoSliceMut<'_>], metas: &mut [RecvMeta]) -> Option<usize> {
        // The kernel reports an ICMP error once, on whichever call comes next. A connection must not rely on
        // it, because anyone can send ICMP messages.
        const ERRORS_MAX: usize = 8;
        for _ in 0..ERRORS_MAX {
            match self.state.recv(UdpSockRef::from(&self.io), buffers, metas) {
                Ok(count) => return Some(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Err(_) => {}
            }
        }
        None
    }

    fn send_once(&self, transmit: &quinn_udp::Transmit<'_>) -> Sent {
        let send = || self.state.try_send(UdpSockRef::from(&self.io), transmit);
        let result = match send() {
            // The error belongs to an earlier datagram, and this one was not sent.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => send(),
            result => result,
        };
        match result {
            Ok(()) => Sent::Gone,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Sent::Full,
            // The network device's queue is full.
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => Sent::Gone,
            Err(error) => Sent::Refused(error),
        }
    }

    /// Clears a pending error, which would keep the socket readable.
    pub(crate) fn clear_error(&self) {
        let _ = SockRef::from(&self.io).take_error();
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.io.as_fd()
    }
}

/// Gives a socket its full receive buffer.
fn enlarge(socket: &socket2::Socket) -> io::Result<()> {
    if sys::force_receive_buffer(socket.as_fd(), RECEIVE_BUFFER_PRIVILEGED).is_err() {
        socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
    }
    Ok(())
}
