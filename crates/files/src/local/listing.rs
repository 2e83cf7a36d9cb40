//! Listings of local directories.

use super::{Local, meta_of};
use crate::disk::{Entries, Linux};
use crate::draft::is_ours;
use crate::error::Error;
use crate::key::Key;
use crate::store::{Entry, Fallible, Listing};
use std::fmt;

/// Entries that are read at a time.
const PAGE: usize = 1024;

/// A listing.
pub(super) struct LocalListing {
    store: Local,
    key: Key,
    /// `None` while they are being read, and after a dropped read.
    entries: Option<Entries>,
    /// Whether drafts are included.
    drafts: bool,
}

impl LocalListing {
    /// Lists the directory `key` of `store`.
    pub(super) async fn of(store: &Local, key: &Key, drafts: bool) -> Result<Box<dyn Listing>, Error> {
        let entries = store.call(key, "list", Linux::entries).await?;
        Ok(Box::new(Self { store: store.clone(), key: key.clone(), entries: Some(entries), drafts }))
    }
}

impl Listing for LocalListing {
    fn more(&mut self) -> Fallible<'_, Vec<Entry>> {
        Box::pin(async move {
            let Some(mut entries) = self.entries.take() else {
                return Err(Error::Unsupported {
                    name: self.store.label(&self.key),
                    what: "listing after it was given up",
                });
            };
            let drafts = self.drafts;
            let read = self.store.call(&self.key, "list", move |_, _| {
                let mut page = Vec::new();
                while page.len() < PAGE {
                    let Some(entry) = entries.next() else { break };
                    let (name, stat) = entry?;
                    if drafts || !is_ours(&name) {
                        page.push(Entry { name, meta: meta_of(&stat) });
                    }
                }
                Ok((page, entries))
            });
            let (page, entries) = read.await?;
            self.entries = Some(entries);
            Ok(page)
        })
    }
}

impl fmt::Debug for LocalListing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LocalListing").field(&self.key).finish()
    }
}
