//! Drafts that transfers have left behind: finding them below a directory, and removing them.
//!
//! A draft and its journals are one thing: they are as old as the youngest of them, and go together. Whether a transfer is writing it is
//! seen by its lock where the store is of this machine ([`Store::discard`]), and otherwise only by its age. Hidden directories in which a
//! client tries whether a server keeps a name go with what is tried in them, which is empty.

use crate::draft::{draft_beside, is_draft, moved_from};
use crate::error::{Error, Sort};
use crate::key::Key;
use crate::links::{Doubts, own_dirs};
use crate::own::{Own, OwnDirs};
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
    /// It is no draft, but a file that a move was looking at when it was cut, and stays ([`moved_from`] tells its name).
    Aside,
    /// The store does not say when it was modified, so that its age is not known.
    Undated,
}

impl Cleaning {
    /// Finds, and removes, the drafts in the directory `top` and in all below it, and `told` hears of each and of what fails. Symbolic
    /// links below `top` are not followed.
    pub async fn run(self, store: &dyn Store, top: &Key, told: &mut (dyn FnMut(Result<Found<'_>, Error>) + Send)) {
        let (mut dirs, mut doubts) = (vec![top.clone()], Doubts::default());
        while let Some(dir) = dirs.pop() {
            let mut drafts = BTreeMap::new();
            match drafts_in(store, &dir, &mut drafts).await {
                Ok(below) if below.is_empty() => {}
                Ok(below) => match own_dirs(store, &dir).await {
                    Ok(own) => dirs.extend(own_among(store, below, &own, &mut doubts, told)),
                    Err(error) => {
                        let reason = "the directories in it may be symbolic links, and were not looked into";
                        told(Err(Error::Store {
                            name: format!("{}/{dir}", store.name()),
                            reason: format!("{reason}: {error}"),
                            sort: error.sort(),
                        }));
                    }
                },
                // It was removed meanwhile.
                Err(error) if error.sort() == Sort::NotFound && dir != *top => {}
                // What was listed so far may not be all that there is of a draft.
                Err(error) => {
                    told(Err(error));
                    continue;
                }
            }
            if self.remove && !drafts.is_empty() {
                match doubts.is_behind(store, &dir).await {
                    Ok(false) => {}
                    Ok(true) => continue,
                    Err(error) => {
                        told(Err(error));
                        continue;
                    }
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
                let removed = match meta.kind {
                    Kind::Dir => remove_trial(store, key).await,
                    _ => store.discard(key, self.before).await,
                };
                match removed {
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
        if names.iter().any(|(key, _)| moved_from(key.name()).is_some()) {
            return Fate::Aside;
        }
        if self.remove { Fate::Removed } else { Fate::Found }
    }
}

/// Those of `below` that are directories themselves, as far as that is told.
fn own_among(
    store: &dyn Store,
    below: Vec<Key>,
    own: &OwnDirs,
    doubts: &mut Doubts,
    told: &mut (dyn FnMut(Result<Found<'_>, Error>) + Send),
) -> Vec<Key> {
    let mut found = Vec::new();
    for key in below {
        match own.is(key.name()) {
            Own::Yes => found.push(key),
            Own::Likely => {
                doubts.note(key.clone());
                found.push(key);
            }
            Own::Link => {}
            Own::Unknown => told(Err(Error::MayBeLink { name: format!("{}/{key}", store.name()) })),
        }
    }
    found
}

/// Whether a directory of this name is one in which names were tried.
fn is_trial(name: &[u8]) -> bool {
    name.starts_with(b".names.") && is_draft(name)
}

/// Removes such a directory, if nothing is in it but empty ones.
async fn remove_trial(store: &dyn Store, dir: &Key) -> Result<(), Error> {
    let (mut listing, mut tried) = (store.list_all(dir).await?, Vec::new());
    loop {
        let page = listing.more().await?;
        if page.is_empty() {
            break;
        }
        let dirs = page.iter().filter(|entry| entry.meta.kind == Kind::Dir);
        tried.extend(dirs.filter_map(|entry| dir.join(&entry.name).ok()));
    }
    for name in &tried {
        store.remove_dir(name).await?;
    }
    store.remove_dir(dir).await
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
                Kind::Dir if is_trial(&entry.name) => drafts.entry(key.clone()).or_default().push((key, entry.meta)),
                Kind::Dir => below.push(key),
                Kind::File | Kind::Link if is_draft(&entry.name) => {
                    let draft = draft_beside(&key).unwrap_or_else(|| key.clone());
                    drafts.entry(draft).or_default().push((key, entry.meta));
                }
                Kind::File if moved_from(&entry.name).is_some() => {
                    drafts.entry(key.clone()).or_default().push((key, entry.meta));
                }
                _ => {}
            }
        }
    }
    // The draft itself comes first, so that its lock is asked for before anything goes.
    drafts.values_mut().for_each(|names| names.sort_by(|(a, _), (b, _)| a.cmp(b)));
    Ok(below)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Links;
    use crate::local::Local;
    use std::fs;

    #[tokio::test]
    async fn directories_in_which_names_were_tried_go_and_no_others() {
        let dir = tempfile::tempdir().unwrap();
        let trial = ".names.0123456789abcdef.phoebus-part";
        let make = |path: String| fs::create_dir_all(dir.path().join(path)).unwrap();
        make(format!("a/{trial}/caf\u{e9}"));
        make(format!("b/{trial}"));
        make(format!("full/{trial}/x"));
        fs::write(dir.path().join(format!("full/{trial}/x/kept")), "").unwrap();
        for other in [".names.phoebus-part", ".other.0123456789abcdef.phoebus-part", "names"] {
            make(format!("c/{other}"));
        }
        let store = Local::new(dir.path(), Links::Beneath).unwrap();
        let clean = async |before, remove| {
            let (mut fates, mut failed) = (Vec::new(), 0);
            let mut told = |found: Result<Found<'_>, Error>| match found {
                Ok(found) => fates.push((found.key.to_string(), found.fate)),
                Err(_) => failed += 1,
            };
            Cleaning { before, remove }.run(&store, &Key::ROOT, &mut told).await;
            fates.sort_by(|(a, _), (b, _)| a.cmp(b));
            (fates, failed)
        };
        let all = |fate| ["a", "b", "full"].map(|dir| (format!("{dir}/{trial}"), fate));
        let before = Some(Time { seconds: 0, nanos: 0 });
        assert_eq!(clean(before, true).await, (all(Fate::Young).into(), 0));
        assert_eq!(clean(None, false).await, (all(Fate::Found).into(), 0));
        // What somebody else has put there stays, and is told of.
        assert_eq!(clean(None, true).await, (all(Fate::Removed)[..2].to_vec(), 1));
        let left = |path: &str| fs::read_dir(dir.path().join(path)).unwrap().count();
        assert_eq!((left("a"), left("b"), left("c")), (0, 0, 3));
        assert!(dir.path().join(format!("full/{trial}/x/kept")).exists());
    }
}
