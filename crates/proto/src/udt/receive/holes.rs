//! Which missing packets the sender is told of, and when again.
//!
//! libudt reports a gap once and leaves what gets lost after that to the sender's time-out. Here a gap is reported again
//! whenever the repair is overdue, ever less often: on a path that loses 5 %, every twentieth repair is lost as well.

use super::ring::Ring;
use crate::udt::loss_list::LossWriter;
use crate::udt::seq::Seq;
use std::collections::VecDeque;
use std::time::Duration;

/// The gaps that were seen, new ones first, reported ones in the order in which they fall due.
#[derive(Debug, Default)]
pub(super) struct Holes {
    fresh: VecDeque<(Seq, Seq)>,
    reported: VecDeque<Hole>,
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
    pub(super) fn found(&mut self, first: Seq, last: Seq) {
        self.fresh.push_back((first, last));
    }

    /// When a report is due; `Duration::ZERO` for at once.
    pub(super) fn due(&self) -> Option<Duration> {
        if self.fresh.is_empty() { self.reported.front().map(|hole| hole.due) } else { Some(Duration::ZERO) }
    }

    /// Writes what is due and returns whether there was anything. A repair is overdue after `patience`.
    pub(super) fn report(
        &mut self,
        now: Duration,
        patience: Duration,
        ring: &Ring,
        writer: &mut LossWriter<'_>,
    ) -> bool {
        while let Some((first, last)) = self.fresh.pop_front() {
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
        holes.found(Seq::new(0), Seq::new(9));
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
            holes.found(Seq::new(seq - 1), Seq::new(seq - 1));
        }
        assert_eq!(report(&mut holes, Duration::ZERO, &ring, 8), [(0, 0), (2, 2)]);
        assert_eq!(report(&mut holes, Duration::ZERO, &ring, 8), [(4, 4)]);
        assert_eq!(report(&mut holes, Duration::ZERO, &ring, 8), []);
    }
}
