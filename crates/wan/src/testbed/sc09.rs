//! The path of the SC09 paper (`S30`): two ends and two gateways, with emulated links between them.

use super::scenario::{HostSpec, LinkSpec, Scenario};
use crate::model::{DirectionConfig, LinkConfig, Loss, Rate};
use phoebus_proto::units::{ByteSize, Span};
use std::num::NonZeroU64;
use std::time::Duration;

/// Settings of the path `src` – `pg1` – `pg2` – `dst`, whose links are `lan1`, `wan` and `lan2`.
#[derive(Debug, Clone, PartialEq)]
pub struct Sc09 {
    /// Round-trip time of the link between the gateways.
    pub wan_rtt: Span,
    /// Round-trip time of each of the two links to the ends.
    pub lan_rtt: Span,
    /// Random loss on `lan1` and `lan2`, in both directions.
    pub lan_loss: Loss,
    /// Random loss on `wan`, in both directions.
    pub wan_loss: Loss,
    /// Capacity of every link.
    pub rate: Rate,
    /// Queue of `lan1` and `lan2`, in each direction.
    pub lan_queue: ByteSize,
    /// Queue of `wan`, in each direction.
    pub wan_queue: ByteSize,
    /// MTU of every link.
    pub mtu: u16,
    /// Seeds the random draws of all links.
    pub seed: u64,
    /// Congestion control of `src` and `dst`.
    pub cc: Option<String>,
    /// Congestion control of `pg1` and `pg2`, for sockets that do not choose their own.
    pub gateway_cc: Option<String>,
    /// Keeps the system's TCP settings on the hosts.
    pub stock: bool,
}

impl Scenario {
    /// The path of the SC09 paper with its defaults.
    pub fn sc09() -> Self {
        Sc09::default().scenario()
    }
}

impl Default for Sc09 {
    /// The paper's 1 Gbit/s and LAN round trip of 8 ms, its middle loss, and a long WAN. The ends use cubic,
    /// as most hosts do. The queues hold 32 ms, as in campus switches, and 128 ms, about the WAN's
    /// bandwidth-delay product.
    fn default() -> Self {
        Self {
            wan_rtt: Span(Duration::from_millis(100)),
            lan_rtt: Span(Duration::from_millis(8)),
            lan_loss: Loss::Bernoulli(phoebus_proto::units::Probability::new(0.0001).unwrap_or_default()),
            wan_loss: Loss::none(),
            rate: NonZeroU64::new(1_000_000_000).map_or(Rate::Unlimited, Rate::Limited),
            lan_queue: ByteSize(4_000_000),
            wan_queue: ByteSize(16_000_000),
            mtu: LinkConfig::MTU_DEFAULT,
            seed: 1,
            cc: Some("cubic".into()),
            gateway_cc: None,
            stock: false,
        }
    }
}

impl Sc09 {
    /// The scenario with these settings.
    pub fn scenario(&self) -> Scenario {
        let end = |name| HostSpec { congestion_control: self.cc.clone(), ..HostSpec::new(name) };
        let gateway =
            |name| HostSpec { gateway: true, congestion_control: self.gateway_cc.clone(), ..HostSpec::new(name) };
        let lan = || self.direction(self.lan_rtt, self.lan_loss, self.lan_queue);
        let wan = self.direction(self.wan_rtt, self.wan_loss, self.wan_queue);
        let link = |offset, name: &str, a: &str, b: &str, direction| LinkSpec {
            name: name.into(),
            ends: [a.into(), b.into()],
            config: LinkConfig { mtu: self.mtu, ..LinkConfig::symmetric(self.seed.wrapping_add(offset), direction) },
        };
        Scenario {
            hosts: vec![end("src"), gateway("pg1"), gateway("pg2"), end("dst")],
            links: vec![
                link(0, "lan1", "src", "pg1", lan()),
                link(1, "wan", "pg1", "pg2", wan),
                link(2, "lan2", "pg2", "dst", lan()),
            ],
            stock: self.stock,
        }
    }

    fn direction(&self, rtt: Span, loss: Loss, queue: ByteSize) -> DirectionConfig {
        DirectionConfig { delay: Span(rtt.0 / 2), loss, rate: self.rate, queue, ..DirectionConfig::default() }
    }
}
