//! Whether what a store calls a directory is one itself, or a symbolic link to one: asked before anything in it is removed.

use crate::error::{Error, Sort};
use crate::key::Key;
use crate::own::{Own, OwnDirs};
use crate::store::{Kind, Store};

/// What is known of the directories in a directory, for those who remove what is in them.
#[derive(Debug)]
pub enum DirsOf {
    /// Each is one itself: listings of this store call no symbolic link a directory.
    Themselves,
    /// The server tells which are.
    Told(OwnDirs),
    /// It could not be asked.
    Untold,
}

impl DirsOf {
    /// Asks about the directories in `dir`, if there are `any`.
    ///
    /// # Errors
    /// Those that may pass.
    pub async fn ask(store: &dyn Store, dir: &Key, any: bool) -> Result<Self, Error> {
        if !any || !store.is_far() {
            return Ok(Self::Themselves);
        }
        match store.own_dirs(dir).await {
            Ok(None) => Ok(Self::Themselves),
            Ok(Some(own)) => Ok(Self::Told(own)),
            Err(error) if error.sort() == Sort::Passing => Err(error),
            Err(_) => Ok(Self::Untold),
        }
    }

    /// What `name` is, which is listed as a directory. `names` is as for [`OwnDirs::is`].
    pub fn is(&self, name: &[u8], names: Option<u64>) -> Own {
        match self {
            Self::Themselves => Own::Yes,
            Self::Told(own) => own.is(name, names),
            Self::Untold => Own::Unknown,
        }
    }

    /// How many names the directory `name` has, if that is told.
    pub fn names_of(&self, name: &[u8]) -> Option<u64> {
        match self {
            Self::Told(own) => own.names_of(name),
            _ => None,
        }
    }
}

/// Whether `key`, which the store calls a directory when it is asked about it alone, is one itself; and how many names it has, if that
/// is told.
///
/// # Errors
/// The directory that it is in cannot be listed for now.
pub async fn is_own_dir(store: &dyn Store, key: &Key) -> Result<(Own, Option<u64>), Error> {
    if key.is_root() {
        return Ok((Own::Yes, None));
    }
    if !store.is_far() {
        let is_link = store.stat_link(key).await?.kind == Kind::Link;
        return Ok((if is_link { Own::Link } else { Own::Yes }, None));
    }
    let dir = key.parent();
    match DirsOf::ask(store, &dir, true).await? {
        DirsOf::Themselves => {}
        told => {
            let names = names_of_dir(store, &dir).await?;
            return Ok((told.is(key.name(), names), told.names_of(key.name())));
        }
    }
    // It tells links in listings, and of one that is named what it leads to.
    let mut listing = match store.list_all(&dir).await {
        Err(error) if error.sort() != Sort::Passing => return Ok((Own::Unknown, None)),
        listing => listing?,
    };
    loop {
        let page = listing.more().await?;
        let own = match page.iter().find(|entry| entry.name == key.name()).map(|entry| entry.meta.kind) {
            None if !page.is_empty() => continue,
            Some(Kind::Dir) => Own::Yes,
            Some(Kind::Link) => Own::Link,
            _ => Own::Unknown,
        };
        return Ok((own, None));
    }
}

/// How many names the directory `key` has, where the directories in it are not known to be such themselves and that is told.
///
/// # Errors
/// The directory that it is in cannot be listed for now.
pub async fn names_of_dir(store: &dyn Store, key: &Key) -> Result<Option<u64>, Error> {
    match key.is_root() {
        true => Ok(None),
        false => Ok(DirsOf::ask(store, &key.parent(), true).await?.names_of(key.name())),
    }
}

/// Removes `key`, which may be a symbolic link or a directory, without a look into it: a directory goes if it is empty.
///
/// # Errors
/// It stays.
pub async fn remove_unseen(store: &dyn Store, key: &Key) -> Result<(), Error> {
    match store.remove(key).await {
        Err(error) if matches!(error.sort(), Sort::Passing | Sort::NotFound) => return Err(error),
        Err(_) => {}
        // Some say so of whatever they are asked to remove.
        Ok(()) if store.is_absent(key).await? => return Ok(()),
        Ok(()) => {}
    }
    store.remove_dir(key).await.map_err(|error| {
        let why = "it may be a symbolic link, which the server does not tell: it stays, with what is in it";
        Error::Store { name: format!("{}/{key}", store.name()), reason: format!("{why} ({error})"), sort: error.sort() }
    })
}
