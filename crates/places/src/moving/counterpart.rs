//! The directories of a moved tree at its destination. A directory of the source is removed only if the destination has
//! it, too, as another directory.

use super::Carried;
use crate::place::shown;
use phoebus_files::key::Key;
use phoebus_files::store::{Kind, Meta, Store};
use phoebus_files::{Error, ErrorKind, moved_from, moved_name, moved_stem};
use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use tokio::sync::RwLock;

/// What is known of the directories at the destination.
pub(super) struct Counterparts<'a> {
    source: &'a Arc<dyn Store>,
    dest: &'a Arc<dyn Store>,
    from: &'a Key,
    to: &'a Key,
    /// Directories at the destination that have got a file, and those above.
    filled: HashSet<Key>,
    /// What could not be carried, by its name at the destination, where something else may have that name.
    failed: HashSet<Key>,
    /// Held for reading while a marker exists, also after this is dropped.
    leaving: &'a Arc<RwLock<()>>,
    /// Directories that got no file, and were other directories at the destination. Each with its name there.
    unfilled: Vec<(Key, Key)>,
}

/// What the destination has under the name of a directory of the source.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// No directory.
    Nothing,
    /// The directory of the source itself, by another name.
    Itself,
    Another,
}

impl<'a> Counterparts<'a> {
    /// For the tree `from`, of which `moved` are at their destinations, and `failed` are not.
    pub(super) fn new(
        (source, from): (&'a Arc<dyn Store>, &'a Key),
        (dest, to): (&'a Arc<dyn Store>, &'a Key),
        moved: &[(Key, Carried)],
        failed: HashSet<Key>,
        leaving: &'a Arc<RwLock<()>>,
    ) -> Self {
        let mut filled = HashSet::new();
        for (file, _) in moved {
            let mut dir = file.parent();
            while dir.below(to).is_some() && filled.insert(dir.clone()) && !dir.is_root() {
                dir = dir.parent();
            }
        }
        Self { source, dest, from, to, filled, failed, leaving, unfilled: Vec::new() }
    }

    /// Whether the destination has the directory `dir` of the source, as another directory.
    ///
    /// # Errors
    /// It cannot be looked at now, or nothing tells.
    pub(super) async fn has(&mut self, dir: &Key) -> Result<bool, Error> {
        Ok(self.find(dir, true).await? == Found::Another)
    }

    /// Fails unless the destination has the whole tree as another one. Both can be one directory under two names, such
    /// as by two addresses of a server. `is_apart`: a file of the source was removed, and its copy is still there.
    ///
    /// # Errors
    /// They are one, or the destination has none, or nothing tells.
    pub(super) async fn must_be_two(&mut self, is_apart: bool) -> Result<(), Error> {
        match self.find(self.from, is_apart).await? {
            Found::Another => Ok(()),
            Found::Nothing => Err(not_there(&**self.source, self.from)),
            Found::Itself => {
                let to = shown(&**self.dest, self.to);
                Err(self.stays(self.from, &format!("{to} is the same directory by another name")))
            }
        }
    }

    /// What the destination has for `dir`. A directory that has got a file counts as another one if `trusts_files`.
    async fn find(&mut self, dir: &Key, trusts_files: bool) -> Result<Found, Error> {
        let Some(there) = self.name_of(dir).filter(|there| !self.failed.contains(there)) else {
            return Ok(Found::Nothing);
        };
        if trusts_files && self.filled.contains(&there) {
            return Ok(Found::Another);
        }
        let meta = match self.dest.stat(&there).await {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Found::Nothing),
            meta => meta?,
        };
        if meta.kind != Kind::Dir {
            return Ok(Found::Nothing);
        }
        let own = self.source.stat(dir).await?;
        let is_one = match (own.identity, meta.identity) {
            (Some(own), Some(there)) if own.device == there.device => own.number == there.number,
            // One directory may have two device numbers, by two mounts.
            _ => self.shows_marker(dir, &there).await?,
        };
        if is_one {
            return Ok(Found::Itself);
        }
        self.unfilled.push((dir.clone(), there));
        Ok(Found::Another)
    }

    /// The name of `dir` at the destination.
    fn name_of(&self, dir: &Key) -> Option<Key> {
        let rest = dir.below(self.from)?;
        match (rest.is_root(), self.to.is_root()) {
            (true, _) => Some(self.to.clone()),
            (_, true) => Some(rest),
            _ => self.to.beneath(&rest).ok(),
        }
    }

    /// Whether an empty directory that is made in `dir` of the source shows in `there` of the destination.
    async fn shows_marker(&self, dir: &Key, there: &Key) -> Result<bool, Error> {
        let unknown = |error: &dyn std::fmt::Display| {
            let there = shown(&**self.dest, there);
            let reason = format!("whether {there} is the same directory by another name cannot be found out ({error})");
            self.stays(dir, &reason)
        };
        let here = marker_in(dir).map_err(|error| unknown(&error))?;
        let at = there.join(here.name()).map_err(|error| unknown(&error))?;
        let (source, dest, gate) = (self.source.clone(), self.dest.clone(), self.leaving.clone().read_owned().await);
        let asked = tokio::spawn(async move {
            let _gate = gate;
            match source.make_dir(&here).await {
                // This user cannot remove anything in `dir`, and `dir` itself only if it is empty: `restore` then looks
                // again.
                Err(error) if error.kind() == ErrorKind::Denied && !source.is_far() => return Ok(false),
                made => made?,
            }
            let looked = dest.stat(&at).await;
            source.remove_dir(&here).await?;
            match looked {
                Ok(_) => Ok(true),
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
                Err(error) => Err(error),
            }
        });
        asked.await.map_err(|error| unknown(&error))?.map_err(|error: Error| unknown(&error))
    }

    /// Makes directories again that are at neither end after the removal: a link at the destination led to a directory
    /// of the source. Returns why each stays.
    pub(super) async fn restore(&mut self) -> Vec<Error> {
        let mut failures = Vec::new();
        for (dir, there) in std::mem::take(&mut self.unfilled) {
            let gone = match is_gone(self.dest.stat(&there).await) {
                Ok(true) => is_gone(self.source.stat_link(&dir).await),
                found => found,
            };
            match gone {
                Ok(true) => {}
                Ok(false) => continue,
                Err(error) => {
                    failures.push(error);
                    continue;
                }
            }
            let mut above = Vec::new();
            let mut at = dir.parent();
            while at.below(self.from).is_some() && !at.is_root() {
                above.push(at.clone());
                at = at.parent();
            }
            for at in above.iter().rev() {
                // It exists, or the next one fails.
                let _ = self.source.make_dir(at).await;
            }
            failures.push(match self.source.make_dir(&dir).await {
                Ok(()) => {
                    let reason = "the destination does not have it any more, so it was made again, with the \
                                  permissions and times of a new directory"
                        .to_owned();
                    Error::Store { name: shown(&**self.source, &dir), reason, kind: ErrorKind::Request }
                }
                Err(error) => error,
            });
        }
        failures
    }

    fn stays(&self, dir: &Key, reason: &str) -> Error {
        let reason = format!("{reason}; it stays where it is");
        Error::Store { name: shown(&**self.source, dir), reason, kind: ErrorKind::Request }
    }
}

/// Whether a look found nothing.
fn is_gone(found: Result<Meta, Error>) -> Result<bool, Error> {
    match found {
        Ok(_) => Ok(false),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error),
    }
}

/// The failure of a directory that the destination does not have.
pub(super) fn not_there(source: &dyn Store, dir: &Key) -> Error {
    let reason = "the destination has no other directory of that name; it stays where it is".to_owned();
    Error::Store { name: shown(source, dir), reason, kind: ErrorKind::Other }
}

/// A new name for a marker in `dir`: an empty directory that shows whether two names lead to one directory. A killed
/// move may leave it.
fn marker_in(dir: &Key) -> io::Result<Key> {
    moved_name(&dir.join(own_name(dir)).map_err(io::Error::other)?)
}

/// Whether the directory `name` in `dir` is a marker.
pub(super) fn is_marker(dir: &Key, name: &[u8]) -> bool {
    moved_from(name) == Some(&moved_stem(own_name(dir))[..])
}

fn own_name(dir: &Key) -> &[u8] {
    if dir.is_root() { b"root" } else { dir.name() }
}
