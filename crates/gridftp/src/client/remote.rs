//! A server as a store.

use super::data::DataPlan;
use super::draft::RemoteDraft;
use super::error::{passing, refused, senseless};
use super::listing::{RemoteListing, meta_of};
use super::login::login;
use super::object::RemoteObject;
use super::options::Options;
use super::session::Session;
use phoebus_files::key::Key;
use phoebus_files::range::Extent;
use phoebus_files::store::{Attributes, Begun, Draft, Fallible, Kind, Listing, Meta, Object, Spec, Store, Time};
use phoebus_files::sum::{Algorithm, Sum};
use phoebus_files::{Error, Sort};
use phoebus_proto::gridftp::facts::Facts;
use phoebus_proto::gridftp::features::Features;
use phoebus_proto::gridftp::line::is_line;
use phoebus_proto::gridftp::reply::Reply;
use phoebus_proto::gridftp::time::Stamp;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How many control connections are kept for later.
const MAX_IDLE: usize = 16;

/// After how long a connection that was kept is asked whether it still stands.
const FRESH: Duration = Duration::from_secs(20);

/// How fast a server computes a checksum at least, in bytes a second, if it says nothing meanwhile.
const SLOW_SUM: u64 = 10_000_000;

/// A server. Clones are the same store.
#[derive(Clone)]
pub struct Remote(Arc<Inner>);

struct Inner {
    options: Options,
    name: Arc<str>,
    features: Arc<Features>,
    algorithms: Vec<Algorithm>,
    /// Where the login leads.
    home: Key,
    idle: Mutex<Vec<Session>>,
    /// Whether the server refuses to set modes.
    modeless: AtomicBool,
    /// Whether it refuses to go on with what it has of a file.
    restartless: AtomicBool,
    /// Servers from which nothing comes directly.
    not_from: Mutex<Vec<Arc<str>>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        let idle = std::mem::take(self.idle.get_mut().unwrap_or_else(PoisonError::into_inner));
        idle.into_iter().for_each(Session::quit);
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Remote").field(&self.0.name).finish()
    }
}

impl Remote {
    /// Connects and logs in, so that what the server can do is known.
    ///
    /// # Errors
    /// It cannot be reached, does not prove who it is, or lets nobody in.
    pub async fn connect(options: Options) -> Result<Self, Error> {
        let name: Arc<str> = options.name.as_str().into();
        let mut session = login(&options, &name).await?;
        let home = home(&mut session).await?;
        let features = session.features.clone();
        let known = features.checksums();
        let algorithms = Algorithm::ALL.into_iter().filter(|a| known.iter().any(|k| k.parse() == Ok(*a))).collect();
        let idle = Mutex::new(vec![session]);
        let (modeless, restartless, not_from) = Default::default();
        Ok(Self(Arc::new(Inner { options, name, features, algorithms, home, idle, modeless, restartless, not_from })))
    }

    /// Where the login leads: what paths begin with that do not begin at the root.
    pub fn home(&self) -> &Key {
        &self.0.home
    }

    pub(super) fn options(&self) -> &Options {
        &self.0.options
    }

    /// Over how many connections extended blocks go, if files go so.
    pub(super) fn streams(&self) -> Option<u32> {
        self.0.options.streams
    }

    pub(super) fn plan(&self) -> DataPlan<'_> {
        DataPlan::of(&self.0.options)
    }

    pub(super) fn has(&self, feature: &str) -> bool {
        self.0.features.has(feature)
    }

    /// Notes that the server does not go on with what it has of a file.
    pub(super) fn begin_afresh(&self) {
        self.0.restartless.store(true, Ordering::Relaxed);
    }

    /// Notes that nothing comes directly from `other`.
    pub(super) fn not_from(&self, other: &Self) {
        self.0.not_from.lock().unwrap_or_else(PoisonError::into_inner).push(other.0.name.clone());
    }

    /// Whether nothing does.
    pub(super) fn is_not_from(&self, other: &Self) -> bool {
        self.0.not_from.lock().unwrap_or_else(PoisonError::into_inner).contains(&other.0.name)
    }

    /// Whether a file can be gone on with.
    pub(super) fn restarts(&self) -> bool {
        self.has("REST") && self.has("SIZE") && !self.0.restartless.load(Ordering::Relaxed)
    }

    /// As errors call `key`.
    pub(super) fn label(&self, key: &Key) -> String {
        format!("{}/{key}", self.0.name)
    }

    /// As the server knows `key`.
    pub(super) fn path(&self, key: &Key) -> Result<Vec<u8>, Error> {
        let path = [b"/", key.as_bytes()].concat();
        // What follows a line end would be taken for a command.
        match is_line(&path) {
            true => Ok(path),
            false => Err(senseless(&self.label(key), "a name with a line end in it cannot be asked for")),
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Session>> {
        self.0.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A control connection for something: one that was kept, or a new one.
    pub(super) async fn session(&self) -> Result<Session, Error> {
        loop {
            let kept = self.idle().pop();
            let Some(mut session) = kept else { return login(&self.0.options, &self.0.name).await };
            if !session.is_quiet() {
                continue;
            }
            if session.used.elapsed() < FRESH || session.ask("NOOP").await.is_ok() {
                return Ok(session);
            }
        }
    }

    /// Keeps a control connection for whatever comes next.
    pub(super) fn keep(&self, session: Session) {
        let mut idle = self.idle();
        if session.in_step && idle.len() < MAX_IDLE {
            return idle.push(session);
        }
        drop(idle);
        session.quit();
    }

    /// Asks something about `key`.
    async fn about(&self, command: &str, key: &Key) -> Result<Reply, Error> {
        let line = [command.as_bytes(), b" ", &self.path(key)?].concat();
        let mut session = self.session().await?;
        let reply = session.ask(line).await?;
        self.keep(session);
        Ok(reply)
    }

    /// Has something done to `key`.
    async fn order(&self, command: &str, key: &Key, act: &'static str) -> Result<(), Error> {
        let reply = self.about(command, key).await?;
        let verb = super::session::verb(command.as_bytes());
        if reply.is_success() { Ok(()) } else { Err(refused(&self.label(key), act, &verb, &reply)) }
    }

    /// Why something was not done to `key`: many servers have one answer to all that they do not do.
    async fn why(&self, key: &Key, error: Error, file: bool) -> Error {
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
        let mut session = self.session().await?;
        session.send(&line).await?;
        // Many say every few seconds that they are at it; one that does not has as long as a slow disk takes.
        let limit = self.0.options.patience + Duration::from_secs(size / SLOW_SUM);
        let reply = session.last(limit).await?;
        self.keep(session);
        if !reply.is_success() {
            return Err(refused(name, "have the checksum of", "CKSM", &reply));
        }
        let text = reply.text();
        let value = text.split_ascii_whitespace().next_back().unwrap_or_default();
        Sum::parse(algorithm, value).map_err(|error| passing(name, format!("the server answers CKSM with {error}")))
    }

    /// How many bytes the file `key` has, if it is one and the server says so.
    pub(super) async fn size(&self, key: &Key) -> Result<Option<u64>, Error> {
        let reply = self.about("SIZE", key).await?;
        Ok(Some(reply).filter(|reply| reply.code == 213).and_then(|reply| reply.text().trim().parse().ok()))
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

    async fn look(&self, key: &Key) -> Result<Meta, Error> {
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
        if let Some(mode) = attributes.mode
            && !self.0.modeless.load(Ordering::Relaxed)
        {
            let reply = self.about(&format!("SITE CHMOD {:03o}", mode & 0o777), key).await?;
            // Many servers have no such command, or let nobody use it.
            if !reply.is_success() {
                self.0.modeless.store(true, Ordering::Relaxed);
            }
        }
        let Some(Time { seconds, .. }) = attributes.modified else { return Ok(()) };
        let stamp = Stamp { seconds, nanos: 0 };
        if self.has("MFMT") {
            return self.order(&format!("MFMT {stamp}"), key, "set the time of").await;
        }
        // Older servers take two arguments of MDTM for the same; others find no such file.
        self.about(&format!("MDTM {stamp}"), key).await.map(drop)
    }

    /// Gives what has the name `from` the name `to`, in place of what has it.
    pub(super) async fn move_to(&self, from: &Key, to: &Key) -> Result<(), Error> {
        let (before, after) = (self.path(from)?, self.path(to)?);
        let mut session = self.session().await?;
        let label = self.label(to);
        let reply = session.ask([b"RNFR ", &before[..]].concat()).await?;
        if reply.code != 350 {
            self.keep(session);
            let error = refused(&self.label(from), "rename", "RNFR", &reply);
            return Err(self.why(from, error, false).await);
        }
        let reply = session.ask([b"RNTO ", &after[..]].concat()).await?;
        self.keep(session);
        if reply.is_success() { Ok(()) } else { Err(refused(&label, "give a file the name", "RNTO", &reply)) }
    }
}

impl Store for Remote {
    fn name(&self) -> String {
        self.0.name.to_string()
    }

    fn is_far(&self) -> bool {
        true
    }

    fn algorithms(&self) -> &[Algorithm] {
        &self.0.algorithms
    }

    fn sets_times(&self) -> bool {
        self.has("MFMT")
    }

    fn stat<'a>(&'a self, key: &'a Key) -> Fallible<'a, Meta> {
        Box::pin(self.look(key))
    }

    fn list<'a>(&'a self, key: &'a Key) -> Fallible<'a, Box<dyn Listing>> {
        Box::pin(async move { Ok(Box::new(RemoteListing::begin(self.clone(), key.clone()).await?) as _) })
    }

    fn open<'a>(&'a self, key: &'a Key) -> Fallible<'a, Arc<dyn Object>> {
        Box::pin(async move {
            let meta = self.look(key).await?;
            if !matches!(meta.kind, Kind::File | Kind::Device) {
                return Err(Error::Kind { name: self.label(key), is: meta.kind.described(), expected: "a file" });
            }
            if meta.size.is_none() && meta.kind == Kind::File {
                let what = "reading a file of which the server does not tell the size";
                return Err(Error::Unsupported { name: self.label(key), what });
            }
            Ok(Arc::new(RemoteObject { remote: self.clone(), key: key.clone(), meta }) as _)
        })
    }

    fn create<'a>(&'a self, key: &'a Key, spec: Spec) -> Fallible<'a, Begun> {
        Box::pin(async move { Ok(Begun::Draft(Arc::new(RemoteDraft::begin(self.clone(), key.clone(), spec).await?))) })
    }

    fn edit<'a>(&'a self, key: &'a Key) -> Fallible<'a, Arc<dyn Draft>> {
        let name = self.label(key);
        Box::pin(async { Err(Error::Unsupported { name, what: "changing a server's file where it stands" }) })
    }

    fn make_dir<'a>(&'a self, key: &'a Key) -> Fallible<'a, ()> {
        Box::pin(async move {
            match self.order("MKD", key, "make the directory").await {
                Err(error) if self.look(key).await.is_ok() => {
                    drop(error);
                    Err(Error::Exists { name: self.label(key) })
                }
                made => made,
            }
        })
    }

    fn remove<'a>(&'a self, key: &'a Key) -> Fallible<'a, ()> {
        Box::pin(async move {
            match self.order("DELE", key, "remove").await {
                Err(error) => Err(self.why(key, error, true).await),
                removed => removed,
            }
        })
    }

    fn remove_dir<'a>(&'a self, key: &'a Key) -> Fallible<'a, ()> {
        Box::pin(async move {
            match self.order("RMD", key, "remove the directory").await {
                Err(error) => Err(self.why(key, error, false).await),
                removed => removed,
            }
        })
    }

    fn rename<'a>(&'a self, from: &'a Key, to: &'a Key, replace: bool) -> Fallible<'a, ()> {
        Box::pin(async move {
            if !replace {
                match self.look(to).await {
                    Ok(_) => return Err(Error::Exists { name: self.label(to) }),
                    Err(error) if error.sort() == Sort::NotFound => {}
                    Err(error) => return Err(error),
                }
            }
            self.move_to(from, to).await
        })
    }

    fn set<'a>(&'a self, key: &'a Key, attributes: Attributes) -> Fallible<'a, ()> {
        Box::pin(self.attribute(key, attributes))
    }

    /// What a server has said to be done is done: there is nothing to ask it for.
    fn settle(&self) -> Fallible<'_, ()> {
        Box::pin(async { Ok(()) })
    }
}

/// Where a login leads, as PWD says; the root, if it says nothing that makes sense.
async fn home(session: &mut Session) -> Result<Key, Error> {
    let reply = session.ask("PWD").await?;
    let line = reply.lines.first().map(Vec::as_slice).unwrap_or_default();
    let quoted = || {
        let from = line.iter().position(|&b| b == b'"')? + 1;
        // A quote in the name is doubled.
        let (mut path, mut rest) = (Vec::new(), line[from..].iter().copied().peekable());
        while let Some(byte) = rest.next() {
            if byte == b'"' && rest.next_if_eq(&b'"').is_none() {
                return Key::parse(&path).ok();
            }
            path.push(byte);
        }
        None
    };
    Ok(if reply.code == 257 { quoted().unwrap_or_default() } else { Key::ROOT })
}

/// The facts in an answer to MLST.
fn facts_of(reply: &Reply) -> Option<Facts> {
    let inner = reply.lines.get(1..reply.lines.len().checked_sub(1)?)?;
    inner.iter().find_map(|line| Facts::parse(line.strip_prefix(b" ").unwrap_or(line)).ok()).map(|(facts, _)| facts)
}

fn says_absent(reply: &Reply) -> bool {
    super::error::sort(reply) == Sort::NotFound
}

fn stamp_of(reply: &Reply) -> Option<Time> {
    let stamp = Some(reply).filter(|reply| reply.code == 213).and_then(|reply| Stamp::parse(reply.text().trim()))?;
    Some(Time { seconds: stamp.seconds, nanos: stamp.nanos })
}
