//! Listing directories.

use crate::place::shown;
use phoebus_files::key::Key;
use phoebus_files::store::{Entry, Listing, Store};
use phoebus_files::{Error, ErrorKind};

/// Returns all entries of the directory `dir`, sorted by name. With `drafts`, drafts of interrupted transfers are among
/// them.
///
/// # Errors
/// It cannot be listed.
pub async fn entries(store: &dyn Store, dir: &Key, drafts: bool) -> Result<Vec<Entry>, Error> {
    Entries::of(store, dir, drafts, usize::MAX).await?.next().await
}

/// The entries of a directory, read in batches.
#[derive(Debug)]
pub struct Entries {
    listing: Box<dyn Listing>,
    most: usize,
    /// Whether there are no more.
    ended: bool,
}

impl Entries {
    /// Begins to list `dir`. A batch is complete once it has `most` entries or more. With `drafts`, drafts of
    /// interrupted transfers are among them.
    ///
    /// # Errors
    /// It cannot be listed.
    pub async fn of(store: &dyn Store, dir: &Key, drafts: bool, most: usize) -> Result<Self, Error> {
        let listing = if drafts { store.list_all(dir) } else { store.list(dir) };
        Ok(Self { listing: listing.await?, most, ended: false })
    }

    /// Returns the next batch, sorted by name; an empty one at the end.
    ///
    /// # Errors
    /// The listing was interrupted.
    pub async fn next(&mut self) -> Result<Vec<Entry>, Error> {
        let mut batch = Vec::new();
        while !self.ended && batch.len() < self.most {
            let page = self.listing.more().await?;
            self.ended = page.is_empty();
            batch.extend(page);
        }
        batch.sort_by(|a: &Entry, b| a.name.cmp(&b.name));
        Ok(batch)
    }
}

/// Returns the key of an entry of `dir`.
///
/// # Errors
/// The server listed something that is no valid name.
pub fn join(store: &dyn Store, dir: &Key, entry: &Entry) -> Result<Key, Error> {
    dir.join(&entry.name).map_err(|error| Error::Store {
        name: shown(store, dir),
        reason: error.to_string(),
        kind: ErrorKind::Request,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use phoebus_files::store::{Fallible, Kind, Meta};

    /// Pages of three names, without end.
    #[derive(Debug)]
    struct Endless(u32);

    impl Listing for Endless {
        fn more(&mut self) -> Fallible<'_, Vec<Entry>> {
            let meta = Meta { kind: Kind::File, size: None, modified: None, mode: None, sparse: false, identity: None };
            let page = (0..3).map(|_| {
                self.0 -= 1;
                Entry { name: self.0.to_string().into_bytes(), meta }
            });
            let page = page.collect();
            Box::pin(async { Ok(page) })
        }
    }

    #[tokio::test]
    async fn endless_listing_is_sorted_in_batches() {
        let mut entries = Entries { listing: Box::new(Endless(100)), most: 5, ended: false };
        for first in [94, 88] {
            let names: Vec<_> = entries.next().await.unwrap().into_iter().map(|entry| entry.name).collect();
            let expected: Vec<_> = (first..first + 6).map(|n: u32| n.to_string().into_bytes()).collect();
            assert_eq!(names, expected);
        }
    }
}
