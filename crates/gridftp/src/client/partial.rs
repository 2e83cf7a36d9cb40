//! The directories that drafts have on a server, where those are not beside their files ([`Options::partial_dir`](super::Options)).

use super::orders::facts_of;
use super::remote::Remote;
use phoebus_files::key::Key;
use phoebus_files::store::{Kind, Store};
use phoebus_files::{Error, Sort};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::OnceCell;

/// Those in which drafts are, each once it is there.
#[derive(Debug, Default)]
pub(super) struct PartialDirs(Mutex<HashMap<Key, Arc<OnceCell<Whose>>>>);

/// Whose such a directory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    /// It was made by this client.
    Ours,
    /// It was there before, and somebody else may have made it.
    Anybodys,
}

impl PartialDirs {
    fn all(&self) -> MutexGuard<'_, HashMap<Key, Arc<OnceCell<Whose>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has `dir`, which is there, go in the end if nothing is in it.
    pub(super) fn note(&self, dir: &Key) {
        self.all().entry(dir.clone()).or_default();
    }

    /// Has `dir` be made again when it is needed next: another client may have removed it.
    pub(super) fn forget(&self, dir: &Key) {
        // It is still one of those that go in the end.
        if let Some(made) = self.all().get_mut(dir) {
            *made = Arc::default();
        }
    }
}

impl Remote {
    /// Has the directory `dir` be there, in which drafts are, and in which nobody else can give names, as far as the server tells.
    pub(super) async fn make_partial_dir(&self, dir: &Key) -> Result<(), Error> {
        // Whoever wants the same at the same time waits for the first.
        let once = self.0.partial_dirs.all().entry(dir.clone()).or_default().clone();
        let make = || async {
            match self.make_dir(dir).await {
                Ok(()) => {
                    // Many servers have no such command, or let nobody use it.
                    let closed = self.about("SITE CHMOD 700", dir).await?;
                    tracing::debug!(dir = self.label(dir), code = closed.code, "the directory of drafts was made");
                    Ok(Whose::Ours)
                }
                Err(error) if error.sort() == Sort::Exists => self.judge(dir).await,
                Err(error) => Err(error),
            }
        };
        once.get_or_try_init(make).await.map(drop)
    }

    /// Refuses the directory `dir`, which was there before, where the server tells that it is none or that others may write to it: who can
    /// give names there could have his file published in the place of the draft.
    async fn judge(&self, dir: &Key) -> Result<Whose, Error> {
        let refused = |reason: &str| {
            let reason = format!("drafts cannot be there: {reason}; remove it, or name another directory");
            Err(Error::Store { name: self.label(dir), reason, sort: Sort::Denied })
        };
        match self.look(dir).await? {
            meta if meta.kind != Kind::Dir => refused("it has to be a directory"),
            meta if meta.mode.is_some_and(|mode| mode & 0o022 != 0) => refused("nobody else may write to it"),
            _ if self.refuses_drafts(dir).await? => refused(
                "it has to be a directory, no link, that belongs to the server's user or root, and nobody else may write to it",
            ),
            _ => Ok(Whose::Anybodys),
        }
    }

    /// Whether the server, which is one of ours, says that it would take no draft out of `dir`.
    async fn refuses_drafts(&self, dir: &Key) -> Result<bool, Error> {
        if !self.has("XDRAFTS") {
            return Ok(false);
        }
        let reply = self.about("MLST", dir).await?;
        let facts = facts_of(&reply).map(|(facts, _)| facts.others).unwrap_or_default();
        Ok(facts.iter().any(|(name, value)| name.eq_ignore_ascii_case("X.drafts") && value == "no"))
    }

    /// Whether somebody else may have made the directory of drafts `dir`, as far as is known here. Servers of ours look themselves.
    pub(super) fn may_be_anybodys(&self, dir: &Key) -> bool {
        let known = self.0.partial_dirs.all().get(dir).and_then(|once| once.get().copied());
        !self.has("XDRAFTS") && self.options().partial_dir.is_some() && known != Some(Whose::Ours)
    }

    /// Removes those that were used and in which nothing is.
    pub(super) async fn remove_partial_dirs(&self) {
        let used = std::mem::take(&mut *self.0.partial_dirs.all());
        for dir in used.into_keys() {
            // With a draft in it, it stays, and the server says so.
            if let Err(error) = self.remove_dir(&dir).await {
                tracing::debug!(%error, "a directory of drafts stays");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_to_be_made_again_goes_in_the_end() {
        let (dirs, dir) = (PartialDirs::default(), Key::parse("d/.partial").unwrap());
        dirs.forget(&dir);
        assert!(dirs.all().is_empty());
        dirs.all().insert(dir.clone(), Arc::new(OnceCell::from(Whose::Ours)));
        dirs.forget(&dir);
        assert!(dirs.all().get(&dir).is_some_and(|made| !made.initialized()));
    }
}
