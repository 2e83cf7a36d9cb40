//! The sending half of a transfer (L4–L7): what to send, when, and what was lost.
//!
//! A packet is lost when a packet that was sent well after it has arrived and it has not. It is then sent again, under a new
//! transmission number. Nothing is sent again while an acknowledgement of it may be under way, except at the tail: when
//! nothing else is left to send, unacknowledged packets are repeated within a budget, so that one loss more does not cost a
//! round trip more.

mod arrivals;
mod choice;
mod chunks;
mod log;
mod tail;

pub use choice::{Choice, Circular, NewestFirst, OldestFirst};
pub use chunks::Chunks;

use self::log::Log;
use super::ack::{Ack, Sections};
use super::config::Shape;
use super::packet::{HEADER_LEN, Header, Kind, PacketNumber, TRANSMISSION_END};
use super::parity::ParityNumber;
use super::rtt::Rtt;
use crate::control::{self, Acknowledgements, Arrival, Factory, KnownPath, Pace, Pacer, Path, Share, SharedControl};
use std::collections::VecDeque;
use std::time::Duration;

/// Settings of the sending half, which the peer does not need to know.
#[derive(Debug)]
pub struct SendConfig {
    /// Which packet is sent next.
    pub choice: Box<dyn Choice>,
    /// Repetitions at the tail, as a fraction of all packets, where there is no parity.
    pub tail_budget: f64,
    /// Whether parity packets are sent at the tail, by the loss so far.
    pub parity: bool,
    /// The share of packets that the path is known to lose, until enough were sent to see that.
    pub known_loss: f64,
    /// Time whose packets are sent in one batch.
    pub quantum: Duration,
    /// Most time that a late owner may make up for.
    pub catch_up: Duration,
    /// Assumed round-trip time before the first measurement.
    pub rtt: Duration,
    /// Most packets in flight.
    pub window: u32,
    /// Bytes of datagrams for which the peer's socket has room, as the peer says. No more than that is in flight beyond
    /// what the path itself holds: a peer that reads slowly, or not for a moment, then drops nothing.
    pub socket_room: u64,
    /// Bytes of a datagram besides the packet: header, seal, UDP and IP.
    pub overhead: u32,
    /// A random seed.
    pub seed: u64,
}

impl Default for SendConfig {
    fn default() -> Self {
        Self {
            choice: Box::new(OldestFirst),
            // Half of the smallest waste that anybody would notice.
            tail_budget: 0.005,
            parity: true,
            known_loss: 0.0,
            quantum: Duration::from_millis(1),
            catch_up: Duration::from_millis(20),
            rtt: Duration::from_millis(100),
            // 1.5 GB: more than any path holds.
            window: 1 << 20,
            socket_room: u64::MAX,
            overhead: HEADER_LEN as u32 + 16 + 28,
            seed: 0,
        }
    }
}

/// The sending half of a transfer.
#[derive(Debug)]
pub struct Sender {
    shape: Shape,
    config: SendConfig,
    chunks: Chunks,
    log: Log,
    control: Share,
    pacer: Pacer,
    rtt: Rtt,
    /// The highest transmission number that has arrived.
    largest: Option<u64>,
    /// How much later than a missing packet another one has to be sent, so that its arrival means loss. It grows with
    /// repairs that prove needless.
    reordering: Duration,
    /// The peer's count of duplicates.
    duplicates: u64,
    /// Transmissions before this were looked at by [`Self::find_losses`], and those of them that are in flight all the same:
    /// no statement has covered them since.
    judged: u64,
    suspects: Vec<(u64, PacketNumber)>,
    /// Until then, losses are put down to the peer's host, which has said that it had no room. It counts buffers, each of
    /// which may hold many datagrams.
    dropping_until: Duration,
    /// Whether all chunks are there.
    is_finished: bool,
    /// Where repetitions at the tail have got to: transmissions before this were not repeated.
    tail: Option<u64>,
    /// Parity packets to send, once it is known which.
    parity: Option<VecDeque<(u64, ParityNumber)>>,
    /// When the peer was last heard or asked.
    heard_at: Duration,
    /// Since when the peer is silent, if the control was not told of that.
    silent_since: Option<Duration>,
    /// Consecutive time-outs.
    timeouts: u32,
    /// Packets to send whatever the window says, to ask a silent peer.
    probes: u32,
    counters: SendCounters,
}

/// Counters of the sending half. The waste of a transfer is `(sent - needed) / needed`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SendCounters {
    /// Packets of all chunks.
    pub needed: u64,
    /// Packets sent.
    pub sent: u64,
    /// Packets sent again because they were lost.
    pub repairs: u64,
    /// Packets repeated at the tail, or to ask a silent peer.
    pub repeats: u64,
    /// Parity packets sent.
    pub parity: u64,
    /// Packets that counted as lost.
    pub lost: u64,
    /// Packets that are known to have arrived.
    pub arrived: u64,
    /// Packets that have arrived more than once, as the peer counts them.
    pub duplicates: u64,
    /// Buffers of datagrams that the peer's kernel has dropped.
    pub drops: u64,
}

/// A packet to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transmit {
    /// Its header. For [`Kind::Parity`] the bytes are that parity packet ([`encode`](super::parity::encode)).
    pub header: Header,
    /// Offset of its bytes in the chunk.
    pub offset: usize,
    /// Number of its bytes.
    pub len: usize,
}

/// The peer acknowledges what does not exist or was never sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the peer acknowledges {0}, which was never sent")]
pub struct AckError(pub &'static str);

impl Sender {
    /// Time-outs double up to this power.
    const BACKOFF_MAX: u32 = 6;
    /// Longest pause between two questions to a silent peer.
    const SILENCE_MAX: Duration = Duration::from_secs(5);
    /// Packets that may overtake another one without being evidence of its loss.
    const OVERTAKEN: u64 = 3;
    /// What a path may hold, as a multiple of the rate and the smallest round-trip time: controls let queues of one round trip
    /// stand on the path, and probe for more.
    const ON_PATH: f64 = 2.5;
    /// Transmissions that are remembered, for each packet in flight, and in any case: two round trips are usual.
    const LOG_PER_IN_FLIGHT: u64 = 4;
    const LOG_MIN: u64 = 1 << 16;
    /// Packets that may be in flight however little room the peer's socket has.
    const IN_FLIGHT_MIN: f64 = 64.0;

    /// Begins at `now`, with a control of its own.
    pub fn new(now: Duration, shape: Shape, config: SendConfig, control: &dyn Factory) -> Self {
        Self::sharing(now, shape, config, control, &SharedControl::default())
    }

    /// The same with the control of other transfers to the same host, which is made by `control` if there are none. All count time
    /// from the same origin.
    pub fn sharing(
        now: Duration,
        shape: Shape,
        config: SendConfig,
        control: &dyn Factory,
        shared: &SharedControl,
    ) -> Self {
        let rtt = Rtt::new(config.rtt);
        let mut sender = Self {
            shape,
            chunks: Chunks::new(shape.packet_len),
            log: Log::default(),
            control: shared.join(now, &path(&shape, &config, &rtt, 0, 0), control),
            pacer: Pacer::new(config.quantum, config.catch_up),
            rtt,
            largest: None,
            reordering: Duration::from_millis(1),
            duplicates: 0,
            judged: 0,
            suspects: Vec::new(),
            dropping_until: Duration::ZERO,
            is_finished: false,
            tail: None,
            parity: None,
            heard_at: now,
            silent_since: None,
            timeouts: 0,
            probes: 0,
            counters: SendCounters::default(),
            config,
        };
        sender.pacer.rest();
        sender
    }

    /// Adds a chunk of `len` bytes, at least one and at most as many as agreed, and returns its number.
    pub fn push(&mut self, len: u32) -> u64 {
        let len = len.clamp(1, self.shape.chunk_len);
        self.counters.needed += u64::from(len.div_ceil(self.shape.packet_len));
        (self.tail, self.parity) = (None, None);
        self.chunks.push(len)
    }

    /// Says that there are no more chunks.
    pub fn finish(&mut self) {
        self.is_finished = true;
        self.plan_parity();
    }

    /// Number of chunks that were added and have not arrived as a whole.
    pub fn chunks_in_flight(&self) -> u64 {
        self.chunks.end() - self.chunks.first()
    }

    /// Number of all chunks that were added.
    pub fn chunks_end(&self) -> u64 {
        self.chunks.end()
    }

    /// Time-outs in a row: how often a silent peer was asked.
    pub fn timeouts(&self) -> u32 {
        self.timeouts
    }

    /// Number of transmissions that are remembered: those in flight, and what was sent after the oldest of them.
    pub fn remembered(&self) -> u64 {
        self.log.len()
    }

    /// Whether nothing more can be sent, because all transmission numbers are used up: they are nonces.
    pub fn is_exhausted(&self) -> bool {
        self.log.end() >= TRANSMISSION_END
    }

    /// Whether there are packets to send, and the peer has no buffer for any of their chunks.
    pub fn is_starved(&self) -> bool {
        self.chunks.is_starved()
    }

    /// Number of packets in flight.
    pub fn in_flight(&self) -> u32 {
        self.log.in_flight()
    }

    /// Whether all chunks are there and have arrived.
    pub fn is_done(&self) -> bool {
        self.is_finished && self.chunks.is_empty()
    }

    /// Whether all chunks are there, and each of their packets was sent at least once.
    pub fn has_sent_all(&self) -> bool {
        self.is_finished && self.chunks.credit() >= self.chunks.end() && self.chunks.next_new().is_none()
    }

    /// Chunks below this number may be sent.
    pub fn credit(&self) -> u64 {
        self.chunks.credit()
    }

    /// Raises the number of chunks that may be sent, as the peer has said.
    pub fn raise_credit(&mut self, credit: u64) {
        self.chunks.raise_credit(credit);
    }

    /// Counters.
    pub fn counters(&self) -> SendCounters {
        self.counters
    }

    /// Smoothed round-trip time, once it was measured.
    pub fn rtt(&self) -> Option<Duration> {
        self.rtt.is_measured().then(|| self.rtt.get())
    }

    /// The rate in force, in bits per second, with all headers: that of all transfers which share the control.
    pub fn rate(&self) -> f64 {
        control::packet_bits(self.mss()) * 1e9 / self.control.whole_pace().interval.max(1e-3)
    }

    /// What the transfer has found out about the path. `None` if it was too short for that.
    pub fn known_path(&self) -> Option<KnownPath> {
        let rate = self.control.path_rate()? * control::packet_bits(self.mss());
        let loss_per_million = (self.loss() * 1e6).round() as u32;
        Some(KnownPath { bits_per_second: rate as u64, rtt: self.rtt.min()?, loss_per_million })
    }

    /// The next packet to send at `now`, if one is due.
    pub fn poll_transmit(&mut self, now: Duration) -> Option<Transmit> {
        if !self.pacer.is_ready(now) || self.is_exhausted() {
            return None;
        }
        let pace = self.control.pace();
        if let Some((chunk, number)) = self.next_parity() {
            // It is not in flight, since nobody acknowledges it, and would be late if it waited for room.
            self.pacer.charge(now, pace.interval, 1.0);
            return Some(self.transmit_parity(now, chunk, number));
        }
        let is_open = self.is_open(&pace);
        let packet = if is_open || self.probes > 0 { self.choose() } else { None };
        let Some(packet) = packet else {
            if is_open {
                self.control.has_nothing();
            } else {
                self.control.is_waiting(now, 2 * self.rtt.overdue(self.shape.ack_interval));
            }
            self.pacer.rest();
            return None;
        };
        self.probes = self.probes.saturating_sub(1);
        let len = self.chunks.len_of(packet);
        let part = f64::from(len + self.config.overhead) / f64::from(self.mss());
        self.pacer.charge(now, pace.interval, part);
        Some(self.transmit(now, packet, len))
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) and [`poll_transmit`](Self::poll_transmit) next, unless an
    /// acknowledgement arrives before.
    pub fn poll_timeout(&self) -> Option<Duration> {
        let pace = self.control.pace();
        let is_open = self.is_open(&pace) || self.probes > 0;
        let has_parity = self.parity.as_ref().is_some_and(|parity| !parity.is_empty());
        let paced = (is_open && self.has_next() || has_parity).then(|| self.pacer.wakeup(pace.interval));
        [paced, self.silence_at()].into_iter().flatten().min()
    }

    /// Processes expired timers.
    pub fn handle_timeout(&mut self, now: Duration) {
        if self.silence_at().is_some_and(|at| at <= now) {
            if self.timeouts == 0 {
                self.silent_since = Some(self.heard_at);
            }
            // As long as others hear something, it is not told.
            if let Some(since) = self.silent_since {
                let path = self.path();
                self.silent_since = Some(since).filter(|_| !self.control.timed_out(now, &path, since));
            }
            self.timeouts += 1;
            self.heard_at = now;
            // Two, since one may be lost as well.
            self.probes = 2;
        }
    }

    /// Processes an acknowledgement. Chunks that have arrived are taken by [`poll_arrived`](Self::poll_arrived).
    ///
    /// # Errors
    /// The peer breaks the protocol: the transfer has failed.
    pub fn handle_ack(&mut self, now: Duration, ack: &Ack<Sections<'_>>) -> Result<(), AckError> {
        if ack.largest >= self.log.end() {
            return Err(AckError("a transmission"));
        }
        if ack.complete > self.chunks.end() {
            return Err(AckError("a chunk"));
        }
        (self.heard_at, self.silent_since, self.timeouts, self.probes) = (now, None, 0, 0);
        self.chunks.raise_credit(ack.credit);
        if ack.drops > self.counters.drops {
            self.counters.drops = ack.drops;
            self.dropping_until = now + self.rtt.get();
        }
        self.tolerate_reordering(ack.duplicates);
        let rtt = self.take_rtt(now, ack);
        let arrived = self.take_arrivals(ack)?;
        self.counters.arrived += u64::from(arrived.count);
        if arrived.count > 0 {
            let path = self.path();
            self.control.arrived(now, &path, &Arrival { count: arrived.count, newest: arrived.newest, rtt });
        }
        self.find_losses(now, ack);
        self.log.forget(self.largest.unwrap_or(0));
        Ok(())
    }

    /// The next chunk that has arrived as a whole, in order. Its bytes are no longer needed.
    pub fn poll_arrived(&mut self) -> Option<u64> {
        self.chunks.pop_arrived()
    }

    fn mss(&self) -> u32 {
        self.shape.packet_len + self.config.overhead
    }

    fn path(&self) -> Path {
        path(&self.shape, &self.config, &self.rtt, self.log.end(), self.log.in_flight())
    }

    /// Whether more may be in flight.
    fn is_open(&self, pace: &Pace) -> bool {
        let in_flight = self.log.in_flight();
        if in_flight >= pace.window.min(self.config.window) {
            return false;
        }
        let Some(rtt) = self.rtt.min() else { return true };
        let on_path = Self::ON_PATH * rtt.as_nanos() as f64 / pace.interval.max(1e-3);
        let room = self.config.socket_room as f64 / f64::from(self.mss());
        f64::from(in_flight) < (on_path + room).max(Self::IN_FLIGHT_MIN)
    }

    /// Whether [`Self::choose`] would return something.
    fn has_next(&self) -> bool {
        self.chunks.next_pending(PacketNumber::default()).is_some()
            || self.probes > 0 && self.log.in_flight() > 0
            || self.may_repeat() && self.log.open_before(self.tail.unwrap_or(u64::MAX)).is_some()
    }

    /// What to send next.
    fn choose(&mut self) -> Option<PacketNumber> {
        if let Some(next) = self.config.choice.next(&self.chunks) {
            return Some(next);
        }
        if self.probes > 0 {
            let (_, oldest) = self.log.open_from(0).next()?;
            self.counters.repeats += 1;
            return Some(oldest.packet);
        }
        if !self.may_repeat() {
            return None;
        }
        // The latest go first: nothing sent after them tells of their loss.
        let (number, latest) = self.log.open_before(self.tail.unwrap_or_else(|| self.log.end()))?;
        self.tail = Some(number);
        self.counters.repeats += 1;
        Some(latest.packet)
    }

    fn transmit(&mut self, now: Duration, packet: PacketNumber, len: u32) -> Transmit {
        let is_idle = self.log.in_flight() == 0;
        if is_idle {
            self.heard_at = now;
        }
        let transmission = self.log.end();
        self.log.push(packet, self.control.sent(now, self.log.in_flight() + 1));
        if let Some(before) = self.chunks.sent(packet, transmission) {
            // It is in flight once, however often it was sent.
            if self.log.close(before).is_none() {
                self.counters.repairs += 1;
            }
        }
        self.counters.sent += 1;
        self.give_up_oldest();
        self.plan_parity();
        let header = Header { kind: Kind::Data, transfer: self.shape.transfer, transmission, packet };
        Transmit { header, offset: packet.index as usize * self.shape.packet_len as usize, len: len as usize }
    }

    /// Bounds the log: a peer may leave the oldest packets open for ever, and say of later ones that they are lost. Then the oldest
    /// are lost as well.
    fn give_up_oldest(&mut self) {
        let most = Self::LOG_PER_IN_FLIGHT * u64::from(self.log.in_flight()) + Self::LOG_MIN;
        while self.log.len() > most {
            if let Some(oldest) = self.log.drop_oldest() {
                self.counters.lost += 1;
                self.chunks.lost(oldest.packet);
            }
        }
    }

    /// When a peer that says nothing is asked.
    fn silence_at(&self) -> Option<Duration> {
        let overdue = self.rtt.overdue(self.shape.ack_interval) * (1 << self.timeouts.min(Self::BACKOFF_MAX));
        (self.log.in_flight() > 0).then(|| self.heard_at + overdue.min(Self::SILENCE_MAX))
    }
}

fn path(shape: &Shape, config: &SendConfig, rtt: &Rtt, next: u64, in_flight: u32) -> Path {
    Path {
        mss: shape.packet_len + config.overhead,
        window_max: config.window,
        rtt: rtt.get(),
        rtt_measured: rtt.is_measured(),
        // Only UDT's receivers report these.
        receiving: 16.0,
        capacity: 1.0,
        next,
        in_flight,
        acknowledgements: Acknowledgements { interval: shape.ack_interval, packets: shape.ack_packets },
        seed: config.seed,
    }
}
