//! Retransmission: of packets that the peer reports as lost, and after time-outs.

use super::{Outcome, Outgoing, Sender};
use crate::udt::rtt::Rtt;
use crate::udt::seq::Seq;
use std::time::Duration;

impl Sender {
    /// Most packets that one time-out retransmits.
    const RESEND_MAX: u32 = 1024;
    /// Consecutive time-outs before the connection can count as stuck. A process that was suspended for a while has not
    /// tried to send, and must not fail for it.
    const STUCK_AFTER: u32 = 4;
    /// Longest interval of time-outs, unless the time-out itself is longer.
    pub(super) const TIMEOUT_MAX: Duration = Duration::from_secs(2);

    /// Processes a loss report: marks the packets for retransmission, except those retransmitted less than a round trip
    /// ago, whose arrival the report cannot reflect yet.
    pub(in crate::udt) fn reported_lost(
        &mut self,
        now: Duration,
        rtt: &Rtt,
        ranges: impl Iterator<Item = (Seq, Seq)>,
    ) -> Outcome {
        let (mut outcome, mut looked_at) = (Outcome::default(), 0);
        let min_age = rtt.get().saturating_sub(rtt.variation());
        for (first, last) in ranges {
            let (from, to) = (first.since(self.first), last.since(self.first));
            // A valid report names only packets that were sent, and none twice. This also bounds the work.
            if from > to || to >= self.sent as i32 || looked_at > self.sent {
                self.counters.bogus += 1;
                break;
            }
            if to < 0 {
                continue;
            }
            let range = from.max(0)..to + 1;
            looked_at += range.len() as u32;
            let is_due = |packet: &Outgoing| !packet.resent || packet.snapshot.sent_at + min_age <= now;
            outcome.lost += self.mark_lost(range.start as u32, range.end as u32, is_due);
            // The packet after the gap has arrived: it revealed the gap. A receiver that reports what it had no room for is
            // the exception: then one packet counts as delivered early, and is repaired all the same.
            let seen = self.mark_seen(now, self.first.plus((to as u32 + 2).min(self.sent)));
            outcome.arrived += seen.arrived;
            outcome.sample = seen.sample.or(outcome.sample);
        }
        if outcome.lost > 0 {
            self.timeouts = 0;
        }
        self.counters.lost += u64::from(outcome.lost);
        outcome
    }

    /// When the retransmission timer of the oldest packet expires. `None` if the packet waits for retransmission
    /// already.
    pub(in crate::udt) fn timeout_at(&self, rtt: &Rtt) -> Option<Duration> {
        let head = self.packets.front().filter(|head| self.sent > 0 && !head.is_lost)?;
        let backoff = rtt.timeout() * (1 << self.timeouts.min(6));
        Some(head.snapshot.sent_at + backoff.min(Self::TIMEOUT_MAX.max(rtt.timeout())))
    }

    /// Retransmits the first and the last packet after a time-out. Either the first packet or its acknowledgement was
    /// lost. The last packet makes the peer report all other gaps. A libudt peer reports each gap only once, and the
    /// report may have been lost: while the peer is alive, every consecutive time-out retransmits twice as many packets
    /// from the first on.
    pub(in crate::udt) fn on_timeout(&mut self, now: Duration, rtt: &Rtt, is_peer_alive: bool) {
        let count = if is_peer_alive { (1 << self.timeouts.min(10)).min(Self::RESEND_MAX) } else { 1 };
        let timeout = rtt.timeout();
        let is_overdue = |packet: &Outgoing| packet.snapshot.sent_at + timeout <= now;
        let mut marked = self.mark_lost(0, self.sent.min(count), is_overdue);
        marked += self.mark_lost(self.sent.saturating_sub(1), self.sent, is_overdue);
        self.counters.lost += u64::from(marked);
        self.timeouts += 1;
    }

    /// Whether no packet has got through for `timeout` in spite of retransmissions, although the peer has room.
    pub(in crate::udt) fn is_stuck(&self, now: Duration, timeout: Duration) -> bool {
        let has_tried = self.sent > 0 && self.timeouts >= Self::STUCK_AFTER && self.window() > Self::NO_ROOM;
        has_tried && now >= self.progress_at + timeout
    }

    /// Marks those sent packets with index `from..to` as lost for which `is_due` is true, and returns their number.
    fn mark_lost(&mut self, from: u32, to: u32, is_due: impl Fn(&Outgoing) -> bool) -> u32 {
        let mut marked = 0;
        let mut run: Option<(u32, u32)> = None;
        for index in from..to.min(self.sent) {
            let packet = &mut self.packets[index as usize];
            if packet.is_lost || !is_due(packet) {
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

    /// The packet that has waited longest for its retransmission.
    pub(super) fn first_lost(&mut self) -> Option<usize> {
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
}
