//! Batches of short objects.
//!
//! - Between local stores, one thread carries a batch: each object up to its sync, then one sync for all, then their names.
//!   Handing each of some forty calls to another thread costs several times what the calls do.
//! - To and from a store that can do so ([`store::Batches`](crate::store::Batches)), a batch goes in one exchange instead
//!   of several for each object. What the exchange leaves is carried alone, which tells why.

use super::one::{ObjectOutcome, One, shown};
use super::{Event, Job, SHORT};
use crate::error::Error;
use crate::key::Key;
use crate::plan::{Decision, Existing, Reason};
use crate::range::Extent;
use crate::store::{
    Attributes, Fallible, Kind, Meta, OnThread, ShortObject, Store, ThreadStore, on_this_thread, run_on_this_thread,
};
use crate::sum::Algorithm;
use crate::transfer::{Done, Verify};
use std::sync::Arc;
use tokio::sync::watch;

/// Batches that are carried at a time: while one waits for the disk or the network, others have something to do.
pub(super) const AT_ONCE: usize = 3;

/// Most objects of a batch between local stores. Each has two open files, if the process may have so many ([`open_max`]).
const OBJECTS: usize = 128;

/// Fewer are carried one by one.
const BATCH_MIN: usize = 8;

/// Open files that are left to the rest of the program.
const OTHER_FILES: u64 = 96;

/// Most bytes of a batch, so that its sync is short, and its memory bounded.
const BYTES: u64 = 16 << 20;

/// The result of an object.
type ObjectResult = (Key, Result<ObjectOutcome, Error>);

/// The batch that is being gathered.
pub(super) struct Batches {
    /// Most objects of a batch. `None`: there are no batches.
    most: Option<usize>,
    /// Most of them that have files open.
    open_max: usize,
    ones: Vec<One>,
    bytes: u64,
    /// Batches end early once it is dropped, with the job.
    job_alive: watch::Sender<()>,
}

impl Batches {
    pub(super) fn of(job: &Job) -> Self {
        let is_local = |store: &Arc<dyn Store>| store.on_this_thread().is_some();
        let open_max = open_max();
        let most = match (is_local(&job.source), is_local(&job.dest)) {
            _ if open_max < BATCH_MIN => None,
            (true, true) => Some(open_max),
            (true, false) => job.dest.batches().filter(|with| is_exchanged(job, *with)).map(|with| with.most()),
            (false, true) => job.source.batches().filter(|with| is_exchanged(job, *with)).map(|with| with.most()),
            _ => None,
        };
        // A throttled batch would hold up the files behind it.
        let most = most.filter(|_| job.how.throttle.is_none());
        Self { most, open_max, ones: Vec::new(), bytes: 0, job_alive: watch::Sender::new(()) }
    }

    /// Whether `one` belongs to a batch. What is at a remote destination has to be known: asking for each would take longer
    /// than the exchange.
    pub(super) fn fits(&self, one: &One) -> bool {
        let is_short = one.meta.kind == Kind::File && one.meta.size.is_some_and(|size| size <= SHORT);
        self.most.is_some() && is_short && (one.known.is_some() || !one.job.dest.is_far())
    }

    /// Adds `one`. Returns the batch if it is full.
    pub(super) fn push(&mut self, one: One) -> Option<Vec<One>> {
        self.bytes += one.meta.size.unwrap_or(0);
        self.ones.push(one);
        if Some(self.ones.len()) >= self.most || self.bytes >= BYTES { self.rest() } else { None }
    }

    /// Most objects of a batch that have files open.
    pub(super) fn open_max(&self) -> usize {
        self.open_max
    }

    /// Lasts as long as the job.
    pub(super) fn job_alive(&self) -> watch::Receiver<()> {
        self.job_alive.subscribe()
    }

    /// The batch as it is. `None` if it is empty.
    pub(super) fn rest(&mut self) -> Option<Vec<One>> {
        self.bytes = 0;
        Some(std::mem::take(&mut self.ones)).filter(|ones| !ones.is_empty())
    }
}

/// Objects of each batch that may have files open, each two.
fn open_max() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    let each = limit.saturating_sub(OTHER_FILES) / (2 * AT_ONCE as u64);
    usize::try_from(each).unwrap_or(OBJECTS).min(OBJECTS)
}

/// Whether what a user has asked for can be had of an exchange, which replaces what is there and compares one checksum.
fn is_exchanged(job: &Job, with: &dyn crate::store::Batches) -> bool {
    let algorithm = match job.how.verify {
        Verify::None | Verify::Possible => None,
        Verify::Flight(algorithm) | Verify::Reread(algorithm) => algorithm,
    };
    let replaces = !matches!(job.existing, Existing::Refuse | Existing::Keep);
    algorithm.is_none_or(|algorithm| algorithm == with.algorithm())
        && replaces
        && !job.dest.writes_in_place()
        && !job.dry_run
}

/// Carries a batch on the current thread, which it blocks. Ends early, as an aborted task would, if `job_alive` is gone.
/// At most `open_max` objects have files open at a time.
pub(super) async fn carry(mut batch: Vec<One>, open_max: usize, job_alive: watch::Receiver<()>) -> Vec<ObjectResult> {
    let Some(job) = batch.first().map(|one| one.job.clone()) else { return Vec::new() };
    let ((source, _), (dest, syncs)) = (on_this_thread(&job.source), on_this_thread(&job.dest));
    for one in &mut batch {
        (one.job.source, one.job.dest) = (source.clone(), dest.clone());
    }
    let thread = Thread { syncs, open_max, job_alive };
    match (source.batches(), dest.batches()) {
        (_, Some(_)) => put(&job, &*dest, batch, &thread).await,
        (Some(_), _) => get(&job, &*source, batch, &thread).await,
        _ => thread.run(batch.into_iter().map(|one| (one.to.clone(), Box::pin(one.run()) as _)), open_max).await,
    }
}

/// The thread that carries a batch.
struct Thread {
    syncs: Option<Arc<dyn ThreadStore>>,
    open_max: usize,
    job_alive: watch::Receiver<()>,
}

impl Thread {
    /// Whether the job is gone.
    fn is_unwanted(&self) -> bool {
        self.job_alive.has_changed().is_err()
    }

    /// Carries objects, each to its key, at most `most` at a time.
    async fn run(
        &self,
        work: impl IntoIterator<Item = (Key, OnThread<ObjectResult>)>,
        most: usize,
    ) -> Vec<ObjectResult> {
        let (keys, work): (Vec<Key>, Vec<_>) = work.into_iter().unzip();
        let results = run_on_this_thread(work, most, self.syncs.as_deref(), self.job_alive.clone()).await;
        let lost = |key: Key| {
            let source = std::io::Error::other("its task ended before it did");
            let error = Error::Io { name: key.to_string(), act: "go on with", source };
            (key, Err(error))
        };
        keys.into_iter().zip(results).map(|(key, result)| result.unwrap_or_else(|| lost(key))).collect()
    }

    /// Carries what an exchange has left, as few at a time as without batches.
    async fn run_alone(&self, job: &Job, rest: Vec<(Remaining, One)>) -> Vec<ObjectResult> {
        let work = rest.into_iter().map(|(left, one)| {
            let key = one.to.clone();
            let work: OnThread<ObjectResult> = match left {
                Remaining::Stopped => Box::pin(async move { one.stopped() }),
                Remaining::Undecided => Box::pin(one.run()),
                Remaining::ToCarry => Box::pin(one.carry_alone()),
            };
            (key, work)
        });
        self.run(work, job.short.max(1).div_ceil(AT_ONCE)).await
    }
}

/// Why an exchange has left an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Remaining {
    /// Whether to carry it is not decided.
    Undecided,
    /// It is to be carried.
    ToCarry,
    /// The job was asked to stop.
    Stopped,
}

impl Remaining {
    fn or_stopped(self, job: &Job) -> Self {
        if job.how.stop.is_asked() { Self::Stopped } else { self }
    }
}

/// Carries a batch to a store.
async fn put(job: &Job, dest: &dyn Store, batch: Vec<One>, thread: &Thread) -> Vec<ObjectResult> {
    let (mut rest, mut ones, mut objects) = (Vec::new(), Vec::new(), Vec::new());
    let mut bytes = 0;
    let algorithm = dest.batches().map_or(Algorithm::Crc32c, |batches| batches.algorithm());
    for one in batch {
        // Files may have grown since they were listed.
        let may_read = bytes < 2 * BYTES && !job.how.stop.is_asked() && !thread.is_unwanted();
        let reason = one.reason_to_carry(one.known).filter(|_| may_read);
        let read = match reason {
            Some(reason) => one.read_short(algorithm).await.ok().map(|object| (reason, object)),
            None => None,
        };
        match read {
            Some((reason, object)) => {
                one.tell(reason);
                bytes += object.bytes.len() as u64;
                objects.push(object);
                ones.push(one);
            }
            None => rest.push((Remaining::Undecided.or_stopped(job), one)),
        }
    }
    let under_way = job.how.stop.begin();
    let stored = exchange(job, dest, thread, |batches| batches.put(&objects)).await;
    if stored.is_none()
        && let Some(batches) = dest.batches().filter(|_| job.how.stop.is_asked())
    {
        batches.abandon(&objects).await;
    }
    drop(under_way);
    let mut stored = stored.unwrap_or_default().into_iter();
    let mut ended = Vec::new();
    for (one, object) in ones.into_iter().zip(objects) {
        match stored.next().unwrap_or(false) {
            true => ended.push(one.carried(&object)),
            false => rest.push((Remaining::ToCarry.or_stopped(job), one)),
        }
    }
    ended.extend(thread.run_alone(job, rest).await);
    ended
}

/// Carries a batch from a store.
async fn get(job: &Job, source: &dyn Store, batch: Vec<One>, thread: &Thread) -> Vec<ObjectResult> {
    let (mut rest, mut ones) = (Vec::new(), Vec::new());
    for one in batch {
        let there = match one.job.dest.stat_to_write(&one.to).await {
            _ if thread.is_unwanted() => None,
            Ok(there) => Some(Some(there)),
            Err(Error::NotFound { .. }) => Some(None),
            Err(_) => None,
        };
        match one.reason_to_carry(there).filter(|_| !job.how.stop.is_asked()) {
            Some(reason) => {
                one.tell(reason);
                ones.push(one);
            }
            None => rest.push((Remaining::Undecided.or_stopped(job), one)),
        }
    }
    let keys: Vec<Key> = ones.iter().map(|one| one.from.clone()).collect();
    let objects = exchange(job, source, thread, |batches| batches.get(&keys)).await.unwrap_or_default();
    let mut objects = objects.into_iter();
    let mut got = Vec::new();
    for one in ones {
        match objects.next().flatten() {
            Some(object) => got.push((one.to.clone(), Box::pin(one.store_short(object)) as _)),
            None => rest.push((Remaining::ToCarry.or_stopped(job), one)),
        }
    }
    let mut ended = thread.run(got, thread.open_max).await;
    ended.extend(thread.run_alone(job, rest).await);
    ended
}

/// An exchange with `store`, unless the job is asked to stop or gone. What it does not do is carried alone, and meets the same
/// error.
async fn exchange<'a, T>(
    job: &Job,
    store: &'a dyn Store,
    thread: &Thread,
    begin: impl FnOnce(&'a dyn crate::store::Batches) -> Fallible<'a, T>,
) -> Option<T> {
    let batches = store.batches().filter(|_| !job.how.stop.is_asked())?;
    let _under_way = job.how.stop.begin();
    let mut job_alive = thread.job_alive.clone();
    tokio::select! {
        done = begin(batches) => done.ok(),
        () = job.how.stop.asked() => None,
        _ = job_alive.changed() => None,
    }
}

impl One {
    /// Why it is to be carried, if that is certain from what is `known` of the destination alone.
    fn reason_to_carry(&self, known: Option<Option<Meta>>) -> Option<Reason> {
        let known = known?;
        match self.job.existing.decide(&self.meta, known.as_ref()) {
            // What is there and is no file is refused with an error of its own.
            Decision::Carry(reason) if known.is_none_or(|meta| meta.kind == Kind::File) => Some(reason),
            _ => None,
        }
    }

    fn tell(&self, reason: Reason) {
        self.job.watcher.saw(&Event::Carry { from: &self.from, to: &self.to, meta: &self.meta, reason });
    }

    /// Reads all of the source, if it is short.
    async fn read_short(&self, algorithm: Algorithm) -> Result<ShortObject, Error> {
        let object = self.job.source.open(&self.from).await?;
        let (meta, how) = (*object.meta(), &self.job.how);
        let is_short = meta.kind == Kind::File && meta.size.is_some_and(|size| size <= SHORT);
        let size = meta.size.filter(|_| is_short);
        let size = size.ok_or_else(|| Error::Changed { name: object.name() })?;
        let bytes = object.read(&[Extent::first(size)]).await?.pop().unwrap_or_default();
        if (bytes.len() as u64) < size {
            return Err(Error::Short { name: object.name(), at: bytes.len() as u64, expected: size });
        }
        object.unchanged().await?;
        let mode = meta.mode.or(self.meta.mode);
        Ok(ShortObject {
            key: self.to.clone(),
            sum: ShortObject::sum_of(&bytes, algorithm),
            bytes,
            attributes: Attributes { mode: mode.filter(|_| how.modes), modified: meta.modified.filter(|_| how.times) },
            at_most: mode.filter(|_| !how.modes),
            before: self.known,
        })
    }

    /// Stores what was got of the source.
    async fn store_short(self, object: ShortObject) -> ObjectResult {
        let how = &self.job.how;
        let mode = object.attributes.mode.or(self.meta.mode);
        let attributes =
            Attributes { mode: mode.filter(|_| how.modes), modified: object.attributes.modified.filter(|_| how.times) };
        let (key, at_most) = (self.to.clone(), mode.filter(|_| !how.modes));
        let object = ShortObject { key, attributes, at_most, ..object };
        let stop = how.stop.clone();
        let stored = {
            let _under_way = stop.begin();
            object.clone().store(&*self.job.dest).await
        };
        match stored {
            Ok(()) => self.carried(&object),
            Err(_) if stop.is_asked() => self.stopped(),
            Err(_) => self.carry_alone().await,
        }
    }

    fn stopped(&self) -> ObjectResult {
        (self.to.clone(), Err(Error::Stopped { name: shown(&*self.job.dest, &self.to) }))
    }

    /// Tells that it was carried.
    fn carried(&self, object: &ShortObject) -> ObjectResult {
        let size = object.bytes.len() as u64;
        let how = &self.job.how;
        how.progress.moved(size);
        let verified = Some(object.sum.clone()).filter(|_| how.verify != Verify::None);
        let done = Done { size, moved: size, verified };
        self.job.watcher.saw(&Event::Carried { to: &self.to, done: &done });
        (
            self.to.clone(),
            Ok(ObjectOutcome::Carried(done, self.meta.mode.is_some() || object.attributes.mode.is_some())),
        )
    }
}
