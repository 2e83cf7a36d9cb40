//! A walk through a tree, one entry at a time.

use super::Filter;
use crate::error::Error;
use crate::key::Key;
use crate::store::{Entry, Kind, Listing, Meta, Store};
use std::sync::Arc;
use std::vec;

/// How deep trees may be. Paths have fewer components before they are too long for the system, unless they are made to annoy.
const MAX_DEPTH: usize = 512;

/// What a walk comes by. Keys are counted from the top of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// A directory, before what is in it.
    Dir(Key, Meta),
    /// An object, itself or where a symbolic link leads.
    File(Key, Meta),
    /// What cannot be carried: a socket, a link to a directory or to nowhere.
    Other(Key, Kind),
}

/// A walk through a tree. Directories are read as they are come to, some entries at a time; symbolic links to files are
/// followed as far as the store allows, and those to directories are not, so that a walk ends.
#[derive(Debug)]
pub struct Walk {
    store: Arc<dyn Store>,
    top: Key,
    filter: Arc<Filter>,
    /// Directories that are being read, the deepest last.
    open: Vec<Level>,
    /// One that is to be read next.
    next: Option<Key>,
}

#[derive(Debug)]
struct Level {
    key: Key,
    listing: Box<dyn Listing>,
    page: vec::IntoIter<Entry>,
}

impl Walk {
    /// A walk through the directory `top`, which itself is not given, by way of what `filter` takes.
    pub fn new(store: Arc<dyn Store>, top: Key, filter: Arc<Filter>) -> Self {
        Self { store, top, filter, open: Vec::new(), next: Some(Key::ROOT) }
    }

    /// What comes next; none at the end. After an error the walk goes on past what it was about.
    pub async fn next(&mut self) -> Option<Result<Found, Error>> {
        loop {
            if let Some(key) = self.next.take()
                && let Err(error) = self.enter(key).await
            {
                return Some(Err(error));
            }
            let level = self.open.last_mut()?;
            let Some(entry) = level.page.next() else {
                match level.listing.more().await {
                    Ok(page) if page.is_empty() => drop(self.open.pop()),
                    Ok(page) => level.page = page.into_iter(),
                    Err(error) => {
                        self.open.pop();
                        return Some(Err(error));
                    }
                }
                continue;
            };
            match level.key.join(&entry.name) {
                Ok(key) => {
                    if let Some(found) = self.look(key, entry.meta).await {
                        return Some(Ok(found));
                    }
                }
                // A far store said it, and nothing here can have such a name.
                Err(error) => {
                    let (name, reason) = (format!("{}/{}", self.store.name(), self.top), error.to_string());
                    return Some(Err(Error::Store { name, reason, sort: crate::Sort::Request }));
                }
            }
        }
    }

    async fn enter(&mut self, key: Key) -> Result<(), Error> {
        let full = self.full(&key)?;
        if self.open.len() >= MAX_DEPTH {
            let name = format!("{}/{full}", self.store.name());
            return Err(Error::Limit { name, what: "the depth of the tree", limit: MAX_DEPTH as u64 });
        }
        let listing = self.store.list(&full).await?;
        self.open.push(Level { key, listing, page: Vec::new().into_iter() });
        Ok(())
    }

    async fn look(&mut self, key: Key, mut meta: Meta) -> Option<Found> {
        if !self.filter.takes(&key, meta.kind == Kind::Dir) {
            return None;
        }
        if meta.kind == Kind::Link {
            let full = self.full(&key).ok()?;
            match self.store.stat(&full).await {
                Ok(target) if target.kind == Kind::File => meta = target,
                _ => return Some(Found::Other(key, Kind::Link)),
            }
        }
        Some(match meta.kind {
            Kind::Dir => {
                self.next = Some(key.clone());
                Found::Dir(key, meta)
            }
            Kind::File => Found::File(key, meta),
            kind => Found::Other(key, kind),
        })
    }

    fn full(&self, key: &Key) -> Result<Key, Error> {
        let error = |error: crate::key::KeyError| Error::Store {
            name: self.store.name(),
            reason: error.to_string(),
            sort: crate::Sort::Request,
        };
        self.top.beneath(key).map_err(error)
    }
}
