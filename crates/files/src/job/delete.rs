//! What the destination has and the source does not is removed (`rsync --delete`), with everything known first.
//!
//! - Nothing is removed unless all of the job was carried: what failed may have hidden more.
//! - All that would be removed is found before the first of it goes, and if it is more than was allowed, nothing goes.
//! - Directories are compared by listings that came whole; one that did not ends it. As listings may leave out what is there (a
//!   server that hides names with a dot), the source is asked for each name, too, and has to say that there is no such thing.
//! - What filters leave out stays, and the directories above it.
//! - Drafts are left alone, but where the directory goes that they are in: there they go unless somebody writes them, which the store has to
//!   be able to tell.
//! - What is removed is reached through the destination's directory alone, out of which no link leads ([`Store::confined`]).

use super::case::folded;
use super::{AHEAD, Event, Run, contents, listed};
use crate::draft::{is_engines, is_ours};
use crate::error::{Error, Sort};
use crate::key::{Key, KeyError};
use crate::links::{Doubts, Next, begin_to_remove, own_dirs};
use crate::own::{Own, OwnDirs};
use crate::spawned::Spawned;
use crate::store::{Kind, Meta, Store, Time};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use tokio::task::{JoinError, JoinSet};

/// What was to be removed, and what came of it.
type Removed = (Key, Result<(), Error>);

/// What is to go from a directory of the destination: keys from there, the contents of a directory before it.
#[derive(Debug)]
struct Doomed {
    top: Key,
    things: Vec<(Key, Kind)>,
    /// Directories from the root of the destination's store that may be links.
    doubts: Doubts,
}

/// What is looked for in a tree of the destination.
struct Search<'a> {
    to: &'a Key,
    /// How many may be found.
    most: usize,
    things: Vec<(Key, Kind)>,
    doubts: Doubts,
    /// Directories of which nobody tells whether they are links.
    unproven: Vec<Key>,
}

/// What the source has and the destination does not list by that name: it is there by another one, of another case, or composed
/// otherwise (Unicode).
#[derive(Debug, Default)]
struct Otherwise {
    folded: HashSet<Vec<u8>>,
    /// What is found to be there by the names that the source has.
    found: Vec<(Vec<u8>, Meta)>,
    /// How much of what is listed and unknown is told of in the same way.
    alike: HashMap<Told, usize>,
}

/// What is told of something beside its name.
type Told = (Kind, Option<u64>, Option<Time>);

impl Search<'_> {
    /// Notes that `dir`, a key from the root of the store, is `own`.
    fn note(&mut self, dir: Key, own: Own) {
        if own == Own::Likely {
            self.doubts.note(dir);
        }
    }
}

fn told(meta: &Meta) -> Told {
    (meta.kind, meta.size, meta.modified)
}

impl Otherwise {
    fn add(&mut self, name: &[u8], found: Option<Meta>) {
        self.folded.insert(folded(name));
        self.found.extend(found.map(|meta| (name.to_vec(), meta)));
    }

    /// Whether what is listed by this name may be one of it.
    fn has(&self, name: &[u8], listed: &Meta) -> bool {
        // Many directories, and files without a time, are told of alike: then the names have to speak for it, too, unless one directory
        // with such a time is found and one is listed.
        let listed_alike = || self.alike.get(&told(listed)).copied().unwrap_or(1);
        let found_alike = || self.found.iter().filter(|(_, found)| told(found) == told(listed)).count();
        let says_much =
            listed.modified.is_some() && (listed.kind != Kind::Dir || (listed_alike() == 1 && found_alike() == 1));
        let may_be = |other: &[u8], found: &Meta| told(found) == told(listed) && (says_much || may_be_one(name, other));
        self.folded.contains(&folded(name)) || self.found.iter().any(|(other, found)| may_be(other, found))
    }
}

/// Whether a server may list `name` for what was called `other`. Of how letters are composed nothing is known here.
fn may_be_one(name: &[u8], other: &[u8]) -> bool {
    let (short, long) = (folded(name), folded(other));
    // As in PROGRA~1 for Program Files, and in a.txt;1 for a.txt.
    let is_form = name.contains(&b'~') || short.starts_with(&long) || long.starts_with(&short);
    is_form || !name.is_ascii() || !other.is_ascii() || super::look::may_be_one(name, other)
}

impl Run<'_> {
    /// Removes what the sources of the trees do not have, if the job says so and all of it was carried.
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
                        let name = self.named(&to.beneath(&key).unwrap_or_else(|_| key.clone()));
                        self.failed(key, Error::MayBeLink { name });
                    }
                    all.push(Doomed { top: to, things, doubts });
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

    /// What the destination has and `from` does not: at most as much as may be found, or that is the error. Into what may be a link nobody
    /// looks.
    async fn find_doomed(&self, from: &Key, search: &mut Search<'_>) -> Result<(), Error> {
        let (source, dest, to) = (&self.job.source, &self.job.dest, search.to);
        let mut open = vec![Key::ROOT];
        while let Some(dir) = open.pop() {
            let there = match contents(&**dest, &self.at(to, &dir)?).await {
                // Where nothing was done yet, nothing is there.
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
                        Own::Yes | Own::Likely => {
                            search.note(self.at(to, &key)?, own);
                            open.push(key);
                        }
                        // The copy went behind the link, and what else is there is not the tree's.
                        Own::Link => {}
                        Own::Unknown => search.unproven.push(key),
                    },
                    Some(_) => {}
                    None => unknown.push((key, *meta, own)),
                }
            }
            // Where nothing could go, nothing has to be asked for.
            for (name, meta) in here.iter().filter(|(name, _)| !unknown.is_empty() && !there.contains_key(*name)) {
                let key = dir.join(name).map_err(|error| self.wrong(&error))?;
                if self.job.filter.takes(&key, meta.kind == Kind::Dir) {
                    unlisted.push(key);
                }
            }
            let mut otherwise = self.find_otherwise(to, unlisted).await?;
            for (_, meta, _) in &unknown {
                *otherwise.alike.entry(told(meta)).or_default() += 1;
            }
            unknown.retain(|(key, meta, _)| !otherwise.has(key.name(), meta));
            unknown.sort_by(|one, other| one.0.cmp(&other.0));
            for some in unknown.chunks(AHEAD) {
                let gone = self.are_gone(from, some).await?;
                for ((key, meta, own), _) in some.iter().zip(gone).filter(|(_, gone)| *gone) {
                    self.doom((key.clone(), meta.kind, *own), search).await?;
                }
            }
        }
        Ok(())
    }

    /// Which of the directories that are listed in `dir` are directories themselves, if there are any.
    async fn own_dirs(&self, dir: &Key, listed: &HashMap<Vec<u8>, Meta>) -> Result<OwnDirs, Error> {
        match listed.values().any(|meta| meta.kind == Kind::Dir) {
            true => own_dirs(&*self.job.dest, dir).await,
            false => Ok(OwnDirs::all(Own::Yes)),
        }
    }

    /// Which of these, none of which is listed, are there by other names.
    async fn find_otherwise(&self, to: &Key, unlisted: Vec<Key>) -> Result<Otherwise, Error> {
        let mut otherwise = Otherwise::default();
        for some in unlisted.chunks(AHEAD) {
            let mut asked = Vec::new();
            for key in some {
                let (dest, at) = (self.job.dest.clone(), self.at(to, key)?);
                // As listings have it: a link is itself, and not what it leads to.
                asked.push(Spawned::new(async move { dest.stat_link(&at).await }));
            }
            for (key, answer) in some.iter().zip(asked) {
                let failed =
                    |error| Err(Error::io(self.job.dest.name(), "look at something of", std::io::Error::other(error)));
                let found = match answer.end().await.unwrap_or_else(failed) {
                    Ok(meta) => Some(meta),
                    // What has such a name now has it by what the run is only planned to do.
                    Err(Error::NotFound { .. }) if self.job.dry_run => continue,
                    Err(_) => None,
                };
                otherwise.add(key.name(), found);
            }
        }
        Ok(otherwise)
    }

    /// Whether the source itself says of each of these that it does not exist.
    async fn are_gone(&self, from: &Key, things: &[(Key, Meta, Own)]) -> Result<Vec<bool>, Error> {
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

    /// Adds `top`, and if it is a directory itself, all that is in it before it; what filters leave out stays, and the directories above it.
    async fn doom(&self, top: (Key, Kind, Own), search: &mut Search<'_>) -> Result<(), Error> {
        let to = search.to;
        // Parents come before their children in `dirs`, and after them in what is doomed.
        let (mut dirs, mut open, mut kept) = (Vec::new(), vec![top], Vec::<Key>::new());
        while let Some((key, kind, own)) = open.pop() {
            if kind != Kind::Dir {
                search.things.push((key, kind));
            } else if own == Own::Link {
                search.things.push((key, Kind::Link));
            } else if own == Own::Unknown {
                search.things.push((key, Kind::Other));
            } else {
                search.note(self.at(to, &key)?, own);
                let (dest, dir) = (&*self.job.dest, self.at(to, &key)?);
                let listing = dest.list_all(&dir).await?;
                let there = listed(dest, &dir, listing).await?;
                let own_dirs = self.own_dirs(&dir, &there).await?;
                for (name, meta) in there {
                    let below = key.join(&name).map_err(|error| self.wrong(&error))?;
                    // Who writes the drafts of other engines is not known: they stay, and the directory with them.
                    if is_ours(&name) && !is_engines(&name) {
                        kept.push(below);
                        continue;
                    }
                    match self.job.filter.takes(&below, meta.kind == Kind::Dir) {
                        true => open.push((below, meta.kind, own_dirs.is(&name))),
                        false => kept.push(below),
                    }
                }
                dirs.push(key);
            }
            if search.things.len() + dirs.len() > search.most {
                let reason = format!(
                    "it has more than {} files and directories that the source does not have; nothing was deleted \
                     (--max-delete)",
                    self.job.delete.unwrap_or(search.most)
                );
                return Err(Error::Store { name: self.named(to), reason, sort: Sort::Request });
            }
        }
        let holds = |dir: &Key| kept.iter().any(|kept| kept.below(dir).is_some());
        search.things.extend(dirs.into_iter().rev().filter(|dir| !holds(dir)).map(|dir| (dir, Kind::Dir)));
        Ok(())
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
        let mut going = JoinSet::new();
        for (below, mut kind) in things {
            // A directory goes when all that is in it has gone; and a draft and its journal ask for the same lock.
            let alone = kind == Kind::Dir || is_engines(below.name());
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
            if doubts.is_behind(&*store, &place.parent()).await.map_err(|error| (top.clone(), error))? {
                continue;
            }
            if doubts.is_link(&place) {
                kind = Kind::Link;
            } else if doubts.is_unknown(&place) {
                kind = Kind::Other;
            }
            going.spawn(async move { (key, remove(store, place, kind).await) });
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
        Error::Store { name: self.job.dest.name(), reason: error.to_string(), sort: Sort::Request }
    }

    fn named(&self, key: &Key) -> String {
        let store = self.job.dest.name();
        format!("{}/{key}", store.strip_prefix("file://").unwrap_or(&store))
    }
}

/// Removes what `key` was found to be; what has gone meanwhile is no failure.
async fn remove(store: Arc<dyn Store>, key: Key, kind: Kind) -> Result<(), Error> {
    let removed = match kind {
        Kind::Dir => store.remove_dir(&key).await,
        // It may be a directory or a link to one: what has something in it stays.
        Kind::Other if store.is_far() => match begin_to_remove(&*store, &key, Own::Unknown).await {
            Ok(Next::Empty) => Err(Error::MayBeLink { name: format!("{}/{key}", store.name()) }),
            removed => removed.map(drop),
        },
        _ if is_engines(key.name()) => store.discard(&key, None).await,
        _ => store.remove(&key).await,
    };
    match removed {
        Err(error) if error.sort() == Sort::NotFound => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_directory_is_not_taken_for_all() {
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
        // As servers tell of directories that only have LIST.
        assert!(!has("New", Some(dir), "other", dir) && !has("new.txt", Some(old), "other", old));
        assert!(has("New", Some(dir), "new", dir) && has("caf\u{e9}", Some(dir), "cafe_", dir));
        assert!(has("a-long-name-1", Some(dir), "a-long-name", dir));
        assert!(has("Program Files", Some(dir), "PROGRA~1", dir) && has("a.txt", Some(old), "A.TXT;1", old));
        // A time says it of any name.
        assert!(has("new", Some(known), "other", known) && !has("new", Some(known), "other", old));
        assert!(!has("new", None, "other", dir) && has("new", None, "NEW", dir));
        // Of a directory, if there is no other of that time.
        let timed = plain(Kind::Dir, Some(7));
        assert!(has("new", Some(timed), "other", timed) && !has("new", Some(timed), "other", dir));
        let mut otherwise = Otherwise::default();
        otherwise.add(b"new", Some(timed));
        otherwise.alike.insert(told(&timed), 2);
        assert!(!otherwise.has(b"other", &timed));
        otherwise.alike.insert(told(&timed), 1);
        otherwise.add(b"newer", Some(timed));
        assert!(!otherwise.has(b"other", &timed));
    }
}
