//! `--delete`: checks that nothing but what the sources lack can be removed.
//!
//! The file engine removes only what it has seen and asked about (`phoebus_files::job`). This checks what it cannot
//! know: that no two sources share a directory of the destination, of which each would remove the other's files, and
//! that no source lies in its own destination.

use super::group::Group;
use crate::error::{Error, Result};
use crate::place::shown;
use phoebus_files::key::Key;
use phoebus_files::store::Store;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Checks that `groups` can be carried with `--delete`.
///
/// # Errors
/// They cannot ([`Error::Request`]).
pub fn check(groups: &[Group]) -> Result<()> {
    let mut taken: HashMap<(usize, &Key), &Group> = HashMap::new();
    for group in groups {
        let store = Arc::as_ptr(&group.dest).addr();
        for (from, to) in &group.items {
            if taken.insert((store, to), group).is_some() {
                return Err(shared(&*group.dest, to));
            }
            within(group, from, to)?;
        }
    }
    for (store, to) in taken.keys() {
        let mut above = (*to).clone();
        while !above.is_root() {
            above = above.parent();
            if let Some(group) = taken.get(&(*store, &above)) {
                return Err(shared(&*group.dest, &above));
            }
        }
    }
    Ok(())
}

fn shared(dest: &dyn Store, to: &Key) -> Error {
    let dest = shown(dest, to);
    Error::request(format!("--delete: several sources go to {dest}, and each would delete what the others bring"))
}

/// Refuses a source that lies in the cleared directory, or contains it.
fn within(group: &Group, from: &Key, to: &Key) -> Result<()> {
    let nested = match (group.source.is_far(), group.dest.is_far()) {
        (false, false) => {
            let (from, to) = (real(&*group.source, from), real(&*group.dest, to));
            from.starts_with(&to) || to.starts_with(&from)
        }
        _ => Arc::ptr_eq(&group.source, &group.dest) && (from.below(to).is_some() || to.below(from).is_some()),
    };
    if !nested {
        return Ok(());
    }
    let (from, to) = (shown(&*group.source, from), shown(&*group.dest, to));
    Err(Error::request(format!("--delete: {from} and {to} lie in one another, and what is copied would be deleted")))
}

/// The real path of a local `key`; of a missing one, where it will be.
fn real(store: &dyn Store, key: &Key) -> PathBuf {
    let path = PathBuf::from(shown(store, key));
    let there = path.ancestors().find_map(|above| Some((above, std::fs::canonicalize(above).ok()?)));
    match there {
        Some((above, real)) => real.join(path.strip_prefix(above).unwrap_or(Path::new(""))),
        None => path,
    }
}
