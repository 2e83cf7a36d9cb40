//! A flow of ranges of a file, for users who read it themselves ([`Shape::lend`](crate::store::Shape::lend)). Nothing
//! is read or held here. Fast users get longer blocks, which cost less per byte; slow users get short ones, since
//! progress is reported by the block.

use crate::block::{Block, Body, FileRange};
use crate::range::{Extent, Ranges};
use crate::store::{Fallible, Flow};
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Longest block: further doubling saves little, and a path that becomes slow must finish the begun blocks before it
/// counts as dead.
const MOST: u64 = 8 << 20;

/// Blocks that are taken at shorter intervals grow, others shrink.
const FAST: Duration = Duration::from_millis(10);
const SLOW: Duration = Duration::from_millis(100);

/// Largest share of the rest in one block, so that several users finish at about the same time.
const SHARE: u64 = 64;

pub(super) struct Lending {
    whole: FileRange,
    parts: Mutex<Parts>,
}

impl Lending {
    /// `wanted` of `whole`, in blocks of at least `least` bytes.
    pub(super) fn new(whole: FileRange, wanted: Ranges, least: u64) -> Self {
        Self { whole, parts: Mutex::new(Parts::new(wanted.iter().collect(), least)) }
    }
}

impl Flow for Lending {
    fn next(&self) -> Fallible<'_, Option<Block>> {
        let next = self.parts.lock().unwrap_or_else(PoisonError::into_inner).next(Instant::now());
        let block = next.map(|extent| Block {
            offset: extent.start(),
            body: Body::FileRange(FileRange { at: extent.start(), len: extent.len(), ..self.whole.clone() }),
            sum: None,
        });
        Box::pin(std::future::ready(Ok(block)))
    }
}

impl fmt::Debug for Lending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lending").finish_non_exhaustive()
    }
}

/// Ranges still to lend.
struct Parts {
    /// The next range is the last element.
    rest: Vec<Extent>,
    left: u64,
    least: u64,
    len: u64,
    taken: Option<Instant>,
}

impl Parts {
    fn new(mut parts: Vec<Extent>, least: u64) -> Self {
        parts.reverse();
        let left = parts.iter().fold(0, |sum: u64, part| sum.saturating_add(part.len()));
        Self { rest: parts, left, least, len: least, taken: None }
    }

    fn next(&mut self, now: Instant) -> Option<Extent> {
        let part = self.rest.pop()?;
        match self.taken.replace(now).map(|taken| now.duration_since(taken)) {
            Some(since) if since < FAST => self.len = self.len.saturating_mul(2).min(MOST.max(self.least)),
            Some(since) if since > SLOW => self.len = (self.len / 2).max(self.least),
            _ => {}
        }
        let len = self.len.min(self.left / SHARE).max(self.least);
        let end = part.start().saturating_add(len).min(part.end());
        let extent = Extent::between(part.start(), end)?;
        self.rest.extend(Extent::between(end, part.end()).filter(|rest| !rest.is_empty()));
        self.left = self.left.saturating_sub(extent.len());
        Some(extent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn extent(start: u64, end: u64) -> Extent {
        Extent::between(start, end).unwrap()
    }

    #[test]
    fn blocks_are_long_where_they_are_taken_fast() {
        let mut parts = Parts::new(vec![Extent::first(1 << 40)], 1 << 20);
        let mut now = Instant::now();
        let mut take = |pause| {
            now += pause;
            parts.next(now).unwrap().len()
        };
        let fast: Vec<u64> = (0..5).map(|_| take(Duration::from_millis(1)) >> 20).collect();
        assert_eq!(fast, [1, 2, 4, 8, 8]);
        assert_eq!(take(Duration::from_millis(50)) >> 20, 8);
        let slow: Vec<u64> = (0..5).map(|_| take(Duration::from_secs(1)) >> 20).collect();
        assert_eq!(slow, [4, 2, 1, 1, 1]);
    }

    #[test]
    fn last_block_is_short() {
        let mut parts = Parts::new(vec![Extent::first(1 << 30)], 1 << 20);
        let (now, mut left) = (Instant::now(), 1u64 << 30);
        while let Some(block) = parts.next(now) {
            assert!(block.len() <= (left / SHARE).max(1 << 20), "{} of {left}", block.len());
            left -= block.len();
        }
        assert_eq!(left, 0);
    }

    proptest! {
        #[test]
        fn flow_lends_every_range_once_in_order(
            gaps in proptest::collection::vec((1..1000u64, 1..5_000_000u64), 0..5),
            pauses in proptest::collection::vec(0..200u64, 1..50),
            least in 1000..100_000u64,
        ) {
            let mut at = 0;
            let parts: Vec<Extent> = gaps.iter().map(|(gap, len)| { at += gap + len; extent(at - len, at) }).collect();
            let mut lending = Parts::new(parts.clone(), least);
            let (mut now, mut lent, mut last) = (Instant::now(), Ranges::new(), 0);
            for pause in pauses.iter().cycle() {
                now += Duration::from_millis(*pause);
                let Some(block) = lending.next(now) else { break };
                prop_assert!(block.start() >= last && !block.is_empty());
                prop_assert_eq!(lent.insert(block), block.len());
                last = block.end();
            }
            prop_assert_eq!(lent.iter().collect::<Vec<_>>(), parts);
        }
    }
}
