//! `phoebus rm`: files, and directories with all that is in them.

use super::{CODES, Tally, block_on, find_to_take, ls};
use crate::place::{Carried, FarArgs, Stores, shown};
use anyhow::Result;
use phoebus_files::key::Key;
use phoebus_files::store::{Kind, Store};
use phoebus_files::{Error, Sort, is_ours};
use std::ffi::OsString;
use std::process::ExitCode;

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
            let keys = place.all().await;
            for key in tally.check(args.heeded(keys)).flatten().unwrap_or_default() {
                let removed = args.remove(&*place.store, &key, &mut tally).await;
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

    async fn remove(&self, store: &dyn Store, key: &Key, tally: &mut Tally) -> Result<(), Error> {
        // Removing is tried first, since a link is what it is only to that.
        let Err(error) = store.remove(key).await else { return Ok(()) };
        let is_dir = matches!(store.stat(key).await, Ok(meta) if meta.kind == Kind::Dir);
        match is_dir && self.recursive {
            true => self.remove_tree(store, key, tally).await,
            false if is_dir => Err(Error::Kind { name: shown(store, key), is: "a directory", expected: "a file" }),
            false => Err(error),
        }
    }

    /// Goes on past what fails; the directories above it then fail, too, since they are not empty.
    async fn remove_tree(&self, store: &dyn Store, top: &Key, tally: &mut Tally) -> Result<(), Error> {
        let (mut dirs, mut to_read) = (Vec::new(), vec![top.clone()]);
        while let Some(dir) = to_read.pop() {
            let Some(entries) = tally.check(ls::entries(store, &dir, true).await) else { continue };
            for entry in entries {
                let Some(key) = tally.check(ls::join(store, &dir, &entry)) else { continue };
                match entry.meta.kind {
                    // Some servers call a link what it leads to. As a file a link can be removed, and a directory cannot.
                    Kind::Dir if store.is_far() && store.remove(&key).await.is_ok() => {}
                    Kind::Dir => to_read.push(key),
                    // A transfer that ends at this moment takes its own draft away.
                    _ if is_ours(&entry.name) => match store.discard(&key, None).await {
                        Err(error) if error.sort() == Sort::NotFound => {}
                        discarded => drop(tally.check(discarded)),
                    },
                    _ => drop(tally.check(store.remove(&key).await)),
                }
            }
            dirs.push(dir);
        }
        for dir in dirs.iter().rev().filter(|dir| *dir != top) {
            tally.check(store.remove_dir(dir).await);
        }
        store.remove_dir(top).await
    }
}
