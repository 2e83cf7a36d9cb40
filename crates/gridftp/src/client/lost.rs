//! Commands whose answers were lost with the control connection: whether what they ask for was done is looked at over another one,
//! before anything is called a failure or done once more.

use super::error::{passing, refused};
use super::listing::RemoteListing;
use super::remote::Remote;
use phoebus_files::key::Key;
use phoebus_files::store::{Kind, Listing, Meta, Spec};
use phoebus_files::{Error, Sort};
use std::sync::{MutexGuard, PoisonError};

/// A file of which is not known whether the server gave it its name.
#[derive(Debug, Clone)]
pub(super) struct Unsure {
    /// The name that it had.
    pub(super) part: Key,
    /// The name that it was to have.
    pub(super) key: Key,
    /// Of what it was.
    pub(super) spec: Spec,
    /// How many bytes it has.
    pub(super) size: u64,
}

/// How many of them are kept in mind: more than are ever under way at once.
const MOST: usize = 1000;

impl Remote {
    fn unsure(&self) -> MutexGuard<'_, Vec<Unsure>> {
        self.0.unsure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that it is not known whether a file was given its name, for the next attempt at it.
    pub(super) fn note_unsure(&self, one: Unsure) {
        let mut all = self.unsure();
        if all.len() < MOST {
            all.push(one);
        }
    }

    /// Whether an attempt at `key` whose end is not known had come to it.
    ///
    /// # Errors
    /// The server cannot be asked, or has something else there, so that it cannot be told and must not be written over.
    pub(super) async fn was_published(&self, key: &Key, spec: &Spec) -> Result<bool, Error> {
        let found = self.unsure().iter().find(|one| one.key == *key && one.spec == *spec).cloned();
        let Some(one) = found else { return Ok(false) };
        let published = match self.look(&one.part).await {
            Ok(_) => false,
            Err(error) if error.sort() == Sort::NotFound => match self.look(key).await {
                Ok(meta) if meta.kind == Kind::File && meta.size == Some(one.size) => true,
                Ok(_) => {
                    let reason = "the connection broke while the file was given its name, and another one has it since";
                    return Err(Error::Store { name: self.label(key), reason: reason.to_owned(), sort: Sort::Other });
                }
                Err(error) if error.sort() == Sort::NotFound => false,
                Err(error) => return Err(error),
            },
            Err(error) => return Err(error),
        };
        self.unsure().retain(|one| one.key != *key);
        Ok(published)
    }

    /// Whether `moved`, which had the name `from`, has the name `to`, now that a server has failed to answer with `error`.
    pub(super) async fn was_moved(&self, from: &Key, to: &Key, moved: &Meta, error: &Error) -> bool {
        let same_time = |time| moved.modified.is_none() || time == moved.modified;
        error.sort() == Sort::Passing
            && self.is_gone(from).await
            && matches!(self.look(to).await, Ok(meta)
                if meta.kind == moved.kind && meta.size == moved.size && same_time(meta.modified))
    }

    /// Whether there is nothing that has the name `key`.
    async fn is_gone(&self, key: &Key) -> bool {
        matches!(self.look(key).await, Err(error) if error.sort() == Sort::NotFound)
    }

    /// What came of removing `key`.
    pub(super) async fn removed(&self, key: &Key, asked: Result<(), Error>) -> Result<(), Error> {
        match asked {
            Err(error) if error.sort() == Sort::Passing && self.is_gone(key).await => Ok(()),
            other => other,
        }
    }

    /// What came of making the directory `key`.
    pub(super) async fn made(&self, key: &Key, asked: Result<(), Error>) -> Result<(), Error> {
        let Err(error) = asked else { return Ok(()) };
        match self.look(key).await {
            // One that was there before may have something in it; if it has nothing, it is as if it were made.
            Ok(meta) if error.sort() == Sort::Passing && meta.kind == Kind::Dir && self.is_empty(key).await? => Ok(()),
            Ok(_) => Err(Error::Exists { name: self.label(key) }),
            Err(_) => Err(error),
        }
    }

    async fn is_empty(&self, dir: &Key) -> Result<bool, Error> {
        Ok(RemoteListing::begin(self.clone(), dir.clone()).await?.more().await?.is_empty())
    }

    /// Gives `from`, which is `moved`, the name `to`, in place of what has it.
    pub(super) async fn move_to(&self, from: &Key, to: &Key, moved: &Meta) -> Result<(), Error> {
        match self.ask_to_move(from, to).await {
            Err(error) if self.was_moved(from, to, moved, &error).await => Ok(()),
            other => other,
        }
    }

    async fn ask_to_move(&self, from: &Key, to: &Key) -> Result<(), Error> {
        let replies = self.ask_all(vec![self.line("RNFR", from)?, self.line("RNTO", to)?]).await?;
        let [before, after] = &replies[..] else { return Err(passing(&self.label(to), "the server did not answer")) };
        if before.code != 350 {
            let error = refused(&self.label(from), "rename", "RNFR", before);
            return Err(self.why(from, error, false).await);
        }
        if after.is_success() {
            return Ok(());
        }
        // That nothing has the name yet is no reason.
        match self.look(to).await {
            Ok(meta) if meta.kind == Kind::Dir => {
                Err(Error::Kind { name: self.label(to), is: meta.kind.described(), expected: "a file" })
            }
            _ => Err(refused(&self.label(to), "give a file the name", "RNTO", after)),
        }
    }
}
