//! `phoebus ls`: what is in directories.

use super::{CODES, Tally, block_on, described, find_all, print, printable, time_of};
use crate::cp::human;
use crate::place::{Carried, FarArgs, Place, Stores, shown};
use anyhow::Result;
use phoebus_files::Error;
use phoebus_files::key::Key;
use phoebus_files::store::{Entry, Kind, Listing, Meta, Store};
use std::cmp::Reverse;
use std::ffi::OsString;
use std::process::ExitCode;

/// How many entries are kept in mind to be sorted: some twenty megabytes of them. A server may list without end.
const BATCH: usize = 100_000;

/// List directories
///
/// Each name has a line of its own. Names are sorted, of very large directories 100000 at a time. Those that begin with a dot, and drafts of transfers that were cut, are
/// shown with -a. Times are in UTC.
#[derive(clap::Args)]
#[command(after_help = CODES, disable_help_flag = true)]
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
    /// List directories themselves, and not what is in them
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
        let time = meta.modified.map_or_else(unknown, |time| time_of(time).0);
        let mode = meta.mode.map_or_else(unknown, |mode| format!("{mode:04o}"));
        format!("{mode:>4} {size:>14} {time:>19} {name}{slash}")
    }
}

/// All entries of a directory, by name, and with `drafts` what transfers that were cut have left there, too.
pub(super) async fn entries(store: &dyn Store, dir: &Key, drafts: bool) -> Result<Vec<Entry>, Error> {
    Entries::of(store, dir, drafts, usize::MAX).await?.next().await
}

/// The entries of a directory, so many at a time.
struct Entries {
    listing: Box<dyn Listing>,
    most: usize,
    /// Whether there are no more.
    ended: bool,
}

impl Entries {
    /// Those of `dir`, at least `most` at a time while there are so many.
    async fn of(store: &dyn Store, dir: &Key, drafts: bool, most: usize) -> Result<Self, Error> {
        let listing = if drafts { store.list_all(dir) } else { store.list(dir) };
        Ok(Self { listing: listing.await?, most, ended: false })
    }

    /// The next of them, by name; none at the end.
    async fn next(&mut self) -> Result<Vec<Entry>, Error> {
        let mut batch = Vec::new();
        while !self.ended && batch.len() < self.most {
            let page = self.listing.more().await?;
            self.ended = page.is_empty();
            batch.extend(page);
        }
        batch.sort_by(|a: &Entry, b| a.name.cmp(&b.name));
        Ok(batch)
    }
}

/// The key of an entry, unless a server names what cannot be a name.
pub(super) fn join(store: &dyn Store, dir: &Key, entry: &Entry) -> Result<Key, Error> {
    dir.join(&entry.name).map_err(|error| Error::Store {
        name: shown(store, dir),
        reason: error.to_string(),
        sort: phoebus_files::Sort::Request,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use phoebus_files::store::Fallible;

    /// Pages of three names, without end.
    #[derive(Debug)]
    struct Endless(u32);

    impl Listing for Endless {
        fn more(&mut self) -> Fallible<'_, Vec<Entry>> {
            let meta = Meta { kind: Kind::File, size: None, modified: None, mode: None, sparse: false, identity: None };
            let page = (0..3).map(|_| {
                self.0 -= 1;
                Entry { name: self.0.to_string().into_bytes(), meta }
            });
            let page = page.collect();
            Box::pin(async { Ok(page) })
        }
    }

    #[tokio::test]
    async fn a_listing_without_end_is_sorted_in_batches() {
        let mut entries = Entries { listing: Box::new(Endless(100)), most: 5, ended: false };
        for first in [94, 88] {
            let names: Vec<_> = entries.next().await.unwrap().into_iter().map(|entry| entry.name).collect();
            let expected: Vec<_> = (first..first + 6).map(|n: u32| n.to_string().into_bytes()).collect();
            assert_eq!(names, expected);
        }
    }
}
