//! Commands whose answers were lost with the control connection: whether what they ask for was done is looked at over another one,
//! before anything is called a failure or done once more.

use super::error::{passing, refused, words};
use super::listing::RemoteListing;
use super::remote::Remote;
use phoebus_files::key::Key;
use phoebus_files::store::{Kind, Listing, Meta, Spec, Store};
use phoebus_files::sum::Sum;
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
    /// What had the name that it was to have, if that was looked at: nothing, or something.
    pub(super) before: Option<Option<Meta>>,
    /// The checksum of it, if it is known.
    pub(super) sum: Option<Sum>,
}

/// What became of such a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Named {
    Yes,
    /// It was not given the name, or that cannot be told.
    No,
    /// Another file came to the name.
    Another,
}

impl Unsure {
    /// Whether `there`, a file of its size, is it by its time: what was there before is known to be another, and where times are set, the
    /// time is the one that was set.
    fn is_what_came(&self, there: &Meta, sets_times: bool) -> bool {
        let another = self.before.is_some_and(|before| before.is_none_or(|was| !is_same(&was, there)));
        let set = self.spec.attributes.modified.filter(|_| sets_times);
        another && set.is_none_or(|set| there.modified.is_some_and(|time| time.is_about(set)))
    }
}

/// Whether both are one file that was not changed, as far as servers tell. What it may be read by is told by one command and not by another.
fn is_same(one: &Meta, other: &Meta) -> bool {
    (one.kind, one.size, one.modified) == (other.kind, other.size, other.modified)
}

/// How many of them are kept in mind: more than are ever under way at once.
const MOST: usize = 1000;

impl Remote {
    fn unsure(&self) -> MutexGuard<'_, Vec<Unsure>> {
        self.0.unsure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that it is not known whether a file was given its name, for the next attempt at it.
    fn note_unsure(&self, one: Unsure) {
        let mut all = self.unsure();
        if all.len() < MOST {
            all.push(one);
        }
    }

    /// Whether an attempt at `key` whose end is not known had come to it.
    ///
    /// # Errors
    /// The server cannot be asked, or another file came to the name, which must not be written over without a word.
    pub(super) async fn was_published(&self, key: &Key, spec: &Spec) -> Result<bool, Error> {
        let found = self.unsure().iter().rfind(|one| one.key == *key && one.spec == *spec).cloned();
        let Some(one) = found else { return Ok(false) };
        let named = self.has_its_name(&one).await?;
        self.unsure().retain(|one| one.key != *key);
        match named {
            Named::Yes => Ok(true),
            Named::No => Ok(false),
            Named::Another => {
                let reason = "the connection broke while the file was given its name, and what has that name now is another one, which stays; \
                              the same command replaces it";
                Err(Error::Store { name: self.label(key), reason: reason.to_owned(), sort: Sort::Other })
            }
        }
    }

    /// Has the server give `one` its name. Where the answer is lost, and looking does not tell either, that is noted for the next attempt.
    pub(super) async fn give_name(&self, one: Unsure) -> Result<(), Error> {
        let error = match self.ask_to_move(&one.part, &one.key).await {
            Err(error) if error.sort() == Sort::Passing => error,
            named => return named,
        };
        if matches!(self.has_its_name(&one).await, Ok(Named::Yes)) {
            return Ok(());
        }
        self.note_unsure(one);
        Err(error)
    }

    /// Whether the server has given `one` its name. What cannot be told for certain was not done: then all of it is sent once more, which
    /// takes time and loses nothing.
    async fn has_its_name(&self, one: &Unsure) -> Result<Named, Error> {
        if !self.says_gone(&one.part).await? {
            return Ok(Named::No);
        }
        let there = match self.look(&one.key).await {
            Ok(meta) => meta,
            Err(error) if error.sort() == Sort::NotFound => return Ok(Named::No),
            Err(error) => return Err(error),
        };
        let is_as_before = one.before.flatten().is_some_and(|was| is_same(&was, &there));
        if there.kind == Kind::File && there.size == Some(one.size) {
            if one.is_what_came(&there, self.has("MFMT")) {
                return Ok(Named::Yes);
            }
            // The size alone says nothing: the file that was to be replaced may have the same.
            let Some(sum) = one.sum.as_ref().filter(|sum| self.algorithms().contains(&sum.algorithm())) else {
                return Ok(Named::No);
            };
            if self.checksum(&one.key, &self.label(&one.key), sum.algorithm(), None, one.size).await? == *sum {
                return Ok(Named::Yes);
            }
        }
        Ok(if is_as_before { Named::No } else { Named::Another })
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
        matches!(self.says_gone(key).await, Ok(true))
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
        self.forget(from);
        self.forget(to);
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
                let name = self.label(to);
                Err(match self.look(from).await {
                    Ok(moved) if moved.kind == Kind::Dir => {
                        let reason = format!(
                            "it is there, and no directory takes its place: RNTO is answered with {}",
                            words(after)
                        );
                        Error::Store { name, reason, sort: Sort::Other }
                    }
                    _ => Error::Kind { name, is: meta.kind.described(), expected: "a file" },
                })
            }
            _ => Err(refused(&self.label(to), "give a file the name", "RNTO", after)),
        }
    }
}
