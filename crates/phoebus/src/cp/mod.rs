//! `phoebus cp` copies and verifies files and directories, and resumes interrupted copies.
//!
//! A job of the file engine (`phoebus_files::job`) does the work, and `phoebus_places` plans it. The modules:
//!
//! - [`args`] defines the command line.
//! - [`bounds`] defines limits of size and age.
//! - [`chosen`] describes the automatic choices for a server.
//! - [`limit`] parses `--limit-rate`.
//! - [`lost`] lists permissions and times that were not preserved.
//! - [`report`] prints the result.
//! - [`rules`] reads filters.
//! - [`stream`] copies standard input and output.
//! - [`watch`] shows progress.

mod args;
mod bounds;
mod chosen;
mod limit;
mod lost;
mod report;
mod rules;
mod stream;
mod watch;

pub(crate) use args::{Args, joined};
pub(crate) use lost::Lost;
pub(crate) use rules::Rules;
pub(crate) use stream::{Part, to_standard_output};

use crate::exit::{self, Exit};
use crate::hints;
use crate::place;
use crate::standard;
use anyhow::{Context, Result};
use phoebus_files::Stop;
use phoebus_files::job::Job;
use phoebus_files::plan::{Filter, list};
use phoebus_gridftp::client::farewells;
use phoebus_places::plan::{self, CopyRequest, Group};
use phoebus_places::{Carried, Url, choose};
use phoebus_proto::text;
use report::Outcome;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};
use tokio::signal::unix::{SignalKind, signal};
use watch::{Log, Style, Watch};

/// Time to end control connections after an interruption.
pub(crate) const FAREWELL: Duration = Duration::from_millis(500);

/// Time to sync carried bytes after an interruption. A busy disk may take longer, and then less is kept.
const SETTLE: Duration = Duration::from_secs(5);

/// Longest list in bytes: some ten million names.
const MAX_LIST: u64 = 1 << 30;

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    args.check()?;
    let mut filter = args.rules.filter()?;
    filter.never = args.partial_dir.as_ref().map(|dir| dir.name().to_vec());
    filter.bounds = args.choice().bounds(SystemTime::now());
    // Batches of short files keep many open. Programs that cp starts (ssh) do not mind.
    phoebus_net::limits::raise_descriptors();
    if args.prints() {
        standard::check_output()?;
    }
    let log = args.log_file.as_deref().map(Log::open).transpose()?;
    // A list may come slowly, and a signal ends the program meanwhile.
    let wanted = wanted(&args)?;
    let runtime = crate::runtime::multi_thread()?;
    let (result, time_limit) = runtime.block_on(async {
        let shared = Shared::default();
        let work = copy(&args, wanted, log, Arc::new(filter), &shared);
        tokio::pin!(work);
        let signal = tokio::select! {
            result = &mut work => {
                tokio::select! {
                    () = farewells() => {}
                    _ = interrupted() => {}
                }
                return (result, Duration::ZERO);
            }
            signal = interrupted() => signal,
        };
        let code = match signal {
            Ok(number) => exit::SIGNAL.saturating_add(number),
            Err(error) => return (Err(error), FAREWELL),
        };
        let interrupted_as = "phoebus: interrupted; the same command resumes it";
        match shared.watch.get() {
            // A progress bar is removed for the message.
            Some(watch) => watch.tell_beside(interrupted_as),
            None => watch::tell(interrupted_as),
        }
        let _ = shared.interrupted.set(code);
        shared.stop.ask();
        let over = async {
            shared.stop.over().await;
            tokio::time::sleep(FAREWELL).await;
        };
        let reported = tokio::select! {
            result = &mut work => result.is_ok(),
            () = over => false,
            // A second interruption does not wait for the sync.
            _ = interrupted() => false,
            () = tokio::time::sleep(SETTLE) => false,
        };
        if !reported && let Some(watch) = shared.watch.get() {
            tell_of(&Outcome::so_far(watch, args.dry_run), code, &args, watch);
        }
        (Ok(ExitCode::from(code)), FAREWELL)
    });
    // A thread of the runtime may still wait for standard input.
    runtime.shutdown_timeout(time_limit);
    result
}

/// The number of the signal that requests the end.
pub(crate) async fn interrupted() -> Result<u8> {
    let (mut int, mut term) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let number = tokio::select! {
        _ = int.recv() => 2,
        _ = term.recv() => 15,
    };
    Ok(number)
}

/// What an interrupted copy shares with its interruption.
#[derive(Default)]
struct Shared {
    stop: Stop,
    watch: OnceLock<Arc<Watch>>,
    /// The exit code after an interruption.
    interrupted: OnceLock<u8>,
}

/// Prints and logs the report.
fn tell_of(outcome: &Outcome, code: u8, args: &Args, watch: &Watch) {
    watch.log(|| outcome.to_string());
    match args.style() {
        Style::Json => watch::out(&outcome.json(code).to_string()),
        Style::Text | Style::Bar => watch::tell(&outcome.to_string()),
        Style::Quiet => {}
    }
}

async fn copy(
    args: &Args,
    wanted: CopyRequest,
    log: Option<Log>,
    filter: Arc<Filter>,
    shared: &Shared,
) -> Result<ExitCode> {
    let stop = &shared.stop;
    let sessions = args.transfers.0.map_or(choose::SESSIONS, |n| n as usize);
    let (in_place, stall_timeout) = (args.in_place, Some(args.timeout.0));
    let (streams, choose) = (args.streams.0, Some(choose::streams as fn(&_) -> u32));
    let (sessions, partial_dir) = (Some(sessions), args.partial_dir.clone());
    let carried = Carried { streams, choose, in_place, partial_dir, stall_timeout, sessions, striped: args.stripe };
    let stores = args.far.stores(carried);
    let (how, paths) = (args.how(stop), stores.paths());
    let watch = Watch::new(args.style(), args.verbose, args.dry_run, how.progress.clone(), paths.clone());
    let watch = Arc::new(watch.logging(log));
    let _ = shared.watch.set(watch.clone());
    let told = watch.clone();
    let mut stores = stores.trying(args.retry(), move |error, wait| told.again(None, error, wait));
    let mut outcome = Outcome::begin(args.dry_run, paths);
    outcome.chosen = args.chooses();
    let mut among = false;
    if let Some(end) = stream::find(&wanted, args.list.is_some())? {
        args.check_stream()?;
        stream::carry(end, &mut stores, &how, args.existing, &watch, &mut outcome).await?;
    } else {
        let within = args.is_recursive().then_some(&*filter);
        let mut planned = plan::plan(&wanted, &mut stores, within, args.parents, args.dry_run).await?;
        for (name, error) in std::mem::take(&mut planned.failures) {
            watch.failed(&name, &error);
            outcome.fail(name, &error);
        }
        if args.delete {
            plan::check_delete(&planned.groups)?;
        }
        for store in planned.groups.iter().filter_map(Group::without_links).filter(|_| args.keeps_links()) {
            if args.links {
                let name = store.name();
                return Err(Exit::usage(format!(
                    "--links: {name} has no symbolic links; without it those to files are followed"
                )));
            }
            outcome.follows_links(store.name());
        }
        planned.make_missing().await?;
        let jobs: Vec<(Job, Group)> =
            planned.groups.into_iter().map(|group| (args.job(&group, &how, &filter, &watch, &stores), group)).collect();
        if args.verbose || args.json {
            let asked = (args.streams.0, args.transfers.0);
            for (name, rtt, windows) in stores.servers() {
                watch.chose(&chosen::words(&name, rtt, windows, asked));
            }
        }
        watch.expect(&jobs.iter().map(|(job, _)| job).collect::<Vec<_>>());
        let showing = watch.clone().show(jobs.iter().map(|(job, group)| (job.clone(), group.items.clone())).collect());
        among = jobs.iter().any(|(_, group)| group.source.is_far() && group.dest.is_far());
        let work = async {
            for (job, group) in jobs {
                let job = outcome.bounded(job);
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
    outcome.streams = stores.most_streams();
    outcome.objects = stores.objects();
    outcome.carriers = stores.carriers();
    outcome.by_way = stores.why_by_way();
    outcome.public = stores.why_public();
    if among && args.limit_rate.is_some() {
        outcome.by_way.push("this end enforces --limit-rate".to_owned());
    }
    outcome.all_moved = how.progress.bytes_moved();
    let (refused, names) = stores.without_modes();
    outcome.modes_refused = refused;
    for name in names.iter().filter(|_| args.verbose) {
        watch.chose(&format!("{name}: its mode was not set, since the server refuses SITE CHMOD for it"));
    }
    let (refused, names) = stores.without_times();
    outcome.times_refused = refused;
    for name in names.iter().filter(|_| args.verbose) {
        watch.chose(&format!("{name}: its time was not set, since the server refuses MFMT for directories"));
    }
    outcome.between = how.progress.bytes_between();
    outcome.interrupted = shared.interrupted.get().is_some();
    let code = shared.interrupted.get().copied().unwrap_or_else(|| outcome.code(args.error_on_no_transfer));
    tell_of(&outcome, code, args, &watch);
    Ok(code.into())
}

/// What the arguments and the list name.
fn wanted(args: &Args) -> Result<CopyRequest> {
    let mut places = args.places.iter().map(|place| place::parse(place)).collect::<Result<Vec<Url>>>()?;
    let dest = places.pop();
    let mut wanted = CopyRequest { sources: places, dest, pairs: Vec::new() };
    let asking = hints::asking("cp");
    let Some(file) = &args.list else {
        args.far.check_ssh(wanted.sources.iter().chain(&wanted.dest), asking)?;
        return match wanted.sources.is_empty() {
            true => Err(Exit::usage(
                "a source and a destination were expected; only one place is given (--list reads a list of them)",
            )),
            false => Ok(wanted),
        };
    };
    for item in read_list(file, args.null)? {
        let parse = |text: &str| {
            let url = Url::parse(text.as_ref());
            url.map_err(|error| Exit::usage(format!("line {} of the list: {error}", item.line)))
        };
        let source = parse(&item.source)?;
        match &item.dest {
            Some(dest) => wanted.pairs.push((source, parse(dest)?)),
            None => wanted.sources.push(source),
        }
    }
    let in_list = wanted.pairs.iter().flat_map(|(source, dest)| [source, dest]);
    args.far.check_ssh(wanted.sources.iter().chain(&wanted.dest).chain(in_list), asking)?;
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
        true => {
            standard::check_input()?;
            Box::new(std::io::stdin())
        }
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
