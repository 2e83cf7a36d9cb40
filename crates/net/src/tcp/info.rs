//! Reads the kernel's statistics of a TCP connection.

use crate::stats::Stats;
use crate::sys;
use std::io;
use std::os::fd::AsFd;

/// The statistics of a TCP socket, whoever has opened it; fields that an older kernel does not report are 0.
///
/// # Errors
/// It is no TCP socket.
pub fn stats(socket: &impl AsFd) -> io::Result<Stats> {
    let fd = socket.as_fd();
    let mut bytes = [0; 256];
    let len = sys::tcp_info(fd, &mut bytes)?;
    let info = Info(&bytes[..len.min(bytes.len())]);
    let socket = socket2::SockRef::from(&fd);
    let [send_buffer, receive_buffer] = match sys::buffer_sizes(fd) {
        Ok(sizes) => sizes.map(u64::from),
        // Sandboxes that imitate the kernel may not have that option.
        Err(_) => [socket.send_buffer_size()? as u64, socket.recv_buffer_size()? as u64],
    };
    Ok(Stats {
        bytes_sent: info.u64(200),
        bytes_acked: info.u64(120),
        bytes_received: info.u64(128),
        bytes_retransmitted: info.u64(208),
        retransmits: info.u32(100).into(),
        segments_sent: info.u32(SEGMENTS_SENT).into(),
        lost: info.u32(32),
        in_flight: info.u32(24),
        unsent: info.u32(UNSENT),
        held_back: 0,
        rtt_us: info.u32(68).into(),
        rtt_var_us: info.u32(72).into(),
        min_rtt_us: match info.u32(148) {
            u32::MAX => 0,
            us => us.into(),
        },
        delivery_rate: info.u64(160),
        receiver_limited_us: info.u64(176),
        pacing_rate: match info.u64(PACING_RATE) {
            u64::MAX => 0,
            rate => rate,
        },
        congestion_window: info.u32(80),
        sending_period_ns: 0,
        segment_size: info.u32(16),
        send_buffer,
        receive_buffer,
        congestion_control: congestion_control(&socket),
        last_ack_ms: info.silence_ms(),
        closed: info.0.first() == Some(&TCP_CLOSE),
    })
}

/// What the kernel has to send.
pub(super) struct Queue {
    /// Bytes that wait to be sent for the first time.
    pub(super) unsent: u32,
    /// In bytes per second; `u64::MAX` if unlimited.
    pub(super) pacing_rate: u64,
    /// Segments with data, retransmitted ones too.
    pub(super) segments_sent: u32,
}

/// What the connection has to send; `None` if it is closed.
pub(super) fn queue(socket: &impl AsFd) -> io::Result<Option<Queue>> {
    let mut bytes = [0; 256];
    let len = sys::tcp_info(socket.as_fd(), &mut bytes)?;
    let info = Info(&bytes[..len.min(bytes.len())]);
    let queue =
        Queue { unsent: info.u32(UNSENT), pacing_rate: info.u64(PACING_RATE), segments_sent: info.u32(SEGMENTS_SENT) };
    Ok((info.0.first() != Some(&TCP_CLOSE)).then_some(queue))
}

/// Number of unanswered zero-window probes from which on the peer counts as silent. The kernel probes at
/// growing intervals (up to two minutes), so the time since the last answer means nothing while only the
/// newest probe is open.
const UNANSWERED: u8 = 2;

/// States of `enum` in `include/net/tcp_states.h`.
const TCP_SYN_SENT: u8 = 2;
const TCP_SYN_RECV: u8 = 3;
const TCP_CLOSE: u8 = 7;

/// The name of the congestion control in force.
pub(super) fn congestion_control(socket: &socket2::Socket) -> String {
    let name = socket.tcp_congestion().unwrap_or_default();
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
}

/// Offset of `tcpi_pacing_rate`.
const PACING_RATE: usize = 104;
/// Offset of `tcpi_notsent_bytes`.
const UNSENT: usize = 144;
/// Offset of `tcpi_data_segs_out`.
const SEGMENTS_SENT: usize = 156;

/// `struct tcp_info` by offset (`include/uapi/linux/tcp.h`): the structure only ever grows at its end.
struct Info<'a>(&'a [u8]);

impl Info<'_> {
    /// How long the peer has left segments or zero-window probes unanswered, in milliseconds.
    fn silence_ms(&self) -> u32 {
        // Nothing was acknowledged yet, so the kernel's time stamp counts from boot. With fast open, sessions
        // use such connections; the kernel gives up on them after a minute or two (tcp_syn_retries,
        // tcp_synack_retries).
        if matches!(self.0.first(), Some(&(TCP_SYN_SENT | TCP_SYN_RECV))) {
            return 0;
        }
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use super::*;
    use socket2::{Domain, Socket, Type};
    use std::net::SocketAddr;

    fn socket() -> Socket {
        Socket::new(Domain::IPV4, Type::STREAM, None).unwrap()
    }

    /// A listener with a full queue drops the SYN, so the connection stays in SYN-SENT.
    #[test]
    fn unanswered_syn_does_not_count_as_silence_since_boot() {
        let listener = socket();
        listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        listener.listen(0).unwrap();
        let address = listener.local_addr().unwrap();
        let connecting = || {
            let one = socket();
            one.set_nonblocking(true).unwrap();
            // A non-blocking connect in progress returns an error.
            let _ = one.connect(&address);
            one
        };
        let all: Vec<_> = (0..4).map(|_| connecting()).collect();
        let is_waiting = |one: &&Socket| {
            let mut bytes = [0; 256];
            sys::tcp_info(one.as_fd(), &mut bytes).unwrap();
            bytes[0] == TCP_SYN_SENT
        };
        let waiting = all.iter().find(is_waiting).unwrap();
        let stats = stats(waiting).unwrap();
        assert_eq!((stats.in_flight, stats.last_ack_ms), (1, 0));
        assert!(stats.unheard().is_zero());
    }

    #[test]
    fn fast_open_connection_is_not_silent_before_its_handshake() {
        let mut bytes = [0; 60];
        (bytes[0], bytes[24], bytes[56]) = (TCP_SYN_RECV, 1, 9);
        assert_eq!(Info(&bytes).silence_ms(), 0);
        // An established connection is silent.
        bytes[0] = 1;
        assert_eq!(Info(&bytes).silence_ms(), u32::from_ne_bytes([9, 0, 0, 0]));
    }
}
