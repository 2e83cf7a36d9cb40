//! A profile as quinn takes it (P37, S14).

use super::gauge::{Gauge, Gauged};
use super::model::Model;
use crate::profile::{CongestionControl, Profile};
use phoebus_proto::units::BitRate;
use quinn::congestion::{BbrConfig, CubicConfig, NewRenoConfig};
use quinn::{AckFrequencyConfig, IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt};
use quinn_proto::congestion::ControllerFactory;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// The largest UDP payload that is sent or taken: an Ethernet jumbo frame of 9000 bytes, less the headers of IPv6 and UDP.
pub(super) const PAYLOAD_MAX: u16 = 8952;
/// Sessions that a peer may have open on one connection. A gateway has limits of its own on sessions; this one keeps a
/// peer from making more of them than anybody asked for.
pub(super) const STREAMS_MAX: u32 = 4096;
/// Packets until the peer acknowledges: a tenth of the acknowledgements that TCP sends twice as often costs the receiver a
/// tenth of its system calls, and is still many per round trip. Loss is told of at once all the same.
const ACKNOWLEDGE_EVERY: u32 = 10;
/// Packets that may overtake one before it is taken for lost; what was sent an eighth of a round trip earlier is, too. Three, as
/// is usual, are taken for a loss when a path of 1 Gbit/s delays some packets by 30 µs more than others: with 5 ms of it,
/// everything is sent many times and nothing gets ahead.
const REORDERED: u32 = 1000;
/// The round trip that windows are made for where nobody knows better: once around the Earth, with room to repair losses
/// without a pause.
const LONGEST_PATH: Duration = Duration::from_millis(500);
/// Windows where neither sizes nor capacity are given: 1 Gbit/s on that path. No memory is used before there are bytes.
const WINDOW: u64 = 64 << 20;
/// What may wait to be sent on a connection at least, whatever it may have on its way: some milliseconds at a gigabit.
const SEND_LEAST: u64 = 2 << 20;
/// How often an idle connection says that it is there: once a second, as UDT does. A peer that is suspected to be dead is so
/// known to live within a few seconds. Often enough for the tables of address translators.
const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// Bytes that datagrams of a connection may take, with what quinn counts besides them (some 40 for each).
const PROBES_LEN: usize = 256;
/// The bounds of a window made from a capacity.
const WINDOW_BOUNDS: (u64, u64) = (1 << 20, 1 << 30);

/// How much may wait to be sent on a connection, or to be read on a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Windows {
    /// At most. How much it is now follows from what may be on its way: [`sending`].
    pub(super) send: u64,
    /// What the peer may have on its way.
    pub(super) receive: u64,
    /// What may be put in order besides, past a gap: three times as much, so that a packet may be lost as often without a pause.
    pub(super) aside: u64,
}

impl Windows {
    /// As the profile has them, or from the capacity that it states.
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

/// What may wait to be sent or acknowledged when `window` bytes may be on their way, and at most `most`: twice as much, so
/// that there is always something to send and the window can double, and no more, since it only waits.
pub(super) fn sending(window: u64, most: u64) -> u64 {
    (2 * window).max(SEND_LEAST).min(most)
}

/// The send window of a new connection, and the largest that it may have.
pub(super) fn sending_of(profile: &Profile) -> [AtomicU64; 2] {
    let most = Windows::of(profile).send;
    [sending(0, most), most].map(AtomicU64::new)
}

/// The settings of one connection. Datagrams of up to `payload` bytes are tried. All streams together may bring `ahead` bytes more than
/// are read, or without bound: that of a session whose reader has stopped would use up any other, and stop all.
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
        // Nobody reads them: they ask whether this end is there (`Stream::probe`). The newest ones push the others out.
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

/// As quinn takes it.
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

/// The name of the control in force.
pub(super) fn control_name(profile: &Profile) -> &'static str {
    match profile.congestion_control {
        CongestionControl::Bbr => "bbr",
        CongestionControl::Cubic => "cubic",
        CongestionControl::Reno => "reno",
        _ => "model",
    }
}

/// What was asked for and not had, as a sentence; `socket` is what the socket has to say.
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
    fn what_waits_to_be_sent_follows_the_path() {
        assert_eq!(sending(0, WINDOW), SEND_LEAST);
        assert_eq!(sending(10 << 20, WINDOW), 20 << 20);
        assert_eq!(sending(100 << 20, WINDOW), WINDOW);
        assert_eq!(sending(0, 1000), 1000);
    }

    #[test]
    fn windows_follow_the_segment_unless_they_are_given() {
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
