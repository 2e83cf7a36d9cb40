//! Statistics of a TCP connection, from the kernel's own books (S19, S20, R12).

use crate::sys;
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

/// What the kernel knows about a connection. Fields that an older kernel does not report are 0.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TcpStats {
    /// Bytes sent, retransmissions included.
    pub bytes_sent: u64,
    /// Bytes that the peer has acknowledged; a SYN or FIN of ours counts as one.
    pub bytes_acked: u64,
    /// Bytes received, without repetitions.
    pub bytes_received: u64,
    /// Bytes sent more than once.
    pub bytes_retransmitted: u64,
    /// Segments sent more than once.
    pub retransmits: u64,
    /// Segments sent.
    pub segments_sent: u64,
    /// Segments now believed lost.
    pub lost: u32,
    /// Segments on their way.
    pub in_flight: u32,
    /// Bytes written but not sent yet.
    pub unsent: u32,
    /// Smoothed round-trip time, in microseconds.
    pub rtt_us: u64,
    /// Its mean deviation, in microseconds.
    pub rtt_var_us: u64,
    /// The least round-trip time of late, in microseconds.
    pub min_rtt_us: u64,
    /// Rate at which data was delivered of late, in bytes per second.
    pub delivery_rate: u64,
    /// Rate at which data is paced, in bytes per second; 0 without pacing.
    pub pacing_rate: u64,
    /// Congestion window, in segments.
    pub congestion_window: u32,
    /// Segment size, in bytes.
    pub segment_size: u32,
    /// Send buffer in force, in bytes.
    pub send_buffer: u64,
    /// Receive buffer in force, in bytes.
    pub receive_buffer: u64,
    /// Congestion control in force.
    pub congestion_control: String,
    /// Time since the peer last acknowledged anything, in milliseconds.
    pub last_ack_ms: u32,
    /// Whether the connection has failed or closed.
    pub closed: bool,
}

impl TcpStats {
    /// The statistics of `socket`.
    pub(crate) fn of(socket: &impl AsFd) -> io::Result<Self> {
        let fd = socket.as_fd();
        let mut bytes = [0; 256];
        let len = sys::tcp_info(fd, &mut bytes)?;
        let info = Info(&bytes[..len.min(bytes.len())]);
        let socket = socket2::SockRef::from(&fd);
        Ok(Self {
            bytes_sent: info.u64(200),
            bytes_acked: info.u64(120),
            bytes_received: info.u64(128),
            bytes_retransmitted: info.u64(208),
            retransmits: info.u32(100).into(),
            segments_sent: info.u32(156).into(),
            lost: info.u32(32),
            in_flight: info.u32(24),
            unsent: info.u32(144),
            rtt_us: info.u32(68).into(),
            rtt_var_us: info.u32(72).into(),
            min_rtt_us: match info.u32(148) {
                u32::MAX => 0,
                us => us.into(),
            },
            delivery_rate: info.u64(160),
            pacing_rate: match info.u64(104) {
                u64::MAX => 0,
                rate => rate,
            },
            congestion_window: info.u32(80),
            segment_size: info.u32(16),
            send_buffer: socket.send_buffer_size()? as u64,
            receive_buffer: socket.recv_buffer_size()? as u64,
            congestion_control: congestion_control(&socket),
            last_ack_ms: info.u32(56),
            closed: info.0.first() == Some(&TCP_CLOSE),
        })
    }

    /// The same with everything that only grows counted from `start` on: what one session did on a connection that had
    /// carried others.
    #[must_use]
    pub fn since(mut self, start: &Self) -> Self {
        for (now, then) in [
            (&mut self.bytes_sent, start.bytes_sent),
            (&mut self.bytes_acked, start.bytes_acked),
            (&mut self.bytes_received, start.bytes_received),
            (&mut self.bytes_retransmitted, start.bytes_retransmitted),
            (&mut self.retransmits, start.retransmits),
            (&mut self.segments_sent, start.segments_sent),
        ] {
            *now = now.saturating_sub(then);
        }
        self
    }

    /// For how long the peer has acknowledged nothing although bytes are outstanding. A peer that has stopped reading is
    /// heard all the same: it acknowledges the probes of its window.
    pub fn unheard(&self) -> Duration {
        let waiting = self.in_flight > 0 || self.unsent > 0;
        Duration::from_millis(if waiting { self.last_ack_ms.into() } else { 0 })
    }

    /// The share of bytes that had to be sent again.
    pub fn loss(&self) -> f64 {
        if self.bytes_sent == 0 { 0.0 } else { self.bytes_retransmitted as f64 / self.bytes_sent as f64 }
    }
}

/// State 7 of `enum` in `include/net/tcp_states.h`.
const TCP_CLOSE: u8 = 7;

/// The name of the congestion control in force.
pub(crate) fn congestion_control(socket: &socket2::Socket) -> String {
    let name = socket.tcp_congestion().unwrap_or_default();
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
}

/// `struct tcp_info` by offset (`include/uapi/linux/tcp.h`): it only ever grows at its end.
struct Info<'a>(&'a [u8]);

impl Info<'_> {
    fn u32(&self, at: usize) -> u32 {
        self.0.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_ne_bytes)
    }

    fn u64(&self, at: usize) -> u64 {
        self.0.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_ne_bytes)
    }
}
