//! Protocols over emulated links in virtual time: hours pass in milliseconds, and every run is identical.
//!
//! The parties of a protocol are [`Node`]s, state machines like the [links](crate::model) between them:
//! packets in, packets out, next wake-up. The [`Simulator`] owns both, and the only clock. This example
//! bounces a datagram across a link:
//!
//! ```
//! use phoebus_wan::model::LinkConfig;
//! use phoebus_wan::sim::{Datagram, End, Node, Port, Simulator};
//! use std::time::Duration;
//!
//! /// Returns every packet that it receives.
//! #[derive(Default)]
//! struct Reflector(Vec<Datagram>);
//!
//! impl Node for Reflector {
//!     type Packet = Datagram;
//!     fn receive(&mut self, _now: Duration, _from: Port, packet: Datagram) {
//!         self.0.push(packet);
//!     }
//!     fn poll(&mut self, _now: Duration) -> Option<(Port, Datagram)> {
//!         self.0.pop().map(|packet| (Port(0), packet))
//!     }
//!     fn next_wakeup(&self) -> Option<Duration> {
//!         None
//!     }
//! }
//!
//! let mut link = LinkConfig::default();
//! link.forward.delay = "30ms".parse()?;
//! link.backward.delay = "40ms".parse()?;
//! let mut sim = Simulator::new();
//! let near = sim.add(Reflector(vec![Datagram(b"hello".to_vec())]));
//! let far = sim.add(Reflector::default());
//! let link = sim.join(near, far, &link);
//! // Until the datagram has come back four times, and for at most a minute.
//! let end = sim.run(Duration::from_secs(60), |sim| sim.counters(link).backward.packets_out == 4);
//! assert_eq!(end, End::Met);
//! assert_eq!(sim.now(), Duration::from_millis(4 * 70));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::model::{Direction, Link, LinkConfig, LinkCounters, Packet};
use std::time::Duration;

/// A party of a protocol. Its contract is that of [`crate::model::OneWay`]. A boxed node is a node, so nodes
/// of different types can share a simulator as `Box<dyn Node<Packet = Datagram>>`.
pub trait Node {
    /// The packets that it exchanges with its neighbours.
    type Packet: Packet;

    /// Receives a packet.
    fn receive(&mut self, now: Duration, from: Port, packet: Self::Packet);

    /// The next packet that the node sends by `now`; called until it returns `None`.
    fn poll(&mut self, now: Duration) -> Option<(Port, Self::Packet)>;

    /// When the node wants to be polled next, unless a packet arrives before. If that time has passed and a
    /// poll returns nothing, the simulation ends as [`End::Stuck`].
    fn next_wakeup(&self) -> Option<Duration>;
}

/// One of a node's links: the first one joined is `Port(0)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Port(pub usize);

/// Identifies a node of a simulator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeId(usize);

/// Identifies a link of a simulator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkId(usize);

/// The reason why a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum End {
    /// The condition came true.
    Met,
    /// The time limit was reached; the clock shows it.
    TimedOut,
    /// Nothing can happen any more: no packet is in flight, and no node wants to be woken.
    Idle,
    /// Time does not advance: a node wants to be woken at once but does nothing, or packets circulate for
    /// ever without delay.
    Stuck,
}

/// Nodes, the links between them, and the clock.
#[derive(Debug)]
pub struct Simulator<N: Node> {
    now: Duration,
    nodes: Vec<(N, Vec<Attachment>)>,
    links: Vec<Joint<N::Packet>>,
}

/// The link behind a port.
#[derive(Debug, Clone, Copy)]
struct Attachment {
    link: usize,
    outward: Direction,
}

/// A link, with the receiver of each direction.
#[derive(Debug)]
struct Joint<P> {
    link: Link<P>,
    receivers: [(usize, Port); 2],
}

/// A UDP datagram over IPv4, the packet type of most protocol tests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Datagram(
    /// The payload.
    pub Vec<u8>,
);

impl<N: Node> Simulator<N> {
    /// Most packets that may move at one instant; more counts as a loop without delay.
    pub const MOVES_PER_INSTANT_MAX: u32 = 1_000_000;

    /// An empty simulation at time zero.
    pub fn new() -> Self {
        Self { now: Duration::ZERO, nodes: Vec::new(), links: Vec::new() }
    }

    /// Adds a node.
    pub fn add(&mut self, node: N) -> NodeId {
        self.nodes.push((node, Vec::new()));
        NodeId(self.nodes.len() - 1)
    }

    /// Joins two nodes by a link, at the next port of each. The direction from `a` to `b` is forward.
    pub fn join(&mut self, a: NodeId, b: NodeId, config: &LinkConfig) -> LinkId {
        let link = self.links.len();
        let mut attach = |node: NodeId, outward| {
            let ports = &mut self.nodes[node.0].1;
            ports.push(Attachment { link, outward });
            (node.0, Port(ports.len() - 1))
        };
        let a = attach(a, Direction::Forward);
        let b = attach(b, Direction::Backward);
        self.links.push(Joint { link: Link::new(config), receivers: [b, a] });
        LinkId(link)
    }

    /// The current virtual time.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// A node.
    pub fn node(&self, id: NodeId) -> &N {
        &self.nodes[id.0].0
    }

    /// A node, for changes: the next run sees its new wishes.
    pub fn node_mut(&mut self, id: NodeId) -> &mut N {
        &mut self.nodes[id.0].0
    }

    /// A link, for changes or to cut it.
    pub fn link_mut(&mut self, id: LinkId) -> &mut Link<N::Packet> {
        &mut self.links[id.0].link
    }

    /// The counters of a link.
    pub fn counters(&mut self, id: LinkId) -> LinkCounters {
        self.links[id.0].link.counters(self.now)
    }

    /// Runs until `met` returns true, checked before every advance of the clock, or until the clock reaches
    /// `limit`.
    pub fn run(&mut self, limit: Duration, mut met: impl FnMut(&mut Self) -> bool) -> End {
        loop {
            let mut moves = 0;
            loop {
                match self.exchange() {
                    0 => break,
                    moved => moves += moved,
                }
                if moves > Self::MOVES_PER_INSTANT_MAX {
                    return End::Stuck;
                }
            }
            if met(self) {
                return End::Met;
            }
            let Some(next) = self.next_wakeup() else { return End::Idle };
            if next > limit {
                self.now = self.now.max(limit);
                return End::TimedOut;
            }
            if next <= self.now {
                return End::Stuck;
            }
            self.now = next;
        }
    }

    /// Moves every ready packet one step, and returns their number.
    fn exchange(&mut self) -> u32 {
        let (now, mut moves) = (self.now, 0);
        for (node, ports) in &mut self.nodes {
            while let Some((port, packet)) = node.poll(now) {
                moves += 1;
                // Packets sent to a port without a link are dropped.
                if let Some(Attachment { link, outward }) = ports.get(port.0) {
                    self.links[*link].link.way(*outward).push(now, packet);
                }
                if moves > Self::MOVES_PER_INSTANT_MAX {
                    return moves;
                }
            }
        }
        for Joint { link, receivers } in &mut self.links {
            for direction in Direction::BOTH {
                let (node, port) = receivers[direction as usize];
                while let Some(packet) = link.way(direction).poll(now) {
                    moves += 1;
                    self.nodes[node].0.receive(now, port, packet);
                }
            }
        }
        moves
    }

    fn next_wakeup(&self) -> Option<Duration> {
        let nodes = self.nodes.iter().filter_map(|(node, _)| node.next_wakeup());
        nodes.chain(self.links.iter().filter_map(|joint| joint.link.next_wakeup())).min()
    }
}

impl<N: Node> Default for Simulator<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<N: Node + ?Sized> Node for Box<N> {
    type Packet = N::Packet;

    fn receive(&mut self, now: Duration, from: Port, packet: Self::Packet) {
        (**self).receive(now, from, packet);
    }

    fn poll(&mut self, now: Duration) -> Option<(Port, Self::Packet)> {
        (**self).poll(now)
    }

    fn next_wakeup(&self) -> Option<Duration> {
        (**self).next_wakeup()
    }
}

impl Datagram {
    /// Length of the IPv4 and UDP headers, in bytes.
    pub const HEADER_BYTES: u64 = 20 + 8;
}

impl Packet for Datagram {
    fn segments(&self) -> u32 {
        1
    }

    fn segment_bytes(&self) -> u32 {
        u32::try_from(self.bytes()).unwrap_or(u32::MAX)
    }

    fn bytes(&self) -> u64 {
        self.0.len() as u64 + Self::HEADER_BYTES
    }

    fn split_off(&mut self, at: u32) -> Self {
        // A datagram is a single segment and cannot be split.
        debug_assert!(false, "split of a datagram at {at}");
        Self(Vec::new())
    }
}

#[cfg(test)]
mod tests;
