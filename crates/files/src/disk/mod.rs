//! What a draft needs of a disk, as a trait, so that the same code runs on Linux and on a simulated disk that forgets what
//! was not synced.
//!
//! The promises are those that file systems keep, and no more: bytes are safe once their file is synced, names once their
//! directory is, a rename is seen whole or not at all, and everything else may be lost in any part and any order.

mod append;
mod file;
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

/// A directory tree, by keys. Calls block.
pub(crate) trait Disk: Send + Sync + 'static {
    /// An open file.
    type File: DiskFile;

    /// Opens what exists, to be read.
    fn open(&self, key: &Key) -> io::Result<Self::File>;

    /// Opens what exists, to be read and written.
    fn edit(&self, key: &Key) -> io::Result<Self::File>;

    /// Opens the regular file `key` to be read and written, if nobody else has had a hand in it: the user who asks owns it, it has no other
    /// name, no link leads to it, and, where others can make names beside it (`shared`), nobody else may read or write it. Otherwise none.
    fn adopt(&self, key: &Key, shared: bool) -> io::Result<Option<Self::File>>;

    /// Whether others than the user who asks and root can make names in the directory `key`.
    fn is_shared(&self, key: &Key) -> io::Result<bool>;

    /// The names in the directory `key`, in any order.
    fn names_in(&self, key: &Key) -> io::Result<Vec<Vec<u8>>>;

    /// Makes sure that `file`, which this user has made, can get what `key` has beside its bytes; false if that is no longer `old`.
    ///
    /// # Errors
    /// What is in the way.
    fn may_inherit(&self, file: &Self::File, key: &Key, old: &Stat) -> io::Result<bool>;

    /// Gives `file` the owner, the group, the access list and the extended attributes that `key` has; false if that is no longer `old`.
    fn inherit(&self, file: &Self::File, key: &Key, old: &Stat) -> io::Result<bool>;

    /// Makes what does not exist, to be read and written, with the permissions `mode`.
    fn create(&self, key: &Key, mode: u32) -> io::Result<Self::File>;

    /// What `key` is, itself or, with `follow`, where it leads.
    fn stat(&self, key: &Key, follow: bool) -> io::Result<Stat>;

    /// Gives `from` the name `to`, in place of what has it if `replace`.
    fn rename(&self, from: &Key, to: &Key, replace: bool) -> io::Result<()>;

    /// Takes the name of what is no directory away.
    fn unlink(&self, key: &Key) -> io::Result<()>;

    /// Returns when all changes to the names in the directory `key` are safe.
    fn sync_dir(&self, key: &Key) -> io::Result<()>;
}

/// An open file. Calls block.
pub(crate) trait DiskFile: Send + Sync + 'static {
    /// Reads at `offset`; less than asked for only at the end.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize>;

    /// How many bytes from the beginning of `extent` on are zeros that take no space, which need not be read; none where the file system
    /// does not say.
    fn zeros_at(&self, extent: Extent) -> io::Result<u64> {
        let _ = extent;
        Ok(0)
    }

    /// Makes zeros of the bytes `extent`, if possible without taking space for them.
    fn clear(&self, extent: Extent) -> io::Result<()> {
        let zeros = vec![0; 1 << 20];
        // Blocks are no longer than the zeros.
        extent
            .blocks(zeros.len() as u64)
            .try_for_each(|block| self.write_at(&zeros[..block.len() as usize], block.start()))
    }

    /// Writes all of `bytes` at `offset`.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Makes the file `size` bytes long, with zeros where there was nothing.
    fn set_len(&self, size: u64) -> io::Result<()>;

    /// Takes space for `size` bytes, or fails now and not later. Where the file system cannot, nothing happens.
    fn reserve(&self, size: u64) -> io::Result<()>;

    /// Returns when the bytes, and what is needed to find them, are safe.
    fn sync(&self) -> io::Result<()>;

    /// Sets times and permissions; they are safe after the next [`Self::sync`].
    fn set(&self, attributes: &Attributes) -> io::Result<()>;

    /// Makes it its owner's alone, marked so that [`Stat::is_held`] tells it; false if the file system does not keep that.
    fn hold(&self) -> io::Result<bool> {
        Ok(false)
    }

    /// What it is.
    fn stat(&self) -> io::Result<Stat>;

    /// Locks it against others who lock it, until it is closed; false if another has it.
    fn lock(&self) -> io::Result<bool>;
}

/// The permissions of a file that is held: its owner's alone, and the sticky bit, which means nothing to Linux in a file's. Whoever sets
/// others takes it away.
pub(crate) const HELD: u32 = 0o1600;

impl Stat {
    /// Whether it is its owner's alone until it is renamed.
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
    /// When anything of it was changed last.
    pub(crate) changed: Time,
    pub(crate) mode: u32,
    /// Whether it takes less space than it has bytes.
    pub(crate) sparse: bool,
    /// Which file of its device it is, whatever its name.
    pub(crate) id: u64,
    /// Which device it is on.
    pub(crate) device: u64,
    /// How many names it has.
    pub(crate) links: u64,
    /// The user who owns it.
    pub(crate) owner: u32,
    /// Its group.
    pub(crate) group: u32,
}
