//! Detects sources behind symbolic links: some servers list a link to a directory as a directory, and its content is
//! elsewhere too. It is copied, and stays.

use crate::place::shown;
use phoebus_files::key::Key;
use phoebus_files::store::{Store, TriedDir};
use phoebus_files::{DirNature, Error, ErrorKind, NamedDirs, OwnDirs, own_dirs};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// What is known of the directories of a tree.
pub(super) struct SymlinkDetector {
    source: Arc<dyn Store>,
    top: Key,
    /// Requested names, by directory.
    asked: HashMap<Key, Result<OwnDirs, String>>,
    /// Whether a directory and its ancestors in the tree are real ones.
    own: HashMap<Key, bool>,
    /// Empty directories that the question has removed.
    removed: HashSet<Key>,
    /// Directories that stay because they may be links, with the reason.
    pub(super) stays: Vec<Error>,
}

impl SymlinkDetector {
    /// For the tree `top`, which counts as real.
    pub(super) fn new(source: Arc<dyn Store>, top: Key) -> Self {
        let own = HashMap::from([(top.clone(), true)]);
        Self { source, top, asked: HashMap::new(), own, removed: HashSet::new(), stays: Vec::new() }
    }

    /// Whether the top of the tree is a real directory.
    ///
    /// # Errors
    /// The store cannot tell now.
    pub(super) async fn of_top(&self) -> Result<DirNature, Error> {
        NamedDirs::default().is(&*self.source, &self.top).await
    }

    /// Whether the question whether it is a link has removed `dir`.
    pub(super) fn was_removed(&self, dir: &Key) -> bool {
        self.removed.contains(dir)
    }

    /// Whether the nonempty `dir` and its ancestors in the tree are real directories. An empty one may be removed by
    /// the question.
    pub(super) async fn is_own(&mut self, dir: &Key) -> bool {
        let (mut unknown, mut at) = (Vec::new(), dir.clone());
        let mut own = loop {
            match self.own.get(&at) {
                Some(own) => break *own,
                // The name is outside the tree.
                None if at.is_root() => break false,
                None => {
                    unknown.push(at.clone());
                    at = at.parent();
                }
            }
        };
        for key in unknown.into_iter().rev() {
            own = own && self.is_itself(&key).await;
            self.own.insert(key, own);
        }
        own
    }

    /// Whether `key`, in a real directory, is a real directory.
    async fn is_itself(&mut self, key: &Key) -> bool {
        let dir = key.parent();
        if !self.asked.contains_key(&dir) {
            let asked = own_dirs(&*self.source, &dir).await.map_err(|error| error.to_string());
            self.asked.insert(dir.clone(), asked);
        }
        let name = shown(&*self.source, key);
        let stays = match &self.asked[&dir] {
            Ok(dirs) => match dirs.is(key.name()) {
                DirNature::Yes => return true,
                DirNature::Likely => match self.source.try_dir(key).await {
                    Ok(TriedDir::Removed) => {
                        self.removed.insert(key.clone());
                        return true;
                    }
                    Ok(TriedDir::NotEmpty) => return true,
                    Ok(TriedDir::NotDir) => link(name),
                    // A refusal for another reason proves nothing.
                    Ok(TriedDir::Refused) => Error::MayBeLink { name },
                    Err(error) => error,
                },
                DirNature::Link => link(name),
                DirNature::Unknown => Error::MayBeLink { name },
            },
            Err(reason) => {
                let reason =
                    format!("whether it is a symbolic link cannot be asked for now ({reason}): it stays where it is");
                Error::Store { name, reason, kind: ErrorKind::Passing }
            }
        };
        self.stays.push(stays);
        false
    }
}

fn link(name: String) -> Error {
    let reason = "it is a symbolic link; it stays where it is, with all that is in it".to_owned();
    Error::Store { name, reason, kind: ErrorKind::Request }
}
