//! The sending half of a connection: what waits, what is under way, what has to go again.

mod delivery;
mod pacer;

pub use delivery::DeliverySample;
pub(super) use pacer::Pacer;

use self::delivery::{Delivery, Snapshot};
use super::packet::Place;
use super::pool::Pool;
use super::rtt::Rtt;
use super::seq::{MessageNumber, Seq};
use super::{Kind, MessageOptions, SendError};
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
    /// Packets that a time-out sends again at most.
    const RESEND_MAX: u32 = 1024;
    /// Packets that may wait on any path: 1.5 MB.
    const WAITING_MIN: u32 = 1024;
    /// Packets for which there need not be more room before a writer is woken.
    const ROOMY_MAX: usize = 700;
    /// Longest time between two time-outs.
    const TIMEOUT_MAX: Duration = Duration::from_secs(2);

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

    /// Everything before `next` has arrived, and there is room for `room` packets from there on, if it was said. `None` if
    /// nothing new has arrived.
    pub(super) fn acknowledged(&mut self, now: Duration, next: Seq, room: Option<u32>) -> Option<Heard> {
        let count = next.since(self.first);
        if count > self.sent as i32 {
            // Of packets that were never sent: forged, or from a peer that is broken.
            self.counters.bogus += 1;
            return None;
        }
        if count < 0 {
            return None;
        }
        if let Some(room) = room {
            // Beyond 2³⁰ numbers could not be compared.
            self.edge = next.plus(room.min(1 << 29));
        }
        let (mut heard, newest) = (self.saw(now, next), self.packets.get((count as usize).wrapping_sub(1))?);
        heard.sent_at = (!newest.resent).then_some(newest.snapshot.sent_at);
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
        self.timeouts = 0;
        Some(heard)
    }

    /// The peer misses packets. They go again, but not those that were sent less than a round trip
    /// ago, which the peer cannot have missed yet.
    pub(super) fn reported_lost(
        &mut self,
        now: Duration,
        rtt: &Rtt,
        ranges: impl Iterator<Item = (Seq, Seq)>,
    ) -> Heard {
        let (mut heard, mut looked_at) = (Heard::default(), 0);
        let patience = rtt.get().saturating_sub(rtt.variation());
        for (first, last) in ranges {
            let (from, to) = (first.since(self.first), last.since(self.first));
            // An honest report names packets that were sent, and none twice.
            if from > to || to >= self.sent as i32 || looked_at > self.sent {
                self.counters.bogus += 1;
                break;
            }
            if to < 0 {
                continue;
            }
            let range = from.max(0)..to + 1;
            looked_at += range.len() as u32;
            let fits = |packet: &Outgoing| !packet.resent || packet.snapshot.sent_at + patience <= now;
            heard.lost += self.mark(range.start as u32, range.end as u32, fits);
            // It was the packet after them that showed that they are missing.
            let shown = self.saw(now, self.first.plus((to as u32 + 2).min(self.sent)));
            heard.arrived += shown.arrived;
            heard.sample = shown.sample.or(heard.sample);
        }
        if heard.lost > 0 {
            self.timeouts = 0;
        }
        self.counters.lost += u64::from(heard.lost);
        heard
    }

    /// When the oldest packet is overdue, if it is not to go again anyway.
    pub(super) fn timeout_at(&self, rtt: &Rtt) -> Option<Duration> {
        let head = self.packets.front().filter(|head| self.sent > 0 && !head.is_lost)?;
        let patience = rtt.timeout() * (1 << self.timeouts.min(6));
        Some(head.snapshot.sent_at + patience.min(Self::TIMEOUT_MAX.max(rtt.timeout())))
    }

    /// Sends the first and the last packet again: the one is missing, or the word that it arrived; the other shows the peer
    /// what else is. If the peer is alive (`heard`) and this did not help, its report was lost and it sends only one: then
    /// twice as many as the last time.
    pub(super) fn on_timeout(&mut self, now: Duration, rtt: &Rtt, heard: bool) {
        let count = if heard { (1 << self.timeouts.min(10)).min(Self::RESEND_MAX) } else { 1 };
        let overdue = rtt.timeout();
        let mut marked = self.mark(0, self.sent.min(count), |packet| packet.snapshot.sent_at + overdue <= now);
        marked += self.mark(self.sent.saturating_sub(1), self.sent, |packet| packet.snapshot.sent_at + overdue <= now);
        self.counters.lost += u64::from(marked);
        self.timeouts += 1;
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

    /// Marks sent packets from `from` to before `to` that `fits` takes, and returns how many.
    fn mark(&mut self, from: u32, to: u32, fits: impl Fn(&Outgoing) -> bool) -> u32 {
        let mut marked = 0;
        let mut run: Option<(u32, u32)> = None;
        for index in from..to.min(self.sent) {
            let packet = &mut self.packets[index as usize];
            if packet.is_lost || !fits(packet) {
                continue;
            }
            packet.is_lost = true;
            marked += 1;
            run = Some(run.map_or((index, index), |(first, _)| (first, index)));
        }
        self.lost_count += marked;
        if let Some((first, last)) = run {
            self.lost.push_back((self.first.plus(first), self.first.plus(last)));
        }
        marked
    }

    fn first_lost(&mut self) -> Option<usize> {
        while let Some((first, last)) = self.lost.front_mut() {
            if self.lost_count == 0 {
                break;
            }
            if first.is_before(self.first) {
                *first = self.first;
            }
            while !last.is_before(*first) {
                let index = first.since(self.first) as usize;
                if self.packets[index].is_lost {
                    return Some(index);
                }
                *first = first.plus(1);
            }
            self.lost.pop_front();
        }
        self.lost.clear();
        None
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
