//! Operations on files that take one or two commands.

use super::error::{passing, refused};
use super::known::Looked;
use super::listing::meta_of;
use super::modes::Mode;
use super::remote::Remote;
use phoebus_files::key::Key;
use phoebus_files::range::Extent;
use phoebus_files::store::{Attributes, Kind, Meta, Time};
use phoebus_files::sum::{Algorithm, Sum};
use phoebus_files::{Error, ErrorKind};
use phoebus_proto::gridftp::facts::Facts;
use phoebus_proto::gridftp::reply::Reply;
use phoebus_proto::gridftp::time::Stamp;
use std::collections::VecDeque;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Up to this size, a checksum takes no longer than other replies.
const SHORT: u64 = 1 << 20;

/// Slowest rate, in bytes per second, at which a silent server is expected to compute a checksum.
const SLOW_SUM: u64 = 10_000_000;

/// How long metadata that were just read stay valid.
pub(super) const RECENT: Duration = Duration::from_secs(2);

/// Most files of which metadata are kept: more than are in progress at once.
const MAX_LOOKED: usize = 128;

/// Why metadata are missing.
#[derive(Debug)]
pub(super) enum Unseen {
    /// The server gave a reason, or could not be asked.
    Said(Error),
    /// The server refused the command without a recognizable reason. Usually the name does not exist.
    Unsaid(&'static str, Reply),
}

impl From<Error> for Unseen {
    fn from(error: Error) -> Self {
        Self::Said(error)
    }
}

impl Remote {
    /// The command line `command key`.
    pub(super) fn line(&self, command: &str, key: &Key) -> Result<Vec<u8>, Error> {
        Ok([command.as_bytes(), b" ", &self.path(key)?].concat())
    }

    /// Sends a query about `key`.
    pub(super) async fn about(&self, command: &str, key: &Key) -> Result<Reply, Error> {
        self.ask(self.line(command, key)?).await
    }

    /// Sends a command that changes `key`.
    pub(super) async fn order(&self, command: &str, key: &Key, act: &'static str) -> Result<(), Error> {
        self.forget(key);
        let reply = self.about(command, key).await?;
        let verb = super::lines::verb(command.as_bytes());
        if reply.is_success() { Ok(()) } else { Err(refused(&self.label(key), act, &verb, &reply)) }
    }

    /// Makes the error of a refused change. Many servers have one reply for all reasons.
    pub(super) async fn why(&self, key: &Key, error: Error, file: bool) -> Error {
        if !matches!(error.kind(), ErrorKind::Denied | ErrorKind::Request) {
            return error;
        }
        match self.look_at_link(key).await {
            Err(absent) if absent.kind() == ErrorKind::NotFound => absent,
            // `key` may be a link to a directory, which must not be removed.
            Ok(meta) if file && meta.kind == Kind::Dir && !says_permission(&error) => {
                Error::Kind { name: self.label(key), is: meta.kind.described(), expected: "a file" }
            }
            _ => error,
        }
    }

    /// Asks the server for the checksum of `key`, or of a part.
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

    /// Sets the permissions `mode` and then asks for the checksum of all `size` bytes of `key`, the draft of `named`: a
    /// long checksum takes minutes. `is_ours`: this client has created the file.
    pub(super) async fn checksum_with(
        &self,
        key: &Key,
        named: &Key,
        (mode, is_ours): (Option<Mode>, bool),
        algorithm: Algorithm,
        size: u64,
    ) -> Result<Sum, Error> {
        let set = self.mode_line(key, named, mode)?;
        let is_set = set.is_some();
        let lines = set.into_iter().chain([self.sum_line(key, algorithm, 0, None)?]).collect();
        let mut replies = self.ask_long(lines, size).await?.into_iter();
        if let Some(mode) = mode.filter(|_| is_set)
            && let Some(reply) = replies.next()
            && self.mode_answered(key, named, mode, reply, is_ours).await?.is_some()
        {
            self.note_without_mode(named, mode);
        }
        sum_of(&self.label(named), algorithm, replies.next())
    }

    /// The command that asks for the checksum of `key`, or of `length` bytes of it from `offset`.
    pub(super) fn sum_line(
        &self,
        key: &Key,
        algorithm: Algorithm,
        offset: u64,
        length: Option<u64>,
    ) -> Result<Vec<u8>, Error> {
        let length = length.map_or(-1, |length| i64::try_from(length).unwrap_or(-1));
        Ok([format!("CKSM {algorithm} {offset} {length} ").as_bytes(), &self.path(key)?].concat())
    }

    /// The checksum in the `reply` to such a command.
    pub(super) fn sum_in(&self, key: &Key, algorithm: Algorithm, reply: Reply) -> Result<Sum, Error> {
        sum_of(&self.label(key), algorithm, Some(reply))
    }

    /// Sends `lines`, the last of which computes a checksum of `size` bytes. Returns the replies.
    async fn ask_long(&self, lines: Vec<Vec<u8>>, size: u64) -> Result<Vec<Reply>, Error> {
        if size <= SHORT {
            return self.ask_all(lines).await;
        }
        let mut session = self.session().await?;
        // Many servers send preliminary replies meanwhile. The others get the time that a slow disk needs.
        let limit = self.0.options.reply_timeout + Duration::from_secs(size / SLOW_SUM);
        let usual = std::mem::replace(&mut session.reply_timeout, limit);
        let replies = session.ask_all(&lines, &self.0.ahead).await?;
        session.reply_timeout = usual;
        self.keep(session);
        Ok(replies)
    }

    /// The size of `key`, if it is a file and the server tells it.
    pub(super) async fn size(&self, key: &Key) -> Result<Option<u64>, Error> {
        Ok(size_of(&self.about("SIZE", key).await?))
    }

    /// Whether the server answers SIZE for directories, tested with the root.
    async fn sizes_dirs(&self) -> Result<bool, Error> {
        let ask = || async { Ok(self.size(&Key::ROOT).await?.is_some()) };
        self.0.sizes_dirs.get_or_try_init(ask).await.copied()
    }

    async fn modified(&self, key: &Key) -> Result<Option<Time>, Error> {
        Ok(stamp_of(&self.about("MDTM", key).await?))
    }

    /// The modification times of `keys`, with pipelined commands.
    pub(super) async fn all_modified(&self, keys: &[Key]) -> Result<Vec<Option<Time>>, Error> {
        let mut times = Vec::new();
        if !self.has("MDTM") {
            return Ok(vec![None; keys.len()]);
        }
        let mut session = self.session().await?;
        // Most commands in flight, which the receive buffer of any server holds.
        for some in keys.chunks(32) {
            for key in some {
                session.send(&[b"MDTM ", &self.path(key)?[..]].concat()).await?;
            }
            for _ in some {
                times.push(stamp_of(&session.last(self.0.options.reply_timeout).await?));
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

    /// The same, but distinguishes errors from refusals without a reason.
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
                    // The facts of a link may be its own or those of its target.
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

    /// Corrects the metadata of the file `key`. ProFTPD reports a link with the type of its target, but with the link's
    /// own mode (777) and size (the length of its text).
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

    /// [`Self::look`], kept for [`Self::recall`].
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

    /// The metadata of `key`, if they were read just before. Saves a round trip when a file is opened after a look.
    /// Each look counts once.
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

    /// Discards kept metadata of `key`, which is about to change.
    pub(super) fn forget(&self, key: &Key) {
        self.looked().retain(|looked| looked.key != *key);
    }

    fn looked(&self) -> MutexGuard<'_, VecDeque<Looked>> {
        self.0.looked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the error of a refused query. Usually the name does not exist.
    fn absent_or(&self, key: &Key, command: &'static str, reply: Reply) -> Unseen {
        if reply.code == 550 && !says_absent(&reply) && !super::error::says_otherwise(&reply) {
            return Unseen::Unsaid(command, reply);
        }
        Unseen::Said(refused(&self.label(key), "look at", command, &reply))
    }

    /// Sets times and modes of `key`, as far as the server supports it.
    pub(super) async fn attribute(&self, key: &Key, attributes: Attributes) -> Result<(), Error> {
        let Attributes { mode, modified } = attributes;
        let set = (mode.map(Mode::asked), modified);
        let (mode_refused, time_refused) = self.apply(key, key, set, None, false).await?;
        if mode_refused.is_none() && time_refused.is_none() {
            return Ok(());
        }
        // Many servers set times of files only, and a user with write permission need not own the directory.
        if self.look(key).await?.kind != Kind::Dir {
            return mode_refused.or(time_refused).map_or(Ok(()), Err);
        }
        if let Some(mode) = set.0.filter(|_| mode_refused.is_some()) {
            self.note_without_mode(key, mode);
        }
        if time_refused.is_some() {
            let mut noted = self.0.without_times.lock().unwrap_or_else(PoisonError::into_inner);
            noted.note(self.label(key));
        }
        Ok(())
    }

    /// The number of directories whose times the server refused to set, and the names of the first ones.
    pub fn without_times(&self) -> (u64, Vec<String>) {
        self.0.without_times.lock().unwrap_or_else(PoisonError::into_inner).told()
    }

    /// The same for an uploaded draft of `named`. Also verifies its `size`, if given. `is_ours`: this client has
    /// created the file.
    pub(super) async fn finish(
        &self,
        key: &Key,
        named: &Key,
        set: (Option<Mode>, Option<Time>),
        size: Option<u64>,
        is_ours: bool,
    ) -> Result<(), Error> {
        let (mode_refused, time_refused) = self.apply(key, named, set, size, is_ours).await?;
        if let Some(mode) = set.0.filter(|_| mode_refused.is_some()) {
            self.note_without_mode(named, mode);
        }
        time_refused.map_or(Ok(()), Err)
    }

    /// The same. Returns why the mode was refused for this name alone, and why the time was.
    async fn apply(
        &self,
        key: &Key,
        named: &Key,
        (mode, modified): (Option<Mode>, Option<Time>),
        size: Option<u64>,
        is_ours: bool,
    ) -> Result<(Option<Error>, Option<Error>), Error> {
        let set = self.mode_line(key, named, mode)?;
        let mode = mode.filter(|_| set.is_some());
        // Few servers set the time of a file that its owner may not read, so such a mode follows after the time.
        let (set, last) = if mode.is_some_and(Mode::is_readable) { (set, None) } else { (None, set) };
        let time = modified.map(|Time { seconds, .. }| Stamp { seconds, nanos: 0 });
        let mut lines: Vec<_> = set.into_iter().collect();
        // Servers without FEAT may have SIZE as well.
        if size.is_some() {
            lines.push(self.line("SIZE", key)?);
        }
        // Older servers accept MDTM with two arguments instead of MFMT. Others find no such file.
        let verb = if self.has("MFMT") { "MFMT" } else { "MDTM" };
        if let Some(stamp) = &time {
            lines.push(self.line(&format!("{verb} {stamp}"), key)?);
        }
        let is_last = last.is_some();
        lines.extend(last);
        if lines.is_empty() {
            return Ok((None, None));
        }
        let mut replies: VecDeque<_> = self.ask_all(lines).await?.into();
        if is_last {
            replies.rotate_right(1);
        }
        let mut replies = replies.into_iter();
        let name = self.label(key);
        let silent = || passing(&name, "the server did not answer");
        let mode_refused = match mode {
            Some(mode) => {
                let reply = replies.next().ok_or_else(silent)?;
                self.mode_answered(key, named, mode, reply, is_ours).await?
            }
            None => None,
        };
        if let Some(size) = size
            && let Some(there) = size_of(&replies.next().ok_or_else(silent)?)
            && there != size
        {
            return Err(passing(&name, format!("the server has {there} bytes of it, and {size} were sent")));
        }
        if time.is_some() {
            let reply = replies.next().ok_or_else(silent)?;
            if verb == "MFMT" && !reply.is_success() {
                return Ok((mode_refused, Some(refused(&name, "set the time of", verb, &reply))));
            }
        }
        Ok((mode_refused, None))
    }
}

/// Parses a reply to MLST: the facts, and the name that they describe.
pub(super) fn facts_of(reply: &Reply) -> Option<(Facts, Vec<u8>)> {
    let inner = reply.lines.get(1..reply.lines.len().checked_sub(1)?)?;
    inner.iter().find_map(|line| Facts::parse(line.strip_prefix(b" ").unwrap_or(line)).ok())
}

/// Parses a reply to CKSM. Errors call the file `name`.
fn sum_of(name: &str, algorithm: Algorithm, reply: Option<Reply>) -> Result<Sum, Error> {
    let reply = reply.ok_or_else(|| passing(name, "the server did not answer"))?;
    if !reply.is_success() {
        return Err(refused(name, "have the checksum of", "CKSM", &reply));
    }
    let text = reply.text();
    let value = text.split_ascii_whitespace().next_back().unwrap_or_default();
    Sum::parse(algorithm, value).map_err(|error| passing(name, format!("the server answers CKSM with {error}")))
}

/// Whether a reply has an operating system's words for missing permission.
fn says_permission(error: &Error) -> bool {
    let text = error.to_string().to_ascii_lowercase();
    ["permission denied", "operation not permitted", "read-only file system"].iter().any(|words| text.contains(words))
}

fn says_absent(reply: &Reply) -> bool {
    super::error::kind(reply) == ErrorKind::NotFound
}

/// Parses a reply to SIZE.
fn size_of(reply: &Reply) -> Option<u64> {
    Some(reply).filter(|reply| reply.code == 213).and_then(|reply| reply.text().trim().parse().ok())
}

fn stamp_of(reply: &Reply) -> Option<Time> {
    let stamp = Some(reply).filter(|reply| reply.code == 213).and_then(|reply| Stamp::parse(reply.text().trim()))?;
    Some(Time { seconds: stamp.seconds, nanos: stamp.nanos })
}
