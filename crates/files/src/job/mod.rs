//! A job: many objects from one store to another, several at a time, each tried again where that may help, and a report
//! that says what became of every one of them.

mod arrived;
mod case;
mod compare;
mod delete;
mod dirs;
mod events;
mod kept;
mod look;
mod one;

pub use compare::{Comparison, Difference, Finding};
pub use events::{Event, Quiet, Report, Watcher};

use crate::error::{Error, Sort};
use crate::key::Key;
use crate::plan::{Existing, Filter, Found, Walk};
use crate::retry::Retry;
use crate::spawned::Spawned;
use crate::store::{Attributes, Kind, Listing, Meta, Store};
use crate::transfer::How;
use case::{Cases, keeps_apart};
use kept::Kept;
use one::{Came, One, shown};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Objects of at most so many bytes are short: at 100 Mbit/s it is less than a round trip.
pub const SHORT: u64 = 1 << 20;

/// How many of a far store's objects are looked at before it is their turn: as many as its client has commands under way.
const AHEAD: usize = 32;

/// How much of a tree is found before it is its turn: what there is in all is then known while the first of it is carried. Some
/// twenty megabytes.
const FOUND: usize = 100_000;

/// How far ahead of its turn a directory is made at a far destination, in things that come before it.
const SOON: usize = 256;

/// How many entries of a directory are kept in mind: some hundred megabytes of them.
const MOST: usize = 1_000_000;

/// What is to be done.
#[derive(Debug, Clone)]
pub struct Job {
    /// Where objects come from.
    pub source: Arc<dyn Store>,
    /// Where they go.
    pub dest: Arc<dyn Store>,
    /// How each is carried. Whether one takes another's place is for [`Self::existing`] to say.
    pub how: How,
    /// What is done about those that the destination has.
    pub existing: Existing,
    /// What of directories is left out.
    pub filter: Arc<Filter>,
    /// Whether directories are carried, with all that is in them.
    pub recursive: bool,
    /// Whether symbolic links are carried as such, and none is followed; both stores have to have them.
    pub links: bool,
    /// Whether what the source does not have is removed from the directories of the destination that trees are carried to, once all
    /// of them are there; and how much of it at the most, or nothing is.
    pub delete: Option<usize>,
    /// Whether directories are made that a destination is to be in.
    pub parents: bool,
    /// Whether only is told what would be done.
    pub dry_run: bool,
    /// How many objects are carried at once.
    pub files: usize,
    /// How many, if all of them are short ([`SHORT`]): these spend their time waiting for answers.
    pub short: usize,
    /// When to try again.
    pub retry: Retry,
    /// Who is told what happens.
    pub watcher: Arc<dyn Watcher>,
}

impl Job {
    /// A job that carries what is new or newer, directories included, four objects at a time.
    pub fn new(source: Arc<dyn Store>, dest: Arc<dyn Store>) -> Self {
        Self {
            source,
            dest,
            how: How::default(),
            existing: Existing::default(),
            filter: Arc::default(),
            recursive: true,
            links: false,
            delete: None,
            parents: false,
            dry_run: false,
            files: 4,
            short: 4,
            retry: Retry::default(),
            watcher: Arc::new(Quiet),
        }
    }

    /// Carries what each first key names to the second, and returns when all of it is durable or has failed.
    pub async fn run(&self, items: impl IntoIterator<Item = (Key, Key)>) -> Report {
        let (report, made, new, closed, dirs, trees, making) = Default::default();
        let tasks = JoinSet::new();
        let (cases, kept) = (Cases::default(), Kept::default());
        let (job, taken, there) = (self, 0, None);
        let mut run = Run { job, tasks, taken, report, made, new, closed, making, dirs, trees, there, cases, kept };
        // What is far is looked at ahead, so that a list of files does not take a round trip for each.
        let depth = if self.source.is_far() { AHEAD } else { 1 };
        let (mut items, mut looked) = (items.into_iter().peekable(), VecDeque::new());
        loop {
            while looked.len() < depth
                && let Some((from, to)) = items.next()
            {
                let (source, key, links) = (self.source.clone(), from.clone(), self.links);
                let look = async move { if links { source.stat_link(&key).await } else { source.stat(&key).await } };
                looked.push_back((Spawned::new(look), from, to));
            }
            let Some((look, from, to)) = looked.pop_front().filter(|_| !run.report.stopped) else { break };
            let last = looked.is_empty() && items.peek().is_none();
            let lost = |error| Err(Error::io(self.source.name(), "look at something of", std::io::Error::other(error)));
            match look.end().await.unwrap_or_else(lost) {
                Ok(meta) => run.item(from, to, meta, last).await,
                Err(error) => run.failed(from, error),
            }
        }
        while run.join().await {}
        run.finish().await
    }
}

/// A job that is under way.
struct Run<'a> {
    job: &'a Job,
    tasks: JoinSet<(Key, usize, Result<Came, Error>)>,
    /// How much of what may be carried at once is.
    taken: usize,
    report: Report,
    /// Directories that are known to be there.
    made: HashSet<Key>,
    /// Those of them that were not there before.
    new: HashSet<Key>,
    /// Those that are private at the source and could not be made private: nothing is put in them.
    closed: HashMap<Key, Sort>,
    /// Those that are being made before their turn.
    making: HashMap<Key, dirs::Making>,
    /// What the destination has in the directory that objects go to at the moment, if that is known.
    there: Option<(Key, Option<Contents>)>,
    /// Trees that were walked, with where they go.
    trees: Vec<(Key, Key)>,
    /// Directories whose times and modes are set when all is in them, in the order in which they were made.
    dirs: Vec<(Key, Attributes)>,
    /// The names that were given.
    cases: Cases,
    /// The names that are looked for once the files are there.
    kept: Kept,
}

impl Run<'_> {
    /// Begins with what was asked for; `last`: nothing else was.
    async fn item(&mut self, from: Key, to: Key, meta: Meta, last: bool) {
        if meta.kind != Kind::Dir {
            if self.job.filter.bounds.take(&meta) {
                self.job.watcher.saw(&Event::Found { meta: &meta });
            }
            if last {
                self.job.watcher.saw(&Event::Counted);
            }
        }
        let taken = self.job.recursive || meta.kind != Kind::Dir;
        if self.job.parents
            && taken
            && let Err(error) = self.make_parents(&to).await
        {
            return self.failed(to, error);
        }
        match meta.kind {
            Kind::Device if self.job.how.length.is_some() => self.file(from, to, meta).await,
            // How much of a device is copied is said; files have all of theirs copied.
            kind if self.job.how.length.is_some() => {
                let name = shown(&*self.job.source, &from);
                self.failed(
                    from,
                    Error::Kind { name, is: kind.described(), expected: "a device, since a length is given" },
                );
            }
            Kind::File if !self.job.filter.bounds.take(&meta) => {}
            Kind::File => self.file(from, to, meta).await,
            Kind::Link if self.job.links => self.file(from, to, meta).await,
            Kind::Dir if self.job.recursive => self.tree(from, to, meta, last).await,
            kind => {
                let name = shown(&*self.job.source, &from);
                self.failed(from, Error::Kind { name, is: kind.described(), expected: "a file" });
            }
        }
    }

    async fn tree(&mut self, top: Key, to: Key, meta: Meta, last: bool) {
        if let Err(error) = self.make_dir(to.clone(), meta).await {
            return self.failed(to, error);
        }
        let (mut walk, mut queue) = (self.walk(&top, &to, last), VecDeque::new());
        while let Some(found) = self.next_of(&mut walk, &mut queue, &to).await {
            if self.report.stopped {
                return;
            }
            match found {
                Err(error) => self.failed(top.clone(), error),
                Ok(Found::Other(key, kind)) => {
                    self.report.left += 1;
                    let leads = async { self.job.source.stat(&top.beneath(&key).ok()?).await.ok() };
                    let to_dir = kind == Kind::Link && leads.await.is_some_and(|meta| meta.kind == Kind::Dir);
                    self.job.watcher.saw(&Event::Left { key: &key, kind, to_dir });
                }
                Ok(Found::Dir(key, meta)) => {
                    let made = match to.beneath(&key) {
                        Ok(to) => self.make_dir(to.clone(), meta).await.map_err(|error| (to, error)),
                        Err(error) => Err((key, too_long(&*self.job.dest, &error))),
                    };
                    if let Err((key, error)) = made {
                        self.failed(key, error);
                    }
                }
                Ok(Found::File(key, meta)) => match top.beneath(&key).and_then(|from| Ok((from, to.beneath(&key)?))) {
                    Ok((from, to)) => self.file_of_tree(from, to, meta).await,
                    Err(error) => self.failed(key, too_long(&*self.job.dest, &error)),
                },
                Ok(Found::Link(key, meta)) => match top.beneath(&key).and_then(|from| Ok((from, to.beneath(&key)?))) {
                    Ok((from, to)) => self.file(from, to, meta).await,
                    Err(error) => self.failed(key, too_long(&*self.job.dest, &error)),
                },
            }
        }
        self.trees.push((top, to));
    }

    /// The walk through the tree `top`, by a task of its own, so that what there is is known before it is its turn.
    fn walk(&self, top: &Key, to: &Key, last: bool) -> mpsc::Receiver<Result<Found, Error>> {
        let job = self.job;
        let mut walk = Walk::new(job.source.clone(), top.clone(), job.filter.clone()).keeping_links(job.links);
        if job.source.is_far() {
            let (watcher, to) = (job.watcher.clone(), to.clone());
            let tell = move |dir: &Key, error: &Error, wait: Duration| {
                let to = to.beneath(dir).unwrap_or_else(|_| to.clone());
                watcher.saw(&Event::Again { to: &to, error, wait });
            };
            walk = walk.listing_ahead(job.retry, Arc::new(tell));
        }
        let ((sender, receiver), watcher) = (mpsc::channel(FOUND), job.watcher.clone());
        tokio::spawn(async move {
            while let Some(found) = walk.next().await {
                if let Ok(Found::File(_, meta) | Found::Link(_, meta)) = &found {
                    watcher.saw(&Event::Found { meta });
                }
                // Nobody wants to know any more.
                if sender.send(found).await.is_err() {
                    return;
                }
            }
            if last {
                watcher.saw(&Event::Counted);
            }
        });
        receiver
    }

    /// The next of a walk. Directories that come soon begin to be made.
    async fn next_of(
        &mut self,
        walk: &mut mpsc::Receiver<Result<Found, Error>>,
        queue: &mut VecDeque<Result<Found, Error>>,
        to: &Key,
    ) -> Option<Result<Found, Error>> {
        let first = if queue.is_empty() { Some(walk.recv().await?) } else { None };
        let mut next = first.or_else(|| walk.try_recv().ok());
        while let Some(found) = next {
            // Each directory is begun before those in it, which wait for it.
            if let Ok(Found::Dir(key, meta)) = &found
                && let Ok(dir) = to.beneath(key)
            {
                self.begin_dir(dir, meta);
            }
            queue.push_back(found);
            next = if queue.len() < SOON { walk.try_recv().ok() } else { None };
        }
        queue.pop_front()
    }

    /// Begins with an object of a tree as soon as there is a place for it.
    async fn file_of_tree(&mut self, from: Key, to: Key, meta: Meta) {
        let known = self.known(&to).await;
        self.begin(One { job: self.job.clone(), from, to, meta, known, needs_parent: false }).await;
    }

    /// The same of any object.
    async fn file(&mut self, from: Key, to: Key, meta: Meta) {
        self.begin(One { job: self.job.clone(), from, to, meta, known: None, needs_parent: true }).await;
    }

    async fn begin(&mut self, one: One) {
        if let Some(error) = self.is_in_closed(&one.to) {
            return self.failed(one.to, error);
        }
        if let Some(met) = self.cases.give(&one.to).filter(|_| !self.job.dry_run) {
            // What has that name by then is no longer on its way.
            while self.join().await {}
            match keeps_apart(&*self.job.dest, &met).await {
                Ok(()) => self.cases.are_apart(&met),
                Err(error) => return self.failed(one.to, error),
            }
        }
        // A short one takes one part of all that are carried at once, and a long one as much more as fewer of them are.
        let (long, short) = (self.job.files.max(1), self.job.short.max(1));
        let cost = if one.meta.size.is_some_and(|size| size <= SHORT) { long } else { short };
        while self.taken > 0 && self.taken + cost > long * short {
            self.join().await;
        }
        if !self.report.stopped {
            self.taken += cost;
            self.begins(&one.to, one.needs_parent).await;
            self.tasks.spawn(async move {
                let (key, came) = one.run().await;
                (key, cost, came)
            });
        }
    }

    /// What is known of `key` at a destination that has to be asked over a network: all of a directory is asked for at once.
    async fn known(&mut self, key: &Key) -> Option<Option<Meta>> {
        let dest = &self.job.dest;
        if !dest.is_far() {
            return None;
        }
        let dir = key.parent();
        if self.there.as_ref().is_none_or(|(known, _)| *known != dir) {
            // One that was made now has nothing in it; what cannot be listed is asked for one by one.
            let contents = match self.job.dry_run || !self.new.contains(&dir) {
                true => contents(&**dest, &dir).await.ok(),
                false => Some(Contents::new()),
            };
            let drafts = self.job.filter.never.as_ref().zip(contents.as_ref());
            if drafts.is_some_and(|(name, contents)| contents.get(name).is_some_and(|meta| meta.kind == Kind::Dir)) {
                self.note_draft_dir(&dir);
            }
            self.there = Some((dir, contents));
        }
        let (_, contents) = self.there.as_ref()?;
        match contents.as_ref()?.get(key.name()) {
            None => Some(None),
            // Of a link it has to be known where it leads.
            Some(meta) if meta.kind == Kind::Link => None,
            Some(meta) => Some(Some(*meta)),
        }
    }

    /// Waits for an object to be done with; false if there is none under way.
    async fn join(&mut self) -> bool {
        match self.tasks.join_next().await {
            None => return false,
            Some(Ok((key, cost, came))) => {
                self.taken -= cost;
                let carried = match &came {
                    Ok(Came::Carried(done)) => Some(done.size),
                    _ => None,
                };
                self.ends(&key, carried).await;
                self.came(key, came);
            }
            Some(Err(error)) => {
                // What it cost is not known any more; with all of them gone, nothing is taken.
                self.taken = if self.tasks.is_empty() { 0 } else { self.taken };
                let error = Error::io(self.job.dest.name(), "go on with", std::io::Error::other(error));
                self.failed(Key::ROOT, error);
            }
        }
        true
    }

    fn came(&mut self, key: Key, came: Result<Came, Error>) {
        match came {
            Err(error) => self.failed(key, error),
            Ok(Came::Carried(done)) => {
                self.report.carried += 1;
                self.report.bytes += done.size;
                self.report.moved += done.moved;
            }
            Ok(Came::Skipped) => self.report.skipped += 1,
            Ok(Came::Mode { set }) => {
                self.report.skipped += 1;
                self.report.modes_set += u64::from(set);
                self.report.modes_refused += u64::from(!set);
            }
            Ok(Came::Planned(size)) => {
                self.report.carried += 1;
                self.report.bytes += size;
            }
        }
    }

    fn failed(&mut self, key: Key, error: Error) {
        self.job.watcher.saw(&Event::Failed { key: &key, error: &error });
        // Where there is no space for one there is none for the others, and who asks one to end asks all.
        self.report.stopped |= error.sort() == Sort::NoSpace || matches!(error, Error::Stopped { .. });
        self.report.note(key, error);
    }

    async fn finish(mut self) -> Report {
        // Whoever moves files has to know of those that are there, also where there was no space for the others.
        match self.job.how.stop.is_asked() {
            true => self.leave_names(),
            false => self.look_for_all_names().await,
        }
        // Before the times of directories are set, which removing what is in them changes.
        self.delete().await;
        if !self.job.dry_run {
            self.job.dest.remove_draft_dirs().await;
        }
        // Whoever goes on with what is interrupted has to be able to write to its directories.
        let done = !self.job.how.stop.is_asked();
        for (key, attributes) in std::mem::take(&mut self.dirs).into_iter().rev().filter(|_| done) {
            if attributes != Attributes::default()
                && let Err(error) = self.job.dest.set(&key, attributes).await
            {
                self.failed(key, error);
            }
        }
        if !self.job.dry_run
            && let Err(error) = self.job.dest.settle().await
        {
            self.report.unsettled = true;
            self.failed(Key::ROOT, error);
        }
        self.report
    }
}

/// What a directory has, by name.
type Contents = HashMap<Vec<u8>, Meta>;

/// The contents of a directory, as they are now.
async fn contents(store: &dyn Store, dir: &Key) -> Result<Contents, Error> {
    let listing = store.list(dir).await?;
    listed(store, dir, listing).await
}

/// All that `listing` of `dir` has.
async fn listed(store: &dyn Store, dir: &Key, mut listing: Box<dyn Listing>) -> Result<Contents, Error> {
    let mut contents = Contents::new();
    loop {
        let entries = listing.more().await?;
        if entries.is_empty() {
            return Ok(contents);
        }
        contents.extend(entries.into_iter().map(|entry| (entry.name, entry.meta)));
        if contents.len() > MOST {
            let name = format!("{}/{dir}", store.name());
            return Err(Error::Limit {
                name,
                what: "the entries of a directory that are kept in mind",
                limit: MOST as u64,
            });
        }
    }
}

fn too_long(store: &dyn Store, error: &crate::key::KeyError) -> Error {
    Error::Store { name: store.name(), reason: error.to_string(), sort: Sort::Request }
}
