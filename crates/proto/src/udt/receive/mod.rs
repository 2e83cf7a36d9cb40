//! The receiving half of a connection: buffer, loss reports, acknowledgements, measurements.

mod acks;
mod arrivals;
mod holes;
mod messages;
mod ring;

pub(super) use acks::ACKNOWLEDGEMENTS;
pub use arrivals::Arrival;

use self::acks::{Acks, Form};
use self::arrivals::Arrivals;
use self::holes::Holes;
use self::messages::Messages;
use self::ring::{Inserted, Ring};
use super::SYN;
use super::loss_list::LossWriter;
use super::message::Kind;
use super::packet::{AckReport, Body, MessagePosition, PathReport, RateReport};
use super::rtt::Rtt;
use super::seq::{MessageNumber, Seq};
use std::time::Duration;

/// The receive buffer and the state of acknowledgements and loss reports.
#[derive(Debug)]
pub(super) struct Receiver {
    ring: Ring,
    /// Number of bytes of the first packet that were read already.
    read_of_first: usize,
    messages: Option<Messages>,
    holes: Holes,
    acks: Acks,
    arrivals: Arrivals,
    /// Payload of a full packet, in bytes.
    full_len: usize,
    /// The room last advertised to the peer, in packets.
    advertised_room: u32,
    /// The number after the highest packet that had no room, until all packets before it are expected again. A peer sends
    /// such packets while it does not know yet how little room there is.
    refused_end: Option<Seq>,
    /// The number after the highest packet that has arrived and had room.
    arrived_end: Seq,
    /// The largest room that the peer was told, in packets.
    advertised_max: u32,
    pub(super) counters: ReceiveCounters,
}

/// Counters of the receiving half.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ReceiveCounters {
    pub(super) packets: u64,
    pub(super) bytes: u64,
    pub(super) duplicates: u64,
    /// Packets beyond the end of the buffer, or too long for it.
    pub(super) no_room: u64,
    pub(super) lost: u64,
    pub(super) naks: u64,
    pub(super) acks: u64,
}

impl Receiver {
    /// A buffer for `limit` packets with payloads of up to `slot_len` bytes. The peer's full packets have `full_len`
    /// bytes.
    pub(super) fn new(now: Duration, kind: Kind, first: Seq, limit: u32, slot_len: usize, full_len: usize) -> Self {
        Self {
            ring: Ring::new(first, limit, slot_len),
            read_of_first: 0,
            messages: (kind == Kind::Message).then(Messages::default),
            holes: Holes::default(),
            acks: Acks::new(now, first),
            arrivals: Arrivals::new(now),
            full_len,
            advertised_room: limit,
            refused_end: None,
            arrived_end: first,
            advertised_max: limit,
            counters: ReceiveCounters::default(),
        }
    }

    /// Records that the handshake has offered room for this many packets, which may be more than there is at first.
    pub(super) fn offered(&mut self, window: u32) {
        self.advertised_max = self.advertised_max.max(window);
    }

    /// Processes a data packet.
    pub(super) fn data(
        &mut self,
        now: Duration,
        rtt: &Rtt,
        seq: Seq,
        place: MessagePosition,
        payload: &[u8],
        arrival: Arrival,
    ) {
        self.counters.packets += 1;
        self.arrivals.arrived(now, seq, arrival);
        let is_behind = seq.is_before(self.ring.end());
        // The end of a burst is acknowledged soon. So is a packet without room, because its sender does not know the room.
        let mut is_urgent = payload.len() != self.full_len;
        match self.ring.insert(seq, place, payload) {
            Inserted::Duplicate => self.counters.duplicates += 1,
            Inserted::TooLong => self.counters.no_room += 1,
            // No sender that keeps to what it was told sends what lies further ahead.
            Inserted::NoRoom if seq.since(self.ring.next()) >= self.advertised_max as i32 => self.counters.no_room += 1,
            Inserted::NoRoom => {
                self.counters.no_room += 1;
                let end = self.refused_end.filter(|end| seq.is_before(*end)).unwrap_or_else(|| seq.plus(1));
                self.refused_end = Some(end);
                is_urgent = true;
            }
            Inserted::New(gap) => {
                self.counters.bytes += payload.len() as u64;
                if self.arrived_end.is_before(seq.plus(1)) {
                    self.arrived_end = seq.plus(1);
                }
                if let Some((first, last)) = gap {
                    self.counters.lost += last.since(first) as u64 + 1;
                    self.holes.found(now, first, last);
                }
                if is_behind {
                    self.holes.filled(now, seq, rtt);
                }
                match &mut self.messages {
                    Some(messages) => messages.arrived(seq, place, &self.ring),
                    // A packet without payload would hold up the stream behind it.
                    None => self.skip_empty(),
                }
            }
        }
        self.acks.arrived(now, is_urgent);
    }

    /// Processes an ACK2. Returns the round-trip time, unless the acknowledgement is not remembered any more.
    pub(super) fn ack2(&mut self, now: Duration, number: u32) -> Option<Duration> {
        self.acks.confirmed(now, number)
    }

    /// Sends an acknowledgement at once, which the peer answers with ACK2.
    pub(super) fn probe(&mut self) {
        self.acks.request();
    }

    /// Processes the peer's notice that it has dropped a message. Ignored in stream mode, where no data may be skipped.
    pub(super) fn drop_message(&mut self, now: Duration, message: MessageNumber, first: Seq, last: Seq) {
        let Some(messages) = &mut self.messages else { return };
        let (from, to) = (first.since(self.ring.read()), last.since(self.ring.read()));
        if from > to || to >= self.ring.limit() as i32 || last.is_before(self.ring.next()) {
            return;
        }
        if !messages.dropped(message.get(), first, last) {
            return;
        }
        for offset in from.max(0)..=to {
            let seq = self.ring.read().plus(offset as u32);
            let other = self.ring.present(seq).is_some_and(|cell| cell.place.message() != message);
            if !other {
                self.ring.finish(seq);
            }
        }
        messages.advanced(&self.ring);
        self.ring.release();
        self.acks.arrived(now, true);
    }

    /// Raises the size of the buffer to `limit` packets. Never lowers it.
    pub(super) fn widen(&mut self, limit: u32) {
        if limit > self.ring.limit() {
            self.ring.widen(limit);
            self.advertised_max = self.advertised_max.max(limit);
            self.advertised_room = self.ring.room();
            self.acks.request();
        }
    }

    /// When a loss report or acknowledgement is due; `Duration::ZERO` for at once.
    pub(super) fn due(&self) -> Option<Duration> {
        if self.has_room_for_refused() {
            return Some(Duration::ZERO);
        }
        [self.acks.due(), self.holes.due()].into_iter().flatten().min()
    }

    /// Writes the loss report that is due into `out` and returns its length.
    pub(super) fn loss_report(&mut self, now: Duration, rtt: &Rtt, out: &mut [u8]) -> Option<usize> {
        self.expect_refused(now);
        if self.holes.due()? > now {
            return None;
        }
        let mut writer = LossWriter::new(out);
        // A SYN more, because the retransmission may have to wait for the sender's next batch.
        let reported = self.holes.report(now, rtt.repair_overdue() + SYN, &self.ring, &mut writer);
        self.counters.naks += u64::from(reported);
        reported.then_some(writer.len())
    }

    /// The acknowledgement that is due.
    pub(super) fn acknowledgement(&mut self, now: Duration, rtt: &Rtt) -> Option<Body<'static>> {
        if self.acks.due()? > now {
            return None;
        }
        let next = self.ring.next();
        // Packets may have been given up beyond what has arrived.
        let end = if self.arrived_end.is_before(next) { next } else { self.arrived_end };
        let form = self.acks.poll(now, next, end, rtt)?;
        self.counters.acks += 1;
        Some(match form {
            Form::Light => Body::Ack { number: 0, report: AckReport { next, path: None, rates: None, end: None } },
            Form::Full { number, rates } => {
                // A libudt sender with a window of less than 2 would wait for ever.
                let room = self.ring.room().max(2);
                self.advertised_room = room;
                let micros = |time: Duration| u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
                let path = PathReport { rtt: micros(rtt.get()), rtt_var: micros(rtt.variation()), room };
                let rates =
                    rates.then(|| RateReport { receiving: self.arrivals.rate(), capacity: self.arrivals.capacity() });
                Body::Ack {
                    number,
                    report: AckReport { next, path: Some(path), rates, end: rates.is_some().then_some(end) },
                }
            }
        })
    }

    /// The last acknowledgement, before this end closes.
    pub(super) fn last_acknowledgement(&self) -> Body<'static> {
        let report = AckReport { next: self.ring.next(), path: None, rates: None, end: None };
        Body::Ack { number: 0, report }
    }

    /// The next bytes of the stream; empty if none have arrived. They stay until they are [consumed](Self::consume).
    pub(super) fn chunk(&self) -> &[u8] {
        if self.messages.is_some() || self.ring.read() == self.ring.next() {
            return &[];
        }
        &self.ring.payload(self.ring.read())[self.read_of_first..]
    }

    /// The number of packets that [`chunk`](Self::chunk) would give one after the other.
    pub(super) fn readable_packets(&self) -> u32 {
        let packets = if self.messages.is_some() { 0 } else { self.ring.next().since(self.ring.read()) };
        u32::try_from(packets).unwrap_or(0)
    }

    /// Removes the first `len` bytes of [`chunk`](Self::chunk), or all of it.
    pub(super) fn consume(&mut self, len: usize) {
        let left = self.chunk().len();
        if left == 0 && self.ring.read() == self.ring.next() || self.messages.is_some() {
            return;
        }
        if len < left {
            self.read_of_first += len;
            return;
        }
        self.ring.finish(self.ring.read());
        self.ring.release();
        self.read_of_first = 0;
        self.skip_empty();
        self.advertise_room();
    }

    /// Length of the next message, if one can be read.
    pub(super) fn message_len(&self) -> Option<usize> {
        let (first, last) = self.messages.as_ref()?.first()?;
        Some((0..=last.since(first) as u32).map(|n| self.ring.payload(first.plus(n)).len()).sum())
    }

    /// Reads the next message into `out`, which must have its length.
    pub(super) fn read_message(&mut self, out: &mut [u8]) {
        let Some(messages) = &mut self.messages else { return };
        let Some((first, last)) = messages.first() else { return };
        messages.pop();
        let mut at = 0;
        for n in 0..=last.since(first) as u32 {
            let payload = self.ring.payload(first.plus(n));
            out[at..at + payload.len()].copy_from_slice(payload);
            at += payload.len();
            self.ring.finish(first.plus(n));
        }
        self.ring.release();
        self.advertise_room();
    }

    /// Arrival rate and capacity, in packets per second.
    pub(super) fn rates(&self) -> (u32, u32) {
        (self.arrivals.rate(), self.arrivals.capacity())
    }

    /// Removes packets without payload from the front.
    fn skip_empty(&mut self) {
        while self.ring.read() != self.ring.next() && self.chunk().is_empty() {
            self.ring.finish(self.ring.read());
            self.ring.release();
        }
    }

    /// Whether there is room for the packets that had none: for all of them, or for half of the buffer.
    fn has_room_for_refused(&self) -> bool {
        let Some(end) = self.refused_end else { return false };
        let count = u32::try_from(end.since(self.ring.end())).unwrap_or(0);
        self.ring.room_behind() >= count.min((self.ring.limit() / 2).max(1))
    }

    /// Treats the packets that had no room as missing once there is room, so that they are reported. Without a report, the
    /// sender would repeat them one time-out after the other.
    fn expect_refused(&mut self, now: Duration) {
        if !self.has_room_for_refused() {
            return;
        }
        let Some(end) = self.refused_end else { return };
        if let Some((first, last)) = self.ring.expect(end) {
            self.counters.lost += last.since(first) as u64 + 1;
            self.holes.refused(now, first, last);
        }
        self.refused_end = Some(end).filter(|end| self.ring.end().is_before(*end));
    }

    /// Requests an acknowledgement when reading has freed much of a buffer that the peer believes to be nearly full.
    fn advertise_room(&mut self) {
        let (room, limit) = (self.ring.room(), self.ring.limit());
        if self.advertised_room <= limit / 4 && room >= limit / 2 {
            self.advertised_room = room;
            self.acks.request();
        }
    }
}

#[cfg(test)]
mod tests;
