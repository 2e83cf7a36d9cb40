//! A bound on lines about those who have not authenticated, so that strangers cannot fill the disk.

use crate::slots;
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// For how long lines are counted.
const PERIOD: Duration = Duration::from_secs(60);
/// The most lines about one source in that time.
const LINES: u32 = 30;
/// The most lines about all sources in that time.
const LINES_OF_ALL: u32 = 1000;

/// Lines about strangers since the first one of a minute.
#[derive(Debug, Default)]
pub(super) struct Strangers {
    end: Option<Instant>,
    written: u32,
    /// By source. There are no more sources than lines.
    by_source: HashMap<IpAddr, u32>,
    left_out: u64,
}

impl Strangers {
    /// Whether a line about `from` may be written. If not, it is counted.
    pub(super) fn take(&mut self, from: IpAddr, now: Instant) -> bool {
        self.end.get_or_insert(now + PERIOD);
        let own = self.by_source.get(&slots::key(from)).copied().unwrap_or(0);
        if self.written >= LINES_OF_ALL || own >= LINES {
            self.left_out += 1;
            return false;
        }
        self.written += 1;
        self.by_source.insert(slots::key(from), own + 1);
        true
    }

    /// The end of the minute, if lines were left out in it.
    pub(super) fn due(&self) -> Option<Instant> {
        self.end.filter(|_| self.left_out > 0)
    }

    /// Begins another minute if this one is over. Returns how many lines were left out, if any.
    pub(super) fn over(&mut self, now: Instant) -> Option<u64> {
        if self.end.is_none_or(|end| now < end) {
            return None;
        }
        self.end()
    }

    /// Ends the minute. Returns how many lines were left out, if any.
    pub(super) fn end(&mut self) -> Option<u64> {
        Some(std::mem::take(self).left_out).filter(|left_out| *left_out > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_have_so_many_lines_a_minute_and_all_of_them_have_some_more() {
        let (mut strangers, now) = (Strangers::default(), Instant::now());
        let mut take = |n: u32, at| strangers.take(IpAddr::from(n.to_be_bytes()), at);
        assert_eq!((0..100).filter(|_| take(1, now)).count(), LINES as usize);
        assert_eq!((2..2000).filter(|n| take(*n, now)).count(), (LINES_OF_ALL - LINES) as usize);
        assert_eq!(strangers.by_source.len() as u32, LINES_OF_ALL - LINES + 1);
        assert_eq!(strangers.over(now), None);
        let later = strangers.due().unwrap();
        assert_eq!(strangers.over(later), Some(70 + 1998 - u64::from(LINES_OF_ALL - LINES)));
        assert!(strangers.due().is_none() && strangers.take([0, 0, 0, 1].into(), later));
    }
}
