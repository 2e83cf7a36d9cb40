//! A job carries many objects from one store to another, several at a time, with retries, and reports the result of
//! each.

mod alike;
mod arrived;
mod batch;
mod compare;
mod contents;
mod delete;
mod dirs;
mod events;
mod halt;
mod kept;
mod look;
mod one;
mod tree;

pub use alike::{common_form, keeps_apart};
pub use compare::{Comparison, Difference, Finding};
pub use events::{Event, Quiet, Report, Watcher};
pub use halt::Halt;

use crate::error::{Error, ErrorKind};
use crate::key::Key;
use crate::plan::{Existing, Filter, with_mode};
use crate::retry::Retry;
use crate::spawned::Spawned;
use crate::store::{Attributes, Kind, Meta, Store};
use crate::transfer::TransferOptions;
use alike::Cases;
use batch::Batches;
use contents::{Contents, contents};
use kept::ArrivedObjects;
use one::{ObjectOutcome, One};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

/// Largest short object, in bytes: at 100 Mbit/s less than a round trip.
pub const SHORT: u64 = 1 << 20;

/// Objects of a remote store that are looked up ahead: as many as its client has commands in flight.
const AHEAD: usize = 32;

/// A job.
#[derive(Debug, Clone)]
pub struct Job {
    /// The source.
    pub source: Arc<dyn Store>,
    /// The destination.
    pub dest: Arc<dyn Store>,
    /// Options of each transfer. [`Self::existing`] decides about existing objects.
    pub how: TransferOptions,
    /// What to do about existing objects.
    pub existing: Existing,
    /// What is left out of directories.
    pub filter: Arc<Filter>,
    /// Whether directories are carried with their content.
    pub recursive: bool,
    /// Whether symbolic links are carried as links, and never followed. Both stores must support links.
    pub links: bool,
    /// Whether to remove what the source lacks from the destination's directories, once all trees are complete; and the
    /// most names to remove, beyond which nothing is.
    pub delete: Option<usize>,
    /// Whether missing ancestors of destinations are created.
    pub parents: bool,
    /// Whether this is a dry run.
    pub dry_run: bool,
    /// Objects carried at a time.
    pub files: usize,
    /// Objects carried at a time if all are short ([`SHORT`]), since these mostly wait for replies.
    pub short: usize,
    /// Retry policy.
    pub retry: Retry,
    /// Whether it goes on after failures that affect everything.
    pub halt: Halt,
    /// Receiver of events.
    pub watcher: Arc<dyn Watcher>,
}

impl Job {
    /// A job that carries new and newer objects, including directories, four at a time.
    pub fn new(source: Arc<dyn Store>, dest: Arc<dyn Store>) -> Self {
        Self {
            source,
            dest,
            how: TransferOptions::default(),
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
            halt: Halt::default(),
            watcher: Arc::new(Quiet),
        }
    }

    /// Carries each first key to the second. Returns when everything is durable or has failed.
    pub async fn run(&self, items: impl IntoIterator<Item = (Key, Key)>) -> Report {
        let (report, made, new, closed, dirs, trees, making) = Default::default();
        let (tasks, batches) = (JoinSet::new(), Batches::of(self));
        let (cases, kept) = (Cases::default(), ArrivedObjects::default());
        let (job, taken, there) = (self, 0, None);
        let mut run =
            Run { job, tasks, batches, taken, report, made, new, closed, making, dirs, trees, there, cases, kept };
        // Remote objects are looked up ahead, so that a list of files does not take a round trip for each.
        let depth = if self.source.is_far() { AHEAD } else { 1 };
        let (mut items, mut looked) = (items.into_iter().peekable(), VecDeque::new());
        loop {
            while looked.len() < depth
                && let Some((from, to)) = items.next()
            {
                let (source, key, links) = (self.source.clone(), from.clone(), self.links);
                let look = async move {
                    let meta = if links { source.stat_link(&key).await? } else { source.stat(&key).await? };
                    with_mode(&*source, &key, meta, false).await
                };
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
        run.join_all().await;
        run.finish().await
    }
}

/// The end of objects that were carried together.
struct Ended {
    /// The units that are free again.
    cost: usize,
    objects: Vec<(Key, Result<ObjectOutcome, Error>)>,
}

/// A running job.
struct Run<'a> {
    job: &'a Job,
    tasks: JoinSet<Ended>,
    batches: Batches,
    /// Units of work that may run at a time.
    taken: usize,
    report: Report,
    /// Existing directories.
    made: HashSet<Key>,
    /// Those that are new.
    new: HashSet<Key>,
    /// Those that should be private and could not be made so: nothing is put in them.
    closed: HashMap<Key, ErrorKind>,
    /// Those that are created ahead of their turn.
    making: HashMap<Key, dirs::Making>,
    /// Contents of the current destination directory, if known.
    there: Option<(Key, Option<Contents>)>,
    /// Walked trees, with their destinations.
    trees: Vec<(Key, Key)>,
    /// Directories whose times and modes are set at the end, in order of creation.
    dirs: Vec<(Key, Attributes)>,
    /// The names in use.
    cases: Cases,
    /// The names to check at the destination.
    kept: ArrivedObjects,
}

impl Run<'_> {
    /// Starts an object of a tree as soon as there is room for it.
    async fn file_of_tree(&mut self, from: Key, to: Key, meta: Meta) {
        let known = self.known(&to).await;
        self.begin(One { job: self.job.clone(), from, to, meta, known, needs_parent: false }).await;
    }

    /// Starts any object.
    async fn file(&mut self, from: Key, to: Key, meta: Meta) {
        self.begin(One { job: self.job.clone(), from, to, meta, known: None, needs_parent: true }).await;
    }

    async fn begin(&mut self, one: One) {
        if let Some(error) = self.is_in_closed(&one.to) {
            return self.failed(one.to, error);
        }
        if let Err(error) = self.must_be_apart(&one.to).await {
            return self.failed(one.to, error);
        }
        if self.batches.fits(&one) {
            self.begins(&one.to, one.needs_parent).await;
            if let Some(full) = self.batches.push(one) {
                self.begin_batch(full).await;
            }
            return;
        }
        // A short object takes one unit, a long one several, according to the limits.
        let (long, short) = (self.job.files.max(1), self.job.short.max(1));
        let cost = if one.meta.size.is_some_and(|size| size <= SHORT) { long } else { short };
        self.make_room(cost).await;
        if !self.report.stopped {
            self.taken += cost;
            self.begins(&one.to, one.needs_parent).await;
            self.tasks.spawn(async move { Ended { cost, objects: vec![one.run().await] } });
        }
    }

    /// Starts a batch as soon as there is room for it.
    async fn begin_batch(&mut self, batch: Vec<One>) {
        let cost = (self.job.files.max(1) * self.job.short.max(1)).div_ceil(batch::AT_ONCE);
        self.make_room(cost).await;
        if !self.report.stopped {
            self.taken += cost;
            let (runtime, job_alive) = (Handle::current(), self.batches.job_alive());
            let open_max = self.batches.open_max();
            self.tasks.spawn_blocking(move || Ended {
                cost,
                objects: runtime.block_on(batch::carry(batch, open_max, job_alive)),
            });
        }
    }

    /// Starts the batch that is not full yet, before something that may take long.
    async fn begin_rest(&mut self) {
        if let Some(rest) = self.batches.rest() {
            self.begin_batch(rest).await;
        }
    }

    /// Waits until `cost` units are free, or everything has ended.
    async fn make_room(&mut self, cost: usize) {
        let (long, short) = (self.job.files.max(1), self.job.short.max(1));
        while self.taken > 0 && self.taken + cost > long * short {
            self.join().await;
        }
    }

    /// Fails if the destination takes `key`, or a directory above it, for another name that was given to it.
    async fn must_be_apart(&mut self, key: &Key) -> Result<(), Error> {
        let Some(met) = self.cases.give(key).filter(|_| !self.job.dry_run) else { return Ok(()) };
        // An object that exists by then is complete.
        self.join_all().await;
        keeps_apart(&*self.job.dest, &met).await?;
        self.cases.mark_distinct(&met);
        Ok(())
    }

    /// Metadata of `key` at a remote destination, from a listing of its directory.
    async fn known(&mut self, key: &Key) -> Option<Option<Meta>> {
        let dest = &self.job.dest;
        if !dest.is_far() {
            return None;
        }
        let dir = key.parent();
        if self.there.as_ref().is_none_or(|(known, _)| *known != dir) {
            // A new directory is empty. Without a listing, each name is asked for.
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
            // For a link, its target matters.
            Some(meta) if meta.kind == Kind::Link => None,
            Some(meta) => Some(Some(*meta)),
        }
    }

    /// Starts what waits, and waits until everything has ended.
    async fn join_all(&mut self) {
        self.begin_rest().await;
        while self.join().await {}
    }

    /// Waits for an object or a batch to end. False if none is in progress.
    async fn join(&mut self) -> bool {
        match self.tasks.join_next().await {
            None => return false,
            Some(Ok(Ended { cost, objects })) => {
                self.taken -= cost;
                for (key, came) in objects {
                    let carried = match &came {
                        Ok(ObjectOutcome::Carried(done, _)) => Some(done.size),
                        _ => None,
                    };
                    self.ends(&key, carried).await;
                    self.came(key, came);
                }
            }
            Some(Err(error)) => {
                // The cost of a panicked task is unknown. Once all tasks are gone, nothing is in use.
                self.taken = if self.tasks.is_empty() { 0 } else { self.taken };
                let error = Error::io(self.job.dest.name(), "go on with", std::io::Error::other(error));
                self.failed(Key::ROOT, error);
            }
        }
        true
    }

    fn came(&mut self, key: Key, came: Result<ObjectOutcome, Error>) {
        match came {
            Err(error) => self.failed(key, error),
            Ok(ObjectOutcome::Carried(done, mode_known)) => {
                self.report.carried += 1;
                self.report.modes_unknown += u64::from(!mode_known);
                self.report.bytes += done.size;
                self.report.moved += done.moved;
            }
            Ok(ObjectOutcome::Skipped) => self.report.skipped += 1,
            Ok(ObjectOutcome::Mode { set }) => {
                self.report.skipped += 1;
                self.report.modes_set += u64::from(set);
                self.report.modes_refused += u64::from(!set);
            }
            Ok(ObjectOutcome::Planned(size)) => {
                self.report.carried += 1;
                self.report.bytes += size;
            }
        }
    }

    fn failed(&mut self, key: Key, error: Error) {
        if matches!(error, Error::Stopped { .. }) {
            // It has not failed, and is not complete.
            self.report.stopped = true;
            return;
        }
        self.job.watcher.saw(&Event::Failed { key: &key, error: &error });
        self.report.stopped |= error.kind() == ErrorKind::NoSpace || self.job.halt.is_halted();
        self.report.note(key, error);
    }

    async fn finish(mut self) -> Report {
        // A move needs to know what is complete, even after a lack of space.
        match self.job.how.stop.is_asked() {
            true => self.leave_names(),
            false => self.look_for_all_names().await,
        }
        // Before the times of directories are set, which removals change.
        self.delete().await;
        if !self.job.dry_run {
            self.job.dest.remove_draft_dirs().await;
        }
        // Resuming an interrupted job requires writable directories.
        let done = !self.job.how.stop.is_asked();
        for (key, attributes) in std::mem::take(&mut self.dirs).into_iter().rev().filter(|_| done) {
            if attributes != Attributes::default()
                && let Err(error) = self.job.dest.set(&key, attributes).await
            {
                self.failed(key, error);
            }
        }
        let Report { carried, deleted, modes_set, dirs, .. } = self.report;
        let has_changed = carried + deleted + modes_set + dirs > 0;
        if !self.job.dry_run
            && has_changed
            && let Err(error) = self.job.dest.settle().await
        {
            self.report.unsettled = true;
            self.failed(Key::ROOT, error);
        }
        self.report
    }
}
