//! Combines checksums of blocks in any order.

use super::{Algorithm, Sum};
use crate::range::{Extent, Ranges};
use std::collections::BTreeMap;

/// An algorithm whose values for two adjacent parts give the value for both, without their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Combining {
    /// [`Algorithm::Crc32c`].
    Crc32c,
    /// [`Algorithm::Adler32`].
    Adler32,
}

/// The largest prime below 2^16 (RFC 1950, section 9).
const ADLER_BASE: u64 = 65_521;

impl Combining {
    /// The same in [`Algorithm`].
    pub fn algorithm(self) -> Algorithm {
        match self {
            Self::Crc32c => Algorithm::Crc32c,
            Self::Adler32 => Algorithm::Adler32,
        }
    }

    /// The value of `bytes`.
    pub fn of(self, bytes: &[u8]) -> u32 {
        match self {
            Self::Crc32c => crc32c::crc32c(bytes),
            Self::Adler32 => simd_adler32::adler32(&bytes),
        }
    }

    /// The value of `len` zeros, in logarithmic time by combining halves.
    pub fn of_zeros(self, len: u64) -> u32 {
        let (mut value, mut power, mut power_len, mut left) = (self.of(&[]), self.of(&[0]), 1u64, len);
        while left > 0 {
            if left & 1 == 1 {
                value = self.join(value, power, power_len);
            }
            left >>= 1;
            if left > 0 {
                power = self.join(power, power, power_len);
                power_len <<= 1;
            }
        }
        value
    }

    /// Continues the value `before` with `bytes`.
    pub fn extend(self, before: u32, bytes: &[u8]) -> u32 {
        match self {
            Self::Crc32c => crc32c::crc32c_append(before, bytes),
            Self::Adler32 => {
                let mut adler = simd_adler32::Adler32::from_checksum(before);
                adler.write(bytes);
                adler.finish()
            }
        }
    }

    /// Continues the value `before` with `len` bytes of the value `after`.
    pub fn join(self, before: u32, after: u32, len: u64) -> u32 {
        match self {
            // Lengths have 64 bits on all supported machines.
            Self::Crc32c => crc32c::crc32c_combine(before, after, usize::try_from(len).unwrap_or(usize::MAX)),
            Self::Adler32 => {
                let ([a1, b1], [a2, b2]) = (halves(before), halves(after));
                // The second part started with a = 1 instead of a1: each of its bytes adds a1 - 1 to b.
                let carried = (a1 + ADLER_BASE - 1) % ADLER_BASE;
                let a = (carried + a2) % ADLER_BASE;
                let b = (b1 + b2 + len % ADLER_BASE * carried) % ADLER_BASE;
                // Both are below 2^16.
                (b << 16 | a) as u32
            }
        }
    }
}

fn halves(adler: u32) -> [u64; 2] {
    [u64::from(adler & 0xffff), u64::from(adler >> 16)]
}

/// Bytes that a tally already has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("bytes {0} have been counted before")]
pub struct Overlap(pub Extent);

/// Checksums of ranges of an object. Adjacent ranges are combined, so there is one value for each range between gaps,
/// and finally one for the object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tally {
    how: Combining,
    /// Ends and values by starts.
    parts: BTreeMap<u64, (u64, u32)>,
}

impl Tally {
    /// An empty tally.
    pub fn new(how: Combining) -> Self {
        Self { how, parts: BTreeMap::new() }
    }

    /// Its algorithm.
    pub fn combining(&self) -> Combining {
        self.how
    }

    /// Adds `extent` with the checksum `value`.
    ///
    /// # Errors
    /// It overlaps a range.
    pub fn add(&mut self, extent: Extent, value: u32) -> Result<(), Overlap> {
        if extent.is_empty() {
            return Ok(());
        }
        let (mut start, mut end, mut value) = (extent.start(), extent.end(), value);
        let before = self.parts.range(..end).next_back().map(|(&from, &(to, value))| (from, to, value));
        if before.is_some_and(|(_, to, _)| to > start) {
            return Err(Overlap(extent));
        }
        if let Some((from, _, first)) = before.filter(|&(_, to, _)| to == start) {
            value = self.how.join(first, value, extent.len());
            start = from;
        }
        if let Some((to, last)) = self.parts.remove(&end) {
            value = self.how.join(value, last, to - end);
            end = to;
        }
        self.parts.insert(start, (end, value));
        Ok(())
    }

    /// Removes `extent` and every range that overlaps it: these are to be transferred again.
    pub fn forget(&mut self, extent: Extent) {
        self.parts.retain(|&from, &mut (to, _)| to <= extent.start() || from >= extent.end());
    }

    /// The checksum of the object, if it has `size` bytes and all were added.
    pub fn total(&self, size: u64) -> Option<Sum> {
        let value = match self.parts.first_key_value() {
            None if size == 0 => self.how.of(&[]),
            Some((0, &(end, value))) if end == size && self.parts.len() == 1 => value,
            _ => return None,
        };
        Some(Sum::combined(self.how, value))
    }

    /// The ranges between gaps and their checksums, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = (Extent, u32)> {
        self.parts.iter().filter_map(|(&start, &(end, value))| Some((Extent::between(start, end)?, value)))
    }

    /// The added ranges.
    pub fn ranges(&self) -> Ranges {
        self.iter().map(|(extent, _)| extent).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BOTH: [Combining; 2] = [Combining::Crc32c, Combining::Adler32];

    proptest! {
        #[test]
        fn blocks_in_any_order_give_the_checksum_of_all(
            bytes in proptest::collection::vec(any::<u8>(), 0..2000),
            block in 1..300u64,
            order in any::<proptest::sample::Index>().prop_flat_map(|_| proptest::collection::vec(any::<u32>(), 2000)),
        ) {
            for how in BOTH {
                let mut blocks: Vec<_> = Extent::first(bytes.len() as u64).blocks(block).collect();
                blocks.sort_by_key(|b| order[b.start() as usize]);
                let mut tally = Tally::new(how);
                for extent in blocks {
                    prop_assert_eq!(tally.total(bytes.len() as u64), None);
                    let part = &bytes[extent.start() as usize..extent.end() as usize];
                    tally.add(extent, how.of(part)).unwrap();
                    prop_assert_eq!(tally.add(extent, 0), Err(Overlap(extent)));
                }
                prop_assert_eq!(tally.total(bytes.len() as u64), Some(Sum::combined(how, how.of(&bytes))));
                prop_assert_eq!(tally.total(bytes.len() as u64 + 1), None);
            }
        }

        #[test]
        fn long_runs_join_as_short_ones(value: u32, a in 0..1u64 << 40, b in 0..1u64 << 40, bytes: [u8; 9]) {
            // Lengths beyond memory need no bytes, since combining is associative.
            for how in BOTH {
                let part = how.of(&bytes);
                // Halves of Adler-32 are below its modulus.
                let [low, high] = [value & 0xffff, value >> 16].map(|half| half % 0xfff1);
                let value = if how == Combining::Adler32 { (high << 16) | low } else { value };
                let left = how.join(how.join(value, part, a), part, b);
                let right = how.join(value, how.join(part, part, b), a + b);
                prop_assert_eq!(left, right, "{:?}", how);
            }
        }
    }

    #[test]
    fn zeros_need_not_be_there_to_be_counted() {
        for how in BOTH {
            for len in [0, 1, 2, 3, 1000, 65_521, 65_536, 1_000_003] {
                assert_eq!(how.of_zeros(len), how.of(&vec![0; len as usize]), "{how:?} {len}");
            }
            let (long, part) = (u64::MAX / 2, how.of_zeros(u64::MAX / 4));
            assert_eq!(how.of_zeros(long), how.join(how.join(part, part, u64::MAX / 4), how.of(&[0]), 1));
        }
    }

    #[test]
    fn forgotten_answers_are_asked_for_again() {
        let mut tally = Tally::new(Combining::Crc32c);
        for at in [0, 10, 30] {
            tally.add(Extent::new(at, 10).unwrap(), Combining::Crc32c.of(&[7; 10])).unwrap();
        }
        assert_eq!(tally.ranges().to_string(), "0-20,30-40");
        tally.forget(Extent::new(35, 100).unwrap());
        assert_eq!(tally.ranges().to_string(), "0-20");
        assert!(tally.add(Extent::new(5, 100).unwrap(), 0).is_err());
    }
}
