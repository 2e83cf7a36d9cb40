//! Distinguishes directories from symbolic links that a store lists as directories. Removing or moving a tree must not
//! follow links.

use crate::dir_nature::{DirNature, OwnDirs};
use crate::error::{Error, ErrorKind};
use crate::key::Key;
use crate::meta::Meta;
use crate::store::{Attributes, Kind, Store, TriedDir};
use std::collections::HashMap;

/// Asks `store` about the directories in `dir`. If it cannot tell, they are unknown.
///
/// # Errors
/// Temporary ones.
pub async fn own_dirs(store: &dyn Store, dir: &Key) -> Result<OwnDirs, Error> {
    match store.own_dirs(dir).await {
        Err(error) if error.kind() == ErrorKind::Passing => Err(error),
        Err(_) => Ok(OwnDirs::all(DirNature::Unknown)),
        told => told,
    }
}

/// Directories that the user named. Several in one directory need one question.
#[derive(Debug, Default)]
pub struct NamedDirs {
    asked: Option<(Key, OwnDirs)>,
}

impl NamedDirs {
    /// What `key` is, which the store reports as a directory when asked for it alone.
    ///
    /// # Errors
    /// The store cannot tell now.
    pub async fn is(&mut self, store: &dyn Store, key: &Key) -> Result<DirNature, Error> {
        if key.is_root() {
            return Ok(DirNature::Yes);
        }
        if store.tells_links() {
            let is_link = store.stat_link(key).await?.kind == Kind::Link;
            return Ok(if is_link { DirNature::Link } else { DirNature::Yes });
        }
        let dir = key.parent();
        if !matches!(&self.asked, Some((asked, _)) if *asked == dir) {
            self.asked = Some((dir.clone(), Self::ask(store, &dir).await?));
        }
        Ok(self.asked.as_ref().map_or(DirNature::Unknown, |(_, dirs)| dirs.is(key.name())))
    }

    async fn ask(store: &dyn Store, dir: &Key) -> Result<OwnDirs, Error> {
        let told = own_dirs(store, dir).await?;
        if told.others() != DirNature::Yes {
            return Ok(told);
        }
        // Listings distinguish links, while the metadata of a single name are those of the target.
        let mut dirs = OwnDirs::all(DirNature::Unknown);
        let mut listing = match store.list_all(dir).await {
            Err(error) if error.kind() != ErrorKind::Passing => return Ok(dirs),
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
                    Kind::Link => dirs.note(entry.name, DirNature::Link),
                    _ => {}
                }
            }
        }
    }
}

/// What to do about a directory that is to be removed with its content.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing: it is gone.
    Gone,
    /// It is a real directory, whose content must be removed first.
    Descend,
}

/// Removes `key`, listed as `own`, if that needs no look into it: a symbolic link, or an empty directory.
///
/// # Errors
/// It stays. A possible symbolic link stays with its content.
pub async fn begin_to_remove(store: &dyn Store, key: &Key, own: DirNature) -> Result<Next, Error> {
    match own {
        DirNature::Yes => return Ok(Next::Descend),
        DirNature::Link => return store.remove(key).await.map(|()| Next::Gone),
        // rmdir(2) refuses a link as no directory, and a directory as not empty.
        DirNature::Likely | DirNature::Unknown => match store.try_dir(key).await? {
            TriedDir::Removed => return Ok(Next::Gone),
            TriedDir::NotEmpty => return Ok(Next::Descend),
            TriedDir::NotDir => {
                return store.remove(key).await.map(|()| Next::Gone).map_err(|error| link_stays(store, key, &error));
            }
            TriedDir::Refused => {}
        },
    }
    // Some servers confirm any removal.
    match store.remove(key).await {
        Ok(()) if store.is_absent(key).await? => Ok(Next::Gone),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(error),
        _ => Err(Error::MayBeLink { name: format!("{}/{key}", store.name()) }),
    }
}

fn link_stays(store: &dyn Store, key: &Key, error: &Error) -> Error {
    let reason = format!("it is a symbolic link to a directory, and the server does not remove it ({error})");
    Error::Store { name: format!("{}/{key}", store.name()), reason, kind: error.kind() }
}

/// A listed directory that may be a symbolic link.
#[derive(Debug, Clone, Copy)]
struct Doubt {
    own: DirNature,
    /// Its permissions, if known.
    mode: Option<u32>,
}

/// Directories that are [`DirNature::Likely`] real ones, and what was found out about them.
#[derive(Debug, Default, Clone)]
pub struct Doubts(HashMap<Key, Doubt>);

impl Doubts {
    /// Records that `dir`, listed as `meta`, is uncertain.
    pub fn note(&mut self, dir: Key, meta: &Meta) {
        self.0.entry(dir).or_insert(Doubt { own: DirNature::Likely, mode: meta.mode });
    }

    /// The same directories without results.
    pub fn afresh(mut self) -> Self {
        self.0.values_mut().for_each(|doubt| doubt.own = DirNature::Likely);
        self
    }

    /// The result for `key`, which has content. `None` if it was certain, or nobody has asked.
    fn found(&self, key: &Key) -> Option<DirNature> {
        self.0.get(key).map(|doubt| doubt.own).filter(|own| *own != DirNature::Likely)
    }

    /// Whether `dir` is a symbolic link, or below one, by the results so far.
    pub fn is_behind_link(&self, dir: &Key) -> bool {
        let mut at = dir.clone();
        loop {
            if self.found(&at) == Some(DirNature::Link) {
                return true;
            }
            if at.is_root() {
                return false;
            }
            at = at.parent();
        }
    }

    /// Finds out whether the nonempty `dir` and its ancestors are real directories, from the top down. Returns the
    /// first that is not or may not be.
    ///
    /// # Errors
    /// The store does not answer; or a directory was emptied meanwhile and removed by the question. Then it was made
    /// again.
    pub async fn prove(&mut self, store: &dyn Store, dir: &Key) -> Result<Option<(Key, DirNature)>, Error> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let mut above = vec![dir.clone()];
        while let Some(last) = above.last().filter(|last| !last.is_root()) {
            above.push(last.parent());
        }
        for key in above.into_iter().rev() {
            let Some(doubt) = self.0.get_mut(&key) else { continue };
            if doubt.own == DirNature::Likely {
                doubt.own = match store.try_dir(&key).await? {
                    TriedDir::NotEmpty => DirNature::Yes,
                    TriedDir::NotDir => DirNature::Link,
                    // A refusal for another reason proves nothing.
                    TriedDir::Refused => DirNature::Unknown,
                    TriedDir::Removed => return Err(make_again(store, &key, doubt.mode).await),
                };
            }
            if doubt.own != DirNature::Yes {
                return Ok(Some((key, doubt.own)));
            }
        }
        Ok(None)
    }
}

/// Makes `key` again, which the question removed because it was empty, and reports that.
async fn make_again(store: &dyn Store, key: &Key, mode: Option<u32>) -> Error {
    let made = store.make_dir(key).await;
    let attributes = Attributes { mode, ..Attributes::default() };
    let again = match &made {
        Ok(()) if mode.is_some() && store.set(key, attributes).await.is_ok() => "it was made again".to_owned(),
        Ok(()) => "it was made again, with the permissions that the server gives".to_owned(),
        Err(error) => format!("it could not be made again ({error})"),
    };
    let reason = format!(
        "somebody emptied it meanwhile, so that the question whether it is a symbolic link (RMD) removed it; {again}"
    );
    Error::Store { name: format!("{}/{key}", store.name()), reason, kind: ErrorKind::Other }
}
