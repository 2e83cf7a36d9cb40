//! Containers (L13): ranges of several objects in several stores, seen as one object.
//!
//! [`Container`] is such an object for reading. [`Scatter`] is a draft that writes one object as several. Both use
//! flows of blocks, so ordinary transfers move them.

mod read;
mod scatter;

pub use read::{Container, Part};
pub use scatter::Scatter;

use crate::range::Extent;

/// The consecutive parts of a whole.
#[derive(Debug, Clone, Default)]
struct Layout {
    /// The end of each part.
    ends: Vec<u64>,
}

impl Layout {
    /// Parts of these lengths. `None` if their sum exceeds 64 bits.
    fn new(lengths: impl IntoIterator<Item = u64>) -> Option<Self> {
        let mut end = 0u64;
        let ends = lengths.into_iter().map(|len| {
            end = end.checked_add(len)?;
            Some(end)
        });
        Some(Self { ends: ends.collect::<Option<_>>()? })
    }

    fn size(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// The parts that overlap `extent`, each with the overlap in the part's own offsets.
    fn split(&self, extent: Extent) -> impl Iterator<Item = (usize, Extent)> {
        let first = self.ends.partition_point(|&end| end <= extent.start());
        (first..self.ends.len())
            .map_while(move |part| {
                let start = self.start(part);
                let common = extent.common(Extent::between(start, self.ends[part])?);
                if start >= extent.end() {
                    return None;
                }
                Some(common.and_then(|c| Some((part, Extent::between(c.start() - start, c.end() - start)?))))
            })
            .flatten()
    }

    /// The offset of `part` in the whole.
    fn start(&self, part: usize) -> u64 {
        part.checked_sub(1).map_or(0, |before| self.ends[before])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_byte_is_in_one_part(lengths in proptest::collection::vec(0..9u64, 0..9), start in 0..40u64, len in 0..40u64) {
            let layout = Layout::new(lengths.iter().copied()).unwrap();
            let bytes: Vec<(usize, u64)> =
                lengths.iter().enumerate().flat_map(|(part, &len)| (0..len).map(move |at| (part, at))).collect();
            prop_assert_eq!(layout.size(), bytes.len() as u64);
            let split = layout.split(Extent::new(start, len).unwrap());
            let found: Vec<_> = split.flat_map(|(part, e)| (e.start()..e.end()).map(move |at| (part, at))).collect();
            let expected: Vec<_> = bytes.into_iter().skip(start as usize).take(len as usize).collect();
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn extents_beyond_64_bits_are_refused() {
        assert!(Layout::new([u64::MAX, 1]).is_none());
    }
}
