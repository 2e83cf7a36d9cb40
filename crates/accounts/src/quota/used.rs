//! Used space below a root: the last count, and this server's changes since.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Validity of a count without outside changes.
const HOLDS: Duration = Duration::from_secs(600);

/// Validity of a count as a multiple of its duration, whatever has changed: counting takes a disk at most a tenth of
/// its time.
const REST: u32 = 9;

/// Age up to which a count may refuse somebody. Others may have freed space since.
const FRESH: Duration = Duration::from_secs(5);

/// A count that takes less is repeated whenever it helps.
const QUICK: Duration = Duration::from_millis(100);

/// Used space. In doubt it is too much rather than too little, until the next count.
#[derive(Debug, Default)]
pub(super) struct Used {
    pub(super) bytes: u64,
    pub(super) files: u64,
    /// Reservations of transfers in progress.
    pub(super) claimed: (u64, u64),
    /// Their drafts, which are not counted besides.
    pub(super) drafts: HashSet<PathBuf>,
    /// Lengths of drafts, by the last count and later changes. Some may be gone.
    pub(super) draft_lengths: HashSet<u64>,
    /// End and duration of the last count.
    pub(super) counted: Option<(Instant, Duration)>,
    /// Whether something has changed by an unknown amount.
    pub(super) stale: bool,
    /// Whether the log says that not everything can be counted.
    pub(super) is_partial: bool,
    /// Changes since the start of the current count.
    meanwhile: Option<Meanwhile>,
    /// Names that are being changed: the number of changes, and whether there was ever more than one.
    touched: HashMap<PathBuf, (usize, bool)>,
}

#[derive(Debug, Default)]
struct Meanwhile {
    bytes: u64,
    files: u64,
    changed: bool,
    /// Lengths of drafts that were noted since.
    draft_lengths: HashSet<u64>,
    /// Whether something may have moved during the count from an uncounted place to a counted one.
    moved: bool,
}

impl Used {
    /// Whether the last count is valid.
    pub(super) fn holds(&self, now: Instant) -> bool {
        self.counted.is_some_and(|(at, took)| {
            let age = now.saturating_duration_since(at);
            let rests = took >= QUICK && age < took.saturating_mul(REST);
            rests || (age < HOLDS && !self.stale)
        })
    }

    /// Records a refusal by an old count. It is counted again before the next one.
    pub(super) fn refused(&mut self, now: Instant) {
        self.stale |= self
            .counted
            .is_some_and(|(at, took)| now.saturating_duration_since(at) >= FRESH.max(took.saturating_mul(REST)));
    }

    /// Adds something new.
    pub(super) fn add(&mut self, bytes: u64, files: u64) {
        (self.bytes, self.files) = (self.bytes.saturating_add(bytes), self.files.saturating_add(files));
        if let Some(meanwhile) = &mut self.meanwhile {
            meanwhile.bytes = meanwhile.bytes.saturating_add(bytes);
            meanwhile.files = meanwhile.files.saturating_add(files);
            meanwhile.changed = true;
        }
    }

    /// Subtracts something that is gone.
    pub(super) fn subtract(&mut self, bytes: u64, files: u64) {
        (self.bytes, self.files) = (self.bytes.saturating_sub(bytes), self.files.saturating_sub(files));
        // It is unknown whether it was in a readable part.
        self.stale |= self.is_partial;
        // It is unknown whether it was counted.
        self.meanwhile.iter_mut().for_each(|meanwhile| meanwhile.changed = true);
    }

    /// Subtracts what was found at `path`, which is [`Touched`] since. False if somebody else has changed it meanwhile,
    /// who may have subtracted it.
    pub(super) fn gone(&mut self, path: &Path, bytes: u64) -> bool {
        let alone = self.touched.get(path).is_some_and(|(_, shared)| !shared) && !self.drafts.contains(path);
        match alone {
            true => self.subtract(bytes, 1),
            false => self.doubt(),
        }
        alone
    }

    /// Records a rename.
    pub(super) fn moved(&mut self) {
        self.meanwhile.iter_mut().for_each(|meanwhile| (meanwhile.changed, meanwhile.moved) = (true, true));
    }

    /// Records a change by an unknown amount.
    pub(super) fn doubt(&mut self) {
        self.stale = true;
        self.meanwhile.iter_mut().for_each(|meanwhile| meanwhile.changed = true);
    }

    /// Records the start of a count.
    pub(super) fn begin(&mut self) {
        self.meanwhile = Some(Meanwhile::default());
    }

    /// Records that there is a draft of this length.
    pub(super) fn note_draft(&mut self, length: u64) {
        self.draft_lengths.insert(length);
        if let Some(meanwhile) = &mut self.meanwhile {
            meanwhile.draft_lengths.insert(length);
        }
    }

    /// Records the lengths of all drafts that the current count has found. Until then, the earlier ones stay known.
    pub(super) fn found_drafts(&mut self, lengths: HashSet<u64>) {
        self.draft_lengths = lengths;
        if let Some(meanwhile) = &self.meanwhile {
            self.draft_lengths.extend(&meanwhile.draft_lengths);
        }
    }

    /// Records the result of a count. Changes during it may or may not be included.
    pub(super) fn end(&mut self, (bytes, files): (u64, u64), took: Duration) {
        let meanwhile = self.meanwhile.take().unwrap_or_default();
        let found = (bytes.saturating_add(meanwhile.bytes), files.saturating_add(meanwhile.files));
        (self.bytes, self.files) = match meanwhile.moved && self.counted.is_some() {
            true => (found.0.max(self.bytes), found.1.max(self.files)),
            false => found,
        };
        (self.counted, self.stale) = (Some((Instant::now(), took)), meanwhile.changed);
    }
}

/// Locks the state.
pub(super) fn lock(used: &Mutex<Used>) -> MutexGuard<'_, Used> {
    used.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A name that is being changed, from before the look until the change is counted.
#[derive(Debug)]
pub(super) struct Touched {
    used: Arc<Mutex<Used>>,
    pub(super) path: PathBuf,
}

impl Touched {
    pub(super) fn new(used: &Arc<Mutex<Used>>, path: PathBuf) -> Self {
        let mut locked = lock(used);
        let (count, shared) = locked.touched.entry(path.clone()).or_default();
        *count += 1;
        *shared |= *count > 1;
        Self { used: used.clone(), path }
    }
}

impl Drop for Touched {
    fn drop(&mut self) {
        let mut used = lock(&self.used);
        if let Some((count, _)) = used.touched.get_mut(&self.path) {
            *count -= 1;
            if *count == 0 {
                used.touched.remove(&self.path);
            }
        }
    }
}
