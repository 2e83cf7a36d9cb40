//! Protocols over emulated links in virtual time: hours in milliseconds, the same with every run.
//!
//! The parties of a protocol are [`Node`]s, state machines like the [links](crate::model) between them: packets in, packets
//! out, next wake-up. The [`Simulator`] owns both, and the only clock. Here is one that sends a datagram across a link and is
//! sent it back:
//!
//! ```
//! use phoebus_wan::model::LinkConfig;
//! use phoebus_wan::sim::{Datagram, End, Node, Port, Simulator};
//! use std::time::Duration;
//!
//! /// Sends whatever it has.
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

/// A party of a protocol. Its contract is that of [`crate::model::OneWay`]; a box of a node is a node, so that nodes of
/// different types can share a simulator as `Box<dyn Node<Packet = Datagram>>`.
pub trait Node {
    /// What it exchanges with its neighbours.
    type Packet: Packet;

    /// Takes a packet that has arrived.
    fn receive(&mut self, now: Duration, from: Port, packet: Self::Packet);

    /// The next packet that it sends, if it has one to send by `now`; it is asked until it has none.
    fn poll(&mut self, now: Duration) -> Option<(Port, Self::Packet)>;

    /// When it wants to be asked again, unless something arrives before. A time that has come by the time of a poll that gave
    /// nothing ends the simulation as [`End::Stuck`].
    fn next_wakeup(&self) -> Option<Duration>;
}

/// One of a node's links: the first that it was joined to is `Port(0)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Port(pub usize);

/// A node of a simulator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeId(usize);

/// A link of a simulator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkId(usize);

/// Why a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum End {
    /// The condition came true.
    Met,
    /// The time limit was reached; the clock shows it.
    TimedOut,
    /// Nothing will ever happen again: nothing is under way, and no node wants to be woken.
    Idle,
    /// Time stands still: a node wants to be woken now and then does nothing, or packets go around without delay for ever.
    Stuck,
}

/// Nodes, the links between them, and the clock.
#[derive(Debug)]
pub struct Simulator<N: Node> {
    now: Duration,
    nodes: Vec<(N, Vec<Attachment>)>,
    links: Vec<Joint<N::Packet>>,
}

/// Where a port leads.
#[derive(Debug, Clone, Copy)]
struct Attachment {
    link: usize,
    outward: Direction,
}

/// A link, and whom it delivers to, by direction.
#[derive(Debug)]
struct Joint<P> {
    link: Link<P>,
    receivers: [(usize, Port); 2],
}

/// A UDP datagram over IPv4, the packet of most protocol tests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Datagram(
    /// The payload.
    pub Vec<u8>,
);

impl<N: Node> Simulator<N> {
    /// Packets that may move in one instant. More is taken for a loop without delay.
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

    /// Joins two nodes of this simulator by a link, at the next port of each. From `a` to `b` is forward.
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

    /// The time that has passed.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// A node.
    pub fn node(&self, id: NodeId) -> &N {
        &self.nodes[id.0].0
    }

    /// A node, to be changed: the next run sees what it wants.
    pub fn node_mut(&mut self, id: NodeId) -> &mut N {
        &mut self.nodes[id.0].0
    }

    /// A link, to be changed or cut.
    pub fn link_mut(&mut self, id: LinkId) -> &mut Link<N::Packet> {
        &mut self.links[id.0].link
    }

    /// The counters of a link.
    pub fn counters(&mut self, id: LinkId) -> LinkCounters {
        self.links[id.0].link.counters(self.now)
    }

    /// Runs until `met` is true, which is looked at before every advance of the clock, or until the clock shows `limit`.
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

    /// Moves every packet that is ready one step, and returns how many were.
    fn exchange(&mut self) -> u32 {
        let (now, mut moves) = (self.now, 0);
        for (node, ports) in &mut self.nodes {
            while let Some((port, packet)) = node.poll(now) {
                moves += 1;
                // What is sent into a port without a link goes nowhere.
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
    /// IPv4 and UDP headers.
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
        // A datagram is one segment, which has no inner boundary; what would be behind it is empty.
        debug_assert!(false, "split of a datagram at {at}");
        Self(Vec::new())
    }
}

#[cfg(test)]
mod tests;
