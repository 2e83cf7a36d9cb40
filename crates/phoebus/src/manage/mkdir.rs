//! `phoebus mkdir`: new directories.

use super::{CODES, Tally, block_on, find_all};
use crate::place::FarArgs;
use anyhow::Result;
use phoebus_files::key::Key;
use phoebus_files::store::Kind;
use phoebus_files::{Error, ErrorKind};
use phoebus_places::{Carried, Outcomes, Place, shown};
use std::ffi::OsString;
use std::process::ExitCode;

/// Make directories
#[derive(clap::Args)]
#[command(after_help = CODES)]
pub(crate) struct Args {
    /// What is made
    #[arg(value_name = "PLACE", required = true)]
    places: Vec<OsString>,
    /// Also create missing parents; an existing directory is no error
    #[arg(long, short)]
    parents: bool,
    #[command(flatten)]
    far: FarArgs,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    block_on(async {
        let (mut stores, mut tally) = (args.far.stores(Carried::default()), Tally::default());
        tally.hint(" (-p makes it)", |error| matches!(error, Error::NoParent { .. }));
        for place in find_all(&mut stores, &args.places).await? {
            tally.note(make(&place, args.parents).await);
        }
        Ok(tally.code())
    })
}

async fn make(place: &Place, parents: bool) -> Result<(), Error> {
    if parents {
        let mut above: Vec<Key> = std::iter::successors(Some(place.key.clone()), |key| Some(key.parent()))
            .take_while(|key| !key.is_root())
            .collect();
        while let Some(key) = above.pop() {
            if let Err(error) = place.store.make_dir(&key).await {
                // Servers report this in many ways. What counts is whether a directory exists.
                match place.store.stat_to_write(&key).await {
                    Ok(meta) if meta.kind == Kind::Dir => {}
                    Ok(meta) => {
                        let name = shown(&*place.store, &key);
                        return Err(Error::Kind { name, is: meta.kind.described(), expected: "a directory" });
                    }
                    // The reason why the existing thing is no directory: a link that is not followed.
                    Err(why) if why.kind() == ErrorKind::Denied => return Err(why),
                    Err(_) => return Err(error),
                }
            }
        }
    } else {
        if let Err(error) = place.store.make_dir(&place.key).await {
            let above = place.key.parent();
            // Servers report this in many ways, and systems name the new directory.
            let settled =
                matches!(error.kind(), ErrorKind::Exists | ErrorKind::Passing | ErrorKind::NoSpace) || above.is_root();
            return match settled || place.store.stat(&above).await.err().is_none_or(|e| e.kind() != ErrorKind::NotFound)
            {
                true => Err(error),
                false => Err(Error::NoParent { name: place.name() }),
            };
        }
    }
    place.store.settle().await
}
