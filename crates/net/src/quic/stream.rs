//! A QUIC stream as a connection: FIN is the half-close; RESET_STREAM and STOP_SENDING together are a reset
//! with the session protocol's code (RFC 9000, sections 2.4 and 3; S21, S22).
//!
//! Beware of quinn's `SendStream`: dropping it finishes the stream as if it were complete. Only [`Drop`] of
//! [`QuicStream`] drops one, after resetting it unless it was disarmed. When the process dies, nothing is
//! sent: the peer loses the connection, which fails every stream on it.

use super::ahead::Ahead;
use super::failure::Failure;
use super::gauge::Gauge;
use super::rate::{self, Allowance, INSIDE};
use super::ready_signal::{ReadySignal, lock};
use super::receive::Receive;
use super::receive_pause::PausePermit;
use super::settings::{self, Windows};
use super::threads::IoThreads;
use crate::connection_note::ConnectionNote;
use crate::stats::Stats;
use crate::transport::{
    Boxed, Change, Duplex, DuplexControl, DuplexIo, DuplexTelemetry, Identity, Pulse, ReadThreshold, Security,
};
use crate::waiting::cooperative;
use bytes::Bytes;
use phoebus_proto::session::Code;
use phoebus_proto::session::auth::scram::EXPORTER;
use phoebus_proto::units::BitRate;
use quinn::{Connection, RecvStream, SendStream, StoppedError, VarInt, WriteError};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};
use tokio::time::{Sleep, sleep_until};

/// The common state of all streams of a connection.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) connection: Connection,
    /// Whether no more streams may be placed on it.
    pub(super) retired: AtomicBool,
    pub(super) gauge: Arc<Gauge>,
    /// The name that an outgoing connection was made for. The certificate may carry further names.
    pub(super) meant: Option<Arc<str>>,
    pub(super) identity: Identity,
    /// The receive window for streams that the peer opens; `None` on an outgoing connection.
    pub(super) ahead: Option<Ahead>,
    pub(super) windows: Windows,
    /// The current and the largest send window, in bytes.
    pub(super) sending: [AtomicU64; 2],
    /// Number of bytes that all streams together have read.
    pub(super) read: AtomicU64,
    pub(super) control: &'static str,
    pub(super) rate: Option<BitRate>,
    /// The local address, for its port.
    pub(super) local: SocketAddr,
    pub(super) note: Option<Arc<str>>,
    /// What the owners of the streams note about the connection.
    pub(super) owners_note: Arc<ConnectionNote>,
    /// Keeps the threads running as long as the connection has streams.
    pub(super) threads: Arc<IoThreads>,
}

impl Shared {
    /// Whether the connection can carry another stream: it is open and not retired, and the peer's identity
    /// is still valid.
    pub(super) fn is_of_use(&self) -> bool {
        let current = !self.retired.load(Relaxed) && self.identity.proof.counts();
        current && self.connection.close_reason().is_none()
    }

    pub(super) fn pulse(self: &Arc<Self>) -> Box<dyn Pulse> {
        Box::new(ConnectionPulse(Arc::downgrade(self)))
    }
}

/// The [`Pulse`] of a connection.
#[derive(Debug)]
struct ConnectionPulse(Weak<Shared>);

impl ConnectionPulse {
    /// The connection, unless it has ended.
    fn shared(&self) -> Option<Arc<Shared>> {
        self.0.upgrade().filter(|shared| shared.connection.close_reason().is_none())
    }
}

impl Pulse for ConnectionPulse {
    fn id(&self) -> usize {
        self.0.as_ptr().addr()
    }

    /// Counts frames of decrypted packets, which only the peer can have sent.
    fn heard(&self) -> Option<u64> {
        let came = self.shared()?.connection.stats().frame_rx;
        Some(came.acks + came.stream + came.ping + came.max_stream_data + came.stop_sending + came.reset_stream)
    }

    fn ask(&self) -> Option<Duration> {
        let shared = self.shared()?;
        let asked = shared.connection.send_datagram(Bytes::from_static(&[0]));
        asked.is_ok().then(|| shared.connection.rtt())
    }

    fn abandon(&self, before: Instant, code: Code, reason: &str) {
        if let Some(shared) = self.shared().filter(|shared| shared.gauge.started() <= before) {
            shared.connection.close(VarInt::from_u32(code.number().into()), reason.as_bytes());
        }
    }
}

/// One stream of a connection.
#[derive(Debug)]
pub(super) struct QuicStream {
    shared: Arc<Shared>,
    receive: Mutex<Receive>,
    send: Mutex<SendStream>,
    readable: Arc<ReadySignal>,
    writable: Arc<ReadySignal>,
    failure: OnceLock<Failure>,
    armed: AtomicBool,
    /// Whether the stream was [widened](crate::Stream::widen).
    wide: AtomicBool,
    /// The stream's permission that its packets gather, if it gives any.
    gathers: Mutex<Option<PausePermit>>,
    /// The code with which the stream is reset.
    reset_code: OnceLock<Code>,
    /// Whether this side has finished its stream.
    finished: AtomicBool,
    received: AtomicU64,
    written: AtomicU64,
    /// The connection's statistics when the stream began.
    start: (u64, quinn::ConnectionStats),
    allowance: Mutex<Allowance>,
    /// Wakes the writer when the allowance has grown.
    timer: Mutex<Option<Pin<Box<Sleep>>>>,
    /// The writer that waits for the timer. A change of the rate wakes it, too.
    paused: Mutex<Option<Waker>>,
}

impl QuicStream {
    pub(super) fn new(shared: Arc<Shared>, send: SendStream, receive: RecvStream) -> Self {
        let start = (shared.gauge.acked(), shared.connection.stats());
        let aside = shared.windows.aside;
        let rate = shared.rate.map(|rate| rate.0);
        shared.gauge.change_rate(None, rate);
        let allowance = Allowance::new(rate, Instant::now());
        Self {
            shared,
            receive: Mutex::new(Receive::new(receive, aside)),
            send: Mutex::new(send),
            readable: ReadySignal::new(),
            writable: ReadySignal::new(),
            failure: OnceLock::new(),
            armed: AtomicBool::new(true),
            wide: AtomicBool::new(false),
            gathers: Mutex::default(),
            reset_code: OnceLock::new(),
            finished: AtomicBool::new(false),
            received: AtomicU64::new(0),
            written: AtomicU64::new(0),
            start,
            allowance: Mutex::new(allowance),
            timer: Mutex::new(None),
            paused: Mutex::new(None),
        }
    }

    /// Lets packets gather in the kernel. What arrives together makes the stream readable once.
    fn gather(&self, threshold: ReadThreshold) {
        /// The part of a round trip for which packets, and so their acknowledgements, may be late.
        const OF_ROUND_TRIP: u32 = 8;
        let allow = |threshold: ReadThreshold| {
            let within = threshold.within.min(self.shared.connection.rtt() / OF_ROUND_TRIP);
            // As many bytes as come in the shorter time.
            let part = within.as_secs_f64() / threshold.within.as_secs_f64();
            let bytes = (threshold.bytes as f64 * part) as u64;
            self.shared.threads.receive_pause().allow(ReadThreshold { bytes, within })
        };
        *lock(&self.gathers) = (!threshold.within.is_zero()).then(|| allow(threshold));
    }

    fn check(&self) -> io::Result<()> {
        self.failure.get().map_or(Ok(()), |failure| Err(failure.clone().into()))
    }

    /// Records the first failure, and wakes all waiting tasks.
    fn fail(&self, failure: Failure) -> io::Error {
        let failure = self.failure.get_or_init(|| failure).clone();
        self.readable.signal();
        self.writable.signal();
        failure.into()
    }

    fn fail_write(&self, error: WriteError) -> io::Error {
        self.fail(match error {
            WriteError::Stopped(code) => Failure::reset(code),
            WriteError::ConnectionLost(error) => Failure::Lost(error),
            WriteError::ClosedStream | WriteError::ZeroRttRejected => Failure::Local,
        })
    }

    /// Adapts the send window to the congestion window. Checking at each write suffices: an acknowledgement,
    /// which changes the congestion window, also wakes writers that found the send window full.
    fn fit_send_window(&self) {
        let has = self.shared.sending[0].load(Relaxed);
        let wants = self.wanted_send_window();
        if wants > has + has / 8 || wants < has / 2 {
            self.set_send_window(wants);
        }
    }

    /// Shrinks the full send window by a quarter until the next write, but not below the congestion window, which has to
    /// be filled. A waiting writer is then woken only when there is room for many packets, and not by the first
    /// acknowledgement.
    fn narrow_send_window(&self) {
        let wants = self.wanted_send_window();
        let filling = self.shared.gauge.window().min(wants);
        self.set_send_window((wants - wants / 4).max(filling));
    }

    fn wanted_send_window(&self) -> u64 {
        let Shared { gauge, sending: [_, most], .. } = &*self.shared;
        let most = most.load(Relaxed);
        gauge.held().map_or_else(|| settings::sending(gauge.window(), most), |held| (2 * held).min(most))
    }

    fn set_send_window(&self, size: u64) {
        self.shared.sending[0].store(size, Relaxed);
        self.shared.connection.set_send_window(size);
    }

    /// Stream bytes that the connection has received and no stream has read, approximately: other frames are
    /// included.
    fn unread(&self) -> i64 {
        let came = self.shared.connection.stats().udp_rx;
        let streams = came.bytes.saturating_sub(came.datagrams * INSIDE);
        streams.cast_signed().wrapping_sub(self.shared.read.load(Relaxed).cast_signed())
    }

    /// Resets both directions, unless they have ended.
    fn reset(&self, code: Code) {
        // An error means that the stream has already ended.
        let _ = lock(&self.send).reset(VarInt::from_u32(code.number().into()));
        lock(&self.receive).stop(code);
    }

    /// Whether the peer has acknowledged all bytes and the end, or has stopped the stream; `None` while
    /// neither has happened.
    fn stopped(&self) -> Option<Result<Option<VarInt>, StoppedError>> {
        let stopped = pin!(lock(&self.send).stopped());
        match stopped.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => Some(result),
            Poll::Pending => None,
        }
    }

    /// Waits for the peer's RESET_STREAM, once this side's direction has ended and cannot be stopped any
    /// more.
    async fn reset_by_peer(&self) -> Failure {
        loop {
            let rung = self.readable.watchers().notified();
            let mut rung = pin!(rung);
            rung.as_mut().enable();
            let reset = {
                let mut receive = lock(&self.receive);
                self.readable.watch(|cx| receive.poll_reset(cx))
            };
            match reset {
                Poll::Ready(Ok(Some(code))) => return Failure::reset(code),
                Poll::Ready(Err(quinn::ResetError::ConnectionLost(error))) => {
                    let failure = Failure::Lost(error);
                    if !failure.is_parting() {
                        return failure;
                    }
                    std::future::pending().await
                }
                // Everything was read: the session is over, and cannot fail any more.
                Poll::Ready(_) => std::future::pending().await,
                Poll::Pending => rung.await,
            }
        }
    }
}

impl DuplexIo for QuicStream {
    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.check()?;
        let mut receive = lock(&self.receive);
        match self.readable.poll_clearing(|cx| receive.poll_read(cx, buffer, || self.unread())) {
            Poll::Ready(Ok(n)) => {
                self.received.fetch_add(n as u64, Relaxed);
                self.shared.read.fetch_add(n as u64, Relaxed);
                Ok(n)
            }
            Poll::Ready(Err(failure)) => Err(self.fail(failure)),
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn try_write(&self, bytes: &[u8], _more: bool) -> io::Result<usize> {
        self.check()?;
        if self.finished.load(Relaxed) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let mut allowance = lock(&self.allowance);
        // Without a rate this charges nothing, and clears losses that a later rate would otherwise be charged
        // for.
        allowance.spend(self.shared.gauge.take_lost());
        if allowance.rate().is_none() {
            // A stream without a rate must not wait for the limited ones.
            self.shared.gauge.release();
        }
        let granted = allowance.grant(bytes.len(), self.shared.gauge.mtu(), Instant::now());
        if granted == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.fit_send_window();
        let mut send = lock(&self.send);
        let mut write = || self.writable.poll_clearing(|cx| Pin::new(&mut *send).poll_write(cx, &bytes[..granted]));
        let mut written = write();
        if written.is_pending() {
            self.narrow_send_window();
            // An acknowledgement that came before the window was narrow has woken the writer for little room.
            if self.writable.is_ready() {
                written = write();
            }
        }
        match written {
            Poll::Ready(Ok(n)) => {
                self.shared.gauge.release();
                allowance.spend(n);
                self.written.fetch_add(n as u64, Relaxed);
                Ok(n)
            }
            Poll::Ready(Err(error)) => Err(self.fail_write(error)),
            Poll::Pending => {
                // A failure may have given the signal for the second write, which has cleared it.
                self.check()?;
                Err(io::ErrorKind::WouldBlock.into())
            }
        }
    }

    fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        cooperative(cx, |cx| self.readable.poll_ready(cx)).map(Ok)
    }

    fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(cooperative(cx, |cx| self.writable.poll_ready(cx)));
        if self.failure.get().is_some() {
            return Poll::Ready(Ok(()));
        }
        if lock(&self.allowance).rate().is_none() {
            return Poll::Ready(Ok(()));
        }
        // Register before reading the allowance, so that no change of the rate is missed.
        *lock(&self.paused) = Some(cx.waker().clone());
        let next = lock(&self.allowance).next(self.shared.gauge.mtu(), Instant::now());
        let mut timer = lock(&self.timer);
        let Some(next) = next else {
            (*timer, *lock(&self.paused)) = (None, None);
            return Poll::Ready(Ok(()));
        };
        let timer = timer.get_or_insert_with(|| Box::pin(sleep_until(next.into())));
        timer.as_mut().reset(next.into());
        timer.as_mut().poll(cx).map(Ok)
    }

    fn is_quiet(&self) -> io::Result<bool> {
        self.check()?;
        let mut receive = lock(&self.receive);
        match self.readable.poll_clearing(|cx| receive.poll_readable(cx, || self.unread())) {
            Poll::Ready(Ok(())) => Ok(false),
            Poll::Ready(Err(failure)) => Err(self.fail(failure)),
            Poll::Pending => Ok(true),
        }
    }

    fn shutdown_write(&self) -> io::Result<()> {
        self.check()?;
        if !self.finished.swap(true, Relaxed) {
            // An error means that the peer has stopped the stream, which the failure watcher reports.
            let _ = lock(&self.send).finish();
        }
        Ok(())
    }

    /// quinn reports only that everything is acknowledged. Until then this estimates: the stream's written
    /// bytes less the bytes acknowledged on the whole connection, other streams included. The result is at
    /// least 1, and falls as long as the peer acknowledges anything.
    fn unacknowledged(&self) -> io::Result<usize> {
        self.check()?;
        let finished = self.finished.load(Relaxed);
        match self.stopped() {
            Some(Ok(None)) => return Ok(0),
            Some(Ok(Some(code))) => return Err(self.fail(Failure::reset(code))),
            Some(Err(StoppedError::ConnectionLost(error))) => return Err(self.fail(Failure::Lost(error))),
            Some(Err(StoppedError::ZeroRttRejected)) => return Err(self.fail(Failure::Local)),
            None => {}
        }
        let acked = self.shared.gauge.acked().saturating_sub(self.start.0);
        let left = self.written.load(Relaxed).saturating_sub(acked) + u64::from(finished);
        Ok(usize::try_from(left).unwrap_or(usize::MAX))
    }
}

impl DuplexControl for QuicStream {
    /// A peer resets both directions together. So it suffices to watch for its STOP_SENDING, which quinn
    /// reports independently of data, while this side's direction is open, and for its RESET_STREAM after
    /// that.
    fn failed(&self) -> Boxed<'_, io::Error> {
        Box::pin(async {
            if let Some(failure) = self.failure.get() {
                return failure.clone().into();
            }
            let stopped = lock(&self.send).stopped();
            let failure = match stopped.await {
                Ok(Some(code)) => Failure::reset(code),
                Err(StoppedError::ConnectionLost(error)) => Failure::Lost(error),
                Ok(None) | Err(StoppedError::ZeroRttRejected) => self.reset_by_peer().await,
            };
            self.fail(failure)
        })
    }

    fn disarm(&self) {
        self.armed.store(false, Relaxed);
    }

    fn set_reset_code(&self, code: Code) {
        // Only the first call has an effect.
        let _ = self.reset_code.set(code);
    }

    fn widen(&self) {
        if let Some(ahead) = &self.shared.ahead
            && !self.wide.swap(true, Relaxed)
        {
            ahead.widen(&self.shared.connection);
        }
    }

    fn retire(&self) {
        self.shared.retired.store(true, Relaxed);
    }

    /// The send buffer belongs to the connection; the receive buffer and the congestion control were fixed
    /// when it began.
    fn set(&self, change: Change) -> io::Result<()> {
        match change {
            Change::Rate(rate) => {
                let (gauge, rate) = (&self.shared.gauge, rate.map(|rate| rate.0));
                let mut allowance = lock(&self.allowance);
                let before = allowance.rate();
                allowance.set(rate, gauge.mtu(), Instant::now());
                gauge.change_rate(before, rate);
                if rate.is_some_and(|rate| rate::leaves_a_queue(before, rate)) {
                    gauge.hold();
                }
                drop(allowance);
                self.fit_send_window();
                self.writable.signal();
                if let Some(writer) = lock(&self.paused).take() {
                    writer.wake();
                }
                Ok(())
            }
            Change::SendBuffer(size) => {
                self.shared.sending[1].store(size, Relaxed);
                self.fit_send_window();
                Ok(())
            }
            Change::ReadThreshold(threshold) => {
                self.gather(threshold);
                Ok(())
            }
            Change::Unsent(_) | Change::ReceiveBuffer(_) | Change::CongestionControl(_) => {
                Err(io::ErrorKind::Unsupported.into())
            }
        }
    }

    fn has_authenticated_close(&self) -> bool {
        true
    }

    /// The connection closes with its last holder, even if data is in flight.
    fn delivers_after_drop(&self) -> bool {
        false
    }

    /// The QUIC threads serve the stream and wake tasks on any runtime, so nothing moves.
    fn move_to_runtime(self: Box<Self>) -> io::Result<Box<dyn Duplex>> {
        Ok(self)
    }
}

impl DuplexTelemetry for QuicStream {
    fn pulse(&self) -> Option<Box<dyn Pulse>> {
        Some(self.shared.pulse())
    }

    /// Byte counters are the stream's; packets, losses and times are the connection's since the stream began.
    fn stats(&self) -> io::Result<Stats> {
        let Shared { connection, gauge, windows, control, .. } = &*self.shared;
        let (now, then) = (connection.stats(), &self.start.1);
        let path = &now.path;
        let mtu = u64::from(path.current_mtu).max(1);
        let lost = path.lost_bytes.saturating_sub(then.path.lost_bytes);
        let lost_packets = path.lost_packets.saturating_sub(then.path.lost_packets);
        let written = self.written.load(Relaxed);
        let unacknowledged = self.unacknowledged().unwrap_or(0) as u64;
        let millis = |span: std::time::Duration| u32::try_from(span.as_millis()).unwrap_or(u32::MAX);
        let micros = |span: std::time::Duration| span.as_micros() as u64;
        Ok(Stats {
            bytes_sent: written + lost,
            bytes_acked: written.saturating_sub(unacknowledged),
            bytes_received: self.received.load(Relaxed),
            bytes_retransmitted: lost,
            retransmits: lost_packets,
            segments_sent: path.sent_packets.saturating_sub(then.path.sent_packets),
            lost: 0,
            in_flight: u32::try_from(gauge.in_flight() / mtu).unwrap_or(u32::MAX),
            unsent: 0,
            held_back: 0,
            receiver_limited_us: 0,
            rtt_us: micros(path.rtt),
            rtt_var_us: gauge.rtt_var_us(),
            min_rtt_us: micros(path.min_rtt),
            delivery_rate: gauge.delivery_rate(),
            pacing_rate: lock(&self.allowance).rate().map_or(0, |rate| rate / 8),
            congestion_window: u32::try_from(path.cwnd / mtu).unwrap_or(u32::MAX),
            sending_period_ns: 0,
            segment_size: u32::from(path.current_mtu),
            send_buffer: self.wanted_send_window(),
            receive_buffer: windows.receive + windows.aside,
            congestion_control: (*control).to_owned(),
            last_ack_ms: millis(gauge.unheard(Instant::now())),
            closed: self.failure.get().is_some() || connection.close_reason().is_some(),
        })
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        let ip = self.shared.connection.local_ip().unwrap_or_else(|| self.shared.local.ip());
        Ok(SocketAddr::new(ip, self.shared.local.port()))
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.shared.connection.remote_address())
    }

    fn note(&self) -> Option<&str> {
        self.shared.note.as_deref()
    }

    fn security(&self) -> Security {
        Security::Encrypt
    }

    fn identity(&self) -> Option<&Identity> {
        Some(&self.shared.identity)
    }

    fn connection_note(&self) -> Option<Arc<ConnectionNote>> {
        Some(self.shared.owners_note.clone())
    }

    fn channel_binding(&self) -> Option<[u8; 32]> {
        let mut bytes = [0; 32];
        let exported = self.shared.connection.export_keying_material(&mut bytes, EXPORTER.as_bytes(), &[]);
        exported.ok().map(|()| bytes)
    }
}

impl Drop for QuicStream {
    fn drop(&mut self) {
        self.shared.gauge.change_rate(lock(&self.allowance).rate(), None);
        if let Some(ahead) = &self.shared.ahead
            && self.wide.load(Relaxed)
        {
            ahead.narrow();
        }
        if self.armed.load(Relaxed) {
            let reset_code = self.reset_code.get().copied().unwrap_or(Code::Reset);
            self.reset(self.failure.get().map_or(reset_code, Failure::code));
        }
    }
}
