//! Simulated hosts that send and receive objects. The control stream is a link of its own that loses nothing.

use phoebus_proto::control::{Factory, SharedControl};
use phoebus_proto::object::packet::{HEADER_LEN, Header, Kind, PacketNumber};
use phoebus_proto::object::parity::{self, ParityNumber};
use phoebus_proto::object::{Ack, Receiver, SendConfig, Sender, Shape, Unplaced};
use phoebus_wan::model::{LinkConfig, Rng};
use phoebus_wan::sim::{Datagram, LinkId, Node, NodeId, Port, Simulator};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The port of the datagrams, and that of the control stream.
const DATAGRAMS: Port = Port(0);
const CONTROL: Port = Port(1);
/// A byte that stands for the seal's bytes.
const SEAL: [u8; 16] = [0x5e; 16];

/// A host at one end of a transfer.
pub(crate) struct Host {
    role: Role,
    outbox: VecDeque<(Port, Datagram)>,
    now: Duration,
    faults: Faults,
    rng: Rng,
}

/// Faults of incoming datagrams, as probabilities.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Faults {
    /// The datagram arrives twice.
    pub(crate) duplicate: f64,
    /// The seal is broken: the datagram is dropped.
    pub(crate) corrupt: f64,
}

enum Role {
    Sends(Box<Sending>),
    Receives(Box<Receiving>),
}

/// The sending end.
pub(crate) struct Sending {
    pub(crate) sender: Sender,
    /// Bytes of all chunks, and those still to be put into chunks.
    all: u64,
    left: u64,
    chunk_len: u32,
    /// Chunks that may be in flight.
    buffers: u64,
    pub(crate) done_at: Option<Duration>,
    failed: bool,
}

/// The receiving end.
pub(crate) struct Receiving {
    pub(crate) receiver: Receiver,
    /// The chunks in flight.
    chunks: VecDeque<Vec<u8>>,
    first: u64,
    packet_len: usize,
    /// Parity packets of chunks.
    parity: BTreeMap<u64, Parity>,
    /// Complete chunks, and when each is written.
    writing: VecDeque<(Duration, u64)>,
    /// How long a chunk takes to be written.
    write_time: Duration,
    pub(crate) written: u64,
    pub(crate) bytes: u64,
    /// Bytes of fresh packets, for rates.
    pub(crate) fresh: u64,
    pub(crate) complete_at: Option<Duration>,
    /// Number of chunks, once the sender has said so.
    total: Option<u64>,
    credit_said: u64,
    /// Whether the content is checked.
    checks: bool,
}

/// How many parity packets a chunk has, and those that have arrived.
type Parity = (u32, Vec<(u32, Vec<u8>)>);

/// The byte at `at` of chunk `chunk`.
fn pattern(chunk: u64, at: usize) -> u8 {
    (chunk.wrapping_mul(31) as usize ^ at ^ (at >> 8) ^ (at >> 16)) as u8
}

impl Host {
    pub(crate) fn sends(shape: Shape, config: SendConfig, control: &dyn Factory, content: (u64, u64)) -> Self {
        Self::sends_sharing(shape, config, control, content, &SharedControl::default())
    }

    /// The same with the control of other transfers.
    pub(crate) fn sends_sharing(
        shape: Shape,
        config: SendConfig,
        control: &dyn Factory,
        (bytes, buffers): (u64, u64),
        shared: &SharedControl,
    ) -> Self {
        let seed = config.seed;
        let sender = Sender::sharing(Duration::ZERO, shape, config, control, shared);
        let (left, chunk_len) = (bytes, shape.chunk_len);
        let sending = Sending { sender, all: bytes, left, chunk_len, buffers, done_at: None, failed: false };
        Self::new(Role::Sends(Box::new(sending)), seed)
    }

    pub(crate) fn receives(shape: Shape, window: u32, write_time: Duration) -> Self {
        let mut receiver = Receiver::new(shape);
        (0..window).for_each(|_| receiver.grant(Duration::ZERO));
        let receiving = Receiving {
            receiver,
            chunks: VecDeque::new(),
            first: 0,
            packet_len: shape.packet_len as usize,
            parity: BTreeMap::new(),
            writing: VecDeque::new(),
            write_time,
            written: 0,
            bytes: 0,
            fresh: 0,
            complete_at: None,
            total: None,
            credit_said: 0,
            checks: true,
        };
        Self::new(Role::Receives(Box::new(receiving)), 77)
    }

    fn new(role: Role, seed: u64) -> Self {
        Self { role, outbox: VecDeque::new(), now: Duration::ZERO, faults: Faults::default(), rng: Rng::new(seed) }
    }

    pub(crate) fn with(mut self, faults: Faults) -> Self {
        self.faults = faults;
        self
    }

    /// The same for chunks whose content is not that of their number.
    pub(crate) fn of_any_content(mut self) -> Self {
        if let Role::Receives(receiving) = &mut self.role {
            receiving.checks = false;
        }
        self
    }

    pub(crate) fn sending(&self) -> &Sending {
        match &self.role {
            Role::Sends(sending) => sending,
            Role::Receives(_) => panic!("this host receives"),
        }
    }

    pub(crate) fn receiving(&self) -> &Receiving {
        match &self.role {
            Role::Receives(receiving) => receiving,
            Role::Sends(_) => panic!("this host sends"),
        }
    }

    /// Whether the transfer has failed or ended at this end.
    pub(crate) fn has_ended(&self) -> bool {
        match &self.role {
            Role::Sends(sending) => sending.failed || sending.sender.is_done(),
            Role::Receives(receiving) => receiving.complete_at.is_some(),
        }
    }

    fn datagram(&mut self, now: Duration, bytes: &[u8]) {
        let Some((header, body)) = Header::decode(bytes) else { return };
        let Some(body) = body.strip_suffix(&SEAL) else { return };
        match &mut self.role {
            Role::Sends(sending) => {
                assert_eq!(header.kind, Kind::Ack);
                let ack = Ack::decode(body).expect("an acknowledgement is malformed");
                sending.sender.handle_ack(now, &ack).unwrap();
            }
            Role::Receives(receiving) => receiving.packet(now, &header, body),
        }
    }
}

/// Messages of the control stream: a chunk's number and length, the end, and the credit.
fn message(kind: u8, number: u64, len: u32) -> (Port, Datagram) {
    let mut bytes = vec![kind];
    bytes.extend(number.to_be_bytes());
    bytes.extend(len.to_be_bytes());
    (CONTROL, Datagram(bytes))
}

impl Sending {
    fn poll(&mut self, now: Duration, outbox: &mut VecDeque<(Port, Datagram)>) {
        self.sender.handle_timeout(now);
        while self.sender.poll_arrived().is_some() {}
        while self.left > 0 && self.sender.chunks_in_flight() < self.buffers {
            let len = self.left.min(self.chunk_len.into()) as u32;
            self.left -= u64::from(len);
            outbox.push_back(message(b'c', self.sender.push(len), len));
            if self.left == 0 {
                self.sender.finish();
                outbox.push_back(message(b'e', 0, 0));
            }
        }
        while let Some(transmit) = self.sender.poll_transmit(now) {
            let mut bytes = transmit.header.encode().to_vec();
            let PacketNumber { chunk, index } = transmit.header.packet;
            match transmit.header.kind {
                Kind::Parity => {
                    let ParityNumber { number, of } = ParityNumber::from_index(index).unwrap();
                    let len = (self.all - chunk * u64::from(self.chunk_len)).min(self.chunk_len.into()) as usize;
                    let content: Vec<u8> = (0..len).map(|at| pattern(chunk, at)).collect();
                    bytes.extend(&parity::encode(&content, transmit.len, of as usize).unwrap()[number as usize]);
                }
                _ => bytes.extend((transmit.offset..transmit.offset + transmit.len).map(|at| pattern(chunk, at))),
            }
            bytes.extend(SEAL);
            outbox.push_back((DATAGRAMS, Datagram(bytes)));
        }
        if self.sender.is_done() && self.done_at.is_none() {
            self.done_at = Some(now);
        }
    }
}

impl Receiving {
    fn parity(&mut self, now: Duration, header: &Header, body: &[u8]) {
        let place = match self.receiver.place_parity(header, body.len()) {
            Ok(place) => place,
            Err(Unplaced::Foreign) => return,
            Err(Unplaced::Invalid(why)) => panic!("{why}: {header:?}"),
        };
        self.receiver.parity_arrived(now, header, body.len());
        let Some((chunk, ParityNumber { number, of })) = place else { return };
        let (_, packets) = self.parity.entry(chunk).or_insert_with(|| (of, Vec::new()));
        if packets.iter().all(|(known, _)| *known != number) {
            packets.push((number, body.to_vec()));
        }
        self.restore(now, chunk);
    }

    /// Computes what is missing of a chunk, if there is parity for all of it.
    fn restore(&mut self, now: Duration, chunk: u64) {
        let Some((of, packets)) = self.parity.get(&chunk) else { return };
        let Some(missing) = self.receiver.missing(chunk).filter(|missing| missing.len() <= packets.len()) else {
            return;
        };
        let at = (chunk - self.first) as usize;
        while self.chunks.len() <= at {
            self.chunks.push_back(Vec::new());
        }
        let content = &mut self.chunks[at];
        content.resize(self.receiver.len_of(chunk).unwrap() as usize, 0);
        assert!(parity::restore(content, self.packet_len, &missing, (packets, *of as usize)));
        self.parity.remove(&chunk);
        if let Some(chunk) = self.receiver.restored(now, chunk) {
            self.writing.push_back((now + self.write_time, chunk));
        }
    }

    fn packet(&mut self, now: Duration, header: &Header, body: &[u8]) {
        if header.kind == Kind::Parity {
            return self.parity(now, header, body);
        }
        let place = match self.receiver.place(header, body.len()) {
            Ok(place) => place,
            Err(Unplaced::Foreign) => return,
            Err(Unplaced::Invalid(why)) => panic!("{why}: {header:?}"),
        };
        if !place.is_duplicate {
            let at = (place.chunk - self.first) as usize;
            while self.chunks.len() <= at {
                self.chunks.push_back(Vec::new());
            }
            let chunk = &mut self.chunks[at];
            if chunk.len() < place.offset + body.len() {
                chunk.resize(place.offset + body.len(), 0);
            }
            chunk[place.offset..place.offset + body.len()].copy_from_slice(body);
            self.fresh += body.len() as u64;
        }
        match self.receiver.arrived(now, header, body.len()) {
            Some(chunk) => self.writing.push_back((now + self.write_time, chunk)),
            None => self.restore(now, header.packet.chunk),
        }
    }

    fn message(&mut self, now: Duration, bytes: &[u8]) {
        let number = u64::from_be_bytes(bytes[1..9].try_into().unwrap());
        let len = u32::from_be_bytes(bytes[9..].try_into().unwrap());
        match bytes[0] {
            b'c' => match self.receiver.announce(number, len).unwrap() {
                Some(chunk) => self.writing.push_back((now + self.write_time, chunk)),
                None => self.restore(now, number),
            },
            _ => self.total = Some(self.receiver.announced()),
        }
    }

    fn poll(&mut self, now: Duration, outbox: &mut VecDeque<(Port, Datagram)>) {
        while let Some((_, number)) = self.writing.pop_front_if(|(at, _)| *at <= now) {
            let chunk = &mut self.chunks[(number - self.first) as usize];
            let right = !self.checks || chunk.iter().enumerate().all(|(at, byte)| *byte == pattern(number, at));
            assert!(right && !chunk.is_empty(), "chunk {number} is not what was sent");
            self.bytes += chunk.len() as u64;
            chunk.clear();
            self.written += 1;
            self.receiver.grant(now);
            while self.chunks.front().is_some_and(Vec::is_empty) && self.first < self.receiver.complete() {
                self.chunks.pop_front();
                self.first += 1;
            }
        }
        if self.receiver.credit() > self.credit_said {
            self.credit_said = self.receiver.credit();
            outbox.push_back(message(b'r', self.credit_said, 0));
        }
        if self.total == Some(self.written) && self.complete_at.is_none() {
            self.complete_at = Some(now);
        }
        loop {
            let mut body = Vec::new();
            let Some(header) = self.receiver.poll_transmit(now, 1400, &mut body) else { return };
            outbox.push_back((DATAGRAMS, Datagram([&header.encode()[..], &body, &SEAL].concat())));
        }
    }
}

impl Node for Host {
    type Packet = Datagram;

    fn receive(&mut self, now: Duration, from: Port, Datagram(bytes): Datagram) {
        if from == CONTROL {
            match &mut self.role {
                Role::Sends(sending) => {
                    sending.sender.raise_credit(u64::from_be_bytes(bytes[1..9].try_into().unwrap()));
                }
                Role::Receives(receiving) => receiving.message(now, &bytes),
            }
            return;
        }
        assert!(bytes.len() >= HEADER_LEN);
        let mut chance = |probability: f64| self.rng.unit() < probability;
        let (is_corrupt, comes_twice) = (chance(self.faults.corrupt), chance(self.faults.duplicate));
        if !is_corrupt {
            self.datagram(now, &bytes);
        }
        if comes_twice {
            self.datagram(now, &bytes);
        }
    }

    fn poll(&mut self, now: Duration) -> Option<(Port, Datagram)> {
        self.now = now;
        if self.outbox.is_empty() {
            match &mut self.role {
                Role::Sends(sending) => sending.poll(now, &mut self.outbox),
                Role::Receives(receiving) => receiving.poll(now, &mut self.outbox),
            }
        }
        self.outbox.pop_front()
    }

    fn next_wakeup(&self) -> Option<Duration> {
        let at = match &self.role {
            Role::Sends(sending) => sending.sender.poll_timeout(),
            Role::Receives(receiving) => {
                let written = receiving.writing.front().map(|(at, _)| *at);
                receiving.receiver.poll_timeout().into_iter().chain(written).min()
            }
        };
        // A nanosecond of rounding must not stop the clock.
        at.map(|at| at.max(self.now))
    }
}

/// Two hosts, joined by a link for datagrams and one for the control stream.
pub(crate) struct Pair {
    pub(crate) sim: Simulator<Host>,
    pub(crate) sender: NodeId,
    pub(crate) receiver: NodeId,
    /// The link for datagrams.
    pub(crate) datagrams: LinkId,
}

impl Pair {
    pub(crate) fn new(sender: Host, receiver: Host, link: &LinkConfig) -> Self {
        let mut sim = Simulator::new();
        let (sender, receiver) = (sim.add(sender), sim.add(receiver));
        let datagrams = sim.join(sender, receiver, link);
        let mut control = link.clone();
        for direction in [&mut control.forward, &mut control.backward] {
            let (delay, rate) = (direction.delay, direction.rate);
            *direction = phoebus_wan::model::DirectionConfig { delay, rate, ..Default::default() };
        }
        sim.join(sender, receiver, &control);
        Self { sim, sender, receiver, datagrams }
    }

    pub(crate) fn sending(&self) -> &Sending {
        self.sim.node(self.sender).sending()
    }

    pub(crate) fn receiving(&self) -> &Receiving {
        self.sim.node(self.receiver).receiving()
    }

    /// Runs until both ends are done. Panics if they are not within `limit`.
    pub(crate) fn complete(&mut self, limit: Duration) {
        let (sender, receiver) = (self.sender, self.receiver);
        let end = self.sim.run(limit, |sim| sim.node(sender).has_ended() && sim.node(receiver).has_ended());
        let (sent, came) = (self.sending().sender.counters(), self.receiving().receiver.counters());
        assert!(end == phoebus_wan::sim::End::Met, "{end:?} at {:?}: {sent:?}, {came:?}", self.sim.now());
    }
}
