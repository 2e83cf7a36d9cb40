//! The owner's side of a connection.

use super::hub::{Link, State};
use super::settings;
use crate::congestion_control::CongestionControl;
use crate::duplex::ReadThreshold;
use crate::stats::Stats;
use crate::transport::{Boxed, Change, Duplex, DuplexControl, DuplexIo, DuplexTelemetry, Pulse};
use crate::waiting::cooperative;
use phoebus_proto::udt::CloseReason;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

/// A UDT connection. Dropping it sends a shutdown, which the peer sees as an error; if it was
/// [disarmed](DuplexControl::disarm), everything written is delivered first.
#[derive(Debug)]
pub(crate) struct Connection {
    link: Arc<Link>,
    disarmed: AtomicBool,
}

impl Connection {
    pub(super) fn new(link: Arc<Link>) -> Self {
        Self { link, disarmed: AtomicBool::new(false) }
    }

    /// Waits until the handshake is complete.
    pub(super) async fn opened(&self) -> io::Result<()> {
        std::future::poll_fn(|cx| self.poll_write_ready(cx)).await?;
        self.link.state().failure().map_or(Ok(()), Err)
    }

    /// The reason why the connection has ended, if it has.
    pub(super) fn reason(&self) -> Option<CloseReason> {
        self.link.state().connection.closed()
    }

    /// The driver leaves packets to the kernel while they gather, and hands them over at once. Half of the expected bytes
    /// make the connection readable, because the rest may just be coming.
    fn set_threshold(&self, state: &mut State, threshold: ReadThreshold) {
        /// The part of a round trip for which packets, and so their acknowledgements, may be late.
        const OF_ROUND_TRIP: u32 = 8;
        /// The part of a connection's own buffer that may fill meanwhile.
        const OF_BUFFER: u32 = 8;
        let ReadThreshold { bytes, within } = threshold;
        let payload = state.connection.datagram_len() as u64 - 16;
        let [_, buffer] = state.connection.buffers();
        let packets = u32::try_from(bytes / 2 / payload.max(1)).unwrap_or(u32::MAX);
        state.read_threshold = packets.clamp(1, (buffer / OF_BUFFER).max(1));
        let time = within.min(state.connection.stats().rtt / OF_ROUND_TRIP);
        let rate = bytes as f64 / within.as_secs_f64().max(1e-6);
        state.gather(&self.link.hub, time, if time.is_zero() { 0 } else { rate as u64 });
    }

    /// Returns the number of bytes moved; if 0, the failure, or `WouldBlock`.
    fn done(state: &State, n: usize) -> io::Result<usize> {
        if n > 0 { Ok(n) } else { Err(state.failure().unwrap_or_else(|| io::ErrorKind::WouldBlock.into())) }
    }
}

impl DuplexIo for Connection {
    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        self.link.change(|state, _| {
            let n = state.connection.read(buffer);
            Self::done(state, n)
        })
    }

    fn try_write(&self, bytes: &[u8], more: bool) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let write = |state: &mut State| {
            let n = state.connection.write(bytes);
            Self::done(state, n)
        };
        // If more bytes follow, less than a packet is not worth waking the driver.
        if more && bytes.len() < 1024 {
            return write(&mut self.link.state());
        }
        self.link.change(|state, _| write(state))
    }

    fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        cooperative(cx, |cx| {
            let mut state = self.link.state();
            if state.is_readable() {
                return Poll::Ready(Ok(()));
            }
            state.reader = Some(cx.waker().clone());
            Poll::Pending
        })
    }

    fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        cooperative(cx, |cx| {
            let mut state = self.link.state();
            if state.is_writable() {
                return Poll::Ready(Ok(()));
            }
            state.writer = Some(cx.waker().clone());
            Poll::Pending
        })
    }

    fn is_quiet(&self) -> io::Result<bool> {
        let state = self.link.state();
        if !state.connection.chunk().is_empty() {
            return Ok(false);
        }
        state.failure().map_or(Ok(true), Err)
    }

    /// UDT has no half-close; sessions over it are framed.
    fn shutdown_write(&self) -> io::Result<()> {
        let state = self.link.state();
        Err(state.failure().unwrap_or_else(|| io::ErrorKind::Unsupported.into()))
    }

    fn unacknowledged(&self) -> io::Result<usize> {
        let state = self.link.state();
        let stats = state.connection.stats();
        match ((stats.bytes_written - stats.bytes_acknowledged) as usize, state.failure()) {
            // Complete delivery counts even if the connection failed afterwards.
            (0, _) => Ok(0),
            (_, Some(error)) => Err(error),
            (left, None) => Ok(left),
        }
    }
}

impl DuplexControl for Connection {
    fn failed(&self) -> Boxed<'_, io::Error> {
        Box::pin(async {
            loop {
                let mut ended = std::pin::pin!(self.link.ended.notified());
                ended.as_mut().enable();
                if let Some(error) = self.link.state().failure() {
                    return error;
                }
                ended.await;
            }
        })
    }

    fn has_end_of_stream(&self) -> bool {
        false
    }

    fn disarm(&self) {
        self.disarmed.store(true, Ordering::Relaxed);
    }

    fn widen(&self) {
        self.link.change(|state, _| state.connection.widen());
    }

    fn set(&self, change: Change) -> io::Result<()> {
        let wakers = self.link.change(|state, now| {
            match change {
                Change::Rate(rate) => {
                    let mss = state.connection.datagram_len() as u32 + settings::IP_UDP_LEN;
                    let limit = settings::rate_limit(rate, mss, self.link.remote.is_ipv6());
                    if state.connection.control() == "fixed" {
                        let control = settings::control(CongestionControl::Fixed, limit)?;
                        state.connection.set_control(now, &*control);
                    }
                    state.connection.set_rate_limit(limit);
                }
                Change::CongestionControl(asked) => {
                    let control = settings::control(asked, state.connection.rate_limit())?;
                    state.connection.set_control(now, &*control);
                }
                Change::ReadThreshold(threshold) => self.set_threshold(state, threshold),
                // Buffers were fixed in the handshake.
                Change::SendBuffer(_) | Change::ReceiveBuffer(_) | Change::Unsent(_) => {
                    return Err(io::Error::from(io::ErrorKind::Unsupported));
                }
            }
            Ok(state.wakers())
        })?;
        self.link.wake(wakers);
        Ok(())
    }

    /// The driver thread signals readiness to any runtime, so nothing moves.
    fn move_to_runtime(self: Box<Self>) -> io::Result<Box<dyn Duplex>> {
        Ok(self)
    }
}

impl DuplexTelemetry for Connection {
    fn stats(&self) -> io::Result<Stats> {
        let now = self.link.hub.now();
        let state = self.link.state();
        let (connection, stats) = (&state.connection, state.connection.stats());
        let payload = connection.datagram_len() as u64 - 16;
        let micros = |time: std::time::Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let [send_buffer, receive_buffer] = connection.buffers().map(|packets| u64::from(packets) * payload);
        Ok(Stats {
            bytes_sent: stats.bytes_sent,
            bytes_acked: stats.bytes_acknowledged,
            bytes_received: stats.bytes_received,
            bytes_retransmitted: stats.bytes_resent,
            retransmits: stats.packets_resent,
            segments_sent: stats.packets_sent,
            lost: stats.packets_to_resend,
            in_flight: stats.packets_in_flight,
            unsent: u32::try_from(stats.bytes_unsent).unwrap_or(u32::MAX),
            held_back: 0,
            receiver_limited_us: 0,
            rtt_us: micros(stats.rtt),
            rtt_var_us: micros(stats.rtt_variation),
            min_rtt_us: micros(stats.min_rtt),
            delivery_rate: (stats.peer_receiving_rate * payload as f64) as u64,
            pacing_rate: (stats.sending_rate / 8.0) as u64,
            // The receiver's room bounds what may be in flight, too.
            congestion_window: stats.congestion_window.min(stats.flow_window).max(1),
            sending_period_ns: (f64::from(stats.mss) * 8e9 / stats.sending_rate.max(1.0)) as u64,
            segment_size: payload as u32,
            send_buffer,
            receive_buffer,
            congestion_control: connection.control().to_owned(),
            last_ack_ms: u32::try_from(now.saturating_sub(stats.last_heard).as_millis()).unwrap_or(u32::MAX),
            closed: connection.closed().is_some(),
        })
    }

    fn pulse(&self) -> Option<Box<dyn Pulse>> {
        Some(Box::new(LinkPulse(Arc::downgrade(&self.link))))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        let bound = self.link.hub.socket.local_addr();
        Ok(SocketAddr::new(self.link.state().local.unwrap_or_else(|| bound.ip()), bound.port()))
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.link.remote)
    }

    fn note(&self) -> Option<&str> {
        self.link.hub.socket.note().map(|note| &**note)
    }
}

/// The [`Pulse`] of a connection.
#[derive(Debug)]
struct LinkPulse(Weak<Link>);

impl LinkPulse {
    /// The connection, unless it has ended.
    fn link(&self) -> Option<Arc<Link>> {
        self.0.upgrade().filter(|link| link.state().connection.closed().is_none())
    }
}

impl Pulse for LinkPulse {
    fn id(&self) -> usize {
        self.0.as_ptr().addr()
    }

    fn heard(&self) -> Option<u64> {
        u64::try_from(self.link()?.state().connection.stats().last_heard.as_micros()).ok()
    }

    fn ask(&self) -> Option<Duration> {
        Some(self.link()?.change(|state, _| {
            state.connection.probe();
            state.connection.stats().rtt
        }))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let disarmed = self.disarmed.load(Ordering::Relaxed);
        self.link.change(|state, now| {
            if disarmed {
                state.connection.close(now)
            } else {
                state.connection.abort(now)
            }
            (state.reader, state.writer) = (None, None);
            state.gather(&self.link.hub, Duration::ZERO, 0);
        });
    }
}
