//! What is asked of a server about its files, and done to them, in a line or two.

use super::error::{passing, refused};
use super::listing::meta_of;
use super::modes::Mode;
use super::remote::Remote;
use phoebus_files::key::Key;
use phoebus_files::range::Extent;
use phoebus_files::store::{Attributes, Kind, Meta, Time};
use phoebus_files::sum::{Algorithm, Sum};
use phoebus_files::{Error, Sort};
use phoebus_proto::gridftp::facts::Facts;
use phoebus_proto::gridftp::reply::Reply;
use phoebus_proto::gridftp::time::Stamp;
use std::collections::VecDeque;
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

/// Of how many files that is kept: more than are under way at once.
const MAX_LOOKED: usize = 128;

/// What a server refuses: of how many, and the names of the first of them.
#[derive(Debug, Default)]
pub(super) struct Refused(u64, Vec<String>);

impl Refused {
    pub(super) fn note(&mut self, name: String) {
        self.0 += 1;
        if self.1.len() < MAX_NAMES {
            self.1.push(name);
        }
    }

    pub(super) fn told(&self) -> (u64, Vec<String>) {
        (self.0, self.1.clone())
    }
}

/// What was seen of a file: nothing, if it was not there.
#[derive(Debug)]
pub(super) struct Looked {
    key: Key,
    meta: Option<Meta>,
    at: Instant,
}

/// Why nothing is known of a name.
#[derive(Debug)]
pub(super) enum Unseen {
    /// The server says why, or could not be asked.
    Said(Error),
    /// It answers this command so, which says nothing; as a rule, nothing has the name.
    Unsaid(&'static str, Reply),
}

impl From<Error> for Unseen {
    fn from(error: Error) -> Self {
        Self::Said(error)
    }
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
        self.forget(key);
        let reply = self.about(command, key).await?;
        let verb = super::session::verb(command.as_bytes());
        if reply.is_success() { Ok(()) } else { Err(refused(&self.label(key), act, &verb, &reply)) }
    }

    /// Why something was not done to `key`: many servers have one answer to all that they do not do.
    pub(super) async fn why(&self, key: &Key, error: Error, file: bool) -> Error {
        if !matches!(error.sort(), Sort::Denied | Sort::Request) {
            return error;
        }
        match self.look_at_link(key).await {
            Err(absent) if absent.sort() == Sort::NotFound => absent,
            // What is named may be a link to one, which may not be removed.
            Ok(meta) if file && meta.kind == Kind::Dir && !says_permission(&error) => {
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
        let (offset, length) = (part.map_or(0, |part| part.start()), part.map(|part| part.len()));
        let line = self.sum_line(key, algorithm, offset, length)?;
        let reply = self.ask_long(vec![line], size).await?.pop();
        sum_of(name, algorithm, reply)
    }

    /// The checksum of all `size` bytes of `key`, which is to be called `named`, and the permissions `mode` before it: a long one takes
    /// minutes.
    pub(super) async fn checksum_with(
        &self,
        key: &Key,
        named: &Key,
        mode: Option<Mode>,
        algorithm: Algorithm,
        size: u64,
    ) -> Result<Sum, Error> {
        let set = self.mode_line(key, named, mode)?;
        let is_set = set.is_some();
        let lines = set.into_iter().chain([self.sum_line(key, algorithm, 0, None)?]).collect();
        let mut replies = self.ask_long(lines, size).await?.into_iter();
        if let Some(mode) = mode.filter(|_| is_set)
            && let Some(reply) = replies.next()
        {
            self.mode_answered(named, mode, &reply);
        }
        sum_of(&self.label(named), algorithm, replies.next())
    }

    fn sum_line(&self, key: &Key, algorithm: Algorithm, offset: u64, length: Option<u64>) -> Result<Vec<u8>, Error> {
        let length = length.map_or(-1, |length| i64::try_from(length).unwrap_or(-1));
        Ok([format!("CKSM {algorithm} {offset} {length} ").as_bytes(), &self.path(key)?].concat())
    }

    /// The answers to `lines`, of which the last computes a checksum of `size` bytes.
    async fn ask_long(&self, lines: Vec<Vec<u8>>, size: u64) -> Result<Vec<Reply>, Error> {
        if size <= SHORT {
            return self.ask_all(lines).await;
        }
        let mut session = self.session().await?;
        // Many say every few seconds that they are at it; one that does not has as long as a slow disk takes.
        let limit = self.0.options.patience + Duration::from_secs(size / SLOW_SUM);
        let usual = std::mem::replace(&mut session.patience, limit);
        let replies = session.ask_all(&lines, &self.0.ahead).await?;
        session.patience = usual;
        self.keep(session);
        Ok(replies)
    }

    /// How many bytes the file `key` has, if it is one and the server says so.
    pub(super) async fn size(&self, key: &Key) -> Result<Option<u64>, Error> {
        Ok(size_of(&self.about("SIZE", key).await?))
    }

    /// Whether the server answers SIZE for directories, as it does for the root then.
    async fn sizes_dirs(&self) -> Result<bool, Error> {
        let ask = || async { Ok(self.size(&Key::ROOT).await?.is_some()) };
        self.0.sizes_dirs.get_or_try_init(ask).await.copied()
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
        self.look_at(key).await.map_err(|unseen| match unseen {
            Unseen::Said(error) => error,
            Unseen::Unsaid(..) => Error::NotFound { name: self.label(key) },
        })
    }

    /// The same, which tells what a server says from what it leaves open.
    pub(super) async fn look_at(&self, key: &Key) -> Result<Meta, Unseen> {
        let dir = Meta { kind: Kind::Dir, size: None, modified: None, mode: None, sparse: false, identity: None };
        if key.is_root() {
            return Ok(dir);
        }
        if self.has("MLST") {
            let reply = self.about("MLST", key).await?;
            match reply.code {
                250 => {
                    let said = || passing(&self.label(key), "the answer to MLST has no facts");
                    let (facts, name) = facts_of(&reply).ok_or_else(said)?;
                    self.same_name(key, &name)?;
                    let meta = meta_of(&facts);
                    // What is known of a link may be of itself or of what it leads to.
                    if meta.kind != Kind::Link {
                        return Ok(self.without_link(key, meta).await?);
                    }
                }
                500..=504 if !says_absent(&reply) => {}
                _ => return Err(self.absent_or(key, "MLST", reply)),
            }
        }
        if let Some(size) = self.size(key).await?
            && !(self.sizes_dirs().await? && self.about("CWD", key).await?.is_success())
        {
            let modified = if self.has("MDTM") { self.modified(key).await? } else { None };
            return Ok(Meta { kind: Kind::File, size: Some(size), modified, ..dir });
        }
        let reply = self.about("CWD", key).await?;
        if reply.is_success() { Ok(dir) } else { Err(self.absent_or(key, "CWD", reply)) }
    }

    /// What is known of the file `key`, which MLST tells as `meta`. ProFTPD calls a link what it leads to, and tells of the link what there is
    /// to tell: its mode, which is 777 of every link, and the length of its text as the size.
    async fn without_link(&self, key: &Key, meta: Meta) -> Result<Meta, Error> {
        if meta.kind != Kind::File || meta.mode != Some(0o777) || self.has("XDRAFTS") {
            return Ok(meta);
        }
        match self.size(key).await? {
            Some(size) if meta.size != Some(size) => {
                let modified = if self.has("MDTM") { self.modified(key).await? } else { None };
                Ok(Meta { size: Some(size), modified, mode: None, ..meta })
            }
            _ => Ok(meta),
        }
    }

    /// [`Self::look`], remembered for [`Self::recall`].
    pub(super) async fn look_and_remember(&self, key: &Key) -> Result<Meta, Error> {
        let found = self.look(key).await;
        let meta = match &found {
            Ok(meta) => Some(Some(*meta)),
            Err(Error::NotFound { .. }) => Some(None),
            Err(_) => None,
        };
        let mut looked = self.looked();
        looked.retain(|looked| looked.key != *key && looked.at.elapsed() < RECENT);
        if let Some(meta) = meta {
            if looked.len() >= MAX_LOOKED {
                looked.pop_front();
            }
            looked.push_back(Looked { key: key.clone(), meta, at: Instant::now() });
        }
        drop(looked);
        found
    }

    /// What is at `key`, by what was just seen, if it was: whoever looks at a file to open it spares a round trip. Each look
    /// serves once.
    pub(super) async fn recall(&self, key: &Key) -> Result<Meta, Error> {
        let recent = |looked: &Looked| looked.key == *key && looked.at.elapsed() < RECENT;
        let looked = {
            let mut all = self.looked();
            all.iter().position(recent).and_then(|at| all.remove(at))
        };
        match looked {
            Some(Looked { meta: Some(meta), .. }) => Ok(meta),
            Some(Looked { meta: None, .. }) => Err(Error::NotFound { name: self.label(key) }),
            None => self.look(key).await,
        }
    }

    /// Has `key` be looked at anew: something is done to it.
    pub(super) fn forget(&self, key: &Key) {
        self.looked().retain(|looked| looked.key != *key);
    }

    fn looked(&self) -> MutexGuard<'_, VecDeque<Looked>> {
        self.0.looked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the server does not tell of something: as a rule, it is not there.
    fn absent_or(&self, key: &Key, command: &'static str, reply: Reply) -> Unseen {
        if reply.code == 550 && !says_absent(&reply) && !super::error::says_otherwise(&reply) {
            return Unseen::Unsaid(command, reply);
        }
        Unseen::Said(refused(&self.label(key), "look at", command, &reply))
    }

    /// Sets times and modes of `key`, as far as the server does so.
    pub(super) async fn attribute(&self, key: &Key, attributes: Attributes) -> Result<(), Error> {
        let Attributes { mode, modified } = attributes;
        let set = (mode.map(Mode::asked), modified);
        let Some(refusal) = self.apply(key, key, set, None).await? else { return Ok(()) };
        // Many servers set the times of files alone.
        if self.look(key).await?.kind != Kind::Dir {
            return Err(refusal);
        }
        let mut noted = self.0.without_times.lock().unwrap_or_else(PoisonError::into_inner);
        noted.note(self.label(key));
        Ok(())
    }

    /// Of how many directories the server refused to set the times, and the names of the first of them.
    pub fn without_times(&self) -> (u64, Vec<String>) {
        self.0.without_times.lock().unwrap_or_else(PoisonError::into_inner).told()
    }

    /// The same for a file that has come and is to be called `named`: makes sure that it has `size` bytes, if that is asked for.
    pub(super) async fn finish(
        &self,
        key: &Key,
        named: &Key,
        (mode, modified): (Option<Mode>, Option<Time>),
        size: Option<u64>,
    ) -> Result<(), Error> {
        self.apply(key, named, (mode, modified), size).await?.map_or(Ok(()), Err)
    }

    /// The same; what is said of a server that refuses to set the time.
    async fn apply(
        &self,
        key: &Key,
        named: &Key,
        (mode, modified): (Option<Mode>, Option<Time>),
        size: Option<u64>,
    ) -> Result<Option<Error>, Error> {
        let size = size.filter(|_| self.has("SIZE"));
        let set = self.mode_line(key, named, mode)?;
        let mode = mode.filter(|_| set.is_some());
        // What its owner may not read has its time set by few servers: that comes after it.
        let (set, last) = if mode.is_some_and(Mode::is_readable) { (set, None) } else { (None, set) };
        let time = modified.map(|Time { seconds, .. }| Stamp { seconds, nanos: 0 });
        let mut lines: Vec<_> = set.into_iter().collect();
        if size.is_some() {
            lines.push(self.line("SIZE", key)?);
        }
        // Older servers take two arguments of MDTM for the same as MFMT; others find no such file.
        let verb = if self.has("MFMT") { "MFMT" } else { "MDTM" };
        if let Some(stamp) = &time {
            lines.push(self.line(&format!("{verb} {stamp}"), key)?);
        }
        let is_last = last.is_some();
        lines.extend(last);
        if lines.is_empty() {
            return Ok(None);
        }
        let mut replies: VecDeque<_> = self.ask_all(lines).await?.into();
        if is_last {
            replies.rotate_right(1);
        }
        let mut replies = replies.into_iter();
        let name = self.label(key);
        let silent = || passing(&name, "the server did not answer");
        if let Some(mode) = mode {
            self.mode_answered(named, mode, &replies.next().ok_or_else(silent)?);
        }
        if let Some(size) = size
            && let Some(there) = size_of(&replies.next().ok_or_else(silent)?)
            && there != size
        {
            return Err(passing(&name, format!("the server has {there} bytes of it, and {size} were sent")));
        }
        if time.is_some() {
            let reply = replies.next().ok_or_else(silent)?;
            if verb == "MFMT" && !reply.is_success() {
                return Ok(Some(refused(&name, "set the time of", verb, &reply)));
            }
        }
        Ok(None)
    }
}

/// The facts in an answer to MLST, and the name that they are of.
pub(super) fn facts_of(reply: &Reply) -> Option<(Facts, Vec<u8>)> {
    let inner = reply.lines.get(1..reply.lines.len().checked_sub(1)?)?;
    inner.iter().find_map(|line| Facts::parse(line.strip_prefix(b" ").unwrap_or(line)).ok())
}

/// The checksum in an answer to CKSM about what errors call `name`.
fn sum_of(name: &str, algorithm: Algorithm, reply: Option<Reply>) -> Result<Sum, Error> {
    let reply = reply.ok_or_else(|| passing(name, "the server did not answer"))?;
    if !reply.is_success() {
        return Err(refused(name, "have the checksum of", "CKSM", &reply));
    }
    let text = reply.text();
    let value = text.split_ascii_whitespace().next_back().unwrap_or_default();
    Sum::parse(algorithm, value).map_err(|error| passing(name, format!("the server answers CKSM with {error}")))
}

/// Whether a server has the words of a system for what may not be done.
fn says_permission(error: &Error) -> bool {
    let text = error.to_string().to_ascii_lowercase();
    ["permission denied", "operation not permitted", "read-only file system"].iter().any(|words| text.contains(words))
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
