//! Byte ranges and sets of byte ranges, by which transfers account for their progress (L2, L6, U5).
//!
//! A transfer keeps the set of missing ranges and ends when the set is empty. Blocks may arrive in any order,
//! repeatedly or overlapping. A set merges ranges that touch, so that it holds one range for each contiguous run of
//! bytes.

use std::collections::BTreeMap;
use std::fmt;

/// A half-open range of bytes: `start` is included, `end` is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    start: u64,
    end: u64,
}

impl Extent {
    /// `len` bytes from `offset` on. `None` if the end does not fit in 64 bits.
    pub const fn new(offset: u64, len: u64) -> Option<Self> {
        match offset.checked_add(len) {
            Some(end) => Some(Self { start: offset, end }),
            None => None,
        }
    }

    /// The bytes from `start` up to `end`. `None` if `start` is greater than `end`.
    pub const fn between(start: u64, end: u64) -> Option<Self> {
        if start <= end { Some(Self { start, end }) } else { None }
    }

    /// The `len` bytes from offset 0 on.
    pub const fn first(len: u64) -> Self {
        Self { start: 0, end: len }
    }

    /// Offset of the first byte.
    pub const fn start(self) -> u64 {
        self.start
    }

    /// Offset after the last byte.
    pub const fn end(self) -> u64 {
        self.end
    }

    /// Number of bytes.
    pub const fn len(self) -> u64 {
        self.end - self.start
    }

    /// Whether the range has no bytes.
    pub const fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// The intersection with `other`, if it is not empty.
    pub fn common(self, other: Self) -> Option<Self> {
        let (start, end) = (self.start.max(other.start), self.end.min(other.end));
        (start < end).then_some(Self { start, end })
    }

    /// Splits the range at multiples of `block` into parts of at most `block` bytes, so that reads and writes stay
    /// aligned. A `block` of 0 counts as 1.
    pub fn blocks(self, block: u64) -> impl Iterator<Item = Self> {
        let (mut at, block) = (self.start, block.max(1));
        std::iter::from_fn(move || {
            let cut = (at / block).saturating_add(1).saturating_mul(block).min(self.end);
            let part = Self { start: at, end: cut };
            at = cut;
            (!part.is_empty()).then_some(part)
        })
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.start, self.end)
    }
}

/// A set of bytes, stored as ranges that neither overlap nor touch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ranges {
    /// Maps the start of each range to its end.
    parts: BTreeMap<u64, u64>,
}

impl Ranges {
    /// The empty set.
    pub const fn new() -> Self {
        Self { parts: BTreeMap::new() }
    }

    /// Adds `extent` and returns the number of its bytes that were not in the set before.
    pub fn insert(&mut self, extent: Extent) -> u64 {
        if extent.is_empty() {
            return 0;
        }
        let (mut start, mut end, mut known) = (extent.start, extent.end, 0);
        while let Some((from, to)) = self.last_from(end).filter(|&(_, to)| to >= start) {
            known += to.min(extent.end).saturating_sub(from.max(extent.start));
            self.parts.remove(&from);
            (start, end) = (start.min(from), end.max(to));
        }
        self.parts.insert(start, end);
        extent.len() - known
    }

    /// Removes `extent` from the set.
    pub fn remove(&mut self, extent: Extent) {
        if extent.is_empty() {
            return;
        }
        while let Some((from, to)) = self.last_from(extent.end - 1).filter(|&(_, to)| to > extent.start) {
            self.parts.remove(&from);
            if to > extent.end {
                self.parts.insert(extent.end, to);
            }
            if from < extent.start {
                self.parts.insert(from, extent.start);
            }
        }
    }

    /// Whether the set contains all bytes of `extent`.
    pub fn covers(&self, extent: Extent) -> bool {
        extent.is_empty() || self.last_from(extent.start).is_some_and(|(_, to)| to >= extent.end)
    }

    /// Whether the set contains any byte of `extent`.
    pub fn touches(&self, extent: Extent) -> bool {
        !extent.is_empty() && self.last_from(extent.end - 1).is_some_and(|(_, to)| to > extent.start)
    }

    /// The bytes of `extent` that the set does not contain.
    pub fn missing(&self, extent: Extent) -> Self {
        let mut missing = Self::from(extent);
        let from = self.last_from(extent.start).map_or(extent.start, |(from, _)| from);
        for (&start, &end) in self.parts.range(from..).take_while(|&(&start, _)| start < extent.end) {
            missing.remove(Extent { start, end });
        }
        missing
    }

    /// Number of bytes in the set.
    pub fn total(&self) -> u64 {
        self.iter().map(Extent::len).sum()
    }

    /// Number of ranges in the set.
    pub fn count(&self) -> usize {
        self.parts.len()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The ranges, in ascending order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Extent> {
        self.parts.iter().map(|(&start, &end)| Extent { start, end })
    }

    /// The last range that starts at or before `at`, as (start, end).
    fn last_from(&self, at: u64) -> Option<(u64, u64)> {
        self.parts.range(..=at).next_back().map(|(&from, &to)| (from, to))
    }
}

impl From<Extent> for Ranges {
    fn from(extent: Extent) -> Self {
        Self { parts: (!extent.is_empty()).then_some((extent.start, extent.end)).into_iter().collect() }
    }
}

impl FromIterator<Extent> for Ranges {
    fn from_iter<I: IntoIterator<Item = Extent>>(extents: I) -> Self {
        let mut ranges = Self::new();
        ranges.extend(extents);
        ranges
    }
}

impl Extend<Extent> for Ranges {
    fn extend<I: IntoIterator<Item = Extent>>(&mut self, extents: I) {
        for extent in extents {
            self.insert(extent);
        }
    }
}

/// The form of GridFTP restart markers (GFD.20, section 3.2): `0-100,200-300`, ends not included.
impl fmt::Display for Ranges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, extent) in self.iter().enumerate() {
            write!(f, "{}{extent}", if i == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn extents() -> impl Strategy<Value = Vec<Extent>> {
        let extent = (0..60u64, 0..12u64).prop_map(|(at, len)| Extent::new(at, len).unwrap());
        proptest::collection::vec(extent, 0..20)
    }

    fn bytes(extent: Extent) -> impl Iterator<Item = u64> {
        extent.start()..extent.end()
    }

    proptest! {
        #[test]
        fn ranges_behave_like_a_set_of_single_bytes(added in extents(), removed in extents(), asked in extents()) {
            let (mut ranges, mut model) = (Ranges::new(), BTreeSet::new());
            for extent in added {
                let new = bytes(extent).filter(|&b| model.insert(b)).count();
                prop_assert_eq!(ranges.insert(extent), new as u64);
            }
            for extent in removed {
                ranges.remove(extent);
                bytes(extent).for_each(|b| assert!(model.remove(&b) || !model.contains(&b)));
            }
            prop_assert_eq!(ranges.iter().flat_map(bytes).collect::<Vec<_>>(), model.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(ranges.total(), model.len() as u64);
            let parts: Vec<_> = ranges.iter().collect();
            prop_assert!(parts.windows(2).all(|w| w[0].end() < w[1].start()), "{} has parts that touch", ranges);
            for extent in asked {
                prop_assert_eq!(ranges.covers(extent), bytes(extent).all(|b| model.contains(&b)));
                prop_assert_eq!(ranges.touches(extent), bytes(extent).any(|b| model.contains(&b)));
                let missing: Vec<_> = ranges.missing(extent).iter().flat_map(bytes).collect();
                prop_assert_eq!(missing, bytes(extent).filter(|b| !model.contains(b)).collect::<Vec<_>>());
            }
        }

        #[test]
        fn blocks_are_aligned_and_cover_the_extent(start in 0..1000u64, len in 0..1000u64, block in 1..100u64) {
            let extent = Extent::new(start, len).unwrap();
            let parts: Vec<_> = extent.blocks(block).collect();
            prop_assert!(parts.iter().all(|p| !p.is_empty() && p.len() <= block));
            prop_assert!(parts.windows(2).all(|w| w[0].end() == w[1].start() && w[0].end() % block == 0));
            prop_assert_eq!(parts.iter().copied().map(Extent::len).sum::<u64>(), len);
        }
    }

    #[test]
    fn extents_beyond_64_bits_are_refused() {
        assert_eq!(Extent::new(u64::MAX, 1), None);
        assert_eq!(Extent::between(2, 1), None);
        let last = Extent::new(u64::MAX - 10, 10).unwrap();
        assert_eq!(last.blocks(1 << 20).collect::<Vec<_>>(), [last]);
        let ranges: Ranges = [last, Extent::first(5)].into_iter().collect();
        assert_eq!(ranges.missing(Extent::first(u64::MAX)).total(), u64::MAX - 15);
        assert_eq!(ranges.to_string(), format!("0-5,{}-{}", u64::MAX - 10, u64::MAX));
    }
}
