//! `phoebus mv`: new names for what there is, within one store.

use super::{CODES, Tally, block_on, find_all};
use crate::exit::{self, Exit};
use crate::place::{Carried, FarArgs, Stores};
use anyhow::Result;
use phoebus_files::{Error, Sort};
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;

/// Rename files and directories, on one file system
///
/// From one server to another, or from one file system to another, files are copied with phoebus cp and then removed.
#[derive(clap::Args)]
#[command(override_usage = "phoebus mv [OPTIONS] SOURCE... DEST", after_help = CODES)]
pub(crate) struct Args {
    /// What is renamed, and at the end its new name or the directory that it goes to
    #[arg(value_name = "PLACE", required = true, num_args = 2..)]
    places: Vec<OsString>,
    /// Do not replace what has the new name
    #[arg(long, short = 'n')]
    no_replace: bool,
    #[command(flatten)]
    far: FarArgs,
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
            if !Arc::ptr_eq(&source.store, &dest.store) {
                let (from, to) = (source.name(), dest.name());
                return Err(Exit::usage(format!(
                    "{from} cannot be renamed to {to}, which is elsewhere; use cp and rm"
                )));
            }
            let keys = tally.check(source.all().await).unwrap_or_default();
            if !is_dir && keys.len() > 1 {
                return Err(no_dir());
            }
            for key in keys {
                let to = if is_dir { dest.key.join(key.name()) } else { Ok(dest.key.clone()) };
                let renamed = match to {
                    Ok(to) => source.store.rename(&key, &to, !args.no_replace).await,
                    Err(error) => {
                        Err(Error::Store { name: source.name(), reason: error.to_string(), sort: Sort::Request })
                    }
                };
                tally.note(renamed);
            }
        }
        tally.check(dest.store.settle().await);
        Ok(tally.code())
    })
}
