//! `phoebus cp`: files and directories from one place to another, verified, continued where an earlier run was cut.
//!
//! The work is a job of the file engine (`phoebus_files::job`); here is what surrounds it: [`items`] finds what goes where,
//! [`rules`] reads filters, [`watch`] tells what happens, [`report`] what came of it, and [`stream`] carries standard input
//! and output.

mod auto;
mod items;
mod meeting;
mod report;
mod rules;
mod stream;
mod watch;

pub(crate) use stream::to_standard_output;
pub(crate) use watch::human;

use crate::exit::{self, Exit};
use crate::place::{self, Carried, FarArgs, Stores, Url};
use anyhow::{Context, Result};
use auto::{Auto, Files};
use items::{Group, Wanted};
use phoebus_files::job::{Job, Retry};
use phoebus_files::plan::{By, Existing, Filter, list};
use phoebus_files::sum::Algorithm;
use phoebus_files::{How, Stop, Throttle, Verify};
use phoebus_proto::text;
use phoebus_proto::units::{BitRate, ByteSize, Span};
use report::Outcome;
use rules::Rules;
use std::ffi::OsString;
use std::fs::File;
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use watch::{Style, Watch};

/// How long it may take, after an interruption, to tell servers that nothing more comes.
const FAREWELL: Duration = Duration::from_millis(500);

/// How long it may take, after an interruption, to make safe what was carried: a disk that is busy may take longer, and then less of
/// it is.
const SETTLE: Duration = Duration::from_secs(5);

/// How long a list may be, in bytes: some ten million names.
const MAX_LIST: u64 = 1 << 30;

/// Copy files and directories, verified, and go on where an earlier run was cut
///
/// A file has its name at the destination only once all of it is there and has been verified. The same command, run again,
/// goes on with what was cut, copies what has changed, and says so if there is nothing to do. A directory is copied with -r:
/// "dir" becomes DEST/dir, "dir/" and what is in it becomes DEST, whether DEST exists or not.
#[derive(clap::Args)]
#[command(
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
    places: Vec<OsString>,
    /// Copy what FILE lists ("-" is standard input): a source on each line, or a source and a destination
    #[arg(long, short = 'f', value_name = "FILE")]
    list: Option<PathBuf>,
    /// The sources that FILE lists end with NUL, as find -print0 writes them
    #[arg(long, short = '0', requires = "list")]
    null: bool,
    /// Copy directories with all that is in them
    #[arg(long, short)]
    recursive: bool,
    /// Make the directories above a destination
    #[arg(long)]
    parents: bool,
    #[command(flatten)]
    rules: Rules,
    /// Copy what differs by "size", by size and "time" (copied if it is newer), or by "checksum"; by default what was copied with
    /// its time is skipped while size and time are the same
    #[arg(long, value_name = "BY", num_args = 0..=1, require_equals = true, default_missing_value = "time",
        conflicts_with = "existing")]
    sync: Option<Sync>,
    /// What is done about files that the destination has: "replace" all, "keep" all, or "refuse"
    #[arg(long, value_name = "WHAT")]
    existing: Option<Kept>,
    /// What is preserved: "times", "modes", both with a comma between, or "none"
    #[arg(long, value_name = "WHAT", default_value = "times,modes")]
    preserve: Preserve,
    /// How it is made sure that the bytes are the same: "auto" (a checksum that both ends compute, or sizes if there is none), a
    /// checksum (CRC32C, ADLER32, MD5, SHA1, SHA256, SHA512), "reread" or
    /// "reread:CHECKSUM" to read again what was written, or "none"
    #[arg(long, value_name = "HOW", default_value = "auto")]
    verify: VerifyBy,
    /// Say what would be done, and do nothing
    #[arg(long, short = 'n')]
    dry_run: bool,
    /// Carry each file over so many connections at once (MODE E), for servers of GridFTP; or "auto": one stream, unless the path is
    /// such that several carry more
    #[arg(long, value_name = "N", default_value_t = Auto(None))]
    streams: Auto<256>,
    /// Have all data nodes of a striped server move each file, for servers of GridFTP (SPAS, SPOR); --streams is then of each of them
    #[arg(long)]
    stripe: bool,
    /// Write files on servers under their own names, which a file then has before it is complete: for servers that let nobody
    /// rename
    #[arg(long)]
    in_place: bool,
    #[command(flatten)]
    far: FarArgs,
    /// How many files are copied at a time: a number, or "auto": 4 long ones, and more short ones where servers are far
    #[arg(long, value_name = "N", default_value_t = Auto(None))]
    transfers: Auto<256>,
    /// Carry at most this much in all, such as 500mbit
    #[arg(long, value_name = "RATE")]
    limit_rate: Option<BitRate>,
    /// Carry so much of each device, such as /dev/zero, which has no end of its own: to measure with
    #[arg(long, value_name = "SIZE")]
    length: Option<ByteSize>,
    /// Try a file, and a server that is not there, so often, with longer and longer pauses
    #[arg(long, value_name = "N", default_value_t = Retry::default().attempts, value_parser = clap::value_parser!(u32).range(1..=1000))]
    attempts: u32,
    /// Give a file up when nothing has moved for so long
    #[arg(long, value_name = "DURATION", default_value_t = Span(How::default().stall))]
    stall: Span,
    /// End with code 9 if there was nothing to do
    #[arg(long)]
    error_on_no_transfer: bool,
    /// Say on standard output what happens, in JSON: a line for each file, for each second, and for the end
    #[arg(long, conflicts_with_all = ["verbose", "quiet"])]
    json: bool,
    /// Name each file
    #[arg(long, short)]
    verbose: bool,
    /// Say nothing but what fails
    #[arg(long, short, conflicts_with = "verbose")]
    quiet: bool,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let filter = Arc::new(args.rules.filter()?);
    if args.stall.0.is_zero() || args.limit_rate.is_some_and(|rate| rate.0 < 8) {
        return Err(Exit::usage("--stall and --limit-rate: more than nothing was expected"));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let (result, patience) = runtime.block_on(async {
        let stop = Stop::default();
        let work = copy(&args, filter, &stop);
        tokio::pin!(work);
        tokio::select! {
            result = &mut work => (result, Duration::ZERO),
            number = interrupted() => {
                watch::tell("phoebus: interrupted; the same command goes on where this one was");
                stop.ask();
                // Who asks once more does not want to wait for what was carried to be made safe.
                tokio::select! {
                    () = stop.over() => {}
                    _ = interrupted() => {}
                    () = tokio::time::sleep(SETTLE) => {}
                }
                (number.map(|number| ExitCode::from(exit::SIGNAL.saturating_add(number))), FAREWELL)
            }
        }
    });
    // A thread of the runtime may still be waiting for standard input.
    runtime.shutdown_timeout(patience);
    result
}

/// The number of the signal that asks to end.
async fn interrupted() -> Result<u8> {
    let (mut int, mut term) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let number = tokio::select! {
        _ = int.recv() => 2,
        _ = term.recv() => 15,
    };
    Ok(number)
}

async fn copy(args: &Args, filter: Arc<Filter>, stop: &Stop) -> Result<ExitCode> {
    let wanted = wanted(args)?;
    let sessions = args.transfers.0.map_or(auto::SESSIONS, |n| n as usize);
    let (in_place, stall) = (args.in_place, Some(args.stall.0));
    let (streams, choose) = (args.streams.0, Some(auto::streams as fn(&_) -> u32));
    let carried = Carried { streams, choose, in_place, stall, sessions: Some(sessions), striped: args.stripe };
    let stores = Stores::new(&args.far, carried);
    let (how, paths) = (args.how(stop), stores.paths());
    let watch = Arc::new(Watch::new(args.style(), args.verbose, args.dry_run, how.progress.clone(), paths.clone()));
    let told = watch.clone();
    let mut stores = stores.trying(args.retry(), move |error, wait| told.again(None, error, wait));
    let mut outcome = Outcome::begin(args.dry_run, paths);
    let mut among = false;
    if let Some(end) = stream::find(&wanted, args.list.is_some())? {
        args.check_stream()?;
        stream::carry(end, &mut stores, &how, args.existing, &watch, &mut outcome).await?;
    } else {
        let within = args.recursive.then_some(&*filter);
        let (groups, failures) = items::plan(&wanted, &mut stores, within, args.parents, args.dry_run).await?;
        for (name, error) in failures {
            watch.failed(&name, &error);
            outcome.fail(name, &error);
        }
        let jobs: Vec<(Job, Group)> =
            groups.into_iter().map(|group| (args.job(&group, &how, &filter, &watch, &stores), group)).collect();
        if args.verbose || args.json {
            let asked = (args.streams.0, args.transfers.0);
            for (name, rtt, windows) in stores.servers() {
                watch.chose(&auto::words(&name, rtt, windows, asked));
            }
        }
        let showing = watch.clone().show(jobs.iter().map(|(job, group)| (job.clone(), group.items.clone())).collect());
        among = jobs.iter().any(|(_, group)| group.source.is_far() && group.dest.is_far());
        let work = async {
            for (job, group) in jobs {
                let report = job.run(group.items.iter().cloned()).await;
                if report.carried > 0 && !args.dry_run {
                    outcome.not_verified(job.how.verify, &(&*group.source).into(), &(&*group.dest).into());
                }
                let stopped = report.stopped;
                outcome.add(&group, report);
                if stopped {
                    break;
                }
            }
        };
        tokio::select! {
            () = work => {}
            () = showing => {}
        }
    }
    watch.end();
    if stop.is_asked() {
        // What has been said of it is all.
        return Ok(ExitCode::from(exit::FAILED));
    }
    outcome.streams = stores.most_streams();
    outcome.by_way = stores.why_by_way();
    if among && args.limit_rate.is_some() {
        outcome.by_way.push("what keeps to --limit-rate is this end".to_owned());
    }
    outcome.all_moved = how.progress.bytes_moved();
    let (refused, names) = stores.without_modes();
    outcome.modes_refused = refused;
    for name in names.iter().filter(|_| args.verbose) {
        watch.chose(&format!("{name}: its mode was not set, since the server refuses SITE CHMOD"));
    }
    outcome.between = how.progress.bytes_between();
    let code = outcome.code(args.error_on_no_transfer);
    match args.style() {
        Style::Json => watch::out(&outcome.json(code).to_string()),
        Style::Text | Style::Bar => watch::tell(&outcome.to_string()),
        Style::Quiet => {}
    }
    Ok(code.into())
}

/// What the arguments and the list name.
fn wanted(args: &Args) -> Result<Wanted> {
    let mut places = args.places.iter().map(|place| place::parse(place)).collect::<Result<Vec<Url>>>()?;
    let dest = places.pop();
    let mut wanted = Wanted { sources: places, dest, pairs: Vec::new() };
    let Some(file) = &args.list else {
        return match wanted.sources.is_empty() {
            true => Err(Exit::usage("a source and a destination were expected; only one place is given")),
            false => Ok(wanted),
        };
    };
    for item in read_list(file, args.null)? {
        let source = place::parse(item.source.as_ref())?;
        match item.dest {
            Some(dest) => wanted.pairs.push((source, place::parse(dest.as_ref())?)),
            None => wanted.sources.push(source),
        }
    }
    match &wanted.dest {
        None if !wanted.sources.is_empty() => {
            Err(Exit::usage("a destination was expected, since the list has sources without one"))
        }
        Some(_) if wanted.sources.is_empty() && !wanted.pairs.is_empty() => {
            Err(Exit::usage("no destination was expected: the list has one for each source"))
        }
        _ => Ok(wanted),
    }
}

fn read_list(file: &Path, null: bool) -> Result<Vec<list::Item>> {
    let shown = file.display();
    let source: Box<dyn Read> = match file.as_os_str() == "-" {
        true => Box::new(std::io::stdin()),
        false => Box::new(File::open(file).map_err(|error| {
            Exit::usage(format!("cannot open the list {shown}: {}", phoebus_client::reason(&error)))
        })?),
    };
    if null {
        let mut bytes = Vec::new();
        source.take(MAX_LIST + 1).read_to_end(&mut bytes).with_context(|| format!("cannot read the list {shown}"))?;
        if bytes.len() as u64 > MAX_LIST {
            return Err(Exit::usage(format!("the list {shown} is longer than {MAX_LIST} bytes")));
        }
        return list::nul_separated(&bytes).map_err(Exit::usage);
    }
    let text = text::read(source, MAX_LIST).map_err(|error| Exit::usage(format!("the list {shown} {error}")))?;
    list::lines(&text).map_err(Exit::usage)
}

impl Args {
    fn how(&self, stop: &Stop) -> How {
        How {
            stop: stop.clone(),
            verify: self.verify.0,
            stall: self.stall.0,
            throttle: self.limit_rate.map(|rate| Throttle::new(rate.0 / 8)),
            length: self.length.map(|size| size.0),
            times: self.preserve.times,
            modes: self.preserve.modes,
            ..How::default()
        }
    }

    fn job(&self, group: &Group, how: &How, filter: &Arc<Filter>, watch: &Arc<Watch>, stores: &Stores) -> Job {
        let rtt = stores.rtt(&group.source).max(stores.rtt(&group.dest));
        let files = Files::choose(self.transfers.0, rtt);
        Job {
            how: how.clone(),
            existing: self.existing(self.preserve.times && group.dest.sets_times()),
            filter: filter.clone(),
            recursive: self.recursive,
            parents: self.parents,
            dry_run: self.dry_run,
            files: files.long,
            short: files.short,
            retry: self.retry(),
            watcher: Arc::new(watch::Told::new(watch.clone(), &*group.source, &*group.dest)),
            ..Job::new(group.source.clone(), group.dest.clone())
        }
    }

    fn retry(&self) -> Retry {
        Retry { attempts: self.attempts, ..Retry::default() }
    }

    /// What is done about files that are there, if copies have the times of their sources or not.
    fn existing(&self, same_times: bool) -> Existing {
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

    fn style(&self) -> Style {
        match (self.json, self.quiet) {
            (true, _) => Style::Json,
            (_, true) => Style::Quiet,
            _ if std::io::stderr().is_terminal() => Style::Bar,
            _ => Style::Text,
        }
    }

    /// What makes no sense of a stream is refused, and not passed over.
    fn check_stream(&self) -> Result<()> {
        let senseless = [
            (self.recursive, "--recursive"),
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
enum Sync {
    Size,
    Time,
    Checksum,
}

/// What is done about files that are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Kept {
    Replace,
    Keep,
    Refuse,
}

/// What is preserved.
#[derive(Debug, Clone, Copy, Default)]
struct Preserve {
    times: bool,
    modes: bool,
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
struct VerifyBy(Verify);

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
