//! Counts the tree below a root.
//!
//! The process counts, often as root, while users change the tree. So each directory is opened relative to the root's
//! descriptor (`openat2(2)`), and no symbolic link is followed, not even one that has just replaced a directory.

use super::used::{Used, lock};
use phoebus_files::is_engines;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, open, openat2, statat};
use rustix::io::Errno;
use rustix::process::{Uid, geteuid};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// The result of a count.
#[derive(Debug, Default)]
pub(super) struct Count {
    pub(super) bytes: u64,
    pub(super) files: u64,
    /// Lengths of drafts, including those of transfers in progress.
    pub(super) draft_lengths: HashSet<u64>,
    /// The first directory that could not be read, relative to the root, and why.
    pub(super) unknown: Option<(PathBuf, Errno)>,
}

/// Counts bytes and files below `root`, without the drafts of transfers in progress, and without directories of other
/// users that this process may not read, as on NFS where root counts as nobody.
///
/// # Errors
/// The root, or a directory of this process's own user, cannot be read (clients could otherwise hide files by changing
/// a mode); or any directory fails for another reason than permissions.
pub(super) fn counted(root: &Path, used: &Mutex<Used>) -> io::Result<Count> {
    let mut count = Count::default();
    let top = open(root, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    // Paths relative to the root, with owners.
    let mut below = count.add(root, (&top, Path::new("")), used)?;
    while let Some((path, owner)) = below.pop() {
        let found = entered(&top, &path).and_then(|dir| match dir {
            Some(dir) => count.add(root, (&dir, &path), used),
            None => Ok(Vec::new()),
        });
        match found {
            Ok(found) => below.extend(found),
            Err(error @ (Errno::ACCESS | Errno::PERM)) if owner != geteuid() => {
                count.unknown.get_or_insert((path, error));
            }
            Err(error) => {
                let named = format!("{}: {}", path.display(), io::Error::from(error));
                return Err(io::Error::new(io::Error::from(error).kind(), named));
            }
        }
    }
    Ok(count)
}

/// Opens the directory `path` below `top`. `None` if it was removed or replaced meanwhile.
fn entered(top: &OwnedFd, path: &Path) -> Result<Option<OwnedFd>, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    match openat2(top, path, flags, Mode::empty(), resolve) {
        Ok(dir) => Ok(Some(dir)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        Err(error) => Err(error),
    }
}

impl Count {
    /// Counts the directory `dir` at `path`. Returns its subdirectories with their owners.
    fn add(
        &mut self,
        root: &Path,
        (dir, path): (&OwnedFd, &Path),
        used: &Mutex<Used>,
    ) -> Result<Vec<(PathBuf, Uid)>, Errno> {
        let mut below = Vec::new();
        for entry in Dir::read_from(dir)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let stat = match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => continue,
                stat => stat?,
            };
            if is_engines(name.to_bytes()) {
                self.draft_lengths.insert(u64::try_from(stat.st_size).unwrap_or(0));
            }
            let path = path.join(OsStr::from_bytes(name.to_bytes()));
            if lock(used).drafts.contains(&root.join(&path)) {
                continue;
            }
            self.files += 1;
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => below.push((path, Uid::from_raw(stat.st_uid))),
                FileType::RegularFile => self.bytes += u64::try_from(stat.st_size).unwrap_or(0),
                _ => {}
            }
        }
        Ok(below)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phoebus_files::local::Identity;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::time::Duration;

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn link_in_place_of_a_directory_is_not_followed() {
        let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::create_dir(outside.path().join("deep")).unwrap();
        fs::write(outside.path().join("deep/file"), [0; 9]).unwrap();
        fs::write(dir.path().join("file"), "x").unwrap();
        symlink(outside.path(), dir.path().join("link")).unwrap();
        let top = open(dir.path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        for name in ["link", "link/deep", "file", "gone"] {
            assert!(entered(&top, Path::new(name)).unwrap().is_none(), "{name}");
        }
        assert_eq!(entered(&top, Path::new("../etc")).unwrap_err(), Errno::XDEV);
        let count = counted(dir.path(), &Mutex::default()).unwrap();
        assert_eq!((count.bytes, count.files), (1, 2));
    }

    #[test]
    fn directories_of_others_that_cannot_be_read_are_unknown_and_own_ones_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for name in ["read", "theirs"] {
            fs::create_dir(path(name)).unwrap();
            fs::write(path(name).join("file"), [0; 7]).unwrap();
            mode(&path(name), 0o755);
        }
        mode(dir.path(), 0o755);
        // Acts as another user, as root does on an NFS export with root_squash. Without root, no file can belong to
        // another user.
        let root = geteuid().is_root();
        let nobody = root.then(|| Identity::named("daemon", Duration::from_secs(60)).unwrap());
        let counted = || {
            let counted = || counted(dir.path(), &Mutex::default());
            nobody.as_ref().map_or_else(counted, |nobody| nobody.act(counted).unwrap())
        };
        let found = |count: Count| (count.bytes, count.files, count.unknown);
        assert_eq!(found(counted().unwrap()), (14, 4, None));
        if root {
            // The second can be listed, and no more than that.
            for bits in [0o700, 0o744] {
                mode(&path("theirs"), bits);
                let (bytes, files, unknown) = found(counted().unwrap());
                assert_eq!((bytes, files, unknown), (7, 3, Some(("theirs".into(), Errno::ACCESS))), "{bits:o}");
            }
            chown(path("theirs"), Some(1), None).unwrap();
        }
        for bits in [0o000, 0o444] {
            mode(&path("theirs"), bits);
            let error = counted().unwrap_err();
            assert!(
                error.kind() == io::ErrorKind::PermissionDenied && error.to_string().contains("theirs: "),
                "{error}"
            );
        }
        mode(&path("theirs"), 0o755);
    }
}
