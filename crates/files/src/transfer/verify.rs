//! Verification that both ends have the same bytes, by what the two can compute.
//!
//! A local end can compute the checksum of passing bytes in any order, if it is combinable. A remote end is asked for
//! its own. Without a network, written bytes are read again, since comparing passing bytes with themselves proves
//! nothing.

use crate::error::Error;
use crate::range::Extent;
use crate::store::{Draft, Object, Store};
use crate::sum::{Algorithm, Combining, Sum};

/// What is compared before publication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verify {
    /// Nothing.
    None,
    /// As the next one without an algorithm; if the ends have none in common, only the sizes: plain FTP servers compute
    /// no checksum. Front ends report that ([`Check::choose`] tells).
    Possible,
    /// Checksums computed in flight where possible, by this algorithm, or the best one that both ends have.
    Flight(Option<Algorithm>),
    /// The same, and written bytes are always read again.
    Reread(Option<Algorithm>),
}

impl Default for Verify {
    fn default() -> Self {
        Self::Flight(None)
    }
}

/// One end of a transfer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Side {
    /// Name in errors.
    pub name: String,
    /// Whether it is remote.
    pub far: bool,
    /// Algorithms that it can be asked for. A local end has all.
    pub algorithms: Vec<Algorithm>,
}

impl Side {
    fn knows(&self, algorithm: Algorithm) -> bool {
        !self.far || self.algorithms.contains(&algorithm)
    }
}

impl From<&dyn Store> for Side {
    fn from(store: &dyn Store) -> Self {
        Self { name: store.name(), far: store.is_far(), algorithms: store.algorithms().to_vec() }
    }
}

/// The comparison for a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Check {
    algorithm: Algorithm,
    /// Whether the checksum of passing bytes counts as the source's.
    source_passes: bool,
    /// Whether it counts as the destination's, so that nothing is read again.
    dest_passes: bool,
}

impl Check {
    /// Chooses the comparison of `source` and `dest`. `None` if none is requested.
    ///
    /// # Errors
    /// The reason why it is impossible, in words.
    pub fn choose(verify: Verify, source: &Side, dest: &Side) -> Result<Option<Self>, String> {
        let (wanted, reread) = match verify {
            Verify::None => return Ok(None),
            Verify::Possible => return Ok(Self::choose(Verify::Flight(None), source, dest).unwrap_or_default()),
            Verify::Flight(wanted) => (wanted, false),
            Verify::Reread(wanted) => (wanted, true),
        };
        let mut common = Algorithm::ALL.into_iter().filter(|&a| source.knows(a) && dest.knows(a));
        let found = match wanted {
            Some(algorithm) => common.find(|&a| a == algorithm),
            // The cheapest first, combinable ones before all others.
            None => common.next(),
        };
        let Some(algorithm) = found else {
            let far = if source.far { source } else { dest };
            let what = wanted.map_or("no checksum that is known here".to_owned(), |a| format!("no {a}"));
            return Err(format!("{} computes {what}", far.name));
        };
        let combines = algorithm.combining().is_some();
        let source_passes = combines && !source.far;
        let dest_passes = combines && !dest.far && source.far && !reread;
        Ok(Some(Self { algorithm, source_passes, dest_passes }))
    }

    /// The checksum of blocks in flight.
    pub fn kept(&self) -> Option<Combining> {
        self.algorithm.combining().filter(|_| self.source_passes || self.dest_passes)
    }

    /// The algorithm.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Compares `object` and `draft`. Returns their common checksum.
    pub(super) async fn compare(&self, object: &dyn Object, draft: &dyn Draft, size: u64) -> Result<Sum, Error> {
        // A draft that was resumed has not seen the beginning.
        let passed = if self.source_passes { draft.written_sum(size) } else { None };
        let expected = match passed {
            Some(sum) => sum,
            None => object.checksum(self.algorithm, Extent::first(size)).await?,
        };
        self.compare_with(expected, draft, size).await
    }

    /// Compares `draft` with the expected value.
    pub(super) async fn compare_with(&self, expected: Sum, draft: &dyn Draft, size: u64) -> Result<Sum, Error> {
        // Bytes of an earlier attempt may have been changed since.
        let found = match self.dest_passes && draft.kept().is_empty() {
            true => passed(draft, size)?,
            false => draft.checksum(self.algorithm).await?,
        };
        if expected == found { Ok(expected) } else { Err(Error::Mismatch { name: draft.name(), expected, found }) }
    }
}

/// The checksum of the blocks that `draft` was given.
fn passed(draft: &dyn Draft, size: u64) -> Result<Sum, Error> {
    draft.written_sum(size).ok_or_else(|| Error::Unverifiable {
        name: draft.name(),
        reason: "the checksums of its blocks were not kept".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_is_chosen_by_who_sees_the_bytes() {
        let side = |far, algorithms: &[Algorithm]| Side { name: "x".into(), far, algorithms: algorithms.into() };
        let near = side(false, &[]);
        let gct = side(true, &[Algorithm::Md5, Algorithm::Adler32]);
        let old = side(true, &[Algorithm::Md5]);
        let mute = side(true, &[]);
        let choose =
            |verify, source: &Side, dest: &Side| Check::choose(verify, source, dest).map(|check| check.unwrap());
        let check = |algorithm, source_passes, dest_passes| Ok(Check { algorithm, source_passes, dest_passes });
        let flight = Verify::Flight(None);
        assert_eq!(choose(flight, &near, &near), check(Algorithm::Crc32c, true, false));
        assert_eq!(choose(flight, &near, &gct), check(Algorithm::Adler32, true, false));
        assert_eq!(choose(flight, &gct, &near), check(Algorithm::Adler32, false, true));
        assert_eq!(choose(Verify::Reread(None), &gct, &near), check(Algorithm::Adler32, false, false));
        assert_eq!(choose(flight, &gct, &gct), check(Algorithm::Adler32, false, false));
        assert_eq!(choose(flight, &old, &near), check(Algorithm::Md5, false, false));
        assert_eq!(choose(Verify::Flight(Some(Algorithm::Sha1)), &near, &near), check(Algorithm::Sha1, false, false));
        assert!(choose(flight, &mute, &near).unwrap_err().contains("no checksum"));
        assert!(choose(Verify::Flight(Some(Algorithm::Sha1)), &near, &gct).unwrap_err().contains("no SHA1"));
        assert_eq!(Check::choose(Verify::None, &mute, &near), Ok(None));
        assert_eq!(Check::choose(Verify::Possible, &mute, &near), Ok(None));
        assert_eq!(choose(Verify::Possible, &near, &gct), check(Algorithm::Adler32, true, false));
    }
}
