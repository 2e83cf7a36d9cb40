//! The command line of `phoebus cp`, and its translation to options of the file engine.

use super::bounds::Bounds;
use super::limit::Limit;
use super::rules::Rules;
use super::watch::{self, Style, Watch};
use crate::exit::Exit;
use crate::place::FarArgs;
use anyhow::Result;
use clap::ValueEnum;
use phoebus_files::Retry;
use phoebus_files::block::Pool;
use phoebus_files::job::Job;
use phoebus_files::key::Key;
use phoebus_files::plan::{By, Existing, Filter};
use phoebus_files::sum::Algorithm;
use phoebus_files::{Stop, Throttle, TransferOptions, Verify};
use phoebus_places::Stores;
use phoebus_places::choose::{Auto, Choice, Files};
use phoebus_places::plan::Group;
use phoebus_proto::units::{ByteSize, Span, UnitError};
use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

/// Default limit of `--delete`: a mistake such as an unmounted source does not empty a large tree.
const MAX_DELETE: usize = 1000;

/// Number of buffers if a rate is the limit.
const BUFFERS: usize = 32;

/// Number of buffers of 1 MiB for objects, which stay in memory until all of their packets have arrived.
const OBJECT_BUFFERS: usize = 96;

/// Copy files and directories, verify them, and resume what an earlier run left
///
/// A file gets its name at the destination only after it is complete and verified. Run again, the same command resumes
/// interrupted files, copies what has changed, and says so if there is nothing to do. Directories are copied with -r:
/// "dir" becomes DEST/dir; "dir/" becomes DEST itself, whether DEST exists or not.
#[derive(clap::Args)]
#[command(
    disable_help_flag = true,
    override_usage = "phoebus cp [OPTIONS] SOURCE... DEST\n       phoebus cp [OPTIONS] --list FILE [SOURCE]... [DEST]",
    after_help = "\
Exit codes: 0 everything is at the destination; 2 wrong arguments; 4 some files failed or were skipped; 5 source not \
found; 6 permission denied; 7 no space; 8 verification failed or impossible; 9 nothing to do, with --error-on-no-transfer; \
10 file exists, with --existing refuse; 11 temporary failure, run it again; 1 any other failure; 130 or 143 interrupted, the \
same command resumes.

Examples:
  phoebus cp -r run42 /archive                 /archive/run42, with all that is in it
  phoebus cp -r --sync checksum run42/ mirror  the contents of run42, compared by their bytes
  phoebus cp '/data/*.h5' /archive/h5/ --limit-rate 500mbit
  tar c run42 | phoebus cp - /archive/run42.tar
"
)]
pub(crate) struct Args {
    /// Sources, then the destination: paths, URLs, HOST:PATH, patterns in quotes, or "-" for standard input or output
    #[arg(value_name = "PLACE", required_unless_present = "list")]
    pub(super) places: Vec<OsString>,
    /// Copy what FILE lists ("-" is standard input). Each line has a source, or a source and a destination
    #[arg(long, value_name = "FILE")]
    pub(super) list: Option<PathBuf>,
    /// Names in the list end with NUL, as find -print0 writes them
    #[arg(long, short = '0', requires = "list")]
    pub(super) null: bool,
    /// Copy directories and their contents
    #[arg(long, short, short_alias = 'R')]
    pub(super) recursive: bool,
    /// As cp -p: times and modes, which are preserved without it, too
    #[arg(short = 'p', hide = true, conflicts_with = "preserve")]
    _preserve: bool,
    /// Make the directories above a destination
    #[arg(long)]
    pub(super) parents: bool,
    /// Copy directories and keep times, modes and symbolic links, like cp -a and rsync -a: -r --preserve times,modes
    /// --links. If a server has no symbolic links, links to files are followed, and the report says so
    #[arg(long, short = 'a')]
    archive: bool,
    /// Copy symbolic links as links. By default links to files are followed, and other links are skipped
    #[arg(long, short = 'l')]
    pub(super) links: bool,
    /// After copying, delete files from the destination's directories that the source does not have. Nothing is deleted
    /// if anything failed. Excluded files stay
    #[arg(long)]
    pub(super) delete: bool,
    /// Delete nothing if more than N files and directories would be deleted
    #[arg(long, value_name = "N", default_value_t = MAX_DELETE, requires = "delete")]
    max_delete: usize,
    #[command(flatten)]
    pub(super) rules: Rules,
    #[command(flatten)]
    bounds: Bounds,
    /// How to find files that have changed: by "size", by size and "time" (copied if newer), or by "checksum". By
    /// default a file is skipped if size and time are the same. Write a source of such a name with its directory:
    /// ./checksum
    #[arg(long, value_name = "BY", num_args = 0..=1, require_equals = true, default_missing_value = "time",
        conflicts_with = "existing")]
    pub(super) sync: Option<Sync>,
    /// What to do with files that exist at the destination: "replace" all, "keep" all, or "refuse"
    #[arg(long, value_name = "WHAT")]
    pub(super) existing: Option<Kept>,
    /// Replace existing files even if they are read-only, like cp -f. This is the default unless --existing says
    /// otherwise
    #[arg(long, short = 'f', conflicts_with = "existing")]
    force: bool,
    /// What to preserve: "times", "modes", both separated by a comma, or "none"
    #[arg(long, value_name = "WHAT", default_value = "times,modes")]
    pub(super) preserve: Preserve,
    /// How to verify copies: "auto" (a checksum that both ends compute, or else the size), a checksum (CRC32C, ADLER32,
    /// MD5, SHA1, SHA256, SHA512), "reread" or "reread:CHECKSUM" to read the copy back, or "none"
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub(super) verify: VerifyBy,
    /// Show what would be done, and do nothing
    #[arg(long, short = 'n')]
    pub(super) dry_run: bool,
    /// Number of parallel connections for each file (MODE E, GridFTP servers only); "auto" uses one unless several are
    /// faster on the path
    #[arg(long, value_name = "N", default_value_t = Auto(None))]
    pub(super) streams: Auto<256>,
    /// Use all data nodes of a striped GridFTP server for each file (SPAS, SPOR). --streams then applies to each node
    #[arg(long)]
    pub(super) stripe: bool,
    /// Write files at servers under their final names, where they are visible before they are complete. For servers
    /// that do not allow renaming
    #[arg(long)]
    pub(super) in_place: bool,
    /// Keep incomplete files in a directory of this name beside their destination, instead of under hidden names. It is
    /// created if missing, removed when empty, and never copied or deleted
    #[arg(long, value_name = "NAME", value_parser = partial_dir, conflicts_with = "in_place")]
    pub(super) partial_dir: Option<Key>,
    #[command(flatten)]
    pub(super) far: FarArgs,
    /// Number of files copied at a time; "auto" is 4 long ones, and more short ones if the server is far away
    #[arg(long, value_name = "N", default_value_t = Auto(None))]
    pub(super) transfers: Auto<256>,
    /// Number of blocks of a file that are read from a disk at a time; "auto" is 4
    #[arg(long, value_name = "N", default_value_t = Auto(None))]
    readers: Auto<64>,
    /// Number of blocks of a file that are written at a time; "auto" is 4
    #[arg(long, value_name = "N", default_value_t = Auto(None))]
    writers: Auto<64>,
    /// Number of blocks of 1 MiB in memory, for all files; "auto" is 32, and 96 with --stack object or auto. What arrives as objects has memory of its own
    #[arg(long, value_name = "N", default_value_t = Auto(None), conflicts_with = "limit_rate")]
    buffers: Auto<65536>,
    /// Limit the total rate: bytes per second such as 5M or 5MB/s, or bits per second such as 500mbit
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    pub(super) limit_rate: Option<Limit>,
    /// Copy this much of each device, such as /dev/zero, for measurements
    #[arg(long, value_name = "SIZE")]
    pub(super) length: Option<ByteSize>,
    /// Number of attempts for a file or an unreachable server, with growing pauses between
    #[arg(long, value_name = "N", default_value_t = Retry::default().attempts, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(super) attempts: u32,
    /// Give up a file after this long without progress
    #[arg(long, alias = "stall", value_name = "DURATION", default_value_t = Span(TransferOptions::default().stall_timeout), value_parser = seconds)]
    pub(super) timeout: Span,
    /// End with code 9 if there was nothing to do
    #[arg(long)]
    pub(super) error_on_no_transfer: bool,
    /// Print JSON to standard output: a line for each file, for each second, and for the end
    #[arg(long, conflicts_with_all = ["verbose", "quiet"])]
    pub(super) json: bool,
    /// Append a line with the time to FILE for each file and each message
    #[arg(long, value_name = "FILE")]
    pub(super) log_file: Option<PathBuf>,
    /// Name each file
    #[arg(long, short)]
    pub(super) verbose: bool,
    /// Print failures only
    #[arg(long, short, conflicts_with = "verbose")]
    pub(super) quiet: bool,
    /// Print help. Together with other options or places, -h asks for human-readable sizes, as in rsync -avh, which are
    /// the default
    #[arg(long, short, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

/// A duration. A plain number is in seconds, as for curl and rsync.
fn seconds(text: &str) -> Result<Span, UnitError> {
    match text.bytes().all(|byte| byte.is_ascii_digit()) && !text.is_empty() {
        true => format!("{text}s").parse(),
        false => text.parse(),
    }
}

/// Rewrites `arguments` of the whole program for clap, if the command is `cp`:
///
/// - The value of `--sync` is joined with "=". Clap accepts an optional value only so, but people also write a blank.
/// - `-h` is removed, alone or in a group, unless it is the only argument: as for rsync, it then asks for readable
///   sizes.
pub(crate) fn joined(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let is_cp = arguments.get(1).is_some_and(|command| command == "cp");
    let more = arguments.len() > 3;
    let (mut joined, mut open) = (Vec::<OsString>::new(), is_cp);
    for argument in arguments {
        let is_value =
            Sync::value_variants().iter().filter_map(ValueEnum::to_possible_value).any(|by| argument == by.get_name());
        open &= argument != "--";
        match joined.last_mut() {
            Some(last) if open && is_value && last == "--sync" => {
                last.push("=");
                last.push(argument);
            }
            _ if open && more && argument == "-h" => {}
            _ if open => joined.push(without_h(argument)),
            _ => joined.push(argument),
        }
    }
    joined
}

/// Removes the `h` from a group of letters.
fn without_h(argument: OsString) -> OsString {
    let letters = argument.to_str().and_then(|text| text.strip_prefix('-')).filter(|text| text.len() > 1);
    let Some(letters) = letters.filter(|letters| !letters.starts_with('-')) else { return argument };
    // Options whose next argument is a value.
    let end = letters.find(['i', 'J', 'P']).unwrap_or(letters.len());
    let (letters, value) = letters.split_at(end);
    let rest = letters.replace('h', "") + value;
    if rest.is_empty() { argument } else { format!("-{rest}").into() }
}

/// Parses the name of a directory for drafts.
fn partial_dir(text: &str) -> Result<Key, String> {
    let name = text.trim_end_matches('/');
    let wrong = || {
        format!("\"{text}\" is not a name; expected one without \"/\", such as .partial: each directory has its own")
    };
    Key::parse(name).ok().filter(|key| !key.is_root() && !name.contains('/')).ok_or_else(wrong)
}

impl Args {
    pub(super) fn how(&self, stop: &Stop) -> TransferOptions {
        let usual = TransferOptions::default();
        let or = |auto: Option<u32>, usual: usize| auto.map_or(usual, |number| number as usize);
        let buffers = or(self.buffers.0, if self.far.has_objects() { OBJECT_BUFFERS } else { BUFFERS });
        TransferOptions {
            pool: match self.limit_rate {
                Some(rate) => Pool::new(rate.block(), BUFFERS),
                None => Pool::new(1 << 20, buffers),
            },
            readers: or(self.readers.0, usual.readers),
            writers: or(self.writers.0, usual.writers),
            stop: stop.clone(),
            verify: self.verify.0,
            stall_timeout: self.timeout.0,
            throttle: self.limit_rate.map(|rate| Throttle::new(rate.0)),
            length: self.length.map(|size| size.0),
            times: self.preserve.times,
            modes: self.preserve.modes,
            ..usual
        }
    }

    pub(super) fn job(
        &self,
        group: &Group,
        how: &TransferOptions,
        filter: &Arc<Filter>,
        watch: &Arc<Watch>,
        stores: &Stores,
    ) -> Job {
        let rtt = stores.rtt(&group.source).max(stores.rtt(&group.dest));
        let files = Files::choose(self.transfers.0, rtt);
        Job {
            how: how.clone(),
            existing: self.existing(self.preserve.times && group.dest.sets_times()),
            filter: filter.clone(),
            recursive: self.is_recursive(),
            links: self.keeps_links() && group.has_links(),
            delete: self.delete.then_some(self.max_delete),
            parents: self.parents,
            dry_run: self.dry_run,
            files: files.long,
            short: files.short,
            retry: self.retry(),
            watcher: Arc::new(watch::JobWatcher::new(watch.clone(), &*group.source, &*group.dest)),
            ..Job::new(group.source.clone(), group.dest.clone())
        }
    }

    /// Whether directories are copied.
    pub(super) fn is_recursive(&self) -> bool {
        self.recursive || self.archive
    }

    /// Whether symbolic links are kept, if both ends support them.
    pub(super) fn keeps_links(&self) -> bool {
        self.links || self.archive
    }

    /// Refuses contradictory options, whatever is copied.
    ///
    /// # Errors
    /// The contradiction (exit code 2).
    pub(super) fn check(&self) -> Result<()> {
        if self.timeout.0.is_zero() {
            return Err(Exit::usage("--timeout: more than nothing was expected"));
        }
        if self.delete && !self.is_recursive() {
            return Err(Exit::usage("--delete is about directories, which are copied with -r"));
        }
        Ok(())
    }

    /// The limits of size and age.
    pub(super) fn choice(&self) -> Choice {
        self.bounds.into()
    }

    pub(super) fn retry(&self) -> Retry {
        Retry { attempts: self.attempts, ..Retry::default() }
    }

    /// What to do about existing files, depending on whether copies have their sources' times.
    pub(super) fn existing(&self, same_times: bool) -> Existing {
        match (self.existing, self.sync) {
            (Some(Kept::Replace), _) => Existing::Replace,
            (Some(Kept::Keep), _) => Existing::Keep,
            (Some(Kept::Refuse), _) => Existing::Refuse,
            (None, Some(Sync::Size)) => Existing::Sync(By::Size),
            (None, Some(Sync::Time)) => Existing::Sync(By::Time),
            (None, Some(Sync::Checksum)) => Existing::Sync(By::Checksum),
            // A preserved time also shows that an older version was restored.
            (None, None) => Existing::Sync(if same_times { By::Equal } else { By::Time }),
        }
    }

    /// Whether messages about files go to standard output.
    pub(super) fn prints(&self) -> bool {
        self.json || (!self.quiet && (self.verbose || self.dry_run))
    }

    pub(super) fn style(&self) -> Style {
        match (self.json, self.quiet) {
            (true, _) => Style::Json,
            (_, true) => Style::Quiet,
            _ if std::io::stderr().is_terminal() => Style::Bar,
            _ => Style::Text,
        }
    }

    /// Whether files are selected by name, size or age.
    pub(super) fn chooses(&self) -> bool {
        self.choice().is_some() || !self.rules.is_empty()
    }

    /// Options without meaning for a stream are refused, not ignored.
    pub(super) fn check_stream(&self) -> Result<()> {
        let senseless = [
            (self.is_recursive(), "--recursive"),
            (self.links, "--links"),
            (self.choice().is_some(), "a choice by size or age"),
            (self.parents, "--parents"),
            (self.dry_run, "--dry-run"),
            (self.sync.is_some(), "--sync"),
            (self.existing == Some(Kept::Keep), "--existing keep"),
            (!self.rules.is_empty(), "--include and --exclude"),
        ];
        match senseless.into_iter().find(|(given, _)| *given) {
            Some((_, name)) => Err(Exit::usage(format!("{name} is not possible for \"-\", which is a stream"))),
            None => Ok(()),
        }
    }
}

/// The comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Sync {
    Size,
    Time,
    Checksum,
}

/// What to do about existing files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Kept {
    Replace,
    Keep,
    Refuse,
}

/// What is preserved.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Preserve {
    pub(super) times: bool,
    pub(super) modes: bool,
}

impl FromStr for Preserve {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut preserve = Self::default();
        for part in text.split(',').filter(|_| text != "none") {
            match part {
                "times" => preserve.times = true,
                "modes" => preserve.modes = true,
                _ => return Err("\"times\", \"modes\", \"times,modes\" or \"none\" was expected".to_owned()),
            }
        }
        Ok(preserve)
    }
}

/// The verification.
#[derive(Debug, Clone, Copy)]
pub(super) struct VerifyBy(pub(super) Verify);

impl FromStr for VerifyBy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let algorithm = |name: &str| name.parse::<Algorithm>().map(Some).map_err(|error| error.to_string());
        Ok(Self(match text {
            "auto" => Verify::Possible,
            "none" => Verify::None,
            "reread" => Verify::Reread(None),
            _ => match text.strip_prefix("reread:") {
                Some(name) => Verify::Reread(algorithm(name)?),
                None => Verify::Flight(algorithm(text)?),
            },
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joined_options_are_split_for_clap() {
        for (given, expected) in [
            ("phoebus cp --sync checksum a b", "phoebus cp --sync=checksum a b"),
            ("phoebus cp -r --sync a b", "phoebus cp -r --sync a b"),
            ("phoebus cp --sync ./checksum b", "phoebus cp --sync ./checksum b"),
            ("phoebus cp -- --sync checksum", "phoebus cp -- --sync checksum"),
            ("phoebus run x --sync checksum", "phoebus run x --sync checksum"),
            ("phoebus cp -avh a b", "phoebus cp -av a b"),
            ("phoebus cp -h a b", "phoebus cp a b"),
            ("phoebus cp -h", "phoebus cp -h"),
            ("phoebus cp -rihome host:a b --help", "phoebus cp -rihome host:a b --help"),
            ("phoebus cp -- -ah b", "phoebus cp -- -ah b"),
            ("phoebus rm -h a", "phoebus rm -h a"),
        ] {
            assert_eq!(joined(given.split(' ').map(OsString::from)).join(" ".as_ref()), expected);
        }
    }
}
