//! What the kernel knows about a TCP connection.

use crate::stats::Stats;
use crate::sys;
use std::io;
use std::os::fd::AsFd;

/// The statistics of `socket`; those that an older kernel does not report are 0.
pub(super) fn stats(socket: &impl AsFd) -> io::Result<Stats> {
    let fd = socket.as_fd();
    let mut bytes = [0; 256];
    let len = sys::tcp_info(fd, &mut bytes)?;
    let info = Info(&bytes[..len.min(bytes.len())]);
    let socket = socket2::SockRef::from(&fd);
    Ok(Stats {
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
        sending_period_ns: 0,
        segment_size: info.u32(16),
        send_buffer: socket.send_buffer_size()? as u64,
        receive_buffer: socket.recv_buffer_size()? as u64,
        congestion_control: congestion_control(&socket),
        last_ack_ms: info.silence_ms(),
        closed: info.0.first() == Some(&TCP_CLOSE),
    })
}

/// Probes of a closed window without an answer from which on the peer counts as silent. The kernel asks ever more rarely (up to
/// once in two minutes), so the time since the last answer says nothing as long as only the newest question is open.
const UNANSWERED: u8 = 2;

/// State 7 of `enum` in `include/net/tcp_states.h`.
const TCP_CLOSE: u8 = 7;

/// The name of the congestion control in force.
pub(super) fn congestion_control(socket: &socket2::Socket) -> String {
    let name = socket.tcp_congestion().unwrap_or_default();
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
}

/// `struct tcp_info` by offset (`include/uapi/linux/tcp.h`): it only ever grows at its end.
struct Info<'a>(&'a [u8]);

impl Info<'_> {
    /// For how long the peer has left unanswered what it was sent, in milliseconds: segments, or probes of its closed window.
    fn silence_ms(&self) -> u32 {
        let (in_flight, probes) = (self.u32(24), self.0.get(3).copied().unwrap_or(0));
        if in_flight > 0 || probes >= UNANSWERED { self.u32(56) } else { 0 }
    }

    fn u32(&self, at: usize) -> u32 {
        self.0.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_ne_bytes)
    }

    fn u64(&self, at: usize) -> u64 {
        self.0.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_ne_bytes)
    }
}
