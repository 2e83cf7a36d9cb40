//! Which sources are behind symbolic links: some servers call a link to a directory what it leads to, and what is in there is elsewhere, too.
//! It is copied, and stays.

use crate::place::shown;
use phoebus_files::key::Key;
use phoebus_files::store::Store;
use phoebus_files::{Error, Own, OwnDirs, Sort, is_own_dir};
use std::collections::HashMap;
use std::sync::Arc;

/// What is known of the directories of a tree.
pub(super) struct Behind {
    source: Arc<dyn Store>,
    top: Key,
    /// What was asked for, by the directory that it is in; nothing, where listings call no link a directory.
    asked: HashMap<Key, Result<Option<OwnDirs>, String>>,
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

    /// Whether the top of the tree is a link, or may be one as far as the server tells.
    pub(super) async fn is_top_link(&mut self) -> bool {
        // What was asked for tells later how many names the top has.
        let dir = self.top.parent();
        self.asked_of(&dir).await.is_ok()
            && matches!(is_own_dir(&*self.source, &self.top).await, Ok((Own::Link | Own::Unknown, _)))
    }

    /// Whether `dir`, the top or below it, is a directory of the tree itself, and not behind what may be a link.
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
        // How many names the directory has that it is in is known from the one above.
        let names = self.asked.get(&dir.parent()).and_then(|asked| asked.as_ref().ok()?.as_ref()?.names_of(dir.name()));
        let reason = match self.asked_of(&dir).await {
            Ok(None) => return true,
            Ok(Some(own)) => match own.is(key.name(), names) {
                Own::Yes => return true,
                Own::Link => "it is a symbolic link".to_owned(),
                Own::Unknown => "it may be a symbolic link, which the server does not tell".to_owned(),
            },
            Err(reason) => format!("it may be a symbolic link, which the server does not tell ({reason})"),
        };
        let (name, reason) =
            (shown(&*self.source, key), format!("{reason}; it stays where it is, with all that is in it"));
        self.stays.push(Error::Store { name, reason, sort: Sort::Request });
        false
    }

    async fn asked_of(&mut self, dir: &Key) -> &Result<Option<OwnDirs>, String> {
        if !self.asked.contains_key(dir) {
            let own = self.source.own_dirs(dir).await.map_err(|error| error.to_string());
            self.asked.insert(dir.clone(), own);
        }
        &self.asked[dir]
    }
}
