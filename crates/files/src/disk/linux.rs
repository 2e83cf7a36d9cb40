//! A directory tree of this machine that paths cannot leave.
//!
//! Every path is opened by `openat2(2)` with RESOLVE_BENEATH, relative to the descriptor of the root: the kernel
//! refuses symbolic links and mounts that lead elsewhere, whatever others rename meanwhile. Names are made, removed and
//! renamed relative to their opened parent.

use super::file::{changed_mode, modified_at, stat_of};
use super::file_system::FileSystem;
use super::walk::{self, Links};
use super::{Disk, DiskFile, LinuxFile, Stat, owned};
use crate::key::Key;
use crate::meta::{Attributes, Time};
use rustix::fs::{AtFlags, Dir, Mode, OFlags, RenameFlags, ResolveFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// The tree.
#[derive(Debug)]
pub(crate) struct Linux {
    root: OwnedFd,
    links: Links,
}

/// Most attempts of a lookup if others rename parts of the path meanwhile.
const LOOKUPS: usize = 16;

impl Linux {
    /// Opens the tree at `root`.
    pub(crate) fn new(root: &Path, links: Links) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { root: rustix::fs::open(root, flags, Mode::empty())?, links })
    }

    /// The target path of a write to `key`, if it is a symbolic link. `None` if the target is outside the root.
    ///
    /// # Errors
    /// The link dangles or leads out of the root; or a link on the path belongs to a user whose links are not followed
    /// ([`walk`]).
    pub(crate) fn target(&self, key: &Key) -> io::Result<Option<Key>> {
        let place = walk::follow(&self.root, self.links, key)?;
        walk::stat(&place)?;
        let path = |fd: &OwnedFd| std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
        let (root, there) = (path(&self.root)?, path(&place.dir)?.join(place.name()));
        Ok(there.strip_prefix(root).ok().and_then(|there| Key::parse(there.as_os_str().as_bytes()).ok()))
    }

    /// Opens `key` for reading. Follows all links that stay in the root.
    fn at(&self, key: &Key, flags: OFlags) -> io::Result<OwnedFd> {
        let (flags, mode) = (quick(flags), Mode::empty());
        if self.links == Links::Anywhere {
            return Ok(rustix::fs::openat(&self.root, key.as_path(), flags, mode)?);
        }
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        for _ in 1..LOOKUPS {
            match rustix::fs::openat2(&self.root, key.as_path(), flags, mode, resolve) {
                Err(Errno::AGAIN) => {}
                other => return Ok(other?),
            }
        }
        Ok(rustix::fs::openat2(&self.root, key.as_path(), flags, mode, resolve)?)
    }

    /// Opens the target of `key` for changes. Checks the owners of links ([`walk`]).
    fn reach(&self, key: &Key, flags: OFlags) -> io::Result<OwnedFd> {
        let flags = quick(flags);
        if let Some(opened) = walk::straight(&self.root, self.links, key, flags, Mode::empty()) {
            return opened;
        }
        for _ in 0..LOOKUPS {
            let place = walk::follow(&self.root, self.links, key)?;
            // Others may put a link there meanwhile.
            match rustix::fs::openat(&place.dir, place.name(), flags | OFlags::NOFOLLOW, Mode::empty()) {
                Err(Errno::LOOP) => {}
                Ok(file) if is_link(&file)? => {}
                opened => return Ok(opened?),
            }
        }
        Err(Errno::LOOP.into())
    }

    /// Opens or creates `key` itself for changes. Checks the owners of links on the path; `key` must not be one.
    fn itself(&self, key: &Key, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        let flags = quick(flags | OFlags::NOFOLLOW);
        if let Some(opened) = walk::straight(&self.root, self.links, key, flags, mode) {
            return opened;
        }
        let (dir, name) = self.parent(key)?;
        Ok(rustix::fs::openat(dir, name, flags, mode)?)
    }

    /// The file `key`, whose attributes a new file takes over. `None` if it is no longer `expected`. A file that the
    /// user may write but not read counts too.
    fn to_inherit_from(&self, key: &Key, expected: &Stat) -> io::Result<Option<OwnedFd>> {
        let old = match self.itself(key, OFlags::RDONLY, Mode::empty()) {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::ACCESS) => {
                self.itself(key, OFlags::WRONLY, Mode::empty())
            }
            old => old,
        };
        let old = match old {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            old => old?,
        };
        let found = stat_of(&rustix::fs::fstat(&old)?);
        Ok((found.is(expected) && found.owner == expected.owner).then_some(old))
    }

    /// Syncs the file system of the directory `key`, which cannot be opened for reading: by an unnamed file in it, or by
    /// a directory above it.
    fn sync_file_system_of(&self, key: &Key) -> io::Result<()> {
        let unnamed = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let inside = |dir| Ok(rustix::fs::openat(dir, c".", unnamed, Mode::RUSR | Mode::WUSR)?);
        let mut opened = self.dir(key).and_then(inside).ok();
        let mut above = key.clone();
        while opened.is_none() && !above.is_root() {
            above = above.parent();
            opened = self.at(&above, OFlags::RDONLY | OFlags::DIRECTORY).ok();
        }
        Ok(rustix::fs::syncfs(opened.as_ref().unwrap_or(&self.root))?)
    }

    /// The directory `key`, to change names in it. Checks the owners of links on the path.
    fn dir(&self, key: &Key) -> io::Result<OwnedFd> {
        self.reach(key, OFlags::PATH | OFlags::DIRECTORY)
    }

    /// The parent directory of `key`, to change names in it, and the name there.
    fn parent<'a>(&self, key: &'a Key) -> io::Result<(OwnedFd, &'a OsStr)> {
        let Some((parent, _)) = key.split() else { return Err(Errno::BUSY.into()) };
        Ok((self.dir(&parent)?, OsStr::from_bytes(key.name())))
    }

    /// What exists at the target of `key`.
    pub(crate) fn stat_to_write(&self, key: &Key) -> io::Result<Stat> {
        Ok(stat_of(&rustix::fs::fstat(self.reach(key, OFlags::PATH)?)?))
    }

    pub(crate) fn make_dir(&self, key: &Key, mode: u32) -> io::Result<()> {
        let (dir, name) = self.parent(key)?;
        Ok(rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(mode))?)
    }

    pub(crate) fn remove_dir(&self, key: &Key) -> io::Result<()> {
        let (dir, name) = self.parent(key)?;
        Ok(rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR)?)
    }

    /// Removes `key`, a part of the draft `draft`. False if a writer has the draft locked, or if `key` was changed in
    /// any way after `before`.
    pub(crate) fn discard(&self, key: &Key, draft: Option<&Key>, before: Option<Time>) -> io::Result<bool> {
        let (dir, name) = self.parent(key)?;
        let stat = rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
        #[allow(clippy::unnecessary_cast, reason = "the types differ between architectures")]
        let changed = Time { seconds: stat.st_ctime as i64, nanos: stat.st_ctime_nsec as u32 };
        if before.is_some_and(|before| changed > before) {
            return Ok(false);
        }
        // The lock is held until the name is gone.
        let _locked = match draft.map(|draft| self.lock_left(draft)).transpose()? {
            Some(Left::Used) => return Ok(false),
            Some(Left::Locked(file)) => Some(file),
            Some(Left::Unknown) | None => None,
        };
        rustix::fs::unlinkat(dir, name, AtFlags::empty())?;
        Ok(true)
    }

    /// Locks the draft `key`, unless somebody is writing it.
    fn lock_left(&self, key: &Key) -> io::Result<Left> {
        let open = |access: OFlags| self.itself(key, access, Mode::empty());
        let refused = |error: &io::Error| matches!(Errno::from_io_error(error), Some(Errno::ACCESS | Errno::PERM));
        // Some network file systems lock only files opened for writing.
        let opened = match open(OFlags::RDWR) {
            Err(error) if refused(&error) => open(OFlags::RDONLY),
            opened => opened,
        };
        let file = match opened {
            Ok(file) => LinuxFile(Arc::new(file.into())),
            // It is no file, or one that this user cannot open.
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::NOENT | Errno::LOOP | Errno::ISDIR | Errno::NXIO | Errno::ACCESS | Errno::PERM) => {
                    return Ok(Left::Unknown);
                }
                _ => return Err(error),
            },
        };
        if !file.lock()? {
            return Ok(Left::Used);
        }
        // Another transfer may have begun a new one meanwhile.
        let (open, named) = (file.stat()?, self.stat(key, false)?);
        Ok(if named.is(&open) { Left::Locked(file) } else { Left::Used })
    }

    /// The target of the symbolic link `key`.
    pub(crate) fn read_link(&self, key: &Key) -> io::Result<Vec<u8>> {
        let link = self.at(key, OFlags::PATH | OFlags::NOFOLLOW)?;
        Ok(rustix::fs::readlinkat(link, "", Vec::new())?.into_bytes())
    }

    /// Makes the symbolic link `key`.
    ///
    /// # Errors
    /// The name exists, or the link cannot be made.
    pub(crate) fn make_link(&self, key: &Key, target: &[u8]) -> io::Result<()> {
        let (dir, name) = self.parent(key)?;
        Ok(rustix::fs::symlinkat(OsStr::from_bytes(target), dir, name)?)
    }

    /// Sets the time of modification of the symbolic link `key` itself.
    pub(crate) fn set_link(&self, key: &Key, modified: Time) -> io::Result<()> {
        let (dir, name) = self.parent(key)?;
        Ok(rustix::fs::utimensat(dir, name, &modified_at(modified), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// The subtree at `key`, which nothing leads out of.
    pub(crate) fn confined(&self, key: &Key) -> io::Result<Self> {
        Ok(Self { root: self.reach(key, OFlags::RDONLY | OFlags::DIRECTORY)?, links: Links::Beneath })
    }

    /// Sets times and permissions of the target of `key`.
    pub(crate) fn set(&self, key: &Key, attributes: &Attributes) -> io::Result<()> {
        match self.reach(key, OFlags::RDONLY) {
            Ok(file) => LinuxFile(Arc::new(file.into())).set(attributes),
            // Its owner may change it without being allowed to read it.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => self.set_unread(key, attributes),
            Err(error) => Err(error),
        }
    }

    /// The same, without opening it for reading.
    fn set_unread(&self, key: &Key, attributes: &Attributes) -> io::Result<()> {
        let file = self.reach(key, OFlags::PATH)?;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        if let Some(mode) = attributes.mode {
            rustix::fs::chmod(&*path, changed_mode(rustix::fs::fstat(&file)?.st_mode, mode))?;
        }
        if let Some(time) = attributes.modified {
            rustix::fs::utimensat(rustix::fs::CWD, &*path, &modified_at(time), AtFlags::empty())?;
        }
        Ok(())
    }

    /// The entries of the directory `key`.
    pub(crate) fn entries(&self, key: &Key) -> io::Result<Entries> {
        Ok(Entries(Dir::read_from(self.at(key, OFlags::RDONLY | OFlags::DIRECTORY)?)?))
    }
}

impl Disk for Linux {
    type File = LinuxFile;
    type FileSystem = FileSystem;

    fn open(&self, key: &Key) -> io::Result<LinuxFile> {
        Ok(LinuxFile(Arc::new(self.at(key, OFlags::RDONLY)?.into())))
    }

    fn edit(&self, key: &Key) -> io::Result<LinuxFile> {
        Ok(LinuxFile(Arc::new(self.reach(key, OFlags::RDWR)?.into())))
    }

    fn adopt(&self, key: &Key, shared: bool) -> io::Result<Option<LinuxFile>> {
        match self.itself(key, OFlags::RDWR, Mode::empty()) {
            Ok(file) => Ok(owned::is_own(&file, shared)?.then(|| LinuxFile(Arc::new(file.into())))),
            // A link, a directory, a socket, or a file of another user.
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::LOOP | Errno::ISDIR | Errno::NXIO | Errno::ACCESS | Errno::PERM) => Ok(None),
                _ => Err(error),
            },
        }
    }

    fn is_shared(&self, key: &Key) -> io::Result<bool> {
        Ok(owned::is_shared(&rustix::fs::fstat(self.dir(key)?)?))
    }

    fn names_in(&self, key: &Key) -> io::Result<Vec<Vec<u8>>> {
        let entries = Dir::read_from(self.reach(key, OFlags::RDONLY | OFlags::DIRECTORY)?)?;
        entries.map(|entry| Ok(entry?.file_name().to_bytes().to_vec())).collect()
    }

    fn may_inherit(&self, file: &LinuxFile, key: &Key, old: &Stat) -> io::Result<bool> {
        let Some(open) = self.to_inherit_from(key, old)? else { return Ok(false) };
        owned::may_inherit(&*file.0, old, open).map(|()| true)
    }

    fn inherit(&self, file: &LinuxFile, key: &Key, old: &Stat) -> io::Result<bool> {
        let Some(open) = self.to_inherit_from(key, old)? else { return Ok(false) };
        owned::inherit(&*file.0, open).map(|()| true)
    }

    fn create(&self, key: &Key, mode: u32) -> io::Result<LinuxFile> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        Ok(LinuxFile(Arc::new(self.itself(key, flags, Mode::from_raw_mode(mode))?.into())))
    }

    fn stat(&self, key: &Key, follow: bool) -> io::Result<Stat> {
        let flags = if follow || key.is_root() { OFlags::PATH } else { OFlags::PATH | OFlags::NOFOLLOW };
        Ok(stat_of(&rustix::fs::fstat(self.at(key, flags)?)?))
    }

    fn rename(&self, from: &Key, to: &Key, replace: bool) -> io::Result<()> {
        let (old_dir, old) = self.parent(from)?;
        // Most renames are within a directory.
        let other = if from.parent() == to.parent() { None } else { Some(self.parent(to)?.0) };
        let (new_dir, new) = (other.as_ref().unwrap_or(&old_dir), OsStr::from_bytes(to.name()));
        if replace {
            return Ok(rustix::fs::renameat(&old_dir, old, new_dir, new)?);
        }
        match rustix::fs::renameat_with(&old_dir, old, new_dir, new, RenameFlags::NOREPLACE) {
            // Without RENAME_NOREPLACE: a hard link fails if the name exists, then the old name is removed.
            Err(Errno::INVAL | Errno::NOSYS) => {
                rustix::fs::linkat(&old_dir, old, new_dir, new, AtFlags::empty())?;
                Ok(rustix::fs::unlinkat(&old_dir, old, AtFlags::empty())?)
            }
            other => Ok(other?),
        }
    }

    fn unlink(&self, key: &Key) -> io::Result<()> {
        let (dir, name) = self.parent(key)?;
        Ok(rustix::fs::unlinkat(dir, name, AtFlags::empty())?)
    }

    fn file_system(&self) -> Option<FileSystem> {
        FileSystem::of(&self.root)
    }

    fn sync_together(&self, file_system: &FileSystem, files: &[&LinuxFile]) -> io::Result<bool> {
        file_system.sync(files)
    }

    fn sync_dir(&self, key: &Key) -> io::Result<()> {
        match self.at(key, OFlags::RDONLY | OFlags::DIRECTORY) {
            Ok(dir) => Ok(rustix::fs::fsync(dir)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(error),
            // Users may write to directories that they cannot read, and others may have put a link in its place.
            Err(error) => self.sync_file_system_of(key).map_err(|_| error),
        }
    }
}

/// The same flags without waiting, as the opening of a pipe would.
fn quick(flags: OFlags) -> OFlags {
    // The kernel refuses other flags with O_PATH.
    let quick = if flags.contains(OFlags::PATH) { OFlags::empty() } else { OFlags::NOCTTY | OFlags::NONBLOCK };
    flags | quick | OFlags::CLOEXEC
}

fn is_link(file: &OwnedFd) -> io::Result<bool> {
    Ok(rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(file)?.st_mode).is_symlink())
}

/// The state of a draft.
enum Left {
    /// It is locked for this caller.
    Locked(LinuxFile),
    Used,
    /// It does not exist, or cannot be opened.
    Unknown,
}

/// The entries of a directory.
#[derive(Debug)]
pub(crate) struct Entries(Dir);

impl Entries {
    /// Name and kind of the next entry except `.` and `..`. Entries that vanish are skipped.
    pub(crate) fn next(&mut self) -> Option<io::Result<(Vec<u8>, Stat)>> {
        loop {
            let entry = match self.0.read()? {
                Ok(entry) => entry,
                Err(error) => return Some(Err(error.into())),
            };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let found = self.0.fd().and_then(|dir| rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW));
            return Some(match found {
                Ok(stat) => Ok((name.to_bytes().to_vec(), stat_of(&stat))),
                Err(Errno::NOENT) => continue,
                Err(error) => Err(error.into()),
            });
        }
    }
}
