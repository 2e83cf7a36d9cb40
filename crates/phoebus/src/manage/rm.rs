//! `phoebus rm`: files, and directories with all that is in them.

use super::{CODES, Tally, block_on, find_to_take, ls};
use crate::place::{Carried, FarArgs, Stores, shown};
use anyhow::Result;
use phoebus_files::key::Key;
use phoebus_files::store::{Entry, Kind, Store};
use phoebus_files::{Error, NamedDirs, Next, Own, OwnDirs, Sort, begin_to_remove, is_ours, own_dirs};
use std::collections::HashSet;
use std::ffi::OsString;
use std::process::ExitCode;
use std::vec;

/// Remove files
///
/// Nothing is asked. Directories are removed by their names alone: "." and "..", which a shell's ".*" may have become, and the root are
/// refused before anything is removed.
#[derive(clap::Args)]
#[command(after_help = CODES)]
pub(crate) struct Args {
    /// What is removed: files, patterns, and with -r directories
    #[arg(value_name = "PLACE", required = true)]
    places: Vec<OsString>,
    /// Remove directories with all that is in them, drafts that no transfer is writing included; symbolic links are removed and not followed
    #[arg(long, short)]
    recursive: bool,
    /// What is not there is no error
    #[arg(long, short)]
    force: bool,
    #[command(flatten)]
    far: FarArgs,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    block_on(async {
        let (mut stores, mut tally) = (Stores::new(&args.far, Carried::default()), Tally::default());
        tally.hint(" (-r removes directories)", |error| matches!(error, Error::Kind { is: "a directory", .. }));
        for place in find_to_take(&mut stores, &args.places, "rm", args.places.len()).await? {
            let (keys, mut named) = (place.all().await, NamedDirs::default());
            for key in tally.check(args.heeded(keys)).flatten().unwrap_or_default() {
                let removed = args.remove(&*place.store, &key, &mut named, &mut tally).await;
                tally.note(args.heeded(removed));
            }
            tally.check(place.store.settle().await);
        }
        Ok(tally.code())
    })
}

impl Args {
    /// Passes over what is not there, if it may be.
    fn heeded<T>(&self, result: Result<T, Error>) -> Result<Option<T>, Error> {
        match result {
            Err(error) if self.force && error.sort() == Sort::NotFound => Ok(None),
            result => result.map(Some),
        }
    }

    async fn remove(
        &self,
        store: &dyn Store,
        key: &Key,
        named: &mut NamedDirs,
        tally: &mut Tally,
    ) -> Result<(), Error> {
        // Removing is tried first, since a link is what it is only to that.
        let Err(error) = store.remove(key).await else { return Ok(()) };
        // What failed for now says nothing of what it is.
        let is_dir =
            error.sort() != Sort::Passing && matches!(store.stat_link(key).await, Ok(meta) if meta.kind == Kind::Dir);
        match is_dir && self.recursive {
            true => match named.is(store, key).await? {
                Own::Link => Err(error),
                own => match begin_to_remove(store, key, own).await? {
                    Next::Gone => Ok(()),
                    Next::Empty => remove_dir(store, key, tally).await,
                },
            },
            false if is_dir => Err(Error::Kind { name: shown(store, key), is: "a directory", expected: "a file" }),
            false => Err(error),
        }
    }
}

/// Removes the directory `top` and all that is in it: by a descriptor of it, where the store has such, so that nobody who exchanges what is in
/// it for a link meanwhile leads elsewhere.
async fn remove_dir(store: &dyn Store, top: &Key, tally: &mut Tally) -> Result<(), Error> {
    match store.confined(top).await? {
        None => remove_tree(store, top, HELD, tally).await?,
        Some(tree) => {
            remove_tree(&*tree, &Key::ROOT, HELD, tally).await?;
            tree.settle().await?;
        }
    }
    store.remove_dir(top).await
}

/// As many entries of a directory are held at a time: some ten megabytes of them. Those that follow are read once these are gone.
const HELD: usize = 100_000;

/// A directory that is being emptied.
struct Level {
    dir: Key,
    /// What the directories in it are.
    dirs: OwnDirs,
    entries: vec::IntoIter<Entry>,
    /// Whether there may be others.
    more: bool,
    /// What could not be removed.
    stays: HashSet<Vec<u8>>,
}

impl Level {
    fn of(dir: Key) -> Self {
        let (dirs, entries) = (OwnDirs::all(Own::Unknown), Vec::new().into_iter());
        Self { dir, dirs, entries, more: true, stays: HashSet::new() }
    }

    /// Reads entries that nobody has tried to remove, `held` at the most. It begins anew each time: a listing that waits for what is
    /// removed meanwhile may pass over names, and a server may not wait so long.
    async fn read(&mut self, store: &dyn Store, held: usize) -> Result<(), Error> {
        let mut found = Vec::new();
        self.more = false;
        // Where as many stay, nothing is gained by trying the others.
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

/// Removes all that is in the directory `top`. Goes on past what fails; the directories above it then fail, too, since they are not empty.
async fn remove_tree(store: &dyn Store, top: &Key, held: usize, tally: &mut Tally) -> Result<(), Error> {
    let mut open = vec![Level::of(top.clone())];
    while let Some(level) = open.last_mut() {
        if let Some(entry) = level.entries.next() {
            let removed = match ls::join(store, &level.dir, &entry) {
                Err(error) => Err(error),
                Ok(key) => match entry.meta.kind {
                    // Some servers call a link what it leads to.
                    Kind::Dir => match begin_to_remove(store, &key, level.dirs.is(&entry.name)).await {
                        Ok(Next::Empty) => {
                            open.push(Level::of(key));
                            continue;
                        }
                        removed => removed.map(drop),
                    },
                    // A transfer that ends at this moment takes its own draft away.
                    _ if is_ours(&entry.name) => match store.discard(&key, None).await {
                        Err(error) if error.sort() == Sort::NotFound => Ok(()),
                        discarded => discarded,
                    },
                    _ => store.remove(&key).await,
                },
            };
            if tally.check(removed).is_none() {
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
            tally.check(removed);
            return Ok(());
        };
        // What could not be listed has been told of.
        if removed.is_ok() {
            removed = store.remove_dir(&dir).await;
        }
        if tally.check(removed).is_none() {
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
            let mut tally = Tally::default();
            let top = if held == 1 { "e" } else { "d" };
            remove_tree(&store, &key(top), held, &mut tally).await.unwrap();
            assert!(tally.number() == 0 && fs::read_dir(dir.path().join(top)).unwrap().next().is_none(), "{held}");
        }
        // What somebody writes stays, and is tried once.
        for name in ["1", "2", "3", "sub/1"] {
            fs::create_dir_all(dir.path().join("f/sub")).unwrap();
            fs::write(dir.path().join("f").join(name), "").unwrap();
        }
        let spec = Spec { size: Some(3), ..Spec::default() };
        let Begun::Draft(draft) = store.create(&key("f/new"), spec).await.unwrap() else { panic!("it is there") };
        let mut tally = Tally::default();
        remove_tree(&store, &key("f"), 2, &mut tally).await.unwrap();
        let left: Vec<_> =
            fs::read_dir(dir.path().join("f")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(
            left.len() == tally.codes.len() && left.iter().all(|name| is_ours(name.as_encoded_bytes())),
            "{left:?}"
        );
        draft.abandon(false).await;
    }
}
