//! Reassembly of messages (message mode).

use super::ring::Ring;
use crate::udt::packet::MessagePosition;
use crate::udt::seq::Seq;
use std::collections::{HashMap, VecDeque};

/// Messages of which packets have arrived and that were not read yet.
#[derive(Debug, Default)]
pub(super) struct Messages {
    /// Incomplete messages by number. There are at most as many as packets in the buffer.
    partial: HashMap<u32, Partial>,
    /// Complete messages that must be read in order and wait for missing packets before them, in order.
    waiting: VecDeque<(Seq, Seq)>,
    /// Messages that can be read now.
    ready: VecDeque<(Seq, Seq)>,
}

#[derive(Debug, Default)]
struct Partial {
    packets: u32,
    first: Option<Seq>,
    last: Option<Seq>,
}

impl Messages {
    /// Processes a packet that was inserted into the buffer.
    pub(super) fn arrived(&mut self, seq: Seq, place: MessagePosition, ring: &Ring) {
        let number = place.message().get();
        let partial = self.partial.entry(number).or_default();
        partial.packets += 1;
        if place.is_first() {
            partial.first = Some(seq);
        }
        if place.is_last() {
            partial.last = Some(seq);
        }
        if let (Some(first), Some(last)) = (partial.first, partial.last)
            && last.since(first) == partial.packets as i32 - 1
        {
            self.partial.remove(&number);
            // A packet of another message in between shows that the peer numbers its messages wrongly.
            let belongs = |seq| ring.present(seq).is_some_and(|cell| cell.place.message() == place.message());
            if (0..=last.since(first) as u32).all(|n| belongs(first.plus(n))) {
                self.complete(first, last, place.is_in_order(), ring);
            }
        }
        self.advanced(ring);
    }

    /// Releases waiting messages after [`Ring::next`] has advanced.
    pub(super) fn advanced(&mut self, ring: &Ring) {
        while let Some(message) = self.waiting.pop_front_if(|(_, last)| last.is_before(ring.next())) {
            self.ready.push_back(message);
        }
    }

    /// First and last packet of the next message to read.
    pub(super) fn first(&self) -> Option<(Seq, Seq)> {
        self.ready.front().copied()
    }

    /// Removes the message that was read.
    pub(super) fn pop(&mut self) {
        self.ready.pop_front();
    }

    /// Forgets a message that the peer has dropped. Returns `false` if the message is complete and can still be read.
    pub(super) fn dropped(&mut self, number: u32, first: Seq, last: Seq) -> bool {
        self.partial.remove(&number);
        let overlaps = |(a, b): &(Seq, Seq)| !last.is_before(*a) && !b.is_before(first);
        !self.waiting.iter().chain(&self.ready).any(overlaps)
    }

    fn complete(&mut self, first: Seq, last: Seq, in_order: bool, ring: &Ring) {
        if !in_order || last.is_before(ring.next()) {
            // Keep the order: messages before this one are released first, later ones follow it.
            let (before, after): (VecDeque<_>, _) =
                std::mem::take(&mut self.waiting).into_iter().partition(|(_, other)| other.is_before(first));
            self.waiting = before;
            self.advanced(ring);
            self.ready.push_back((first, last));
            self.waiting.extend(after);
        } else {
            let place = self.waiting.iter().rposition(|(other, _)| other.is_before(first)).map_or(0, |index| index + 1);
            self.waiting.insert(place, (first, last));
        }
    }
}
