//! Tracks which messages of a context have arrived, by their sequence numbers (RFC 4121, section 4.2.6.2:
//! each message has the next number, in its header, which the checksum or encryption covers).
//!
//! The library detects replays, too, but within one window over all messages: a command may overtake hundreds
//! of data messages that were sent earlier on another connection. So this module does it.

/// Most gaps that are tracked: gaps come from aborted transfers, and from connections that are slower than
/// others.
const GAPS: usize = 1024;

/// The received numbers.
#[derive(Debug, Default)]
pub(super) struct ReceivedNumbers {
    /// First and last number of each contiguous run, in order.
    runs: Vec<(u64, u64)>,
}

/// The reason why a number is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Twice {
    /// The number was received before.
    Before,
    /// The number is older than the tracked gaps, so a replay cannot be ruled out.
    Old,
}

impl ReceivedNumbers {
    /// Records a number.
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
            // Merging the two lowest runs closes the gap between them: its numbers count as received.
            let (first, _) = self.runs.remove(0);
            self.runs[0].0 = first;
        }
        Ok(())
    }

    /// The highest received number.
    pub(super) fn latest(&self) -> Option<u64> {
        self.runs.last().map(|&(_, last)| last)
    }

    /// Whether all numbers after `from`, up to `to`, were received.
    pub(super) fn has_all(&self, from: u64, to: u64) -> bool {
        from >= to || self.runs.iter().any(|&(first, last)| first <= from.saturating_add(1) && to <= last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_accepted_once_in_any_order() {
        let mut seen = ReceivedNumbers::default();
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
    fn tracked_gaps_are_bounded_and_older_numbers_refused() {
        let mut seen = ReceivedNumbers::default();
        for number in (10..).step_by(2).take(3 * GAPS) {
            seen.note(number).unwrap();
        }
        assert_eq!(seen.runs.len(), GAPS);
        assert_eq!(seen.note(11), Err(Twice::Before));
        assert_eq!(seen.note(3), Err(Twice::Old));
    }
}
