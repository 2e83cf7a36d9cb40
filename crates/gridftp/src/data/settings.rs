//! Settings of data connections.

use super::known_paths::KnownPaths;
use super::object_memory::ObjectMemory;
use super::objects::Objects;
use super::security::ChannelSecurity;
use super::time_slice::IoThreads;
use phoebus_net::Profile;
use phoebus_net::tcp::Tcp;
use phoebus_net::transport::Transport;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

/// The mode of transmission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// MODE S: plain bytes over one connection, whose end is the end of data.
    #[default]
    Stream,
    /// MODE E: blocks with offsets, over several connections. The sender connects.
    Extended,
}

/// Peers that may connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peers {
    /// Anybody: third-party transfers, whose peer is unknown, or authenticated peers.
    Anyone,
    /// This address: that of the control connection. Others are reset and do not count.
    Only(IpAddr),
    /// These addresses: that of the control connection, and gateways that carry clients' sessions.
    Among(Arc<[IpAddr]>),
}

impl Peers {
    /// Whether a connection from `address` is accepted.
    pub fn allow(&self, address: IpAddr) -> bool {
        match self {
            Self::Anyone => true,
            Self::Only(only) => only.to_canonical() == address.to_canonical(),
            Self::Among(those) => those.iter().any(|one| one.to_canonical() == address.to_canonical()),
        }
    }
}

/// Settings of data connections.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The transport.
    pub transport: Arc<dyn Transport>,
    /// Whether extended blocks go as objects over UDP, and how. The connections of `transport` then carry control messages.
    pub objects: Option<Objects>,
    /// The memory that chunks of received objects take their part of. `None`: as much as the settings of objects say.
    pub object_memory: Option<ObjectMemory>,
    /// What is known of paths to other hosts, for objects.
    pub known_paths: KnownPaths,
    /// For objects: how long the first datagram may take from one end to the other and back. 10 s by default: time
    /// for some twenty checks, of which one has to get through.
    pub datagram_timeout: Duration,
    /// Buffers, congestion control and the like. The kernel chooses buffers unless they are set (U16).
    pub profile: Profile,
    /// Most connections on which extended blocks are received. 256 by default: more gain nothing, and each has a
    /// buffer.
    pub most: usize,
    /// Ports to listen on. `None`: any free port.
    pub ports: Option<RangeInclusive<u16>>,
    /// Peers that may connect.
    pub from: Peers,
    /// Authentication and protection. `None`: neither.
    pub security: Option<ChannelSecurity>,
    /// Threads for connections whose bytes the kernel moves.
    pub io_threads: IoThreads,
    /// Limit for connecting, and for awaiting a connection. 60 s by default: long enough for a person to answer a
    /// firewall's question.
    pub reply_timeout: Duration,
    /// Longest time without progress when sending. 60 s by default, longer than a path usually takes to recover.
    pub stall_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            transport: Arc::new(Tcp),
            objects: None,
            object_memory: None,
            known_paths: KnownPaths::default(),
            datagram_timeout: Duration::from_secs(10),
            profile: Profile::default(),
            most: 256,
            ports: None,
            from: Peers::Anyone,
            security: None,
            io_threads: IoThreads::default(),
            reply_timeout: Duration::from_secs(60),
            stall_timeout: Duration::from_secs(60),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_addresses_equal_ipv4_addresses() {
        let only = Peers::Only("127.0.0.1".parse().unwrap());
        assert!(only.allow("::ffff:127.0.0.1".parse().unwrap()));
        assert!(!only.allow("127.0.0.2".parse().unwrap()));
        let among = Peers::Among(["192.0.2.1", "::1"].map(|text| text.parse().unwrap()).into());
        assert!(among.allow("::ffff:192.0.2.1".parse().unwrap()) && among.allow("::1".parse().unwrap()));
        assert!(!among.allow("192.0.2.2".parse().unwrap()));
        assert!(Peers::Anyone.allow("192.0.2.1".parse().unwrap()));
    }
}
