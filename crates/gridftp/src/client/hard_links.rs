//! Two names of one file (hard links). rename(2) between them does nothing and reports success, and so does a server on
//! top of it. If the server identifies files (`Unique` of MLST), this removes the first name.

use super::commands::facts_of;
use super::listing::RemoteListing;
use super::remote::Remote;
use phoebus_files::key::Key;
use phoebus_files::store::{Kind, Meta};
use phoebus_files::{Error, ErrorKind, moved_from, moved_name};

/// The server's identifier of a file. `None` if it tells none.
type Unique = Option<String>;

impl Remote {
    /// Removes the name `from`, after a rename to `to`, if it still names the same file.
    ///
    /// # Errors
    /// Both names exist, and it cannot be decided or changed that they are one file.
    pub(super) async fn leave_other_name(&self, from: &Key, to: &Key) -> Result<(), Error> {
        // An invented temporary name had no second name, and `phoebus serve` does this itself.
        if from == to || moved_from(to.name()).is_some() || self.has("XDRAFTS") {
            return Ok(());
        }
        let Some(left) = self.left_at(from, to, from).await? else { return Ok(()) };
        let Some(there) = self.left_at(from, to, to).await? else { return Ok(()) };
        let alike =
            |one: &Meta, other: &Meta| (one.kind, one.size, one.modified) == (other.kind, other.size, other.modified);
        // Somebody has created it anew, or a directory has two paths: directories have no second name.
        if left.kind == Kind::Dir || !alike(&left, &there) || !self.is_listed(from).await? {
            return Ok(());
        }
        match self.uniques(from, to).await? {
            (Some(one), Some(other)) if one != other => Ok(()),
            // It was created anew, perhaps as a link to the new name.
            (Some(_), Some(_)) if self.is_listed_as_link(from).await? => Ok(()),
            (Some(one), Some(_)) => self.take_away(from, to, &one).await,
            _ => Err(self.keeps_both(
                from,
                to,
                "the server does not tell whether they are one file, and the first may have been made anew meanwhile",
            )),
        }
    }

    /// Metadata of `key`, one of the two names. `None` if nothing is there.
    async fn left_at(&self, from: &Key, to: &Key, key: &Key) -> Result<Option<Meta>, Error> {
        let mut found = self.look(key).await;
        // A broken connection is replaced for the next command.
        if found.as_ref().is_err_and(|error| error.kind() == ErrorKind::Passing) {
            found = self.look(key).await;
        }
        match found {
            Ok(meta) => Ok(Some(meta)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => {
                let reason = format!(
                    "the server says that it was renamed to {}, and whether both names are there, as of two links to one file, is not \
                     known: {error}",
                    self.label(to)
                );
                Err(Error::Store { name: self.label(from), reason, kind: error.kind() })
            }
        }
    }

    /// Removes `from`, which is the file `unique`, as `to` is. It is first renamed: then it shows whether these are two
    /// names, and not one name by two paths or in two cases. A file that somebody creates meanwhile stays.
    async fn take_away(&self, from: &Key, to: &Key, unique: &str) -> Result<(), Error> {
        let aside = moved_name(from).map_err(|error| self.keeps_both(from, to, &error.to_string()))?;
        if let Err(error) = self.ask_to_move(from, &aside).await {
            // After a lost reply, it may have been done.
            return match matches!(self.says_gone(&aside).await, Ok(true)) {
                true => Err(self.keeps_both(from, to, &error.to_string())),
                false => Err(self.put_back(from, to, &aside, error.to_string(), error.kind()).await),
            };
        }
        let found = self.uniques(&aside, to).await;
        let is = |found: &Unique| found.as_deref() == Some(unique);
        let said = |why: &str| (why.to_owned(), ErrorKind::Request);
        let (why, kind) = match &found {
            // MLST may describe a link's target.
            Ok((one, other)) if is(one) && is(other) => match self.is_listed_as_link(&aside).await {
                Ok(false) => match self.order("DELE", &aside, "remove").await {
                    Ok(()) => return Ok(()),
                    Err(error) => (error.to_string(), error.kind()),
                },
                Ok(true) => said("the first is a symbolic link by now, which somebody has made"),
                Err(error) => (error.to_string(), error.kind()),
            },
            // They were one name.
            Ok((one, None)) if is(one) && matches!(self.says_gone(to).await, Ok(true)) => {
                return match self.ask_to_move(&aside, to).await {
                    Ok(()) => Ok(()),
                    Err(error) => {
                        let (name, reason) = (self.label(to), format!("it is {} now: {error}", self.label(&aside)));
                        Err(Error::Store { name, reason, kind: ErrorKind::Request })
                    }
                };
            }
            Ok(_) => said("another file has come to one of them meanwhile"),
            Err(error) => (error.to_string(), error.kind()),
        };
        Err(self.put_back(from, to, &aside, why, kind).await)
    }

    /// Renames `aside` back to `from`. Returns the error: it could not be removed (`why`), and where it is.
    async fn put_back(&self, from: &Key, to: &Key, aside: &Key, why: String, kind: ErrorKind) -> Error {
        let is_back = matches!(self.says_gone(from).await, Ok(true)) && self.ask_to_move(aside, from).await.is_ok();
        let is_aside = if is_back { String::new() } else { format!("; the first may be {} now", self.label(aside)) };
        self.keeps_both_as(from, to, &format!("{why}{is_aside}"), kind)
    }

    /// Whether the directory of `key` lists exactly this name.
    async fn is_listed(&self, key: &Key) -> Result<bool, Error> {
        Ok(self.names_in(&key.parent()).await?.is_none_or(|names| names.contains(key.name())))
    }

    /// Whether LIST shows `key` as a symbolic link, which MLST of some servers does not.
    async fn is_listed_as_link(&self, key: &Key) -> Result<bool, Error> {
        let mut listing = RemoteListing::by_list(self.clone(), key.parent()).await?;
        loop {
            let page = listing.page().await?;
            if page.is_empty() {
                return Ok(false);
            }
            if let Some(entry) = page.iter().find(|entry| entry.name == key.name()) {
                return Ok(entry.meta.kind == Kind::Link);
            }
        }
    }

    /// The identifiers of `one` and `other`. If the directory of `one` has the same `Unique`, as on file systems
    /// without inodes, they mean nothing.
    pub(super) async fn uniques(&self, one: &Key, other: &Key) -> Result<(Unique, Unique), Error> {
        if !self.has("MLST") {
            return Ok((None, None));
        }
        // Some servers send the fact only after OPTS, and then nothing else, so this connection is not reused.
        let mut session = self.session().await?;
        session.ask("OPTS MLST type;size;unique;").await?;
        let dir = one.parent();
        let mut found = [None, None, None];
        for (found, key) in found.iter_mut().zip([one, other, &dir]) {
            let reply = session.ask(self.line("MLST", key)?).await?;
            let Some((facts, name)) = facts_of(&reply).filter(|_| reply.code == 250) else { continue };
            self.same_name(key, &name)?;
            *found = facts.unique;
        }
        session.quit();
        let [one, other, dir] = found;
        Ok(if one.is_some() && one == dir { (None, None) } else { (one, other) })
    }

    fn keeps_both(&self, from: &Key, to: &Key, why: &str) -> Error {
        self.keeps_both_as(from, to, why, ErrorKind::Request)
    }

    fn keeps_both_as(&self, from: &Key, to: &Key, why: &str, kind: ErrorKind) -> Error {
        let to = self.label(to);
        let reason = format!(
            "the server says that it was renamed to {to}, and both names are there, as of two links to one file; neither was removed: {why}"
        );
        Error::Store { name: self.label(from), reason, kind }
    }
}
