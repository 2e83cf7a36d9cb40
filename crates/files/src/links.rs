//! Directories, and symbolic links that a store lists as directories: whoever removes what is in a tree, or takes it away, must not go behind
//! those.

use crate::error::{Error, Sort};
use crate::key::Key;
use crate::own::{Own, OwnDirs};
use crate::store::{Kind, Store, TriedDir};
use std::collections::HashMap;

/// Asks `store` about the directories in `dir`. Where it cannot tell, nothing is known of them.
///
/// # Errors
/// Those that may pass.
pub async fn own_dirs(store: &dyn Store, dir: &Key) -> Result<OwnDirs, Error> {
    match store.own_dirs(dir).await {
        Err(error) if error.sort() == Sort::Passing => Err(error),
        Err(_) => Ok(OwnDirs::all(Own::Unknown)),
        told => told,
    }
}

/// Directories that somebody names. Of many in one directory the store is asked once.
#[derive(Debug, Default)]
pub struct NamedDirs {
    asked: Option<(Key, OwnDirs)>,
}

impl NamedDirs {
    /// What `key` is, which the store calls a directory when it is asked about it alone.
    ///
    /// # Errors
    /// Nobody can say for now.
    pub async fn is(&mut self, store: &dyn Store, key: &Key) -> Result<Own, Error> {
        if key.is_root() {
            return Ok(Own::Yes);
        }
        if store.tells_links() {
            let is_link = store.stat_link(key).await?.kind == Kind::Link;
            return Ok(if is_link { Own::Link } else { Own::Yes });
        }
        let dir = key.parent();
        if !matches!(&self.asked, Some((asked, _)) if *asked == dir) {
            self.asked = Some((dir.clone(), Self::ask(store, &dir).await?));
        }
        Ok(self.asked.as_ref().map_or(Own::Unknown, |(_, dirs)| dirs.is(key.name())))
    }

    async fn ask(store: &dyn Store, dir: &Key) -> Result<OwnDirs, Error> {
        let told = own_dirs(store, dir).await?;
        if told.others() != Own::Yes {
            return Ok(told);
        }
        // Listings tell links from directories, and what is said of a name alone is of what it leads to.
        let mut dirs = OwnDirs::all(Own::Unknown);
        let mut listing = match store.list_all(dir).await {
            Err(error) if error.sort() != Sort::Passing => return Ok(dirs),
            listing => listing?,
        };
        loop {
            let page = listing.more().await?;
            if page.is_empty() {
                return Ok(dirs);
            }
            for entry in page {
                match entry.meta.kind {
                    Kind::Dir => {
                        let own = told.is(&entry.name);
                        dirs.note(entry.name, own);
                    }
                    Kind::Link => dirs.note(entry.name, Own::Link),
                    _ => {}
                }
            }
        }
    }
}

/// What is to be done with a directory that is to go with all that is in it.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing: it is gone.
    Gone,
    /// It is a directory itself, and what is in it goes first.
    Empty,
}

/// Removes `key`, which is `own`, if that can be done without a look into it: a symbolic link, or an empty directory.
///
/// # Errors
/// It stays. What may be a symbolic link, as far as anybody tells, stays with what is in it.
pub async fn begin_to_remove(store: &dyn Store, key: &Key, own: Own) -> Result<Next, Error> {
    match own {
        Own::Yes => return Ok(Next::Empty),
        Own::Link => return store.remove(key).await.map(|()| Next::Gone),
        // Of a link rmdir(2) says that it is no directory, and of a directory that it is not empty.
        Own::Likely | Own::Unknown => match store.try_dir(key).await? {
            TriedDir::Removed => return Ok(Next::Gone),
            TriedDir::NotEmpty => return Ok(Next::Empty),
            TriedDir::NotDir => {
                return store.remove(key).await.map(|()| Next::Gone).map_err(|error| link_stays(store, key, &error));
            }
            TriedDir::Refused => {}
        },
    }
    // Some say of whatever they are asked to remove that it is done.
    match store.remove(key).await {
        Ok(()) if store.is_absent(key).await? => Ok(Next::Gone),
        Err(error) if error.sort() == Sort::NotFound => Err(error),
        _ => Err(Error::MayBeLink { name: format!("{}/{key}", store.name()) }),
    }
}

fn link_stays(store: &dyn Store, key: &Key, error: &Error) -> Error {
    let reason = format!("it is a symbolic link to a directory, and the server does not remove it ({error})");
    Error::Store { name: format!("{}/{key}", store.name()), reason, sort: error.sort() }
}

/// Directories that are [`Own::Likely`] such themselves, and what was found of them.
#[derive(Debug, Default)]
pub struct Doubts(HashMap<Key, Option<Own>>);

impl Doubts {
    /// Notes that it is not sure of `dir`.
    pub fn note(&mut self, dir: Key) {
        self.0.entry(dir).or_default();
    }

    /// Whether `key` was found to be a symbolic link.
    pub fn is_link(&self, key: &Key) -> bool {
        self.0.get(key) == Some(&Some(Own::Link))
    }

    /// Whether of `key` was found that nobody tells what it is.
    pub fn is_unknown(&self, key: &Key) -> bool {
        self.0.get(key) == Some(&Some(Own::Unknown))
    }

    /// Whether `dir`, in which there is something, is a symbolic link, may be one, or is behind one: each directory above it that is in doubt is tried, from
    /// the top down.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn is_behind(&mut self, store: &dyn Store, dir: &Key) -> Result<bool, Error> {
        if self.0.is_empty() {
            return Ok(false);
        }
        let mut above = vec![dir.clone()];
        while let Some(last) = above.last().filter(|last| !last.is_root()) {
            above.push(last.parent());
        }
        for key in above.into_iter().rev() {
            let Some(found) = self.0.get_mut(&key) else { continue };
            let own = match *found {
                Some(own) => own,
                None => match store.try_dir(&key).await? {
                    TriedDir::NotDir => Own::Link,
                    TriedDir::Removed | TriedDir::NotEmpty => Own::Yes,
                    // A refusal for another reason proves nothing.
                    TriedDir::Refused => Own::Unknown,
                },
            };
            *found = Some(own);
            if own != Own::Yes {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
