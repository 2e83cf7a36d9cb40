//! Open files of this machine.

use super::{DiskFile, HELD, Stat};
use crate::meta::{Attributes, Kind, STICKY, Time};
use crate::range::Extent;
use rustix::fs::{FallocateFlags, FileType, FlockOperation, Mode, SeekFrom, Timespec, Timestamps};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Holes of at least this size are made at a time, by writing zeros where the file system has none.
pub(super) const HOLE: u64 = 1 << 20;
/// A file that takes so much less space than it has bytes has holes.
const SPARSE: u64 = 64 << 10;

/// An open file of this machine.
#[derive(Debug, Clone)]
pub(crate) struct LinuxFile(pub(crate) Arc<File>);

impl DiskFile for LinuxFile {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < bytes.len() {
            match self.0.read_at(&mut bytes[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn zeros_at(&self, extent: Extent) -> io::Result<u64> {
        let until = match rustix::fs::seek(&*self.0, SeekFrom::Data(extent.start())) {
            Ok(data) => data,
            // The file has become shorter.
            Err(Errno::NXIO) => self.stat()?.size,
            Err(_) => return Ok(0),
        };
        Ok(until.min(extent.end()).saturating_sub(extent.start()))
    }

    fn clear(&self, extent: Extent) -> io::Result<()> {
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(&*self.0, how, extent.start(), extent.len()) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {}
            cleared => return Ok(cleared?),
        }
        let zeros = vec![0; HOLE as usize];
        // Blocks are no longer than the zeros.
        extent.blocks(HOLE).try_for_each(|block| self.write_at(&zeros[..block.len() as usize], block.start()))
    }

    fn set_len(&self, size: u64) -> io::Result<()> {
        self.0.set_len(size)
    }

    fn reserve(&self, size: u64) -> io::Result<()> {
        match rustix::fs::fallocate(&*self.0, FallocateFlags::empty(), 0, size) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_all()
    }

    fn set(&self, attributes: &Attributes) -> io::Result<()> {
        if let Some(mode) = attributes.mode {
            rustix::fs::fchmod(&*self.0, changed_mode(rustix::fs::fstat(&*self.0)?.st_mode, mode))?;
        }
        if let Some(time) = attributes.modified {
            rustix::fs::futimens(&*self.0, &modified_at(time))?;
        }
        Ok(())
    }

    fn hold(&self) -> io::Result<bool> {
        // On file systems that change the owner of new files, nobody could release it.
        if self.stat()?.owner != rustix::process::geteuid().as_raw() {
            return Ok(false);
        }
        match rustix::fs::fchmod(&*self.0, Mode::from_raw_mode(HELD)) {
            Ok(()) => Ok(self.stat()?.is_held()),
            Err(Errno::PERM | Errno::INVAL | Errno::NOTSUP) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn stat(&self) -> io::Result<Stat> {
        Ok(stat_of(&rustix::fs::fstat(&*self.0)?))
    }

    fn lock(&self) -> io::Result<bool> {
        match rustix::fs::flock(self.0.as_fd(), FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// Sets only the time of modification.
pub(super) fn modified_at(time: Time) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
        last_modification: Timespec { tv_sec: time.seconds, tv_nsec: time.nanos.into() },
    }
}

/// What `stat` says.
pub(super) fn stat_of(stat: &rustix::fs::Stat) -> Stat {
    // `st_blocks` counts 512 bytes. A file whose space is hardly less than its size has no holes.
    let stored = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    Stat {
        kind: kind_of(rustix::fs::FileType::from_raw_mode(stat.st_mode)),
        size,
        modified: Time { seconds: stat.st_mtime, nanos: u32::try_from(stat.st_mtime_nsec).unwrap_or(0) },
        changed: Time { seconds: stat.st_ctime, nanos: u32::try_from(stat.st_ctime_nsec).unwrap_or(0) },
        mode: stat.st_mode & 0o7777,
        sparse: size >= SPARSE && stored <= size - SPARSE,
        id: stat.st_ino,
        device: stat.st_dev,
        links: stat.st_nlink,
        owner: stat.st_uid,
        group: stat.st_gid,
    }
}

fn kind_of(kind: rustix::fs::FileType) -> Kind {
    use rustix::fs::FileType;
    match kind {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Dir,
        FileType::Symlink => Kind::Link,
        FileType::CharacterDevice => Kind::Device,
        _ => Kind::Other,
    }
}

/// The mode of a file or directory with mode `now` that is to get the permissions `mode`.
///
/// A directory keeps its set-group-ID and sticky bits. It also gets the sticky bit of its source: without, all who can write
/// to it could remove what belongs to others.
pub(super) fn changed_mode(now: u32, mode: u32) -> Mode {
    let is_dir = FileType::from_raw_mode(now).is_dir();
    let special = if is_dir { now & 0o7000 | mode & STICKY } else { 0 };
    Mode::from_raw_mode(mode & 0o777 | special)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draft_of_another_owner_is_not_held() {
        let dir = tempfile::tempdir().unwrap();
        let file = LinuxFile(Arc::new(File::create(dir.path().join("f")).unwrap()));
        assert!(file.hold().unwrap() && file.stat().unwrap().mode == HELD);
        // Only root can change the owner. Other users find a file of another owner, whatever its mode.
        let another = if rustix::process::geteuid().is_root() {
            file.set(&Attributes { mode: Some(0o644), modified: None }).unwrap();
            rustix::fs::fchown(&*file.0, Some(rustix::fs::Uid::from_raw(7)), None).unwrap();
            file
        } else {
            LinuxFile(Arc::new(File::open("/etc/passwd").unwrap()))
        };
        let mode = another.stat().unwrap().mode;
        assert!(mode != HELD && !another.hold().unwrap() && another.stat().unwrap().mode == mode);
    }
}
