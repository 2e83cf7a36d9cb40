//! Removes from the destination what the source does not have (`rsync --delete`).
//!
//! - Nothing is removed unless the whole job succeeded: a failure may hide further sources.
//! - Everything to remove is found first. If it is more than the limit, nothing is removed.
//! - Directories are compared by complete listings; an incomplete one ends the deletion. Listings may omit names
//!   (servers that hide names with a dot), so the source is also asked for each name, and must say that it does not
//!   exist.
//! - What filters leave out stays, and so do its ancestors.
//! - Drafts stay, except in a directory that is removed. There they are removed unless somebody is writing them, if the
//!   store can tell.
//! - Removal goes through the destination's directory, which no link leads out of ([`Store::confined`]).

use super::alike::folded;
use super::contents::{contents, listed};
use super::{AHEAD, Event, Run};
use crate::dir_nature::{DirNature, OwnDirs};
use crate::draft::{is_engines, is_ours};
use crate::error::{Error, ErrorKind};
use crate::key::{Key, KeyError};
use crate::links::{Doubts, Next, begin_to_remove, own_dirs};
use crate::spawned::Spawned;
use crate::store::{Kind, Meta, Store, Time};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use tokio::task::{JoinError, JoinSet};

/// What was to be removed, and the result.
type Removed = (Key, Result<(), Error>);

/// The kind of a name to remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Thing {
    /// A directory, as far as known.
    Dir(DirNature),
    /// Anything else.
    Leaf,
}

/// The names to remove from one directory of the destination: keys relative to it, the content of a directory before
/// it.
#[derive(Debug)]
struct Doomed {
    top: Key,
    things: Vec<(Key, Thing)>,
    /// Directories on both sides that may be links, from the root of the destination's store.
    doubts: Doubts,
}

/// The search in a tree of the destination.
struct Search<'a> {
    to: &'a Key,
    /// Most names to find.
    most: usize,
    things: Vec<(Key, Thing)>,
    /// Directories that may be links, from the root of the destination's store.
    doubts: Doubts,
    /// Directories of unknown nature, also from there.
    unproven: BTreeSet<Key>,
}

/// Names of the source that the destination has under another name: another case or Unicode normalization.
#[derive(Debug, Default)]
struct Otherwise {
    folded: HashSet<Vec<u8>>,
    /// Names that exist although the source's listing lacks them.
    found: Vec<(Vec<u8>, Meta)>,
    /// Most unknown names of the same kind that are reported.
    alike: HashMap<Likeness, usize>,
}

/// Attributes by which a name is recognized.
type Likeness = (Kind, Option<u64>, Option<Time>);

fn likeness(meta: &Meta) -> Likeness {
    (meta.kind, meta.size, meta.modified)
}

impl Otherwise {
    fn add(&mut self, name: &[u8], found: Option<Meta>) {
        self.folded.insert(folded(name));
        self.found.extend(found.map(|meta| (name.to_vec(), meta)));
    }

    /// Whether a listed name may be one of these.
    fn has(&self, name: &[u8], listed: &Meta) -> bool {
        // Many directories, and files without a time, have the same attributes. Then the name must fit too, unless one
        // such directory is missing and one is listed.
        let listed_alike = || self.alike.get(&likeness(listed)).copied().unwrap_or(1);
        let found_alike = || self.found.iter().filter(|(_, found)| likeness(found) == likeness(listed)).count();
        let says_much =
            listed.modified.is_some() && (listed.kind != Kind::Dir || (listed_alike() == 1 && found_alike() == 1));
        let may_be =
            |other: &[u8], found: &Meta| likeness(found) == likeness(listed) && (says_much || may_be_one(name, other));
        self.folded.contains(&folded(name)) || self.found.iter().any(|(other, found)| may_be(other, found))
    }
}

/// Whether a server may list `name` for `other`. Unicode normalization is not considered.
fn may_be_one(name: &[u8], other: &[u8]) -> bool {
    let (short, long) = (folded(name), folded(other));
    // As in PROGRA~1 for Program Files, and in a.txt;1 for a.txt.
    let is_form = name.contains(&b'~') || short.starts_with(&long) || long.starts_with(&short);
    is_form || !name.is_ascii() || !other.is_ascii() || super::look::may_be_one(name, other)
}

impl Run<'_> {
    /// Removes what the sources of the trees lack, if the job says so and was complete.
    pub(super) async fn delete(&mut self) {
        let Some(most) = self.job.delete else { return };
        if self.report.failed > 0 || self.report.stopped || self.job.how.stop.is_asked() {
            self.report.not_deleted = true;
            return;
        }
        let (mut all, mut left) = (Vec::new(), most);
        for (from, to) in std::mem::take(&mut self.trees) {
            let (things, doubts, unproven) = Default::default();
            let mut search = Search { to: &to, most: left, things, doubts, unproven };
            let found = self.find_doomed(&from, &mut search).await;
            let Search { things, doubts, unproven, .. } = search;
            match found {
                Ok(()) => {
                    left -= things.len().min(left);
                    for key in unproven {
                        let name = self.named(&key);
                        self.failed(key, Error::MayBeLink { name });
                    }
                    // Links may be put in their places before their turn.
                    all.push(Doomed { top: to, things, doubts: doubts.afresh() });
                }
                Err(error) => {
                    self.report.not_deleted = true;
                    return self.failed(to, error);
                }
            }
        }
        for doomed in all.into_iter().filter(|doomed| !doomed.things.is_empty()) {
            if let Err((key, error)) = self.remove(doomed).await {
                self.failed(key, error);
            }
        }
    }

    /// Finds what the destination has and `from` lacks, up to the limit, which is an error. Possible links are not
    /// entered.
    async fn find_doomed(&self, from: &Key, search: &mut Search<'_>) -> Result<(), Error> {
        let (source, dest, to) = (&self.job.source, &self.job.dest, search.to);
        let mut open = vec![Key::ROOT];
        while let Some(dir) = open.pop() {
            let there = match contents(&**dest, &self.at(to, &dir)?).await {
                // A dry run has not created the directory.
                Err(Error::NotFound { .. }) if self.job.dry_run => continue,
                there => there?,
            };
            let here = contents(&**source, &self.at(from, &dir)?).await?;
            let dirs = self.own_dirs(&self.at(to, &dir)?, &there).await?;
            let (mut unknown, mut unlisted) = (Vec::new(), Vec::new());
            for (name, meta) in &there {
                let key = dir.join(name).map_err(|error| self.wrong(&error))?;
                let is_dir = meta.kind == Kind::Dir;
                let own = dirs.is(name);
                match here.get(name) {
                    _ if !self.job.filter.takes(&key, is_dir) => {}
                    Some(source) if is_dir && source.kind == Kind::Dir => match own {
                        DirNature::Yes => open.push(key),
                        DirNature::Likely => {
                            search.doubts.note(self.at(to, &key)?, meta);
                            open.push(key);
                        }
                        // The copy went through the link, and its other content is not of the tree.
                        DirNature::Link => {}
                        DirNature::Unknown => drop(search.unproven.insert(self.at(to, &key)?)),
                    },
                    Some(_) => {}
                    None => unknown.push((key, *meta, own)),
                }
            }
            // If nothing could be removed, nothing needs to be asked.
            for (name, meta) in here.iter().filter(|(name, _)| !unknown.is_empty() && !there.contains_key(*name)) {
                let key = dir.join(name).map_err(|error| self.wrong(&error))?;
                if self.job.filter.takes(&key, meta.kind == Kind::Dir) {
                    unlisted.push(key);
                }
            }
            let mut otherwise = self.find_otherwise(to, unlisted).await?;
            for (_, meta, _) in &unknown {
                *otherwise.alike.entry(likeness(meta)).or_default() += 1;
            }
            unknown.retain(|(key, meta, _)| !otherwise.has(key.name(), meta));
            if unknown.is_empty() {
                continue;
            }
            // Content behind a link does not count. A dry run does not use the question that removes an empty
            // directory.
            if !self.job.dry_run {
                match search.doubts.prove(&**dest, &self.at(to, &dir)?).await? {
                    None => {}
                    Some((_, DirNature::Link)) => continue,
                    Some((unproven, _)) => {
                        search.unproven.insert(unproven);
                        continue;
                    }
                }
            }
            unknown.sort_by(|one, other| one.0.cmp(&other.0));
            for some in unknown.chunks(AHEAD) {
                let gone = self.are_gone(from, some).await?;
                for ((key, meta, own), _) in some.iter().zip(gone).filter(|(_, gone)| *gone) {
                    self.doom((key.clone(), *meta, *own), search).await?;
                }
            }
        }
        Ok(())
    }

    /// Which directories listed in `dir` are real directories, if there are any.
    async fn own_dirs(&self, dir: &Key, listed: &HashMap<Vec<u8>, Meta>) -> Result<OwnDirs, Error> {
        match listed.values().any(|meta| meta.kind == Kind::Dir) {
            true => own_dirs(&*self.job.dest, dir).await,
            false => Ok(OwnDirs::all(DirNature::Yes)),
        }
    }

    /// Which of these unlisted names exist under other names.
    async fn find_otherwise(&self, to: &Key, unlisted: Vec<Key>) -> Result<Otherwise, Error> {
        let mut otherwise = Otherwise::default();
        for some in unlisted.chunks(AHEAD) {
            let mut asked = Vec::new();
            for key in some {
                let (dest, at) = (self.job.dest.clone(), self.at(to, key)?);
                // Like listings, the question is about a link itself.
                asked.push(Spawned::new(async move { dest.stat_link(&at).await }));
            }
            for (key, answer) in some.iter().zip(asked) {
                let failed =
                    |error| Err(Error::io(self.job.dest.name(), "look at something of", std::io::Error::other(error)));
                let found = match answer.end().await.unwrap_or_else(failed) {
                    Ok(meta) => Some(meta),
                    // In a dry run, a name may belong to something that would only be created.
                    Err(Error::NotFound { .. }) if self.job.dry_run => continue,
                    Err(_) => None,
                };
                otherwise.add(key.name(), found);
            }
        }
        Ok(otherwise)
    }

    /// Whether the source says about each of these that it does not exist.
    async fn are_gone(&self, from: &Key, things: &[(Key, Meta, DirNature)]) -> Result<Vec<bool>, Error> {
        let mut asked = Vec::new();
        for (key, _, _) in things {
            let (source, key) = (self.job.source.clone(), self.at(from, key)?);
            asked.push(tokio::spawn(async move { source.is_absent(&key).await }));
        }
        let mut gone = Vec::new();
        for answer in asked {
            let failed =
                |error| Err(Error::io(self.job.source.name(), "look at something of", std::io::Error::other(error)));
            gone.push(answer.await.unwrap_or_else(failed)?);
        }
        Ok(gone)
    }

    /// Adds `top`, and before it, if it is a real directory, its content. What filters leave out stays, and so do its
    /// ancestors.
    async fn doom(&self, top: (Key, Meta, DirNature), search: &mut Search<'_>) -> Result<(), Error> {
        let to = search.to;
        // Parents precede children in `dirs`, and follow them in the list of removals.
        let (mut dirs, mut open, mut kept) = (Vec::new(), vec![top], Vec::<Key>::new());
        while let Some((key, meta, own)) = open.pop() {
            if meta.kind != Kind::Dir {
                search.things.push((key, Thing::Leaf));
            } else if let Some(there) = self.contents_of(&key, &meta, own, search).await? {
                let own_dirs = self.own_dirs(&self.at(to, &key)?, &there).await?;
                for (name, meta) in there {
                    let below = key.join(&name).map_err(|error| self.wrong(&error))?;
                    // Whether other engines' drafts are in use is unknown: they stay, and so does their directory.
                    if is_ours(&name) && !is_engines(&name) {
                        kept.push(below);
                        continue;
                    }
                    match self.job.filter.takes(&below, meta.kind == Kind::Dir) {
                        true => open.push((below, meta, own_dirs.is(&name))),
                        false => kept.push(below),
                    }
                }
                dirs.push((key, own));
            }
            if search.things.len() + dirs.len() > search.most {
                let reason = format!(
                    "it has more than {} files and directories that the source does not have; nothing was deleted \
                     (--max-delete)",
                    self.job.delete.unwrap_or(search.most)
                );
                return Err(Error::Store { name: self.named(to), reason, kind: ErrorKind::Request });
            }
        }
        let holds = |dir: &Key| kept.iter().any(|kept| kept.below(dir).is_some());
        let empty = dirs.into_iter().rev().filter(|(dir, _)| !holds(dir));
        search.things.extend(empty.map(|(dir, own)| (dir, Thing::Dir(own))));
        Ok(())
    }

    /// The entries of the directory `key`, listed as `own`. `None` if it is or may be a link, which is then removed
    /// itself. A dry run believes the listing instead of asking.
    async fn contents_of(
        &self,
        key: &Key,
        meta: &Meta,
        own: DirNature,
        search: &mut Search<'_>,
    ) -> Result<Option<HashMap<Vec<u8>, Meta>>, Error> {
        let mut own = own;
        if matches!(own, DirNature::Yes | DirNature::Likely) {
            let (dest, dir) = (&*self.job.dest, self.at(search.to, key)?);
            let listing = dest.list_all(&dir).await?;
            let there = listed(dest, &dir, listing).await?;
            if own == DirNature::Likely && !there.is_empty() && !self.job.dry_run {
                search.doubts.note(dir.clone(), meta);
                own = match search.doubts.prove(dest, &dir).await? {
                    None => DirNature::Yes,
                    Some((key, found)) if key == dir => found,
                    // The copy went through the link, and its other content is not of the tree.
                    Some((_, DirNature::Link)) => return Ok(None),
                    Some((unproven, _)) => {
                        search.unproven.insert(unproven);
                        return Ok(None);
                    }
                };
            }
            if matches!(own, DirNature::Yes | DirNature::Likely) {
                return Ok(Some(there));
            }
        }
        search.things.push((key.clone(), Thing::Dir(own)));
        Ok(None)
    }

    async fn remove(&mut self, doomed: Doomed) -> Result<(), (Key, Error)> {
        let job = self.job;
        let Doomed { top, things, mut doubts } = doomed;
        let confined = match job.dry_run {
            true => None,
            false => job.dest.confined(&top).await.map_err(|error| (top.clone(), error))?,
        };
        let (store, above) = match confined {
            Some(store) => (store, Key::ROOT),
            None => (job.dest.clone(), top.clone()),
        };
        let (mut going, mut said) = (JoinSet::new(), HashSet::new());
        for (below, thing) in things {
            // A directory is removed after its content. A draft and its journal share a lock.
            let alone = thing != Thing::Leaf || is_engines(below.name());
            while going.len() >= AHEAD || (alone && !going.is_empty()) {
                self.removed(going.join_next().await);
            }
            if job.how.stop.is_asked() {
                break;
            }
            let key = self.at(&top, &below).map_err(|error| (top.clone(), error))?;
            if job.dry_run {
                self.removed(Some(Ok((key, Ok(())))));
                continue;
            }
            let (store, place) = (store.clone(), self.at(&above, &below).map_err(|error| (top.clone(), error))?);
            match doubts.prove(&*store, &place.parent()).await {
                Ok(None) => {}
                // The copy went through the link, and its other content is not of the tree.
                Ok(Some((_, DirNature::Link))) => continue,
                Ok(Some((unproven, _))) => {
                    if said.insert(unproven.clone()) {
                        let name = format!("{}/{unproven}", store.name());
                        self.failed(key, Error::MayBeLink { name });
                    }
                    continue;
                }
                Err(error) => {
                    self.failed(key, error);
                    break;
                }
            }
            going.spawn(async move { (key, remove(store, place, thing).await) });
        }
        while let Some(removed) = going.join_next().await {
            self.removed(Some(removed));
        }
        if job.dry_run { Ok(()) } else { store.settle().await.map_err(|error| (top, error)) }
    }

    fn removed(&mut self, removed: Option<Result<Removed, JoinError>>) {
        match removed {
            None => {}
            Some(Ok((key, Ok(())))) => {
                self.report.deleted += 1;
                self.job.watcher.saw(&Event::Deleted { key: &key });
            }
            Some(Ok((key, Err(error)))) => self.failed(key, error),
            Some(Err(error)) => {
                let error = Error::io(self.job.dest.name(), "remove something of", std::io::Error::other(error));
                self.failed(Key::ROOT, error);
            }
        }
    }

    fn at(&self, top: &Key, below: &Key) -> Result<Key, Error> {
        top.beneath(below).map_err(|error| self.wrong(&error))
    }

    fn wrong(&self, error: &KeyError) -> Error {
        Error::Store { name: self.job.dest.name(), reason: error.to_string(), kind: ErrorKind::Request }
    }

    fn named(&self, key: &Key) -> String {
        let store = self.job.dest.name();
        format!("{}/{key}", store.strip_prefix("file://").unwrap_or(&store))
    }
}

/// Removes `key`. It is no failure if it is gone.
async fn remove(store: Arc<dyn Store>, key: Key, thing: Thing) -> Result<(), Error> {
    let removed = match thing {
        Thing::Dir(DirNature::Yes) => store.remove_dir(&key).await,
        // It may be a link. A nonempty directory stays.
        Thing::Dir(own) => match begin_to_remove(&*store, &key, own).await {
            Ok(Next::Descend) if own == DirNature::Unknown => {
                Err(Error::MayBeLink { name: format!("{}/{key}", store.name()) })
            }
            Ok(Next::Descend) => store.remove_dir(&key).await,
            removed => removed.map(drop),
        },
        Thing::Leaf if is_engines(key.name()) => store.discard(&key, None).await,
        Thing::Leaf => store.remove(&key).await,
    };
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_of_one_directory_implies_nothing_for_others() {
        let plain = |kind, seconds: Option<i64>| {
            let modified = seconds.map(|seconds| Time { seconds, nanos: 0 });
            Meta { kind, size: None, modified, mode: None, sparse: false, identity: None }
        };
        let (dir, old, known) = (plain(Kind::Dir, None), plain(Kind::File, None), plain(Kind::File, Some(7)));
        let has = |name: &str, found: Option<Meta>, other: &str, listed: Meta| {
            let mut otherwise = Otherwise::default();
            otherwise.add(name.as_bytes(), found);
            otherwise.has(other.as_bytes(), &listed)
        };
        // Directories as servers with only LIST describe them.
        assert!(!has("New", Some(dir), "other", dir) && !has("new.txt", Some(old), "other", old));
        assert!(has("New", Some(dir), "new", dir) && has("caf\u{e9}", Some(dir), "cafe_", dir));
        assert!(has("a-long-name-1", Some(dir), "a-long-name", dir));
        assert!(has("Program Files", Some(dir), "PROGRA~1", dir) && has("a.txt", Some(old), "A.TXT;1", old));
        // A time identifies any name.
        assert!(has("new", Some(known), "other", known) && !has("new", Some(known), "other", old));
        assert!(!has("new", None, "other", dir) && has("new", None, "NEW", dir));
        // A directory is identified if no other has that time.
        let timed = plain(Kind::Dir, Some(7));
        assert!(has("new", Some(timed), "other", timed) && !has("new", Some(timed), "other", dir));
        let mut otherwise = Otherwise::default();
        otherwise.add(b"new", Some(timed));
        otherwise.alike.insert(likeness(&timed), 2);
        assert!(!otherwise.has(b"other", &timed));
        otherwise.alike.insert(likeness(&timed), 1);
        otherwise.add(b"newer", Some(timed));
        assert!(!otherwise.has(b"other", &timed));
    }
}
