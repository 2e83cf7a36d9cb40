//! Drafts that transfers have left behind: finding them below a directory, and removing them.
//!
//! A draft and its journals are one thing: they are as old as the youngest of them, and go together. Whether a transfer is writing it is
//! seen by its lock where the store is of this machine ([`Store::discard`]), and otherwise only by its age.

use crate::draft::{draft_beside, is_draft};
use crate::error::{Error, Sort};
use crate::key::Key;
use crate::store::{Kind, Meta, Store, Time};
use std::collections::BTreeMap;

/// What is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cleaning {
    /// Only drafts that were last modified before this; those of any age if there is none.
    pub before: Option<Time>,
    /// Whether they are removed, or only found.
    pub remove: bool,
}

/// A name that a draft or one of its journals has.
#[derive(Debug, Clone, Copy)]
pub struct Found<'a> {
    /// Where it is.
    pub key: &'a Key,
    /// What was seen of it.
    pub meta: &'a Meta,
    /// What became of it.
    pub fate: Fate,
}

/// What became of a draft.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It would be removed.
    Found,
    /// It is removed.
    Removed,
    /// A transfer is writing it, or has changed it lately.
    Used,
    /// It is younger than those that are removed.
    Young,
    /// The store does not say when it was modified, so that its age is not known.
    Undated,
}

impl Cleaning {
    /// Finds, and removes, the drafts in the directory `top` and in all below it, and `told` hears of each and of what fails. Symbolic
    /// links are not followed.
    pub async fn run(self, store: &dyn Store, top: &Key, told: &mut (dyn FnMut(Result<Found<'_>, Error>) + Send)) {
        let mut dirs = vec![top.clone()];
        while let Some(dir) = dirs.pop() {
            let mut drafts = BTreeMap::new();
            match drafts_in(store, &dir, &mut drafts).await {
                Ok(below) => dirs.extend(below),
                // It was removed meanwhile.
                Err(error) if error.sort() == Sort::NotFound && dir != *top => {}
                // What was listed so far may not be all that there is of a draft.
                Err(error) => {
                    told(Err(error));
                    continue;
                }
            }
            for names in drafts.values() {
                self.clean(store, names, told).await;
            }
        }
    }

    /// Removes one draft and its journals, if that is to be done.
    async fn clean(
        self,
        store: &dyn Store,
        names: &[(Key, Meta)],
        told: &mut (dyn FnMut(Result<Found<'_>, Error>) + Send),
    ) {
        let mut fate = self.fate(names);
        for (key, meta) in names {
            if fate == Fate::Removed {
                match store.discard(key, self.before).await {
                    Ok(()) => {}
                    // Its transfer has just ended.
                    Err(error) if error.sort() == Sort::NotFound => continue,
                    // What follows is of the same draft.
                    Err(Error::Busy { .. }) => fate = Fate::Used,
                    Err(error) => {
                        told(Err(error));
                        continue;
                    }
                }
            }
            told(Ok(Found { key, meta, fate }));
        }
    }

    /// What is to become of a draft.
    fn fate(self, names: &[(Key, Meta)]) -> Fate {
        if let Some(before) = self.before {
            if names.iter().any(|(_, meta)| meta.modified.is_none()) {
                return Fate::Undated;
            }
            if names.iter().any(|(_, meta)| meta.modified > Some(before)) {
                return Fate::Young;
            }
        }
        if self.remove { Fate::Removed } else { Fate::Found }
    }
}

/// The drafts in `dir` with their journals, each by its own name, into `drafts`; and the directories in it.
async fn drafts_in(
    store: &dyn Store,
    dir: &Key,
    drafts: &mut BTreeMap<Key, Vec<(Key, Meta)>>,
) -> Result<Vec<Key>, Error> {
    let (mut listing, mut below) = (store.list_all(dir).await?, Vec::new());
    loop {
        let page = listing.more().await?;
        if page.is_empty() {
            break;
        }
        for entry in page {
            // What cannot be a name is no draft's, and leads nowhere.
            let Ok(key) = dir.join(&entry.name) else { continue };
            match entry.meta.kind {
                Kind::Dir => below.push(key),
                Kind::File | Kind::Link if is_draft(&entry.name) => {
                    let draft = draft_beside(&key).unwrap_or_else(|| key.clone());
                    drafts.entry(draft).or_default().push((key, entry.meta));
                }
                _ => {}
            }
        }
    }
    // The draft itself comes first, so that its lock is asked for before anything goes.
    drafts.values_mut().for_each(|names| names.sort_by(|(a, _), (b, _)| a.cmp(b)));
    Ok(below)
}
