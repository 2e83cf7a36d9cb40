//! A connection to a server after login, and what is known of the server. `as_store` implements the store.

use super::ahead::Ahead;
use super::carrier::{Carriers, Segment};
use super::connection_limit::ConnectionLimit;
use super::data::DataPlan;
use super::error::senseless;
use super::inside::WINDOW;
use super::known::{Lists, Looked, Names, New, PartialDirs, Privacy, RESUME_FROM, Refused, SourceModes, Unsure};
use super::login::login;
use super::options::Options;
use super::pipe::Pipe;
use super::pipelining::Pipelining;
use super::session::Session;
use super::stack::NetStack;
use crate::data::{Losses, ObjectMemory, ObjectTotals};
use phoebus_files::key::Key;
use phoebus_files::sum::Algorithm;
use phoebus_files::{Error, ErrorKind};
use phoebus_net::host::Host;
use phoebus_proto::gridftp::features::Features;
use phoebus_proto::gridftp::line::is_line;
use phoebus_proto::hex::hex;
use ring::rand::SecureRandom;
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::OnceCell;

/// Most reasons that are kept for the report.
const MOST_REASONS: usize = 8;

/// A server. Clones share its state.
#[derive(Clone)]
pub struct Remote(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) options: Options,
    pub(super) name: Arc<str>,
    pub(super) features: Arc<Features>,
    pub(super) algorithms: Vec<Algorithm>,
    /// Directory of the login.
    pub(super) home: Arc<Key>,
    /// Metadata that were just read, for the operation that follows.
    pub(super) looked: Mutex<VecDeque<Looked>>,
    pub(super) idle: Mutex<Vec<Session>>,
    /// Limits of connections in use. Reading and writing have their own: a copy within a server needs both, and would
    /// deadlock otherwise.
    pub(super) reading: ConnectionLimit,
    pub(super) writing: ConnectionLimit,
    /// Connections for short commands.
    pub(super) pipe: tokio::sync::Mutex<Option<Pipe>>,
    pub(super) pipelining: Pipelining,
    pub(super) ahead: Ahead,
    pub(super) rtt: Duration,
    pub(super) windows: (u64, u64),
    pub(super) losses: Arc<Losses>,
    /// Memory for files that come as objects, if they may.
    object_memory: Option<ObjectMemory>,
    pub(super) carriers: Carriers,
    /// Whether TLS between pinned keys protects data.
    protected: bool,
    pub(super) used: AtomicU32,
    /// Most connections of extended blocks that the server allows, as far as known.
    limit: AtomicU32,
    /// Whether the server refuses to set modes.
    pub(super) modeless: AtomicBool,
    /// How files can be made private.
    pub(super) privacy: Privacy,
    /// Files and directories whose modes could not be set: number and first names.
    pub(super) without_modes: Mutex<Refused>,
    /// Directories whose times could not be set.
    pub(super) without_times: Mutex<Refused>,
    /// Permissions known from listings.
    pub(super) source_modes: SourceModes,
    /// What is known about names.
    pub(super) names: Names,
    /// Whether the server answers SIZE for directories, once known.
    pub(super) sizes_dirs: OnceCell<bool>,
    /// The greeting.
    pub(super) greeting: String,
    /// The server's reply to STAT, once read.
    pub(super) status: OnceCell<String>,
    /// How it lists without MLSD, as far as known.
    pub(super) lists: Mutex<Option<Lists>>,
    /// Directories of drafts.
    pub(super) partial_dirs: PartialDirs,
    /// New files that are written in place.
    pub(super) new_in_place: New,
    /// Random text that no other run has.
    pub(super) run: String,
    /// Renames that may or may not have happened.
    pub(super) unsure: Mutex<Vec<Unsure>>,
    /// Whether it refuses to resume uploads.
    pub(super) restartless: AtomicBool,
    /// Whether it refuses to send from the middle of a file.
    pub(super) whole_alone: AtomicBool,
    /// Servers that do not send to this one directly.
    pub(super) not_from: Mutex<Vec<Arc<str>>>,
    /// Why files of other servers went through this end.
    pub(super) by_way: Mutex<Vec<String>>,
    /// Why private files were public until they were complete.
    pub(super) public: Mutex<Vec<String>>,
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
    /// Connects, logs in, and asks for the server's features.
    ///
    /// # Errors
    /// The server is unreachable, fails to authenticate, or refuses the login.
    pub async fn connect(options: Options) -> Result<Self, Error> {
        let name: Arc<str> = options.name.as_str().into();
        let ahead = Ahead::new();
        let session = login(&options, &name, &ahead).await?;
        let (home, rtt) = (session.home.clone(), session.rtt);
        let (features, greeting) = (session.features.clone(), session.greeting.clone());
        let known = features.checksums();
        let algorithms = Algorithm::ALL.into_iter().filter(|a| known.iter().any(|k| k.parse() == Ok(*a))).collect();
        let protected = session.stack.as_ref().is_some_and(|told| told.pinned.is_some());
        let auto = options.auto.as_ref().map(|auto| &auto.stack);
        let object_memory = auto.or(options.stack.as_ref()).and_then(NetStack::object_memory);
        let idle = Mutex::new(vec![session]);
        let (modeless, privacy, without_modes, restartless, whole_alone, not_from, by_way) = Default::default();
        let (most, host) = (options.sessions.max(1), Host::read());
        Ok(Self(Arc::new(Inner {
            options,
            name,
            features,
            algorithms,
            home,
            looked: Mutex::default(),
            idle,
            reading: ConnectionLimit::new(most),
            writing: ConnectionLimit::new(most),
            pipe: tokio::sync::Mutex::new(None),
            pipelining: Pipelining::default(),
            ahead,
            rtt,
            windows: (host.tcp_rmem[2], host.tcp_wmem[2]),
            losses: Arc::default(),
            object_memory,
            carriers: Carriers::default(),
            protected,
            used: AtomicU32::new(1),
            limit: AtomicU32::new(u32::MAX),
            modeless,
            privacy,
            without_modes,
            without_times: Mutex::default(),
            source_modes: SourceModes::default(),
            names: Names::default(),
            sizes_dirs: OnceCell::new(),
            greeting,
            status: OnceCell::new(),
            lists: Mutex::default(),
            partial_dirs: PartialDirs::default(),
            new_in_place: New::default(),
            run: random_text(),
            unsure: Mutex::default(),
            restartless,
            whole_alone,
            not_from,
            by_way,
            public: Mutex::default(),
        })))
    }

    /// The round trip of the server's replies, with a margin.
    pub fn rtt(&self) -> Duration {
        self.0.rtt
    }

    /// Whether data goes under TLS between pinned keys.
    pub fn is_under_tls(&self) -> bool {
        self.0.protected
    }

    /// Why data goes inside SSH, as the end of a sentence. Empty if the user asked for it.
    pub fn why_inside(&self) -> Option<&str> {
        self.0.options.inside()
    }

    /// The directory of the login, at which relative paths begin.
    pub fn home(&self) -> &Key {
        &self.0.home
    }

    pub(super) fn options(&self) -> &Options {
        &self.0.options
    }

    /// Connections of extended blocks, if all files use them.
    pub(super) fn streams(&self) -> Option<u32> {
        self.0.options.streams.or((self.0.options.striped || self.has_objects()).then_some(1))
    }

    /// Whether all files go as objects.
    pub(super) fn has_objects(&self) -> bool {
        self.0.options.stack.as_ref().is_some_and(NetStack::has_objects)
    }

    /// Connections of extended blocks for an upload, if it uses them.
    pub(super) fn streams_to_write(&self, size: Option<u64>) -> Option<u32> {
        let limit = self.0.limit.load(Ordering::Relaxed);
        let chosen = || self.chosen(size?, self.0.windows.1).map(|n| n.min(limit)).filter(|_| self.has("PARALLEL"));
        // Without a partial file to look at, only markers show what the server has.
        let marked = || (size? >= RESUME_FROM && self.has("XDRAFTS")).then_some(1);
        // Objects are extended blocks.
        let as_object = || self.writes_object(size).then_some(1);
        self.streams().or_else(as_object).or_else(chosen).or_else(marked)
    }

    /// Whether this end chooses between a stream and extended blocks.
    pub(super) fn may_choose(&self) -> bool {
        self.choice().is_some() && self.streams().is_none() && self.has("PARALLEL") && !self.has("XDRAFTS")
    }

    /// Records that the server allowed `streams` connections for a file that was to use more.
    pub(super) fn note_stream_limit(&self, streams: u32, meant: Option<u32>) {
        if meant.is_some_and(|meant| streams < meant) {
            self.0.limit.fetch_min(streams, Ordering::Relaxed);
        }
    }

    /// Parts into which a download of so many bytes is divided, one connection each.
    pub(super) fn parts_to_read(&self, bytes: u64) -> Option<u32> {
        self.chosen(bytes, self.0.windows.0).filter(|_| self.streams().is_none() && self.has("ERET"))
    }

    fn chosen(&self, size: u64, window: u64) -> Option<u32> {
        Some(self.choice()?(&self.segment(size, window))).filter(|n| *n > 1)
    }

    /// What is known of the path of a file of this size.
    pub(super) fn segment(&self, size: u64, window: u64) -> Segment {
        let window = if self.why_inside().is_some() { window.min(WINDOW) } else { window };
        Segment { size, rtt: self.0.rtt, window, loss: self.0.losses.rate(), rate: self.0.losses.objects().path_rate }
    }

    /// The chooser of streams, which assumes TCP.
    fn choice(&self) -> Option<fn(&Segment) -> u32> {
        let inside = self.why_inside().is_some();
        let tcp = inside || self.0.options.stack.as_ref().is_none_or(NetStack::is_tcp);
        self.0.options.choose.filter(|_| tcp)
    }

    /// Records the connections of a file.
    pub(super) fn used(&self, streams: u32) {
        self.0.used.fetch_max(streams, Ordering::Relaxed);
    }

    /// The most connections that a file used.
    pub fn most_streams(&self) -> u32 {
        self.0.used.load(Ordering::Relaxed)
    }

    /// Bytes that this machine's kernel allows in flight on one connection: reading, writing.
    pub fn windows(&self) -> (u64, u64) {
        let (read, write) = self.0.windows;
        if self.why_inside().is_some() { (read.min(WINDOW), write.min(WINDOW)) } else { (read, write) }
    }

    /// What transfers as objects have cost.
    pub fn objects(&self) -> ObjectTotals {
        self.0.losses.objects()
    }

    pub(super) fn plan(&self) -> DataPlan<'_> {
        DataPlan::of(&self.0.options).counting(self.0.losses.clone()).within(self.0.object_memory.clone())
    }

    pub(super) fn has(&self, feature: &str) -> bool {
        self.0.features.has(feature)
    }

    /// Records that `other` does not send directly, and why, so that later files do not try.
    pub(super) fn not_from(&self, other: &Self, why: &str) {
        self.0.not_from.lock().unwrap_or_else(PoisonError::into_inner).push(other.0.name.clone());
        self.by_way(why);
    }

    /// Records why a file goes through this end.
    pub(super) fn by_way(&self, why: &str) {
        let mut all = self.0.by_way.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() < MOST_REASONS && !all.iter().any(|known| known == why) {
            all.push(why.to_owned());
        }
    }

    /// Why files of other servers went through this end, if any did.
    pub fn why_by_way(&self) -> Vec<String> {
        self.0.by_way.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether `other` does not send directly.
    pub(super) fn is_not_from(&self, other: &Self) -> bool {
        self.0.not_from.lock().unwrap_or_else(PoisonError::into_inner).contains(&other.0.name)
    }

    /// Refuses to replace an existing `key`.
    pub(super) async fn must_be_free(&self, key: &Key) -> Result<(), Error> {
        match self.look(key).await {
            Ok(_) => Err(Error::Exists { name: self.label(key) }),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Name of `key` in errors.
    pub(super) fn label(&self, key: &Key) -> String {
        format!("{}/{key}", self.0.name)
    }

    /// Path of `key` on the server.
    pub(super) fn path(&self, key: &Key) -> Result<Vec<u8>, Error> {
        let path = [b"/", key.as_bytes()].concat();
        // Text after a line end would become a command.
        if !is_line(&path) {
            return Err(senseless(&self.label(key), "a name with a line end in it cannot be asked for"));
        }
        // RFC 854 has this byte sent twice. Some servers (pure-ftpd, vsftpd) take it for two, and so for another name.
        if path.contains(&0xff) && !self.has("XDRAFTS") {
            let reason = "a name with the byte 255 in it cannot be asked for: servers differ in what they take it for";
            return Err(senseless(&self.label(key), reason));
        }
        Ok(path)
    }
}

/// Eight random bytes in hexadecimal digits.
fn random_text() -> String {
    let mut random = [0; 8];
    let _ = ring::rand::SystemRandom::new().fill(&mut random);
    hex(&random)
}
