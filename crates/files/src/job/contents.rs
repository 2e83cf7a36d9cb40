//! Directories of a destination, each listed once.

use crate::error::Error;
use crate::key::Key;
use crate::store::{Listing, Meta, Store};
use std::collections::HashMap;

/// Most entries of a directory that are kept: some hundred megabytes.
const MOST: usize = 1_000_000;

/// The entries of a directory by name.
pub(super) type Contents = HashMap<Vec<u8>, Meta>;

/// Lists a directory.
pub(super) async fn contents(store: &dyn Store, dir: &Key) -> Result<Contents, Error> {
    let listing = store.list(dir).await?;
    listed(store, dir, listing).await
}

/// Reads all of `listing` of `dir`.
pub(super) async fn listed(store: &dyn Store, dir: &Key, mut listing: Box<dyn Listing>) -> Result<Contents, Error> {
    let mut contents = Contents::new();
    loop {
        let entries = listing.more().await?;
        if entries.is_empty() {
            return Ok(contents);
        }
        contents.extend(entries.into_iter().map(|entry| (entry.name, entry.meta)));
        if contents.len() > MOST {
            let name = format!("{}/{dir}", store.name());
            return Err(Error::Limit {
                name,
                what: "the entries of a directory that are kept in mind",
                limit: MOST as u64,
            });
        }
    }
}
