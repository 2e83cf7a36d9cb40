//! The socket of a transfer, and waiting for it.

use crate::datagram::{Route, Sent, Socket};
use quinn_udp::RecvMeta;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Most buffers that one receive call fills; with UDP_GRO, each holds several coalesced datagrams.
const RECEIVED_MAX: usize = 16;
/// Size of one such buffer, in bytes.
const BUFFER: usize = 65_536;

/// A UDP socket for one transfer.
#[derive(Debug)]
pub struct Port {
    socket: Socket,
    /// An eventfd that wakes the thread.
    bell: OwnedFd,
    /// The origin of all times.
    began: Instant,
}

/// What a thread waits for, and got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Woken {
    /// Datagrams may have arrived.
    pub(super) may_receive: bool,
}

impl Port {
    /// Binds a socket to `addr`.
    ///
    /// # Errors
    /// The system's, such as an address in use.
    pub fn bind(addr: SocketAddr) -> io::Result<Self> {
        let socket = Socket::bind(addr, false)?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { socket, bell, began: Instant::now() })
    }

    /// The address that it is bound to.
    pub fn local_addr(&self) -> SocketAddr {
        self.socket.local_addr()
    }

    /// Which buffers the kernel did not grant in full, as a sentence.
    pub fn note(&self) -> Option<&str> {
        self.socket.note().map(|note| &**note)
    }

    pub(super) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Wakes the thread.
    pub(super) fn ring(&self) {
        // The counter cannot overflow: the thread resets it whenever it is not zero.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// Number of bytes that one call may send in datagrams of up to `len` bytes.
    pub(super) fn batch_len(&self, len: usize) -> usize {
        self.socket.batch_len(len)
    }

    /// Sends `bytes` as datagrams of `segment` bytes.
    pub(super) fn send(&self, to: SocketAddr, bytes: &[u8], segment: usize) -> Sent {
        self.socket.send(Route { to, from: None }, bytes, segment)
    }

    /// Waits for a datagram, for a ring, for room if `full`, or until `until`.
    pub(super) fn wait(&self, until: Option<Duration>, full: bool) -> Woken {
        let left = until.map(|until| until.saturating_sub(self.now()));
        let left = left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
        let room = if full { PollFlags::OUT } else { PollFlags::empty() };
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN | room), PollFd::new(&self.bell, PollFlags::IN)];
        // After an interruption, the next round checks everything anyway.
        let _ = poll(&mut fds, left.as_ref());
        let [socket, bell] = fds.map(|fd| fd.revents());
        if !bell.is_empty() {
            let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        }
        if socket.contains(PollFlags::ERR) {
            self.socket.clear_error();
        }
        Woken { may_receive: !socket.is_empty() }
    }
}

/// Buffers for received datagrams.
#[derive(Debug)]
pub(super) struct Inbox(Box<[u8]>);

impl Inbox {
    pub(super) fn new() -> Self {
        Self(vec![0; RECEIVED_MAX * BUFFER].into())
    }

    /// Receives with one call, and passes each datagram and its sender on. Returns whether more may have arrived.
    pub(super) fn receive(&mut self, port: &Port, mut each: impl FnMut(&mut [u8], SocketAddr)) -> bool {
        let mut metas = [RecvMeta::default(); RECEIVED_MAX];
        let mut slots = self.0.chunks_exact_mut(BUFFER);
        let mut buffers: [_; RECEIVED_MAX] = std::array::from_fn(|_| IoSliceMut::new(slots.next().unwrap_or_default()));
        let Some(count) = port.socket.receive(&mut buffers, &mut metas) else { return false };
        for (bytes, meta) in self.0.chunks_exact_mut(BUFFER).zip(&metas[..count]) {
            let len = meta.len.min(BUFFER);
            bytes[..len].chunks_mut(meta.stride.max(1)).for_each(|datagram| each(datagram, meta.addr));
        }
        count == RECEIVED_MAX
    }
}
