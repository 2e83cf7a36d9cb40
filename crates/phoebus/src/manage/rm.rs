//! `phoebus rm`: files, and directories with all that is in them.

use super::{CODES, Tally, block_on, find_to_take};
use crate::place::FarArgs;
use anyhow::Result;
use phoebus_files::{Error, ErrorKind, NamedDirs};
use phoebus_places::removing::remove;
use phoebus_places::{Carried, Outcomes};
use std::ffi::OsString;
use std::process::ExitCode;

/// Remove files
///
/// Removes without asking. Directories are removed only by name: ".", ".." (which a shell may make of ".*") and the
/// root are refused before anything is removed.
#[derive(clap::Args)]
#[command(after_help = CODES)]
pub(crate) struct Args {
    /// Files, patterns, and with -r directories
    #[arg(value_name = "PLACE", required = true)]
    places: Vec<OsString>,
    /// Remove directories and their contents, including drafts that no transfer is writing. Symbolic links are removed,
    /// not followed
    #[arg(long, short)]
    recursive: bool,
    /// Ignore missing files
    #[arg(long, short)]
    force: bool,
    #[command(flatten)]
    far: FarArgs,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    block_on(async {
        let (mut stores, mut tally) = (args.far.stores(Carried::default()), Tally::default());
        tally.hint(" (-r removes directories)", |error| matches!(error, Error::Kind { is: "a directory", .. }));
        for place in find_to_take(&mut stores, &args.places, "rm", args.places.len()).await? {
            let (keys, mut named) = (place.all().await, NamedDirs::default());
            for key in tally.check(args.heeded(keys)).flatten().unwrap_or_default() {
                let removed = remove(&*place.store, &key, args.recursive, &mut named, &mut tally).await;
                tally.note(args.heeded(removed));
            }
            tally.check(place.store.settle().await);
        }
        Ok(tally.code())
    })
}

impl Args {
    /// Skips missing files, if that is permitted.
    fn heeded<T>(&self, result: Result<T, Error>) -> Result<Option<T>, Error> {
        match result {
            Err(error) if self.force && error.kind() == ErrorKind::NotFound => Ok(None),
            result => result.map(Some),
        }
    }
}
