//! Space that transfers have reserved.

use super::Inner;
use phoebus_files::Error;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The reservation of a transfer.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) of: Arc<Inner>,
    room: Mutex<Room>,
    /// The draft's path, until it is published.
    draft: Mutex<Option<PathBuf>>,
    /// Whether it was added to the used space.
    pub(super) settled: AtomicBool,
}

#[derive(Debug, Default)]
struct Room {
    bytes: u64,
    files: u64,
    /// What it replaces, which still counts: the draft of an earlier attempt.
    instead: Option<u64>,
}

impl Claim {
    /// Reserves space for `more`, replacing a file of `instead` bytes, if any.
    pub(super) fn new(of: &Arc<Inner>, bytes: u64, files: u64, instead: Option<u64>) -> Result<Self, Error> {
        let room = Mutex::new(Room { instead, ..Room::default() });
        let claim = Self { of: of.clone(), room, draft: Mutex::default(), settled: AtomicBool::default() };
        claim.grow(bytes, files)?;
        Ok(claim)
    }

    fn room(&self) -> MutexGuard<'_, Room> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn draft(&self) -> MutexGuard<'_, Option<PathBuf>> {
        self.draft.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserved bytes and files.
    pub(super) fn size(&self) -> (u64, u64) {
        let room = self.room();
        (room.bytes, room.files)
    }

    /// Reserves more, if there is space.
    fn grow(&self, bytes: u64, files: u64) -> Result<(), Error> {
        self.grow_room(&mut self.room(), bytes, files)
    }

    fn grow_room(&self, room: &mut Room, bytes: u64, files: u64) -> Result<(), Error> {
        let mut used = self.of.used();
        let quota = self.of.quota;
        let instead = room.instead.map_or((0, 0), |bytes| (bytes, 1));
        let sum = |all: [u64; 3], instead: u64| all.into_iter().fold(0, u64::saturating_add).saturating_sub(instead);
        let wanted = sum([used.bytes, used.claimed.0, bytes], instead.0);
        if let Some(most) = quota.bytes.filter(|most| bytes > 0 && wanted > most.0) {
            used.refused(Instant::now());
            return Err(self.of.over("bytes", most.to_string()));
        }
        let wanted = sum([used.files, used.claimed.1, files], instead.1);
        if let Some(most) = quota.files.filter(|most| files > 0 && wanted > *most) {
            used.refused(Instant::now());
            return Err(self.of.over("files", most.to_string()));
        }
        used.claimed = (used.claimed.0.saturating_add(bytes), used.claimed.1.saturating_add(files));
        (room.bytes, room.files) = (room.bytes.saturating_add(bytes), room.files.saturating_add(files));
        Ok(())
    }

    /// Extends the reservation to `bytes`. Several writers of one upload may ask at the same time.
    pub(super) fn reach(&self, bytes: u64) -> Result<(), Error> {
        let mut room = self.room();
        match bytes.checked_sub(room.bytes) {
            None | Some(0) => Ok(()),
            Some(more) => self.grow_room(&mut room, more, 0),
        }
    }

    /// Records that the reservation is for the draft `place`, and that the replaced `old` counts no more.
    ///
    /// # Errors
    /// It still counts, and there is no space for both.
    pub(super) fn is_in(&self, place: Option<PathBuf>, old: Option<(PathBuf, u64)>) -> Result<(), Error> {
        let (bytes, files) = {
            let (mut room, mut draft, mut used) = (self.room(), self.draft(), self.of.used());
            let gone = old.is_some_and(|(path, bytes)| used.gone(&path, bytes));
            if place.is_some() {
                used.note_draft(room.bytes);
            }
            used.drafts.extend(place.clone());
            *draft = place;
            match room.instead.take() {
                Some(_) if !gone => {}
                _ => return Ok(()),
            }
            used.claimed = (used.claimed.0.saturating_sub(room.bytes), used.claimed.1.saturating_sub(room.files));
            (std::mem::take(&mut room.bytes), std::mem::take(&mut room.files))
        };
        self.grow(bytes, files)
    }

    /// Records that the draft is given up, with `left` bytes left, if any, which count from now on.
    pub(super) fn leaves(&self, left: Option<u64>) {
        let (mut draft, mut used) = (self.draft(), self.of.used());
        if let Some(draft) = draft.take() {
            used.drafts.remove(&draft);
        }
        if let Some(bytes) = left {
            used.note_draft(bytes);
            used.add(bytes, 1);
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let (bytes, files) = self.size();
        let draft = self.draft.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let unsettled = draft.as_ref().filter(|_| !*self.settled.get_mut());
        // Anything left counts, though its size is unknown.
        let left = unsettled.map(|draft| fs::symlink_metadata(draft).map(|meta| meta.len()));
        let mut used = self.of.used();
        used.claimed = (used.claimed.0.saturating_sub(bytes), used.claimed.1.saturating_sub(files));
        if let Some(draft) = &draft {
            used.drafts.remove(draft);
        }
        if let Some(left) = left {
            if let Ok(bytes) = left {
                used.note_draft(bytes);
                used.add(bytes, 1);
            }
            used.doubt();
        }
    }
}
