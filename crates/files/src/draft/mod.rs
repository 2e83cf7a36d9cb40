//! Drafts on disk: objects appear whole or not at all.
//!
//! Bytes go to a hidden file beside the destination, which is renamed to the destination once it is complete and
//! verified. For long objects, a journal (`journal`) beside it records which bytes are synced, so that a later attempt
//! can resume. Safety depends on the order of syncs:
//!
//! 1. *Begin*: an old journal is removed, and its directory synced, before any byte is written. The new journal is
//!    written under another name, synced, renamed, and the directory synced, before anything is recorded.
//! 2. *Checkpoint*: the bytes are synced, then the record is appended, then the journal is synced.
//! 3. *Publish*: everything is synced, then the draft is renamed, then the directory synced, then the journal removed.
//!    A journal without a draft, whose inode now has the destination's name, shows that this has happened.
//!
//! Short objects are published together: after the attributes of all are set, one call syncs them ([`BatchSync`]), and then
//! each is renamed.
//!
//! The writer holds a lock on the draft. After a failed sync, later syncs may falsely succeed (the kernel reports such
//! errors once), so the draft accepts nothing more, and the next attempt resumes at the last checkpoint.

mod batch_sync;
mod begin;
#[cfg(test)]
mod crash;
mod names;

pub(crate) use batch_sync::BatchSync;
pub(crate) use begin::{JOURNAL_FROM, Start};
pub(crate) use names::{draft_beside, link_part};
pub use names::{
    draft_home, draft_of, is_draft, is_engines, is_moved_cut, is_ours, is_part, moved_from, moved_name, moved_stem,
    part_of, random_tag,
};

use crate::block::Block;
use crate::disk::{Disk, DiskFile, Stat, is_trusted};
use crate::error::Error;
use crate::journal::{self, Header, Parts};
use crate::key::Key;
use crate::range::{Extent, Ranges};
use crate::store::{Attributes, Kind, Spec};
use crate::sum::{Combining, Hasher, Sum};
use bytes::Bytes;
use names::Names;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Size at which a journal is compacted.
const COMPACT_FROM: u64 = 4 << 20;

/// Most ranges with gaps that a draft keeps, against scattered bytes that fill memory. A transfer over as many streams
/// has few more.
pub(crate) const MAX_GAPS: usize = 1 << 16;

/// Fewest zeros that make a hole.
const HOLE: usize = 64 << 10;

/// Most looks at the replaced file while others replace it too: far more than there are concurrent writers of one name.
const LOOKS: usize = 100;

/// Bytes per read for a checksum.
const REREAD: u64 = 1 << 20;

/// A draft. Several threads may write.
pub(crate) struct Work<D: Disk> {
    disk: Arc<D>,
    key: Key,
    names: Names,
    label: String,
    spec: Spec,
    /// Permissions of a new file.
    mode: u32,
    /// The replaced file, as found at the beginning.
    old: Option<Stat>,
    /// Whether unwritten parts are known to be zeros. A resumed draft may have anything there.
    sparse: bool,
    file: D::File,
    /// Whether there is a journal.
    journalled: bool,
    state: Mutex<State>,
    /// The journal, if there is one. Locked during a checkpoint, so that there is one at a time.
    journal: Mutex<Option<Writer<D::File>>>,
}

struct State {
    /// Ranges that are written or being written.
    claimed: Ranges,
    /// Ranges written since the last checkpoint.
    fresh: Parts,
    /// Synced ranges, of this and earlier attempts.
    safe: Parts,
    over: Option<Over>,
}

/// The failure after which the draft accepts nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Over {
    Failed,
    Published,
    Abandoned,
}

struct Writer<F> {
    file: F,
    at: u64,
    check: u32,
}

impl<D: Disk> Work<D> {
    /// The destination's name in errors.
    pub(crate) fn label(&self) -> &str {
        &self.label
    }

    /// The open file.
    pub(crate) fn file(&self) -> &D::File {
        &self.file
    }

    /// Where its bytes are until it is published.
    pub(crate) fn place(&self) -> &Key {
        &self.names.part
    }

    /// Whether a later attempt can resume it.
    pub(crate) fn is_journalled(&self) -> bool {
        self.journalled
    }

    /// The synced ranges.
    pub(crate) fn safe(&self) -> Ranges {
        self.state().safe.ranges.clone()
    }

    /// Writes the new parts of `block`.
    pub(crate) fn write(&self, block: &Block<Bytes>) -> Result<(), Error> {
        let extent = block.extent().unwrap_or(Extent::first(u64::MAX));
        for part in self.claim(extent)?.iter() {
            let cut = if part == extent { Some(block.clone()) } else { block.part(part) };
            // The part is within the block's range.
            let Some(piece) = cut else { continue };
            self.put(&piece.body, part.start()).map_err(|e| self.fail("write", e))?;
            let sum = self.spec.sum.and_then(|how| piece.sum_by(how));
            self.note(part, sum.unwrap_or(0));
        }
        Ok(())
    }

    /// Writes the new parts of the hole `extent`. `sum` is the checksum of the whole hole, if known.
    pub(crate) fn write_hole(&self, extent: Extent, sum: Option<u32>) -> Result<(), Error> {
        for part in self.claim(extent)?.iter() {
            // A resumed draft may have anything there.
            if !self.sparse {
                self.file.clear(part).map_err(|e| self.fail("write", e))?;
            }
            let own = || self.spec.sum.map(|how| how.of_zeros(part.len()));
            self.note(part, sum.filter(|_| part == extent).or_else(own).unwrap_or(0));
        }
        Ok(())
    }

    /// The algorithm of block checksums.
    pub(crate) fn sum(&self) -> Option<Combining> {
        self.spec.sum
    }

    /// Whether holes are kept as holes.
    pub(crate) fn leaves_holes(&self) -> bool {
        self.sparse
    }

    /// Syncs what was written, and returns the synced ranges.
    pub(crate) fn checkpoint(&self) -> Result<Ranges, Error> {
        self.checkpoint_with(&mut lock(&self.journal))
    }

    /// The checksum of all bytes, if they are `size` and it was kept.
    pub(crate) fn written_sum(&self, size: u64) -> Option<Sum> {
        self.written(&lock(&self.journal)).tally?.total(size)
    }

    /// Publishes the draft.
    pub(crate) fn publish(&self, size: u64) -> Result<(), Error> {
        self.prepare(size)?;
        self.sync()?;
        self.give_name()
    }

    /// The first step of [`Self::publish`]: checks that all of `size` bytes are there, and sets the attributes. Nothing
    /// may be written afterwards.
    pub(crate) fn prepare(&self, size: u64) -> Result<(), Error> {
        let journal = &mut *lock(&self.journal);
        self.still_open(&self.state())?;
        let written = self.written(journal).ranges;
        let missing = written.missing(Extent::first(size)).total();
        if missing > 0 || self.spec.size.is_some_and(|expected| expected != size) {
            return Err(Error::Incomplete { name: self.label.clone(), missing, size });
        }
        if let Some(extent) = written.iter().next_back().filter(|e| e.end() > size) {
            return Err(Error::Beyond { name: self.label.clone(), extent });
        }
        if journal.is_some() {
            self.checkpoint_with(journal)?;
        }
        let mode = self.inherit()?;
        let held = self.spec.held && self.file.hold().map_err(|e| self.fail("set the mode of", e))?;
        let mode = Some(self.spec.attributes.mode.unwrap_or(mode)).filter(|_| !held);
        let attributes = Attributes { mode, ..self.spec.attributes };
        self.file.set(&attributes).map_err(|e| self.fail("set times and mode of", e))
    }

    /// The second step: syncs bytes and attributes.
    pub(crate) fn sync(&self) -> Result<(), Error> {
        self.file.sync().map_err(|e| self.fail("sync", e))
    }

    /// The last step, after everything was synced: gives the draft its name, and removes its journal.
    pub(crate) fn give_name(&self) -> Result<(), Error> {
        let journal = &mut *lock(&self.journal);
        self.still_open(&self.state())?;
        let named = self.disk.stat(&self.names.part, false).map_err(|e| self.fail("look at the draft of", e))?;
        if !named.is(&self.file.stat().map_err(|e| self.fail("look at the draft of", e))?) {
            return Err(
                self.fail("give its name to", io::Error::other("somebody has put another file in its draft's place"))
            );
        }
        let renamed = self.disk.rename(&self.names.part, &self.key, self.spec.replace);
        renamed.map_err(|e| self.fail("give its name to", e))?;
        self.state().over = Some(Over::Published);
        if journal.take().is_some() {
            let synced = self.disk.sync_dir(&self.key.parent());
            synced.map_err(|e| Error::io(&self.label, "sync the directory of", e))?;
            let removed = absent_ok(self.disk.unlink(&self.names.journal));
            removed.map_err(|e| Error::io(&self.label, "remove the journal of", e))?;
        }
        Ok(())
    }

    /// Takes over the attributes of the replaced file, if there is one. Returns its permissions, which are set later.
    fn inherit(&self) -> Result<u32, Error> {
        for _ in 0..LOOKS {
            let old = absent_ok(self.disk.stat(&self.key, false)).map_err(|e| self.fail("look at", e))?;
            let Some(old) = old.filter(|old| old.kind == Kind::File) else { return Ok(self.mode) };
            // A file that others create there meanwhile would be a chance to read the bytes. Inode numbers may be
            // reused.
            if self.old.is_none_or(|before| before.owner != old.owner) && !is_trusted(old.owner) {
                let why = format!("user {} has put another file there meanwhile", old.owner);
                return Err(self.fail("replace", io::Error::new(io::ErrorKind::PermissionDenied, why)));
            }
            let kept = self.disk.inherit(&self.file, &self.key, &old);
            if kept.map_err(|e| self.fail("keep owner, group, access list and extended attributes of", e))? {
                return Ok(old.mode & 0o777);
            }
        }
        Err(self.fail("replace", never_the_same()))
    }

    /// Gives the draft up. With `keep`, a later attempt can resume it.
    pub(crate) fn abandon(&self, keep: bool) -> Result<(), Error> {
        let journal = &mut *lock(&self.journal);
        if self.state().over == Some(Over::Published) {
            return Ok(());
        }
        if keep && journal.is_some() {
            // Unsynced bytes are sent again, and a failed draft has nothing to add.
            let _ = self.checkpoint_with(journal);
            // An empty draft cannot be resumed, and may hold reserved space.
            if !self.safe().is_empty() {
                self.state().over = Some(Over::Abandoned);
                return Ok(());
            }
        }
        self.state().over = Some(Over::Abandoned);
        if journal.take().is_some() {
            absent_ok(self.disk.unlink(&self.names.journal))
                .map_err(|e| Error::io(&self.label, "remove the journal of", e))?;
            let synced = self.disk.sync_dir(&self.names.part.parent());
            synced.map_err(|e| Error::io(&self.label, "sync the directory of", e))?;
        }
        absent_ok(self.disk.unlink(&self.names.part)).map_err(|e| Error::io(&self.label, "remove the draft of", e))?;
        Ok(())
    }

    /// Removes the files of a draft that could not begin, as far as possible: the caller has an error to report.
    fn discard(&self) {
        let removed = absent_ok(self.disk.unlink(&self.names.journal));
        if removed.is_ok() && self.disk.sync_dir(&self.names.part.parent()).is_ok() {
            let _ = self.disk.unlink(&self.names.part);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Claims the parts of `extent` that nobody has written or is writing. The caller must write them.
    pub(crate) fn claim(&self, extent: Extent) -> Result<Ranges, Error> {
        let mut state = self.state();
        self.still_open(&state)?;
        if self.spec.size.is_some_and(|size| extent.end() > size) || extent.end() > i64::MAX as u64 {
            return Err(Error::Beyond { name: self.label.clone(), extent });
        }
        let missing = state.claimed.missing(extent);
        state.claimed.insert(extent);
        if state.claimed.count() > MAX_GAPS {
            let what = "the number of gaps between what was written";
            return Err(Error::Limit { name: self.label.clone(), what, limit: MAX_GAPS as u64 });
        }
        Ok(missing)
    }

    /// Writes `bytes` except holes.
    fn put(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if !self.sparse {
            return self.file.write_at(bytes, offset);
        }
        let mut at = offset;
        for run in bytes.chunks(HOLE).collect::<Vec<_>>().chunk_by(|a, b| is_zero(a) == is_zero(b)) {
            let len = run.iter().map(|chunk| chunk.len()).sum::<usize>();
            // Runs are consecutive.
            let from = (at - offset) as usize;
            if !is_zero(run[0]) {
                self.file.write_at(&bytes[from..from + len], at)?;
            }
            at += len as u64;
        }
        Ok(())
    }

    /// Records that the claimed `extent` is written, with the checksum `sum`.
    pub(crate) fn note(&self, extent: Extent, sum: u32) {
        // Claims do not overlap.
        self.state().fresh.add(extent, sum);
    }

    fn still_open(&self, state: &State) -> Result<(), Error> {
        let why = match state.over {
            None => return Ok(()),
            Some(Over::Failed) => "its disk failed",
            Some(Over::Published) => "it was published",
            Some(Over::Abandoned) => "it was given up",
        };
        let source = io::Error::other(format!("{why} before"));
        Err(Error::Io { name: self.label.clone(), act: "write", source })
    }

    /// The error for `source`. After it, only earlier checkpoints are trusted.
    pub(crate) fn fail(&self, act: &'static str, source: io::Error) -> Error {
        self.state().over = Some(Over::Failed);
        match source.kind() {
            // The draft existed at the beginning. A NotFound error would look like a missing source.
            io::ErrorKind::NotFound => {
                let why = "its draft is gone: somebody has removed it, or its directory";
                Error::Io { name: self.label.clone(), act, source: io::Error::other(why) }
            }
            _ => Error::io(&self.label, act, source),
        }
    }

    fn checkpoint_with(&self, journal: &mut Option<Writer<D::File>>) -> Result<Ranges, Error> {
        let batch = {
            let mut state = self.state();
            self.still_open(&state)?;
            std::mem::replace(&mut state.fresh, Parts::new(self.spec.sum))
        };
        if batch.ranges.is_empty() {
            return Ok(self.safe());
        }
        self.file.sync().map_err(|e| self.fail("sync", e))?;
        if let Some(writer) = journal {
            writer.append(&batch).map_err(|e| self.fail("write the journal of", e))?;
        }
        let safe = {
            let mut state = self.state();
            state.safe.merge(&batch);
            state.safe.clone()
        };
        if journal.as_ref().is_some_and(|writer| writer.at > COMPACT_FROM) {
            *journal = Some(self.start_journal(&safe)?);
        }
        Ok(safe.ranges)
    }

    /// All written ranges: synced ones and later ones. Unknown during a checkpoint.
    fn written(&self, _no_checkpoint: &Option<Writer<D::File>>) -> Parts {
        let state = self.state();
        let mut all = state.safe.clone();
        all.merge(&state.fresh);
        all
    }

    /// Writes a journal with `kept`, replacing any other.
    fn start_journal(&self, kept: &Parts) -> Result<Writer<D::File>, Error> {
        let draft = self.file.stat().map_err(|e| self.fail("look at the draft of", e))?.id;
        let (source, modified) = self.spec.source.clone().unwrap_or_default();
        let header = Header { draft, size: self.spec.size.unwrap_or(0), source, modified, sum: self.spec.sum };
        let mut bytes = Vec::new();
        let check = journal::record(kept, journal::header(&header, &mut bytes), &mut bytes);
        let started = (|| {
            absent_ok(self.disk.unlink(&self.names.next))?;
            let file = self.disk.create(&self.names.next, 0o600)?;
            file.write_at(&bytes, 0)?;
            file.sync()?;
            self.disk.rename(&self.names.next, &self.names.journal, true)?;
            self.disk.sync_dir(&self.names.part.parent())?;
            Ok(Writer { file, at: bytes.len() as u64, check })
        })();
        started.map_err(|e| {
            let _ = self.disk.unlink(&self.names.next);
            self.fail("write the journal of", e)
        })
    }
}

impl<F: DiskFile> Writer<F> {
    fn append(&mut self, parts: &Parts) -> io::Result<()> {
        let mut bytes = Vec::new();
        self.check = journal::record(parts, self.check, &mut bytes);
        self.file.write_at(&bytes, self.at)?;
        self.at += bytes.len() as u64;
        self.file.sync()
    }
}

/// Hashes `extent` of `file` from its start, up to as much time as `most` bytes take. Returns where the rest begins.
/// Holes are not read, and cost nothing if checksums of zeros can be combined.
pub(crate) fn hash(hasher: &mut Hasher, file: &impl DiskFile, extent: Extent, most: u64) -> io::Result<u64> {
    let mut bytes = Vec::new();
    let (mut at, mut left) = (extent.start(), most);
    while let Some(rest) = Extent::between(at, extent.end()).filter(|rest| !rest.is_empty() && left > 0) {
        let zeros = file.zeros_at(rest)?;
        let len = if zeros > 0 { zeros } else { rest.len().min(REREAD) };
        let costs = zeros == 0 || hasher.computes_zeros();
        let len = if costs { len.min(left) } else { len };
        if zeros > 0 {
            hasher.update_zeros(len);
        } else {
            // At most REREAD.
            bytes.resize(len as usize, 0);
            if file.read_at(&mut bytes, at)? < bytes.len() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            hasher.update(&bytes);
        }
        left -= if costs { len } else { 0 };
        at += len;
    }
    Ok(at)
}

fn is_zero(bytes: &[u8]) -> bool {
    // In words, for vectorization.
    let (words, rest) = bytes.as_chunks::<8>();
    rest.iter().all(|&byte| byte == 0) && words.iter().all(|word| *word == [0; 8])
}

/// The error if another file is found at every look.
fn never_the_same() -> io::Error {
    io::Error::new(io::ErrorKind::ResourceBusy, "others put one file after another in its place; try again")
}

fn absent_ok<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
