//! A directory of authorities whose revocation lists are reloaded. Other programs replace the lists every few
//! hours without notice, and an expired list makes all certificates of its authority invalid.
//!
//! Authorities and signing policies stay as they were first read: trust changes only by an administrator's
//! action, but a revocation takes effect as soon as it is known.

use std::collections::HashMap;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use rustls::pki_types::SignatureVerificationAlgorithm;

use super::directory::{self, DirectoryError, Loaded};
use super::{MissingPolicy, TrustStore};

/// A directory of authorities, and the trust store in force.
pub struct TrustDirectory {
    directory: PathBuf,
    in_force: RwLock<Arc<TrustStore>>,
    /// The list files at the last check, whether or not they were usable.
    seen: Mutex<KnownLists>,
}

#[derive(Default)]
struct KnownLists {
    lists: HashMap<PathBuf, FileVersion>,
    /// Whether the directory could not be listed.
    is_lost: bool,
}

/// Identifies a version of a file; the default if the file cannot be examined.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
struct FileVersion {
    file: (u64, u64, u64),
    modified: (i64, i64),
    changed: (i64, i64),
}

/// The result of a check for new lists.
#[derive(Debug, Default)]
pub struct Looked {
    /// The lists that took effect.
    pub taken: Vec<PathBuf>,
    /// Problems of changed lists that did not take effect; earlier lists stay in force. Each problem is
    /// reported once.
    pub problems: Vec<DirectoryError>,
}

impl TrustDirectory {
    /// Reads a directory, all of which must be readable.
    ///
    /// # Errors
    /// The first [`DirectoryError`].
    pub fn read(directory: &Path, missing_policy: MissingPolicy) -> Result<Self, DirectoryError> {
        // The marks are taken first: a file that changes while it is read then counts as changed at the next
        // check.
        let lists = directory::lists(directory)?.into_iter().map(|path| (mark(&path), path));
        let lists = lists.map(|(mark, path)| (path, mark)).collect();
        let store = directory::load(directory, missing_policy).and_then(Loaded::strict)?;
        let seen = Mutex::new(KnownLists { lists, is_lost: false });
        Ok(Self { directory: directory.to_owned(), in_force: RwLock::new(Arc::new(store)), seen })
    }

    /// The trust store in force.
    pub fn trust(&self) -> Arc<TrustStore> {
        self.in_force.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Checks for changed or new lists and applies the usable ones: signed by an authority of the directory,
    /// not expired, and no older than the list in force. A list whose file disappears stays in force. `now`
    /// is in seconds since 1970.
    pub fn look(&self, algorithms: &[&dyn SignatureVerificationAlgorithm], now: i64) -> Looked {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let mut looked = Looked::default();
        let paths = match directory::lists(&self.directory) {
            Ok(paths) => paths,
            Err(problem) => {
                if !std::mem::replace(&mut seen.is_lost, true) {
                    looked.problems.push(problem);
                }
                return looked;
            }
        };
        let lists: HashMap<PathBuf, FileVersion> = paths.iter().map(|path| (path.clone(), mark(path))).collect();
        let changed = paths.into_iter().filter(|path| seen.lists.get(path) != lists.get(path));
        let mut store: Option<TrustStore> = None;
        for path in changed {
            let store = store.get_or_insert_with(|| TrustStore::clone(&self.trust()));
            match directory::take_list(store, &path, algorithms, now) {
                Ok(true) => looked.taken.push(path),
                Ok(false) => {}
                Err(problem) => looked.problems.push(problem),
            }
        }
        *seen = KnownLists { lists, is_lost: false };
        if let Some(store) = store.filter(|_| !looked.taken.is_empty()) {
            *self.in_force.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(store);
        }
        looked
    }
}

fn mark(path: &Path) -> FileVersion {
    let of = |meta: Metadata| FileVersion {
        file: (meta.dev(), meta.ino(), meta.size()),
        modified: (meta.mtime(), meta.mtime_nsec()),
        changed: (meta.ctime(), meta.ctime_nsec()),
    };
    fs::metadata(path).map(of).unwrap_or_default()
}
