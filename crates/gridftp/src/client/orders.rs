//! What is asked of a server about its files, and done to them, in a line or two.

use super::error::{passing, refused};
use super::listing::meta_of;
use super::remote::Remote;
use phoebus_files::key::Key;
use phoebus_files::range::Extent;
use phoebus_files::store::{Attributes, Kind, Meta, Time};
use phoebus_files::sum::{Algorithm, Sum};
use phoebus_files::{Error, Sort};
use phoebus_proto::gridftp::facts::Facts;
use phoebus_proto::gridftp::reply::Reply;
use phoebus_proto::gridftp::time::Stamp;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How many names are kept of what a server refuses.
const MAX_NAMES: usize = 1000;

/// Checksums of so many bytes take no longer than other answers do.
const SHORT: u64 = 1 << 20;

/// How fast a server computes a checksum at least, in bytes a second, if it says nothing meanwhile.
const SLOW_SUM: u64 = 10_000_000;

/// For how long what was seen of a file is taken for what is there: less than between two commands of somebody.
const RECENT: Duration = Duration::from_secs(2);

/// What was seen of a file: nothing, if it was not there.
#[derive(Debug)]
pub(super) struct Looked {
    key: Key,
    meta: Option<Meta>,
    at: Instant,
}

impl Remote {
    /// `command` about `key`, as a line.
    pub(super) fn line(&self, command: &str, key: &Key) -> Result<Vec<u8>, Error> {
        Ok([command.as_bytes(), b" ", &self.path(key)?].concat())
    }

    /// Asks something about `key`.
    pub(super) async fn about(&self, command: &str, key: &Key) -> Result<Reply, Error> {
        self.ask(self.line(command, key)?).await
    }

    /// Has something done to `key`.
    pub(super) async fn order(&self, command: &str, key: &Key, act: &'static str) -> Result<(), Error> {
        let reply = self.about(command, key).await?;
        let verb = super::session::verb(command.as_bytes());
        if reply.is_success() { Ok(()) } else { Err(refused(&self.label(key), act, &verb, &reply)) }
    }

    /// Why something was not done to `key`: many servers have one answer to all that they do not do.
    pub(super) async fn why(&self, key: &Key, error: Error, file: bool) -> Error {
        if !matches!(error.sort(), Sort::Denied | Sort::Request) {
            return error;
        }
        match self.look(key).await {
            Err(absent) if absent.sort() == Sort::NotFound => absent,
            Ok(meta) if file && meta.kind == Kind::Dir => {
                Error::Kind { name: self.label(key), is: meta.kind.described(), expected: "a file" }
            }
            _ => error,
        }
    }

    /// The checksum of `key`, or of part of it, by the server.
    pub(super) async fn checksum(
        &self,
        key: &Key,
        name: &str,
        algorithm: Algorithm,
        part: Option<Extent>,
        size: u64,
    ) -> Result<Sum, Error> {
        let (offset, length) = part.map_or((0, -1), |part| (part.start(), i64::try_from(part.len()).unwrap_or(-1)));
        let line = [format!("CKSM {algorithm} {offset} {length} ").as_bytes(), &self.path(key)?].concat();
        let reply = if size <= SHORT {
            self.ask(line).await?
        } else {
            let mut session = self.session().await?;
            session.send(&line).await?;
            // Many say every few seconds that they are at it; one that does not has as long as a slow disk takes.
            let limit = self.0.options.patience + Duration::from_secs(size / SLOW_SUM);
            let reply = session.last(limit).await?;
            self.keep(session);
            reply
        };
        if !reply.is_success() {
            return Err(refused(name, "have the checksum of", "CKSM", &reply));
        }
        let text = reply.text();
        let value = text.split_ascii_whitespace().next_back().unwrap_or_default();
        Sum::parse(algorithm, value).map_err(|error| passing(name, format!("the server answers CKSM with {error}")))
    }

    /// How many bytes the file `key` has, if it is one and the server says so.
    pub(super) async fn size(&self, key: &Key) -> Result<Option<u64>, Error> {
        Ok(size_of(&self.about("SIZE", key).await?))
    }

    async fn modified(&self, key: &Key) -> Result<Option<Time>, Error> {
        Ok(stamp_of(&self.about("MDTM", key).await?))
    }

    /// When each of `keys` was modified, asked for all at once.
    pub(super) async fn all_modified(&self, keys: &[Key]) -> Result<Vec<Option<Time>>, Error> {
        let mut times = Vec::new();
        if !self.has("MDTM") {
            return Ok(vec![None; keys.len()]);
        }
        let mut session = self.session().await?;
        // As much as any server's socket holds while it answers.
        for some in keys.chunks(32) {
            for key in some {
                session.send(&[b"MDTM ", &self.path(key)?[..]].concat()).await?;
            }
            for _ in some {
                times.push(stamp_of(&session.last(self.0.options.patience).await?));
            }
        }
        self.keep(session);
        Ok(times)
    }

    pub(super) async fn look(&self, key: &Key) -> Result<Meta, Error> {
        let dir = Meta { kind: Kind::Dir, size: None, modified: None, mode: None, sparse: false };
        if key.is_root() {
            return Ok(dir);
        }
        if self.has("MLST") {
            let reply = self.about("MLST", key).await?;
            match reply.code {
                250 => {
                    let meta = facts_of(&reply).map(|facts| meta_of(&facts));
                    let said = || passing(&self.label(key), "the answer to MLST has no facts");
                    let meta = meta.ok_or_else(said)?;
                    // What is known of a link may be of itself or of what it leads to.
                    if meta.kind != Kind::Link {
                        return Ok(meta);
                    }
                }
                500..=504 if !says_absent(&reply) => {}
                _ => return Err(self.absent_or(key, "MLST", &reply)),
            }
        }
        if let Some(size) = self.size(key).await? {
            let modified = if self.has("MDTM") { self.modified(key).await? } else { None };
            return Ok(Meta { kind: Kind::File, size: Some(size), modified, ..dir });
        }
        let reply = self.about("CWD", key).await?;
        if reply.is_success() { Ok(dir) } else { Err(self.absent_or(key, "CWD", &reply)) }
    }

    /// The same, remembered for [`Self::recall`].
    pub(super) async fn look_and_remember(&self, key: &Key) -> Result<Meta, Error> {
        let found = self.look(key).await;
        let meta = match &found {
            Ok(meta) => Some(Some(*meta)),
            Err(Error::NotFound { .. }) => Some(None),
            Err(_) => None,
        };
        *self.looked() = meta.map(|meta| Looked { key: key.clone(), meta, at: Instant::now() });
        found
    }

    /// What is at `key`, by what was just seen, if it was: whoever looks at a file to open it spares a round trip. Each look
    /// serves once.
    pub(super) async fn recall(&self, key: &Key) -> Result<Meta, Error> {
        let looked = self.looked().take_if(|looked| looked.key == *key && looked.at.elapsed() < RECENT);
        match looked {
            Some(Looked { meta: Some(meta), .. }) => Ok(meta),
            Some(Looked { meta: None, .. }) => Err(Error::NotFound { name: self.label(key) }),
            None => self.look(key).await,
        }
    }

    fn looked(&self) -> MutexGuard<'_, Option<Looked>> {
        self.0.looked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The error for something that the server does not want to tell of: as a rule, it is not there.
    fn absent_or(&self, key: &Key, command: &str, reply: &Reply) -> Error {
        let text = reply.text().to_lowercase();
        let denied = ["permission", "denied", "not allowed", "forbidden"].iter().any(|word| text.contains(word));
        if reply.code == 550 && !denied {
            return Error::NotFound { name: self.label(key) };
        }
        refused(&self.label(key), "look at", command, reply)
    }

    /// Sets times and modes of `key`, as far as the server does so.
    pub(super) async fn attribute(&self, key: &Key, attributes: Attributes) -> Result<(), Error> {
        self.finish(key, key, attributes, None).await
    }

    /// Of how many files and directories the server refused to set the modes, and the names of the first of them.
    pub fn without_modes(&self) -> (u64, Vec<String>) {
        self.0.without_modes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note_without_mode(&self, key: &Key) {
        let mut noted = self.0.without_modes.lock().unwrap_or_else(PoisonError::into_inner);
        noted.0 += 1;
        if noted.1.len() < MAX_NAMES {
            noted.1.push(self.label(key));
        }
    }

    /// The same for a file that has come and is to be called `named`: makes sure that it has `size` bytes, if that is asked for.
    pub(super) async fn finish(
        &self,
        key: &Key,
        named: &Key,
        attributes: Attributes,
        size: Option<u64>,
    ) -> Result<(), Error> {
        let size = size.filter(|_| self.has("SIZE"));
        let mode = attributes.mode.filter(|_| !self.0.modeless.load(Ordering::Relaxed));
        if attributes.mode.is_some() && mode.is_none() {
            self.note_without_mode(named);
        }
        let time = attributes.modified.map(|Time { seconds, .. }| Stamp { seconds, nanos: 0 });
        let mut lines = Vec::new();
        if size.is_some() {
            lines.push(self.line("SIZE", key)?);
        }
        if let Some(mode) = mode {
            lines.push(self.line(&format!("SITE CHMOD {:03o}", mode & 0o777), key)?);
        }
        // Older servers take two arguments of MDTM for the same as MFMT; others find no such file.
        let verb = if self.has("MFMT") { "MFMT" } else { "MDTM" };
        if let Some(stamp) = &time {
            lines.push(self.line(&format!("{verb} {stamp}"), key)?);
        }
        if lines.is_empty() {
            return Ok(());
        }
        let mut replies = self.ask_all(lines).await?.into_iter();
        let name = self.label(key);
        let silent = || passing(&name, "the server did not answer");
        if let Some(size) = size
            && let Some(there) = size_of(&replies.next().ok_or_else(silent)?)
            && there != size
        {
            return Err(passing(&name, format!("the server has {there} bytes of it, and {size} were sent")));
        }
        // Many servers have no such command, or let nobody use it.
        if mode.is_some() && !replies.next().ok_or_else(silent)?.is_success() {
            self.0.modeless.store(true, Ordering::Relaxed);
            self.note_without_mode(named);
        }
        if time.is_some() {
            let reply = replies.next().ok_or_else(silent)?;
            if verb == "MFMT" && !reply.is_success() {
                return Err(refused(&name, "set the time of", verb, &reply));
            }
        }
        Ok(())
    }

    /// Gives what has the name `from` the name `to`, in place of what has it.
    pub(super) async fn move_to(&self, from: &Key, to: &Key) -> Result<(), Error> {
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

/// The facts in an answer to MLST.
fn facts_of(reply: &Reply) -> Option<Facts> {
    let inner = reply.lines.get(1..reply.lines.len().checked_sub(1)?)?;
    inner.iter().find_map(|line| Facts::parse(line.strip_prefix(b" ").unwrap_or(line)).ok()).map(|(facts, _)| facts)
}

fn says_absent(reply: &Reply) -> bool {
    super::error::sort(reply) == Sort::NotFound
}

/// The answer to SIZE, if it is one.
fn size_of(reply: &Reply) -> Option<u64> {
    Some(reply).filter(|reply| reply.code == 213).and_then(|reply| reply.text().trim().parse().ok())
}

fn stamp_of(reply: &Reply) -> Option<Time> {
    let stamp = Some(reply).filter(|reply| reply.code == 213).and_then(|reply| Stamp::parse(reply.text().trim()))?;
    Some(Time { seconds: stamp.seconds, nanos: stamp.nanos })
}
