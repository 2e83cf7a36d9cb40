//! The display during a copy: a bar with rates and remaining time, lines of text, or JSON.

mod log;
mod rate;
mod words;

pub(crate) use log::Log;

use crate::human;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use phoebus_files::job::{Event, Job, Report, Watcher};
use phoebus_files::key::Key;
use phoebus_files::plan::{Found, Walk};
use phoebus_files::store::{Kind, Store};
use phoebus_files::{Error, Progress};
use phoebus_places::{Paths, shown};
use rate::Rate;
use serde_json::{Value, json};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use words::about;

/// Interval of JSON lines.
const SECOND: Duration = Duration::from_secs(1);

/// Interval of drawing a bar.
const FRAME: Duration = Duration::from_millis(200);

/// The form of the display.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    /// A bar on standard error.
    Bar,
    /// Only failures, without a bar.
    Text,
    /// Only failures.
    Quiet,
    /// Lines of JSON on standard output.
    Json,
}

/// What is known of the whole.
#[derive(Debug)]
pub(crate) struct Watch {
    style: Style,
    verbose: bool,
    dry_run: bool,
    bar: ProgressBar,
    begun: Instant,
    progress: Arc<Progress>,
    paths: Arc<Paths>,
    counts: Counts,
    log: Option<Log>,
}

#[derive(Debug, Default)]
struct Counts {
    /// Totals, as far as counted.
    files: AtomicU64,
    bytes: AtomicU64,
    /// Whether everything was counted.
    counted: AtomicBool,
    /// Whether the jobs report what they find, and how many still search: remote trees are not listed twice.
    told: AtomicBool,
    uncounted: AtomicUsize,
    /// Finished files: carried, or existing.
    done: AtomicU64,
    failed: AtomicU64,
    /// Bytes of existing files.
    skipped: AtomicU64,
    /// Carried files, their bytes, and the bytes that had to be moved.
    carried: AtomicU64,
    carried_bytes: AtomicU64,
    carried_moved: AtomicU64,
}

impl Counts {
    fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }
}

impl Watch {
    pub(crate) fn new(style: Style, verbose: bool, dry_run: bool, progress: Arc<Progress>, paths: Arc<Paths>) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        if style == Style::Bar && !dry_run {
            bar.set_draw_target(ProgressDrawTarget::stderr());
            bar.set_style(plain_style());
        }
        Self {
            style,
            verbose,
            dry_run,
            bar,
            begun: Instant::now(),
            progress,
            paths,
            counts: Counts::default(),
            log: None,
        }
    }

    /// The same with a log.
    pub(crate) fn logging(self, log: Option<Log>) -> Self {
        Self { log, ..self }
    }

    /// Writes a line to the log, if there is one.
    pub(crate) fn log(&self, text: impl FnOnce() -> String) {
        if let Some(log) = &self.log {
            log.line(&text());
        }
    }

    /// The state so far, and the start.
    pub(crate) fn so_far(&self) -> (Instant, Report) {
        let counts = &self.counts;
        let report = Report {
            carried: Self::load(&counts.carried),
            bytes: Self::load(&counts.carried_bytes),
            moved: Self::load(&counts.carried_moved),
            skipped: Self::load(&counts.done).saturating_sub(Self::load(&counts.carried)),
            failed: Self::load(&counts.failed),
            ..Report::default()
        };
        (self.begun, report)
    }

    /// Bytes moved so far by all attempts, and the paths.
    pub(crate) fn moved(&self) -> (u64, Arc<Paths>) {
        (self.progress.bytes_moved(), self.paths.clone())
    }

    /// Displays progress until it is dropped. Counts what `jobs` will carry meanwhile, if everything is local.
    pub(crate) async fn show(self: Arc<Self>, jobs: Vec<(Job, Vec<(Key, Key)>)>) {
        match self.style {
            _ if self.dry_run => std::future::pending().await,
            Style::Text | Style::Quiet => std::future::pending().await,
            Style::Bar => {
                tokio::join!(self.count(jobs), self.draw());
            }
            Style::Json => {
                tokio::join!(self.count(jobs), self.tell());
            }
        }
    }

    /// Takes totals from `jobs`, if anything is remote. To be called before they begin.
    pub(crate) fn expect(&self, jobs: &[&Job]) {
        self.counts.told.store(jobs.iter().any(|job| job.source.is_far()), Ordering::Relaxed);
        self.counts.uncounted.store(jobs.len(), Ordering::Relaxed);
    }

    /// Reports the automatic choices.
    pub(crate) fn chose(&self, what: &str) {
        self.line_about(self.verbose, || json!({ "event": "chosen", "what": what }), || what.to_owned());
    }

    /// Removes the bar.
    pub(crate) fn end(&self) {
        self.bar.finish_and_clear();
    }

    /// Removes the bar, prints a line on standard error, and draws it again.
    pub(crate) fn tell_beside(&self, line: &str) {
        self.bar.suspend(|| tell(line));
    }

    /// Reports a retry of `name`, or of a server.
    pub(crate) fn again(&self, name: Option<String>, error: &Error, wait: Duration) {
        let seconds = wait.as_secs();
        self.warn(
            || json!({ "event": "again", "name": name, "error": error.to_string(), "wait_s": seconds }),
            || format!("{}; trying again in {seconds} s", about(name.as_deref().unwrap_or_default(), error)),
        );
    }

    /// Reports a final failure.
    pub(crate) fn failed(&self, name: &str, error: &Error) {
        if matches!(error, Error::Stopped { .. }) {
            // The user has requested the end.
            return;
        }
        Counts::add(&self.counts.failed, 1);
        self.log(|| about(name, error));
        match self.style {
            Style::Json => say(&json!({ "event": "failed", "name": name, "error": error.to_string() })),
            _ => self.bar.suspend(|| tell(&format!("phoebus: {}", about(name, error)))),
        }
    }

    async fn draw(&self) {
        let (mut rate, mut with_length) = (Rate::default(), false);
        let mut frames = tokio::time::interval(FRAME);
        loop {
            frames.tick().await;
            let moved = self.progress.bytes_moved();
            rate.push(self.begun.elapsed(), moved);
            let there = moved + self.progress.bytes_kept() + Self::load(&self.counts.skipped);
            let total = self.total();
            if let Some((_, bytes)) = total {
                if !with_length {
                    self.bar.set_style(full_style());
                    with_length = true;
                }
                self.bar.set_length(bytes);
                self.bar.set_position(there.min(bytes));
            }
            self.bar.set_message(self.line(there, moved, total, &rate));
            self.bar.tick();
        }
    }

    /// The text beside the bar.
    fn line(&self, there: u64, moved: u64, total: Option<(u64, u64)>, rate: &Rate) -> String {
        let average = moved as f64 / self.begun.elapsed().as_secs_f64().max(1e-3);
        let mut amount = human::bytes(there);
        if let Some((_, bytes)) = total {
            amount += &format!(" of {}", human::bytes(bytes));
        }
        let left = total.and_then(|(_, bytes)| rate.left(bytes.saturating_sub(there)));
        let done = Self::load(&self.counts.done);
        let mut files = match total {
            Some((files, _)) => format!("{done} of {files} files"),
            None => format!("{done} files"),
        };
        if let failed @ 1.. = Self::load(&self.counts.failed) {
            files += &format!(", {failed} failed");
        }
        // The least important comes last.
        let fields = [
            Some(amount),
            Some(human::rate(rate.now())),
            left.map(|left| format!("{} left", human::span(left))),
            Some(files),
            Some(format!("{} on average", human::rate(average))),
            Some(self.paths.to_string()).filter(|_| !self.paths.is_empty()),
        ];
        let beside = if total.is_some() { BAR } else { 0 };
        fitting(fields.into_iter().flatten(), width().saturating_sub(beside))
    }

    async fn tell(&self) {
        let (mut rate, mut seconds) = (Rate::default(), tokio::time::interval(SECOND));
        seconds.tick().await;
        loop {
            seconds.tick().await;
            let (elapsed, moved) = (self.begun.elapsed(), self.progress.bytes_moved());
            rate.push(elapsed, moved);
            let there = moved + self.progress.bytes_kept() + Self::load(&self.counts.skipped);
            let total = self.total();
            say(&json!({
                "event": "progress",
                "seconds": elapsed.as_secs_f64(),
                "bytes": there,
                "bytes_moved": moved,
                "bytes_total": total.map(|(_, bytes)| bytes),
                "files_done": Self::load(&self.counts.done),
                "files_failed": Self::load(&self.counts.failed),
                "files_total": total.map(|(files, _)| files),
                "path": if self.paths.is_empty() { Value::Null } else { self.paths.to_string().into() },
                "bytes_per_s": rate.now(),
                "bytes_per_s_average": moved as f64 / elapsed.as_secs_f64(),
                "seconds_left": total.and_then(|(_, bytes)| rate.left(bytes.saturating_sub(there))).map(|s| s.as_secs_f64()),
            }));
        }
    }

    /// Totals of files and bytes, once known.
    fn total(&self) -> Option<(u64, u64)> {
        let counted = self.counts.counted.load(Ordering::Acquire);
        counted.then(|| (Self::load(&self.counts.files), Self::load(&self.counts.bytes)))
    }

    async fn count(&self, jobs: Vec<(Job, Vec<(Key, Key)>)>) {
        if jobs.is_empty() || jobs.iter().any(|(job, _)| job.source.is_far()) {
            return;
        }
        for (job, items) in jobs {
            for (from, _) in items {
                let Ok(meta) = job.source.stat(&from).await else { continue };
                if meta.kind == Kind::File {
                    self.count_one(meta.size);
                } else if meta.kind == Kind::Dir && job.recursive {
                    let walk = Walk::new(job.source.clone(), from, job.filter.clone());
                    let mut walk = walk.keeping_links(job.links);
                    while let Some(found) = walk.next().await {
                        if let Ok(Found::File(_, meta) | Found::Link(_, meta)) = found {
                            self.count_one(meta.size);
                        }
                    }
                }
            }
        }
        self.counts.counted.store(true, Ordering::Release);
    }

    fn count_one(&self, size: Option<u64>) {
        Counts::add(&self.counts.files, 1);
        Counts::add(&self.counts.bytes, size.unwrap_or(0));
    }

    fn load(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::Relaxed)
    }

    /// A line about a file: for programs, and for people who `want` it.
    fn line_about(&self, want: bool, value: impl FnOnce() -> Value, text: impl Fn() -> String) {
        self.log(&text);
        match self.style {
            Style::Json => say(&value()),
            Style::Quiet => {}
            _ if want => self.bar.suspend(|| out(&text())),
            _ => {}
        }
    }

    /// A line for people.
    fn warn(&self, value: impl FnOnce() -> Value, text: impl Fn() -> String) {
        self.log(&text);
        match self.style {
            Style::Json => say(&value()),
            Style::Quiet => {}
            _ => self.bar.suspend(|| tell(&format!("phoebus: {}", text()))),
        }
    }
}

/// Watches one job, and knows the names of its keys.
#[derive(Debug)]
pub(crate) struct JobWatcher {
    watch: Arc<Watch>,
    from: String,
    to: String,
    /// Whether links can be copied as links.
    links: bool,
}

impl JobWatcher {
    pub(crate) fn new(watch: Arc<Watch>, source: &dyn Store, dest: &dyn Store) -> Self {
        let links = !source.is_far() && !dest.is_far();
        Self { watch, from: shown(source, &Key::ROOT), to: shown(dest, &Key::ROOT), links }
    }
}

impl Watcher for JobWatcher {
    fn saw(&self, event: &Event<'_>) {
        let (watch, counts) = (&self.watch, &self.watch.counts);
        let name = |prefix: &str, key: &Key| format!("{prefix}{key}");
        match *event {
            Event::Found { meta } if counts.told.load(Ordering::Relaxed) => watch.count_one(meta.size),
            Event::Counted if counts.told.load(Ordering::Relaxed) => {
                if counts.uncounted.fetch_sub(1, Ordering::AcqRel) == 1 {
                    counts.counted.store(true, Ordering::Release);
                }
            }
            Event::Found { .. } | Event::Counted | Event::Dir { .. } | Event::Unlisted { .. } => {}
            Event::Carry { from, to, meta, reason } if watch.dry_run => {
                let (from, to) = (name(&self.from, from), name(&self.to, to));
                watch.line_about(
                    true,
                    || json!({ "event": "would_carry", "from": from, "to": to, "bytes": meta.size, "reason": reason.to_string() }),
                    || format!("{from} -> {to} ({reason}, {})", human::bytes(meta.size.unwrap_or(0))),
                );
            }
            Event::Carry { .. } => {}
            Event::Carried { to, done } => {
                Counts::add(&counts.done, 1);
                Counts::add(&counts.carried, 1);
                Counts::add(&counts.carried_bytes, done.size);
                Counts::add(&counts.carried_moved, done.moved);
                let to = name(&self.to, to);
                let verified = done.verified.as_ref().map(|sum| format!("{}:{sum}", sum.algorithm()));
                watch.line_about(
                    watch.verbose,
                    || json!({ "event": "carried", "name": to, "bytes": done.size, "bytes_moved": done.moved, "verified": verified }),
                    || format!("{to} ({}{})", human::bytes(done.size), verified.as_ref().map_or("", |_| ", verified")),
                );
            }
            Event::Skipped { to, meta, reason } => {
                Counts::add(&counts.done, 1);
                Counts::add(&counts.skipped, meta.size.unwrap_or(0));
                let to = name(&self.to, to);
                watch.line_about(
                    watch.verbose,
                    || json!({ "event": "skipped", "name": to, "reason": reason.to_string() }),
                    || format!("{to} (skipped: {reason})"),
                );
            }
            Event::Mode { to, meta, set } => {
                Counts::add(&counts.done, 1);
                Counts::add(&counts.skipped, meta.size.unwrap_or(0));
                let (to, mode) = (name(&self.to, to), meta.mode.unwrap_or(0) & 0o777);
                let (event, why) = match set {
                    true if watch.dry_run => ("would_set_mode", ""),
                    true => ("mode", ""),
                    false => ("mode_refused", ", and the system does not let it be set"),
                };
                watch.line_about(
                    watch.verbose || watch.dry_run,
                    || json!({ "event": event, "name": to, "mode": format!("{mode:04o}") }),
                    || format!("{to} (only its mode differs: {mode:04o}{why})"),
                );
            }
            Event::Deleted { key } => {
                let name = name(&self.to, key);
                let (event, what) =
                    if watch.dry_run { ("would_delete", "would be deleted") } else { ("deleted", "deleted") };
                watch.line_about(
                    watch.verbose || watch.dry_run,
                    || json!({ "event": event, "name": name }),
                    || format!("{name} ({what}: the source does not have it)"),
                );
            }
            Event::Left { key, kind, to_dir } => {
                let what = match kind {
                    Kind::Link if to_dir && self.links => "a symbolic link to a directory (--links copies links)",
                    Kind::Link if to_dir => "a symbolic link to a directory",
                    Kind::Link => "a symbolic link that leads to no file",
                    kind => kind.described(),
                };
                let name = name(&self.from, key);
                watch.warn(
                    || json!({ "event": "left", "name": name, "reason": what }),
                    || format!("{name} is {what}, and was left out"),
                );
            }
            Event::Gone { key } => {
                let name = name(&self.to, key);
                let what = "disappeared right after it was copied";
                watch.warn(|| json!({ "event": "gone", "name": name, "reason": what }), || format!("{name} {what}"));
            }
            Event::Again { to, error, wait } => watch.again(Some(name(&self.to, to)), error, wait),
            Event::Failed { key, error } => watch.failed(&name(&self.to, key), error),
        }
    }
}

/// The fields that fit completely into `width` columns, at least the first.
fn fitting(fields: impl Iterator<Item = String>, width: usize) -> String {
    let mut line = String::new();
    for field in fields {
        if line.is_empty() {
            line = field;
        } else if line.chars().count() + 2 + field.chars().count() <= width {
            line += &format!("  {field}");
        } else {
            break;
        }
    }
    line
}

/// Columns of the terminal at standard error. 80 if unknown.
fn width() -> usize {
    let size = rustix::termios::tcgetwinsize(std::io::stderr());
    size.map(|size| usize::from(size.ws_col)).ok().filter(|columns| *columns > 0).unwrap_or(80)
}

/// Columns of the bar with its percentage: see [`full_style`].
const BAR: usize = 20;

/// A bar of unknown length has no columns.
fn plain_style() -> ProgressStyle {
    ProgressStyle::with_template("{wide_msg}").unwrap_or_else(|_| ProgressStyle::default_bar())
}

fn full_style() -> ProgressStyle {
    let style = ProgressStyle::with_template("{percent:>3}% [{bar:12}] {wide_msg}");
    style.map_or_else(|_| ProgressStyle::default_bar(), |style| style.progress_chars("=> "))
}

fn say(value: &Value) {
    out(&value.to_string());
}

/// Prints a line. A missing reader does not stop the copy; the exit code shows it.
pub(crate) fn out(line: &str) {
    crate::standard::note(line);
}

/// The same on standard error.
pub(crate) fn tell(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_fields_are_shown_whole_or_not_at_all() {
        let fields = || ["5.2 MB of 300.0 MB", "25.1 MB/s", "12 s left"].map(str::to_owned).into_iter();
        assert_eq!(fitting(fields(), 100), "5.2 MB of 300.0 MB  25.1 MB/s  12 s left");
        assert_eq!(fitting(fields(), 40), "5.2 MB of 300.0 MB  25.1 MB/s  12 s left");
        assert_eq!(fitting(fields(), 39), "5.2 MB of 300.0 MB  25.1 MB/s");
        assert_eq!(fitting(fields(), 28), "5.2 MB of 300.0 MB");
        assert_eq!(fitting(fields(), 3), "5.2 MB of 300.0 MB");
    }
}
