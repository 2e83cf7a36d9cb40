//! The directories that drafts have on a server, where those are not beside their files ([`Options::partial_dir`](super::Options)).

use super::remote::Remote;
use phoebus_files::key::Key;
use phoebus_files::store::Store;
use phoebus_files::{Error, Sort};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::OnceCell;

/// Those in which drafts are, each once it is there.
#[derive(Debug, Default)]
pub(super) struct PartialDirs(Mutex<HashMap<Key, Arc<OnceCell<()>>>>);

impl PartialDirs {
    fn all(&self) -> MutexGuard<'_, HashMap<Key, Arc<OnceCell<()>>>> {
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
    /// Has the directory `dir` be there, in which drafts are.
    pub(super) async fn make_partial_dir(&self, dir: &Key) -> Result<(), Error> {
        // Whoever wants the same at the same time waits for the first.
        let once = self.0.partial_dirs.all().entry(dir.clone()).or_default().clone();
        let make = || async {
            match self.make_dir(dir).await {
                Err(error) if error.sort() != Sort::Exists => Err(error),
                _ => Ok(()),
            }
        };
        once.get_or_try_init(make).await.copied()
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
        dirs.all().insert(dir.clone(), Arc::new(OnceCell::from(())));
        dirs.forget(&dir);
        assert!(dirs.all().get(&dir).is_some_and(|made| !made.initialized()));
    }
}
