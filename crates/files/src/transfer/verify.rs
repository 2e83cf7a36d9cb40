//! How it is made sure that the bytes of both ends are the same, by what the two can compute.
//!
//! What is near can tell the checksum of bytes while they pass by, in any order, if parts of it can be put together. What
//! is far has to be asked, and says what *it* has. Where nothing crosses a network, what was written is read once more,
//! since comparing what passed by with itself says nothing.

use crate::error::Error;
use crate::range::Extent;
use crate::store::{Draft, Object, Store};
use crate::sum::{Algorithm, Combining, Sum};

/// What is compared before an object gets its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verify {
    /// Nothing.
    None,
    /// As the next one without an algorithm; and where the two ends compute none in common, only that as many bytes are there:
    /// servers of plain FTP compute none. Whoever asks for this says so to people ([`Check::choose`] tells).
    Possible,
    /// Checksums computed on the way where that is possible; of the algorithm, or of the best one that both ends know.
    Flight(Option<Algorithm>),
    /// The same, with what was written always read once more.
    Reread(Option<Algorithm>),
}

impl Default for Verify {
    fn default() -> Self {
        Self::Flight(None)
    }
}

/// One end of a transfer: what it can compute, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Side {
    /// As errors name it.
    pub name: String,
    /// Whether its bytes cross a network on their way here.
    pub far: bool,
    /// The checksums that it can be asked for. Near ones can be asked for all.
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

/// What two ends compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Check {
    algorithm: Algorithm,
    /// Whether the source's bytes pass by here, and the checksum that they had then is the source's.
    source_passes: bool,
    /// Whether the destination's do, and need not be read once more.
    dest_passes: bool,
}

impl Check {
    /// The way to compare what `source` and `dest` have; none if that is not asked for.
    ///
    /// # Errors
    /// Why it cannot be done, in words.
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
            // The cheapest ones come first, and those whose parts can be put together before all others.
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

    /// The checksum that is kept of blocks on their way.
    pub fn kept(&self) -> Option<Combining> {
        self.algorithm.combining().filter(|_| self.source_passes || self.dest_passes)
    }

    /// What is computed.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Compares what `object` and `draft` have, and gives the checksum that they share.
    pub(super) async fn compare(&self, object: &dyn Object, draft: &dyn Draft, size: u64) -> Result<Sum, Error> {
        // A draft of which only the end was sent now did not see the beginning.
        let passed = if self.source_passes { draft.given(size) } else { None };
        let expected = match passed {
            Some(sum) => sum,
            None => object.checksum(self.algorithm, Extent::first(size)).await?,
        };
        self.compare_with(expected, draft, size).await
    }

    /// Compares what `draft` has with what it should have.
    pub(super) async fn compare_with(&self, expected: Sum, draft: &dyn Draft, size: u64) -> Result<Sum, Error> {
        // What an earlier attempt left has lain about since: what it was when it passed says nothing of what it is.
        let found = match self.dest_passes && draft.kept().is_empty() {
            true => passed(draft, size)?,
            false => draft.checksum(self.algorithm).await?,
        };
        if expected == found { Ok(expected) } else { Err(Error::Mismatch { name: draft.name(), expected, found }) }
    }
}

/// The checksum of the blocks that `draft` was given.
fn passed(draft: &dyn Draft, size: u64) -> Result<Sum, Error> {
    draft.given(size).ok_or_else(|| Error::Unverifiable {
        name: draft.name(),
        reason: "the checksums of its blocks were not kept".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_compared_depends_on_who_sees_the_bytes() {
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
