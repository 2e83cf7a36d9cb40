//! The sending half of a connection: the send buffer, the packets in flight, and retransmissions.

mod repair;

use super::message::{Kind, MessageOptions, SendError};
use super::packet::{AckReport, MessagePosition, PathReport};
use super::pool::Pool;
use super::seq::{MessageNumber, Seq};
use crate::control::{Delivery, DeliverySample, Snapshot};

use std::collections::VecDeque;
use std::time::Duration;

/// The send buffer: packets from the first unacknowledged one on. The first `sent` of them were sent, the rest waits.
#[derive(Debug)]
pub(super) struct Sender {
    kind: Kind,
    packets: VecDeque<Outgoing>,
    first: Seq,
    /// Number of packets before `first`. Unlike sequence numbers, it never wraps.
    acknowledged: u64,
    /// Number of packets that were sent.
    sent: u32,
    /// Size of the buffer, in packets.
    limit: u32,
    pool: Pool,
    /// End of the peer's receive window: the first packet that does not fit into it.
    window_end: Seq,
    /// For all packets before this one, the peer has reported whether they have arrived.
    seen: Seq,
    /// Runs of packets to retransmit, the oldest report first. A packet in a run is lost only if it is marked so.
    lost: VecDeque<(Seq, Seq)>,
    lost_count: u32,
    message: MessageNumber,
    delivery: Delivery,
    /// Consecutive time-outs, for the backoff in [`on_timeout`](Self::on_timeout). Reset by acknowledgements and loss
    /// reports.
    timeouts: u32,
    /// When a packet was last known to have arrived, the first packet was sent, or the peer's window opened.
    progress_at: Duration,
    pub(super) counters: SendCounters,
}

#[derive(Debug)]
struct Outgoing {
    slot: u32,
    len: u16,
    place: MessagePosition,
    is_lost: bool,
    is_dropped: bool,
    /// Whether the packet was counted as delivered.
    is_counted: bool,
    resent: bool,
    expires: Option<Duration>,
    snapshot: Snapshot,
}

/// Counters of the sending half.
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

/// What to send next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// A data packet.
    Packet {
        /// Index in the send buffer.
        index: usize,
        /// Length of the payload, in bytes.
        len: usize,
    },
    /// The notice that a message was dropped.
    Drop { message: MessageNumber, first: Seq, last: Seq },
}

/// Result of an acknowledgement or a loss report.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Outcome {
    /// Number of packets newly known to have arrived.
    pub(super) arrived: u32,
    /// Number of packets newly marked for retransmission.
    pub(super) lost: u32,
    pub(super) sample: Option<DeliverySample>,
    /// When the newest acknowledged packet was sent, unless it was retransmitted.
    pub(super) sent_at: Option<Duration>,
}

impl Sender {
    /// Packets that may wait unsent on any path: 1.5 MB.
    const WAITING_MIN: u32 = 1024;
    /// The window that a peer without room advertises, because UDT has no zero window.
    pub(super) const NO_ROOM: u32 = 2;
    /// Room in packets that is always enough to wake a writer: 1 MB.
    const AMPLE_ROOM_MAX: usize = 700;

    /// A buffer of `limit` packets from `first` on with payloads of up to `payload_len` bytes. The peer's window has
    /// `window` packets.
    pub(super) fn new(kind: Kind, first: Seq, payload_len: usize, limit: u32, window: u32) -> Self {
        Self {
            kind,
            packets: VecDeque::new(),
            first,
            acknowledged: 0,
            sent: 0,
            limit,
            pool: Pool::new(payload_len),
            window_end: first.plus(window),
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

    /// Sequence number of the next new packet.
    pub(super) fn next(&self) -> Seq {
        self.first.plus(self.sent)
    }

    /// Number of the next new packet, counted from the beginning of the connection.
    pub(super) fn next_number(&self) -> u64 {
        self.acknowledged + u64::from(self.sent)
    }

    /// Number of the packet with this sequence number, which is unacknowledged.
    pub(super) fn number_of(&self, seq: Seq) -> u64 {
        self.acknowledged.saturating_add_signed(seq.since(self.first).into())
    }

    /// Number of new packets in flight. Packets that wait at the peer for a missing one are unacknowledged but not in
    /// flight: the report of the missing one implies their arrival.
    pub(super) fn in_flight(&self) -> u32 {
        self.next().since(self.seen) as u32
    }

    /// The peer's receive window, in packets from the first unacknowledged one on.
    pub(super) fn window(&self) -> u32 {
        self.window_end.since(self.first).max(0) as u32
    }

    /// Number of packets to retransmit.
    pub(super) fn lost(&self) -> u32 {
        self.lost_count
    }

    /// Whether everything is acknowledged.
    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Number of packets delivered since the connection began.
    pub(super) fn delivered(&self) -> u64 {
        self.delivery.delivered()
    }

    /// Room for bytes of a stream, with a congestion window of `window` packets.
    pub(super) fn room(&self, window: u32) -> usize {
        let tail = self.tail().map_or(0, |tail| self.pool.slot_len() - usize::from(tail.len));
        self.limit_for(window).saturating_sub(self.packets.len()) * self.pool.slot_len() + tail
    }

    /// Whether there is enough room to make waking a writer worthwhile: a quarter of the packets that may wait, or 1
    /// MB.
    pub(super) fn has_ample_room(&self, window: u32) -> bool {
        let waiting = self.waiting_for(window).min(self.limit);
        self.limit_for(window).saturating_sub(self.packets.len()) >= (waiting as usize / 4).min(Self::AMPLE_ROOM_MAX)
    }

    /// Most packets that may wait unsent: a congestion window's worth, so that waiting data stays in the CPU cache on a
    /// short path.
    fn waiting_for(&self, window: u32) -> u32 {
        window.max(Self::WAITING_MIN)
    }

    /// Most packets in the buffer, including those in flight.
    fn limit_for(&self, window: u32) -> usize {
        self.sent.saturating_add(self.waiting_for(window)).min(self.limit) as usize
    }

    /// Buffers bytes of a stream, as many as there is [room](Self::room) for, and returns their number.
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
            let place = MessagePosition::new(self.message, true, true, false);
            self.message = self.message.next();
            self.push(&rest[..n], place, None);
            rest = &rest[n..];
        }
        let taken = data.len() - rest.len();
        self.counters.taken_bytes += taken as u64;
        taken
    }

    /// Buffers a message.
    ///
    /// # Errors
    /// [`SendError::Full`] if there is no room at present; [`SendError::TooLong`] or [`SendError::Empty`] if the
    /// message can never be sent.
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
            let place = MessagePosition::new(self.message, n == 0, n + 1 == count, options.in_order);
            self.push(part, place, expires);
        }
        self.message = self.message.next();
        self.counters.taken_bytes += data.len() as u64;
        Ok(())
    }

    /// What to send next, with a congestion window of `window` packets.
    pub(super) fn peek(&mut self, now: Duration, window: u32) -> Option<Next> {
        let index = match self.first_lost() {
            Some(index) => index,
            None => self.first_unsent(now, window)?,
        };
        let packet = &self.packets[index];
        if packet.is_dropped || packet.expires.is_some_and(|expires| expires < now) {
            return Some(self.drop_message(now, index));
        }
        Some(Next::Packet { index, len: packet.len.into() })
    }

    /// Whether [`peek`](Self::peek) would return something.
    pub(super) fn has_next(&self, window: u32) -> bool {
        self.lost_count > 0 || (self.sent as usize) < self.packets.len() && self.may_send(window)
    }

    /// Marks a packet that `peek` returned as sent, and returns its contents.
    pub(super) fn transmit(&mut self, now: Duration, index: usize) -> (Seq, MessagePosition, &[u8]) {
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

    /// Processes an acknowledgement. Returns `None` if it contains nothing new.
    pub(super) fn acknowledged(&mut self, now: Duration, report: &AckReport) -> Option<Outcome> {
        let AckReport { next, path, end, .. } = *report;
        let count = next.since(self.first);
        if count > self.sent as i32 {
            // It acknowledges packets that were never sent: it is forged, or the peer is broken.
            self.counters.bogus += 1;
            return None;
        }
        if count < 0 {
            return None;
        }
        if let Some(PathReport { room, .. }) = path {
            if self.window() <= Self::NO_ROOM {
                self.progress_at = now;
            }
            // Sequence numbers must stay less than 2³⁰ apart to be comparable.
            self.window_end = next.plus(room.min(1 << 29));
        }
        // Packets that have arrived after a gap are no longer in flight.
        let end = end.filter(|end| next.is_before(*end) && end.since(self.first) <= self.sent as i32).unwrap_or(next);
        let newest = self.packets.get((count as usize).wrapping_sub(1));
        // A packet that had arrived after a gap gives no round-trip time: its acknowledgement waited for the missing
        // packet.
        let sent_at =
            newest.filter(|newest| !newest.resent && !newest.is_counted).map(|newest| newest.snapshot.sent_at);
        let mut outcome = self.mark_seen(now, end);
        if count == 0 {
            return (outcome.arrived > 0).then_some(outcome);
        }
        outcome.sent_at = sent_at;
        let mut retransmitted = 0;
        for packet in self.packets.drain(..count as usize) {
            self.lost_count -= u32::from(packet.is_lost);
            retransmitted += u32::from(!packet.is_counted);
            self.counters.acked_bytes += u64::from(packet.len);
            self.pool.free(packet.slot);
        }
        outcome.arrived += retransmitted;
        self.first = next;
        self.acknowledged += count as u64;
        self.sent -= count as u32;
        (self.timeouts, self.progress_at) = (0, now);
        Some(outcome)
    }

    /// When the oldest packet in flight was sent.
    pub(super) fn oldest_sent_at(&self) -> Option<Duration> {
        self.packets.front().filter(|_| self.sent > 0).map(|head| head.snapshot.sent_at)
    }

    /// Counts all packets before `seq` as delivered, unless they are marked as lost.
    fn mark_seen(&mut self, now: Duration, seq: Seq) -> Outcome {
        let mut outcome = Outcome::default();
        if !self.seen.is_before(seq) {
            return outcome;
        }
        let (from, to) = (self.seen.since(self.first).max(0), seq.since(self.first).max(0));
        self.seen = seq;
        let mut newest: Option<Snapshot> = None;
        for packet in self.packets.range_mut(from as usize..to as usize) {
            if packet.is_lost || packet.is_counted {
                continue;
            }
            packet.is_counted = true;
            outcome.arrived += 1;
            if newest.is_none_or(|newest| packet.snapshot.is_newer(&newest)) {
                newest = Some(packet.snapshot);
            }
        }
        if outcome.arrived > 0 {
            self.progress_at = now;
        }
        outcome.sample = newest.map(|newest| self.delivery.acknowledged(now, outcome.arrived, &newest));
        outcome
    }

    fn push(&mut self, data: &[u8], place: MessagePosition, expires: Option<Duration>) {
        let slot = self.pool.alloc();
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

    /// The first unsent packet, if the windows allow it. Removes expired messages of which nothing was sent.
    fn first_unsent(&mut self, now: Duration, window: u32) -> Option<usize> {
        let index = self.sent as usize;
        loop {
            let packet = self.packets.get(index)?;
            if !packet.place.is_first() || packet.expires.is_none_or(|expires| expires >= now) {
                break;
            }
            let message = packet.place.message();
            while let Some(packet) = self.packets.get(index).filter(|packet| packet.place.message() == message) {
                self.pool.free(packet.slot);
                self.packets.remove(index);
            }
            self.counters.dropped_messages += 1;
        }
        self.may_send(window).then_some(index)
    }

    /// Whether a new packet may be sent: the peer has room, and fewer than `window` packets are in flight.
    fn may_send(&self, window: u32) -> bool {
        self.sent < self.window() && self.in_flight() < window
    }

    /// Drops a message of which some packets were sent.
    fn drop_message(&mut self, now: Duration, index: usize) -> Next {
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
