//! What a job tells while it runs, and at its end.

use crate::error::Error;
use crate::key::Key;
use crate::plan::Reason;
use crate::store::{Kind, Meta};
use crate::transfer::Done;
use std::fmt::Debug;
use std::time::Duration;

/// How many failures a report tells of one by one.
const MAX_FAILURES: usize = 1000;

/// Something that happened. In a dry run, something that would.
#[derive(Debug)]
pub enum Event<'a> {
    /// An object was found that is carried if the destination does not have it. Objects are found before it is their turn.
    Found {
        /// What it is.
        meta: &'a Meta,
    },
    /// All objects of the job were found.
    Counted,
    /// A directory is made, or was there.
    Dir {
        /// At the destination.
        key: &'a Key,
    },
    /// An object begins to be carried.
    Carry {
        /// At the source.
        from: &'a Key,
        /// At the destination.
        to: &'a Key,
        /// What it is.
        meta: &'a Meta,
        /// Why it is carried.
        reason: Reason,
    },
    /// It is there, verified.
    Carried {
        /// At the destination.
        to: &'a Key,
        /// What it came to.
        done: &'a Done,
    },
    /// An object is not carried.
    Skipped {
        /// At the destination.
        to: &'a Key,
        /// What it is.
        meta: &'a Meta,
        /// Why not.
        reason: Reason,
    },
    /// Something that cannot be carried was left out.
    Left {
        /// From the top of the tree.
        key: &'a Key,
        /// What it is.
        kind: Kind,
        /// Whether it is a link that leads to a directory.
        to_dir: bool,
    },
    /// Only the permissions of an object differed.
    Mode {
        /// At the destination.
        to: &'a Key,
        /// The source.
        meta: &'a Meta,
        /// Whether they are set; if not, the system refused it.
        set: bool,
    },
    /// Something that the source does not have is removed at the destination.
    Deleted {
        /// At the destination.
        key: &'a Key,
    },
    /// An attempt failed, and another follows.
    Again {
        /// At the destination.
        to: &'a Key,
        /// Why.
        error: &'a Error,
        /// After how long.
        wait: Duration,
    },
    /// Something that was carried was taken away before its name was looked for.
    Gone {
        /// At the destination.
        key: &'a Key,
    },
    /// It was not looked whether the destination has what was carried to a directory by the names that were said.
    Unlisted {
        /// The directory.
        dir: &'a Key,
        /// Why not.
        reason: &'a str,
    },
    /// Something failed for good.
    Failed {
        /// What.
        key: &'a Key,
        /// Why.
        error: &'a Error,
    },
}

/// Whoever wants to know. Called from many tasks, and not to be kept waiting.
pub trait Watcher: Debug + Send + Sync {
    /// Something happened.
    fn saw(&self, event: &Event<'_>);
}

/// Nobody.
#[derive(Debug, Clone, Copy)]
pub struct Quiet;

impl Watcher for Quiet {
    fn saw(&self, _: &Event<'_>) {}
}

/// What became of a job.
#[derive(Debug, Default)]
pub struct Report {
    /// Objects that were carried; in a dry run, that would be.
    pub carried: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those of these bytes that had to be moved, since no earlier run had done so.
    pub moved: u64,
    /// Objects that the destination had.
    pub skipped: u64,
    /// What cannot be carried: sockets, links to nowhere.
    pub left: u64,
    /// Of those that the destination had, how many were given other permissions.
    pub modes_set: u64,
    /// Of those, how many should have been, and the system refused it.
    pub modes_refused: u64,
    /// What was removed at the destination since the source does not have it, directories included.
    pub deleted: u64,
    /// Whether nothing was removed, since not all was carried.
    pub not_deleted: bool,
    /// Directories that were made or were there.
    pub dirs: u64,
    /// How much failed.
    pub failed: u64,
    /// The first of the failures, by what they were about.
    pub failures: Vec<(Key, Error)>,
    /// Whether it stopped before its end, since what failed would have failed for all.
    pub stopped: bool,
    /// Why it was not looked whether the destination has all that was carried by the names that were said, if it was not.
    pub unlisted: Option<String>,
    /// How much of what was carried had gone again when its names were looked for.
    pub gone: u64,
    /// Whether the destination could not make durable what was carried.
    pub unsettled: bool,
}

impl Report {
    /// Whether everything is there that was asked for.
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
