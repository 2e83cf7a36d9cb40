//! A simulated disk that forgets what was not synced, for tests.
//!
//! It promises only what `disk` says. When the power fails, each unsynced change of a name has happened or not, in any
//! combination; each unsynced sector is old, new or garbage; free inode numbers are reused at once. When only the
//! process is killed, everything stays.

use super::{Disk, DiskFile, Stat};
use crate::key::Key;
use crate::meta::{Attributes, Kind, Time};
use phoebus_wan::model::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const SECTOR: usize = 512;

/// The disk. Clones share it.
#[derive(Clone)]
pub(crate) struct Sim(Arc<Mutex<Inner>>);

struct Inner {
    names: BTreeMap<Key, u64>,
    safe_names: BTreeMap<Key, u64>,
    unsafe_names: Vec<NameChange>,
    inodes: BTreeMap<u64, Inode>,
    locked: BTreeSet<u64>,
    /// Changes that are still carried out before everything fails. `None`: no failure.
    left: Option<u64>,
    /// Incremented when a process is killed, which invalidates its open files.
    life: u64,
    written: u64,
    lie: Option<Lie>,
    /// Whether others can make names in its directories.
    shared: bool,
    /// Whether the next sync of the file system reports a failed write.
    unwritable: bool,
    /// Whether writes to journals fail for lack of space.
    full: bool,
    dice: Rng,
}

/// What a lying disk claims to have synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lie {
    Drafts,
    Journals,
    Names,
}

/// Changes of names and inodes that are visible at once.
type NameChange = Vec<(Key, Option<u64>)>;

#[derive(Clone, Default)]
struct Inode {
    bytes: Vec<u8>,
    attributes: Attributes,
    safe: Vec<u8>,
    changes: Vec<Change>,
}

#[derive(Clone)]
enum Change {
    Bytes(usize, Vec<u8>),
    Len(usize),
}

/// An open file of it.
pub(crate) struct SimFile {
    disk: Sim,
    id: u64,
    life: u64,
    holds: Mutex<bool>,
}

impl Sim {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(Inner {
            names: BTreeMap::new(),
            safe_names: BTreeMap::new(),
            unsafe_names: Vec::new(),
            inodes: BTreeMap::new(),
            locked: BTreeSet::new(),
            left: None,
            life: 0,
            written: 0,
            lie: None,
            shared: false,
            unwritable: false,
            full: false,
            dice: Rng::new(seed),
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails after `changes` more changes. The last one may or may not happen.
    pub(crate) fn fail_after(&self, changes: u64) {
        self.lock().left = Some(changes);
    }

    /// From now on, syncs are claimed but not done.
    pub(crate) fn lie(&self, lie: Option<Lie>) {
        self.lock().lie = lie;
    }

    /// Sets whether writes to journals fail for lack of space.
    pub(crate) fn fill(&self, full: bool) {
        self.lock().full = full;
    }

    /// Makes the next sync of the file system report that something could not be written.
    pub(crate) fn fail_together(&self) {
        self.lock().unwritable = true;
    }

    /// From now on, others can make names in its directories.
    pub(crate) fn share(&self) {
        self.lock().shared = true;
    }

    /// Kills the process, and starts another.
    pub(crate) fn kill(&self) {
        let mut inner = self.lock();
        inner.left = None;
        inner.life += 1;
        inner.locked.clear();
    }

    /// Cuts and restores the power.
    pub(crate) fn lose_power(&self) {
        self.kill();
        let inner = &mut *self.lock();
        for change in std::mem::take(&mut inner.unsafe_names) {
            if inner.dice.below(2) == 0 {
                apply(&mut inner.safe_names, &change);
            }
        }
        inner.names = inner.safe_names.clone();
        let used: BTreeSet<u64> = inner.names.values().copied().collect();
        inner.inodes.retain(|id, _| used.contains(id));
        for inode in inner.inodes.values_mut() {
            inode.lose_power(&mut inner.dice);
        }
    }

    /// The bytes of `key`, as programs see them.
    pub(crate) fn contents(&self, key: &Key) -> Option<Vec<u8>> {
        let inner = self.lock();
        Some(inner.inodes.get(inner.names.get(key)?)?.bytes.clone())
    }

    /// All names.
    pub(crate) fn names(&self) -> Vec<Key> {
        self.lock().names.keys().cloned().collect()
    }

    /// Bytes written so far to files that are no journals.
    pub(crate) fn written(&self) -> u64 {
        self.lock().written
    }

    /// Creates a synced file.
    pub(crate) fn put(&self, key: &Key, bytes: &[u8]) {
        let file = self.create(key, 0o644).unwrap();
        file.write_at(bytes, 0).unwrap();
        file.sync().unwrap();
        self.sync_dir(&key.parent()).unwrap();
    }

    fn file(&self, id: u64) -> SimFile {
        SimFile { disk: self.clone(), id, life: self.lock().life, holds: Mutex::new(false) }
    }
}

impl Inner {
    /// Counts a change. False if it does not happen; an error if the machine fails with it.
    fn step(&mut self) -> (bool, io::Result<()>) {
        match &mut self.left {
            None => (true, Ok(())),
            Some(0) => (false, Err(off())),
            Some(left) => {
                *left -= 1;
                if *left > 0 { (true, Ok(())) } else { (self.dice.below(2) == 0, Err(off())) }
            }
        }
    }

    /// Whether the file has the name of a journal.
    fn is_journal(&self, id: u64) -> bool {
        self.names.iter().any(|(key, named)| *named == id && key.name().windows(7).any(|w| w == b"journal"))
    }

    fn rename(&mut self, change: NameChange) {
        apply(&mut self.names, &change);
        self.unsafe_names.push(change);
    }
}

fn off() -> io::Error {
    io::Error::other("the machine is off")
}

fn apply(names: &mut BTreeMap<Key, u64>, change: &NameChange) {
    for (key, id) in change {
        match id {
            Some(id) => drop(names.insert(key.clone(), *id)),
            None => drop(names.remove(key)),
        }
    }
}

impl Inode {
    fn change(&mut self, change: Change) {
        carry_out(&mut self.bytes, &change);
        self.changes.push(change);
    }

    fn sync(&mut self) {
        self.changes.clear();
        self.safe = self.bytes.clone();
    }

    fn lose_power(&mut self, dice: &mut Rng) {
        for change in std::mem::take(&mut self.changes) {
            match change {
                Change::Len(_) if dice.below(2) == 0 => carry_out(&mut self.safe, &change),
                Change::Len(_) => {}
                Change::Bytes(offset, bytes) => {
                    for (i, sector) in bytes.chunks(SECTOR).enumerate() {
                        let at = offset + i * SECTOR;
                        match dice.below(3) {
                            0 => carry_out(&mut self.safe, &Change::Bytes(at, sector.to_vec())),
                            1 => {
                                let rubbish = sector.iter().map(|_| dice.next_u64() as u8).collect();
                                carry_out(&mut self.safe, &Change::Bytes(at, rubbish));
                            }
                            _ => {}
                        }
                    }
                }
            }
        }
        self.bytes = self.safe.clone();
    }
}

fn carry_out(bytes: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Len(len) => bytes.resize(*len, 0),
        Change::Bytes(offset, new) => {
            bytes.resize(bytes.len().max(offset + new.len()), 0);
            bytes[*offset..offset + new.len()].copy_from_slice(new);
        }
    }
}

impl Disk for Sim {
    type File = SimFile;
    type FileSystem = ();

    fn open(&self, key: &Key) -> io::Result<SimFile> {
        let id = self.lock().names.get(key).copied().ok_or(io::ErrorKind::NotFound)?;
        Ok(self.file(id))
    }

    fn edit(&self, key: &Key) -> io::Result<SimFile> {
        self.open(key)
    }

    /// There is one user.
    fn adopt(&self, key: &Key, _shared: bool) -> io::Result<Option<SimFile>> {
        self.open(key).map(Some)
    }

    fn is_shared(&self, _key: &Key) -> io::Result<bool> {
        Ok(self.lock().shared)
    }

    fn names_in(&self, key: &Key) -> io::Result<Vec<Vec<u8>>> {
        Ok(self.names().iter().filter(|name| name.parent() == *key).map(|name| name.name().to_vec()).collect())
    }

    fn may_inherit(&self, _file: &SimFile, _key: &Key, _old: &Stat) -> io::Result<bool> {
        Ok(true)
    }

    fn inherit(&self, _file: &SimFile, _key: &Key, _old: &Stat) -> io::Result<bool> {
        Ok(true)
    }

    fn create(&self, key: &Key, mode: u32) -> io::Result<SimFile> {
        let mut inner = self.lock();
        if inner.names.contains_key(key) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let (done, result) = inner.step();
        let id = (1..).find(|id| !inner.inodes.contains_key(id)).unwrap();
        if done {
            let attributes = Attributes { mode: Some(mode), modified: None };
            inner.inodes.insert(id, Inode { attributes, ..Inode::default() });
            inner.rename(vec![(key.clone(), Some(id))]);
        }
        drop(inner);
        result.map(|()| self.file(id))
    }

    fn stat(&self, key: &Key, _follow: bool) -> io::Result<Stat> {
        self.open(key)?.stat()
    }

    fn rename(&self, from: &Key, to: &Key, replace: bool) -> io::Result<()> {
        let mut inner = self.lock();
        let id = inner.names.get(from).copied().ok_or(io::ErrorKind::NotFound)?;
        if !replace && inner.names.contains_key(to) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let (done, result) = inner.step();
        if done {
            inner.rename(vec![(to.clone(), Some(id)), (from.clone(), None)]);
        }
        result
    }

    fn unlink(&self, key: &Key) -> io::Result<()> {
        let mut inner = self.lock();
        if !inner.names.contains_key(key) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let (done, result) = inner.step();
        if done {
            inner.rename(vec![(key.clone(), None)]);
        }
        result
    }

    fn file_system(&self) -> Option<()> {
        Some(())
    }

    fn sync_together(&self, _file_system: &(), files: &[&SimFile]) -> io::Result<bool> {
        let inner = &mut *self.lock();
        if std::mem::take(&mut inner.unwritable) {
            return Err(io::Error::other("something could not be written"));
        }
        if files.iter().any(|file| file.life != inner.life) {
            return Err(off());
        }
        let (done, result) = inner.step();
        if done && inner.lie != Some(Lie::Drafts) {
            inner.inodes.values_mut().for_each(Inode::sync);
        }
        result.map(|()| true)
    }

    fn sync_dir(&self, key: &Key) -> io::Result<()> {
        let inner = &mut *self.lock();
        let (done, result) = inner.step();
        if done && inner.lie != Some(Lie::Names) {
            let (synced, rest) = inner
                .unsafe_names
                .drain(..)
                .partition(|change: &NameChange| change.iter().all(|(k, _)| k.parent() == *key));
            inner.unsafe_names = rest;
            let synced: Vec<NameChange> = synced;
            synced.iter().for_each(|change| apply(&mut inner.safe_names, change));
        }
        result
    }
}

impl SimFile {
    fn change(&self, change: Change) -> io::Result<()> {
        let inner = &mut *self.disk.lock();
        if inner.life != self.life {
            return Err(off());
        }
        if inner.full && inner.is_journal(self.id) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let (done, result) = inner.step();
        if done {
            let journal = inner.is_journal(self.id);
            if let (Change::Bytes(_, bytes), false) = (&change, journal) {
                inner.written += bytes.len() as u64;
            }
            inner.inodes.get_mut(&self.id).ok_or_else(off)?.change(change);
        }
        result
    }
}

impl DiskFile for SimFile {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let inner = self.disk.lock();
        let all = &inner.inodes.get(&self.id).ok_or_else(off)?.bytes;
        let from = (offset as usize).min(all.len());
        let n = bytes.len().min(all.len() - from);
        bytes[..n].copy_from_slice(&all[from..from + n]);
        Ok(n)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.change(Change::Bytes(offset as usize, bytes.to_vec()))
    }

    fn set_len(&self, size: u64) -> io::Result<()> {
        self.change(Change::Len(size as usize))
    }

    fn reserve(&self, _size: u64) -> io::Result<()> {
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let inner = &mut *self.disk.lock();
        if inner.life != self.life {
            return Err(off());
        }
        let (done, result) = inner.step();
        let lie = if inner.is_journal(self.id) { Lie::Journals } else { Lie::Drafts };
        if done && inner.lie != Some(lie) {
            inner.inodes.get_mut(&self.id).ok_or_else(off)?.sync();
        }
        result
    }

    fn set(&self, attributes: &Attributes) -> io::Result<()> {
        let inner = &mut *self.disk.lock();
        let (done, result) = inner.step();
        if done {
            inner.inodes.get_mut(&self.id).ok_or_else(off)?.attributes = *attributes;
        }
        result
    }

    fn stat(&self) -> io::Result<Stat> {
        let inner = self.disk.lock();
        let inode = inner.inodes.get(&self.id).ok_or_else(off)?;
        let modified = inode.attributes.modified.unwrap_or(Time { seconds: 0, nanos: 0 });
        let mode = inode.attributes.mode.unwrap_or(0);
        let size = inode.bytes.len() as u64;
        Ok(Stat {
            kind: Kind::File,
            size,
            modified,
            changed: modified,
            mode,
            sparse: false,
            id: self.id,
            device: 1,
            links: 1,
            owner: 0,
            group: 0,
        })
    }

    fn lock(&self) -> io::Result<bool> {
        let free = self.disk.lock().locked.insert(self.id);
        *self.holds.lock().unwrap() |= free;
        Ok(free)
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        let mut inner = self.disk.lock();
        if *self.holds.get_mut().unwrap() && inner.life == self.life {
            inner.locked.remove(&self.id);
        }
    }
}

#[test]
fn simulated_disk_loses_only_unsynced_bytes() {
    let key = |name: &str| Key::parse(name).unwrap();
    let (mut names, mut old, mut new, mut rubbish) = (0, 0, 0, 0);
    for seed in 0..60 {
        let disk = Sim::new(seed);
        disk.put(&key("safe"), &[1; 600]);
        let file = disk.edit(&key("safe")).unwrap();
        file.write_at(&[2; 300], 0).unwrap();
        disk.create(&key("new"), 0).unwrap().sync().unwrap();
        disk.lose_power();
        assert!(file.write_at(b"x", 0).is_err(), "a file of a machine that is off");
        names += u32::from(disk.contents(&key("new")).is_some());
        let bytes = disk.contents(&key("safe")).unwrap();
        assert_eq!((bytes.len(), &bytes[300..]), (600, &[1; 300][..]));
        match bytes[..300].iter().max() {
            Some(1) => old += 1,
            Some(2) => new += 1,
            _ => rubbish += 1,
        }
    }
    assert!((10..50).contains(&names) && old.min(new).min(rubbish) > 5, "{names} {old} {new} {rubbish}");
}
