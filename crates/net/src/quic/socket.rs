//! The UDP socket under an endpoint: with segmentation offload both ways, large buffers, and no error that ends anything.
//!
//! QUIC ignores what ICMP says (RFC 9000, section 14.2.1): anyone can send it, and the protocol has time-outs of its own.
//! quinn passes errors of a socket up, where they end the endpoint with all its connections; so there are none here.

use super::batch::Batch;
use super::bell::lock;
use quinn::udp::{RecvMeta, Transmit, UdpSocketState};
use quinn::{AsyncUdpSocket, UdpPoller};
use rustix::io::Errno;
use socket2::{Domain, Protocol, Type};
use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, ready};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::Notify;

/// What each buffer is asked to hold: 50 ms of 1 Gbit/s, the time that a busy machine may keep a thread from its socket.
const BUFFER: usize = 8 << 20;
/// The largest thing that the kernel hands over at a time, coalesced from many datagrams.
const COALESCED: usize = 1 << 16;
/// The most that the kernel takes at a time, to be cut into datagrams: what fits an IPv4 packet. quinn gives ten datagrams,
/// which is more where they are large.
const AT_ONCE: usize = 65_507;
/// Errors in a row that one read passes over before it waits for the next datagram.
const ERRORS_IN_A_ROW: usize = 16;

/// See the module.
#[derive(Debug)]
pub(super) struct Socket {
    io: UdpSocket,
    state: UdpSocketState,
    /// Datagrams that the kernel may hand over as one, at the size that the endpoint takes.
    segments: usize,
    /// What is sent when there is more, or nothing else to do.
    batch: Mutex<Batch>,
    waiting: Arc<Notify>,
}

/// Opens a socket on `addr`, on the runtime of the caller, for datagrams of at most `payload` bytes.
///
/// # Errors
/// When the address cannot be had.
pub(super) fn open(addr: SocketAddr, payload: u16) -> io::Result<(Arc<Socket>, Option<Arc<str>>)> {
    let socket = socket2::Socket::new(Domain::for_address(addr), Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
    if addr.is_ipv6() {
        // An IPv4 listener is configured as such, so that rules about addresses mean what they say.
        socket.set_only_v6(true)?;
    }
    let note = enlarge(&socket);
    socket.bind(&addr.into())?;
    let io = UdpSocket::from_std(socket.into())?;
    let state = UdpSocketState::new((&io).into())?;
    let segments = COALESCED.div_ceil(payload.into()).min(state.gro_segments());
    let waiting = Arc::new(Notify::new());
    let socket = Arc::new(Socket { io, state, segments, batch: Mutex::default(), waiting: waiting.clone() });
    tokio::spawn(flush(Arc::downgrade(&socket), waiting));
    Ok((socket, note))
}

/// Sends what waits, once all tasks of the thread have had their turn and may have added to it. Ends with the socket.
async fn flush(socket: Weak<Socket>, waiting: Arc<Notify>) {
    loop {
        waiting.notified().await;
        tokio::task::yield_now().await;
        let Some(socket) = socket.upgrade() else { return };
        while socket.send_batch(&mut lock(&socket.batch)).is_err() {
            if socket.io.writable().await.is_err() {
                return;
            }
        }
    }
}

impl Socket {
    /// Bytes in datagrams of this size that the kernel takes at a time.
    fn at_once(&self, segment: usize) -> usize {
        (AT_ONCE / segment).clamp(1, self.state.max_gso_segments()) * segment
    }

    /// Sends what waits.
    ///
    /// # Errors
    /// `WouldBlock`: it still waits.
    fn send_batch(&self, batch: &mut Batch) -> io::Result<()> {
        if let Some(transmit) = batch.transmit() {
            self.send(&transmit)?;
        }
        batch.clear();
        Ok(())
    }

    /// Sends.
    ///
    /// # Errors
    /// `WouldBlock`: it was not sent, or not all of it.
    fn send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let segment = transmit.segment_size.unwrap_or(transmit.contents.len()).max(1);
        for contents in transmit.contents.chunks((AT_ONCE / segment).max(1) * segment) {
            let segment_size = transmit.segment_size.filter(|size| contents.len() > *size);
            let part = Transmit { contents, segment_size, ..transmit.clone() };
            match self.io.try_io(Interest::WRITABLE, || self.state.send((&self.io).into(), &part)) {
                // If there were parts before, they go twice: that is noticed, and costs less than a loss.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(error),
                // The network had no way for it: to the protocol, it was lost.
                _ => {}
            }
        }
        Ok(())
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.waiting.notify_one();
    }
}

/// Asks for large buffers, and says what came of it. The kernel reports twice what it was asked for.
fn enlarge(socket: &socket2::Socket) -> Option<Arc<str>> {
    let _ = socket.set_recv_buffer_size(BUFFER);
    let _ = socket.set_send_buffer_size(BUFFER);
    let receive = socket.recv_buffer_size().unwrap_or(0) / 2;
    let send = socket.send_buffer_size().unwrap_or(0) / 2;
    if receive >= BUFFER && send >= BUFFER {
        return None;
    }
    let note = format!(
        "the UDP buffers are {receive} (receive) and {send} (send) bytes instead of {BUFFER}, so that packets are lost when \
         the machine is busy; sysctl -w net.core.rmem_max={BUFFER} net.core.wmem_max={BUFFER} allows more"
    );
    Some(note.into())
}

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Poller { socket: self, waiting: None })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let most = self.at_once(transmit.segment_size.unwrap_or(1).max(1));
        let mut batch = lock(&self.batch);
        if batch.add(transmit, most) {
            self.waiting.notify_one();
            return Ok(());
        }
        // It does not fit in, or must not wait; and nothing overtakes what does.
        self.send_batch(&mut batch)?;
        if batch.add(transmit, most) {
            self.waiting.notify_one();
            return Ok(());
        }
        self.send(transmit)
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        loop {
            if ready!(self.io.poll_recv_ready(cx)).is_err() {
                // The runtime is ending, and this task with it.
                return Poll::Pending;
            }
            let received = self.io.try_io(Interest::READABLE, || {
                // An error is told once and hides no datagram.
                for _ in 0..ERRORS_IN_A_ROW {
                    match self.state.recv((&self.io).into(), buffers, metas) {
                        Err(error) if error.kind() != io::ErrorKind::WouldBlock => {}
                        result => return result,
                    }
                }
                Err(Errno::AGAIN.into())
            });
            if let Ok(count) = received {
                return Poll::Ready(Ok(count));
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.io.local_addr()
    }

    fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }

    fn max_transmit_segments(&self) -> usize {
        self.state.max_gso_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.segments
    }
}

/// Waits for room in the socket, for one connection.
struct Poller {
    socket: Arc<Socket>,
    waiting: Option<Pin<Box<dyn Future<Output = ()> + Send + Sync>>>,
}

impl UdpPoller for Poller {
    fn poll_writable(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let waiting = this.waiting.get_or_insert_with(|| {
            let socket = this.socket.clone();
            Box::pin(async move {
                let _ = socket.io.writable().await;
            })
        });
        ready!(waiting.as_mut().poll(cx));
        this.waiting = None;
        Poll::Ready(Ok(()))
    }
}

impl fmt::Debug for Poller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poller").finish_non_exhaustive()
    }
}

/// The largest UDP payload that the way to `to` could take: what its first interface can. What the rest of it takes is
/// found by trying.
pub(super) fn payload(to: SocketAddr) -> u16 {
    /// Ethernet's, which most ways have somewhere.
    const USUAL: u32 = 1500;
    let mtu = match to {
        SocketAddr::V4(_) => std::net::UdpSocket::bind(("0.0.0.0", 0)).and_then(|probe| {
            // Nothing is sent: it makes the kernel look for the way.
            probe.connect(to)?;
            Ok(rustix::net::sockopt::ip_mtu(&probe)?)
        }),
        SocketAddr::V6(_) => Ok(USUAL),
    };
    let headers = if to.is_ipv6() { 48 } else { 28 };
    u16::try_from(mtu.unwrap_or(USUAL).saturating_sub(headers)).unwrap_or(u16::MAX).max(1200)
}
