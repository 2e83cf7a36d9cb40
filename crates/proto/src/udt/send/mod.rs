//! The sending half of a connection: what waits, what is under way, what has to go again.

mod delivery;
mod pacer;
mod repair;

pub(super) use pacer::Pacer;

use self::delivery::{Delivery, Snapshot};
use super::control::DeliverySample;
use super::message::{Kind, MessageOptions, SendError};
use super::packet::{AckReport, PathReport, Place};
use super::pool::Pool;
use super::seq::{MessageNumber, Seq};

use std::collections::VecDeque;
use std::time::Duration;

/// Packets from the first that is not acknowledged on; some were sent, the rest waits.
#[derive(Debug)]
pub(super) struct Sender {
    kind: Kind,
    packets: VecDeque<Outgoing>,
    first: Seq,
    /// How many of the packets were sent.
    sent: u32,
    limit: u32,
    pool: Pool,
    /// The first packet for which the peer has no room.
    edge: Seq,
    /// The first packet after all of which it is known whether they have arrived.
    seen: Seq,
    /// Runs of packets to send again, oldest report first. Whether one still is to be is marked at the packet.
    lost: VecDeque<(Seq, Seq)>,
    lost_count: u32,
    message: MessageNumber,
    delivery: Delivery,
    /// Time-outs since anything was acknowledged or reported missing, for [`on_timeout`](Self::on_timeout).
    timeouts: u32,
    /// When a packet was last known to have arrived, or was the first under way, or the peer began to have room.
    progress_at: Duration,
    pub(super) counters: SendCounters,
}

#[derive(Debug)]
struct Outgoing {
    slot: u32,
    len: u16,
    place: Place,
    is_lost: bool,
    is_dropped: bool,
    /// Counted as delivered.
    is_counted: bool,
    resent: bool,
    expires: Option<Duration>,
    snapshot: Snapshot,
}

/// What was sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct SendCounters {
    pub(super) packets: u64,
    pub(super) bytes: u64,
    pub(super) resent: u64,
    pub(super) resent_bytes: u64,
    pub(super) lost: u64,
    pub(super) acked_bytes: u64,
    /// Bytes taken from the application.
    pub(super) taken_bytes: u64,
    pub(super) bogus: u64,
    pub(super) dropped_messages: u64,
}

/// What may go next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// A packet with so many bytes of payload.
    Packet {
        /// Its place among the packets.
        index: usize,
        /// Its payload.
        len: usize,
    },
    /// Word that a message is given up.
    Drop { message: MessageNumber, first: Seq, last: Seq },
}

/// What an acknowledgement or a loss report changed.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Heard {
    /// Packets that are now known to have arrived.
    pub(super) arrived: u32,
    /// Packets that go again because of it.
    pub(super) lost: u32,
    pub(super) sample: Option<DeliverySample>,
    /// Since when the newest packet was under way, if it was sent once.
    pub(super) sent_at: Option<Duration>,
}

impl Sender {
    /// Packets that may wait on any path: 1.5 MB.
    const WAITING_MIN: u32 = 1024;
    /// What a peer without room says, and lets the sender try: UDT has no zero.
    pub(super) const NO_ROOM: u32 = 2;
    /// Packets for which there need not be more room before a writer is woken.
    const ROOMY_MAX: usize = 700;

    /// For packets from `first` on with payloads of `payload_len` bytes; at most `limit` wait or are under way, and the peer
    /// has room for `window`.
    pub(super) fn new(kind: Kind, first: Seq, payload_len: usize, limit: u32, window: u32) -> Self {
        Self {
            kind,
            packets: VecDeque::new(),
            first,
            sent: 0,
            limit,
            pool: Pool::new(payload_len),
            edge: first.plus(window),
            seen: first,
            lost: VecDeque::new(),
            lost_count: 0,
            message: MessageNumber::FIRST,
            delivery: Delivery::default(),
            timeouts: 0,
            progress_at: Duration::ZERO,
            counters: SendCounters::default(),
        }
    }

    /// The packet that will be the next new one.
    pub(super) fn next(&self) -> Seq {
        self.first.plus(self.sent)
    }

    /// New packets that were sent and of which nothing is known yet. Those that wait at the peer for a missing one before
    /// them are not acknowledged, but are not under way either: the report of the missing one has shown that.
    pub(super) fn under_way(&self) -> u32 {
        self.next().since(self.seen) as u32
    }

    /// Packets that the peer has room for, from the first that is not acknowledged on.
    pub(super) fn window(&self) -> u32 {
        self.edge.since(self.first).max(0) as u32
    }

    /// Packets to send again.
    pub(super) fn lost(&self) -> u32 {
        self.lost_count
    }

    /// Whether everything is acknowledged.
    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Packets delivered since the connection began.
    pub(super) fn delivered(&self) -> u64 {
        self.delivery.delivered()
    }

    /// Bytes of a stream that there is room for, if `window` packets may be under way.
    pub(super) fn room(&self, window: u32) -> usize {
        let tail = self.tail().map_or(0, |tail| self.pool.slot_len() - usize::from(tail.len));
        self.limit_for(window).saturating_sub(self.packets.len()) * self.pool.slot_len() + tail
    }

    /// Whether there is so much room that waking a writer is worth it: a quarter of what may wait, or 1 MB.
    pub(super) fn is_roomy(&self, window: u32) -> bool {
        let waiting = self.waiting_for(window).min(self.limit);
        self.limit_for(window).saturating_sub(self.packets.len()) >= (waiting as usize / 4).min(Self::ROOMY_MAX)
    }

    /// Packets that may wait to be sent: no more than the path takes at a time, so that on a short one what waits stays in
    /// the processor's cache.
    fn waiting_for(&self, window: u32) -> u32 {
        window.max(Self::WAITING_MIN)
    }

    /// Packets that are held at most, those under way included.
    fn limit_for(&self, window: u32) -> usize {
        self.sent.saturating_add(self.waiting_for(window)).min(self.limit) as usize
    }

    /// Takes bytes of a stream, as many as there is [room](Self::room) for, and returns how many.
    pub(super) fn write(&mut self, data: &[u8], window: u32) -> usize {
        let (mut rest, limit) = (data, self.limit_for(window));
        if let Some(tail) = self.tail() {
            let (slot, at) = (tail.slot, usize::from(tail.len));
            let n = rest.len().min(self.pool.slot_len() - at);
            self.pool.get_mut(slot)[at..at + n].copy_from_slice(&rest[..n]);
            if let Some(tail) = self.packets.back_mut() {
                tail.len += n as u16;
            }
            rest = &rest[n..];
        }
        while !rest.is_empty() && self.packets.len() < limit {
            let n = rest.len().min(self.pool.slot_len());
            let place = Place::new(self.message, true, true, false);
            self.message = self.message.next();
            self.push(&rest[..n], place, None);
            rest = &rest[n..];
        }
        let taken = data.len() - rest.len();
        self.counters.taken_bytes += taken as u64;
        taken
    }

    /// Takes a message.
    ///
    /// # Errors
    /// [`SendError::Full`] if there is no room at present, [`SendError::TooLong`] or [`SendError::Empty`] if there never is.
    pub(super) fn send(&mut self, now: Duration, data: &[u8], options: MessageOptions) -> Result<(), SendError> {
        let max = self.limit as usize * self.pool.slot_len();
        if data.is_empty() {
            return Err(SendError::Empty);
        }
        if data.len() > max {
            return Err(SendError::TooLong { len: data.len(), max });
        }
        let count = data.len().div_ceil(self.pool.slot_len());
        if self.packets.len() + count > self.limit as usize {
            return Err(SendError::Full);
        }
        let expires = options.time_to_live.map(|ttl| now + ttl);
        for (n, part) in data.chunks(self.pool.slot_len()).enumerate() {
            let place = Place::new(self.message, n == 0, n + 1 == count, options.in_order);
            self.push(part, place, expires);
        }
        self.message = self.message.next();
        self.counters.taken_bytes += data.len() as u64;
        Ok(())
    }

    /// What may go, if `window` packets may be under way.
    pub(super) fn peek(&mut self, now: Duration, window: u32) -> Option<Next> {
        let index = match self.first_lost() {
            Some(index) => index,
            None => self.first_unsent(now, window)?,
        };
        let packet = &self.packets[index];
        if packet.is_dropped || packet.expires.is_some_and(|expires| expires < now) {
            return Some(self.give_up(now, index));
        }
        Some(Next::Packet { index, len: packet.len.into() })
    }

    /// Whether [`peek`](Self::peek) would find something.
    pub(super) fn has_next(&self, window: u32) -> bool {
        self.lost_count > 0 || (self.sent as usize) < self.packets.len() && self.may_send(window)
    }

    /// Marks a packet that `peek` gave as sent.
    pub(super) fn take(&mut self, now: Duration, index: usize) -> (Seq, Place, &[u8]) {
        let idle = self.sent == 0;
        if idle {
            self.progress_at = now;
        }
        let packet = &mut self.packets[index];
        if index < self.sent as usize {
            packet.resent = true;
            self.counters.resent += 1;
            self.counters.resent_bytes += u64::from(packet.len);
        } else {
            self.sent += 1;
        }
        if packet.is_lost {
            packet.is_lost = false;
            self.lost_count -= 1;
        }
        packet.snapshot = self.delivery.sent(now, idle);
        self.counters.packets += 1;
        self.counters.bytes += u64::from(packet.len);
        let (slot, len, place) = (packet.slot, usize::from(packet.len), packet.place);
        if self.sent as usize == self.packets.len() && self.lost_count == 0 {
            self.delivery.app_limited(self.sent);
        }
        (self.first.plus(index as u32), place, &self.pool.get(slot)[..len])
    }

    /// An acknowledgement has come. `None` if nothing new has arrived.
    pub(super) fn acknowledged(&mut self, now: Duration, report: &AckReport) -> Option<Heard> {
        let AckReport { next, path, end, .. } = *report;
        let count = next.since(self.first);
        if count > self.sent as i32 {
            // Of packets that were never sent: forged, or from a peer that is broken.
            self.counters.bogus += 1;
            return None;
        }
        if count < 0 {
            return None;
        }
        if let Some(PathReport { room, .. }) = path {
            // Beyond 2³⁰ numbers could not be compared.
            if self.window() <= Self::NO_ROOM {
                self.progress_at = now;
            }
            self.edge = next.plus(room.min(1 << 29));
        }
        // What has arrived behind a missing packet is no longer under way.
        let end = end.filter(|end| next.is_before(*end) && end.since(self.first) <= self.sent as i32).unwrap_or(next);
        let newest = self.packets.get((count as usize).wrapping_sub(1));
        // One that has arrived behind a missing packet shows how long that was missing.
        let sent_at =
            newest.filter(|newest| !newest.resent && !newest.is_counted).map(|newest| newest.snapshot.sent_at);
        let mut heard = self.saw(now, end);
        if count == 0 {
            return (heard.arrived > 0).then_some(heard);
        }
        heard.sent_at = sent_at;
        let mut repaired = 0;
        for packet in self.packets.drain(..count as usize) {
            self.lost_count -= u32::from(packet.is_lost);
            repaired += u32::from(!packet.is_counted);
            self.counters.acked_bytes += u64::from(packet.len);
            self.pool.give_back(packet.slot);
        }
        heard.arrived += repaired;
        self.first = next;
        self.sent -= count as u32;
        (self.timeouts, self.progress_at) = (0, now);
        Some(heard)
    }

    /// Since when the oldest packet is under way.
    pub(super) fn oldest_sent_at(&self) -> Option<Duration> {
        self.packets.front().filter(|_| self.sent > 0).map(|head| head.snapshot.sent_at)
    }

    /// Whatever was sent before `seq` has arrived, unless it is marked as lost.
    fn saw(&mut self, now: Duration, seq: Seq) -> Heard {
        let mut heard = Heard::default();
        if !self.seen.is_before(seq) {
            return heard;
        }
        let (from, to) = (self.seen.since(self.first).max(0), seq.since(self.first).max(0));
        self.seen = seq;
        let mut newest: Option<Snapshot> = None;
        for packet in self.packets.range_mut(from as usize..to as usize) {
            if packet.is_lost || packet.is_counted {
                continue;
            }
            packet.is_counted = true;
            heard.arrived += 1;
            if newest.is_none_or(|newest| packet.snapshot.is_newer(&newest)) {
                newest = Some(packet.snapshot);
            }
        }
        if heard.arrived > 0 {
            self.progress_at = now;
        }
        heard.sample = newest.map(|newest| self.delivery.acknowledged(now, heard.arrived, &newest));
        heard
    }

    fn push(&mut self, data: &[u8], place: Place, expires: Option<Duration>) {
        let slot = self.pool.take();
        self.pool.get_mut(slot)[..data.len()].copy_from_slice(data);
        let snapshot = Snapshot::default();
        let len = data.len() as u16;
        let packet = Outgoing {
            slot,
            len,
            place,
            is_lost: false,
            is_dropped: false,
            is_counted: false,
            resent: false,
            expires,
            snapshot,
        };
        self.packets.push_back(packet);
    }

    /// The last packet of a stream, if bytes can still be added to it.
    fn tail(&self) -> Option<&Outgoing> {
        let open = |tail: &&Outgoing| usize::from(tail.len) < self.pool.slot_len();
        self.packets
            .back()
            .filter(|_| self.kind == Kind::Stream && self.packets.len() > self.sent as usize)
            .filter(open)
    }

    /// The first packet that was not sent, if it may be. Messages of which nothing was sent are forgotten when they expire.
    fn first_unsent(&mut self, now: Duration, window: u32) -> Option<usize> {
        let index = self.sent as usize;
        loop {
            let packet = self.packets.get(index)?;
            if !packet.place.is_first() || packet.expires.is_none_or(|expires| expires >= now) {
                break;
            }
            let message = packet.place.message();
            while let Some(packet) = self.packets.get(index).filter(|packet| packet.place.message() == message) {
                self.pool.give_back(packet.slot);
                self.packets.remove(index);
            }
            self.counters.dropped_messages += 1;
        }
        self.may_send(window).then_some(index)
    }

    /// Whether a new packet may go: the peer has room, and fewer than `window` are under way.
    fn may_send(&self, window: u32) -> bool {
        self.sent < self.window() && self.under_way() < window
    }

    /// Gives up the message of a packet, of which some were sent.
    fn give_up(&mut self, now: Duration, index: usize) -> Next {
        let message = self.packets[index].place.message();
        let same = |packet: &&Outgoing| packet.place.message() == message;
        let before = self.packets.range(..index).rev().take_while(same).count();
        let after = self.packets.range(index..).take_while(same).count();
        let (first, end) = (index - before, index + after);
        self.counters.dropped_messages += u64::from(!self.packets[index].is_dropped);
        let snapshot = self.delivery.sent(now, self.sent == 0);
        for packet in self.packets.range_mut(first..end) {
            self.lost_count -= u32::from(packet.is_lost);
            (packet.is_lost, packet.is_dropped, packet.resent, packet.snapshot) = (false, true, true, snapshot);
        }
        self.sent = self.sent.max(end as u32);
        Next::Drop { message, first: self.first.plus(first as u32), last: self.first.plus(end as u32 - 1) }
    }
}

#[cfg(test)]
mod tests;
