//! A bit for each packet of a chunk (L6).

/// A set of packets of a chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bitmap {
    words: Vec<u64>,
    len: u32,
    count: u32,
}

impl Bitmap {
    /// The empty set of packets below `len`.
    pub(super) fn new(len: u32) -> Self {
        Self { words: vec![0; len.div_ceil(64) as usize], len, count: 0 }
    }

    /// The set of all packets below `len`.
    pub(super) fn full(len: u32) -> Self {
        let mut all = Self::new(len);
        all.words.fill(u64::MAX);
        if !len.is_multiple_of(64)
            && let Some(last) = all.words.last_mut()
        {
            *last >>= 64 - len % 64;
        }
        all.count = len;
        all
    }

    /// Number of members.
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Whether nothing is in it.
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether `index` is in it.
    pub(super) fn has(&self, index: u32) -> bool {
        self.words.get(index as usize / 64).is_some_and(|word| word >> (index % 64) & 1 == 1)
    }

    /// Adds `index`. Returns whether it is new. An index that is too large is never added.
    pub(super) fn insert(&mut self, index: u32) -> bool {
        self.change(index, true)
    }

    /// Removes `index`. Returns whether it was in the set.
    pub(super) fn remove(&mut self, index: u32) -> bool {
        self.change(index, false)
    }

    fn change(&mut self, index: u32, to: bool) -> bool {
        if index >= self.len || self.has(index) == to {
            return false;
        }
        self.words[index as usize / 64] ^= 1 << (index % 64);
        self.count = if to { self.count + 1 } else { self.count - 1 };
        true
    }

    /// The first member that is at least `from`.
    pub(super) fn next(&self, from: u32) -> Option<u32> {
        self.find(from, 0)
    }

    /// The first packet that is at least `from` and not in the set.
    pub(super) fn next_missing(&self, from: u32) -> Option<u32> {
        self.find(from, u64::MAX)
    }

    /// The first index from `from` on whose bit is set after each word was combined with `flip`.
    fn find(&self, from: u32, flip: u64) -> Option<u32> {
        let mut at = from as usize / 64;
        let mut word = (self.words.get(at)? ^ flip) & (u64::MAX << (from % 64));
        while word == 0 {
            at += 1;
            word = self.words.get(at)? ^ flip;
        }
        let index = at as u32 * 64 + word.trailing_zeros();
        (index < self.len).then_some(index)
    }

    /// Number of packets that could be in it.
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// Whether `from` is in the set, in the lowest bit, and so on for `count` packets, at most eight.
    pub(super) fn bits(&self, from: u32, count: u32) -> u8 {
        let word = |at: usize| self.words.get(at).copied().unwrap_or(0);
        let (at, shift) = (from as usize / 64, from % 64);
        let bits = word(at) >> shift | word(at + 1).checked_shl(64 - shift).unwrap_or(0);
        bits as u8 & (u8::MAX >> (8 - count.min(8)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn bitmap_is_the_set_that_was_put_in(
            len in 1u32..300,
            changes in prop::collection::vec((0u32..320, any::<bool>()), 0..200),
            from in 0u32..320,
        ) {
            let (mut bitmap, mut set) = (Bitmap::new(len), BTreeSet::new());
            for (index, to) in changes {
                let changed = if to { index < len && set.insert(index) } else { set.remove(&index) };
                prop_assert_eq!(if to { bitmap.insert(index) } else { bitmap.remove(index) }, changed);
            }
            prop_assert_eq!(bitmap.count(), set.len() as u32);
            prop_assert_eq!(bitmap.next(from), set.range(from..).next().copied());
            prop_assert_eq!(bitmap.next_missing(from), (from..len).find(|index| !set.contains(index)));
            let full = Bitmap::full(len);
            prop_assert!(full.count() == len && full.next_missing(0).is_none());
            prop_assert_eq!(full.next(from), (from < len).then_some(from));
        }
    }
}
