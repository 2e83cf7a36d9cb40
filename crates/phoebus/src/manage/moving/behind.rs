//! Which sources are behind symbolic links: some servers list a link to a directory as one, and what is in there is elsewhere, too. It is
//! copied, and stays.

use crate::place::shown;
use phoebus_files::key::Key;
use phoebus_files::store::{Store, TriedDir};
use phoebus_files::{Error, NamedDirs, Own, OwnDirs, Sort, own_dirs};
use std::collections::HashMap;
use std::sync::Arc;

/// What is known of the directories of a tree.
pub(super) struct Behind {
    source: Arc<dyn Store>,
    top: Key,
    /// What was asked for, by the directory that it is in.
    asked: HashMap<Key, Result<OwnDirs, String>>,
    /// Directories, and whether they are such themselves and so is all above them in the tree.
    own: HashMap<Key, bool>,
    /// What stays where it is since it may be a link, and why.
    pub(super) stays: Vec<Error>,
}

impl Behind {
    /// Of the tree `top`, which is taken for what it was called.
    pub(super) fn new(source: Arc<dyn Store>, top: Key) -> Self {
        let own = HashMap::from([(top.clone(), true)]);
        Self { source, top, asked: HashMap::new(), own, stays: Vec::new() }
    }

    /// What the top of the tree is.
    ///
    /// # Errors
    /// Nobody can say for now.
    pub(super) async fn of_top(&self) -> Result<Own, Error> {
        NamedDirs::default().is(&*self.source, &self.top).await
    }

    /// Whether `dir`, the top or below it, is a directory of the tree itself, and not behind what may be a link. Something is in it, or it
    /// may go.
    pub(super) async fn is_own(&mut self, dir: &Key) -> bool {
        let (mut unknown, mut at) = (Vec::new(), dir.clone());
        let mut own = loop {
            match self.own.get(&at) {
                Some(own) => break *own,
                // What is beside the tree is no part of it.
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

    /// Whether `key`, which is in a directory of the tree, is a directory itself.
    async fn is_itself(&mut self, key: &Key) -> bool {
        let dir = key.parent();
        if !self.asked.contains_key(&dir) {
            let asked = own_dirs(&*self.source, &dir).await.map_err(|error| error.to_string());
            self.asked.insert(dir.clone(), asked);
        }
        let name = shown(&*self.source, key);
        let stays = match &self.asked[&dir] {
            Ok(dirs) => match dirs.is(key.name()) {
                Own::Yes => return true,
                Own::Likely => match self.source.try_dir(key).await {
                    Ok(TriedDir::Removed | TriedDir::NotEmpty) => return true,
                    Ok(TriedDir::NotDir) => link(name),
                    // A refusal for another reason proves nothing.
                    Ok(TriedDir::Refused) => Error::MayBeLink { name },
                    Err(error) => error,
                },
                Own::Link => link(name),
                Own::Unknown => Error::MayBeLink { name },
            },
            Err(reason) => {
                let reason =
                    format!("whether it is a symbolic link cannot be asked for now ({reason}): it stays where it is");
                Error::Store { name, reason, sort: Sort::Passing }
            }
        };
        self.stays.push(stays);
        false
    }
}

fn link(name: String) -> Error {
    let reason = "it is a symbolic link; it stays where it is, with all that is in it".to_owned();
    Error::Store { name, reason, sort: Sort::Request }
}
