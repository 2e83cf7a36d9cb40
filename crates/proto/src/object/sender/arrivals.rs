//! What acknowledgements say: which packets have arrived, which are lost, and how long a round trip takes.

use super::super::ack::{Ack, Sections};
use super::super::packet::PacketNumber;
use super::{AckError, Sender};
use crate::control::{Loss, Snapshot};
use std::time::Duration;

/// What an acknowledgement newly says.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    pub(super) count: u32,
    /// The latest transmission among them.
    pub(super) newest: Option<Snapshot>,
}

impl Sender {
    /// Widens the tolerance of reordering if repairs were needless.
    pub(super) fn tolerate_reordering(&mut self, duplicates: u64) {
        let more = duplicates.saturating_sub(self.duplicates);
        self.duplicates = self.duplicates.max(duplicates);
        self.counters.duplicates = self.duplicates;
        // Repetitions arrive twice by intent.
        if more > 0 && self.duplicates > self.counters.repeats {
            self.reordering = (self.reordering * 2).min(self.rtt.get());
        }
    }

    pub(super) fn take_rtt(&mut self, now: Duration, ack: &Ack<Sections<'_>>) -> Option<Duration> {
        if self.largest.is_some_and(|largest| largest >= ack.largest) {
            return None;
        }
        self.largest = Some(ack.largest);
        let sent_at = self.log.get(ack.largest)?.snapshot.sent_at;
        let rtt = now.saturating_sub(sent_at).checked_sub(ack.delay)?;
        if !self.rtt.is_measured() {
            self.reordering = self.reordering.max(rtt / 4);
        }
        self.rtt.measured(now, rtt);
        Some(rtt)
    }

    /// Records what has arrived.
    pub(super) fn take_arrivals(&mut self, ack: &Ack<Sections<'_>>) -> Result<Arrivals, AckError> {
        let (chunks, log) = (&mut self.chunks, &mut self.log);
        let mut arrivals = Arrivals::default();
        let mut visit = |_: PacketNumber, latest: u64| {
            arrivals.count += 1;
            let Some(transmission) = log.close(latest) else { return };
            // If the latest transmission cannot have arrived yet, an earlier one has, whose time is not known.
            let is_newest = arrivals.newest.is_none_or(|newest| transmission.snapshot.is_newer(&newest));
            if latest <= ack.largest && is_newest {
                arrivals.newest = Some(transmission.snapshot);
            }
        };
        let mut known = Some(());
        for chunk in chunks.first()..ack.complete {
            known = known.and(chunks.all_arrived(chunk, &mut visit));
        }
        ack.statement.each(|chunk, run| known = known.and(chunks.arrived(chunk, run, &mut visit)));
        known.map(|()| arrivals).ok_or(AckError("a packet"))
    }

    /// Finds packets that were sent well before the latest one that has arrived, and have not.
    pub(super) fn find_losses(&mut self, now: Duration, ack: &Ack<Sections<'_>>) {
        let Some(largest) = self.log.get(ack.largest) else { return };
        let (latest, reordering) = (largest.snapshot.sent_at, self.reordering);
        let is_before = |number: u64, snapshot: &Snapshot| {
            number + Self::OVERTAKEN <= ack.largest && snapshot.sent_at + reordering <= latest
        };
        for (number, transmission) in self.log.open_from(self.judged) {
            self.judged = number;
            if !is_before(number, &transmission.snapshot) {
                break;
            }
            self.judged += 1;
            self.suspects.push((number, transmission.packet));
        }
        let (log, mut lost) = (&self.log, Vec::new());
        self.suspects.retain(|(number, packet)| {
            let Some(transmission) = log.get(*number).filter(|transmission| transmission.is_open) else { return false };
            let is_lost = is_before(*number, &transmission.snapshot) && ack.statement.covers(*packet);
            if is_lost {
                lost.push((*number, *packet));
            }
            !is_lost
        });
        let Some((first, _)) = lost.first().copied() else { return };
        let count = lost.len() as u32;
        for (number, packet) in lost {
            self.log.close(number);
            self.chunks.lost(packet);
        }
        self.counters.lost += u64::from(count);
        // What the peer's host had no room for says nothing about the path.
        if now >= self.dropping_until {
            let path = self.path();
            self.control.lost(now, &path, &Loss { first, count });
        }
    }
}
