//! `phoebus mkdir`: new directories.

use super::{CODES, Tally, block_on, find_all};
use crate::place::{Carried, FarArgs, Place, Stores, shown};
use anyhow::Result;
use phoebus_files::key::Key;
use phoebus_files::store::Kind;
use phoebus_files::{Error, Sort};
use std::ffi::OsString;
use std::process::ExitCode;

/// Make directories
#[derive(clap::Args)]
#[command(after_help = CODES)]
pub(crate) struct Args {
    /// What is made
    #[arg(value_name = "PLACE", required = true)]
    places: Vec<OsString>,
    /// Make those above, too; one that is there already is no error
    #[arg(long, short)]
    parents: bool,
    #[command(flatten)]
    far: FarArgs,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    block_on(async {
        let (mut stores, mut tally) = (Stores::new(&args.far, Carried::default()), Tally::default());
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
                // Servers have many words for it: what counts is whether one is there.
                match place.store.stat_to_write(&key).await {
                    Ok(meta) if meta.kind == Kind::Dir => {}
                    Ok(meta) => {
                        let name = shown(&*place.store, &key);
                        return Err(Error::Kind { name, is: meta.kind.described(), expected: "a directory" });
                    }
                    // Something is there, and why it does not do is said: a link that is not followed.
                    Err(why) if why.sort() == Sort::Denied => return Err(why),
                    Err(_) => return Err(error),
                }
            }
        }
    } else {
        if let Err(error) = place.store.make_dir(&place.key).await {
            let above = place.key.parent();
            // Servers have many words for it, and systems speak of what was to be made.
            let settled = matches!(error.sort(), Sort::Exists | Sort::Passing | Sort::NoSpace) || above.is_root();
            return match settled || place.store.stat(&above).await.err().is_none_or(|e| e.sort() != Sort::NotFound) {
                true => Err(error),
                false => Err(Error::NoParent { name: place.name() }),
            };
        }
    }
    place.store.settle().await
}
