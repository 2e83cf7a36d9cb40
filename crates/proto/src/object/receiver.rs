//! The receiving half of a transfer (L5–L7): which packets of which chunks have arrived, what to acknowledge, and how many
//! chunks the sender may begin.
//!
//! The owner has a buffer for each chunk in flight, and puts each packet where [`Receiver::place`] says. Each buffer that it
//! [adds](Receiver::grant) lets the sender begin one more chunk: a slow receiver is never taken for a path that loses
//! packets.

use super::ack::{Ack, Arrived};
use super::bitmap::Bitmap;
use super::config::Shape;
use super::packet::{Header, Kind, PacketNumber};
use super::parity::{self, ParityNumber};
use super::replay::ReplayWindow;
use std::collections::VecDeque;
use std::time::Duration;

/// Chunks that may be announced beyond the credit: little to remember.
pub const ANNOUNCED_AHEAD: u64 = 256;

/// Of the bytes that arrive, one in this many may be answered at once.
const ACK_SHARE: usize = 4;
/// Most bytes for that which are saved up.
const ACK_BURST: i64 = 64 << 10;
/// The most room that an owner gives an acknowledgement.
const ROOM_MAX: i64 = 1500;

/// The receiving half of a transfer.
#[derive(Debug)]
pub struct Receiver {
    shape: Shape,
    /// Chunks below this may be sent: there are buffers for them.
    credit: u64,
    /// The chunks from `complete` on.
    chunks: VecDeque<Chunk>,
    /// All chunks below this are complete.
    complete: u64,
    /// Number of announced chunks: these have numbers below it.
    announced: u64,
    replay: ReplayWindow,
    /// The highest transmission number, and when it arrived.
    largest: Option<(u64, Duration)>,
    acks: Acks,
    counters: ReceiveCounters,
}

/// When to acknowledge.
#[derive(Debug)]
struct Acks {
    /// Packets since the last statement began.
    unacknowledged: u32,
    due: Option<Duration>,
    /// Where the next datagram of an unfinished statement begins.
    rest: Option<PacketNumber>,
    /// Bytes that acknowledgements may still take without waiting for [`Shape::ack_interval`]: a share of what has arrived, so
    /// that no sender makes this end send more than it sends itself.
    budget: i64,
    /// Transmission number of the next datagram.
    next: u64,
}

#[derive(Debug)]
struct Chunk {
    arrived: Bitmap,
    /// Length in bytes, once announced.
    len: Option<u32>,
    /// The packet that was shorter than the others, and its length.
    short: Option<(u32, u32)>,
}

/// Where a packet belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The chunk.
    pub chunk: u64,
    /// Offset in the chunk of its first byte.
    pub offset: usize,
    /// Whether its bytes are there already.
    pub is_duplicate: bool,
}

/// Why a datagram is not for this transfer, or not now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unplaced {
    /// It carries no packet of this transfer, or has arrived before: drop it, whether or not its seal is intact.
    Foreign,
    /// If its seal is intact, the peer breaks the protocol.
    Invalid(&'static str),
}

/// Counters of the receiving half.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReceiveCounters {
    /// Packets that have arrived.
    pub packets: u64,
    /// Of these, packets whose bytes were there already.
    pub duplicates: u64,
    /// Buffers of datagrams that this host has dropped for want of room, as far as it says.
    pub drops: u64,
    /// Datagrams of acknowledgements.
    pub acknowledgements: u64,
    /// Packets that the peer has sent, as far as their numbers tell.
    pub sent: u64,
    /// Parity packets that have arrived.
    pub parity: u64,
    /// Packets that were computed from these.
    pub restored: u64,
}

/// The peer breaks the protocol on the control stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AnnouncementError {
    /// Chunks are numbered in order.
    #[error("chunk {0} was announced; chunk {1} was expected")]
    Order(u64, u64),
    /// It is far beyond the credit.
    #[error("chunk {0} was announced; only chunks below {1} may be")]
    Ahead(u64, u64),
    /// It is empty, longer than agreed, or shorter than what has arrived.
    #[error("chunk {chunk} was announced with {len} bytes; {expected}")]
    Length {
        /// The chunk.
        chunk: u64,
        /// Its announced length.
        len: u32,
        /// What was expected.
        expected: &'static str,
    },
}

impl Receiver {
    /// Begins without buffers.
    pub fn new(shape: Shape) -> Self {
        Self {
            shape,
            credit: 0,
            chunks: VecDeque::new(),
            complete: 0,
            announced: 0,
            replay: ReplayWindow::new(),
            largest: None,
            acks: Acks { unacknowledged: 0, due: None, rest: None, budget: 0, next: 0 },
            counters: ReceiveCounters::default(),
        }
    }

    /// Chunks below this number may be sent.
    pub fn credit(&self) -> u64 {
        self.credit
    }

    /// Number of chunks, from the first on, that are complete.
    pub fn complete(&self) -> u64 {
        self.complete
    }

    /// Number of chunks that were announced.
    pub fn announced(&self) -> u64 {
        self.announced
    }

    /// Counters.
    pub fn counters(&self) -> ReceiveCounters {
        self.counters
    }

    /// Records how many datagrams this host has dropped since the transfer began.
    pub fn dropped(&mut self, drops: u64) {
        self.counters.drops = drops;
    }

    /// Where the bytes of a data packet belong. `len` is the number of bytes without the seal. Nothing is recorded, so the
    /// seal may be checked afterwards.
    ///
    /// # Errors
    /// What to do with the datagram instead.
    pub fn place(&self, header: &Header, len: usize) -> Result<Place, Unplaced> {
        let PacketNumber { chunk, index } = header.packet;
        if !self.is_new(header, Kind::Data) {
            return Err(Unplaced::Foreign);
        }
        if chunk >= self.credit() {
            return Err(Unplaced::Invalid("a packet of a chunk for which there is no credit"));
        }
        if index >= self.shape.chunk_packets() || len == 0 || len > self.shape.packet_len as usize {
            return Err(Unplaced::Invalid("a packet that its chunk cannot have"));
        }
        let offset = index as usize * self.shape.packet_len as usize;
        let place = |is_duplicate| Place { chunk, offset, is_duplicate };
        let Some(at) = chunk.checked_sub(self.complete) else { return Ok(place(true)) };
        let Some(known) = self.chunks.get(at as usize) else { return Ok(place(false)) };
        let expected = match (known.len, known.short) {
            (Some(chunk_len), _) => (chunk_len as usize).saturating_sub(offset).min(self.shape.packet_len as usize),
            (None, Some((short, short_len))) if short == index => short_len as usize,
            (None, Some((short, _))) if short < index => 0,
            (None, Some(_)) => self.shape.packet_len as usize,
            (None, None) => len,
        };
        if len != expected {
            return Err(Unplaced::Invalid("a packet of another length than its chunk says"));
        }
        Ok(place(known.arrived.has(index)))
    }

    /// Which parity packet of which chunk a datagram is. `len` is the number of bytes without the seal. `None` if the chunk is
    /// complete. Nothing is recorded.
    ///
    /// # Errors
    /// As [`Self::place`].
    pub fn place_parity(&self, header: &Header, len: usize) -> Result<Option<(u64, ParityNumber)>, Unplaced> {
        let PacketNumber { chunk, index } = header.packet;
        if !self.is_new(header, Kind::Parity) {
            return Err(Unplaced::Foreign);
        }
        if chunk >= self.credit() {
            return Err(Unplaced::Invalid("parity of a chunk for which there is no credit"));
        }
        let number = ParityNumber::from_index(index);
        let number = number.filter(|number| {
            let is_even = parity::is_possible(self.shape.packet_len);
            is_even && len == self.shape.packet_len as usize && number.of <= parity::most(self.shape.chunk_packets())
        });
        let Some(number) = number else { return Err(Unplaced::Invalid("parity that its chunk cannot have")) };
        let is_open = chunk >= self.complete && !self.is_complete(chunk);
        Ok(is_open.then_some((chunk, number)))
    }

    /// Records that a parity packet has arrived.
    pub fn parity_arrived(&mut self, now: Duration, header: &Header, len: usize) {
        self.heard(now, header.transmission, len);
        self.counters.parity += 1;
    }

    /// The packets of a chunk that are missing, in order. `None` if its length is not known yet, or nothing is missing.
    pub fn missing(&self, chunk: u64) -> Option<Vec<u32>> {
        let known = self.chunks.get(chunk.checked_sub(self.complete)? as usize)?;
        let packets = known.len?.div_ceil(self.shape.packet_len);
        let mut missing = Vec::with_capacity((packets - known.arrived.count()) as usize);
        while let Some(index) = known.arrived.next_missing(missing.last().map_or(0, |last| last + 1)) {
            if index >= packets {
                break;
            }
            missing.push(index);
        }
        Some(missing).filter(|missing| !missing.is_empty())
    }

    /// Number of packets of a chunk that are missing, as far as its length is known.
    pub fn missing_count(&self, chunk: u64) -> Option<u32> {
        let known = self.chunks.get(chunk.checked_sub(self.complete)? as usize)?;
        Some(known.len?.div_ceil(self.shape.packet_len) - known.arrived.count())
    }

    /// The length of a chunk, once it was announced.
    pub fn len_of(&self, chunk: u64) -> Option<u32> {
        self.chunks.get(chunk.checked_sub(self.complete)? as usize)?.len
    }

    /// Records that all bytes of a chunk are there, because those that were missing were computed. Returns the chunk if that
    /// completes it.
    pub fn restored(&mut self, now: Duration, number: u64) -> Option<u64> {
        let packets = self.len_of(number)?.div_ceil(self.shape.packet_len);
        let known = self.chunk(number)?;
        let before = known.arrived.count();
        for index in 0..packets {
            known.arrived.insert(index);
        }
        self.counters.restored += u64::from(packets - before);
        // The sender need not repair them.
        self.acks.due = Some(now);
        self.completed(number)
    }

    /// Whether the datagram is of this kind and this transfer, and has not arrived before.
    fn is_new(&self, header: &Header, kind: Kind) -> bool {
        header.kind == kind && header.transfer == self.shape.transfer && self.replay.is_new(header.transmission)
    }

    fn is_complete(&self, chunk: u64) -> bool {
        self.missing_count(chunk) == Some(0)
    }

    /// Records that these bytes have come, for acknowledgements.
    fn heard(&mut self, now: Duration, transmission: u64, len: usize) {
        self.replay.insert(transmission);
        if self.largest.is_none_or(|(largest, _)| transmission > largest) {
            self.largest = Some((transmission, now));
            self.counters.sent = transmission + 1;
        }
        self.acks.unacknowledged += 1;
        self.acks.budget = (self.acks.budget + (len / ACK_SHARE) as i64).min(ACK_BURST);
        let is_enough = self.acks.unacknowledged >= self.shape.ack_packets && self.acks.budget >= 0;
        let soonest = if is_enough { now } else { now + self.shape.ack_interval };
        self.acks.due = Some(self.acks.due.map_or(soonest, |due| due.min(soonest)));
    }

    /// Records that the bytes of a packet are at their place. Returns the chunk if that completes it.
    pub fn arrived(&mut self, now: Duration, header: &Header, len: usize) -> Option<u64> {
        self.heard(now, header.transmission, len);
        self.counters.packets += 1;
        let PacketNumber { chunk, index } = header.packet;
        let is_new = match self.chunk(chunk) {
            Some(known) => known.arrived.insert(index),
            None => false,
        };
        if !is_new {
            self.counters.duplicates += 1;
            return None;
        }
        let packet_len = self.shape.packet_len as usize;
        let known = self.chunk(chunk)?;
        if len < packet_len {
            known.short = Some((index, len as u32));
        }
        self.completed(chunk)
    }

    /// Records a chunk's length, which the peer has announced. Returns the chunk if it is complete.
    ///
    /// # Errors
    /// The announcement contradicts others, or packets that have arrived.
    pub fn announce(&mut self, number: u64, len: u32) -> Result<Option<u64>, AnnouncementError> {
        if number != self.announced {
            return Err(AnnouncementError::Order(number, self.announced));
        }
        let end = self.credit + ANNOUNCED_AHEAD;
        if number >= end {
            return Err(AnnouncementError::Ahead(number, end));
        }
        let shape = self.shape;
        let wrong = |expected| AnnouncementError::Length { chunk: number, len, expected };
        if len == 0 || len > shape.chunk_len {
            return Err(wrong("from one byte to the agreed length was expected"));
        }
        let Some(chunk) = self.chunk(number) else { return Ok(None) };
        let packets = len.div_ceil(shape.packet_len);
        let last_len = len - (packets - 1) * shape.packet_len;
        let is_short_elsewhere = chunk.short.is_some_and(|short| short != (packets - 1, last_len));
        let is_longer = chunk.arrived.next(packets).is_some();
        // A last packet of full length where a shorter one was announced.
        let is_full = last_len < shape.packet_len && chunk.arrived.has(packets - 1) && chunk.short.is_none();
        if is_short_elsewhere || is_longer || is_full {
            return Err(wrong("its packets have another length"));
        }
        chunk.len = Some(len);
        self.announced += 1;
        Ok(self.completed(number))
    }

    /// Records that there is one more buffer: the next chunk may be sent.
    pub fn grant(&mut self, now: Duration) {
        self.credit += 1;
        // A sender that has used up its credit sends nothing that would be acknowledged.
        let soonest = now + self.shape.ack_interval;
        self.acks.due = Some(self.acks.due.map_or(soonest, |due| due.min(soonest)));
    }

    /// Appends the body of the next datagram to `out`, of at most `room` bytes, if one is due. Returns its header.
    pub fn poll_transmit(&mut self, now: Duration, room: usize, out: &mut Vec<u8>) -> Option<Header> {
        let (largest, at) = self.largest?;
        let from = match self.acks.rest {
            Some(rest) if self.acks.budget >= room as i64 => rest.max(PacketNumber { chunk: self.complete, index: 0 }),
            // A statement that was not finished in time begins anew where it stopped.
            rest if self.acks.due.is_some_and(|due| due <= now) => {
                (self.acks.due, self.acks.unacknowledged) = (None, 0);
                rest.unwrap_or_default().max(PacketNumber { chunk: self.complete, index: 0 })
            }
            _ => return None,
        };
        let ReceiveCounters { packets: received, duplicates, drops, .. } = self.counters;
        let (credit, complete) = (self.credit(), self.complete);
        let delay = now.saturating_sub(at);
        let ack = Ack { largest, delay, received, duplicates, drops, credit, complete, statement: () };
        let window = Window { complete, chunks: &self.chunks };
        let before = out.len();
        // What is due is not put off. With a debt of a whole datagram, it is said briefly.
        let room = if self.acks.budget <= -ROOM_MAX { 0 } else { room };
        self.acks.rest = ack.encode(from, &window, room, out);
        self.acks.budget = (self.acks.budget - (out.len() - before) as i64).max(-2 * ROOM_MAX);
        let transmission = self.acks.next;
        self.acks.next += 1;
        self.counters.acknowledgements += 1;
        Some(Header { kind: Kind::Ack, transfer: self.shape.transfer, transmission, packet: PacketNumber::default() })
    }

    /// When to call [`poll_transmit`](Self::poll_transmit) next.
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.largest?;
        match self.acks.rest {
            Some(_) if self.acks.budget >= ROOM_MAX => Some(Duration::ZERO),
            _ => self.acks.due,
        }
    }

    /// A chunk that is not complete, or was completed after an earlier one that is not.
    fn chunk(&mut self, number: u64) -> Option<&mut Chunk> {
        let at = number.checked_sub(self.complete)? as usize;
        while self.chunks.len() <= at {
            let arrived = Bitmap::new(self.shape.chunk_packets());
            self.chunks.push_back(Chunk { arrived, len: None, short: None });
        }
        self.chunks.get_mut(at)
    }

    /// The chunk, if all of it has arrived. Removes complete chunks from the front.
    fn completed(&mut self, number: u64) -> Option<u64> {
        let packet_len = self.shape.packet_len;
        let is_complete =
            |chunk: &Chunk| chunk.len.is_some_and(|len| chunk.arrived.count() == len.div_ceil(packet_len));
        let done = is_complete(self.chunk(number)?);
        while self.chunks.front().is_some_and(is_complete) {
            self.chunks.pop_front();
            self.complete += 1;
        }
        done.then_some(number)
    }
}

/// The chunks in flight, for statements.
struct Window<'a> {
    complete: u64,
    chunks: &'a VecDeque<Chunk>,
}

impl Arrived for Window<'_> {
    fn of(&self, chunk: u64) -> Option<&Bitmap> {
        let chunk = self.chunks.get(chunk.checked_sub(self.complete)? as usize)?;
        Some(&chunk.arrived).filter(|arrived| !arrived.is_empty())
    }

    fn end(&self) -> u64 {
        self.complete + self.chunks.len() as u64
    }
}
