//! The UDP socket of an endpoint: with segmentation offload in both directions and large buffers, and without
//! fatal errors.
//!
//! QUIC ignores ICMP errors (RFC 9000, section 14.2.1): anyone can send them, and the protocol has its own
//! time-outs. quinn would end the endpoint with all its connections on a socket error, so this socket returns
//! none.

use super::batch::Batch;
use super::ready_signal::lock;
use super::receive_pause::{self, ReceivePause, ServedSocket};
use quinn::udp::{RecvMeta, Transmit, UdpSocketState};
use quinn::{AsyncUdpSocket, UdpPoller};
use rustix::io::Errno;
use socket2::{Domain, Protocol, Type};
use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::task::{Context, Poll, ready};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::Notify;

/// Requested size of each socket buffer, in bytes: 50 ms at 1 Gbit/s, the time for which a busy machine may
/// keep a thread from its socket.
const BUFFER: usize = 8 << 20;
/// The largest buffer that the kernel returns at a time, coalesced from many datagrams (UDP_GRO).
const COALESCED: usize = 1 << 16;
/// The most that the kernel accepts at a time for segmentation, in bytes: the payload of the largest IPv4
/// packet. Ten large datagrams of quinn may exceed it.
const AT_ONCE: usize = 65_507;
/// Number of consecutive errors that one read skips before it waits for readiness.
const ERRORS_IN_A_ROW: usize = 16;

/// The socket; see the module documentation.
#[derive(Debug)]
pub(super) struct Socket {
    io: UdpSocket,
    state: UdpSocketState,
    /// Most datagrams that the kernel may coalesce into one buffer, at the endpoint's datagram size.
    segments: usize,
    /// Datagrams that are sent once the batch is full or the thread is idle.
    batch: Mutex<Batch>,
    waiting: Arc<Notify>,
    /// Size of the kernel's receive buffer, in bytes.
    receive_buffer: u64,
    served: OnceLock<ServedSocket>,
}

/// Opens a socket on `addr`, registered with the caller's runtime, for datagrams of at most `payload` bytes.
///
/// # Errors
/// When the address is not available.
pub(super) fn open(addr: SocketAddr, payload: u16) -> io::Result<(Arc<Socket>, Option<Arc<str>>)> {
    let socket = socket2::Socket::new(Domain::for_address(addr), Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
    if addr.is_ipv6() {
        // IPv4 needs a listener of its own in the configuration, so that address rules never see IPv4-mapped
        // addresses.
        socket.set_only_v6(true)?;
    }
    let note = enlarge(&socket);
    let receive_buffer = socket.recv_buffer_size()? as u64 / 2;
    socket.bind(&addr.into())?;
    let io = UdpSocket::from_std(socket.into())?;
    let state = UdpSocketState::new((&io).into())?;
    let segments = COALESCED.div_ceil(payload.into()).min(state.gro_segments());
    let waiting = Arc::new(Notify::new());
    let (batch, served) = (Mutex::default(), OnceLock::new());
    let socket = Arc::new(Socket { io, state, segments, batch, waiting: waiting.clone(), receive_buffer, served });
    tokio::spawn(flush(Arc::downgrade(&socket), waiting));
    Ok((socket, note))
}

/// Sends the batch once all tasks of the thread have run and may have added to it. Ends with the socket.
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
    /// Records that the threads of `receive_pause` serve this socket.
    pub(super) fn serve_by(&self, receive_pause: &Arc<ReceivePause>) {
        self.served.get_or_init(|| receive_pause.opened(self.receive_buffer));
    }

    /// Most bytes that the kernel accepts at a time in datagrams of size `segment`.
    fn at_once(&self, segment: usize) -> usize {
        (AT_ONCE / segment).clamp(1, self.state.max_gso_segments()) * segment
    }

    /// Sends the batch.
    ///
    /// # Errors
    /// `WouldBlock`: the batch is kept.
    fn send_batch(&self, batch: &mut Batch) -> io::Result<()> {
        if let Some(transmit) = batch.transmit() {
            self.send(&transmit)?;
        }
        batch.clear();
        Ok(())
    }

    /// Hands the datagrams to the kernel.
    ///
    /// # Errors
    /// `WouldBlock`: not all of them were sent.
    fn send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let segment = transmit.segment_size.unwrap_or(transmit.contents.len()).max(1);
        for contents in transmit.contents.chunks((AT_ONCE / segment).max(1) * segment) {
            let segment_size = transmit.segment_size.filter(|size| contents.len() > *size);
            let part = Transmit { contents, segment_size, ..transmit.clone() };
            match self.io.try_io(Interest::WRITABLE, || self.state.send((&self.io).into(), &part)) {
                // Earlier parts will be sent twice: the receiver drops duplicates, which costs less than a
                // loss.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(error),
                // Other errors mean that the network has no route: the protocol treats the datagrams as lost.
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

/// Requests large buffers, and returns a note if they are smaller. The kernel reports twice the granted size.
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
        // The datagrams do not fit or must not wait: send the batch first, to keep the order.
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
                // The runtime is shutting down, and this task with it.
                return Poll::Pending;
            }
            let received = self.io.try_io(Interest::READABLE, || {
                // A socket error is reported once, and does not consume a datagram.
                for _ in 0..ERRORS_IN_A_ROW {
                    match self.state.recv((&self.io).into(), buffers, metas) {
                        Err(error) if error.kind() != io::ErrorKind::WouldBlock => {}
                        result => return result,
                    }
                }
                Err(Errno::AGAIN.into())
            });
            if let Ok(count) = received {
                receive_pause::received();
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

/// Waits for room in the socket's buffer, on behalf of one connection.
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

/// The largest UDP payload that the path to `to` could carry, according to its first link. Path MTU discovery
/// finds what the rest carries.
pub(super) fn payload(to: SocketAddr) -> u16 {
    /// Ethernet's MTU, which limits most paths somewhere.
    const USUAL: u32 = 1500;
    let mtu = match to {
        SocketAddr::V4(_) => std::net::UdpSocket::bind(("0.0.0.0", 0)).and_then(|probe| {
            // Sends nothing: connecting makes the kernel look up the route.
            probe.connect(to)?;
            Ok(rustix::net::sockopt::ip_mtu(&probe)?)
        }),
        SocketAddr::V6(_) => Ok(USUAL),
    };
    let headers = if to.is_ipv6() { 48 } else { 28 };
    u16::try_from(mtu.unwrap_or(USUAL).saturating_sub(headers)).unwrap_or(u16::MAX).max(1200)
}
