//! Prevents a symbolic link from replacing its own target, which would be lost.

use crate::place::shown;
use phoebus_files::key::Key;
use phoebus_files::store::{Kind, Store};
use phoebus_files::{Error, ErrorKind};

/// Refuses to rename `from` to `to` if `from` is a symbolic link to it.
///
/// # Errors
/// It is, or may be.
pub async fn must_not_lead_to(store: &dyn Store, from: &Key, to: &Key) -> Result<(), Error> {
    let (Some(leads), Some(there)) = (look(store, from).await?, look(store, to).await?) else { return Ok(()) };
    if from == to || there.kind == Kind::Dir {
        return Ok(());
    }
    // A file that is being written changes between looks.
    let alike = || (leads.kind, leads.size, leads.modified) == (there.kind, there.size, there.modified);
    if !store.are_one(from, to).await?.unwrap_or_else(alike) {
        return Ok(());
    }
    // Replacing a link loses only the link.
    if store.is_link(to).await? == Some(true) {
        return Ok(());
    }
    let reason = match store.is_link(from).await? {
        // Two names of one file, or two equal files.
        Some(false) => return Ok(()),
        Some(true) => "it is a symbolic link to that file, which would be lost",
        None => {
            "it may be a symbolic link to that file, which would be lost: they are alike, and the server does not tell \
             (--trust-listings takes it for a file)"
        }
    };
    let reason = format!("it does not take the place of {}: {reason}", shown(store, to));
    Err(Error::Store { name: shown(store, from), reason, kind: ErrorKind::Request })
}

/// The target of `key`, if there is one.
async fn look(store: &dyn Store, key: &Key) -> Result<Option<phoebus_files::store::Meta>, Error> {
    match store.stat(key).await {
        Err(error) if error.kind() == ErrorKind::Passing => Err(error),
        // A dangling or circular link has no target to lose.
        found => Ok(found.ok()),
    }
}
