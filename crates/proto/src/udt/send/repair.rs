//! What has to go again: packets that the peer reports missing, and those of which nothing is heard.

use super::{Heard, Outgoing, Sender};
use crate::udt::rtt::Rtt;
use crate::udt::seq::Seq;
use std::time::Duration;

impl Sender {
    /// Packets that a time-out sends again at most.
    const RESEND_MAX: u32 = 1024;
    /// Time-outs in a row before which nothing is called stuck: a process that did not run for a while has tried nothing.
    const STUCK_AFTER: u32 = 4;
    /// Longest time between two time-outs.
    pub(super) const TIMEOUT_MAX: Duration = Duration::from_secs(2);

    /// The peer misses packets. They go again, but not those that were sent less than a round trip
    /// ago, which the peer cannot have missed yet.
    pub(in crate::udt) fn reported_lost(
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
    pub(in crate::udt) fn timeout_at(&self, rtt: &Rtt) -> Option<Duration> {
        let head = self.packets.front().filter(|head| self.sent > 0 && !head.is_lost)?;
        let patience = rtt.timeout() * (1 << self.timeouts.min(6));
        Some(head.snapshot.sent_at + patience.min(Self::TIMEOUT_MAX.max(rtt.timeout())))
    }

    /// Sends the first and the last packet again: the one is missing, or the word that it arrived; the other shows the peer
    /// what else is. If the peer is alive (`heard`) and this did not help, its report was lost and it sends only one: then
    /// twice as many as the last time.
    pub(in crate::udt) fn on_timeout(&mut self, now: Duration, rtt: &Rtt, heard: bool) {
        let count = if heard { (1 << self.timeouts.min(10)).min(Self::RESEND_MAX) } else { 1 };
        let overdue = rtt.timeout();
        let mut marked = self.mark(0, self.sent.min(count), |packet| packet.snapshot.sent_at + overdue <= now);
        marked += self.mark(self.sent.saturating_sub(1), self.sent, |packet| packet.snapshot.sent_at + overdue <= now);
        self.counters.lost += u64::from(marked);
        self.timeouts += 1;
    }

    /// Whether none of the packets under way has got through for `patience`, however often they went again, though the peer
    /// has room for them.
    pub(in crate::udt) fn is_stuck(&self, now: Duration, patience: Duration) -> bool {
        let has_tried = self.sent > 0 && self.timeouts >= Self::STUCK_AFTER && self.window() > Self::NO_ROOM;
        has_tried && now >= self.progress_at + patience
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

    /// The packet that waits longest to go again.
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
