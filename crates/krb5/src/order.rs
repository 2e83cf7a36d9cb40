//! Which messages of a context have come, by the numbers that they carry (RFC 4121, section 4.2.6.2: each has the next, in its header,
//! which its checksum or encryption covers).
//!
//! The library looks for those that come twice, too, but of all messages together and within a window: a command may overtake hundreds
//! of messages of data that were sent before it over another connection. So it is done here.

/// Between how many messages some may be missing: those of transfers that were given up, and of connections that are slower than others.
const GAPS: usize = 1024;

/// The numbers that have come.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// First and last of those between which none is missing, in order.
    runs: Vec<(u64, u64)>,
}

/// What a number is that cannot be noted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Twice {
    /// It came before.
    Before,
    /// There are too many gaps to tell for ever: it is older than what can be told.
    Old,
}

impl Seen {
    /// Notes that this one has come.
    pub(super) fn note(&mut self, number: u64) -> Result<(), Twice> {
        let at = self.runs.partition_point(|&(_, last)| last < number);
        if self.runs.get(at).is_some_and(|&(first, _)| first <= number) {
            return Err(Twice::Before);
        }
        if at == 0 && self.runs.len() >= GAPS {
            return Err(Twice::Old);
        }
        let follows = at > 0 && self.runs[at - 1].1.checked_add(1) == Some(number);
        let precedes = self.runs.get(at).is_some_and(|&(first, _)| number.checked_add(1) == Some(first));
        match (follows, precedes) {
            (true, true) => {
                self.runs[at - 1].1 = self.runs[at].1;
                self.runs.remove(at);
            }
            (true, false) => self.runs[at - 1].1 = number,
            (false, true) => self.runs[at].0 = number,
            (false, false) => self.runs.insert(at, (number, number)),
        }
        if self.runs.len() > GAPS {
            // What is missing there is taken to have come: nothing of it is taken any more.
            let (first, _) = self.runs.remove(0);
            self.runs[0].0 = first;
        }
        Ok(())
    }

    /// The highest that has come.
    pub(super) fn latest(&self) -> Option<u64> {
        self.runs.last().map(|&(_, last)| last)
    }

    /// Whether all after `from` up to `to` have come.
    pub(super) fn has_all(&self, from: u64, to: u64) -> bool {
        from >= to || self.runs.iter().any(|&(first, last)| first <= from.saturating_add(1) && to <= last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_comes_once_in_any_order() {
        let mut seen = Seen::default();
        for number in [5, 7, 6, 9, 1] {
            assert_eq!(seen.note(number), Ok(()), "{number}");
            assert_eq!(seen.note(number), Err(Twice::Before), "{number}");
        }
        assert_eq!(seen.runs, [(1, 1), (5, 7), (9, 9)]);
        assert_eq!(seen.latest(), Some(9));
        assert!(seen.has_all(4, 7) && seen.has_all(5, 6) && seen.has_all(9, 9));
        assert!(!seen.has_all(4, 8) && !seen.has_all(6, 9) && !seen.has_all(3, 5));
        seen.note(8).unwrap();
        assert!(seen.has_all(4, 9));
        assert_eq!(seen.note(u64::MAX), Ok(()));
        assert_eq!(seen.note(u64::MAX), Err(Twice::Before));
    }

    #[test]
    fn gaps_are_bounded_and_what_is_beyond_them_is_not_taken() {
        let mut seen = Seen::default();
        for number in (10..).step_by(2).take(3 * GAPS) {
            seen.note(number).unwrap();
        }
        assert_eq!(seen.runs.len(), GAPS);
        assert_eq!(seen.note(11), Err(Twice::Before));
        assert_eq!(seen.note(3), Err(Twice::Old));
    }
}
