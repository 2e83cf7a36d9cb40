//! Names that a destination may take for one: it would overwrite the first file with the second.
//!
//! Windows and its servers, FAT, macOS, ext4 with casefold and ZFS ignore case. The last three also ignore how
//! characters are composed (Unicode's normal forms). Windows and FAT drop dots and blanks at the end.

use super::contents::contents;
use super::one::shown;
use crate::error::{Error, ErrorKind};
use crate::key::Key;
use crate::store::Store;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use unicode_normalization::UnicodeNormalization;

/// Hashes of the names in use, two per name, since there may be millions.
#[derive(Debug, Default)]
pub(super) struct Cases {
    numbers: RandomState,
    /// The first name of each group that some destination takes for one, by the group of its directory.
    given: HashMap<u64, HashMap<u64, u64>>,
    /// Names, by group, that the destination keeps apart from those before.
    apart: HashSet<(u64, u64)>,
}

impl Cases {
    /// The first part of `key`, from the root, that some destination takes for an earlier name. Records `key`. `None` if
    /// there is no such part.
    pub(super) fn give(&mut self, key: &Key) -> Option<Key> {
        let (mut part, mut met) = (key.clone(), None);
        while !part.is_root() {
            let (group, exact) = (self.group(&part), self.numbers.hash_one(part.as_bytes()));
            let dir = self.group(&part.parent());
            let first = *self.given.entry(dir).or_default().entry(group).or_insert(exact);
            if first != exact && !self.apart.contains(&(group, exact)) {
                met = Some(part.clone());
            }
            part = part.parent();
        }
        // The uppermost one decides about everything below.
        met
    }

    /// Forgets the names in `dir`, which gets no others: memory does not grow with the number of files.
    pub(super) fn leave(&mut self, dir: &Key) {
        self.given.remove(&self.group(dir));
    }

    /// Records that the destination distinguishes `key` from the others.
    pub(super) fn mark_distinct(&mut self, key: &Key) {
        self.apart.insert((self.group(key), self.numbers.hash_one(key.as_bytes())));
    }

    fn group(&self, key: &Key) -> u64 {
        self.numbers.hash_one(common_form(key.as_bytes()))
    }
}

/// The form of a path in which all names are equal that some destination takes for one. Others may be equal, too.
pub fn common_form(path: &[u8]) -> Vec<u8> {
    let parts = path.split(|byte| *byte == b'/').map(|name| {
        let kept = name.iter().rposition(|byte| !matches!(byte, b'.' | b' ')).map_or(name.len(), |last| last + 1);
        let name = &name[..kept];
        match std::str::from_utf8(name) {
            Ok(text) if !text.is_ascii() => {
                let decomposed: String = text.nfkd().collect();
                // Both ways: "ß" and "ss" have the same upper case, "ς" and "σ" as well.
                decomposed.to_uppercase().to_lowercase().nfkd().collect::<String>().into_bytes()
            }
            _ => name.to_ascii_lowercase(),
        }
    });
    parts.collect::<Vec<_>>().join(&b'/')
}

/// The name in lower case, as far as it is text.
pub(super) fn folded(name: &[u8]) -> Vec<u8> {
    match std::str::from_utf8(name) {
        Ok(text) => text.to_lowercase().into_bytes(),
        Err(_) => name.to_ascii_lowercase(),
    }
}

/// Fails if `dest` has something at `key` under another name.
///
/// # Errors
/// [`Error::Store`] if it has, and errors of listing the directory.
pub async fn keeps_apart(dest: &dyn Store, key: &Key) -> Result<(), Error> {
    let there = match contents(dest, &key.parent()).await {
        Ok(there) => there,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let wanted = common_form(key.name());
    let mut alike = there.keys().filter(|name| common_form(name) == wanted);
    let Some(first) = alike.next() else { return Ok(()) };
    // A destination that keeps names apart finds no spelling that it does not list.
    let all = if there.contains_key(key.name()) { spellings(key) } else { vec![key.clone()] };
    for other in all.into_iter().filter(|other| !there.contains_key(other.name())) {
        match dest.stat(&other).await {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
            Ok(_) => {
                let shown_first = String::from_utf8_lossy(first).escape_debug().to_string();
                let reason = format!(
                    "the destination takes several names for one: another source has gone to \"{shown_first}\", and would be \
                     lost"
                );
                return Err(Error::Store { name: shown(dest, key), reason, kind: ErrorKind::Request });
            }
        }
    }
    Ok(())
}

/// Other spellings of the last name of `key`, one for each way in which destinations take names for one.
fn spellings(key: &Key) -> Vec<Key> {
    let name = key.name();
    let swap = |b: &u8| if b.is_ascii_lowercase() { b.to_ascii_uppercase() } else { b.to_ascii_lowercase() };
    let mut names: Vec<Vec<u8>> = vec![name.iter().map(swap).collect(), [name, b"."].concat()];
    if let Ok(text) = std::str::from_utf8(name) {
        let composed = [text.nfc().collect::<String>(), text.nfd().collect(), text.nfkd().collect()];
        let cases = [text.to_uppercase(), text.to_lowercase()];
        names.extend(composed.into_iter().chain(cases).map(String::into_bytes));
    }
    let keys = names.iter().filter_map(|name| key.parent().join(&name[..]).ok());
    keys.filter(|other| other != key).collect::<BTreeSet<_>>().into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(path: &str) -> Key {
        Key::parse(path).unwrap()
    }

    #[test]
    fn names_are_forgotten_with_their_directory() {
        let mut cases = Cases::default();
        for dir in ["a", "b", "c"] {
            for i in 0..100 {
                cases.give(&key(&format!("{dir}/{i}")));
            }
            assert_eq!(cases.give(&key(&format!("{dir}/d/x"))), None);
            cases.leave(&key(&format!("{dir}/d")));
            cases.leave(&key(dir));
        }
        assert_eq!((cases.given.len(), cases.given.values().map(HashMap::len).sum::<usize>()), (1, 3));
        assert_eq!(cases.give(&key("A/x")), Some(key("A")));
    }

    #[test]
    fn names_that_some_destination_takes_for_one_are_detected() {
        let mut cases = Cases::default();
        for path in ["a/b", "a/b", "a/c", "\u{e9}/x"] {
            assert_eq!(cases.give(&key(path)), None, "{path}");
        }
        for (path, met) in [("a/B", "a/B"), ("A/d", "A"), ("\u{c9}/x", "\u{c9}"), ("A/B", "A")] {
            assert_eq!(cases.give(&key(path)), Some(key(met)), "{path}");
        }
        for (path, met) in [
            ("\u{65}\u{301}/x", "\u{65}\u{301}"),
            ("a/b. ", "a/b. "),
            ("a. ./q", "a. ."),
            ("stra\u{df}e", "stra\u{df}e"),
            ("\u{3c2}", "\u{3c2}"),
        ] {
            for first in ["STRASSE", "\u{3c3}"] {
                cases.give(&key(first));
            }
            assert_eq!(cases.give(&key(path)), Some(key(met)), "{path}");
        }
        for path in ["...", "..a", "a b", "\u{df}x"] {
            assert_eq!(cases.give(&key(path)), None, "{path}");
        }
        cases.mark_distinct(&key("A"));
        assert_eq!((cases.give(&key("A/e")), cases.give(&key("A/E"))), (None, Some(key("A/E"))));
    }
}
