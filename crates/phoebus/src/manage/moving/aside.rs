//! What a source is called while it is looked whether its copy is another file: where what is at the destination vanishes with it, or
//! is there by that name, too, the two are one file by two names. A move that is killed at that moment leaves it so, and the next one
//! of the same source gives it its name again.

use super::super::Tally;
use crate::place::shown;
use phoebus_files::key::Key;
use phoebus_files::store::{Kind, Store};
use phoebus_files::{Error, Sort, random_tag};
use std::io;

/// What such names end with.
const END: &[u8] = b".phoebus-moved";

/// How many digits are before that, which nobody can know beforehand.
const TAG: usize = 16;

/// The names, for filters.
pub(super) const PATTERN: &str = ".*.????????????????.phoebus-moved";

/// A name beside `key` that nobody has asked for yet.
pub(super) fn name_for(key: &Key) -> io::Result<Key> {
    let name = [b".", key.name(), b".", random_tag()?.as_bytes(), END].concat();
    key.parent().join(name).map_err(io::Error::other)
}

/// The name that what is called `name` had before.
fn name_before(name: &[u8]) -> Option<&[u8]> {
    let rest = name.strip_prefix(b".")?.strip_suffix(END)?;
    let (rest, tag) = rest.split_at_checked(rest.len().checked_sub(TAG)?)?;
    rest.strip_suffix(b".").filter(|name| !name.is_empty() && tag.iter().all(u8::is_ascii_hexdigit))
}

/// Gives `from` its name again, if nothing has it and an earlier move has put it aside.
pub(super) async fn put_back_one(store: &dyn Store, from: &Key, tally: &mut Tally) {
    if !matches!(store.stat_link(from).await, Err(error) if error.sort() == Sort::NotFound) {
        return;
    }
    // Whoever cannot list it says so of the file.
    let Ok(mut listing) = store.list(&from.parent()).await else { return };
    while let Ok(page) = listing.more().await {
        let Some(entry) = page.iter().find(|entry| name_before(&entry.name) == Some(from.name())) else {
            match page.is_empty() {
                true => return,
                false => continue,
            }
        };
        if entry.meta.kind == Kind::File
            && let Ok(aside) = from.parent().join(&entry.name)
        {
            tally.check(store.rename(&aside, from, false).await);
        }
        return;
    }
}

/// Gives what is at `key` its name again, if an earlier move has put it aside, and says that it stays.
pub(super) async fn put_back(store: &dyn Store, key: &Key, tally: &mut Tally) {
    let Some(to) = name_before(key.name()).and_then(|name| key.parent().join(name).ok()) else { return };
    let failure = match store.rename(key, &to, false).await {
        Ok(()) => {
            let reason = "an earlier move was cut before it was removed; it stays where it is, and can be moved again"
                .to_owned();
            Error::Store { name: shown(store, &to), reason, sort: Sort::Other }
        }
        Err(error) => error,
    };
    tally.check::<()>(Err(failure));
}

#[cfg(test)]
mod tests {
    use super::*;
    use phoebus_files::plan::Filter;

    #[test]
    fn names_are_found_again() {
        let key = Key::parse("d/a.h5").unwrap();
        let aside = name_for(&key).unwrap();
        assert_ne!(aside, name_for(&key).unwrap());
        assert_eq!(name_before(aside.name()), Some(&b"a.h5"[..]));
        for other in [
            &b"a.h5"[..],
            b".a.phoebus-moved",
            b"..0123456789abcdef.phoebus-moved",
            b".a.0123456789abcdeg.phoebus-moved",
        ] {
            assert_eq!(name_before(other), None);
        }
        let mut filter = Filter::default();
        filter.exclude(PATTERN).unwrap();
        assert!(!filter.takes(&aside, false) && filter.takes(&key, false));
    }
}
