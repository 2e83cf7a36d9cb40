//! Commands whose replies were lost with the control connection. Over another connection, the client finds out whether
//! they were carried out, before it reports a failure or repeats them.

use super::error::{passing, refused, words};
use super::known::Unsure;
use super::listing::RemoteListing;
use super::remote::Remote;
use phoebus_files::key::Key;
use phoebus_files::store::{Kind, Listing, Meta, Spec, Store};
use phoebus_files::{Error, ErrorKind};
use std::sync::{MutexGuard, PoisonError};

/// The outcome of a rename.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Named {
    Yes,
    /// It did not happen, or that cannot be decided.
    No,
    /// Another file has the name.
    Another,
}

impl Unsure {
    /// Whether `there`, a file of the right size, is the renamed one by its time. The earlier file at that name is
    /// known; if times are set, the time must match.
    fn is_what_came(&self, there: &Meta, sets_times: bool) -> bool {
        let another = self.before.is_some_and(|before| before.is_none_or(|was| !is_same(&was, there)));
        let set = self.spec.attributes.modified.filter(|_| sets_times);
        another && set.is_none_or(|set| there.modified.is_some_and(|time| time.is_about(set)))
    }
}

/// Whether two metadata describe the same unchanged file. Permissions are left out, since commands report them
/// differently.
fn is_same(one: &Meta, other: &Meta) -> bool {
    (one.kind, one.size, one.modified) == (other.kind, other.size, other.modified)
}

/// Most undecided renames that are remembered: more than are in progress at once.
const MOST: usize = 1000;

impl Remote {
    fn unsure(&self) -> MutexGuard<'_, Vec<Unsure>> {
        self.0.unsure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records an undecided rename for the next attempt.
    fn note_unsure(&self, one: Unsure) {
        let mut all = self.unsure();
        if all.len() < MOST {
            all.push(one);
        }
    }

    /// Whether an earlier, undecided rename to `key` succeeded.
    ///
    /// # Errors
    /// The server cannot be asked, or another file has the name and must not be overwritten silently.
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
                Err(Error::Store { name: self.label(key), reason: reason.to_owned(), kind: ErrorKind::Other })
            }
        }
    }

    /// Renames `one` to its final name. If the reply is lost and the result cannot be decided, records it for the next
    /// attempt.
    pub(super) async fn give_name(&self, one: Unsure) -> Result<(), Error> {
        let error = match self.ask_to_move(&one.part, &one.key).await {
            Err(error) if error.kind() == ErrorKind::Passing => error,
            named => return named,
        };
        if matches!(self.has_its_name(&one).await, Ok(Named::Yes)) {
            return Ok(());
        }
        self.note_unsure(one);
        Err(error)
    }

    /// Whether the server has renamed `one`. An undecided case counts as not done: the file is sent again, which costs
    /// time but loses nothing.
    async fn has_its_name(&self, one: &Unsure) -> Result<Named, Error> {
        if !self.says_gone(&one.part).await? {
            return Ok(Named::No);
        }
        let there = match self.look(&one.key).await {
            Ok(meta) => meta,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Named::No),
            Err(error) => return Err(error),
        };
        let is_as_before = one.before.flatten().is_some_and(|was| is_same(&was, &there));
        if there.kind == Kind::File && there.size == Some(one.size) {
            if one.is_what_came(&there, self.has("MFMT")) {
                return Ok(Named::Yes);
            }
            // The size proves nothing: the replaced file may have had the same.
            let Some(sum) = one.sum.as_ref().filter(|sum| self.algorithms().contains(&sum.algorithm())) else {
                return Ok(Named::No);
            };
            if self.checksum(&one.key, &self.label(&one.key), sum.algorithm(), None, one.size).await? == *sum {
                return Ok(Named::Yes);
            }
        }
        Ok(if is_as_before { Named::No } else { Named::Another })
    }

    /// Whether `moved` has moved from `from` to `to`, after the server failed to reply (`error`).
    pub(super) async fn was_moved(&self, from: &Key, to: &Key, moved: &Meta, error: &Error) -> bool {
        let same_time = |time| moved.modified.is_none() || time == moved.modified;
        error.kind() == ErrorKind::Passing
            && self.is_gone(from).await
            && matches!(self.look(to).await, Ok(meta)
                if meta.kind == moved.kind && meta.size == moved.size && same_time(meta.modified))
    }

    /// Whether nothing has the name `key`.
    async fn is_gone(&self, key: &Key) -> bool {
        matches!(self.says_gone(key).await, Ok(true))
    }

    /// The outcome of a lost removal of `key`.
    pub(super) async fn removed(&self, key: &Key, asked: Result<(), Error>) -> Result<(), Error> {
        match asked {
            Err(error) if error.kind() == ErrorKind::Passing && self.is_gone(key).await => Ok(()),
            other => other,
        }
    }

    /// The outcome of a lost MKD of `key`.
    pub(super) async fn made(&self, key: &Key, asked: Result<(), Error>) -> Result<(), Error> {
        let Err(error) = asked else { return Ok(()) };
        match self.look(key).await {
            // An earlier directory may have entries. An empty one is as good as new.
            Ok(meta) if error.kind() == ErrorKind::Passing && meta.kind == Kind::Dir && self.is_empty(key).await? => {
                Ok(())
            }
            Ok(_) => Err(Error::Exists { name: self.label(key) }),
            Err(_) => Err(error),
        }
    }

    async fn is_empty(&self, dir: &Key) -> Result<bool, Error> {
        Ok(RemoteListing::begin(self.clone(), dir.clone()).await?.more().await?.is_empty())
    }

    /// Renames `from`, which is `moved`, to `to`; with `replace`, over an existing file.
    pub(super) async fn move_to(&self, from: &Key, to: &Key, moved: &Meta, replace: bool) -> Result<(), Error> {
        match self.ask_to_move(from, to).await {
            Ok(()) if replace && moved.kind != Kind::Dir => self.leave_other_name(from, to).await,
            Err(error) if self.was_moved(from, to, moved, &error).await => Ok(()),
            other => other,
        }
    }

    pub(super) async fn ask_to_move(&self, from: &Key, to: &Key) -> Result<(), Error> {
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
        // A missing destination decides nothing.
        match self.look(to).await {
            Ok(meta) if meta.kind == Kind::Dir => {
                let name = self.label(to);
                Err(match self.look(from).await {
                    Ok(moved) if moved.kind == Kind::Dir => {
                        let reason = format!(
                            "it is there, and no directory takes its place: RNTO is answered with {}",
                            words(after)
                        );
                        Error::Store { name, reason, kind: ErrorKind::Other }
                    }
                    _ => Error::Kind { name, is: meta.kind.described(), expected: "a file" },
                })
            }
            _ => Err(refused(&self.label(to), "give a file the name", "RNTO", after)),
        }
    }
}
