//! The directories of a moved tree at its destination. A directory of the source is removed only if the destination has
//! it, too, as another directory.

use super::Carried;
use crate::place::shown;
use phoebus_files::key::Key;
use phoebus_files::store::{Kind, Meta, Store};
use phoebus_files::{Error, ErrorKind, moved_name};
use std::collections::HashSet;
use std::sync::Arc;
use tokio::sync::RwLock;

/// What is known of the directories at the destination.
pub(super) struct Counterparts<'a> {
    source: &'a Arc<dyn Store>,
    dest: &'a Arc<dyn Store>,
    from: &'a Key,
    to: &'a Key,
    /// Directories at the destination that have got a file, and those above.
    filled: HashSet<Key>,
    /// What could not be carried, by its name at the destination, where something else may have that name.
    failed: HashSet<Key>,
}

impl<'a> Counterparts<'a> {
    /// For the tree `from`, of which `moved` are at their destinations, and `failed` are not.
    pub(super) fn new(
        (source, from): (&'a Arc<dyn Store>, &'a Key),
        (dest, to): (&'a Arc<dyn Store>, &'a Key),
        moved: &[(Key, Carried)],
        failed: HashSet<Key>,
    ) -> Self {
        let mut filled = HashSet::new();
        for (file, _) in moved {
            let mut dir = file.parent();
            while dir.below(to).is_some() && filled.insert(dir.clone()) && !dir.is_root() {
                dir = dir.parent();
            }
        }
        Self { source, dest, from, to, filled, failed }
    }

    /// Whether the destination has the directory `dir` of the source, as another directory.
    ///
    /// # Errors
    /// It cannot be looked at now.
    pub(super) async fn has(&self, dir: &Key) -> Result<bool, Error> {
        let Some(there) = dir.below(self.from).and_then(|rest| match (rest.is_root(), self.to.is_root()) {
            (true, _) => Some(self.to.clone()),
            (_, true) => Some(rest),
            _ => self.to.beneath(&rest).ok(),
        }) else {
            return Ok(false);
        };
        if self.failed.contains(&there) {
            return Ok(false);
        }
        if self.filled.contains(&there) {
            return Ok(true);
        }
        match self.dest.stat(&there).await {
            // A link at the destination may lead back into the source.
            Ok(meta) if meta.identity.is_some() => {
                let numbers = |meta: Meta| meta.identity.map(|identity| (identity.device, identity.number));
                Ok(meta.kind == Kind::Dir && numbers(self.source.stat(dir).await?) != numbers(meta))
            }
            Ok(meta) => Ok(meta.kind == Kind::Dir),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Fails if both trees are one directory under two names, such as by two addresses of a server. `is_apart`: a file
    /// of the source was removed, and its copy is still there. Holds `leaving` for reading until nothing of the question
    /// is left, also after this is dropped.
    ///
    /// # Errors
    /// They are one, or nothing tells.
    pub(super) async fn must_be_two(&self, is_apart: bool, leaving: &Arc<RwLock<()>>) -> Result<(), Error> {
        if is_apart {
            return Ok(());
        }
        let own = self.source.stat(self.from).await?;
        let there = match self.dest.stat(self.to).await {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            there => there?,
        };
        // One directory may have two device numbers, by two mounts.
        if let (Some(own), Some(there)) = (own.identity, there.identity)
            && own.device == there.device
        {
            return if own.number == there.number { Err(self.is_one()) } else { Ok(()) };
        }
        let marker = moved_name(self.from).map_err(|error| self.unknown(&error.to_string()))?;
        let unknown = |error: &dyn std::fmt::Display| self.unknown(&error.to_string());
        let [here, at] = [self.from, self.to].map(|dir| dir.join(marker.name()));
        let (here, at) = (here.map_err(|error| unknown(&error))?, at.map_err(|error| unknown(&error))?);
        let (source, dest, gate) = (self.source.clone(), self.dest.clone(), leaving.clone().read_owned().await);
        let asked = tokio::spawn(async move {
            let _gate = gate;
            // An empty directory at one of them shows at the other, if they are one.
            source.make_dir(&here).await?;
            let looked = dest.stat(&at).await;
            source.remove_dir(&here).await?;
            match looked {
                Ok(_) => Ok(true),
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
                Err(error) => Err(error),
            }
        });
        match asked.await {
            Ok(Ok(false)) => Ok(()),
            Ok(Ok(true)) => Err(self.is_one()),
            Ok(Err(error)) => Err(unknown(&error)),
            Err(error) => Err(unknown(&error)),
        }
    }

    fn is_one(&self) -> Error {
        self.stays(&format!("{} is the same directory by another name", shown(&**self.dest, self.to)))
    }

    fn unknown(&self, reason: &str) -> Error {
        let to = shown(&**self.dest, self.to);
        self.stays(&format!("whether {to} is the same directory by another name cannot be found out ({reason})"))
    }

    fn stays(&self, reason: &str) -> Error {
        let reason = format!("{reason}; it stays where it is");
        Error::Store { name: shown(&**self.source, self.from), reason, kind: ErrorKind::Request }
    }
}
