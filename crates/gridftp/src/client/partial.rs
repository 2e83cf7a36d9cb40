//! The directories that drafts have on a server, where those are not beside their files ([`Options::partial_dir`](super::Options)).

use super::remote::Remote;
use phoebus_files::key::Key;
use phoebus_files::store::Store;
use phoebus_files::{Error, Sort};

impl Remote {
    /// Has the directory `dir` be there, in which drafts are.
    pub(super) async fn make_partial_dir(&self, dir: &Key) -> Result<(), Error> {
        // Whoever asks at the same time waits for the first.
        let mut there = self.0.partial_dirs.lock().await;
        if there.contains(dir) {
            return Ok(());
        }
        match self.make_dir(dir).await {
            Err(error) if error.sort() != Sort::Exists => return Err(error),
            _ => there.insert(dir.clone()),
        };
        Ok(())
    }

    /// Removes those that were used and in which nothing is.
    pub(super) async fn remove_partial_dirs(&self) {
        let used = std::mem::take(&mut *self.0.partial_dirs.lock().await);
        for dir in used {
            // With a draft in it, it stays, and the server says so.
            if let Err(error) = self.remove_dir(&dir).await {
                tracing::debug!(%error, "a directory of drafts stays");
            }
        }
    }
}
