//! Removing files, and directories with all that is in them.

use crate::listing;
use crate::outcomes::Outcomes;
use crate::place::shown;
use phoebus_files::key::Key;
use phoebus_files::store::{Entry, Kind, Store};
use phoebus_files::{DirNature, Error, ErrorKind, NamedDirs, Next, OwnDirs, begin_to_remove, is_ours, own_dirs};
use std::collections::HashSet;
use std::vec;

/// Removes `key`, and if `recursive`, a directory with its contents. `named` caches which names of arguments are
/// directories and which are symbolic links; `outcomes` receives what inside a directory cannot be removed.
///
/// # Errors
/// It cannot be removed.
pub async fn remove(
    store: &dyn Store,
    key: &Key,
    recursive: bool,
    named: &mut NamedDirs,
    outcomes: &mut impl Outcomes,
) -> Result<(), Error> {
    // Try to remove the name first: this works for a symbolic link, whatever a listing says that it is.
    let Err(error) = store.remove(key).await else { return Ok(()) };
    // A temporary failure says nothing about the kind of the entry.
    let is_dir =
        error.kind() != ErrorKind::Passing && matches!(store.stat_link(key).await, Ok(meta) if meta.kind == Kind::Dir);
    match is_dir && recursive {
        true => match named.is(store, key).await? {
            DirNature::Link => Err(error),
            own => match begin_to_remove(store, key, own).await? {
                Next::Gone => Ok(()),
                Next::Descend => remove_dir(store, key, outcomes).await,
            },
        },
        false if is_dir => Err(Error::Kind { name: shown(store, key), is: "a directory", expected: "a file" }),
        false => Err(error),
    }
}

/// Removes the directory `top` and its content: relative to its descriptor, if the store has one, so that nobody can
/// redirect the removal by exchanging names for links.
async fn remove_dir(store: &dyn Store, top: &Key, outcomes: &mut impl Outcomes) -> Result<(), Error> {
    match store.confined(top).await? {
        None => remove_tree(store, top, HELD, outcomes).await?,
        Some(tree) => {
            remove_tree(&*tree, &Key::ROOT, HELD, outcomes).await?;
            tree.settle().await?;
        }
    }
    store.remove_dir(top).await
}

/// Entries of a directory that are held at a time: some ten megabytes. The rest is read after these are gone.
const HELD: usize = 100_000;

/// A directory that is being emptied.
struct Level {
    dir: Key,
    /// The nature of its subdirectories.
    dirs: OwnDirs,
    entries: vec::IntoIter<Entry>,
    /// Whether there may be more entries.
    more: bool,
    /// Entries that could not be removed.
    stays: HashSet<Vec<u8>>,
}

impl Level {
    fn of(dir: Key) -> Self {
        let (dirs, entries) = (OwnDirs::all(DirNature::Unknown), Vec::new().into_iter());
        Self { dir, dirs, entries, more: true, stays: HashSet::new() }
    }

    /// Reads untried entries, at most `held`. Each call lists anew: a listing that pauses during removals may skip
    /// names, and a server may not wait so long.
    async fn read(&mut self, store: &dyn Store, held: usize) -> Result<(), Error> {
        let mut found = Vec::new();
        self.more = false;
        // If so many stay, trying the others gains nothing.
        if self.stays.len() < held {
            let mut listing = store.list_all(&self.dir).await?;
            while !self.more {
                let page = listing.more().await?;
                if page.is_empty() {
                    break;
                }
                found.extend(page.into_iter().filter(|entry| !self.stays.contains(&entry.name)));
                self.more = found.len() >= held;
            }
        }
        if found.iter().any(|entry| entry.meta.kind == Kind::Dir) {
            self.dirs = own_dirs(store, &self.dir).await?;
        }
        found.sort_by(|one, other| one.name.cmp(&other.name));
        self.entries = found.into_iter();
        Ok(())
    }
}

/// Removes the content of the directory `top`. Continues after failures; the directories above then fail too, since
/// they are not empty.
async fn remove_tree(store: &dyn Store, top: &Key, held: usize, outcomes: &mut impl Outcomes) -> Result<(), Error> {
    let mut open = vec![Level::of(top.clone())];
    while let Some(level) = open.last_mut() {
        if let Some(entry) = level.entries.next() {
            let removed = match listing::join(store, &level.dir, &entry) {
                Err(error) => Err(error),
                Ok(key) => match entry.meta.kind {
                    // Some servers describe a link by its target.
                    Kind::Dir => match begin_to_remove(store, &key, level.dirs.is(&entry.name)).await {
                        Ok(Next::Descend) => {
                            open.push(Level::of(key));
                            continue;
                        }
                        removed => removed.map(drop),
                    },
                    // A transfer that ends at this moment removes its own draft.
                    _ if is_ours(&entry.name) => match store.discard(&key, None).await {
                        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
                        discarded => discarded,
                    },
                    _ => store.remove(&key).await,
                },
            };
            if outcomes.check(removed).is_none() {
                level.stays.insert(entry.name);
            }
            continue;
        }
        let mut removed = Ok(());
        if level.more {
            removed = level.read(store, held).await;
            if removed.is_ok() && level.entries.len() > 0 {
                continue;
            }
        }
        let Some(Level { dir, .. }) = open.pop() else { break };
        let Some(above) = open.last_mut() else {
            outcomes.check(removed);
            return Ok(());
        };
        // The failed listing has been reported.
        if removed.is_ok() {
            removed = store.remove_dir(&dir).await;
        }
        if outcomes.check(removed).is_none() {
            above.stays.insert(dir.name().to_vec());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use phoebus_files::Links;
    use phoebus_files::local::Local;
    use phoebus_files::store::{Begun, Spec};
    use std::fs;

    /// The number of entries that could not be removed.
    #[derive(Debug, Default)]
    struct Failed(usize);

    impl Outcomes for Failed {
        fn done(&mut self, _: u64) {}

        fn failed(&mut self, _: Error) {
            self.0 += 1;
        }

        fn modes_unknown(&mut self, _count: u64) {}

        fn has_failed(&self) -> bool {
            self.0 > 0
        }
    }

    #[tokio::test]
    async fn directories_are_emptied_a_part_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        for path in ["d/1", "d/2", "d/3", "d/a/1", "d/a/2", "d/a/3", "d/a/b/1", "d/c/1", "e/1", "e/2"] {
            fs::create_dir_all(dir.path().join(path).parent().unwrap()).unwrap();
            fs::write(dir.path().join(path), "").unwrap();
        }
        let store = Local::new(dir.path(), Links::Beneath).unwrap();
        let key = |path: &str| Key::parse(path.as_bytes()).unwrap();
        for held in [1, 2] {
            let mut failed = Failed::default();
            let top = if held == 1 { "e" } else { "d" };
            remove_tree(&store, &key(top), held, &mut failed).await.unwrap();
            assert!(failed.0 == 0 && fs::read_dir(dir.path().join(top)).unwrap().next().is_none(), "{held}");
        }
        // A draft in use stays, and is tried once.
        for name in ["1", "2", "3", "sub/1"] {
            fs::create_dir_all(dir.path().join("f/sub")).unwrap();
            fs::write(dir.path().join("f").join(name), "").unwrap();
        }
        let spec = Spec { size: Some(3), ..Spec::default() };
        let Begun::Draft(draft) = store.create(&key("f/new"), spec).await.unwrap() else { panic!("it is there") };
        let mut failed = Failed::default();
        remove_tree(&store, &key("f"), 2, &mut failed).await.unwrap();
        let left: Vec<_> =
            fs::read_dir(dir.path().join("f")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(left.len() == failed.0 && left.iter().all(|name| is_ours(name.as_encoded_bytes())), "{left:?}");
        draft.abandon(false).await;
    }
}
