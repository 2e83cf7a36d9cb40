//! The result of a copy: a sentence, a line of JSON, an exit code.

use super::lost::Lost;
use super::watch::Watch;
use crate::exit;
use crate::human;
use phoebus_files::job::{Job, Report};
use phoebus_files::{Check, Error, ErrorKind, Side, Verify};
use phoebus_gridftp::client::CarriedFiles;
use phoebus_gridftp::data::ObjectTotals;
use phoebus_places::plan::Group;
use phoebus_places::{Paths, shown};
use serde_json::json;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

/// The result.
#[derive(Debug)]
pub(super) struct Outcome {
    begun: Instant,
    dry_run: bool,
    report: Report,
    /// Failures by name.
    failures: Vec<(String, ErrorKind, String)>,
    /// Bytes that went directly between servers.
    pub(super) between: u64,
    /// The most connections of a file, if servers were used.
    pub(super) streams: Option<u32>,
    /// What transfers as objects have cost.
    pub(super) objects: ObjectTotals,
    /// What has carried files, by server, where `--stack auto` chose it.
    pub(super) carriers: Vec<(String, CarriedFiles)>,
    /// Bytes that all attempts moved, including failed ones.
    pub(super) all_moved: u64,
    /// Files and directories whose modes could not be set.
    pub(super) modes_refused: u64,
    /// Directories whose times could not be set.
    pub(super) times_refused: u64,
    /// Servers without checksums.
    mute: Vec<String>,
    /// Paths to servers.
    paths: Arc<Paths>,
    /// Whether it was interrupted: then this is the state at that time.
    pub(super) interrupted: bool,
    /// Stores without symbolic links, for which links were followed although they should be kept.
    linkless: Vec<String>,
    /// Why files between servers went through this end, if they did.
    pub(super) by_way: Vec<String>,
    /// Why private files were public until they were complete, if any were.
    pub(super) public: Vec<String>,
    /// Whether files were selected by patterns, sizes or ages.
    pub(super) chosen: bool,
}

impl Outcome {
    /// An empty report.
    pub(super) fn begin(dry_run: bool, paths: Arc<Paths>) -> Self {
        Self {
            begun: Instant::now(),
            dry_run,
            report: Report::default(),
            failures: Vec::new(),
            between: 0,
            streams: None,
            objects: ObjectTotals::default(),
            carriers: Vec::new(),
            all_moved: 0,
            modes_refused: 0,
            times_refused: 0,
            mute: Vec::new(),
            paths,
            interrupted: false,
            linkless: Vec::new(),
            by_way: Vec::new(),
            public: Vec::new(),
            chosen: false,
        }
    }

    /// The state at an interruption.
    pub(super) fn so_far(watch: &Watch, dry_run: bool) -> Self {
        let ((begun, report), (all_moved, paths)) = (watch.so_far(), watch.moved());
        Self { begun, report, all_moved, interrupted: true, ..Self::begin(dry_run, paths) }
    }

    /// Records that links were followed because `store` has none.
    pub(super) fn follows_links(&mut self, store: String) {
        if !self.linkless.contains(&store) {
            self.linkless.push(store);
        }
    }

    /// The next job, which may remove only what earlier ones have left of the limit, and nothing after a failure.
    pub(super) fn bounded(&mut self, job: Job) -> Job {
        let Some(most) = job.delete else { return job };
        self.report.not_deleted |= self.report.failed > 0;
        let left = most.saturating_sub(usize::try_from(self.report.deleted).unwrap_or(usize::MAX));
        Job { delete: Some(left).filter(|_| self.report.failed == 0), ..job }
    }

    /// Adds the report of a job.
    pub(super) fn add(&mut self, group: &Group, report: Report) {
        let all = &mut self.report;
        all.carried += report.carried;
        all.bytes += report.bytes;
        all.moved += report.moved;
        all.skipped += report.skipped;
        all.left += report.left;
        all.modes_set += report.modes_set;
        all.modes_refused += report.modes_refused;
        all.modes_unknown += report.modes_unknown;
        all.deleted += report.deleted;
        all.not_deleted |= report.not_deleted;
        all.unlisted = all.unlisted.take().or(report.unlisted);
        all.gone += report.gone;
        all.dirs += report.dirs;
        all.failed += report.failed;
        all.stopped |= report.stopped;
        let failures = report.failures.into_iter();
        self.failures.extend(failures.map(|(key, error)| (shown(&*group.dest, &key), error.kind(), error.to_string())));
    }

    /// Adds a streamed file.
    pub(super) fn carried(&mut self, bytes: u64) {
        self.report.carried += 1;
        self.report.bytes += bytes;
        self.report.moved += bytes;
    }

    /// Records that only sizes were compared between `source` and `dest`, if so.
    pub(super) fn not_verified(&mut self, verify: Verify, source: &Side, dest: &Side) {
        if verify == Verify::Possible
            && let Err(reason) = Check::choose(Verify::Flight(None), source, dest)
            && !self.mute.contains(&reason)
        {
            self.mute.push(reason);
        }
    }

    /// Adds a failure.
    pub(super) fn fail(&mut self, name: String, error: &Error) {
        self.report.failed += 1;
        self.failures.push((name, error.kind(), error.to_string()));
    }

    /// The exit code. `nothing_fails`: it is an error that there was nothing to do.
    pub(super) fn code(&self, nothing_fails: bool) -> u8 {
        let report = &self.report;
        if report.is_complete() {
            return if self.is_nothing() && nothing_fails { exit::NOTHING } else { 0 };
        }
        let codes: Vec<u8> = self.failures.iter().map(|(_, kind, _)| exit::code_of_kind(*kind)).collect();
        // Failures that are worse than a missing part take precedence.
        if let Some(code) = [exit::DAMAGED, exit::NO_SPACE].into_iter().find(|code| codes.contains(code)) {
            return code;
        }
        match codes.first() {
            // A server is gone.
            Some(first) if report.stopped && *first == exit::PASSING => *first,
            _ if report.carried + report.skipped > 0 => exit::PARTIAL,
            Some(first) if report.left == 0 && codes.iter().all(|code| code == first) => *first,
            None => exit::PARTIAL,
            Some(_) => exit::FAILED,
        }
    }

    /// The report as JSON.
    pub(super) fn json(&self, code: u8) -> serde_json::Value {
        let report = &self.report;
        let failures = self.failures.iter().map(|(name, kind, error)| {
            let kind = format!("{kind:?}").to_lowercase();
            json!({ "name": name, "sort": kind, "error": exit::without_numbers(error) })
        });
        json!({
            "event": "report",
            "seconds": self.begun.elapsed().as_secs_f64(),
            "dry_run": self.dry_run,
            "interrupted": self.interrupted,
            "complete": report.is_complete() && !self.interrupted,
            "nothing_to_do": report.is_complete() && self.is_nothing() && !self.interrupted,
            "files": report.carried,
            "bytes": report.bytes,
            "bytes_moved": self.all_moved.max(report.moved),
            "bytes_repeated": self.all_moved.saturating_sub(report.moved),
            "bytes_between_servers": self.between,
            "skipped": report.skipped,
            "left": report.left,
            "deleted": report.deleted,
            "nothing_deleted_after_failures": report.not_deleted,
            "directories": report.dirs,
            "failed": report.failed,
            "stopped": report.stopped,
            "not_verified": self.mute,
            "names_not_looked_at": report.unlisted,
            "gone": report.gone,
            "modes_set": report.modes_set,
            "modes_refused": self.modes_refused + report.modes_refused,
            "modes_unknown": report.modes_unknown,
            "links_followed_for": self.linkless,
            "times_refused": self.times_refused,
            "streams": self.streams,
            "objects": self.objects_json(),
            "carriers": self.carriers_json(),
            "path": if self.paths.is_empty() { json!(null) } else { json!(self.paths.to_string()) },
            "paths": self.paths.json(),
            "by_way_of_this_end": if self.by_way.is_empty() { json!(null) } else { json!(self.by_way.join("; ")) },
            "public_until_complete": if self.public.is_empty() { json!(null) } else { json!(self.public.join("; ")) },
            "failures": failures.collect::<Vec<_>>(),
            "exit_code": code,
        })
    }

    /// What has carried files, where `--stack auto` chose it.
    fn carriers_json(&self) -> serde_json::Value {
        let each = self.carriers.iter().map(|(server, CarriedFiles { carrier, files })| {
            let data = if carrier.is_object { "object" } else { "tcp" };
            json!({ "server": server, "data": data, "files": files, "why": carrier.why })
        });
        if self.carriers.is_empty() { json!(null) } else { each.collect() }
    }

    /// What objects have cost. Null without any, and for what this end does not know because it received.
    fn objects_json(&self) -> serde_json::Value {
        let ObjectTotals { transfers, needed, sent, repairs, repeats, parity, drops, rate, rtt, .. } = self.objects;
        if transfers == 0 {
            return json!(null);
        }
        let own = |value: serde_json::Value| if rate > 0.0 { value } else { json!(null) };
        json!({
            "transfers": transfers,
            "packets": needed,
            "packets_sent": sent,
            "waste": self.objects.waste(),
            "repairs": own(json!(repairs)),
            "repeats": own(json!(repeats)),
            "parity": parity,
            "dropped_by_receiver": drops,
            "rate_bits_per_second": own(json!(rate)),
            "rtt_seconds": own(json!(rtt)),
        })
    }

    fn is_nothing(&self) -> bool {
        self.report.carried + self.report.deleted + self.report.modes_set == 0
    }
}

/// One or two sentences.
impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (report, elapsed) = (&self.report, self.begun.elapsed());
        if self.interrupted {
            f.write_str("interrupted: ")?;
        }
        let nothing = report.is_complete() && self.is_nothing() && !self.interrupted;
        let bytes = human::bytes(report.bytes);
        if nothing && self.chosen && report.skipped == 0 {
            f.write_str("nothing to do: no file matches the options for names, sizes and ages")?;
        } else if nothing {
            let are = if report.skipped == 1 { "is" } else { "are" };
            write!(f, "nothing to do: {} {are} there", files(report.skipped))?;
        } else if self.dry_run {
            write!(f, "{} would be copied ({bytes})", files(report.carried))?;
        } else {
            write!(f, "{} copied, {bytes}", files(report.carried))?;
            if report.moved < report.bytes {
                write!(f, " ({} of it by an earlier run)", human::bytes(report.bytes - report.moved))?;
            }
            if self.between > 0 {
                write!(f, " ({} from server to server)", human::bytes(self.between))?;
            }
            write!(f, ", in {:.1} s", elapsed.as_secs_f64())?;
            // Bytes of failed attempts say nothing about the path.
            if report.carried > 0 {
                let rate = self.all_moved.max(report.moved) as f64 / elapsed.as_secs_f64().max(1e-3);
                write!(f, ", {}", human::rate(rate))?;
            }
            if let Some(streams @ 2..) = self.streams {
                write!(f, ", up to {streams} connections a file")?;
            }
            if !self.paths.is_empty() {
                write!(f, ", {}", self.paths)?;
            }
            for (_, CarriedFiles { carrier, files }) in &self.carriers {
                let data = if carrier.is_object { "as objects" } else { "over TCP" };
                write!(f, ", {files} {data}, since {}", carrier.why)?;
            }
            if self.objects.transfers > 0 {
                write!(f, ", {:.1} % of the packets sent again", 100.0 * self.objects.waste())?;
                if self.objects.drops > 0 {
                    f.write_str(" (the receiving host had no room at times)")?;
                }
            }
            if !self.by_way.is_empty() {
                write!(f, "; from server to server by way of this end, since {}", self.by_way.join(", and "))?;
            }
        }
        let deleted = if self.dry_run { "would be deleted" } else { "deleted" };
        for (count, what) in [
            (if nothing { 0 } else { report.skipped }, "there already"),
            (report.deleted, deleted),
            (report.left, "left out"),
            (report.failed, "failed"),
        ] {
            if count > 0 {
                write!(f, "; {count} {what}")?;
            }
        }
        if report.modes_set > 0 {
            let was = if self.dry_run { "would be set" } else { "was set" };
            write!(f, "; of {} only the mode {was}", files(report.modes_set))?;
        }
        if report.modes_refused > 0 {
            write!(f, "; the modes of {} were not set, since the system does not allow it", report.modes_refused)?;
        }
        if report.not_deleted {
            let more = if report.deleted > 0 { "nothing more" } else { "nothing" };
            write!(f, "; {more} was deleted, since something failed")?;
        }
        if !self.linkless.is_empty() {
            write!(f, "; symbolic links were followed, since {} has none", self.linkless.join(" and "))?;
        }
        for reason in &self.mute {
            write!(f, "; only sizes were compared, since {reason}")?;
        }
        if report.gone > 0 {
            write!(f, "; {} had disappeared again when names were checked", files(report.gone))?;
        }
        if let Some(reason) = &report.unlisted {
            write!(f, "; names were not checked: {}", exit::without_numbers(reason))?;
        }
        let lost = Lost {
            modes_refused: self.modes_refused,
            times_refused: self.times_refused,
            modes_unknown: report.modes_unknown,
            public: &self.public,
        };
        for sentence in lost.sentences() {
            write!(f, "; {sentence}")?;
        }
        if report.stopped { write!(f, "; the others were not begun") } else { Ok(()) }
    }
}

fn files(count: u64) -> String {
    if count == 1 { "1 file".to_owned() } else { format!("{count} files") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phoebus_files::Links;
    use phoebus_files::local::Local;
    use phoebus_files::store::Store;

    fn outcome(carried: u64, sorts: &[ErrorKind]) -> Outcome {
        let mut outcome = Outcome::begin(false, Arc::default());
        outcome.report.carried = carried;
        for kind in sorts {
            outcome.fail("x".to_owned(), &Error::Store { name: "x".into(), reason: "y".into(), kind: *kind });
        }
        outcome
    }

    #[test]
    fn deletions_of_all_sources_are_counted_together() {
        let store: Arc<dyn Store> = Arc::new(Local::new("/", Links::Beneath).unwrap());
        let job = || Job { delete: Some(5), ..Job::new(store.clone(), store.clone()) };
        let mut outcome = outcome(1, &[]);
        assert_eq!((outcome.bounded(job()).delete, outcome.report.not_deleted), (Some(5), false));
        outcome.report.deleted = 3;
        assert_eq!(outcome.bounded(job()).delete, Some(2));
        outcome.report.failed = 1;
        assert_eq!((outcome.bounded(job()).delete, outcome.report.not_deleted), (None, true));
        assert!(outcome.to_string().contains("nothing more was deleted"), "{outcome}");
    }

    #[test]
    fn refused_modes_are_reported_when_nothing_was_copied() {
        let mut outcome = outcome(0, &[]);
        outcome.report.skipped = 2;
        assert_eq!(outcome.to_string(), "nothing to do: 2 files are there");
        outcome.report.modes_refused = 1;
        outcome.times_refused = 1;
        let told = outcome.to_string();
        assert!(told.starts_with("nothing to do: 2 files are there; the modes of 1 were not set"), "{told}");
        assert!(told.contains("the times of 1 directories were not set"), "{told}");
        outcome.public = vec!["this end reaches no data port of ftp://h".to_owned()];
        let told = outcome.to_string();
        assert!(told.ends_with("until they were complete, since this end reaches no data port of ftp://h"), "{told}");
        assert_eq!(outcome.json(0)["public_until_complete"], "this end reaches no data port of ftp://h");
        let nothing = |chosen| Outcome { chosen, ..self::outcome(0, &[]) }.to_string();
        assert!(nothing(true).starts_with("nothing to do: no file matches"), "{}", nothing(true));
        assert_eq!(nothing(false), "nothing to do: 0 files are there");
    }

    #[test]
    fn exit_codes_match_outcomes() {
        use ErrorKind::{Denied, NoSpace, NotFound, Passing, Verification};
        for (carried, sorts, code) in [
            (1, &[][..], 0),
            (0, &[], 0),
            (0, &[NotFound], exit::ABSENT),
            (0, &[NotFound, NotFound], exit::ABSENT),
            (1, &[NotFound], exit::PARTIAL),
            (0, &[NotFound, Denied], exit::FAILED),
            (0, &[Passing], exit::PASSING),
            (9, &[Denied, Verification], exit::DAMAGED),
            (9, &[NoSpace], exit::NO_SPACE),
        ] {
            assert_eq!(outcome(carried, sorts).code(false), code, "{carried} {sorts:?}");
        }
        assert_eq!((outcome(0, &[]).code(true), outcome(1, &[]).code(true)), (exit::NOTHING, 0));
        let mut left = outcome(0, &[]);
        left.report.left = 1;
        assert_eq!(left.code(true), exit::PARTIAL);
    }
}
