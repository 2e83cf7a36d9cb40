//! Loss reports: which missing packets to report, and when to report them again.
//!
//! libudt reports a gap once and leaves lost retransmissions to the sender's time-out. Here a gap is reported again
//! whenever its retransmission is overdue, at growing intervals: on a path that loses 5 %, every twentieth
//! retransmission is lost as well.
//!
//! libudt reports a missing packet as soon as a later one arrives, even if the packets were only reordered. So does
//! this implementation until reordering is observed. From then on, a gap is reported only after the observed delay of
//! reordered packets ([`Reordering`]), as in RACK (RFC 8985).

use super::ring::Ring;
use crate::udt::loss_list::LossWriter;
use crate::udt::rtt::Rtt;
use crate::udt::seq::Seq;
use std::collections::VecDeque;
use std::time::Duration;

/// The gaps in the received sequence numbers.
#[derive(Debug, Default)]
pub(super) struct Holes {
    /// Gaps that were not reported yet, the oldest first.
    unreported: VecDeque<Gap>,
    /// Reported gaps, in the order of their next report.
    reported: VecDeque<Hole>,
    reordering: Reordering,
}

/// A run of packets that were missing when a later one arrived.
#[derive(Debug, Clone, Copy)]
struct Gap {
    first: Seq,
    last: Seq,
    found_at: Duration,
}

/// Measures the delay of reordered packets: how long they are missing after a later one has arrived.
#[derive(Debug, Default)]
struct Reordering {
    /// The last gaps, in order of sequence numbers.
    gaps: VecDeque<Gap>,
    /// The longest delay of this period, and of the one before.
    max: [Duration; 2],
    /// When this period began.
    since: Duration,
}

/// A run of packets that was reported as missing.
#[derive(Debug, Clone, Copy)]
struct Hole {
    first: Seq,
    last: Seq,
    due: Duration,
    reports: u32,
}

impl Holes {
    /// The interval of reports of the same hole grows up to this multiple of the retransmission time-out.
    const BACKOFF_MAX: u32 = 8;

    /// Records a new gap.
    pub(super) fn found(&mut self, now: Duration, first: Seq, last: Seq) {
        let gap = Gap { first, last, found_at: now };
        self.unreported.push_back(gap);
        self.reordering.found(gap);
    }

    /// Records packets that have arrived and had no room. They are reported at once, and tell nothing of reordering.
    pub(super) fn refused(&mut self, now: Duration, first: Seq, last: Seq) {
        self.reported.push_front(Hole { first, last, due: now, reports: 0 });
    }

    /// Records that a packet has arrived in a gap.
    pub(super) fn filled(&mut self, now: Duration, seq: Seq, rtt: &Rtt) {
        self.reordering.filled(now, seq, rtt);
    }

    /// When a report is due.
    pub(super) fn due(&self) -> Option<Duration> {
        let first = self.unreported.front().map(|gap| gap.found_at + self.reordering.wait());
        first.into_iter().chain(self.reported.front().map(|hole| hole.due)).min()
    }

    /// Writes the gaps that are due and returns whether there were any. `timeout` is the time-out of retransmissions.
    pub(super) fn report(
        &mut self,
        now: Duration,
        timeout: Duration,
        ring: &Ring,
        writer: &mut LossWriter<'_>,
    ) -> bool {
        let wait = self.reordering.wait();
        while let Some(Gap { first, last, .. }) = self.unreported.pop_front_if(|gap| gap.found_at + wait <= now) {
            let hole = Hole { first, last, due: now, reports: 0 };
            if !self.report_one(hole, now, timeout, ring, writer) {
                break;
            }
        }
        // `report_one` puts a hole back with a later time, so that this loop ends.
        while let Some(hole) = self.reported.pop_front_if(|hole| hole.due <= now) {
            if !self.report_one(hole, now, timeout, ring, writer) {
                break;
            }
        }
        !writer.is_empty()
    }

    /// Reports the packets of a hole that are still missing. Returns `false` if the report had no room for all of them.
    fn report_one(
        &mut self,
        hole: Hole,
        now: Duration,
        timeout: Duration,
        ring: &Ring,
        writer: &mut LossWriter<'_>,
    ) -> bool {
        let mut rest = hole;
        while let Some((first, last)) = first_missing(ring, rest.first, rest.last) {
            if !writer.push(first, last) {
                // The rest stays due. At the front, it keeps the order.
                self.reported.push_front(Hole { first, due: now, ..rest });
                return false;
            }
            let reports = rest.reports + 1;
            let due = now + timeout * reports.min(Self::BACKOFF_MAX);
            let reported = Hole { first, last, due, reports };
            let place = self.reported.iter().rposition(|other| other.due <= due).map_or(0, |index| index + 1);
            self.reported.insert(place, reported);
            if last == rest.last {
                break;
            }
            rest.first = last.plus(1);
        }
        true
    }
}

impl Reordering {
    /// Most gaps that are remembered.
    const GAPS_MAX: usize = 1024;
    /// A measured delay counts for one to two periods.
    const PERIOD: Duration = Duration::from_secs(4);

    fn found(&mut self, gap: Gap) {
        if self.gaps.len() == Self::GAPS_MAX {
            self.gaps.pop_front();
        }
        self.gaps.push_back(gap);
        if gap.found_at >= self.since + Self::PERIOD {
            let before = if gap.found_at < self.since + 2 * Self::PERIOD { self.max[0] } else { Duration::ZERO };
            (self.max, self.since) = ([Duration::ZERO, before], gap.found_at);
        }
    }

    fn filled(&mut self, now: Duration, seq: Seq, rtt: &Rtt) {
        let index = self.gaps.partition_point(|gap| !seq.is_before(gap.first));
        let Some(gap) = index.checked_sub(1).map(|index| self.gaps[index]) else { return };
        if gap.last.is_before(seq) {
            return;
        }
        // A packet that arrives about a round trip after its report may be a retransmission, so it does not count.
        let (Some(min_rtt), delay) = (rtt.min(), now.saturating_sub(gap.found_at)) else { return };
        if delay < self.wait() + min_rtt * 3 / 4 {
            self.max[0] = self.max[0].max(delay.min(rtt.get()));
        }
    }

    /// How long to wait before a gap is reported: the longest observed delay and a quarter more.
    fn wait(&self) -> Duration {
        self.max[0].max(self.max[1]) * 5 / 4
    }
}

/// The first run of missing packets from `first` to `last`.
fn first_missing(ring: &Ring, first: Seq, last: Seq) -> Option<(Seq, Seq)> {
    let mut seq = if first.is_before(ring.next()) { ring.next() } else { first };
    while !ring.is_missing(seq) {
        if !seq.is_before(last) {
            return None;
        }
        seq = seq.plus(1);
    }
    if last.is_before(seq) {
        return None;
    }
    let mut end = seq;
    while end.is_before(last) && ring.is_missing(end.plus(1)) {
        end = end.plus(1);
    }
    Some((seq, end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::udt::loss_list::LossList;
    use crate::udt::packet::MessagePosition;

    const TIMEOUT: Duration = Duration::from_millis(100);

    fn report(holes: &mut Holes, now: Duration, ring: &Ring, room: usize) -> Vec<(u32, u32)> {
        let mut out = vec![0; room];
        let mut writer = LossWriter::new(&mut out);
        holes.report(now, TIMEOUT, ring, &mut writer);
        let len = writer.len();
        LossList::new(&out[..len]).map_or(vec![], |list| list.ranges().map(|(a, b)| (a.get(), b.get())).collect())
    }

    #[test]
    fn missing_packets_are_reported_again_at_growing_intervals() {
        let mut ring = Ring::new(Seq::new(0), 100, 1);
        let mut holes = Holes::default();
        ring.insert(Seq::new(10), MessagePosition::NONE, b"");
        holes.found(Duration::ZERO, Seq::new(0), Seq::new(9));
        assert_eq!(holes.due(), Some(Duration::ZERO));
        assert_eq!(report(&mut holes, Duration::ZERO, &ring, 64), [(0, 9)]);
        assert_eq!(holes.due(), Some(TIMEOUT));
        assert_eq!(report(&mut holes, TIMEOUT / 2, &ring, 64), []);
        for seq in [0, 1, 5] {
            ring.insert(Seq::new(seq), MessagePosition::NONE, b"");
        }
        assert_eq!(report(&mut holes, TIMEOUT, &ring, 64), [(2, 4), (6, 9)]);
        assert_eq!(holes.due(), Some(3 * TIMEOUT));
        for seq in [2, 3, 4, 6, 7, 8, 9] {
            ring.insert(Seq::new(seq), MessagePosition::NONE, b"");
        }
        assert_eq!(report(&mut holes, 3 * TIMEOUT, &ring, 64), []);
        assert_eq!(holes.due(), None);
    }

    #[test]
    fn gaps_that_do_not_fit_go_into_the_next_report() {
        let mut ring = Ring::new(Seq::new(0), 100, 1);
        let mut holes = Holes::default();
        for seq in [1, 3, 5] {
            ring.insert(Seq::new(seq), MessagePosition::NONE, b"");
            holes.found(Duration::ZERO, Seq::new(seq - 1), Seq::new(seq - 1));
        }
        assert_eq!(report(&mut holes, Duration::ZERO, &ring, 8), [(0, 0), (2, 2)]);
        assert_eq!(report(&mut holes, Duration::ZERO, &ring, 8), [(4, 4)]);
        assert_eq!(report(&mut holes, Duration::ZERO, &ring, 8), []);
    }

    #[test]
    fn gap_is_reported_after_the_observed_reordering_delay() {
        const MS: Duration = Duration::from_millis(1);
        let mut rtt = Rtt::new();
        rtt.measured(40 * MS);
        let mut ring = Ring::new(Seq::new(0), 1000, 1);
        let mut holes = Holes::default();
        let gap = |holes: &mut Holes, ring: &mut Ring, at: Duration, seq: u32| {
            ring.insert(Seq::new(seq + 1), MessagePosition::NONE, b"");
            holes.found(at, Seq::new(seq), Seq::new(seq));
        };
        // The first gap is reported at once. Its packet arrives 8 ms later, too early for a retransmission.
        gap(&mut holes, &mut ring, MS, 0);
        assert_eq!((holes.due(), report(&mut holes, MS, &ring, 64)), (Some(MS), vec![(0, 0)]));
        ring.insert(Seq::new(0), MessagePosition::NONE, b"");
        holes.filled(9 * MS, Seq::new(0), &rtt);
        // The next gap is reported after 10 ms. Its packet arrives a round trip later: it is a retransmission.
        gap(&mut holes, &mut ring, 20 * MS, 2);
        assert_eq!((holes.due(), report(&mut holes, 29 * MS, &ring, 64)), (Some(30 * MS), vec![]));
        assert_eq!(report(&mut holes, 30 * MS, &ring, 64), [(2, 2)]);
        ring.insert(Seq::new(2), MessagePosition::NONE, b"");
        holes.filled(70 * MS, Seq::new(2), &rtt);
        gap(&mut holes, &mut ring, 80 * MS, 4);
        assert_eq!(holes.due(), Some(90 * MS));
        // A measurement older than two periods expires.
        assert_eq!(report(&mut holes, 90 * MS, &ring, 64), [(4, 4)]);
        for (n, second) in [5, 10].into_iter().enumerate() {
            gap(&mut holes, &mut ring, 1000 * second * MS, 10 + 2 * n as u32);
        }
        assert_eq!(holes.reordering.wait(), Duration::ZERO);
    }
}
