//! One UDP socket: batches in and out through quinn-udp, buffers, and errors that are none of a connection's business.

use crate::sys;
use phoebus_proto::udt::Transmit;
use quinn_udp::{RecvMeta, UdpSockRef, UdpSocketState};
use socket2::{Domain, Protocol, SockRef, Type};
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// What the kernel is asked to hold until the driver comes for it: 40 ms of 1.6 Gbit/s.
const RECEIVE_BUFFER: usize = 8 << 20;
/// The same where the process may have as much as it wants: a machine that is busy with other work keeps a thread waiting for
/// longer, and what is lost meanwhile is a train of packets at a time.
const RECEIVE_BUFFER_PRIVILEGED: i32 = 64 << 20;
/// What the kernel is asked to hold until the link takes it.
const SEND_BUFFER: usize = 4 << 20;

/// A UDP socket.
#[derive(Debug)]
pub(super) struct Socket {
    io: UdpSocket,
    state: UdpSocketState,
    local: SocketAddr,
    note: Option<Arc<str>>,
}

/// Where a batch goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Route {
    pub(super) to: SocketAddr,
    /// The address it comes from, where the socket has several.
    pub(super) from: Option<IpAddr>,
}

/// What became of a batch.
#[derive(Debug)]
pub(super) enum Sent {
    /// It is on its way, or was dropped like on a network that is full.
    Gone,
    /// The kernel has no room: it is to be sent again when the socket is writable.
    Full,
    /// The kernel will not take it.
    Refused(io::Error),
}

impl Socket {
    pub(super) fn bind(addr: SocketAddr) -> io::Result<Self> {
        let socket = socket2::Socket::new(Domain::for_address(addr), Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
        if addr.is_ipv6() {
            // As on TCP: an IPv4 listener is configured as such.
            socket.set_only_v6(true)?;
        }
        if sys::force_receive_buffer(socket.as_fd(), RECEIVE_BUFFER_PRIVILEGED).is_err() {
            socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
        }
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
        // UDT cannot make its packets smaller once they flow: if the path carries less then, they go in fragments.
        sys::allow_fragments(io.as_fd(), addr.is_ipv6(), true)?;
        Ok(Self { local: io.local_addr()?, io, state, note })
    }

    pub(super) fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// What was not granted, as a sentence.
    pub(super) fn note(&self) -> Option<&Arc<str>> {
        self.note.as_ref()
    }

    /// Bytes that one call sends, if each packet has up to `packet` of them.
    pub(super) fn batch_len(&self, packet: usize) -> usize {
        // What an IP packet of the kernel's own carries at most.
        const LONGEST: usize = 65_507;
        if self.state.max_gso_segments() > 1 { LONGEST } else { packet }
    }

    pub(super) fn send(&self, route: Route, bytes: &[u8], segment: usize) -> Sent {
        let whole = quinn_udp::Transmit {
            destination: route.to,
            ecn: None,
            contents: bytes,
            segment_size: (segment < bytes.len()).then_some(segment),
            src_ip: route.from,
        };
        if whole.segment_size.is_none() || self.state.max_gso_segments() > 1 {
            match self.try_send(&whole) {
                // The kernel has refused to segment: from now on quinn-udp says so. Or it has heard that the path carries
                // less than a segment: one by one they go in fragments.
                Sent::Refused(error)
                    if whole.segment_size.is_some()
                        && (self.state.max_gso_segments() == 1 || error.raw_os_error() == Some(libc::EMSGSIZE)) => {}
                sent => return sent,
            }
        }
        for contents in bytes.chunks(segment) {
            match self.try_send(&quinn_udp::Transmit { contents, segment_size: None, ..whole.clone() }) {
                Sent::Gone => {}
                other => return other,
            }
        }
        Sent::Gone
    }

    /// Sends one datagram that is not to be fragmented anywhere. Nobody hears of one that is too long.
    pub(super) fn send_whole(&self, route: Route, bytes: &[u8]) {
        let v6 = self.local.is_ipv6();
        if sys::allow_fragments(self.io.as_fd(), v6, false).is_ok() {
            let Route { to: destination, from: src_ip } = route;
            let whole = quinn_udp::Transmit { destination, ecn: None, contents: bytes, segment_size: None, src_ip };
            let _ = self.try_send(&whole);
        }
        // What was allowed when the socket was bound is allowed again.
        let _ = sys::allow_fragments(self.io.as_fd(), v6, true);
    }

    /// What has arrived, into as many of `buffers` as it takes; `None` if nothing has.
    pub(super) fn receive(&self, buffers: &mut [IoSliceMut<'_>], metas: &mut [RecvMeta]) -> Option<usize> {
        // An error that an ICMP message has left at the socket is told once, to whichever call comes next. It says nothing
        // that a connection could rely on: anyone can send such a message.
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

    fn try_send(&self, transmit: &quinn_udp::Transmit<'_>) -> Sent {
        let send = || self.state.try_send(UdpSockRef::from(&self.io), transmit);
        let result = match send() {
            // It was told of an earlier one, and not sent.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => send(),
            result => result,
        };
        match result {
            Ok(()) => Sent::Gone,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Sent::Full,
            // The device's queue is full.
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => Sent::Gone,
            Err(error) => Sent::Refused(error),
        }
    }

    /// Forgets an error that is told to those who wait for the socket.
    pub(super) fn clear_error(&self) {
        let _ = SockRef::from(&self.io).take_error();
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.io.as_fd()
    }
}

/// Bytes and segment length of a batch that the kernel had no room for, and where it goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Held {
    pub(super) route: Route,
    pub(super) transmit: Transmit,
}
