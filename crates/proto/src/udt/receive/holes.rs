//! Which missing packets the sender is told of, and when again.
//!
//! libudt reports a gap once and leaves what gets lost after that to the sender's time-out. Here a gap is reported again
//! whenever the repair is overdue, ever less often: on a path that loses 5 %, every twentieth repair is lost as well.
//!
//! Nor does libudt wait: a packet that another has overtaken is reported as lost at once. Here it is, too, until some come
//! after all; from then on a gap waits as long as such packets were late of late ([`Lateness`]), as in RACK (RFC 8985).

use super::ring::Ring;
use crate::udt::loss_list::LossWriter;
use crate::udt::rtt::Rtt;
use crate::udt::seq::Seq;
use std::collections::VecDeque;
use std::time::Duration;

/// The gaps that were seen, new ones first, reported ones in the order in which they fall due.
#[derive(Debug, Default)]
pub(super) struct Holes {
    fresh: VecDeque<Gap>,
    reported: VecDeque<Hole>,
    lateness: Lateness,
}

#[derive(Debug, Clone, Copy)]
struct Gap {
    first: Seq,
    last: Seq,
    found_at: Duration,
}

/// How long packets are missing that others have overtaken.
#[derive(Debug, Default)]
struct Lateness {
    /// The last gaps, by their numbers.
    gaps: VecDeque<Gap>,
    /// The latest packet of this period, and of the one before.
    most: [Duration; 2],
    since: Duration,
}

#[derive(Debug, Clone, Copy)]
struct Hole {
    first: Seq,
    last: Seq,
    due: Duration,
    reports: u32,
}

impl Holes {
    /// Reports of a hole after which the time to the next no longer grows.
    const PATIENCE_MAX: u32 = 8;

    /// Takes in a gap.
    pub(super) fn found(&mut self, now: Duration, first: Seq, last: Seq) {
        let gap = Gap { first, last, found_at: now };
        self.fresh.push_back(gap);
        self.lateness.found(gap);
    }

    /// A packet has arrived behind the newest.
    pub(super) fn filled(&mut self, now: Duration, seq: Seq, rtt: &Rtt) {
        self.lateness.filled(now, seq, rtt);
    }

    /// When a report is due.
    pub(super) fn due(&self) -> Option<Duration> {
        let fresh = self.fresh.front().map(|gap| gap.found_at + self.lateness.wait());
        fresh.into_iter().chain(self.reported.front().map(|hole| hole.due)).min()
    }

    /// Writes what is due and returns whether there was anything. A repair is overdue after `patience`.
    pub(super) fn report(
        &mut self,
        now: Duration,
        patience: Duration,
        ring: &Ring,
        writer: &mut LossWriter<'_>,
    ) -> bool {
        let wait = self.lateness.wait();
        while let Some(Gap { first, last, .. }) = self.fresh.pop_front_if(|gap| gap.found_at + wait <= now) {
            let hole = Hole { first, last, due: now, reports: 0 };
            if !self.report_one(hole, now, patience, ring, writer) {
                break;
            }
        }
        // Those that are looked at again fall due later.
        while let Some(hole) = self.reported.pop_front_if(|hole| hole.due <= now) {
            if !self.report_one(hole, now, patience, ring, writer) {
                break;
            }
        }
        !writer.is_empty()
    }

    /// Reports what is left of a hole; `false` if there was no room for all of it.
    fn report_one(
        &mut self,
        hole: Hole,
        now: Duration,
        patience: Duration,
        ring: &Ring,
        writer: &mut LossWriter<'_>,
    ) -> bool {
        let mut rest = hole;
        while let Some((first, last)) = first_missing(ring, rest.first, rest.last) {
            if !writer.push(first, last) {
                // The rest stays due: at the front, so that order is kept.
                self.reported.push_front(Hole { first, due: now, ..rest });
                return false;
            }
            let reports = rest.reports + 1;
            let due = now + patience * reports.min(Self::PATIENCE_MAX);
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

impl Lateness {
    /// Gaps that are remembered.
    const GAPS_MAX: usize = 1024;
    /// For how long at least what was late counts.
    const PERIOD: Duration = Duration::from_secs(4);

    fn found(&mut self, gap: Gap) {
        if self.gaps.len() == Self::GAPS_MAX {
            self.gaps.pop_front();
        }
        self.gaps.push_back(gap);
        if gap.found_at >= self.since + Self::PERIOD {
            let before = if gap.found_at < self.since + 2 * Self::PERIOD { self.most[0] } else { Duration::ZERO };
            (self.most, self.since) = ([Duration::ZERO, before], gap.found_at);
        }
    }

    fn filled(&mut self, now: Duration, seq: Seq, rtt: &Rtt) {
        let index = self.gaps.partition_point(|gap| !seq.is_before(gap.first));
        let Some(gap) = index.checked_sub(1).map(|index| self.gaps[index]) else { return };
        if gap.last.is_before(seq) {
            return;
        }
        // What comes a round trip after its report may be a repair.
        let (Some(least), late) = (rtt.min(), now.saturating_sub(gap.found_at)) else { return };
        if late < self.wait() + least * 3 / 4 {
            self.most[0] = self.most[0].max(late.min(rtt.get()));
        }
    }

    /// How long a gap is given to fill by itself: a quarter longer than was needed.
    fn wait(&self) -> Duration {
        self.most[0].max(self.most[1]) * 5 / 4
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
    use crate::udt::packet::Place;

    const PATIENCE: Duration = Duration::from_millis(100);

    fn report(holes: &mut Holes, now: Duration, ring: &Ring, room: usize) -> Vec<(u32, u32)> {
        let mut out = vec![0; room];
        let mut writer = LossWriter::new(&mut out);
        holes.report(now, PATIENCE, ring, &mut writer);
        let len = writer.len();
        LossList::new(&out[..len]).map_or(vec![], |list| list.ranges().map(|(a, b)| (a.get(), b.get())).collect())
    }

    #[test]
    fn what_stays_missing_is_reported_again_ever_less_often() {
        let mut ring = Ring::new(Seq::new(0), 100, 1);
        let mut holes = Holes::default();
        ring.insert(Seq::new(10), Place::NONE, b"");
        holes.found(Duration::ZERO, Seq::new(0), Seq::new(9));
        assert_eq!(holes.due(), Some(Duration::ZERO));
        assert_eq!(report(&mut holes, Duration::ZERO, &ring, 64), [(0, 9)]);
        assert_eq!(holes.due(), Some(PATIENCE));
        assert_eq!(report(&mut holes, PATIENCE / 2, &ring, 64), []);
        for seq in [0, 1, 5] {
            ring.insert(Seq::new(seq), Place::NONE, b"");
        }
        assert_eq!(report(&mut holes, PATIENCE, &ring, 64), [(2, 4), (6, 9)]);
        assert_eq!(holes.due(), Some(3 * PATIENCE));
        for seq in [2, 3, 4, 6, 7, 8, 9] {
            ring.insert(Seq::new(seq), Place::NONE, b"");
        }
        assert_eq!(report(&mut holes, 3 * PATIENCE, &ring, 64), []);
        assert_eq!(holes.due(), None);
    }

    #[test]
    fn what_finds_no_room_goes_into_the_next_report() {
        let mut ring = Ring::new(Seq::new(0), 100, 1);
        let mut holes = Holes::default();
        for seq in [1, 3, 5] {
            ring.insert(Seq::new(seq), Place::NONE, b"");
            holes.found(Duration::ZERO, Seq::new(seq - 1), Seq::new(seq - 1));
        }
        assert_eq!(report(&mut holes, Duration::ZERO, &ring, 8), [(0, 0), (2, 2)]);
        assert_eq!(report(&mut holes, Duration::ZERO, &ring, 8), [(4, 4)]);
        assert_eq!(report(&mut holes, Duration::ZERO, &ring, 8), []);
    }
    #[test]
    fn a_gap_waits_as_long_as_packets_were_late() {
        const MS: Duration = Duration::from_millis(1);
        let mut rtt = Rtt::new();
        rtt.measured(40 * MS);
        let mut ring = Ring::new(Seq::new(0), 1000, 1);
        let mut holes = Holes::default();
        let gap = |holes: &mut Holes, ring: &mut Ring, at: Duration, seq: u32| {
            ring.insert(Seq::new(seq + 1), Place::NONE, b"");
            holes.found(at, Seq::new(seq), Seq::new(seq));
        };
        // The first is reported at once, and comes 8 ms later: nothing can have repaired it.
        gap(&mut holes, &mut ring, MS, 0);
        assert_eq!((holes.due(), report(&mut holes, MS, &ring, 64)), (Some(MS), vec![(0, 0)]));
        ring.insert(Seq::new(0), Place::NONE, b"");
        holes.filled(9 * MS, Seq::new(0), &rtt);
        // The next one has 10 ms, does not come, and what comes a round trip later is the repair.
        gap(&mut holes, &mut ring, 20 * MS, 2);
        assert_eq!((holes.due(), report(&mut holes, 29 * MS, &ring, 64)), (Some(30 * MS), vec![]));
        assert_eq!(report(&mut holes, 30 * MS, &ring, 64), [(2, 2)]);
        ring.insert(Seq::new(2), Place::NONE, b"");
        holes.filled(70 * MS, Seq::new(2), &rtt);
        gap(&mut holes, &mut ring, 80 * MS, 4);
        assert_eq!(holes.due(), Some(90 * MS));
        // What was not late for two periods is forgotten.
        assert_eq!(report(&mut holes, 90 * MS, &ring, 64), [(4, 4)]);
        for (n, second) in [5, 10].into_iter().enumerate() {
            gap(&mut holes, &mut ring, 1000 * second * MS, 10 + 2 * n as u32);
        }
        assert_eq!(holes.lateness.wait(), Duration::ZERO);
    }
}
