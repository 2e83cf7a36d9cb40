//! The command line of `phoebus cp`, and what its options mean to the file engine.

use super::auto::{Auto, Files};
use super::choice::Choice;
use super::items::Group;
use super::limit::Limit;
use super::rules::Rules;
use super::watch::{self, Style, Watch};
use crate::exit::Exit;
use crate::place::{FarArgs, Stores};
use anyhow::Result;
use clap::ValueEnum;
use phoebus_files::Retry;
use phoebus_files::job::Job;
use phoebus_files::key::Key;
use phoebus_files::plan::{By, Existing, Filter};
use phoebus_files::sum::Algorithm;
use phoebus_files::{How, Stop, Throttle, Verify};
use phoebus_proto::units::{ByteSize, Span, UnitError};
use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

/// How much `--delete` removes if nobody says otherwise: a slip such as a source that is not mounted does not empty a large tree.
const MAX_DELETE: usize = 1000;

/// Copy files and directories, verified, and go on where an earlier run was cut
///
/// A file has its name at the destination only once all of it is there and has been verified. The same command, run again,
/// goes on with what was cut, copies what has changed, and says so if there is nothing to do. A directory is copied with -r:
/// "dir" becomes DEST/dir, "dir/" and what is in it becomes DEST, whether DEST exists or not.
#[derive(clap::Args)]
#[command(
    disable_help_flag = true,
    override_usage = "phoebus cp [OPTIONS] SOURCE... DEST\n       phoebus cp [OPTIONS] --list FILE [SOURCE]... [DEST]",
    after_help = "\
Exit codes: 0 all is there, whether there was anything to do or not; 2 wrong arguments; \
4 some of it is there and some failed or was left out; 5 the source is not there; 6 not allowed; 7 no space; 8 damaged on the \
way, or not verifiable; 9 nothing to do, with --error-on-no-transfer; 10 there already, with --existing refuse; 11 it failed in a \
way that may pass: run it again; 1 anything else; 130 or 143 interrupted: the same command goes on.

Examples:
  phoebus cp -r run42 /archive                 /archive/run42, with all that is in it
  phoebus cp -r --sync checksum run42/ mirror  the contents of run42, compared by their bytes
  phoebus cp '/data/*.h5' /archive/h5/ --limit-rate 500mbit
  tar c run42 | phoebus cp - /archive/run42.tar
"
)]
pub(crate) struct Args {
    /// What is copied, and at the end where to: paths, file:///, patterns in quotes, or "-" for standard input or output
    #[arg(value_name = "PLACE", required_unless_present = "list")]
    pub(super) places: Vec<OsString>,
    /// Copy what FILE lists ("-" is standard input): a source on each line, or a source and a destination
    #[arg(long, value_name = "FILE")]
    pub(super) list: Option<PathBuf>,
    /// The sources that FILE lists end with NUL, as find -print0 writes them
    #[arg(long, short = '0', requires = "list")]
    pub(super) null: bool,
    /// Copy directories with all that is in them
    #[arg(long, short, short_alias = 'R')]
    pub(super) recursive: bool,
    /// As cp -p: times and modes, which are preserved without it, too
    #[arg(short = 'p', hide = true, conflicts_with = "preserve")]
    _preserve: bool,
    /// Make the directories above a destination
    #[arg(long)]
    pub(super) parents: bool,
    /// Copy directories and keep times, modes and symbolic links, as cp -a and rsync -a do: -r --preserve times,modes --links. Where
    /// a server has no symbolic links, those to files are followed, and the report says so
    #[arg(long, short = 'a')]
    archive: bool,
    /// Copy symbolic links as such, and follow none; by default those to files are followed, and others are left out
    #[arg(long, short = 'l')]
    pub(super) links: bool,
    /// Once all is copied, delete from the destination's directories what the source does not have; nothing if anything failed.
    /// What --exclude leaves out stays
    #[arg(long)]
    pub(super) delete: bool,
    /// Delete nothing if more than N files and directories would be
    #[arg(long, value_name = "N", default_value_t = MAX_DELETE, requires = "delete")]
    max_delete: usize,
    #[command(flatten)]
    pub(super) rules: Rules,
    #[command(flatten)]
    pub(super) choice: Choice,
    /// Copy what differs by "size", by size and "time" (copied if it is newer), or by "checksum"; by default what was copied with
    /// its time is skipped while size and time are the same. A source of such a name is written with its directory: ./checksum
    #[arg(long, value_name = "BY", num_args = 0..=1, require_equals = true, default_missing_value = "time",
        conflicts_with = "existing")]
    pub(super) sync: Option<Sync>,
    /// What is done about files that the destination has: "replace" all, "keep" all, or "refuse"
    #[arg(long, value_name = "WHAT")]
    pub(super) existing: Option<Kept>,
    /// Replace files that the destination has and that may not be written, as cp -f does. This happens without it, too, unless
    /// --existing says otherwise
    #[arg(long, short = 'f', conflicts_with = "existing")]
    force: bool,
    /// What is preserved: "times", "modes", both with a comma between, or "none"
    #[arg(long, value_name = "WHAT", default_value = "times,modes")]
    pub(super) preserve: Preserve,
    /// How it is made sure that the bytes are the same: "auto" (a checksum that both ends compute, or sizes if there is none), a
    /// checksum (CRC32C, ADLER32, MD5, SHA1, SHA256, SHA512), "reread" or
    /// "reread:CHECKSUM" to read again what was written, or "none"
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub(super) verify: VerifyBy,
    /// Say what would be done, and do nothing
    #[arg(long, short = 'n')]
    pub(super) dry_run: bool,
    /// Carry each file over so many connections at once (MODE E), for servers of GridFTP; or "auto": one stream, unless the path is
    /// such that several carry more
    #[arg(long, value_name = "N", default_value_t = Auto(None))]
    pub(super) streams: Auto<256>,
    /// Have all data nodes of a striped server move each file, for servers of GridFTP (SPAS, SPOR); --streams is then of each of them
    #[arg(long)]
    pub(super) stripe: bool,
    /// Write files on servers under their own names, which a file then has before it is complete: for servers that let nobody
    /// rename
    #[arg(long)]
    pub(super) in_place: bool,
    /// Keep files that are not complete in a directory of this name beside where they go, and not under hidden names there. It is made
    /// where it is missing, removed when nothing is in it, and neither copied nor deleted
    #[arg(long, value_name = "NAME", value_parser = partial_dir, conflicts_with = "in_place")]
    pub(super) partial_dir: Option<Key>,
    #[command(flatten)]
    pub(super) far: FarArgs,
    /// How many files are copied at a time: a number, or "auto": 4 long ones, and more short ones where servers are far
    #[arg(long, value_name = "N", default_value_t = Auto(None))]
    pub(super) transfers: Auto<256>,
    /// Carry at most this much in all: bytes a second such as 5M or 5MB/s, or bits such as 500mbit
    #[arg(long, value_name = "RATE")]
    pub(super) limit_rate: Option<Limit>,
    /// Carry so much of each device, such as /dev/zero, which has no end of its own: to measure with
    #[arg(long, value_name = "SIZE")]
    pub(super) length: Option<ByteSize>,
    /// Try a file, and a server that is not there, so often, with longer and longer pauses
    #[arg(long, value_name = "N", default_value_t = Retry::default().attempts, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(super) attempts: u32,
    /// Give a file up when nothing has moved for so long
    #[arg(long, alias = "stall", value_name = "DURATION", default_value_t = Span(How::default().stall), value_parser = seconds)]
    pub(super) timeout: Span,
    /// End with code 9 if there was nothing to do
    #[arg(long)]
    pub(super) error_on_no_transfer: bool,
    /// Say on standard output what happens, in JSON: a line for each file, for each second, and for the end
    #[arg(long, conflicts_with_all = ["verbose", "quiet"])]
    pub(super) json: bool,
    /// Append a line to FILE, with its time, for each file and for what else is told
    #[arg(long, value_name = "FILE")]
    pub(super) log_file: Option<PathBuf>,
    /// Name each file
    #[arg(long, short)]
    pub(super) verbose: bool,
    /// Say nothing but what fails
    #[arg(long, short, conflicts_with = "verbose")]
    pub(super) quiet: bool,
    /// Print help. Beside other options or places, -h is of sizes, as in rsync -avh: they are printed as 1.5 GB without it, too
    #[arg(long, short, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

/// A length of time; a number alone is of seconds, as curl and rsync take it.
fn seconds(text: &str) -> Result<Span, UnitError> {
    match text.bytes().all(|byte| byte.is_ascii_digit()) && !text.is_empty() {
        true => format!("{text}s").parse(),
        false => text.parse(),
    }
}

/// `arguments` of the whole program as clap can read those of `cp`:
///
/// - the value of `--sync` is joined to it. That option may stand without a value, as GCT's does, so that clap takes one only after "=";
///   people also write it after a blank, as the values of all others;
/// - `-h` is left out, alone or among other letters, where it is not all that is said: as for rsync, it is then of sizes.
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

/// A group of letters without the `h` in it.
fn without_h(argument: OsString) -> OsString {
    let letters = argument.to_str().and_then(|text| text.strip_prefix('-')).filter(|text| text.len() > 1);
    let Some(letters) = letters.filter(|letters| !letters.starts_with('-')) else { return argument };
    // What follows these is their value.
    let end = letters.find(['i', 'J', 'P']).unwrap_or(letters.len());
    let (letters, value) = letters.split_at(end);
    let rest = letters.replace('h', "") + value;
    if rest.is_empty() { argument } else { format!("-{rest}").into() }
}

/// The name of a directory for drafts.
fn partial_dir(text: &str) -> Result<Key, String> {
    let name = text.trim_end_matches('/');
    let wrong = || {
        format!("\"{text}\" is not a name; expected one without \"/\", such as .partial: each directory has its own")
    };
    Key::parse(name).ok().filter(|key| !key.is_root() && !name.contains('/')).ok_or_else(wrong)
}

impl Args {
    pub(super) fn how(&self, stop: &Stop) -> How {
        How {
            stop: stop.clone(),
            verify: self.verify.0,
            stall: self.timeout.0,
            throttle: self.limit_rate.map(|rate| Throttle::new(rate.0)),
            length: self.length.map(|size| size.0),
            times: self.preserve.times,
            modes: self.preserve.modes,
            ..How::default()
        }
    }

    pub(super) fn job(
        &self,
        group: &Group,
        how: &How,
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
            watcher: Arc::new(watch::Told::new(watch.clone(), &*group.source, &*group.dest)),
            ..Job::new(group.source.clone(), group.dest.clone())
        }
    }

    /// Whether directories are copied.
    pub(super) fn is_recursive(&self) -> bool {
        self.recursive || self.archive
    }

    /// Whether symbolic links are kept, where both ends have them.
    pub(super) fn keeps_links(&self) -> bool {
        self.links || self.archive
    }

    /// What makes no sense whatever is copied.
    ///
    /// # Errors
    /// It is asked for (exit code 2).
    pub(super) fn check(&self) -> Result<()> {
        if self.timeout.0.is_zero() {
            return Err(Exit::usage("--timeout: more than nothing was expected"));
        }
        if self.delete && !self.is_recursive() {
            return Err(Exit::usage("--delete is about directories, which are copied with -r"));
        }
        Ok(())
    }

    pub(super) fn retry(&self) -> Retry {
        Retry { attempts: self.attempts, ..Retry::default() }
    }

    /// What is done about files that are there, if copies have the times of their sources or not.
    pub(super) fn existing(&self, same_times: bool) -> Existing {
        match (self.existing, self.sync) {
            (Some(Kept::Replace), _) => Existing::Replace,
            (Some(Kept::Keep), _) => Existing::Keep,
            (Some(Kept::Refuse), _) => Existing::Refuse,
            (None, Some(Sync::Size)) => Existing::Sync(By::Size),
            (None, Some(Sync::Time)) => Existing::Sync(By::Time),
            (None, Some(Sync::Checksum)) => Existing::Sync(By::Checksum),
            // A destination whose time was set tells a file that was put back to an older version, too.
            (None, None) => Existing::Sync(if same_times { By::Equal } else { By::Time }),
        }
    }

    /// Whether what is told of files goes to standard output.
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

    /// Whether files are chosen by their names, sizes or ages.
    pub(super) fn chooses(&self) -> bool {
        self.choice.is_some() || !self.rules.is_empty()
    }

    /// What makes no sense of a stream is refused, and not passed over.
    pub(super) fn check_stream(&self) -> Result<()> {
        let senseless = [
            (self.is_recursive(), "--recursive"),
            (self.links, "--links"),
            (self.choice.is_some(), "a choice by size or age"),
            (self.parents, "--parents"),
            (self.dry_run, "--dry-run"),
            (self.sync.is_some(), "--sync"),
            (self.existing == Some(Kept::Keep), "--existing keep"),
            (!self.rules.is_empty(), "--include and --exclude"),
        ];
        match senseless.into_iter().find(|(given, _)| *given) {
            Some((_, name)) => Err(Exit::usage(format!("{name} cannot be had of \"-\", which is a stream"))),
            None => Ok(()),
        }
    }
}

/// By what is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Sync {
    Size,
    Time,
    Checksum,
}

/// What is done about files that are there.
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

/// How is verified.
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
    fn what_clap_cannot_read_is_made_such_as_it_can() {
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
