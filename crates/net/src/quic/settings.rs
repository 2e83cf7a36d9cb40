//! Translates a profile into quinn's settings (P37, S14).

use super::gauge::{Gauge, Gauged};
use super::model::Model;
use crate::congestion_control::CongestionControl;
use crate::profile::Profile;
use phoebus_proto::units::BitRate;
use quinn::congestion::{BbrConfig, CubicConfig, NewRenoConfig};
use quinn::{AckFrequencyConfig, IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt};
use quinn_proto::congestion::ControllerFactory;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Largest UDP payload that is sent or accepted, in bytes: an Ethernet jumbo frame of 9000, less the headers
/// of IPv6 and UDP.
pub(super) const PAYLOAD_MAX: u16 = 8952;
/// Most sessions that a peer may have open on one connection. A gateway has its own limits on sessions; this
/// one bounds the streams that a peer can open regardless.
pub(super) const STREAMS_MAX: u32 = 4096;
/// Number of packets after which the peer acknowledges. TCP acknowledges every second packet; fewer
/// acknowledgements save the receiver a tenth of its system calls, and a round trip still has many. Loss is
/// reported at once all the same.
const ACKNOWLEDGE_EVERY: u32 = 10;
/// Packet reordering threshold of loss detection (RFC 9002, section 6.1.1); a packet sent an eighth of a
/// round trip earlier counts as lost, too. The usual threshold of three declares a loss when a path of 1
/// Gbit/s delays some packets by 30 µs more than others; with 5 ms of such jitter, everything is
/// retransmitted many times and throughput collapses.
const REORDERED: u32 = 1000;
/// Round-trip time for which windows are sized by default: once around the Earth, with room to repair losses
/// without a pause.
const LONGEST_PATH: Duration = Duration::from_millis(500);
/// Default window in bytes, without a configured size or capacity: 1 Gbit/s on that path. Memory is used only
/// as bytes arrive.
const WINDOW: u64 = 64 << 20;
/// The smallest send window of a connection, in bytes, whatever its congestion window: some milliseconds at 1
/// Gbit/s.
const SEND_LEAST: u64 = 2 << 20;
/// Keep-alive interval: once a second, as in UDT, so that a check whether a peer is alive takes a few
/// seconds. Also often enough for the tables of address translators.
const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// Memory for the datagrams of a connection, in bytes, with quinn's overhead of some 40 bytes for each.
const PROBES_LEN: usize = 256;
/// Bounds of a window that is derived from a capacity, in bytes.
const WINDOW_BOUNDS: (u64, u64) = (1 << 20, 1 << 30);

/// The windows of a connection and its streams, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Windows {
    /// Largest send window of a connection; the current one follows the congestion window: [`sending`].
    pub(super) send: u64,
    /// Receive window of a stream.
    pub(super) receive: u64,
    /// Most data past a gap that is reassembled in addition: three windows, so that a packet may be lost that
    /// many times without a pause.
    pub(super) aside: u64,
}

impl Windows {
    /// The windows of a profile: as configured, or derived from its capacity.
    pub(super) fn of(profile: &Profile) -> Self {
        let usual = profile.capacity.map_or(WINDOW, |BitRate(rate)| {
            let product = rate as f64 / 8.0 * LONGEST_PATH.as_secs_f64();
            (product as u64).clamp(WINDOW_BOUNDS.0, WINDOW_BOUNDS.1)
        });
        let all = profile.receive_buffer.bytes().unwrap_or(4 * usual);
        let receive = all / 4;
        Self { send: profile.send_buffer.bytes().unwrap_or(usual), receive, aside: all - receive }
    }
}

/// The send window for a congestion window of `window` bytes, at most `most`: twice that, so that there is
/// always something to send and the congestion window can double. More would only wait.
pub(super) fn sending(window: u64, most: u64) -> u64 {
    (2 * window).max(SEND_LEAST).min(most)
}

/// The initial send window of a connection, and its maximum.
pub(super) fn sending_of(profile: &Profile) -> [AtomicU64; 2] {
    let most = Windows::of(profile).send;
    [sending(0, most), most].map(AtomicU64::new)
}

/// The settings of one connection. Path MTU discovery tries datagrams of up to `payload` bytes. `ahead` is
/// the connection's receive window; `None` removes the limit, because one session whose reader has stopped
/// would use up any connection-wide window and block all others.
pub(super) fn transport(profile: &Profile, payload: u16, gauge: &Arc<Gauge>, ahead: Option<u64>) -> TransportConfig {
    let windows = Windows::of(profile);
    let idle = profile.idle_timeout.0;
    let idle_millis = VarInt::from_u32(u32::try_from(idle.as_millis()).unwrap_or(u32::MAX));
    let mut acknowledge = AckFrequencyConfig::default();
    acknowledge.ack_eliciting_threshold(ACKNOWLEDGE_EVERY.into());
    let mut discovery = MtuDiscoveryConfig::default();
    discovery.upper_bound(payload);
    let mut config = TransportConfig::default();
    config
        .max_concurrent_bidi_streams(STREAMS_MAX.into())
        .max_concurrent_uni_streams(0u32.into())
        // Datagrams have no reader: they only ask for a sign of life (`Pulse::ask`). Newer ones displace
        // older ones.
        .datagram_receive_buffer_size(Some(PROBES_LEN))
        .datagram_send_buffer_size(PROBES_LEN)
        .max_idle_timeout(Some(IdleTimeout::from(idle_millis)))
        .keep_alive_interval(Some(KEEP_ALIVE.min(idle / 3)))
        .stream_receive_window(bounded(windows.receive))
        .receive_window(ahead.map_or(VarInt::MAX, bounded))
        .send_window(sending(0, windows.send))
        .packet_threshold(REORDERED)
        .ack_frequency_config(Some(acknowledge))
        .mtu_discovery_config(Some(discovery))
        .congestion_controller_factory(Arc::new(Gauged { inner: control(profile), gauge: gauge.clone() }));
    config
}

/// The size as quinn's integer type, at most its maximum.
pub(super) fn bounded(size: u64) -> VarInt {
    VarInt::from_u64(size).unwrap_or(VarInt::MAX)
}

fn control(profile: &Profile) -> Arc<dyn ControllerFactory + Send + Sync> {
    match profile.congestion_control {
        CongestionControl::Bbr => Arc::new(BbrConfig::default()),
        CongestionControl::Cubic => Arc::new(CubicConfig::default()),
        CongestionControl::Reno => Arc::new(NewRenoConfig::default()),
        _ => Arc::new(Model),
    }
}

/// The name of the congestion control in force.
pub(super) fn control_name(profile: &Profile) -> &'static str {
    match profile.congestion_control {
        CongestionControl::Bbr => "bbr",
        CongestionControl::Cubic => "cubic",
        CongestionControl::Reno => "reno",
        _ => "model",
    }
}

/// Which settings of the profile are not in force, as a sentence; `socket` is the note of the socket.
pub(super) fn note(profile: &Profile, socket: Option<&str>) -> Option<Arc<str>> {
    let control = match profile.congestion_control {
        asked @ (CongestionControl::Native | CongestionControl::Fixed) => {
            Some(format!("congestion control {asked} is not for QUIC: model is used"))
        }
        _ => None,
    };
    let notes: Vec<&str> = control.as_deref().into_iter().chain(socket).collect();
    (!notes.is_empty()).then(|| notes.join("; ").into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Buffer;
    use phoebus_proto::units::ByteSize;

    #[test]
    fn send_window_follows_the_congestion_window() {
        assert_eq!(sending(0, WINDOW), SEND_LEAST);
        assert_eq!(sending(10 << 20, WINDOW), 20 << 20);
        assert_eq!(sending(100 << 20, WINDOW), WINDOW);
        assert_eq!(sending(0, 1000), 1000);
    }

    #[test]
    fn windows_follow_the_capacity_unless_configured() {
        let usual = Windows { send: WINDOW, receive: WINDOW, aside: 3 * WINDOW };
        assert_eq!(Windows::of(&Profile::default()), usual);
        let profile = Profile { capacity: Some(BitRate(400_000_000)), ..Profile::default() };
        assert_eq!(Windows::of(&profile).receive, 25_000_000);
        let buffer = Buffer::Bytes(ByteSize(4 << 20));
        let profile = Profile { receive_buffer: buffer, ..profile };
        assert_eq!(Windows::of(&profile), Windows { send: 25_000_000, receive: 1 << 20, aside: 3 << 20 });
        let profile = Profile { capacity: Some(BitRate(u64::MAX)), ..Profile::default() };
        assert_eq!(Windows::of(&profile).send, 1 << 30);
    }
}
