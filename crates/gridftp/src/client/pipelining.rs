//! What is known about batches of short files by pipelined commands (`batch`) with a server.

use super::upload_lock::UploadLock;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

/// Batches that failed one after the other, after which none is tried any more.
const MOST_FAILURES: u32 = 3;

/// Most runs of one machine whose drafts have names of their own that a later run finds.
const MOST_RUNS: usize = 64;

/// The state of batches with a server.
#[derive(Debug, Default)]
pub(super) struct Pipelining {
    failures: Mutex<Failures>,
    /// Whether the server does not reach this end.
    unreachable: AtomicBool,
    run: OnceLock<Run>,
}

/// Batches that have failed since one succeeded, not counting those that were under way at the same time: one broken
/// connection may end several.
#[derive(Debug, Default)]
struct Failures {
    count: u32,
    last: Option<Instant>,
}

/// A part of the names of drafts that no other run has at the same time.
#[derive(Debug)]
struct Run {
    text: String,
    /// Held until the end of the run.
    _lock: Option<UploadLock>,
}

impl Pipelining {
    fn failures(&self) -> MutexGuard<'_, Failures> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether batches have failed too often.
    pub(super) fn is_hopeless(&self) -> bool {
        self.failures().count >= MOST_FAILURES
    }

    /// Records the outcome of a batch that began at `begun`.
    pub(super) fn note(&self, begun: Instant, succeeded: bool) {
        let mut failures = self.failures();
        match succeeded {
            true => *failures = Failures::default(),
            false if failures.last.is_none_or(|last| last < begun) => {
                *failures = Failures { count: failures.count + 1, last: Some(Instant::now()) };
            }
            false => {}
        }
    }

    /// Whether the server is known not to reach this end.
    pub(super) fn is_unreachable(&self) -> bool {
        self.unreachable.load(Relaxed)
    }

    pub(super) fn note_unreachable(&self) {
        self.unreachable.store(true, Relaxed);
    }

    /// A part of the names of a batch's drafts, for the server `name` and the directory of records `state`, if there is
    /// one. Drafts that are carried alone have other names: a server may still be renaming one of a batch when it is
    /// carried again. A run that follows a killed one gets the same text, and so writes over what that has left.
    /// Otherwise no other run has it: `random` is this run's own.
    pub(super) fn run(&self, name: &str, state: Option<&Path>, random: &str) -> &str {
        let own = || Run { text: format!("batch {random}"), _lock: None };
        let run = self.run.get_or_init(|| {
            let Some(dir) = state else { return own() };
            for number in 0..MOST_RUNS {
                let text = format!("batch {number}");
                match UploadLock::take(dir, &format!("{name} {text}")) {
                    Ok(Some(lock)) => return Run { text, _lock: Some(lock) },
                    Ok(None) => {}
                    Err(error) => {
                        tracing::debug!(dir = %dir.display(), %error, "batches cannot be locked");
                        return own();
                    }
                }
            }
            own()
        });
        &run.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_batches_at_the_same_time_count_once() {
        let known = Pipelining::default();
        let first = Instant::now();
        (0..5).for_each(|_| known.note(first, false));
        assert_eq!(known.failures().count, 1);
        known.note(Instant::now(), false);
        assert!(!known.is_hopeless());
        known.note(Instant::now(), false);
        assert!(known.is_hopeless());
        known.note(first, true);
        assert!(!known.is_hopeless());
    }

    #[test]
    fn runs_have_parts_of_names_of_their_own_and_find_those_of_killed_ones() {
        let dir = tempfile::tempdir().unwrap();
        let (one, other) = (Pipelining::default(), Pipelining::default());
        assert_eq!(one.run("ftp://h", Some(dir.path()), "x"), "batch 0");
        assert_eq!(other.run("ftp://h", Some(dir.path()), "y"), "batch 1");
        drop(one);
        assert_eq!(Pipelining::default().run("ftp://h", Some(dir.path()), "z"), "batch 0");
        assert_eq!(other.run("ftp://h", None, "y"), "batch 1");
        assert_eq!(Pipelining::default().run("ftp://h", None, "z"), "batch z");
        let unusable = dir.path().join("file");
        std::fs::write(&unusable, "").unwrap();
        assert_eq!(Pipelining::default().run("ftp://h", Some(&unusable), "z"), "batch z");
    }
}
