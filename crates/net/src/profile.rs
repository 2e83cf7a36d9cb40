//! The settings of a transport on a segment (P37, S13, S14, U16), as written in a configuration file: buffers,
//! congestion control, rate, connections, time-outs.

use crate::congestion_control::CongestionControl;
use phoebus_proto::units::{BitRate, ByteSize, Span};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// How connections on one segment are set up, whatever transport carries them. A setting that only TCP, QUIC
/// or UDT uses says so, and the others ignore it. A socket gets its profile before it connects or listens,
/// because TCP's SYN fixes window scaling and the initial congestion window, and the handshakes of QUIC and
/// UDT fix their buffers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Profile {
    /// The profile's name in the configuration: connections to one neighbour with the same name share their
    /// rate.
    #[serde(skip)]
    pub name: Arc<str>,
    /// Send buffer. `auto` leaves it to the kernel: a fixed one, even of the bandwidth-delay product, cuts
    /// throughput (U16). A fixed size bounds the memory that a stalled receiver can hold.
    pub send_buffer: Buffer,
    /// Receive buffer, set independently of the send buffer (P37).
    pub receive_buffer: Buffer,
    /// Bytes that the peer of an accepted UDT connection may have waiting to be read until the owner allows
    /// it the whole receive buffer ([`Stream::widen`](crate::Stream::widen)). 256 KiB by default: several
    /// times the longest handshake of TLS and of a session, and little enough for a thousand strangers. Over
    /// QUIC, all such streams of a connection share four times as much, and less where one source has many
    /// connections.
    pub handshake_buffer: ByteSize,
    /// Congestion control of the sending direction.
    pub congestion_control: CongestionControl,
    /// Sends small segments at once (`TCP_NODELAY`). On by default: a relay that waited for more bytes would
    /// add its delay to the session's.
    pub no_delay: bool,
    /// Longest time for which a peer may acknowledge nothing while bytes are outstanding; after it the
    /// connection counts as dead. 5 minutes by default: far longer than a route takes to recover, far shorter
    /// than the kernel's own 15 minutes.
    ///
    /// The stream's owner measures it ([`crate::Stats::unheard`]) instead of `TCP_USER_TIMEOUT`: since Linux
    /// 5.11, the kernel also ends a connection whose receiver has merely stopped reading and answers every
    /// window probe.
    pub user_timeout: Span,
    /// Longest silence of a UDT or QUIC peer, whose idle connections send keep-alives. 30 s by default: a
    /// route recovers within 10 s, or not soon. On QUIC, the smaller value of both ends applies.
    pub idle_timeout: Span,
    /// Idle time after which the kernel sends a keep-alive probe. 60 s by default, below the time-outs of
    /// most address translators.
    pub keepalive_idle: Span,
    /// Time between two keep-alive probes.
    pub keepalive_interval: Span,
    /// Number of unanswered probes after which the connection counts as dead.
    pub keepalive_probes: u32,
    /// Number of connections of each hop to a peer, which share the bytes of each session. 1 by default: one
    /// connection fills the path if its congestion control copes with the loss. Several help where only cubic
    /// or reno is available, or where the host limits buffers.
    pub streams: u16,
    /// TCP fast open: HELLO and OPEN in the SYN (RFC 7413).
    pub fast_open: bool,
    /// Multipath TCP (RFC 8684), where kernel and peer support it.
    pub multipath: bool,
    /// Greatest sending rate, as the link counts it, with headers and framing ([`crate::wire`]): the rate of
    /// a circuit, for example (S17, S25). A connection starts with all of it; where several connections share
    /// it, their owner divides it ([`Change::Rate`](crate::transport::Change::Rate)). Unlimited by default.
    pub rate: Option<BitRate>,
    /// Largest IP packet of UDT, in bytes, its header included. 1500 by default, or the MTU of the first link
    /// if that is smaller. The handshake detects a path that carries less; a larger size must be configured.
    pub mss: Option<u32>,
    /// Capacity of the segment. Used only for advice: with it, buffers that the host's limits keep below the
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
    /// Limits both buffers together to `total` bytes per direction where the profile leaves them to the
    /// kernel: half for sending and half for receiving. The kernel doubles the requested size to account for
    /// its overhead.
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

    /// Divides buffers of fixed size among the connections of a hop, so that all together use the configured
    /// size.
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

/// The smallest buffer, in bytes: below a page the kernel rounds up anyway.
const BUFFER_MIN: u64 = 4096;

/// A socket buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Buffer {
    /// Grown by the kernel as needed, up to the host's maximum.
    #[default]
    Auto,
    /// A fixed number of bytes of data.
    Bytes(ByteSize),
}

impl Buffer {
    /// The size, if it is fixed.
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
            // The largest size whose double, which `setsockopt` uses, stays within its `int`.
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
    fn buffers_print_as_they_are_parsed() {
        for text in ["auto", "8MiB", "4KiB"] {
            assert_eq!(text.parse::<Buffer>().unwrap().to_string(), text);
        }
        for text in ["1", "2GiB", "big", ""] {
            assert!(text.parse::<Buffer>().unwrap_err().contains("4KiB to 1GiB"), "{text}");
        }
    }

    #[test]
    fn bound_leaves_fixed_buffers_alone() {
        let explicit = Buffer::Bytes(ByteSize(1 << 20));
        let profile = Profile { send_buffer: explicit, ..Profile::default() }.bounded(4 << 20);
        assert_eq!(profile.send_buffer, explicit);
        assert_eq!(profile.receive_buffer.bytes(), Some(1 << 20));
    }
}
