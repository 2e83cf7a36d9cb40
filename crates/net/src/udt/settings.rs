//! Turns a profile into the settings of a UDT connection.

use crate::congestion_control::CongestionControl;
use crate::profile::Profile;
use crate::{Buffer, sys, wire};
use phoebus_proto::control::{Factory, Fixed, Model, Native};
use phoebus_proto::udt::{Config, ConfigError, MSS_MAX, MSS_MIN};
use phoebus_proto::units::{BitRate, ByteSize};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// MSS in bytes, unless a profile sets one: Ethernet's MTU. The handshake detects a path that carries less;
/// one that carries more is rare enough to be configured.
const MSS: u32 = 1500;
/// Length of the IPv4 and UDP headers, in bytes, which UDT counts as part of its packets.
pub(super) const IP_UDP_LEN: u32 = 28;
/// Difference between the IPv6 header and the IPv4 header that UDT counts, in bytes.
const IPV6_EXTRA: u32 = 20;
/// Size of a buffer in packets, unless a profile sets one: 95 MB, four times what 1 Gbit/s needs at 190 ms.
/// That much queues when a router queue of one round trip overflows: the report of the loss takes two round
/// trips, and the repairs as long again. Memory is used only as packets arrive.
const BUFFER: u32 = 65_536;
/// Payload of a packet of 1500 bytes, in which buffers are counted.
const PAYLOAD: u64 = 1456;

/// The settings for connections to `peer`, or for those accepted at the address `peer`, under `profile`.
///
/// # Errors
/// `InvalidInput`, with a sentence that names the unsupported setting.
pub(super) fn config(profile: &Profile, peer: SocketAddr, limit: Option<Duration>) -> io::Result<Config> {
    let mss = mss(profile, peer)?;
    let rate_limit = rate_limit(profile.rate, mss, peer.is_ipv6());
    let mut config = Config {
        mss,
        send_buffer: packets(profile.send_buffer),
        receive_buffer: packets(profile.receive_buffer),
        accept_buffer: accept_buffer(profile.handshake_buffer, mss),
        rate_limit,
        idle_timeout: profile.idle_timeout.0,
        control: control(profile.congestion_control, rate_limit)?,
        ..Config::default()
    };
    if let Some(limit) = limit {
        (config.connect_timeout, config.rendezvous_timeout) = (limit, limit);
    }
    config.check().map_err(invalid)?;
    Ok(config)
}

/// The limit that keeps packets of `mss` bytes within `rate` on the link. UDT counts a packet's bytes from
/// the IP header on, and assumes IPv4 headers.
pub(super) fn rate_limit(rate: Option<BitRate>, mss: u32, is_ipv6: bool) -> Option<u64> {
    let extra = if is_ipv6 { IPV6_EXTRA } else { 0 };
    rate.map(|rate| wire::share(rate, mss.into(), extra.into()).0)
}

/// Creates the requested congestion control.
///
/// # Errors
/// `InvalidInput`, with a message, for one that UDT does not have, and for `fixed` without a rate.
pub(super) fn control(asked: CongestionControl, rate: Option<u64>) -> io::Result<Arc<dyn Factory>> {
    Ok(match (asked, rate) {
        (CongestionControl::Auto | CongestionControl::Model, _) => Arc::new(Model),
        (CongestionControl::Native, _) => Arc::new(Native),
        (CongestionControl::Fixed, Some(bits_per_second)) => Arc::new(Fixed { bits_per_second }),
        (CongestionControl::Fixed, None) => return Err(invalid("congestion control \"fixed\" needs a rate")),
        _ => {
            return Err(invalid(format!(
                "UDT has no \"{asked}\"; its congestion controls are model, native and fixed"
            )));
        }
    })
}

fn mss(profile: &Profile, peer: SocketAddr) -> io::Result<u32> {
    let extra = if peer.is_ipv6() { IPV6_EXTRA } else { 0 };
    match profile.mss {
        Some(mss) if (MSS_MIN..=MSS_MAX).contains(&mss) => Ok(mss),
        Some(mss) => Err(invalid(ConfigError::Mss(mss))),
        // The MTU of the first link is known.
        None if !peer.ip().is_unspecified() => Ok(sys::path_mtu(peer).unwrap_or(MSS).clamp(576, MSS) - extra),
        None => Ok(MSS - extra),
    }
}

fn packets(buffer: Buffer) -> u32 {
    let Some(bytes) = buffer.bytes() else { return BUFFER };
    let packets = u32::try_from(bytes.div_ceil(PAYLOAD)).unwrap_or(u32::MAX);
    packets.clamp(Config::BUFFER_MIN, Config::BUFFER_MAX)
}

/// The number of packets whose slots together take `bytes`, however full they are.
fn accept_buffer(ByteSize(bytes): ByteSize, mss: u32) -> u32 {
    let packets = u32::try_from(bytes / u64::from(mss)).unwrap_or(u32::MAX);
    packets.clamp(Config::BUFFER_MIN, Config::BUFFER_MAX)
}

fn invalid(reason: impl ToString) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, reason.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn profile_maps_to_udt_settings() {
        let profile = Profile {
            send_buffer: Buffer::Bytes(ByteSize(14_560)),
            receive_buffer: Buffer::Bytes(ByteSize(1 << 30)),
            congestion_control: CongestionControl::Fixed,
            rate: Some(BitRate(100_000_000)),
            mss: Some(9000),
            ..Profile::default()
        };
        let config = config(&profile, peer("192.0.2.1:9"), Some(Duration::from_secs(1))).unwrap();
        assert_eq!((config.send_buffer, config.receive_buffer), (32, 737_461));
        assert_eq!(config.accept_buffer, 32, "jumbo packets take as many, and no fewer than libudt allows");
        assert_eq!((config.mss, config.rate_limit, config.control.name()), (9000, Some(99_579_552), "fixed"));
        assert_eq!(config.connect_timeout, Duration::from_secs(1));
    }

    #[test]
    fn defaults_are_model_control_and_ethernet_packets() {
        let profile = Profile::default();
        let v4 = config(&profile, peer("127.0.0.1:9"), None).unwrap();
        assert_eq!((v4.mss, v4.send_buffer, v4.control.name()), (1500, BUFFER, "model"));
        // 1480, and the 20 that UDT does not count.
        assert_eq!(config(&profile, peer("[::]:9"), None).unwrap().mss, 1480);
    }

    #[test]
    fn errors_name_the_unsupported_setting() {
        let message = |profile: Profile| config(&profile, peer("127.0.0.1:9"), None).unwrap_err().to_string();
        let other = |congestion_control| Profile { congestion_control, ..Profile::default() };
        assert!(message(other(CongestionControl::Cubic)).contains("no \"cubic\""));
        assert!(message(other(CongestionControl::Fixed)).contains("needs a rate"));
        assert!(message(Profile { mss: Some(10), ..Profile::default() }).contains("expected 92 to 65535"));
    }
}
