//! `phoebus ls`: what is in directories.

use super::{CODES, Tally, block_on, described, find_all, print, printable, time_of};
use crate::cp::human;
use crate::place::{Carried, FarArgs, Place, Stores, shown};
use anyhow::Result;
use phoebus_files::Error;
use phoebus_files::key::Key;
use phoebus_files::store::{Entry, Kind, Meta, Store};
use std::ffi::OsString;
use std::process::ExitCode;

/// List directories
///
/// Names are sorted; those that begin with a dot, and drafts of transfers that were cut, are shown with -a. Times are in UTC.
#[derive(clap::Args)]
#[command(after_help = CODES)]
pub(crate) struct Args {
    /// Directories, files or patterns
    #[arg(value_name = "PLACE", default_value = ".")]
    places: Vec<OsString>,
    /// Show modes, sizes and times, too
    #[arg(long, short)]
    long: bool,
    /// Show names that begin with a dot, and drafts
    #[arg(long, short)]
    all: bool,
    /// List what is in directories below, too
    #[arg(long, short = 'R')]
    recursive: bool,
    /// Print sizes as 1.5 GB
    #[arg(long, short = 'H')]
    human: bool,
    /// Print a line of JSON for each entry
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    far: FarArgs,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    block_on(async {
        let (mut stores, mut tally) = (Stores::new(&args.far, Carried::default()), Tally::default());
        let places = find_all(&mut stores, &args.places).await?;
        let titled = places.len() > 1 || places.iter().any(Place::is_pattern) || args.recursive;
        for place in places {
            for key in tally.check(place.all().await).unwrap_or_default() {
                args.list(&*place.store, key, titled, &mut tally).await?;
            }
        }
        Ok(tally.code())
    })
}

impl Args {
    /// Lists `key`, and if that was asked for, what is below it.
    async fn list(&self, store: &dyn Store, key: Key, titled: bool, tally: &mut Tally) -> Result<()> {
        let Some(meta) = tally.check(store.stat(&key).await) else { return Ok(()) };
        if meta.kind != Kind::Dir {
            tally.done += 1;
            return print(&self.line(store, &key, &shown(store, &key), &meta));
        }
        // The deepest last; only directories themselves, so that links make no circle.
        let mut dirs = vec![key];
        while let Some(dir) = dirs.pop() {
            let Some(entries) = tally.note(entries(store, &dir, self.all).await) else { continue };
            if titled && !self.json {
                print(&format!("{}:", shown(store, &dir)))?;
            }
            let mut below = Vec::new();
            for entry in entries.iter().filter(|entry| self.all || !entry.name.starts_with(b".")) {
                let Some(key) = tally.check(join(store, &dir, entry)) else { continue };
                print(&self.line(store, &key, &printable(&entry.name), &entry.meta))?;
                if self.recursive && entry.meta.kind == Kind::Dir {
                    below.push(key);
                }
            }
            dirs.extend(below.into_iter().rev());
            if !dirs.is_empty() && !self.json {
                print("")?;
            }
        }
        Ok(())
    }

    fn line(&self, store: &dyn Store, key: &Key, name: &str, meta: &Meta) -> String {
        if self.json {
            return described(&shown(store, key), meta).to_string();
        }
        let slash = if meta.kind == Kind::Dir { "/" } else { "" };
        if !self.long {
            return format!("{name}{slash}");
        }
        let unknown = || "-".to_owned();
        let size = meta.size.map_or_else(unknown, |n| if self.human { human::bytes(n) } else { n.to_string() });
        let time = meta.modified.map_or_else(unknown, |time| time_of(time).0);
        let mode = meta.mode.map_or_else(unknown, |mode| format!("{mode:04o}"));
        format!("{mode:>4} {size:>14} {time:>19} {name}{slash}")
    }
}

/// All entries of a directory, by name, and with `drafts` what transfers that were cut have left there, too.
pub(super) async fn entries(store: &dyn Store, dir: &Key, drafts: bool) -> Result<Vec<Entry>, Error> {
    let listing = if drafts { store.list_all(dir) } else { store.list(dir) };
    let (mut listing, mut all) = (listing.await?, Vec::new());
    loop {
        let page = listing.more().await?;
        if page.is_empty() {
            break;
        }
        all.extend(page);
    }
    all.sort_by(|a: &Entry, b| a.name.cmp(&b.name));
    Ok(all)
}

/// The key of an entry, unless a server names what cannot be a name.
pub(super) fn join(store: &dyn Store, dir: &Key, entry: &Entry) -> Result<Key, Error> {
    dir.join(&entry.name).map_err(|error| Error::Store {
        name: shown(store, dir),
        reason: error.to_string(),
        sort: phoebus_files::Sort::Request,
    })
}
