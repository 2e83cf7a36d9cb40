//! What a source is called while it is looked whether its copy is another file: where what is at the destination vanishes with it, or
//! is there by that name, too, the two are one file by two names. A move that is killed at that moment leaves it so, and the next one
//! of the same source gives it its name again. A name for which there is no room with all that is added is cut, as drafts' names are.

use super::super::Tally;
use crate::place::shown;
use phoebus_files::key::Key;
use phoebus_files::store::{Kind, Store};
use phoebus_files::{Error, Sort, is_moved_cut, moved_from, moved_stem};

/// The names, for filters.
pub(super) const PATTERN: &str = ".*.????????????????.phoebus-moved";

/// Gives `from` its name again, if nothing has it and an earlier move has put it aside; whether it did.
pub(in super::super) async fn put_back_one(store: &dyn Store, from: &Key, tally: &mut Tally) -> bool {
    if !matches!(store.stat_link(from).await, Err(error) if error.sort() == Sort::NotFound) {
        return false;
    }
    let stem = moved_stem(from.name());
    // Whoever cannot list it says so of the file.
    let Ok(mut listing) = store.list(&from.parent()).await else { return false };
    while let Ok(page) = listing.more().await {
        let Some(entry) = page.iter().find(|entry| moved_from(&entry.name) == Some(&stem[..])) else {
            match page.is_empty() {
                true => return false,
                false => continue,
            }
        };
        let Ok(aside) = from.parent().join(&entry.name) else { return false };
        return entry.meta.kind == Kind::File && tally.check(store.rename(&aside, from, false).await).is_some();
    }
    false
}

/// Gives what is at `key` its name again, if an earlier move has put it aside, and says that it stays.
pub(super) async fn put_back(store: &dyn Store, key: &Key, tally: &mut Tally) {
    let Some(to) = moved_from(key.name()).and_then(|name| key.parent().join(name).ok()) else { return };
    if is_moved_cut(to.name()) {
        let reason = "an earlier move was cut before it was removed, and its name was too long to be kept: give it its name \
                      again to move it";
        let (name, reason) = (shown(store, key), reason.to_owned());
        tally.check::<()>(Err(Error::Store { name, reason, sort: Sort::Other }));
        return;
    }
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
    use phoebus_files::moved_name;
    use phoebus_files::plan::Filter;

    #[test]
    fn names_are_found_again() {
        let key = Key::parse("d/a.h5").unwrap();
        let aside = moved_name(&key).unwrap();
        assert_ne!(aside, moved_name(&key).unwrap());
        assert_eq!(moved_from(aside.name()), Some(&b"a.h5"[..]));
        for other in [
            &b"a.h5"[..],
            b".a.phoebus-moved",
            b"..0123456789abcdef.phoebus-moved",
            b".a.0123456789abcdeg.phoebus-moved",
        ] {
            assert_eq!(moved_from(other), None);
        }
        let mut filter = Filter::default();
        filter.exclude(PATTERN).unwrap();
        assert!(!filter.takes(&aside, false) && filter.takes(&key, false));
    }
}
