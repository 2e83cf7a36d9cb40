//! The body of a NAK: sequence numbers of lost packets. A range is its first number with the high bit set, then its
//! last.

use super::seq::Seq;
use std::fmt;

/// Set in the first word of a range.
const RANGE: u32 = 1 << 31;

/// A received loss report. Its ranges are unverified: the reader must check that they are in order and were ever sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LossList<'a>(&'a [u8]);

/// Writes a loss report into a borrowed buffer.
#[derive(Debug)]
pub struct LossWriter<'a> {
    out: &'a mut [u8],
    len: usize,
}

impl<'a> LossList<'a> {
    /// A list over whole 32-bit words, at least one. `None` for any other length.
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        (!bytes.is_empty() && bytes.len().is_multiple_of(4)).then_some(Self(bytes))
    }

    /// The ranges, as first and last number. A range without its second word ends the list.
    pub fn ranges(self) -> impl Iterator<Item = (Seq, Seq)> + 'a {
        let mut words = self.0.chunks_exact(4).map(|word| u32::from_be_bytes([word[0], word[1], word[2], word[3]]));
        std::iter::from_fn(move || {
            let first = words.next()?;
            let last = if first & RANGE == 0 { first } else { words.next()? };
            Some((Seq::new(first), Seq::new(last)))
        })
    }

    pub(super) fn copy_to(self, out: &mut [u8]) -> Option<usize> {
        out.get_mut(..self.0.len())?.copy_from_slice(self.0);
        Some(self.0.len())
    }
}

impl fmt::Debug for LossList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.ranges()).finish()
    }
}

impl<'a> LossWriter<'a> {
    /// A writer at the start of `out`.
    pub fn new(out: &'a mut [u8]) -> Self {
        Self { out, len: 0 }
    }

    /// Adds a range; `false` if there is no room for it.
    pub fn push(&mut self, first: Seq, last: Seq) -> bool {
        let words = [first.get() | if first == last { 0 } else { RANGE }, last.get()];
        let words = if first == last { &words[..1] } else { &words[..] };
        match super::words::write_words(&mut self.out[self.len..], words) {
            Some(len) => {
                self.len += len;
                true
            }
            None => false,
        }
    }

    /// Number of bytes written.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn single_numbers_take_one_word() {
        let mut out = [0; 12];
        let mut writer = LossWriter::new(&mut out);
        assert!(writer.push(Seq::new(5), Seq::new(5)));
        assert!(writer.push(Seq::MAX, Seq::new(2)));
        assert!(!writer.push(Seq::new(9), Seq::new(9)));
        assert_eq!(writer.len(), 12);
        assert_eq!(out, [0, 0, 0, 5, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 2]);
        let ranges: Vec<_> = LossList::new(&out).unwrap().ranges().collect();
        assert_eq!(ranges, [(Seq::new(5), Seq::new(5)), (Seq::MAX, Seq::new(2))]);
    }

    #[test]
    fn range_without_its_last_number_is_dropped() {
        assert_eq!(LossList::new(&[0x80, 0, 0, 1]).unwrap().ranges().count(), 0);
        assert_eq!(LossList::new(&[]), None);
        assert_eq!(LossList::new(&[1, 2, 3]), None);
    }

    proptest! {
        #[test]
        fn written_ranges_read_back(ranges in prop::collection::vec((0u32..1 << 31, 0u32..5), 0..20)) {
            let ranges: Vec<_> = ranges.into_iter().map(|(first, len)| (Seq::new(first), Seq::new(first).plus(len))).collect();
            let mut out = [0; 160];
            let mut writer = LossWriter::new(&mut out);
            prop_assert!(ranges.iter().all(|(first, last)| writer.push(*first, *last)));
            let len = writer.len();
            let read: Vec<_> = LossList::new(&out[..len]).map(|list| list.ranges().collect()).unwrap_or_default();
            prop_assert_eq!(read, ranges);
        }
    }
}
