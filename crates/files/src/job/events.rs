//! Events of a running job, and its final report.

use crate::error::Error;
use crate::key::Key;
use crate::plan::Reason;
use crate::store::{Kind, Meta};
use crate::transfer::Done;
use std::fmt::Debug;
use std::time::Duration;

/// Most failures that a report names.
const MAX_FAILURES: usize = 1000;

/// An event. In a dry run, what would happen.
#[derive(Debug)]
pub enum Event<'a> {
    /// An object was found, which will be carried if the destination lacks it.
    Found {
        /// Its metadata.
        meta: &'a Meta,
    },
    /// All objects of the job were found.
    Counted,
    /// A directory is created, or existed.
    Dir {
        /// At the destination.
        key: &'a Key,
    },
    /// An object starts to be carried.
    Carry {
        /// At the source.
        from: &'a Key,
        /// At the destination.
        to: &'a Key,
        /// Its metadata.
        meta: &'a Meta,
        /// The reason.
        reason: Reason,
    },
    /// An object is complete and verified.
    Carried {
        /// At the destination.
        to: &'a Key,
        /// The result.
        done: &'a Done,
    },
    /// An object is not carried.
    Skipped {
        /// At the destination.
        to: &'a Key,
        /// Its metadata.
        meta: &'a Meta,
        /// The reason.
        reason: Reason,
    },
    /// Something that cannot be carried was left out.
    Left {
        /// At the source.
        key: &'a Key,
        /// Its kind.
        kind: Kind,
        /// Whether it is a link to a directory.
        to_dir: bool,
    },
    /// Only the permissions of an object differed.
    Mode {
        /// At the destination.
        to: &'a Key,
        /// Metadata of the source.
        meta: &'a Meta,
        /// Whether they were set, or the system refused.
        set: bool,
    },
    /// Something that the source lacks is removed at the destination.
    Deleted {
        /// At the destination.
        key: &'a Key,
    },
    /// An attempt failed, and another follows.
    Again {
        /// At the destination.
        to: &'a Key,
        /// The error.
        error: &'a Error,
        /// The pause before the next attempt.
        wait: Duration,
    },
    /// A carried object was removed by somebody before its name was checked.
    Gone {
        /// At the destination.
        key: &'a Key,
    },
    /// The names in a directory could not be checked.
    Unlisted {
        /// The directory.
        dir: &'a Key,
        /// The reason.
        reason: &'a str,
    },
    /// A final failure.
    Failed {
        /// The object.
        key: &'a Key,
        /// The error.
        error: &'a Error,
    },
}

/// A receiver of events. Called from many tasks; must not block.
pub trait Watcher: Debug + Send + Sync {
    /// Handles an event.
    fn saw(&self, event: &Event<'_>);
}

/// Ignores events.
#[derive(Debug, Clone, Copy)]
pub struct Quiet;

impl Watcher for Quiet {
    fn saw(&self, _: &Event<'_>) {}
}

/// The result of a job.
#[derive(Debug, Default)]
pub struct Report {
    /// Objects that were carried; in a dry run, that would be.
    pub carried: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Of these bytes, those that were moved now and not by an earlier run.
    pub moved: u64,
    /// Objects that the destination had.
    pub skipped: u64,
    /// Names that cannot be carried: sockets, dangling links.
    pub left: u64,
    /// Objects at the destination whose permissions were changed.
    pub modes_set: u64,
    /// Objects at the destination whose permissions could not be changed.
    pub modes_refused: u64,
    /// Carried objects and new directories whose permissions the source does not tell.
    pub modes_unknown: u64,
    /// Removed names at the destination, including directories.
    pub deleted: u64,
    /// Whether nothing was removed because the job was incomplete.
    pub not_deleted: bool,
    /// Directories that were created or existed.
    pub dirs: u64,
    /// Number of failures.
    pub failed: u64,
    /// The first failures, with their subjects.
    pub failures: Vec<(Key, Error)>,
    /// Whether the job stopped early, since the failure would have affected everything.
    pub stopped: bool,
    /// Why names at the destination were not checked, if they were not.
    pub unlisted: Option<String>,
    /// Carried objects that were gone when their names were checked.
    pub gone: u64,
    /// Whether the destination could not make the result durable.
    pub unsettled: bool,
}

impl Report {
    /// Whether everything requested is there.
    pub fn is_complete(&self) -> bool {
        self.failed == 0 && self.left == 0 && !self.stopped
    }

    pub(super) fn note(&mut self, key: Key, error: Error) {
        self.failed += 1;
        if self.failures.len() < MAX_FAILURES {
            self.failures.push((key, error));
        }
    }
}
