//! `phoebus clean`: drafts that transfers have left behind.

use super::{CODES, Tally, block_on, described, find_all, print, printable, tell};
use crate::exit;
use crate::human;
use crate::place::FarArgs;
use anyhow::Result;
use phoebus_files::store::Time;
use phoebus_files::{Cleaning, Error, Fate, Found, moved_from};
use phoebus_places::{Carried, Outcomes, shown};
use phoebus_proto::units::Span;
use serde_json::json;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::SystemTime;

/// Remove what transfers that were cut have left behind
///
/// Drafts and their journals below the directories PLACE are removed and named, as are hidden directories in which cp
/// tried names, and nothing else is. One that a transfer is writing stays: on this machine, and on servers that are
/// Phoebus's own, that is known by its lock, and elsewhere only by its age.
#[derive(clap::Args)]
#[command(after_help = CODES)]
pub(crate) struct Args {
    /// Directories, or patterns of them
    #[arg(value_name = "PLACE", required = true)]
    places: Vec<OsString>,
    /// Only say what would be removed
    #[arg(long, short = 'n')]
    dry_run: bool,
    /// Remove only drafts that were modified at least so long ago
    #[arg(long, value_name = "DURATION", default_value = "1d")]
    min_age: Span,
    /// Print a line of JSON for each, and one for the end
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    far: FarArgs,
}

/// How many names had each fate.
#[derive(Debug, Default)]
struct Count {
    removed: u64,
    bytes: u64,
    used: u64,
    young: u64,
    undated: u64,
    aside: u64,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    crate::standard::check_output()?;
    block_on(async {
        let (mut stores, mut tally) = (args.far.stores(Carried::default()), Tally::default());
        let (mut count, mut printed) = (Count::default(), Ok(()));
        // Whatever was written before this moment is of any age that one may ask for.
        let before = match args.min_age.0 {
            age if age.is_zero() => None,
            age => Some(Time::from(SystemTime::now().checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH))),
        };
        let cleaning = Cleaning { before, remove: !args.dry_run };
        for place in find_all(&mut stores, &args.places).await? {
            for key in tally.check(place.all().await).unwrap_or_default() {
                let mut told = |found: Result<Found<'_>, Error>| {
                    let line = match found {
                        Ok(found) => {
                            tally.done += 1;
                            args.line(&shown(&*place.store, found.key), &found, &mut count)
                        }
                        Err(error) => {
                            tally.codes.push(exit::code_of_kind(error.kind()));
                            let error = exit::without_numbers(&error.to_string());
                            match args.json {
                                true => Some(json!({ "event": "failed", "error": error }).to_string()),
                                false => {
                                    tell(&error);
                                    None
                                }
                            }
                        }
                    };
                    if let (Some(line), Ok(())) = (line, &printed) {
                        printed = print(&line);
                    }
                };
                cleaning.run(&*place.store, &key, &mut told).await;
            }
            if !args.dry_run {
                tally.check(place.store.settle().await);
            }
        }
        printed?;
        args.report(&count, &tally)?;
        Ok(tally.code())
    })
}

impl Args {
    /// The line about a name.
    fn line(&self, name: &str, found: &Found<'_>, count: &mut Count) -> Option<String> {
        let event = match found.fate {
            Fate::Found | Fate::Removed => {
                count.removed += 1;
                count.bytes += found.meta.size.unwrap_or(0);
                if found.fate == Fate::Found { "found" } else { "removed" }
            }
            Fate::Used => {
                count.used += 1;
                "used"
            }
            Fate::Young => {
                count.young += 1;
                "young"
            }
            Fate::Undated => {
                count.undated += 1;
                "undated"
            }
            Fate::Aside => {
                count.aside += 1;
                "aside"
            }
        };
        if self.json {
            let mut line = described(name, found.meta);
            line["event"] = event.into();
            return Some(line.to_string());
        }
        match found.fate {
            Fate::Found | Fate::Removed => Some(name.to_owned()),
            Fate::Used => Some(format!("{name}: a transfer is writing it, or has changed it lately")),
            Fate::Undated => Some(format!("{name}: nobody says how old it is; --min-age 0s removes it all the same")),
            Fate::Aside => {
                let before = moved_from(found.key.name()).map(printable).unwrap_or_default();
                Some(format!(
                    "{name}: an interrupted move had renamed {before} to this; it is no draft and stays: 'phoebus mv' renames it back"
                ))
            }
            Fate::Young => None,
        }
    }

    fn report(&self, count: &Count, tally: &Tally) -> Result<()> {
        let Count { removed, bytes, used, young, undated, aside } = count;
        let failed = tally.codes.len();
        if self.json {
            let removed_key = if self.dry_run { "found" } else { "removed" };
            let report = json!({
                "event": "report", removed_key: removed, "bytes": bytes, "used": used, "young": young, "undated": undated, "aside": aside,
                "failed": failed, "exit_code": tally.number(),
            });
            return print(&report.to_string());
        }
        let done = if self.dry_run { "would be removed" } else { "removed" };
        let mut said = format!(
            "{removed} {} of drafts {done}, {}",
            if *removed == 1 { "file" } else { "files" },
            human::bytes(*bytes)
        );
        for (number, what) in [
            (used, "in use"),
            (young, "younger than --min-age (1d if it is not given; 0s takes any)"),
            (undated, "of unknown age"),
            (aside, "called otherwise by a move that was cut"),
        ] {
            if *number > 0 {
                said += &format!("; {number} {what}");
            }
        }
        tell(&said);
        Ok(())
    }
}
