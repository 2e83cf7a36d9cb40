//! `phoebus check`: whether two files or trees are the same.

use super::{block_on, print, tell};
use crate::cp::Rules;
use crate::exit;
use crate::place::{self, FarArgs};
use anyhow::Result;
use phoebus_files::job::{Comparison, Difference, Finding};
use phoebus_files::key::Key;
use phoebus_files::plan::By;
use phoebus_files::store::Kind;
use phoebus_places::{Carried, Place, shown};
use serde_json::json;
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;

/// How many files are compared at the same time: as many as cp carries short ones at the most.
const AT_ONCE: usize = 16;

/// Compare two files or directory trees without changing anything
///
/// Compares SOURCE itself with DEST itself, with or without trailing slashes. Each end computes the checksums of its
/// own files.
#[derive(clap::Args)]
#[command(after_help = "\
Exit codes: 0 the same; 8 they differ, or the ends have no checksum in common; 4 some could not be compared; 2 wrong \
arguments; 5 not found; 6 permission denied; 11 temporary failure; 1 any other failure.")]
pub(crate) struct Args {
    /// The first file or directory
    #[arg(value_name = "SOURCE")]
    source: OsString,
    /// The second file or directory
    #[arg(value_name = "DEST")]
    dest: OsString,
    /// What to compare: "size", size and "time", or size and "checksum"
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = Criterion::Checksum)]
    by: Criterion,
    /// Ignore files that only DEST has
    #[arg(long)]
    one_way: bool,
    #[command(flatten)]
    rules: Rules,
    /// Print a line of JSON for each file, and one for the end
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    far: FarArgs,
}

/// The compared attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Criterion {
    Size,
    Time,
    Checksum,
}

/// The counts.
#[derive(Debug, Default)]
struct Count {
    same: u64,
    differ: u64,
    codes: Vec<u8>,
}

impl Count {
    fn code(&self) -> u8 {
        let compared = self.same + self.differ;
        match self.codes.first() {
            _ if self.differ > 0 || self.codes.contains(&exit::DAMAGED) => exit::DAMAGED,
            None => 0,
            Some(_) if compared > 0 => exit::PARTIAL,
            Some(first) if self.codes.iter().all(|code| code == first) => *first,
            Some(_) => exit::FAILED,
        }
    }
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let filter = Arc::new(args.rules.filter()?);
    block_on(async {
        let carried = Carried { sessions: Some(AT_ONCE), ..Carried::default() };
        let mut stores = args.far.stores(carried);
        let urls = [place::parse(&args.source)?, place::parse(&args.dest)?];
        stores.check_ssh(&urls, None)?;
        let (source, dest) = (stores.find(&urls[0]).await?, stores.find(&urls[1]).await?);
        let by = match args.by {
            Criterion::Size => By::Size,
            Criterion::Time => By::Equal,
            Criterion::Checksum => By::Checksum,
        };
        let (one_way, at_once) = (args.one_way, AT_ONCE);
        let comparison =
            Comparison { source: source.store.clone(), dest: dest.store.clone(), by, filter, one_way, at_once };
        let (mut count, mut printed) = (Count::default(), Ok(()));
        let name = |key: &Key, there: bool| {
            let place = if there { &dest } else { &source };
            if key.is_root() { place.name() } else { format!("{}/{key}", place.name().trim_end_matches('/')) }
        };
        let told = |key: &Key, finding: &Finding| {
            let line = match finding {
                Ok(None) => {
                    count.same += 1;
                    args.json.then(|| json!({ "event": "same", "name": name(key, false) }).to_string())
                }
                Ok(Some(difference)) => {
                    count.differ += 1;
                    let (name, what) = (name(key, *difference == Difference::Extra), difference.to_string());
                    Some(match args.json {
                        true => json!({ "event": "differs", "name": name, "reason": what }).to_string(),
                        false => format!("{name}: {what}"),
                    })
                }
                Err(error) => {
                    count.codes.push(exit::code_of_kind(error.kind()));
                    let error = exit::without_numbers(&error.to_string());
                    match args.json {
                        true => {
                            Some(json!({ "event": "failed", "name": name(key, false), "error": error }).to_string())
                        }
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
        comparison.run(&source.key, &dest.key, told).await;
        printed?;
        let (code, failed) = (count.code(), count.codes.len());
        let (same, differ) = (count.same, count.differ);
        if args.json {
            let report =
                json!({ "event": "report", "same": same, "differ": differ, "failed": failed, "exit_code": code });
            print(&report.to_string())?;
        } else {
            let by = match args.by {
                Criterion::Size => "size alone",
                Criterion::Time => "size and time",
                Criterion::Checksum => "checksum",
            };
            let failed = if failed > 0 { format!("; {failed} could not be compared") } else { String::new() };
            tell(&format!("{same} the same by {by}; {differ} differ{failed}"));
            if code != 0
                && let Some(copy) = copy_inside(&source, &dest).await
            {
                tell(&format!(
                    "{copy} is there, too: cp copies \"DIR\" into a directory that is there, and \"DIR/\" as it"
                ));
            }
        }
        Ok(code.into())
    })
}

/// The directory in `dest` with the name of the directory `source`: what was meant may be that one.
async fn copy_inside(source: &Place, dest: &Place) -> Option<String> {
    let inside = dest.key.join(source.key.name()).ok().filter(|_| !source.key.is_root())?;
    for (place, key) in [(source, &source.key), (dest, &inside)] {
        place.store.stat(key).await.ok().filter(|meta| meta.kind == Kind::Dir)?;
    }
    Some(shown(&*dest.store, &inside))
}
