//! Directories for drafts ([`Options::partial_dir`](super::Options)).

use super::commands::facts_of;
use super::known::Whose;
use super::remote::Remote;
use phoebus_files::key::Key;
use phoebus_files::store::{Kind, Store};
use phoebus_files::{Error, ErrorKind};

impl Remote {
    /// Creates the directory `dir` for drafts, and checks that no other user can rename in it, as far as the server
    /// tells.
    pub(super) async fn make_partial_dir(&self, dir: &Key) -> Result<(), Error> {
        // Concurrent calls wait for the first.
        let once = self.0.partial_dirs.all().entry(dir.clone()).or_default().clone();
        let make = || async {
            match self.make_dir(dir).await {
                Ok(()) => {
                    // Many servers lack the command, or forbid it.
                    let closed = self.about("SITE CHMOD 700", dir).await?;
                    tracing::debug!(dir = self.label(dir), code = closed.code, "the directory of drafts was made");
                    Ok(Whose::Ours)
                }
                Err(error) if error.kind() == ErrorKind::Exists => self.judge(dir).await,
                Err(error) => Err(error),
            }
        };
        once.get_or_try_init(make).await.map(drop)
    }

    /// Refuses an existing `dir` that is no directory, or that others may write to: they could have their file
    /// published in place of the draft.
    async fn judge(&self, dir: &Key) -> Result<Whose, Error> {
        let refused = |reason: &str| {
            let reason = format!("drafts cannot be there: {reason}; remove it, or name another directory");
            Err(Error::Store { name: self.label(dir), reason, kind: ErrorKind::Denied })
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

    /// Whether this `phoebus serve` says that it moves no draft out of `dir`.
    async fn refuses_drafts(&self, dir: &Key) -> Result<bool, Error> {
        if !self.has("XDRAFTS") {
            return Ok(false);
        }
        let reply = self.about("MLST", dir).await?;
        let facts = facts_of(&reply).map(|(facts, _)| facts.others).unwrap_or_default();
        Ok(facts.iter().any(|(name, value)| name.eq_ignore_ascii_case("X.drafts") && value == "no"))
    }

    /// Whether the directory `dir` may be another user's, as far as known. `phoebus serve` checks that itself.
    pub(super) fn may_be_anybodys(&self, dir: &Key) -> bool {
        let known = self.0.partial_dirs.all().get(dir).and_then(|once| once.get().copied());
        !self.has("XDRAFTS") && self.options().partial_dir.is_some() && known != Some(Whose::Ours)
    }

    /// Removes the used directories that are empty.
    pub(super) async fn remove_partial_dirs(&self) {
        let used = std::mem::take(&mut *self.0.partial_dirs.all());
        for dir in used.into_keys() {
            // The server refuses to remove a directory with drafts.
            if let Err(error) = self.remove_dir(&dir).await {
                tracing::debug!(%error, "a directory of drafts stays");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::known::PartialDirs;
    use super::*;
    use std::sync::Arc;
    use tokio::sync::OnceCell;

    #[test]
    fn directories_to_be_made_again_are_retried_last() {
        let (dirs, dir) = (PartialDirs::default(), Key::parse("d/.partial").unwrap());
        dirs.forget(&dir);
        assert!(dirs.all().is_empty());
        dirs.all().insert(dir.clone(), Arc::new(OnceCell::from(Whose::Ours)));
        dirs.forget(&dir);
        assert!(dirs.all().get(&dir).is_some_and(|made| !made.initialized()));
    }
}
