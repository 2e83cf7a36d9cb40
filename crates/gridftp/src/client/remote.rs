//! A server as a store.

use super::data::DataPlan;
use super::draft::RemoteDraft;
use super::error::{refused, senseless};
use super::in_place::New;
use super::inside::WINDOW;
use super::listing::{Lists, RemoteListing};
use super::login::login;
use super::lost::Unsure;
use super::names::Names;
use super::object::RemoteObject;
use super::options::{Options, Segment};
use super::orders::{Looked, Refused};
use super::partial::PartialDirs;
use super::pipe::{Ahead, Pipe};
use super::places::Places;
use super::resume::RESUME_FROM;
use super::session::Session;
use super::stack::NetStack;
use crate::data::Losses;
use phoebus_files::key::Key;
use phoebus_files::store::{
    Attributes, Begun, Boxed, Draft, Fallible, Kind, Listing, Meta, Object, Spec, Store, Time, TriedDir,
};
use phoebus_files::sum::Algorithm;
use phoebus_files::{Error, Own, OwnDirs, Sort, is_engines};
use phoebus_net::host::Host;
use phoebus_proto::gridftp::features::Features;
use phoebus_proto::gridftp::line::is_line;
use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::OnceCell;

/// How many reasons are kept for what is in a report.
const MOST_REASONS: usize = 8;

/// A server. Clones are the same store.
#[derive(Clone)]
pub struct Remote(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) options: Options,
    pub(super) name: Arc<str>,
    pub(super) features: Arc<Features>,
    pub(super) algorithms: Vec<Algorithm>,
    /// Where the login leads.
    pub(super) home: Arc<Key>,
    /// What was just looked at, for whoever opens, writes or renames it next.
    pub(super) looked: Mutex<VecDeque<Looked>>,
    pub(super) idle: Mutex<Vec<Session>>,
    /// Those that may be in use at the same time. What is read and what is written have places of their own: who copies within a
    /// server needs both, and would wait for others who do.
    pub(super) reading: Places,
    pub(super) writing: Places,
    /// For commands beside those.
    pub(super) pipe: tokio::sync::Mutex<Option<Pipe>>,
    pub(super) ahead: Ahead,
    pub(super) rtt: Duration,
    pub(super) windows: (u64, u64),
    pub(super) losses: Arc<Losses>,
    /// Whether TLS between keys protects data.
    protected: bool,
    pub(super) used: AtomicU32,
    /// Over how many connections the server lets extended blocks of a file go at the most, as far as is known.
    limit: AtomicU32,
    /// Whether the server refuses to set modes.
    pub(super) modeless: AtomicBool,
    /// Of how many files and directories modes were to be set and were not, and the names of the first of them.
    pub(super) without_modes: Mutex<Refused>,
    /// The same of directories and times.
    pub(super) without_times: Mutex<Refused>,
    /// What is known of the names that it takes.
    pub(super) names: Names,
    /// Whether it answers SIZE for directories, once that matters.
    pub(super) sizes_dirs: OnceCell<bool>,
    /// As it has greeted.
    pub(super) greeting: String,
    /// What it says of itself, once that matters.
    pub(super) status: OnceCell<String>,
    /// What is a directory by LIST, where that is known for good.
    pub(super) lists_links: OnceCell<Own>,
    /// How it lists without MLSD, as far as is known.
    pub(super) lists: Mutex<Option<Lists>>,
    /// Directories in which drafts are.
    pub(super) partial_dirs: PartialDirs,
    /// Files that are new and written in place.
    pub(super) new_in_place: New,
    /// Files of which is not known whether it gave them their names.
    pub(super) unsure: Mutex<Vec<Unsure>>,
    /// Whether it refuses to go on with what it has of a file.
    pub(super) restartless: AtomicBool,
    /// Whether it refuses to begin amid a file that it sends.
    pub(super) whole_alone: AtomicBool,
    /// Servers from which nothing comes directly.
    pub(super) not_from: Mutex<Vec<Arc<str>>>,
    /// Why files of other servers came by way of this end.
    pub(super) by_way: Mutex<Vec<String>>,
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
        let ahead = Ahead::new();
        let session = login(&options, &name, &ahead).await?;
        let (home, rtt) = (session.home.clone(), session.rtt);
        let (features, greeting) = (session.features.clone(), session.greeting.clone());
        let known = features.checksums();
        let algorithms = Algorithm::ALL.into_iter().filter(|a| known.iter().any(|k| k.parse() == Ok(*a))).collect();
        let protected = session.told.as_ref().is_some_and(|told| told.pinned.is_some());
        let idle = Mutex::new(vec![session]);
        let (modeless, without_modes, restartless, whole_alone, not_from, by_way) = Default::default();
        let (most, host) = (options.sessions.max(1), Host::read());
        Ok(Self(Arc::new(Inner {
            options,
            name,
            features,
            algorithms,
            home,
            looked: Mutex::default(),
            idle,
            reading: Places::new(most),
            writing: Places::new(most),
            pipe: tokio::sync::Mutex::new(None),
            ahead,
            rtt,
            windows: (host.tcp_rmem[2], host.tcp_wmem[2]),
            losses: Arc::default(),
            protected,
            used: AtomicU32::new(1),
            limit: AtomicU32::new(u32::MAX),
            modeless,
            without_modes,
            without_times: Mutex::default(),
            names: Names::default(),
            sizes_dirs: OnceCell::new(),
            greeting,
            status: OnceCell::new(),
            lists_links: OnceCell::new(),
            lists: Mutex::default(),
            partial_dirs: PartialDirs::default(),
            new_in_place: New::default(),
            unsure: Mutex::default(),
            restartless,
            whole_alone,
            not_from,
            by_way,
        })))
    }

    /// How long the server takes to answer: a round trip, and a little more.
    pub fn rtt(&self) -> Duration {
        self.0.rtt
    }

    /// Whether data goes under TLS between ends that have told each other their keys.
    pub fn is_under_tls(&self) -> bool {
        self.0.protected
    }

    /// Why data goes inside SSH, if it does: a sentence's end, empty if it was asked for.
    pub fn why_inside(&self) -> Option<&str> {
        self.0.options.inside()
    }

    /// Where the login leads: what paths begin with that do not begin at the root.
    pub fn home(&self) -> &Key {
        &self.0.home
    }

    pub(super) fn options(&self) -> &Options {
        &self.0.options
    }

    /// Over how many connections extended blocks go, if all files are to go so.
    pub(super) fn streams(&self) -> Option<u32> {
        self.0.options.streams.or(self.0.options.striped.then_some(1))
    }

    /// Over how many connections extended blocks of a file go that is written, if it goes so.
    pub(super) fn streams_to_write(&self, size: Option<u64>) -> Option<u32> {
        let limit = self.0.limit.load(Ordering::Relaxed);
        let chosen = || self.chosen(size?, self.0.windows.1).map(|n| n.min(limit)).filter(|_| self.has("PARALLEL"));
        // Where the server shows nothing of a file that is not complete, only its marks say what it has.
        let marked = || (size? >= RESUME_FROM && self.has("XDRAFTS")).then_some(1);
        self.streams().or_else(chosen).or_else(marked)
    }

    /// Whether this end chooses if a file is written as a stream or in blocks.
    pub(super) fn may_choose(&self) -> bool {
        self.choice().is_some() && self.streams().is_none() && self.has("PARALLEL") && !self.has("XDRAFTS")
    }

    /// Notes that the server has only `streams` connections for a file that was to go over more.
    pub(super) fn has_at_most(&self, streams: u32, meant: Option<u32>) {
        if meant.is_some_and(|meant| streams < meant) {
            self.0.limit.fetch_min(streams, Ordering::Relaxed);
        }
    }

    /// In how many parts a file of which so many bytes are wanted is read, over as many connections.
    pub(super) fn parts_to_read(&self, bytes: u64) -> Option<u32> {
        self.chosen(bytes, self.0.windows.0).filter(|_| self.streams().is_none() && self.has("ERET"))
    }

    fn chosen(&self, size: u64, window: u64) -> Option<u32> {
        let choose = self.choice()?;
        let loss = self.0.losses.rate();
        let window = if self.why_inside().is_some() { window.min(WINDOW) } else { window };
        Some(choose(&Segment { size, rtt: self.0.rtt, window, loss })).filter(|n| *n > 1)
    }

    /// How streams are chosen: by what TCP has.
    fn choice(&self) -> Option<fn(&Segment) -> u32> {
        let inside = self.why_inside().is_some();
        let tcp = inside || self.0.options.stack.as_ref().is_none_or(NetStack::is_tcp);
        self.0.options.choose.filter(|_| tcp)
    }

    /// Notes over how many connections a file goes.
    pub(super) fn used(&self, streams: u32) {
        self.0.used.fetch_max(streams, Ordering::Relaxed);
    }

    /// Over how many connections a file went at the most.
    pub fn most_streams(&self) -> u32 {
        self.0.used.load(Ordering::Relaxed)
    }

    /// How many bytes this machine's kernel lets be under way on one connection, when reading and when writing.
    pub fn windows(&self) -> (u64, u64) {
        let (read, write) = self.0.windows;
        if self.why_inside().is_some() { (read.min(WINDOW), write.min(WINDOW)) } else { (read, write) }
    }

    pub(super) fn plan(&self) -> DataPlan<'_> {
        DataPlan::of(&self.0.options).counting(self.0.losses.clone())
    }

    pub(super) fn has(&self, feature: &str) -> bool {
        self.0.features.has(feature)
    }

    /// Notes that nothing comes directly from `other`, so that not every file is tried, and why.
    pub(super) fn not_from(&self, other: &Self, why: &str) {
        self.0.not_from.lock().unwrap_or_else(PoisonError::into_inner).push(other.0.name.clone());
        self.by_way(why);
    }

    /// Notes why a file comes by way of this end.
    pub(super) fn by_way(&self, why: &str) {
        let mut all = self.0.by_way.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() < MOST_REASONS && !all.iter().any(|known| known == why) {
            all.push(why.to_owned());
        }
    }

    /// Why files that other servers have came here by way of this end, if any did.
    pub fn why_by_way(&self) -> Vec<String> {
        self.0.by_way.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether nothing does.
    pub(super) fn is_not_from(&self, other: &Self) -> bool {
        self.0.not_from.lock().unwrap_or_else(PoisonError::into_inner).contains(&other.0.name)
    }

    /// Refuses to replace what has the name `key`.
    pub(super) async fn must_be_free(&self, key: &Key) -> Result<(), Error> {
        match self.look(key).await {
            Ok(_) => Err(Error::Exists { name: self.label(key) }),
            Err(error) if error.sort() == Sort::NotFound => Ok(()),
            Err(error) => Err(error),
        }
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

    fn sets_modes(&self) -> bool {
        !self.0.modeless.load(Ordering::Relaxed)
    }

    fn stat<'a>(&'a self, key: &'a Key) -> Fallible<'a, Meta> {
        Box::pin(async move {
            self.sayable(key).await?;
            self.look_and_remember(key).await
        })
    }

    fn stat_link<'a>(&'a self, key: &'a Key) -> Fallible<'a, Meta> {
        Box::pin(async move {
            self.sayable(key).await?;
            self.look_at_link(key).await
        })
    }

    fn is_absent<'a>(&'a self, key: &'a Key) -> Fallible<'a, bool> {
        Box::pin(self.says_gone(key))
    }

    fn list<'a>(&'a self, key: &'a Key) -> Fallible<'a, Box<dyn Listing>> {
        Box::pin(async move {
            self.sayable(key).await?;
            Ok(Box::new(RemoteListing::begin(self.clone(), key.clone()).await?) as _)
        })
    }

    fn keeps_names(&self) -> bool {
        self.has("XDRAFTS")
    }

    fn kept_names<'a>(&'a self, key: &'a Key) -> Fallible<'a, Option<HashSet<Vec<u8>>>> {
        Box::pin(self.names_in(key))
    }

    fn tells_links(&self) -> bool {
        self.tells_links_by_facts()
    }

    fn own_dirs<'a>(&'a self, key: &'a Key) -> Fallible<'a, OwnDirs> {
        Box::pin(self.own_dirs_in(key))
    }

    fn try_dir<'a>(&'a self, key: &'a Key) -> Fallible<'a, TriedDir> {
        Box::pin(async move {
            self.is_there_as_said(key).await?;
            self.try_dir_at(key).await
        })
    }

    fn list_all<'a>(&'a self, key: &'a Key) -> Fallible<'a, Box<dyn Listing>> {
        Box::pin(async move {
            self.sayable(key).await?;
            Ok(Box::new(RemoteListing::with_drafts(self.clone(), key.clone()).await?) as _)
        })
    }

    fn open<'a>(&'a self, key: &'a Key) -> Fallible<'a, Arc<dyn Object>> {
        Box::pin(async move {
            self.sayable(key).await?;
            let meta = self.recall(key).await?;
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
        Box::pin(async move {
            self.keeps_name(key).await?;
            if self.was_published(key, &spec).await? {
                return Ok(Begun::Done);
            }
            Ok(Begun::Draft(Arc::new(RemoteDraft::begin(self.clone(), key.clone(), spec).await?)))
        })
    }

    fn edit<'a>(&'a self, key: &'a Key) -> Fallible<'a, Arc<dyn Draft>> {
        let name = self.label(key);
        Box::pin(async { Err(Error::Unsupported { name, what: "changing a server's file where it stands" }) })
    }

    fn make_dir<'a>(&'a self, key: &'a Key) -> Fallible<'a, ()> {
        Box::pin(async move {
            self.keeps_name(key).await?;
            let asked = self.order("MKD", key, "make the directory").await;
            self.made(key, asked).await
        })
    }

    fn remove<'a>(&'a self, key: &'a Key) -> Fallible<'a, ()> {
        Box::pin(async move {
            self.is_there_as_said(key).await?;
            let asked = self.order("DELE", key, "remove").await;
            match self.removed(key, asked).await {
                Err(error) => Err(self.why(key, error, true).await),
                removed => removed,
            }
        })
    }

    fn discard<'a>(&'a self, key: &'a Key, _: Option<Time>) -> Fallible<'a, ()> {
        Box::pin(async move {
            self.is_there_as_said(key).await?;
            let reply = self.about("DELE", key).await?;
            // A server of ours knows which of its drafts are being written.
            if reply.code == 450 && is_engines(key.name()) {
                return Err(Error::Busy { name: self.label(key) });
            }
            if reply.is_success() { Ok(()) } else { Err(refused(&self.label(key), "remove", "DELE", &reply)) }
        })
    }

    fn remove_dir<'a>(&'a self, key: &'a Key) -> Fallible<'a, ()> {
        Box::pin(async move {
            self.is_there_as_said(key).await?;
            let asked = self.order("RMD", key, "remove the directory").await;
            match self.removed(key, asked).await {
                Err(error) => Err(self.why(key, error, false).await),
                removed => removed,
            }
        })
    }

    fn rename<'a>(&'a self, from: &'a Key, to: &'a Key, replace: bool) -> Fallible<'a, ()> {
        Box::pin(async move {
            self.sayable(from).await?;
            // What no command can have is refused before anything is asked.
            self.path(from)?;
            self.path(to)?;
            self.keeps_name(to).await?;
            // What it is tells afterwards whether it was moved, should the answer be lost.
            let moved = self.recall(from).await?;
            if !replace {
                self.must_be_free(to).await?;
            }
            self.move_to(from, to, &moved).await
        })
    }

    fn set<'a>(&'a self, key: &'a Key, attributes: Attributes) -> Fallible<'a, ()> {
        Box::pin(async move {
            self.is_there_as_said(key).await?;
            self.attribute(key, attributes).await
        })
    }

    fn note_draft_dir(&self, dir: &Key) {
        self.0.partial_dirs.note(dir);
    }

    fn remove_draft_dirs(&self) -> Boxed<'_, ()> {
        Box::pin(self.remove_partial_dirs())
    }

    /// What a server has said to be done is done: there is nothing to ask it for.
    fn settle(&self) -> Fallible<'_, ()> {
        Box::pin(async { Ok(()) })
    }
}
