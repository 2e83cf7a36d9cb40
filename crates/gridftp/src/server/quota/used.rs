//! What there is beneath a root: as the last count has it, and what this server has done since.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// For how long a count holds, if nothing but this server changes anything.
const HOLDS: Duration = Duration::from_secs(600);

/// For how many times as long as counting took a count holds, whatever may have changed: counting costs a disk a tenth of its time at
/// most.
const REST: u32 = 9;

/// What takes less than this is counted whenever it helps.
const QUICK: Duration = Duration::from_millis(100);

/// What there is beneath a root. Where it cannot be known for sure it is too much rather than too little, until it is counted again.
#[derive(Debug, Default)]
pub(super) struct Used {
    pub(super) bytes: u64,
    pub(super) files: u64,
    /// What transfers in progress have room for.
    pub(super) claimed: (u64, u64),
    /// Their drafts, which are not counted beside that.
    pub(super) drafts: HashSet<PathBuf>,
    /// When they were last counted, and how long that took.
    pub(super) counted: Option<(Instant, Duration)>,
    /// Whether something has changed since that was not added or subtracted.
    pub(super) stale: bool,
    /// What has changed since somebody began to count.
    meanwhile: Option<Meanwhile>,
    /// Names of which something is being done to what has them: how many do so, and whether they were ever more than one.
    touched: HashMap<PathBuf, (usize, bool)>,
}

#[derive(Debug, Default)]
struct Meanwhile {
    bytes: u64,
    files: u64,
    changed: bool,
    /// Whether something may have gone from where it was not yet counted to where it is counted no more.
    moved: bool,
}

impl Used {
    /// Whether the last count still holds.
    pub(super) fn holds(&self, now: Instant) -> bool {
        self.counted.is_some_and(|(at, took)| {
            let age = now.saturating_duration_since(at);
            let rests = took >= QUICK && age < took.saturating_mul(REST);
            rests || (age < HOLDS && !self.stale)
        })
    }

    /// Something is there that was not.
    pub(super) fn add(&mut self, bytes: u64, files: u64) {
        (self.bytes, self.files) = (self.bytes.saturating_add(bytes), self.files.saturating_add(files));
        if let Some(meanwhile) = &mut self.meanwhile {
            meanwhile.bytes = meanwhile.bytes.saturating_add(bytes);
            meanwhile.files = meanwhile.files.saturating_add(files);
            meanwhile.changed = true;
        }
    }

    /// Something is there no more.
    pub(super) fn subtract(&mut self, bytes: u64, files: u64) {
        (self.bytes, self.files) = (self.bytes.saturating_sub(bytes), self.files.saturating_sub(files));
        // Whether it was there when it was counted nobody knows.
        self.meanwhile.iter_mut().for_each(|meanwhile| meanwhile.changed = true);
    }

    /// What was found under `path`, which is [`Touched`] since, is there no more: whether that was subtracted. It is not if somebody else
    /// has done something to it meanwhile, who may have subtracted it.
    pub(super) fn gone(&mut self, path: &Path, bytes: u64) -> bool {
        let alone = self.touched.get(path).is_some_and(|(_, shared)| !shared) && !self.drafts.contains(path);
        match alone {
            true => self.subtract(bytes, 1),
            false => self.doubt(),
        }
        alone
    }

    /// Something has another name.
    pub(super) fn moved(&mut self) {
        self.meanwhile.iter_mut().for_each(|meanwhile| (meanwhile.changed, meanwhile.moved) = (true, true));
    }

    /// Something has changed, nobody knows how much.
    pub(super) fn doubt(&mut self) {
        self.stale = true;
        self.meanwhile.iter_mut().for_each(|meanwhile| meanwhile.changed = true);
    }

    /// Somebody begins to count.
    pub(super) fn begin(&mut self) {
        self.meanwhile = Some(Meanwhile::default());
    }

    /// That came to so much. What has come meanwhile may be in it or not, and what has gone, too.
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

/// Locks what is used.
pub(super) fn lock(used: &Mutex<Used>) -> MutexGuard<'_, Used> {
    used.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A name, from before it is looked at what has it until what is done to that has been counted.
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

/// The bytes and files below `root`, but for the drafts of transfers in progress.
pub(super) fn counted(root: &Path, used: &Mutex<Used>) -> io::Result<(u64, u64)> {
    let (mut bytes, mut files) = (0u64, 0u64);
    let mut below = vec![root.to_owned()];
    while let Some(dir) = below.pop() {
        let entries = match fs::read_dir(&dir) {
            // It was removed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound && dir != root => continue,
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            let meta = match entry.metadata() {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                meta => meta?,
            };
            let path = entry.path();
            if lock(used).drafts.contains(&path) {
                continue;
            }
            files += 1;
            if meta.is_dir() {
                below.push(path);
            } else if meta.is_file() {
                bytes += meta.len();
            }
        }
    }
    Ok((bytes, files))
}
