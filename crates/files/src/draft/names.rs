//! The names of a draft and its journal: hidden, beside the destination, and the same whenever the same destination is
//! written.

use crate::key::{Key, KeyError, MAX_NAME};

const PART: &[u8] = b".phoebus-part";
const JOURNAL: &[u8] = b".phoebus-journal";
const NEXT: &[u8] = b".phoebus-journal-next";

/// Where the draft of `key` is in a store that has nothing but names to know it again by: beside it, hidden, with a `tag` that
/// tells it from drafts of other sources.
///
/// # Errors
/// The path would be too long.
pub fn part_of(key: &Key, tag: &str) -> Result<Key, KeyError> {
    let (dir, name) = key.split().unwrap_or((Key::ROOT, b"root"));
    let end = [b".", tag.as_bytes(), PART].concat();
    dir.join([&stem_of(name, end.len())[..], &end].concat())
}

/// Where the bytes of the draft of `key` are before it is published: a file that those write to who share the disk and whom its
/// owner asks to ([`Landing::wrote`](crate::store::Landing::wrote)).
///
/// # Errors
/// The path would be too long.
pub fn draft_of(key: &Key) -> Result<Key, KeyError> {
    Names::of(key).map(|names| names.part)
}

/// A hidden name for `name` that leaves room for an end of so many bytes.
fn stem_of(name: &[u8], end: usize) -> Vec<u8> {
    let most = (MAX_NAME - 1).saturating_sub(end);
    let mut stem = [b".", name].concat();
    if name.len() > most {
        // As much of the name as fits, and what tells it from others that begin alike.
        let digest = ring::digest::digest(&ring::digest::SHA256, name);
        stem.truncate(most.saturating_sub(16));
        stem.push(b'~');
        digest.as_ref()[..8].iter().for_each(|byte| stem.extend(format!("{byte:02x}").bytes()));
    }
    stem
}

/// The names beside a destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Names {
    /// The bytes.
    pub(crate) part: Key,
    /// What of them is safe.
    pub(crate) journal: Key,
    /// A journal that is about to take the place of the other.
    pub(crate) next: Key,
}

impl Names {
    /// Those of the draft of `key`.
    pub(crate) fn of(key: &Key) -> Result<Self, KeyError> {
        let (dir, name) = key.split().unwrap_or((Key::ROOT, b"root"));
        let stem = stem_of(name, NEXT.len());
        let with = |end: &[u8]| dir.join([&stem[..], end].concat());
        Ok(Self { part: with(PART)?, journal: with(JOURNAL)?, next: with(NEXT)? })
    }
}

/// Whether `name` is that of a draft or a journal, which listings and walks leave out.
pub fn is_ours(name: &[u8]) -> bool {
    name.starts_with(b".") && [PART, JOURNAL, NEXT].iter().any(|end| name.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_beside_the_destination_and_fit() {
        let names = Names::of(&Key::parse("a/b.h5").unwrap()).unwrap();
        assert_eq!(names.part.to_string(), "a/.b.h5.phoebus-part");
        assert_eq!(names.journal.to_string(), "a/.b.h5.phoebus-journal");
        let long = |last: &str| Names::of(&Key::parse("x".repeat(254) + last).unwrap()).unwrap();
        assert_ne!(long("a").part, long("b").part);
        for names in [long("a"), names] {
            for key in [names.part, names.journal, names.next] {
                assert!(key.name().len() <= MAX_NAME && is_ours(key.name()), "{key}");
            }
        }
        let part = part_of(&Key::parse("a/b.h5").unwrap(), "0123").unwrap();
        assert_eq!(part.to_string(), "a/.b.h5.0123.phoebus-part");
        let part = part_of(&Key::parse("x".repeat(255)).unwrap(), "0123456789abcdef").unwrap();
        assert!(part.name().len() <= MAX_NAME && is_ours(part.name()), "{part}");
        assert!(!is_ours(b".b.h5") && !is_ours(b"b.phoebus-part"));
    }
}
