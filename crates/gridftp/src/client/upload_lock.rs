//! Locks of uploads on this machine: two runs of one command have drafts of one name, and servers of FTP lock nothing.

use phoebus_proto::hex::hex;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The lock of one draft. Dropping it releases the lock, and removes its file.
#[derive(Debug)]
pub(super) struct UploadLock {
    _file: File,
    path: PathBuf,
}

impl UploadLock {
    /// Locks the draft `label`, by a file in the directory `dir`. `None` if another upload has the lock.
    ///
    /// # Errors
    /// The file cannot be made or locked.
    pub(super) fn take(dir: &Path, label: &str) -> io::Result<Option<Self>> {
        let digest = ring::digest::digest(&ring::digest::SHA256, label.as_bytes());
        let path = dir.join(format!("{}.lock", hex(&digest.as_ref()[..16])));
        fs::create_dir_all(dir)?;
        loop {
            let file = File::options().create(true).truncate(false).write(true).open(&path)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(error),
            }
            // Another upload may have removed the file between the two calls.
            let own = file.metadata()?.ino();
            if fs::metadata(&path).is_ok_and(|there| there.ino() == own) {
                return Ok(Some(Self { _file: file, path }));
            }
        }
    }
}

impl Drop for UploadLock {
    fn drop(&mut self) {
        // A file that stays is locked by nobody, which does no harm.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_upload_at_a_time_has_a_draft() {
        let dir = tempfile::tempdir().unwrap();
        let first = UploadLock::take(dir.path(), "ftp://h/.x.1.phoebus-part").unwrap().unwrap();
        assert!(UploadLock::take(dir.path(), "ftp://h/.x.1.phoebus-part").unwrap().is_none());
        let other = UploadLock::take(dir.path(), "ftp://h/.y.1.phoebus-part").unwrap();
        assert!(other.is_some());
        drop((first, other));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(UploadLock::take(dir.path(), "ftp://h/.x.1.phoebus-part").unwrap().is_some());
    }
}
