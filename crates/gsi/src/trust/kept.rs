//! A directory of authorities whose revocation lists are looked at again: they are replaced every few hours, by a program that tells
//! nobody, and one that has run out has all certificates of its authority refused.
//!
//! Authorities and signing policies stay as they were read: whom to believe changes when somebody says so, and what was taken back as
//! soon as it is known.

use std::collections::HashMap;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use rustls::pki_types::SignatureVerificationAlgorithm;

use super::directory::{self, DirectoryError, Loaded};
use super::{MissingPolicy, TrustStore};

/// A directory, and what of it counts now.
pub struct Kept {
    directory: PathBuf,
    in_force: RwLock<Arc<TrustStore>>,
    /// The lists as they were when they were last read, whatever came of it.
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    lists: HashMap<PathBuf, Mark>,
    /// Whether the directory itself could not be listed.
    is_lost: bool,
}

/// What tells a file from the one that had its name before; the default where it cannot be told.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
struct Mark {
    file: (u64, u64, u64),
    modified: (i64, i64),
    changed: (i64, i64),
}

/// What another look at the lists came to.
#[derive(Debug, Default)]
pub struct Looked {
    /// Those that count from now on.
    pub taken: Vec<PathBuf>,
    /// Why others do not, which have changed since the last look: what was read before goes on to count. Each is told once.
    pub problems: Vec<DirectoryError>,
}

impl Kept {
    /// Reads a directory, all of which has to be readable.
    ///
    /// # Errors
    /// [`DirectoryError`], the first one.
    pub fn read(directory: &Path, missing_policy: MissingPolicy) -> Result<Self, DirectoryError> {
        // What changes meanwhile looks changed the next time.
        let lists = directory::lists(directory)?.into_iter().map(|path| (mark(&path), path));
        let lists = lists.map(|(mark, path)| (path, mark)).collect();
        let store = directory::load(directory, missing_policy).and_then(Loaded::strict)?;
        let seen = Mutex::new(Seen { lists, is_lost: false });
        Ok(Self { directory: directory.to_owned(), in_force: RwLock::new(Arc::new(store)), seen })
    }

    /// Whom to believe now.
    pub fn trust(&self) -> Arc<TrustStore> {
        self.in_force.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Looks for lists that have changed or come, at a time in seconds since 1970, and takes those that can be used: signed by an
    /// authority of the directory, not out of time, and no older than the one that counts. One that has gone goes on to count.
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
        let lists: HashMap<PathBuf, Mark> = paths.iter().map(|path| (path.clone(), mark(path))).collect();
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
        *seen = Seen { lists, is_lost: false };
        if let Some(store) = store.filter(|_| !looked.taken.is_empty()) {
            *self.in_force.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(store);
        }
        looked
    }
}

fn mark(path: &Path) -> Mark {
    let of = |meta: Metadata| Mark {
        file: (meta.dev(), meta.ino(), meta.size()),
        modified: (meta.mtime(), meta.mtime_nsec()),
        changed: (meta.ctime(), meta.ctime_nsec()),
    };
    fs::metadata(path).map(of).unwrap_or_default()
}
