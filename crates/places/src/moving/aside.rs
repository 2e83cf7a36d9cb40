//! Sources that a move puts aside (renames) to find out whether the copy is another file: if the destination vanishes
//! with the source, or still exists under the source's name, the two are one file with two names. A killed move leaves
//! the file renamed, and the next move of the same source renames it back. Long names are cut, as those of drafts are.

use crate::outcomes::Outcomes;
use crate::place::shown;
use phoebus_files::key::Key;
use phoebus_files::store::{Kind, Store};
use phoebus_files::{Error, ErrorKind, is_moved_cut, moved_from, moved_stem};

/// The names, for filters.
pub(super) const PATTERN: &str = ".*.????????????????.phoebus-moved";

/// Renames `from` back if an earlier move has put it aside and its name is free. Returns whether it did.
pub async fn put_back_one(store: &dyn Store, from: &Key, outcomes: &mut impl Outcomes) -> bool {
    if !matches!(store.stat_link(from).await, Err(error) if error.kind() == ErrorKind::NotFound) {
        return false;
    }
    let stem = moved_stem(from.name());
    // An unreadable directory is reported for the file itself.
    let Ok(mut listing) = store.list(&from.parent()).await else { return false };
    while let Ok(page) = listing.more().await {
        let Some(entry) = page.iter().find(|entry| moved_from(&entry.name) == Some(&stem[..])) else {
            match page.is_empty() {
                true => return false,
                false => continue,
            }
        };
        let Ok(aside) = from.parent().join(&entry.name) else { return false };
        return entry.meta.kind == Kind::File && outcomes.check(store.rename(&aside, from, false).await).is_some();
    }
    false
}

/// Renames back what an earlier move of `key` has put aside, and reports that it stays.
pub(super) async fn put_back(store: &dyn Store, key: &Key, outcomes: &mut impl Outcomes) {
    let Some(to) = moved_from(key.name()).and_then(|name| key.parent().join(name).ok()) else { return };
    if is_moved_cut(to.name()) {
        let reason = "an earlier move was cut before it was removed, and its name was too long to be kept: give it its name \
                      again to move it";
        let (name, reason) = (shown(store, key), reason.to_owned());
        outcomes.check::<()>(Err(Error::Store { name, reason, kind: ErrorKind::Other }));
        return;
    }
    let failure = match store.rename(key, &to, false).await {
        Ok(()) => {
            let reason = "an earlier move was cut before it was removed; it stays where it is, and can be moved again"
                .to_owned();
            Error::Store { name: shown(store, &to), reason, kind: ErrorKind::Other }
        }
        Err(error) => error,
    };
    outcomes.check::<()>(Err(failure));
}

#[cfg(test)]
mod tests {
    use super::*;
    use phoebus_files::moved_name;
    use phoebus_files::plan::Filter;

    #[test]
    fn names_put_aside_are_found_again() {
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
