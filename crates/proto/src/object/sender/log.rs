//! The log of transmissions: when each was sent, and of which packet, as long as its arrival is open.

use super::super::packet::PacketNumber;
use crate::control::Snapshot;
use std::collections::VecDeque;

/// A transmission.
#[derive(Debug, Clone, Copy)]
pub(super) struct Transmission {
    pub(super) packet: PacketNumber,
    /// When it was sent, and what was delivered then.
    pub(super) snapshot: Snapshot,
    /// Whether it counts as in flight: neither arrived, lost, nor replaced.
    pub(super) is_open: bool,
}

/// The latest transmissions, by number.
#[derive(Debug, Default)]
pub(super) struct Log {
    first: u64,
    entries: VecDeque<Transmission>,
    /// Number of those that are open.
    open: u32,
}

impl Log {
    /// The number of the next transmission.
    pub(super) fn end(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    /// Number of transmissions that are remembered.
    pub(super) fn len(&self) -> u64 {
        self.entries.len() as u64
    }

    /// Forgets the oldest transmission. Returns it if it was in flight.
    pub(super) fn drop_oldest(&mut self) -> Option<Transmission> {
        let oldest = self.close(self.first);
        self.first += u64::from(self.entries.pop_front().is_some());
        oldest
    }

    /// Number of packets in flight.
    pub(super) fn in_flight(&self) -> u32 {
        self.open
    }

    /// Adds the next transmission.
    pub(super) fn push(&mut self, packet: PacketNumber, snapshot: Snapshot) {
        self.entries.push_back(Transmission { packet, snapshot, is_open: true });
        self.open += 1;
    }

    /// A transmission that is still in the log.
    pub(super) fn get(&self, number: u64) -> Option<&Transmission> {
        self.entries.get(number.checked_sub(self.first)? as usize)
    }

    /// Takes a transmission out of the number in flight. Returns it if it was in flight.
    pub(super) fn close(&mut self, number: u64) -> Option<Transmission> {
        let entry = self.entries.get_mut(number.checked_sub(self.first)? as usize)?;
        if !std::mem::replace(&mut entry.is_open, false) {
            return None;
        }
        self.open -= 1;
        Some(*entry)
    }

    /// The transmissions in flight, the oldest first.
    pub(super) fn open_from(&self, from: u64) -> impl Iterator<Item = (u64, &Transmission)> {
        let start = from.saturating_sub(self.first).min(self.entries.len() as u64);
        let first = self.first + start;
        (first..).zip(self.entries.range(start as usize..)).filter(|(_, entry)| entry.is_open)
    }

    /// The latest transmission in flight before `before`.
    pub(super) fn open_before(&self, before: u64) -> Option<(u64, &Transmission)> {
        let count = before.checked_sub(self.first)?.min(self.entries.len() as u64) as usize;
        let at = self.entries.range(..count).rposition(|entry| entry.is_open)?;
        Some((self.first + at as u64, &self.entries[at]))
    }

    /// Forgets what is no longer open at the front, except the transmission `keep` and later ones.
    pub(super) fn forget(&mut self, keep: u64) {
        while self.first < keep && self.entries.front().is_some_and(|entry| !entry.is_open) {
            self.entries.pop_front();
            self.first += 1;
        }
    }
}
