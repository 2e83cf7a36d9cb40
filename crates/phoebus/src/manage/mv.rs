//! `phoebus mv`: new names for what there is; from one store to another by a copy ([`moving`](super::moving)).

use super::moving::move_by_copy;
use super::{CODES, Tally, block_on, find_all};
use crate::exit::{self, Exit};
use crate::place::{Carried, FarArgs, Stores, shown};
use anyhow::Result;
use phoebus_files::key::Key;
use phoebus_files::store::{Kind, Store};
use phoebus_files::{Error, Sort};
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;

/// Rename files and directories, or move them from one place to another
///
/// Within a server or a file system they are renamed. Between two, they are copied with all that is in them, with times and modes; each
/// file is removed at its source only once its copy has been verified and has its name. What changed meanwhile, and what cannot be
/// copied (sockets, links to nowhere or to directories, a link that is named itself), stays where it is and is named. Links to files inside
/// a directory become files.
#[derive(clap::Args)]
#[command(override_usage = "phoebus mv [OPTIONS] SOURCE... DEST", after_help = CODES)]
pub(crate) struct Args {
    /// What is moved, and at the end its new name or the directory that it goes to
    #[arg(value_name = "PLACE", required = true, num_args = 2..)]
    places: Vec<OsString>,
    /// Do not replace what has the new name
    #[arg(long, short = 'n')]
    no_replace: bool,
    #[command(flatten)]
    far: FarArgs,
}

/// Whether a name could not be changed since the new one is on another file system.
fn is_across(error: &Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<std::io::Error>());
    source.is_some_and(|source| source.kind() == std::io::ErrorKind::CrossesDevices)
}

/// Why `from` did not get the name `to`, where it is the new name that is wrong: systems and servers speak of the old one.
async fn why(store: &dyn Store, from: &Key, to: &Key, error: Error) -> Error {
    if matches!(error.sort(), Sort::Passing | Sort::NoSpace | Sort::Exists) {
        return error;
    }
    let Ok(source) = store.stat_link(from).await else { return error };
    match store.stat_link(to).await {
        Ok(there) if (source.kind == Kind::Dir) != (there.kind == Kind::Dir) => {
            let expected = if source.kind == Kind::Dir { "a directory" } else { "a file" };
            Error::Kind { name: shown(store, to), is: there.kind.described(), expected }
        }
        Err(absent) if absent.sort() == Sort::NotFound => match store.stat(&to.parent()).await {
            Err(absent) if absent.sort() == Sort::NotFound => Error::NoParent { name: shown(store, to) },
            _ => error,
        },
        _ => error,
    }
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    block_on(async {
        let (mut stores, mut tally) = (Stores::new(&args.far, Carried::default()), Tally::default());
        let mut places = find_all(&mut stores, &args.places).await?;
        let Some(dest) = places.pop() else { return Err(Exit::usage("a source and a destination were expected")) };
        let is_dir = dest.is_dir().await.map_err(exit::of_files)?;
        let no_dir = || Exit::with(exit::ABSENT, format!("{} is no directory, and one was expected", dest.name()));
        if !is_dir && (places.len() > 1 || dest.inside) {
            return Err(no_dir());
        }
        for source in places {
            let keys = tally.check(source.all().await).unwrap_or_default();
            if !is_dir && keys.len() > 1 {
                return Err(no_dir());
            }
            for key in keys {
                let to = if is_dir { dest.key.join(key.name()) } else { Ok(dest.key.clone()) };
                let failed = |error: &dyn std::fmt::Display| Error::Store {
                    name: source.name(),
                    reason: error.to_string(),
                    sort: Sort::Request,
                };
                let to = match to {
                    _ if key.is_root() => Err(failed(&"the root of a store cannot be moved")),
                    to => to.map_err(|error| failed(&error)),
                };
                let Some(to) = tally.check(to) else { continue };
                if Arc::ptr_eq(&source.store, &dest.store) {
                    match source.store.rename(&key, &to, !args.no_replace).await {
                        Err(error) if is_across(&error) => {}
                        renamed => {
                            tally.note(match renamed {
                                Err(error) => Err(why(&*dest.store, &key, &to, error).await),
                                Ok(()) => Ok(()),
                            });
                            continue;
                        }
                    }
                }
                move_by_copy(&source.store, &key, &dest.store, &to, !args.no_replace, &mut tally).await;
            }
        }
        tally.check(dest.store.settle().await);
        Ok(tally.code())
    })
}
