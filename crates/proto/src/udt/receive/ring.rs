//! The receive buffer: a ring of packets, indexed by sequence number.

use crate::udt::packet::MessagePosition;
use crate::udt::pool::Pool;
use crate::udt::seq::Seq;

/// Packets from [`read`](Ring::read) on. Everything before [`next`](Ring::next) has arrived.
#[derive(Debug)]
pub(super) struct Ring {
    cells: Vec<Cell>,
    /// Index of the cell of `read`.
    head: usize,
    /// Most cells.
    limit: u32,
    read: Seq,
    next: Seq,
    end: Seq,
    pool: Pool,
}

/// The cell of one packet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cell {
    slot: u32,
    len: u16,
    state: State,
    pub(super) place: MessagePosition,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Missing,
    Present,
    /// Read already, or dropped by the peer.
    Done,
}

/// Result of [`Ring::insert`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Inserted {
    /// The packet had arrived before.
    Duplicate,
    /// The packet lies beyond the end of the buffer.
    NoRoom,
    /// The packet is longer than a cell.
    TooLong,
    /// The packet is new. The range contains the packets that are newly known to be missing, if any.
    New(Option<(Seq, Seq)>),
}

impl Ring {
    /// Initial number of cells.
    const INITIAL: usize = 256;
    const MISSING: Cell = Cell { slot: 0, len: 0, state: State::Missing, place: MessagePosition::NONE };

    /// A buffer for up to `limit` packets of up to `slot_len` bytes, which begin with `first`.
    pub(super) fn new(first: Seq, limit: u32, slot_len: usize) -> Self {
        let cells = vec![Self::MISSING; Self::INITIAL.min(limit as usize)];
        Self { cells, head: 0, limit, read: first, next: first, end: first, pool: Pool::new(slot_len) }
    }

    /// The first packet that was not read.
    pub(super) fn read(&self) -> Seq {
        self.read
    }

    /// The first packet that has not arrived.
    pub(super) fn next(&self) -> Seq {
        self.next
    }

    /// The number after the highest packet that has arrived.
    pub(super) fn end(&self) -> Seq {
        self.end
    }

    /// Number of packets that fit, from [`next`](Self::next) on.
    pub(super) fn room(&self) -> u32 {
        self.limit - self.next.since(self.read) as u32
    }

    /// Raises the limit of packets.
    pub(super) fn widen(&mut self, limit: u32) {
        self.limit = self.limit.max(limit);
    }

    /// Size of the buffer, in packets.
    pub(super) fn limit(&self) -> u32 {
        self.limit
    }

    /// Whether a packet between [`next`](Self::next) and [`end`](Self::end) is missing.
    pub(super) fn is_missing(&self, seq: Seq) -> bool {
        self.cell(seq).is_some_and(|cell| cell.state == State::Missing)
    }

    /// The cell of a packet that has arrived and was not read.
    pub(super) fn present(&self, seq: Seq) -> Option<&Cell> {
        self.cell(seq).filter(|cell| cell.state == State::Present)
    }

    /// The payload of a packet that has arrived and was not read; empty otherwise.
    pub(super) fn payload(&self, seq: Seq) -> &[u8] {
        self.present(seq).map_or(&[], |cell| &self.pool.get(cell.slot)[..usize::from(cell.len)])
    }

    /// Inserts a packet.
    pub(super) fn insert(&mut self, seq: Seq, place: MessagePosition, payload: &[u8]) -> Inserted {
        if seq.is_before(self.next) {
            return Inserted::Duplicate;
        }
        let offset = seq.since(self.read) as u32;
        if payload.len() > self.pool.slot_len() {
            return Inserted::TooLong;
        }
        if offset >= self.limit {
            return Inserted::NoRoom;
        }
        self.grow(offset as usize + 1);
        let index = self.index(offset);
        if self.cells[index].state != State::Missing {
            return Inserted::Duplicate;
        }
        let slot = self.pool.alloc();
        self.pool.get_mut(slot)[..payload.len()].copy_from_slice(payload);
        self.cells[index] = Cell { slot, len: payload.len() as u16, state: State::Present, place };
        let mut gap = None;
        if !seq.is_before(self.end) {
            gap = (seq != self.end).then(|| (self.end, seq.minus(1)));
            self.end = seq.plus(1);
        }
        if seq == self.next {
            self.advance();
        }
        Inserted::New(gap)
    }

    /// Number of packets that fit, from [`end`](Self::end) on.
    pub(super) fn room_behind(&self) -> u32 {
        self.limit - self.end.since(self.read) as u32
    }

    /// Waits for the packets before `end`, as many as fit. Returns those that are newly known to be missing.
    pub(super) fn expect(&mut self, end: Seq) -> Option<(Seq, Seq)> {
        let first = self.end;
        let count = u32::try_from(end.since(first)).unwrap_or(0).min(self.room_behind());
        if count == 0 {
            return None;
        }
        self.end = first.plus(count);
        self.grow(self.end.since(self.read) as usize);
        Some((first, self.end.minus(1)))
    }

    /// Frees a packet that was read, or stops waiting for a missing one. It must lie within the buffer.
    pub(super) fn finish(&mut self, seq: Seq) {
        let offset = seq.since(self.read);
        debug_assert!((0..self.limit as i32).contains(&offset), "{seq:?} is not in the buffer");
        self.grow(offset as usize + 1);
        let index = self.index(offset as u32);
        let cell = &mut self.cells[index];
        if cell.state == State::Present {
            self.pool.free(cell.slot);
        }
        cell.state = State::Done;
        if !seq.is_before(self.end) {
            self.end = seq.plus(1);
        }
        if seq == self.next {
            self.advance();
        }
    }

    /// Releases the cells of finished packets at the front.
    pub(super) fn release(&mut self) {
        while self.read != self.next && self.cells[self.head].state == State::Done {
            self.cells[self.head] = Self::MISSING;
            self.head = if self.head + 1 == self.cells.len() { 0 } else { self.head + 1 };
            self.read = self.read.plus(1);
        }
    }

    fn advance(&mut self) {
        while self.next != self.end && !self.is_missing(self.next) {
            self.next = self.next.plus(1);
        }
    }

    fn cell(&self, seq: Seq) -> Option<&Cell> {
        let offset = seq.since(self.read);
        (0..self.cells.len() as i32).contains(&offset).then(|| &self.cells[self.index(offset as u32)])
    }

    fn index(&self, offset: u32) -> usize {
        let index = self.head + offset as usize;
        if index >= self.cells.len() { index - self.cells.len() } else { index }
    }

    /// Grows to at least `cells` cells, at most the limit.
    fn grow(&mut self, cells: usize) {
        if cells > self.cells.len() {
            self.cells.rotate_left(self.head);
            self.head = 0;
            self.cells.resize(cells.next_power_of_two().min(self.limit as usize), Self::MISSING);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const PLACE: MessagePosition = MessagePosition::NONE;

    #[test]
    fn gap_is_reported_when_a_later_packet_arrives() {
        let first = Seq::MAX;
        let mut ring = Ring::new(first, 8, 2);
        assert_eq!(ring.insert(first, PLACE, b"a"), Inserted::New(None));
        assert_eq!(ring.insert(first.plus(3), PLACE, b"d"), Inserted::New(Some((first.plus(1), first.plus(2)))));
        assert_eq!((ring.next(), ring.room()), (first.plus(1), 7));
        assert_eq!(ring.insert(first.plus(3), PLACE, b"d"), Inserted::Duplicate);
        assert_eq!(ring.insert(first.plus(8), PLACE, b"i"), Inserted::NoRoom);
        assert_eq!(ring.insert(first.plus(1), PLACE, b"too long"), Inserted::TooLong);
        assert_eq!(ring.insert(first.plus(2), PLACE, b"c"), Inserted::New(None));
        assert_eq!(ring.insert(first.plus(1), PLACE, b"b"), Inserted::New(None));
        assert_eq!(ring.next(), first.plus(4));
        ring.finish(first);
        ring.release();
        assert_eq!((ring.room(), ring.payload(first.plus(1))), (5, &b"b"[..]));
        assert_eq!(ring.insert(first.plus(8), PLACE, b"i"), Inserted::New(Some((first.plus(4), first.plus(7)))));
    }

    #[test]
    fn packets_that_had_no_room_are_expected_once_there_is_some() {
        let first = Seq::MAX;
        let mut ring = Ring::new(first, 4, 2);
        for offset in 0..6 {
            ring.insert(first.plus(offset), PLACE, b"a");
        }
        assert_eq!(ring.expect(first.plus(6)), None);
        ring.finish(first);
        ring.release();
        assert_eq!(ring.expect(first.plus(6)), Some((first.plus(4), first.plus(4))));
        assert_eq!((ring.next(), ring.end(), ring.is_missing(first.plus(4))), (first.plus(4), first.plus(5), true));
        ring.widen(300);
        assert_eq!(ring.expect(first.plus(6)), Some((first.plus(5), first.plus(5))));
        assert_eq!(ring.expect(first.plus(6)), None);
        ring.insert(first.plus(4), PLACE, b"b");
        assert_eq!(ring.insert(first.plus(5), PLACE, b"b"), Inserted::New(None));
        assert_eq!(ring.next(), first.plus(6));
    }

    proptest! {
        #[test]
        fn packets_are_read_in_order_whatever_the_order_of_arrival(
            base in 0u32..1 << 31,
            arrivals in prop::collection::vec((0u32..700, any::<bool>()), 1..2000),
        ) {
            let base = Seq::new(base);
            let mut ring = Ring::new(base, 600, 4);
            let mut here = BTreeSet::new();
            let mut read = 0;
            for (offset, reads) in arrivals {
                let seq = base.plus(offset);
                let inserted = ring.insert(seq, PLACE, &offset.to_be_bytes());
                let fresh = offset >= read && offset < read + 600 && here.insert(offset);
                prop_assert_eq!(matches!(inserted, Inserted::New(_)), fresh);
                let next = (0..).find(|n| !here.contains(n)).unwrap_or_default();
                prop_assert_eq!(ring.next(), base.plus(next));
                while reads && read < next {
                    prop_assert_eq!(ring.payload(base.plus(read)), &read.to_be_bytes());
                    ring.finish(base.plus(read));
                    ring.release();
                    read += 1;
                }
                prop_assert_eq!(ring.room(), 600 - (next - read));
            }
        }
    }
}
