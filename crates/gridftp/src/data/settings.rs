//! How data connections are made.

use super::guard::Guard;
use super::turn::Carriers;
use phoebus_net::tcp::Tcp;
use phoebus_net::transport::Transport;
use phoebus_net::{Profile, Stats};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How data is transmitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// MODE S: the bytes as they are, over one connection that ends with them.
    #[default]
    Stream,
    /// MODE E: blocks that say where they belong, over any number of connections. The sender is the one that connects.
    Extended,
    /// MODE X: blocks as in MODE E, over connections that either end makes, none of which is kept.
    ExtendedBoth,
}

/// Whose connections are taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peers {
    /// Anybody's: third-party transfers, where the other end is not known, or proves who it is by itself.
    Anyone,
    /// Those from this address: the control connection's. Others are reset, and do not count.
    Only(IpAddr),
    /// Those from any of these: the control connection's, and gateways that carry sessions of clients.
    Among(Arc<[IpAddr]>),
}

impl Peers {
    /// Whether a connection from `address` is taken.
    pub fn allow(&self, address: IpAddr) -> bool {
        match self {
            Self::Anyone => true,
            Self::Only(only) => only.to_canonical() == address.to_canonical(),
            Self::Among(those) => those.iter().any(|one| one.to_canonical() == address.to_canonical()),
        }
    }
}

/// How data connections are made.
#[derive(Debug, Clone)]
pub struct Settings {
    /// What carries them.
    pub transport: Arc<dyn Transport>,
    /// Buffers, congestion control and the like. Buffers are left to the kernel unless somebody asks for others (U16).
    pub profile: Profile,
    /// Over how many connections extended blocks are received at most. 256 by default: more gain nothing, and each has a buffer.
    pub most: usize,
    /// Over how many connections MODE X receives where this end makes them. 1 by default.
    pub streams: u32,
    /// Which ports are listened on: any that is free, if none are given.
    pub ports: Option<RangeInclusive<u16>>,
    /// Whose connections are taken.
    pub from: Peers,
    /// Who has to be at the other end, and what protects the bytes; nobody asks, and nothing does, if there is none.
    pub guard: Option<Guard>,
    /// The threads of those whose bytes the kernel moves.
    pub carriers: Carriers,
    /// How long connecting may take, and how long a connection is waited for. 60 s by default: people who are asked by
    /// a firewall take as long.
    pub patience: Duration,
    /// How long a connection may take no bytes before sending is given up. 60 s by default, longer than a path that was cut
    /// and heals takes to be found again.
    pub stall: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            transport: Arc::new(Tcp),
            profile: Profile::default(),
            most: 256,
            streams: 1,
            ports: None,
            from: Peers::Anyone,
            guard: None,
            carriers: Carriers::default(),
            patience: Duration::from_secs(60),
            stall: Duration::from_secs(60),
        }
    }
}

/// How many segments connections had to send again, in all.
#[derive(Debug, Default)]
pub struct Losses {
    sent: AtomicU64,
    again: AtomicU64,
}

impl Losses {
    /// Fewer say nothing of a path.
    const MANY: u64 = 10_000;

    /// Adds what became of a connection.
    pub(super) fn add(&self, stats: &Stats) {
        self.sent.fetch_add(stats.segments_sent, Ordering::Relaxed);
        self.again.fetch_add(stats.retransmits, Ordering::Relaxed);
    }

    /// Which part of all it was; 0 before many were sent.
    pub fn rate(&self) -> f64 {
        let (sent, again) = (self.sent.load(Ordering::Relaxed), self.again.load(Ordering::Relaxed));
        if sent < Self::MANY { 0.0 } else { again as f64 / sent as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_the_same_in_either_family() {
        let only = Peers::Only("127.0.0.1".parse().unwrap());
        assert!(only.allow("::ffff:127.0.0.1".parse().unwrap()));
        assert!(!only.allow("127.0.0.2".parse().unwrap()));
        let among = Peers::Among(["192.0.2.1", "::1"].map(|text| text.parse().unwrap()).into());
        assert!(among.allow("::ffff:192.0.2.1".parse().unwrap()) && among.allow("::1".parse().unwrap()));
        assert!(!among.allow("192.0.2.2".parse().unwrap()));
        assert!(Peers::Anyone.allow("192.0.2.1".parse().unwrap()));
    }
}
