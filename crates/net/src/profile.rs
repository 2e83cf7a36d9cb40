//! The settings of a transport on a segment (P37, S13, S14, U16), as they stand in a configuration file.

use phoebus_proto::units::{BitRate, ByteSize, Span};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// How connections are set up on one segment, whatever carries them: what TCP, QUIC or UDT alone heeds says so, and takes
/// nothing from the others. Every socket gets its profile before it connects or listens, because window scaling and the first
/// congestion window are settled by TCP's SYN, and the buffers of QUIC and UDT by their handshakes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Profile {
    /// What the configuration calls it: connections under one name to one neighbour share their rate.
    #[serde(skip)]
    pub name: Arc<str>,
    /// Send buffer. `auto` leaves it to the kernel: a fixed one, even of the bandwidth-delay product, cuts throughput
    /// (U16). A size bounds the memory that a stalled receiver can hold.
    pub send_buffer: Buffer,
    /// Receive buffer, set apart from the send buffer (P37).
    pub receive_buffer: Buffer,
    /// Bytes that an accepted connection over UDT may have waiting to be read until its owner trusts its peer with the whole
    /// receive buffer ([`Stream::widen`](crate::Stream::widen)). 256 KiB by default: several times the longest handshake of TLS
    /// and of a session, and little enough for a thousand strangers. Over QUIC, all such streams of a connection have four times
    /// as much, and less where one source has many connections.
    pub handshake_buffer: ByteSize,
    /// Congestion control of what this end sends.
    pub congestion_control: CongestionControl,
    /// Sends small segments at once. On by default: a relay that waited for more would add its delay to the session's.
    pub no_delay: bool,
    /// How long a peer may acknowledge nothing while bytes are outstanding, before the connection counts as dead.
    /// 5 minutes by default: far longer than a route takes to heal, far shorter than the kernel's own 15 minutes.
    ///
    /// It is measured by whoever owns the stream ([`crate::Stats::unheard`]) and not by `TCP_USER_TIMEOUT`: since
    /// Linux 5.11 that one also ends a connection whose receiver has merely stopped reading and answers every probe.
    pub user_timeout: Span,
    /// How long nothing at all may be heard over UDT or QUIC, where idle connections say that they are there. 30 s by default:
    /// a route heals within 10 s, or not soon. On QUIC, the lesser of both ends' counts.
    pub idle_timeout: Span,
    /// Idle time after which the kernel asks whether the peer is still there. 60 s by default, below the time-outs of
    /// most address translators.
    pub keepalive_idle: Span,
    /// Time between such questions.
    pub keepalive_interval: Span,
    /// Unanswered questions after which the connection is dead.
    pub keepalive_probes: u32,
    /// Connections of which each hop to a peer consists, which share the bytes of each session. 1 by default: one fills the path
    /// with a control that copes with its loss. Several do where only cubic or reno is to be had, or where the host bounds
    /// buffers.
    pub streams: u16,
    /// TCP fast open: HELLO and OPEN in the SYN (RFC 7413).
    pub fast_open: bool,
    /// Multipath TCP (RFC 8684), where kernel and peer have it.
    pub multipath: bool,
    /// The most that is sent per second, as the link counts it, with headers and framing ([`crate::wire`]): the rate of a
    /// circuit, say (S17, S25). A connection starts with all of it; where several share it, whoever owns them divides it
    /// ([`Change::Rate`](crate::transport::Change::Rate)). No bound by default.
    pub rate: Option<BitRate>,
    /// Largest IP packet of UDT, in bytes, its header included. 1500 by default, or what the first link carries if that is
    /// less. If the path carries less, the handshake finds out; what carries more has to be said.
    pub mss: Option<u32>,
    /// What the segment can carry. Only for advice: with it, buffers that the host's limits keep below the
    /// bandwidth-delay product are reported ([`crate::host`]).
    pub capacity: Option<BitRate>,
}

impl Default for Profile {
    fn default() -> Self {
        Self {
            name: Arc::default(),
            send_buffer: Buffer::Auto,
            receive_buffer: Buffer::Auto,
            handshake_buffer: ByteSize(256 << 10),
            congestion_control: CongestionControl::Auto,
            no_delay: true,
            user_timeout: Span(Duration::from_secs(300)),
            idle_timeout: Span(Duration::from_secs(30)),
            keepalive_idle: Span(Duration::from_secs(60)),
            keepalive_interval: Span(Duration::from_secs(15)),
            keepalive_probes: 4,
            streams: 1,
            fast_open: true,
            multipath: false,
            rate: None,
            mss: None,
            capacity: None,
        }
    }
}

impl Profile {
    /// This profile with both buffers of `total` bytes per direction at most, where it left them to the kernel: half to
    /// sending and half to receiving. The kernel doubles what is asked for to account for its own overhead.
    #[must_use]
    pub fn bounded(mut self, total: u64) -> Self {
        let half = Buffer::Bytes(ByteSize(total / 4));
        for buffer in [&mut self.send_buffer, &mut self.receive_buffer] {
            if *buffer == Buffer::Auto {
                *buffer = half;
            }
        }
        self
    }

    /// This profile with buffers of given sizes divided among the connections of a hop, where all together may have so much.
    #[must_use]
    pub fn divided(mut self) -> Self {
        for buffer in [&mut self.send_buffer, &mut self.receive_buffer] {
            if let Buffer::Bytes(size) = buffer {
                size.0 = (size.0 / u64::from(self.streams.max(1))).max(BUFFER_MIN);
            }
        }
        self
    }
}

/// The least buffer: below a page the kernel rounds up anyway.
const BUFFER_MIN: u64 = 4096;

/// A socket buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Buffer {
    /// Grown by the kernel as the connection needs it, up to the host's maximum.
    #[default]
    Auto,
    /// Of this many bytes of data.
    Bytes(ByteSize),
}

impl Buffer {
    /// The size, if it was given.
    pub fn bytes(self) -> Option<u64> {
        match self {
            Self::Auto => None,
            Self::Bytes(size) => Some(size.0),
        }
    }
}

impl FromStr for Buffer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            // Above 2 GiB setsockopt takes no number.
            _ => match text.parse::<ByteSize>() {
                Ok(size) if (BUFFER_MIN..=1 << 30).contains(&size.0) => Ok(Self::Bytes(size)),
                _ => Err(format!("\"{text}\" is not \"auto\" or a size from 4KiB to 1GiB, such as 8MiB")),
            },
        }
    }
}

impl fmt::Display for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Bytes(size) => size.fmt(f),
        }
    }
}

/// A congestion control (S14).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CongestionControl {
    /// `bbr` where the kernel allows it, because random loss costs it little; otherwise the system's own.
    #[default]
    Auto,
    /// What the system has as its default.
    System,
    /// BBR: paced by measured bandwidth and round-trip time.
    Bbr,
    /// CUBIC (RFC 9438).
    Cubic,
    /// NewReno (RFC 6582).
    Reno,
    /// Control by a model of the path, of UDT and QUIC alone, and what `auto` means there: it takes loss for congestion only
    /// while packets queue, and so fills long paths with loss.
    Model,
    /// UDT's own (DAIMD), for circuits with little loss.
    Native,
    /// UDT at the profile's rate, whatever happens: for a circuit that nobody else uses.
    Fixed,
}

impl CongestionControl {
    const NAMES: [(&'static str, Self); 8] = [
        ("auto", Self::Auto),
        ("system", Self::System),
        ("bbr", Self::Bbr),
        ("cubic", Self::Cubic),
        ("reno", Self::Reno),
        ("model", Self::Model),
        ("native", Self::Native),
        ("fixed", Self::Fixed),
    ];

    /// The kernel's name of what is asked for, if anything is.
    pub fn kernel_name(self) -> Option<&'static str> {
        match self {
            Self::Auto | Self::Bbr => Some("bbr"),
            Self::Cubic => Some("cubic"),
            Self::Reno => Some("reno"),
            Self::System | Self::Model | Self::Native | Self::Fixed => None,
        }
    }

    /// Whether it is one of those that UDT alone has.
    pub fn is_udts(self) -> bool {
        matches!(self, Self::Model | Self::Native | Self::Fixed)
    }
}

impl FromStr for CongestionControl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::NAMES.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
        found.ok_or_else(|| {
            format!("\"{text}\" is not one of auto, system, bbr, cubic and reno, or of UDT's model, native and fixed")
        })
    }
}

impl fmt::Display for CongestionControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::NAMES.iter().find(|(_, value)| value == self).map_or("auto", |(name, _)| name))
    }
}

macro_rules! as_text {
    ($($setting:ty),*) => {$(
        impl Serialize for $setting {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $setting {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                std::borrow::Cow::<str>::deserialize(deserializer)?.parse().map_err(D::Error::custom)
            }
        }
    )*};
}
as_text!(Buffer, CongestionControl);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_and_print_as_they_were_written() {
        for text in ["auto", "8MiB", "4KiB"] {
            assert_eq!(text.parse::<Buffer>().unwrap().to_string(), text);
        }
        for text in ["auto", "system", "bbr", "cubic", "reno", "model", "native", "fixed"] {
            assert_eq!(text.parse::<CongestionControl>().unwrap().to_string(), text);
        }
        assert!("vegas".parse::<CongestionControl>().unwrap_err().contains("bbr, cubic and reno"));
        for text in ["1", "2GiB", "big", ""] {
            assert!(text.parse::<Buffer>().unwrap_err().contains("4KiB to 1GiB"), "{text}");
        }
    }

    #[test]
    fn a_bound_leaves_explicit_buffers_alone() {
        let explicit = Buffer::Bytes(ByteSize(1 << 20));
        let profile = Profile { send_buffer: explicit, ..Profile::default() }.bounded(4 << 20);
        assert_eq!(profile.send_buffer, explicit);
        assert_eq!(profile.receive_buffer.bytes(), Some(1 << 20));
    }
}
