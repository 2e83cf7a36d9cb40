//! Two ways in which gateways could carry objects, compared on a simulated path of three links: they pass each datagram on
//! (`end`), or each hop is a transfer of its own, with repair, rate control and credit (`hop`).

use super::host::Host;
use super::link;
use phoebus_proto::control::{Factory, Model};
use phoebus_proto::object::packet::{Header, Kind};
use phoebus_proto::object::{Ack, Receiver, SendConfig, Sender, Shape};
use phoebus_wan::model::{DirectionConfig, LinkConfig};
use phoebus_wan::sim::{Datagram, End, Node, NodeId, Port, Simulator};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// The ports of a gateway: datagrams and the control stream, towards the sender and towards the receiver.
const UP: [Port; 2] = [Port(0), Port(1)];
const DOWN: [Port; 2] = [Port(2), Port(3)];
const SEAL: usize = 16;

/// A host or a gateway.
enum Place {
    End(Box<Host>),
    /// Passes everything on.
    Forwarder(VecDeque<(Port, Datagram)>),
    Hop(Box<Hop>),
}

/// A gateway that ends one transfer and begins another. A chunk goes on once it is complete.
struct Hop {
    receiver: Receiver,
    sender: Sender,
    outbox: VecDeque<(Port, Datagram)>,
    total: Option<u64>,
    passed: u64,
    is_finished: bool,
    credit_said: u64,
    /// Lengths of chunks that were announced and not passed on, and the parity packets that have come for them.
    lengths: BTreeMap<u64, u32>,
    parity: BTreeMap<u64, BTreeSet<u32>>,
    now: Duration,
}

fn message(port: Port, kind: u8, number: u64, len: u32) -> (Port, Datagram) {
    let mut bytes = vec![kind];
    bytes.extend(number.to_be_bytes());
    bytes.extend(len.to_be_bytes());
    (port, Datagram(bytes))
}

impl Hop {
    fn new(shape: Shape, buffers: u64, control: &dyn Factory) -> Self {
        let mut receiver = Receiver::new(shape);
        (0..buffers).for_each(|_| receiver.grant(Duration::ZERO));
        let sender = Sender::new(Duration::ZERO, shape, SendConfig::default(), control);
        let outbox = VecDeque::new();
        let (total, passed, is_finished, credit_said) = (None, 0, false, 0);
        let (lengths, parity, now) = (BTreeMap::new(), BTreeMap::new(), Duration::ZERO);
        Self { receiver, sender, outbox, total, passed, is_finished, credit_said, lengths, parity, now }
    }

    fn receive(&mut self, now: Duration, from: Port, bytes: &[u8]) {
        let number = || u64::from_be_bytes(bytes[1..9].try_into().unwrap());
        if from == DOWN[1] {
            return self.sender.raise_credit(number());
        }
        if from == UP[1] {
            match bytes[0] {
                b'c' => {
                    let len = u32::from_be_bytes(bytes[9..].try_into().unwrap());
                    self.lengths.insert(number(), len);
                    let complete = self.receiver.announce(number(), len).unwrap();
                    self.pass_on(complete);
                    self.restore(now, number());
                }
                _ => self.total = Some(self.receiver.announced()),
            }
            return;
        }
        let Some((header, body)) = Header::decode(bytes) else { return };
        let body = &body[..body.len() - SEAL];
        if from == DOWN[0] {
            return self.sender.handle_ack(now, &Ack::decode(body).unwrap()).unwrap();
        }
        if header.kind == Kind::Parity {
            if let Ok(place) = self.receiver.place_parity(&header, body.len()) {
                self.receiver.parity_arrived(now, &header, body.len());
                if let Some((chunk, parity)) = place {
                    self.parity.entry(chunk).or_default().insert(parity.number);
                    self.restore(now, chunk);
                }
            }
        } else if self.receiver.place(&header, body.len()).is_ok() {
            let complete = self.receiver.arrived(now, &header, body.len());
            self.pass_on(complete);
            self.restore(now, header.packet.chunk);
        }
    }

    /// A chunk is restored once as many parity packets have come as packets are missing.
    fn restore(&mut self, now: Duration, chunk: u64) {
        let Some(parity) = self.parity.get(&chunk) else { return };
        if self.receiver.missing(chunk).is_some_and(|missing| missing.len() <= parity.len()) {
            self.parity.remove(&chunk);
            let complete = self.receiver.restored(now, chunk);
            self.pass_on(complete);
        }
    }

    fn pass_on(&mut self, complete: Option<u64>) {
        let Some(len) = complete.and_then(|chunk| self.lengths.remove(&chunk)) else { return };
        self.passed += 1;
        self.outbox.push_back(message(DOWN[1], b'c', self.sender.push(len), len));
    }

    fn poll(&mut self, now: Duration) -> Option<(Port, Datagram)> {
        self.now = now;
        if let Some(first) = self.outbox.pop_front() {
            return Some(first);
        }
        self.sender.handle_timeout(now);
        while self.sender.poll_arrived().is_some() {
            // Its buffer is free.
            self.receiver.grant(now);
        }
        if self.total == Some(self.passed) && !self.is_finished {
            self.is_finished = true;
            self.sender.finish();
            self.outbox.push_back(message(DOWN[1], b'e', 0, 0));
        }
        if self.receiver.credit() > self.credit_said {
            self.credit_said = self.receiver.credit();
            self.outbox.push_back(message(UP[1], b'r', self.credit_said, 0));
        }
        let mut body = Vec::new();
        if let Some(header) = self.receiver.poll_transmit(now, 1400, &mut body) {
            self.outbox.push_back((UP[0], Datagram([&header.encode()[..], &body, &[0x5e; SEAL]].concat())));
        }
        while let Some(transmit) = self.sender.poll_transmit(now) {
            let mut bytes = transmit.header.encode().to_vec();
            bytes.resize(bytes.len() + transmit.len, 0);
            bytes.extend([0x5e; SEAL]);
            self.outbox.push_back((DOWN[0], Datagram(bytes)));
        }
        self.outbox.pop_front()
    }
}

impl Node for Place {
    type Packet = Datagram;

    fn receive(&mut self, now: Duration, from: Port, Datagram(bytes): Datagram) {
        match self {
            Self::End(host) => host.receive(now, from, Datagram(bytes)),
            Self::Hop(hop) => hop.receive(now, from, &bytes),
            Self::Forwarder(outbox) => {
                let to = UP.into_iter().zip(DOWN).find_map(|(up, down)| match from {
                    _ if from == up => Some(down),
                    _ if from == down => Some(up),
                    _ => None,
                });
                outbox.push_back((to.unwrap(), Datagram(bytes)));
            }
        }
    }

    fn poll(&mut self, now: Duration) -> Option<(Port, Datagram)> {
        match self {
            Self::End(host) => host.poll(now),
            Self::Hop(hop) => hop.poll(now),
            Self::Forwarder(outbox) => outbox.pop_front(),
        }
    }

    fn next_wakeup(&self) -> Option<Duration> {
        match self {
            Self::End(host) => host.next_wakeup(),
            Self::Hop(hop) => {
                let at = hop.sender.poll_timeout().into_iter().chain(hop.receiver.poll_timeout()).min();
                at.map(|at| at.max(hop.now))
            }
            Self::Forwarder(_) => None,
        }
    }
}

/// How gateways carry objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Relay {
    End,
    Hop,
}

/// The losses of the LANs and of the WAN, as texts.
pub(crate) struct Losses {
    pub(crate) lan: &'static str,
    pub(crate) wan: &'static str,
}

/// Seconds to the last byte of a transfer of `bytes`, and packets that crossed the WAN beyond those needed, as a share of these.
/// Links of 100 Mbit/s, round trips of 8 ms, 75 ms and 8 ms.
pub(crate) fn transfer(relay: Relay, bytes: u64, chunk_len: u32, losses: &Losses) -> (f64, f64) {
    let shape = Shape { chunk_len, ..super::SHAPE };
    let buffers = (96 << 20) / u64::from(chunk_len);
    let mut sim = Simulator::new();
    let gateway = || match relay {
        Relay::End => Place::Forwarder(VecDeque::new()),
        Relay::Hop => Place::Hop(Box::new(Hop::new(shape, buffers, &Model))),
    };
    let config = SendConfig { seed: 3, ..SendConfig::default() };
    let sender = Host::sends(shape, config, &Model, (bytes, buffers));
    // A hop numbers chunks anew, in the order in which they come.
    let receiver = Host::receives(shape, buffers as u32, Duration::ZERO).of_any_content();
    let places = [Place::End(Box::new(sender)), gateway(), gateway(), Place::End(Box::new(receiver))];
    let nodes: Vec<NodeId> = places.into_iter().map(|place| sim.add(place)).collect();
    let lan = |seed| queued(link(seed, "4ms", "100mbit", losses.lan), "400kB");
    let wan = queued(link(6, "37500us", "100mbit", losses.wan), "1MB");
    for (ends, link) in nodes.windows(2).zip([lan(5), wan, lan(7)]) {
        sim.join(ends[0], ends[1], &link);
        let mut control = link.clone();
        for direction in [&mut control.forward, &mut control.backward] {
            *direction = DirectionConfig { delay: direction.delay, rate: direction.rate, ..DirectionConfig::default() };
        }
        sim.join(ends[0], ends[1], &control);
    }
    let end = |sim: &Simulator<Place>, node: NodeId| match sim.node(node) {
        Place::End(host) => host.has_ended(),
        _ => false,
    };
    let (first, last) = (nodes[0], nodes[3]);
    let met = sim.run(Duration::from_secs(600), |sim| end(sim, first) && end(sim, last));
    assert_eq!(met, End::Met, "{relay:?} at {:?}", sim.now());
    let Place::End(receiver) = sim.node(last) else { unreachable!("the last place is an end") };
    let counters = match sim.node(nodes[1]) {
        Place::Hop(hop) => hop.sender.counters(),
        _ => match sim.node(first) {
            Place::End(sender) => sender.sending().sender.counters(),
            _ => unreachable!("the first place is an end"),
        },
    };
    let waste = (counters.sent - counters.needed) as f64 / counters.needed as f64;
    (receiver.receiving().complete_at.unwrap().as_secs_f64(), waste)
}

fn queued(mut link: LinkConfig, queue: &str) -> LinkConfig {
    (link.forward.queue, link.backward.queue) = (queue.parse().unwrap(), queue.parse().unwrap());
    link
}
