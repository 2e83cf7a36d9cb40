//! Simulated hosts with UDT endpoints and applications.

use super::messages::Mail;
use phoebus_proto::udt::{Arrival, Connection, Endpoint, Route, Transmit};
use phoebus_wan::model::{LinkConfig, Rng};
use phoebus_wan::sim::{Datagram, Node, NodeId, Port, Simulator};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

/// The application of a connection. The default only reads and verifies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct App {
    /// Number of bytes to write.
    pub(crate) to_write: u64,
    /// Number of bytes written.
    pub(crate) written: u64,
    /// Number of bytes read and verified.
    pub(crate) read: u64,
    /// When the last byte was read.
    pub(crate) read_at: Duration,
    /// Whether to close when everything is written.
    pub(crate) closes: bool,
    /// Whether to stop reading.
    pub(crate) pauses: bool,
    /// Whether to read without verifying.
    pub(crate) is_blind: bool,
}

impl App {
    /// Writes this many bytes, then closes.
    pub(crate) fn writer(bytes: u64) -> Self {
        Self { to_write: bytes, closes: true, ..Self::default() }
    }
}

/// A machine with one UDP socket.
pub(crate) struct Host {
    pub(crate) endpoint: Endpoint,
    pub(crate) peer: SocketAddr,
    pub(crate) connections: BTreeMap<u32, Slot>,
    /// The application of accepted connections.
    pub(crate) on_accept: App,
    /// Whether accepted connections get a mailbox for messages instead.
    pub(crate) takes_mail: bool,
    pub(crate) accepts: bool,
    pub(crate) faults: Faults,
    /// Datagrams in the socket's buffer while the process is suspended.
    inbox: VecDeque<Datagram>,
    inbox_bytes: usize,
    /// When the process resumes, if it is suspended.
    pub(crate) runs_at: Duration,
    outbox: VecDeque<Datagram>,
    rng: Rng,
    buf: Vec<u8>,
    pub(crate) answered: u64,
    pub(crate) answered_bytes: u64,
}

pub(crate) struct Slot {
    pub(crate) connection: Connection,
    pub(crate) app: App,
    /// The application of a connection that carries messages.
    pub(crate) mail: Option<Mail>,
    touched: bool,
    wakeup: Option<Duration>,
}

/// Faults of incoming datagrams, as probabilities.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Faults {
    /// The datagram arrives twice.
    pub(crate) duplicate: f64,
    /// One bit is flipped, which UDP's checksum detects: the datagram is dropped.
    pub(crate) corrupt: f64,
    /// One bit is flipped, and the checksum does not detect it: a router's memory is faulty, or there is no checksum.
    pub(crate) damage: f64,
    /// Whether datagrams are received in batches, as with UDP_GRO.
    pub(crate) batched: bool,
}

/// Period of the test pattern. It is prime, so that a shift of the stream by whole packets is detected.
const PERIOD: usize = 65_521;

fn pattern() -> &'static [u8] {
    static PATTERN: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
    PATTERN.get_or_init(|| {
        let mut rng = Rng::new(7);
        (0..PERIOD).map(|_| rng.next_u64() as u8).collect()
    })
}

impl Host {
    pub(crate) fn new(seed: u64, peer: SocketAddr) -> Self {
        let mut rng = Rng::new(seed);
        let mut secret = [0; 32];
        secret.iter_mut().for_each(|byte| *byte = rng.next_u64() as u8);
        Self {
            endpoint: Endpoint::new(secret),
            peer,
            connections: BTreeMap::new(),
            on_accept: App::default(),
            takes_mail: false,
            accepts: true,
            faults: Faults::default(),
            inbox: VecDeque::new(),
            inbox_bytes: 0,
            runs_at: Duration::ZERO,
            outbox: VecDeque::new(),
            rng,
            buf: vec![0; 64_000],
            answered: 0,
            answered_bytes: 0,
        }
    }

    pub(crate) fn add(&mut self, connection: Connection, app: App) -> u32 {
        let socket = connection.socket();
        self.connections.insert(socket, Slot { connection, app, mail: None, touched: true, wakeup: None });
        socket
    }

    /// The only connection.
    pub(crate) fn only(&self) -> &Slot {
        assert_eq!(self.connections.len(), 1);
        self.connections.values().next().unwrap()
    }

    /// Must be called after a test has changed a connection.
    pub(crate) fn touch(&mut self) {
        self.connections.values_mut().for_each(|slot| slot.touched = true);
    }

    /// Size of the socket's receive buffer, in bytes.
    const INBOX: usize = 8 << 20;

    /// Whether the process is suspended.
    fn is_suspended(&self, now: Duration) -> bool {
        now < self.runs_at
    }

    fn datagram(&mut self, now: Duration, bytes: &[u8], late: bool) {
        let mut answer = [0; 64];
        match self.endpoint.route(now, self.peer, bytes, &mut answer) {
            Route::Connection(socket) => {
                let Some(slot) = self.connections.get_mut(&socket) else { return };
                let arrival = if late || self.faults.batched { Arrival::Batched } else { Arrival::Alone };
                slot.connection.handle(now, bytes, arrival);
                slot.touched = true;
            }
            Route::Incoming(incoming) if self.accepts => {
                let connection = self.endpoint.accept(now, &incoming).unwrap();
                let socket = self.add(connection, self.on_accept);
                if let Some(slot) = self.connections.get_mut(&socket).filter(|_| self.takes_mail) {
                    slot.mail = Some(Mail::default());
                }
            }
            Route::Answer(len) => {
                self.answered += 1;
                self.answered_bytes += len as u64;
                self.outbox.push_back(Datagram(answer[..len].to_vec()));
            }
            Route::Incoming(_) | Route::Ignore => {}
        }
    }
}

impl Host {
    fn arrive(&mut self, now: Duration, packet: Datagram) {
        if !self.is_suspended(now) {
            return self.datagram(now, &packet.0, false);
        }
        self.inbox_bytes += packet.0.len();
        if self.inbox_bytes <= Self::INBOX {
            self.inbox.push_back(packet);
        }
    }
}

impl Slot {
    fn drive(&mut self, now: Duration, buf: &mut [u8], outbox: &mut VecDeque<Datagram>) {
        self.touched = false;
        self.connection.handle_timeout(now);
        self.run(now);
        while let Some(Transmit { len, segment, .. }) = self.connection.poll_transmit(now, buf) {
            outbox.extend(buf[..len].chunks(segment).map(|bytes| Datagram(bytes.to_vec())));
            self.run(now);
        }
        self.wakeup = self.connection.poll_timeout();
    }

    fn run(&mut self, now: Duration) {
        if let Some(mail) = &mut self.mail {
            return mail.run(now, &mut self.connection);
        }
        let (app, connection, pattern) = (&mut self.app, &mut self.connection, pattern());
        while app.written < app.to_write {
            let from = (app.written % PERIOD as u64) as usize;
            let left = usize::try_from(app.to_write - app.written).unwrap();
            let written = connection.write(&pattern[from..PERIOD.min(from + left)]);
            if written == 0 {
                break;
            }
            app.written += written as u64;
        }
        if app.closes && app.written == app.to_write && connection.is_open() {
            connection.close(now);
        }
        while !app.pauses && !connection.chunk().is_empty() {
            let chunk = connection.chunk();
            let from = (app.read % PERIOD as u64) as usize;
            let len = chunk.len().min(PERIOD - from);
            let is_right = app.is_blind || chunk[..len] == pattern[from..from + len];
            assert!(is_right, "wrong bytes after {} right ones", app.read);
            (app.read, app.read_at) = (app.read + len as u64, now);
            connection.consume(len);
        }
    }
}

impl Node for Host {
    type Packet = Datagram;

    fn receive(&mut self, now: Duration, _from: Port, mut packet: Datagram) {
        if self.rng.chance(self.faults.corrupt) {
            // The kernel drops a datagram with a wrong checksum.
            return;
        }
        if self.rng.chance(self.faults.damage) {
            let bit = self.rng.next_u64() as usize % (packet.0.len() * 8);
            packet.0[bit / 8] ^= 1 << (bit % 8);
        }
        if self.rng.chance(self.faults.duplicate) {
            self.arrive(now, packet.clone());
        }
        self.arrive(now, packet);
    }

    fn poll(&mut self, now: Duration) -> Option<(Port, Datagram)> {
        if self.is_suspended(now) {
            return None;
        }
        self.inbox_bytes = 0;
        while let Some(packet) = self.inbox.pop_front() {
            self.datagram(now, &packet.0, true);
        }
        if self.outbox.is_empty() {
            for slot in self.connections.values_mut() {
                if slot.touched || slot.wakeup.is_some_and(|at| at <= now) {
                    slot.drive(now, &mut self.buf, &mut self.outbox);
                }
            }
        }
        self.outbox.pop_front().map(|packet| (Port(0), packet))
    }

    fn next_wakeup(&self) -> Option<Duration> {
        let next = |slot: &Slot| if slot.touched { Some(Duration::ZERO) } else { slot.wakeup };
        let next = self.connections.values().filter_map(next).min();
        // A suspended process receives the buffered datagrams when it resumes.
        let arrived = (!self.inbox.is_empty()).then_some(self.runs_at);
        next.map(|next| next.max(self.runs_at)).into_iter().chain(arrived).min()
    }
}

/// Two hosts and the link between them.
pub(crate) struct Net {
    pub(crate) sim: Simulator<Host>,
    pub(crate) a: NodeId,
    pub(crate) b: NodeId,
    pub(crate) link: phoebus_wan::sim::LinkId,
}

pub(crate) fn net(seed: u64, link: &LinkConfig) -> Net {
    let mut sim = Simulator::new();
    let a = sim.add(Host::new(seed, "192.0.2.2:9000".parse().unwrap()));
    let b = sim.add(Host::new(seed + 1, "192.0.2.1:9000".parse().unwrap()));
    let link = sim.join(a, b, link);
    Net { sim, a, b, link }
}
