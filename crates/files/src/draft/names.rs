//! Names of a draft and its journal: hidden, beside the destination. They are the same for each attempt, unless others
//! can make names there: then they are unpredictable.

use crate::key::{Key, KeyError, MAX_NAME};
use ring::rand::{SecureRandom, SystemRandom};
use std::collections::BTreeSet;
use std::io;

/// Suffix of drafts that clients make on servers.
const PART: &[u8] = b".phoebus-part";

/// Suffix of this engine's drafts.
const DRAFT: &[u8] = b".phoebus-draft";
const JOURNAL: &[u8] = b".phoebus-journal";
const NEXT: &[u8] = b".phoebus-journal-next";

/// Tag of symbolic links in progress, as earlier versions wrote it.
const LINK: &str = "link";

/// Suffix of a source that a move has put aside.
const MOVED: &[u8] = b".phoebus-moved";

/// Bytes that such a name is longer.
const MOVED_MORE: usize = 1 + TAG + MOVED.len();

/// Hexadecimal digits of an unpredictable name.
const TAG: usize = 16;

/// The key whose drafts belong to `key`: in the directory `partial_dir` beside it, or `key` itself.
///
/// # Errors
/// The path is too long.
pub fn draft_home(key: &Key, partial_dir: Option<&Key>) -> Result<Key, KeyError> {
    match (partial_dir, key.split()) {
        (Some(inside), Some((dir, name))) => dir.beneath(inside)?.join(name),
        _ => Ok(key.clone()),
    }
}

/// The draft of `key` in a store that recognizes drafts only by name: beside it, hidden, with a `tag` of its source.
///
/// # Errors
/// The path is too long.
pub fn part_of(key: &Key, tag: &str) -> Result<Key, KeyError> {
    let (dir, name) = key.split().unwrap_or((Key::ROOT, b"root"));
    let end = [b".", tag.as_bytes(), PART].concat();
    dir.join([&stem_of(name, end.len())[..], &end].concat())
}

/// An unpredictable name beside `key`, for a symbolic link in progress.
///
/// # Errors
/// The path is too long, or the system has no random bytes.
pub(crate) fn link_part(key: &Key) -> io::Result<Key> {
    part_of(key, &random_tag()?).map_err(io::Error::other)
}

/// Sixteen unpredictable hexadecimal digits.
///
/// # Errors
/// The system has no random bytes.
pub fn random_tag() -> io::Result<String> {
    let mut tag = [0; TAG / 2];
    SystemRandom::new().fill(&mut tag).map_err(|_| io::Error::other("the system has no randomness"))?;
    Ok(tag.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A new name beside `key` for a source that a move puts aside. Long names are cut, as those of drafts are.
///
/// # Errors
/// The path is too long, or the system has no random bytes.
pub fn moved_name(key: &Key) -> io::Result<Key> {
    let name = [b".", &moved_stem(key.name())[..], b".", random_tag()?.as_bytes(), MOVED].concat();
    key.parent().join(name).map_err(io::Error::other)
}

/// The part of `name` that such a name contains ([`moved_from`]): all of it, if there is room.
pub fn moved_stem(name: &[u8]) -> Vec<u8> {
    stem_of(name, MOVED_MORE).split_off(1)
}

/// Whether `stem`, which [`moved_from`] returned, is a cut name. It then says nothing about the rest.
pub fn is_moved_cut(stem: &[u8]) -> bool {
    // A character is not cut in two.
    let is_long = stem.len() + 1 + MOVED_MORE > MAX_NAME - 4;
    let digest = stem.rsplit(|byte| *byte == b'~').next().unwrap_or_default();
    is_long && digest.len() == TAG && digest.iter().all(u8::is_ascii_hexdigit)
}

/// The original name, possibly cut ([`is_moved_cut`]), of a file that a move has put aside.
pub fn moved_from(name: &[u8]) -> Option<&[u8]> {
    let rest = name.strip_prefix(b".")?.strip_suffix(MOVED)?;
    let (rest, tag) = rest.split_at_checked(rest.len().checked_sub(TAG)?)?;
    rest.strip_suffix(b".").filter(|name| !name.is_empty() && tag.iter().all(u8::is_ascii_hexdigit))
}

/// The usual place of the draft of `key` ([`Capabilities::place`](crate::store::Capabilities::place) has the actual
/// one).
///
/// # Errors
/// The path is too long.
pub fn draft_of(key: &Key) -> Result<Key, KeyError> {
    Names::of(key).map(|names| names.part)
}

/// A hidden name from `name`, with room for a suffix of `suffix` bytes.
fn stem_of(name: &[u8], end: usize) -> Vec<u8> {
    let most = (MAX_NAME - 1).saturating_sub(end);
    let mut stem = [b".", name].concat();
    if name.len() > most {
        // As much of the name as fits, and a tag that distinguishes names with the same beginning.
        let digest = ring::digest::digest(&ring::digest::SHA256, name);
        let mut end = most.saturating_sub(16);
        // Some servers refuse names that end within a character.
        if let Ok(name) = std::str::from_utf8(name) {
            while end > 1 && !name.is_char_boundary(end - 1) {
                end -= 1;
            }
        }
        stem.truncate(end);
        stem.push(b'~');
        digest.as_ref()[..8].iter().for_each(|byte| stem.extend(format!("{byte:02x}").bytes()));
    }
    stem
}

/// The names of a draft.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Names {
    /// The bytes.
    pub(crate) part: Key,
    /// The journal.
    pub(crate) journal: Key,
    /// A new journal, before it replaces the other.
    pub(crate) next: Key,
}

impl Names {
    /// The fixed names for `key`.
    pub(crate) fn of(key: &Key) -> Result<Self, KeyError> {
        let (dir, name) = key.split().unwrap_or((Key::ROOT, b"root"));
        Self::with_stem(&dir, &stem_of(name, NEXT.len()))
    }

    /// Unpredictable names.
    pub(crate) fn random(key: &Key) -> io::Result<Self> {
        let (dir, mut stem) = Self::tagged(key);
        stem.extend(random_tag()?.bytes());
        Self::with_stem(&dir, &stem).map_err(io::Error::other)
    }

    /// Earlier [random](Self::random) names for `key`, among `names` of its directory.
    pub(crate) fn found(key: &Key, names: &[Vec<u8>]) -> Vec<Self> {
        let (dir, stem) = Self::tagged(key);
        let tag = |name: &Vec<u8>| {
            let rest = name.strip_prefix(&stem[..])?;
            let (tag, end) = rest.split_at_checked(TAG)?;
            let sound = tag.iter().all(u8::is_ascii_hexdigit) && [DRAFT, JOURNAL, NEXT].contains(&end);
            sound.then(|| tag.to_vec())
        };
        let tags: BTreeSet<Vec<u8>> = names.iter().filter_map(tag).collect();
        tags.iter().filter_map(|tag| Self::with_stem(&dir, &[&stem[..], tag].concat()).ok()).collect()
    }

    /// The directory of `key`, and the prefix of its random names.
    fn tagged(key: &Key) -> (Key, Vec<u8>) {
        let (dir, name) = key.split().unwrap_or((Key::ROOT, b"root"));
        let mut stem = stem_of(name, NEXT.len() + 1 + TAG);
        stem.push(b'.');
        (dir, stem)
    }

    fn with_stem(dir: &Key, stem: &[u8]) -> Result<Self, KeyError> {
        let with = |end: &[u8]| dir.join([stem, end].concat());
        Ok(Self { part: with(DRAFT)?, journal: with(JOURNAL)?, next: with(NEXT)? })
    }
}

/// Whether `name` belongs to a draft or a journal, which listings and walks leave out.
pub fn is_ours(name: &[u8]) -> bool {
    is_part(name) || is_engines(name)
}

/// Whether `name` is a client's draft on a server ([`part_of`]).
pub fn is_part(name: &[u8]) -> bool {
    name.starts_with(b".") && name.ends_with(PART)
}

/// Whether `name` belongs to a draft or journal of this engine. Clients may not make, write or rename such names,
/// because the engine would take the file for its own.
pub fn is_engines(name: &[u8]) -> bool {
    name.starts_with(b".") && [DRAFT, JOURNAL, NEXT].iter().any(|end| name.ends_with(end))
}

/// The draft that `key`, a name of this engine, belongs to: itself, or for a journal its draft. `None` for other names.
pub(crate) fn draft_beside(key: &Key) -> Option<Key> {
    let name = key.name().strip_prefix(b".").filter(|_| is_engines(key.name()))?;
    let stem = [DRAFT, NEXT, JOURNAL].iter().find_map(|end| name.strip_suffix(*end))?;
    key.parent().join([b".", stem, DRAFT].concat()).ok()
}

/// Whether only drafts and journals have names like `name`: those of [`is_engines`] with a stem, clients' drafts on
/// servers, and symbolic links in progress, whose tags are 16 hexadecimal digits.
pub fn is_draft(name: &[u8]) -> bool {
    let Some(rest) = name.strip_prefix(b".") else { return false };
    if let Some(stem) = rest.strip_suffix(PART) {
        let dot = stem.iter().rposition(|&byte| byte == b'.').filter(|dot| *dot > 0);
        return dot.is_some_and(|dot| {
            let tag = &stem[dot + 1..];
            tag == LINK.as_bytes() || (tag.len() == TAG && tag.iter().all(u8::is_ascii_hexdigit))
        });
    }
    [DRAFT, NEXT, JOURNAL].iter().any(|end| rest.strip_suffix(*end).is_some_and(|stem| !stem.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_cut_where_they_are_put_aside() {
        for len in 223..=255 {
            let key = Key::parse("d/".to_owned() + &"x".repeat(len)).unwrap();
            let aside = moved_name(&key).unwrap();
            let stem = moved_from(aside.name()).unwrap();
            assert_eq!(stem, moved_stem(key.name()));
            assert_eq!((is_moved_cut(stem), stem == key.name()), (len > 223, len == 223), "{len}");
        }
        assert_eq!(moved_stem(b"a.h5"), b"a.h5");
    }

    #[test]
    fn draft_names_are_beside_the_destination_and_fit() {
        let names = Names::of(&Key::parse("a/b.h5").unwrap()).unwrap();
        assert_eq!(names.part.to_string(), "a/.b.h5.phoebus-draft");
        assert_eq!(names.journal.to_string(), "a/.b.h5.phoebus-journal");
        let long = |last: &str| Names::of(&Key::parse("x".repeat(254) + last).unwrap()).unwrap();
        assert_ne!(long("a").part, long("b").part);
        let random = Names::random(&Key::parse("a/b.h5").unwrap()).unwrap();
        let listed = vec![
            random.journal.name().to_vec(),
            b".b.h5.phoebus-draft".to_vec(),
            b".b.h5.0123456789abcdeg.phoebus-draft".to_vec(),
        ];
        assert_eq!(Names::found(&Key::parse("a/b.h5").unwrap(), &listed), std::slice::from_ref(&random));
        let longest = Names::random(&Key::parse("x".repeat(255)).unwrap()).unwrap();
        for names in [long("a"), names, random, longest] {
            for key in [names.part, names.journal, names.next] {
                assert!(key.name().len() <= MAX_NAME && is_ours(key.name()), "{key}");
            }
        }
        let part = part_of(&Key::parse("a/b.h5").unwrap(), "0123").unwrap();
        assert_eq!(part.to_string(), "a/.b.h5.0123.phoebus-part");
        let part = part_of(&Key::parse("x".repeat(255)).unwrap(), "0123456789abcdef").unwrap();
        assert!(part.name().len() <= MAX_NAME && is_ours(part.name()), "{part}");
        // None is cut within a character.
        for shift in 0..3 {
            let name = "x".repeat(shift) + &"\u{20ac}".repeat(84);
            let key = Key::parse(&name).unwrap();
            let names = Names::of(&key).unwrap();
            for key in [part_of(&key, "0123456789abcdef").unwrap(), names.part, names.journal, names.next] {
                assert!(std::str::from_utf8(key.name()).is_ok() && key.name().len() <= MAX_NAME, "{key}");
            }
        }
        assert!(!is_ours(b".b.h5") && !is_ours(b"b.phoebus-part"));
    }

    #[test]
    fn only_drafts_of_transfers_count_as_drafts() {
        for name in [
            ".b.h5.phoebus-draft",
            ".b.h5.0123456789abcdef.phoebus-journal",
            "..b.h5.0123456789abcdef.phoebus-part.phoebus-journal-next",
            ".b.h5.0123456789abcdef.phoebus-part",
            ".b.h5.link.phoebus-part",
        ] {
            assert!(is_draft(name.as_bytes()), "{name}");
        }
        for name in [
            "b.h5.phoebus-draft",
            ".phoebus-draft",
            ".phoebus-part",
            ".0123456789abcdef.phoebus-part",
            ".b.h5.phoebus-part",
            ".b.h5.0123.phoebus-part",
            ".b.h5.0123456789abcdeg.phoebus-part",
            ".b.h5",
        ] {
            assert!(!is_draft(name.as_bytes()), "{name}");
        }
        let of = |name: &str| draft_beside(&Key::parse(name).unwrap()).map(|key| key.to_string());
        for end in ["draft", "journal", "journal-next"] {
            assert_eq!(of(&format!("a/.b.phoebus-{end}")).as_deref(), Some("a/.b.phoebus-draft"));
        }
        assert_eq!(of("a/.b.0123456789abcdef.phoebus-part"), None);
    }
}
