//! What a draft needs of a disk, as a trait, so that the same code runs on Linux and on a simulated disk that forgets
//! what was not synced.
//!
//! It promises what file systems promise, and no more: bytes are safe once their file is synced, names once their
//! directory is, a rename is atomic, and anything else may be lost in any part and any order.

mod append;
mod file;
mod file_system;
mod linux;
mod owned;
#[cfg(test)]
pub(crate) mod sim;
mod walk;

pub use append::append_to;
pub(crate) use file::LinuxFile;
pub(crate) use linux::{Entries, Linux};
pub(crate) use owned::is_trusted;
pub use walk::Links;

use crate::key::Key;
use crate::meta::{Attributes, Kind, Time};
use crate::range::Extent;
use std::io;

/// A directory tree. Calls block.
pub(crate) trait Disk: Send + Sync + 'static {
    /// An open file.
    type File: DiskFile;

    /// A file system that can be synced by one call.
    type FileSystem: Send + Sync + 'static;

    /// Opens an existing file for reading.
    fn open(&self, key: &Key) -> io::Result<Self::File>;

    /// Opens an existing file for reading and writing.
    fn edit(&self, key: &Key) -> io::Result<Self::File>;

    /// Opens the regular file `key` for reading and writing, if nobody else can have influenced it: the caller owns it,
    /// it has one name, no link leads to it, and, if others can make names beside it (`shared`), nobody else may read
    /// or write it. Otherwise `None`.
    fn adopt(&self, key: &Key, shared: bool) -> io::Result<Option<Self::File>>;

    /// Whether users other than the caller and root can make names in the directory `key`.
    fn is_shared(&self, key: &Key) -> io::Result<bool>;

    /// The names in the directory `key`, in any order.
    fn names_in(&self, key: &Key) -> io::Result<Vec<Vec<u8>>>;

    /// Checks that `file`, which this user has made, can take over the attributes of `key`. False if that is no longer
    /// `old`.
    ///
    /// # Errors
    /// What prevents it.
    fn may_inherit(&self, file: &Self::File, key: &Key, old: &Stat) -> io::Result<bool>;

    /// Gives `file` the owner, group, access list and extended attributes of `key`. False if that is no longer `old`.
    fn inherit(&self, file: &Self::File, key: &Key, old: &Stat) -> io::Result<bool>;

    /// Creates a file for reading and writing, with the permissions `mode`.
    fn create(&self, key: &Key, mode: u32) -> io::Result<Self::File>;

    /// Metadata of `key`, or with `follow` of its target.
    fn stat(&self, key: &Key, follow: bool) -> io::Result<Stat>;

    /// Renames `from` to `to`; with `replace`, over an existing file.
    fn rename(&self, from: &Key, to: &Key, replace: bool) -> io::Result<()>;

    /// Removes a name that is no directory.
    fn unlink(&self, key: &Key) -> io::Result<()>;

    /// The file system of the tree, if files can be synced by one call, for files that are made from now on.
    fn file_system(&self) -> Option<Self::FileSystem>;

    /// Syncs `files` by one call. False, with nothing done, if one of them is on another file system, or if syncing one after
    /// the other promises to be faster.
    ///
    /// # Errors
    /// Something on the file system, not necessarily one of `files`, could not be synced since `file_system` was opened. This
    /// is reported once.
    fn sync_together(&self, file_system: &Self::FileSystem, files: &[&Self::File]) -> io::Result<bool>;

    /// Syncs the names in the directory `key`.
    fn sync_dir(&self, key: &Key) -> io::Result<()>;
}

/// An open file. Calls block.
pub(crate) trait DiskFile: Send + Sync + 'static {
    /// Reads at `offset`. Returns less than requested only at the end.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Length of the hole at the start of `extent`. `None` if the file system does not tell.
    fn zeros_at(&self, extent: Extent) -> io::Result<u64> {
        let _ = extent;
        Ok(0)
    }

    /// Writes zeros to `extent`, as a hole if possible.
    fn clear(&self, extent: Extent) -> io::Result<()> {
        let zeros = vec![0; 1 << 20];
        // Blocks are no longer than the zeros.
        extent
            .blocks(zeros.len() as u64)
            .try_for_each(|block| self.write_at(&zeros[..block.len() as usize], block.start()))
    }

    /// Writes all of `bytes` at `offset`.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Sets the length of the file.
    fn set_len(&self, size: u64) -> io::Result<()>;

    /// Reserves space for `size` bytes, or fails. Does nothing if the file system cannot.
    fn reserve(&self, size: u64) -> io::Result<()>;

    /// Syncs the bytes and what is needed to find them.
    fn sync(&self) -> io::Result<()>;

    /// Sets times and permissions. The next [`Self::sync`] makes them durable.
    fn set(&self, attributes: &Attributes) -> io::Result<()>;

    /// Makes it private and marks it as held ([`Stat::is_held`]). False if the file system does not keep the mark.
    fn hold(&self) -> io::Result<bool> {
        Ok(false)
    }

    /// Its metadata.
    fn stat(&self) -> io::Result<Stat>;

    /// Locks it until it is closed. False if another holds the lock.
    fn lock(&self) -> io::Result<bool>;
}

/// Permissions of a held file: private, with the sticky bit, which has no meaning for files on Linux. Any change of
/// permissions removes it.
pub(crate) const HELD: u32 = 0o1600;

impl Stat {
    /// Whether it is held: private until it is renamed.
    pub(crate) fn is_held(&self) -> bool {
        self.kind == Kind::File && self.mode == HELD
    }

    /// Whether both are the same file.
    pub(crate) fn is(&self, other: &Self) -> bool {
        (self.device, self.id) == (other.device, other.id)
    }
}

/// What is known of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) kind: Kind,
    pub(crate) size: u64,
    pub(crate) modified: Time,
    /// Time of the last change of any kind (ctime).
    pub(crate) changed: Time,
    pub(crate) mode: u32,
    /// Whether it takes less space than its size.
    pub(crate) sparse: bool,
    /// Inode number.
    pub(crate) id: u64,
    /// Device.
    pub(crate) device: u64,
    /// Number of names.
    pub(crate) links: u64,
    /// Owner.
    pub(crate) owner: u32,
    /// Group.
    pub(crate) group: u32,
}
