//! `phoebus ls`: lists directories.

use super::{CODES, Tally, block_on, described, find_all, print, printable};
use crate::human;
use crate::place::FarArgs;
use anyhow::Result;
use phoebus_files::key::Key;
use phoebus_files::store::{Kind, Meta, Store};
use phoebus_places::listing::{Entries, join};
use phoebus_places::{Carried, Outcomes, Place, shown};
use std::cmp::Reverse;
use std::ffi::OsString;
use std::process::ExitCode;

/// How many entries are kept in mind to be sorted: some twenty megabytes of them. A server may list without end.
const BATCH: usize = 100_000;

/// List directories
///
/// Prints one name per line, sorted (very large directories in batches of 100000). -a also shows names that begin with
/// a dot and drafts of interrupted transfers. Times are in UTC.
#[derive(clap::Args)]
#[command(after_help = CODES, disable_help_flag = true)]
pub(crate) struct Args {
    /// Directories, files or patterns
    #[arg(value_name = "PLACE", default_value = ".")]
    places: Vec<OsString>,
    /// Also show modes, sizes and times
    #[arg(long, short)]
    long: bool,
    /// Show names that begin with a dot, and drafts
    #[arg(long, short)]
    all: bool,
    /// List subdirectories, too
    #[arg(long, short = 'R')]
    recursive: bool,
    /// List directories themselves, not their contents
    #[arg(long, short)]
    directory: bool,
    /// Sort by time, the newest first
    #[arg(long, short)]
    time: bool,
    /// Each name has a line of its own, with or without this
    #[arg(short = '1', hide = true)]
    one: bool,
    /// Print sizes as 1.5 GB
    #[arg(long, short = 'h', short_alias = 'H')]
    human: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// Print a line of JSON for each entry
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    far: FarArgs,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    block_on(async {
        let (mut stores, mut tally) = (args.far.stores(Carried::default()), Tally::default());
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
    /// Lists `key`; recursively, if requested.
    async fn list(&self, store: &dyn Store, key: Key, titled: bool, tally: &mut Tally) -> Result<()> {
        let Some(meta) = tally.check(store.stat(&key).await) else { return Ok(()) };
        if meta.kind != Kind::Dir || self.directory {
            tally.done += 1;
            return print(&self.line(store, &key, &shown(store, &key), &meta));
        }
        // The deepest last; only directories themselves, so that links make no circle.
        let mut dirs = vec![key];
        while let Some(dir) = dirs.pop() {
            let Some(mut entries) = tally.check(Entries::of(store, &dir, self.all, BATCH).await) else { continue };
            let Some(mut batch) = tally.note(entries.next().await) else { continue };
            if titled && !self.json {
                print(&format!("{}:", shown(store, &dir)))?;
            }
            let mut below = Vec::new();
            while !batch.is_empty() {
                if self.time {
                    batch.sort_by_key(|entry| Reverse(entry.meta.modified));
                }
                for entry in batch.iter().filter(|entry| self.all || !entry.name.starts_with(b".")) {
                    let Some(key) = tally.check(join(store, &dir, entry)) else { continue };
                    print(&self.line(store, &key, &printable(&entry.name), &entry.meta))?;
                    if self.recursive && entry.meta.kind == Kind::Dir {
                        below.push(key);
                    }
                }
                batch = tally.check(entries.next().await).unwrap_or_default();
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
        let time = meta.modified.map_or_else(unknown, |time| human::time(time).0);
        let mode = meta.mode.map_or_else(unknown, |mode| format!("{mode:04o}"));
        format!("{mode:>4} {size:>14} {time:>19} {name}{slash}")
    }
}
