//! Finds and removes drafts that transfers have left below a directory.
//!
//! A draft and its journals are one: their age is that of the youngest, and they go together. A local draft in use is
//! recognized by its lock ([`Store::discard`]), others only by their age. Hidden directories in which a client tests
//! names are removed with their empty content.

use crate::dir_nature::DirNature;
use crate::draft::{draft_beside, is_draft, moved_from};
use crate::error::{Error, ErrorKind};
use crate::key::Key;
use crate::links::{Doubts, Next, begin_to_remove, own_dirs};
use crate::store::{Kind, Meta, Store, Time};
use std::collections::BTreeMap;

/// What is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cleaning {
    /// Only drafts last modified before this; `None`: of any age.
    pub before: Option<Time>,
    /// Whether to remove them, or only report them.
    pub remove: bool,
}

/// A draft or one of its journals.
#[derive(Debug, Clone, Copy)]
pub struct Found<'a> {
    /// Its path.
    pub key: &'a Key,
    /// Its metadata.
    pub meta: &'a Meta,
    /// The result.
    pub fate: Fate,
}

/// The result for a draft.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It would be removed.
    Found,
    /// It is removed.
    Removed,
    /// A transfer is writing it, or has changed it recently.
    Used,
    /// It is too young.
    Young,
    /// It is no draft, but a file that an interrupted move has put aside ([`moved_from`] has its name). It stays.
    Aside,
    /// Its age is unknown, because the store does not tell its time of modification.
    Undated,
}

/// Depth of possible links up to which the store is asked about each. Links in a circle would have no end.
const UNPROVEN: usize = 8;

/// Most directories behind possible links, if the store is not asked.
const MOST_UNPROVEN: usize = 10_000;

/// A directory to look into.
struct ToLookAt {
    key: Key,
    /// Number of possible links among it and its ancestors.
    unproven: usize,
}

type Reporter<'a> = dyn FnMut(Result<Found<'_>, Error>) + Send + 'a;

impl Cleaning {
    /// Finds or removes the drafts in `top` and below, and reports each, and each failure, to `told`. Symbolic links
    /// below `top` are not followed, except hidden ones of a server if nothing is removed.
    pub async fn run(self, store: &dyn Store, top: &Key, told: &mut Reporter<'_>) {
        let (mut open, mut doubts) = (vec![ToLookAt { key: top.clone(), unproven: 0 }], Doubts::default());
        let mut listed_unproven = 0;
        while let Some(mut dir) = open.pop() {
            if doubts.is_behind_link(&dir.key) {
                continue;
            }
            listed_unproven += usize::from(dir.unproven > 0 && !self.remove);
            if listed_unproven > MOST_UNPROVEN {
                let reason = format!(
                    "more than {MOST_UNPROVEN} directories may be behind symbolic links, about which a dry run does not ask; \
                     the others were not looked at (--trust-listings takes them for directories)"
                );
                let name = format!("{}/{}", store.name(), dir.key);
                return told(Err(Error::Store { name, reason, kind: ErrorKind::Request }));
            }
            match Contents::of(store, &dir.key).await {
                Ok(contents) => {
                    // An empty directory is not asked about, because the question removes it.
                    if dir.unproven > UNPROVEN && self.remove && !contents.dirs.is_empty() {
                        match is_itself(store, &dir.key, &mut doubts).await {
                            Ok(true) => dir.unproven = 0,
                            Ok(false) => continue,
                            Err(error) => {
                                told(Err(error));
                                continue;
                            }
                        }
                    }
                    self.look_at(store, (&dir, contents), (&mut open, &mut doubts), told).await;
                }
                // It was removed meanwhile.
                Err(error) if error.kind() == ErrorKind::NotFound && dir.key != *top => {}
                // The listing may be incomplete.
                Err(error) => told(Err(error)),
            }
        }
    }

    /// Cleans the directory `dir`, and queues its subdirectories.
    async fn look_at(
        self,
        store: &dyn Store,
        (dir, contents): (&ToLookAt, Contents),
        (open, doubts): (&mut Vec<ToLookAt>, &mut Doubts),
        told: &mut Reporter<'_>,
    ) {
        let goes = contents.drafts.values().any(|names| self.fate(names) == Fate::Removed);
        if goes {
            match is_itself(store, &dir.key, doubts).await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => return told(Err(error)),
            }
        }
        for names in contents.drafts.values() {
            self.clean(store, names, DirNature::Yes, told).await;
        }
        if contents.dirs.is_empty() {
            return;
        }
        let dirs = match own_dirs(store, &dir.key).await {
            Ok(dirs) => dirs,
            Err(error) => {
                let reason = "the directories in it may be symbolic links, and were not looked into";
                let (name, reason) = (format!("{}/{}", store.name(), dir.key), format!("{reason}: {error}"));
                return told(Err(Error::Store { name, reason, kind: error.kind() }));
            }
        };
        let unproven = if goes { 0 } else { dir.unproven };
        for (key, meta) in contents.dirs {
            let own = dirs.is(key.name());
            match own {
                DirNature::Link => {}
                DirNature::Unknown => told(Err(Error::MayBeLink { name: format!("{}/{key}", store.name()) })),
                _ if is_trial(key.name()) => match self.fate(&[(key.clone(), meta)]) {
                    Fate::Removed => match is_itself(store, &dir.key, doubts).await {
                        Ok(true) => self.clean(store, &[(key, meta)], own, told).await,
                        Ok(false) => return,
                        Err(error) => return told(Err(error)),
                    },
                    _ => self.clean(store, &[(key, meta)], own, told).await,
                },
                DirNature::Yes => open.push(ToLookAt { key, unproven }),
                DirNature::Likely => {
                    doubts.note(key.clone(), &meta);
                    open.push(ToLookAt { key, unproven: unproven + 1 });
                }
            }
        }
    }

    /// Removes a draft and its journals, or the directory of a test of names (`own`).
    async fn clean(self, store: &dyn Store, names: &[(Key, Meta)], own: DirNature, told: &mut Reporter<'_>) {
        let mut fate = self.fate(names);
        for (key, meta) in names {
            if fate == Fate::Removed {
                let removed = match meta.kind {
                    Kind::Dir => remove_trial(store, key, own).await,
                    _ => store.discard(key, self.before).await,
                };
                match removed {
                    Ok(()) => {}
                    // Its transfer has just ended.
                    Err(error) if error.kind() == ErrorKind::NotFound => continue,
                    // The rest belongs to the same draft.
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

    /// Decides about a draft.
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

/// Whether the nonempty `dir` and its ancestors are real directories, not links.
///
/// # Errors
/// The store does not tell.
async fn is_itself(store: &dyn Store, dir: &Key, doubts: &mut Doubts) -> Result<bool, Error> {
    match doubts.prove(store, dir).await? {
        None => Ok(true),
        Some((_, DirNature::Link)) => Ok(false),
        Some((unproven, _)) => Err(Error::MayBeLink { name: format!("{}/{unproven}", store.name()) }),
    }
}

/// Whether a name is that of a directory for tests of names.
fn is_trial(name: &[u8]) -> bool {
    name.starts_with(b".names.") && is_draft(name)
}

/// Removes such a directory (`own`) if it has only empty ones. Of a link, only the link is removed.
async fn remove_trial(store: &dyn Store, dir: &Key, own: DirNature) -> Result<(), Error> {
    if begin_to_remove(store, dir, own).await? == Next::Gone {
        return Ok(());
    }
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

/// The interesting entries of a directory.
#[derive(Default)]
struct Contents {
    /// Drafts with their journals, by name.
    drafts: BTreeMap<Key, Vec<(Key, Meta)>>,
    /// Entries listed as directories.
    dirs: Vec<(Key, Meta)>,
}

impl Contents {
    async fn of(store: &dyn Store, dir: &Key) -> Result<Self, Error> {
        let (mut listing, mut found) = (store.list_all(dir).await?, Self::default());
        loop {
            let page = listing.more().await?;
            if page.is_empty() {
                break;
            }
            for entry in page {
                // An invalid name belongs to no draft.
                let Ok(key) = dir.join(&entry.name) else { continue };
                match entry.meta.kind {
                    Kind::Dir => found.dirs.push((key, entry.meta)),
                    Kind::File | Kind::Link if is_draft(&entry.name) => {
                        let draft = draft_beside(&key).unwrap_or_else(|| key.clone());
                        found.drafts.entry(draft).or_default().push((key, entry.meta));
                    }
                    Kind::File if moved_from(&entry.name).is_some() => {
                        found.drafts.entry(key.clone()).or_default().push((key, entry.meta));
                    }
                    _ => {}
                }
            }
        }
        // The draft itself comes first, so that its lock is tested before anything is removed.
        found.drafts.values_mut().for_each(|names| names.sort_by(|(a, _), (b, _)| a.cmp(b)));
        Ok(found)
    }
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
        // Files of others stay, and are reported.
        assert_eq!(clean(None, true).await, (all(Fate::Removed)[..2].to_vec(), 1));
        let left = |path: &str| fs::read_dir(dir.path().join(path)).unwrap().count();
        assert_eq!((left("a"), left("b"), left("c")), (0, 0, 3));
        assert!(dir.path().join(format!("full/{trial}/x/kept")).exists());
    }
}
