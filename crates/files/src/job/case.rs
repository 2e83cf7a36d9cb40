//! Names that differ only in case. Destinations that ignore case (Windows and its servers, FAT, macOS) would overwrite
//! the first file with the second.

use super::contents::contents;
use super::one::shown;
use crate::error::{Error, ErrorKind};
use crate::key::Key;
use crate::store::Store;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};

/// Hashes of the names in use, two per name, since there may be millions.
#[derive(Debug, Default)]
pub(super) struct Cases {
    numbers: RandomState,
    /// The first name of each group that differs only in case.
    given: HashMap<u64, u64>,
    /// Groups of which the destination keeps more than one name.
    apart: HashSet<u64>,
}

impl Cases {
    /// The first part of `key`, from the root, that differs only in case from an earlier name. Records `key`. `None` if
    /// there is no such part.
    pub(super) fn give(&mut self, key: &Key) -> Option<Key> {
        let (mut part, mut met) = (key.clone(), None);
        while !part.is_root() {
            let (folded, exact) = (self.folded(&part), self.numbers.hash_one(part.as_bytes()));
            let first = *self.given.entry(folded).or_insert(exact);
            if first != exact && !self.apart.contains(&folded) {
                met = Some(part.clone());
            }
            part = part.parent();
        }
        // The uppermost one decides about everything below.
        met
    }

    /// Records that the destination distinguishes `key` from the others.
    pub(super) fn are_apart(&mut self, key: &Key) {
        self.apart.insert(self.folded(key));
    }

    fn folded(&self, key: &Key) -> u64 {
        self.numbers.hash_one(folded(key.as_bytes()))
    }
}

/// The name in lower case, as far as it is text.
pub fn folded(name: &[u8]) -> Vec<u8> {
    match std::str::from_utf8(name) {
        Ok(text) => text.to_lowercase().into_bytes(),
        Err(_) => name.to_ascii_lowercase(),
    }
}

/// Fails if `dest` has something at `key` under a name of another case.
///
/// # Errors
/// [`Error::Store`] if it has, and errors of listing the directory.
pub async fn keeps_apart(dest: &dyn Store, key: &Key) -> Result<(), Error> {
    let there = match contents(dest, &key.parent()).await {
        Ok(there) => there,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let wanted = folded(key.name());
    let alike: Vec<_> = there.keys().filter(|name| folded(name) == wanted).collect();
    let [only] = alike[..] else { return Ok(()) };
    // A destination that distinguishes case does not find the other name.
    let other = if only == key.name() { swapped(key) } else { Some(key.clone()) };
    let Some(other) = other else { return Ok(()) };
    match dest.stat(&other).await {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(_) => {
            let shown_only = String::from_utf8_lossy(only).escape_debug().to_string();
            let reason = format!(
                "the destination takes names that differ in case only for one: another source has gone to \"{shown_only}\", and would \
                 be lost"
            );
            Err(Error::Store { name: shown(dest, key), reason, kind: ErrorKind::Request })
        }
    }
}

/// The same key with the case of its last name changed, if it has ASCII letters.
fn swapped(key: &Key) -> Option<Key> {
    let swap = |b: &u8| if b.is_ascii_lowercase() { b.to_ascii_uppercase() } else { b.to_ascii_lowercase() };
    let name: Vec<u8> = key.name().iter().map(swap).collect();
    key.parent().join(&name[..]).ok().filter(|other| other != key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(path: &str) -> Key {
        Key::parse(path).unwrap()
    }

    #[test]
    fn names_that_differ_in_case_are_detected() {
        let mut cases = Cases::default();
        for path in ["a/b", "a/b", "a/c", "\u{e9}/x"] {
            assert_eq!(cases.give(&key(path)), None, "{path}");
        }
        for (path, met) in [("a/B", "a/B"), ("A/d", "A"), ("\u{c9}/x", "\u{c9}"), ("A/B", "A")] {
            assert_eq!(cases.give(&key(path)), Some(key(met)), "{path}");
        }
        cases.are_apart(&key("A"));
        assert_eq!((cases.give(&key("A/e")), cases.give(&key("A/E"))), (None, Some(key("A/E"))));
    }
}
