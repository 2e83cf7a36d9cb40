//! Detects copies that are more widely readable than their sources, because the destination refuses to set modes. Those
//! sources stay.

use super::Carried;
use crate::place::shown;
use phoebus_files::key::Key;
use phoebus_files::store::Store;
use phoebus_files::{Error, ErrorKind};
use std::collections::HashMap;

/// Mode of a file that everybody may read.
const FILE_OF_ALL: u32 = 0o044;

/// Mode of a directory that everybody may read and enter.
const DIR_OF_ALL: u32 = 0o055;

/// What is known of the copies of a tree.
pub(super) struct ExposedCopies<'a> {
    source: &'a dyn Store,
    dest: &'a dyn Store,
    /// The top of the tree, in the source.
    top: &'a Key,
    /// Whether a source directory is private and its copy is not.
    dirs: HashMap<Key, bool>,
}

impl<'a> ExposedCopies<'a> {
    pub(super) fn new(source: &'a dyn Store, dest: &'a dyn Store, top: &'a Key) -> Self {
        Self { source, dest, top, dirs: HashMap::new() }
    }

    /// Why the source of `to` stays: it, or a directory above it in the tree, is private, and the copy is not.
    pub(super) async fn why_stays(&mut self, carried: &Carried, to: &Key) -> Option<Error> {
        let is_private = carried.meta.mode.is_some_and(|mode| mode & FILE_OF_ALL != FILE_OF_ALL);
        if is_private && self.dest.is_without_mode(to) {
            return Some(self.stays(&carried.from, to));
        }
        let (mut dir, mut copy) = (carried.from.parent(), to.parent());
        while dir.below(self.top).is_some() {
            if self.is_open(&dir, &copy).await {
                return Some(self.stays(&carried.from, &copy));
            }
            (dir, copy) = (dir.parent(), copy.parent());
        }
        None
    }

    /// Whether the directory `dir` is private, and its `copy` is not.
    async fn is_open(&mut self, dir: &Key, copy: &Key) -> bool {
        if !self.dest.is_without_mode(copy) {
            return false;
        }
        if let Some(known) = self.dirs.get(dir) {
            return *known;
        }
        let mode = async { self.source.mode(dir, &self.source.stat(dir).await?, false).await };
        // An unreadable directory may be private.
        let is_open = mode.await.map_or(true, |mode| mode.is_some_and(|mode| mode & DIR_OF_ALL != DIR_OF_ALL));
        self.dirs.insert(dir.clone(), is_open);
        is_open
    }

    fn stays(&self, from: &Key, open: &Key) -> Error {
        let reason = format!(
            "it is private, and the mode of {} could not be set, so that others may read the copy: it stays where it is",
            shown(self.dest, open)
        );
        Error::Store { name: shown(self.source, from), reason, kind: ErrorKind::Denied }
    }
}
