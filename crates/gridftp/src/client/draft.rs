//! A file of a server that is being written: under a hidden name beside its own, until it is complete and verified.
//!
//! What tells drafts apart is a tag of what they are of: the source, when it was modified, its size, and this machine. So the
//! same command finds what it had sent, and no other takes it for its own.

use super::begun::Begun;
use super::error::{bare, passing};
use super::given::{Given, Noted, Queue};
use super::lost::Unsure;
use super::marks::Marks;
use super::modes::{Mode, keeps_own};
use super::object::RemoteObject;
use super::remote::Remote;
use super::resume::{is_long, is_resumable, kept, marks_of, way};
use super::store::{Sending, Upload};
use super::third;
use phoebus_files::block::Block;
use phoebus_files::key::Key;
use phoebus_files::range::{Extent, Ranges};
use phoebus_files::store::{Attributes, Boxed, Draft, Fallible, Flow, Kind, Meta, Object, Spec, Store};
use phoebus_files::sum::{Algorithm, Sum};
use phoebus_files::{Error, Sort};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Files of at most so many bytes are sent sooner than it would be known whether that makes sense.
const BLIND: u64 = 1 << 20;

/// How long a server has to say what is safe of what is given up.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// How long removing what is given up may take.
const FAREWELL: Duration = Duration::from_secs(10);

/// A file that is being written.
pub(super) struct RemoteDraft {
    remote: Remote,
    key: Key,
    /// The name that it has until it is complete.
    part: Key,
    spec: Spec,
    /// Over how many connections it goes as extended blocks, if it does.
    streams: Option<u32>,
    kept: Ranges,
    safe: Arc<Mutex<Ranges>>,
    marks: Option<Marks>,
    /// Where it is noted that it was begun.
    begun: Option<Begun>,
    given: Given,
    state: tokio::sync::Mutex<State>,
    /// Whether it is a device, of which nothing can be asked.
    device: bool,
    /// Whether the server was asked for a checksum of all of it, without which nobody compares anything but sizes.
    summed: AtomicBool,
    /// What the server told.
    told: Mutex<Option<Sum>>,
    /// What has its name, if that was looked at.
    before: Option<Option<Meta>>,
    /// The permissions that are to be set, until that is asked for.
    mode: Mutex<Option<Mode>>,
    /// Whether it is not known if the server gave it its name: then its bytes may be under that alone.
    unsure: AtomicBool,
    /// Whether it was made to be written in place, with nothing in it.
    made: bool,
}

#[derive(Debug)]
enum State {
    Idle,
    /// Blocks that come one by one go into the queue, which is none once all were given or where they are taken from elsewhere.
    Sending(Upload, Option<mpsc::Sender<Block>>),
    Sent,
    /// Why, for all who ask after the first.
    Failed(String, Sort),
}

impl fmt::Debug for RemoteDraft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RemoteDraft").field(&self.name()).finish()
    }
}

impl RemoteDraft {
    pub(super) async fn begin(remote: Remote, key: Key, spec: Spec) -> Result<Self, Error> {
        let name = remote.label(&key);
        let (mut spec, mut device) = (spec, false);
        // What is short is sent without looking: if something else than a file has its name, it does not get it in the end.
        let mut before = None;
        let own = keeps_own(&spec) && !remote.options().in_place;
        let looks = own || !spec.replace || remote.options().in_place || spec.size.is_none_or(|size| size > BLIND);
        if looks {
            // Where nothing may be replaced, what counts is what is there now.
            let found = if spec.replace { remote.recall(&key).await } else { remote.look(&key).await };
            match found {
                // Nothing takes its place, and what is written to it is not kept.
                Ok(meta) if meta.kind == Kind::Device => {
                    (device, spec.source, spec.attributes) = (true, None, Attributes::default());
                }
                Ok(meta) if !matches!(meta.kind, Kind::File | Kind::Link) => {
                    return Err(Error::Kind { name, is: meta.kind.described(), expected: "a file" });
                }
                Ok(_) if !spec.replace => return Err(Error::Exists { name }),
                Ok(meta) if own => before = Some(Some(remote.with_mode(&key, meta).await?)),
                Ok(meta) => before = Some(Some(meta)),
                Err(error) if error.sort() == Sort::NotFound => before = Some(None),
                Err(error) => return Err(error),
            }
        }
        let (streams, part, marks) = match device || remote.options().in_place {
            true => {
                let streams = remote.streams_to_write(spec.size);
                (streams, key.clone(), streams.and_then(|_| marks_of(&remote, &key, &spec)))
            }
            false => {
                let way = way(&remote, &key, &spec).await?;
                if remote.options().partial_dir.is_some() {
                    remote.make_partial_dir(&way.1.parent()).await?;
                }
                way
            }
        };
        let kept = kept(&remote, &part, &spec, streams, marks.as_ref()).await?;
        let begun = Begun::of_draft(&remote, &key, &spec).filter(|_| part != key && is_long(&spec));
        if let Some(begun) = &begun {
            begun.begin(&remote, &part).await;
        }
        if part == key {
            before = remote.0.new_in_place.before(&key, before);
        }
        let mode = Mode::of(&spec, before, part == key);
        let given = Given::beyond(name, kept.clone(), streams.is_none(), spec.sum);
        let state = tokio::sync::Mutex::new(State::Idle);
        let (safe, summed, unsure) = (Arc::default(), AtomicBool::new(false), AtomicBool::new(false));
        let mut draft = Self {
            remote,
            key,
            part,
            spec,
            streams,
            kept,
            safe,
            marks,
            begun,
            given,
            state,
            device,
            summed,
            told: Mutex::default(),
            before,
            mode: Mutex::new(mode),
            made: false,
            unsure,
        };
        draft.made = draft.be_private(mode).await?;
        Ok(draft)
    }

    pub(super) fn key(&self) -> &Key {
        &self.key
    }

    /// Whether nothing had its name.
    pub(super) fn is_new(&self) -> bool {
        matches!(self.before, Some(None))
    }

    pub(super) fn remote(&self) -> &Remote {
        &self.remote
    }

    /// As errors call it.
    pub(super) fn label(&self) -> String {
        self.remote.label(&self.key)
    }

    /// The name that it has until it is complete.
    pub(super) fn part(&self) -> &Key {
        &self.part
    }

    /// The same as the server knows it.
    pub(super) fn path(&self) -> Result<Vec<u8>, Error> {
        self.remote.path(&self.part)
    }

    /// Begins to send all of `flow`, adding to `moved` what has gone.
    fn send(&self, flow: Arc<dyn Flow>, moved: Arc<AtomicU64>) -> Result<Upload, Error> {
        Ok(Upload::begin(self.remote.clone(), self.sending()?, flow, moved))
    }

    /// What goes to the server, from here or from another one.
    pub(super) fn sending(&self) -> Result<Sending, Error> {
        // A name that cannot be said is the file's own.
        self.remote.path(&self.key)?;
        Ok(Sending {
            name: self.name(),
            path: self.remote.path(&self.part)?,
            size: self.spec.size,
            streams: self.streams,
            kept: self.kept.clone(),
            safe: self.safe.clone(),
            marks: self.marks.clone(),
            first: self.first(*self.mode.lock().unwrap_or_else(PoisonError::into_inner))?,
        })
    }

    /// Begins to send what is then given block by block.
    fn send_queued(&self) -> Result<State, Error> {
        let (queue, blocks) = Queue::new();
        Ok(State::Sending(self.send(Arc::new(blocks), Arc::default())?, Some(queue)))
    }

    /// The failure that ended it, for whoever asks once more.
    fn again(&self, reason: &str, sort: Sort) -> Error {
        Error::Store { name: self.name(), reason: reason.to_owned(), sort }
    }

    /// Waits until the server has all that was given.
    async fn finish(&self) -> Result<(), Error> {
        let mut state = self.state.lock().await;
        if matches!(*state, State::Idle) {
            // A file of no bytes, or one of which the server has all.
            let all = self.spec.size.is_some_and(|size| size > 0 && self.kept.covers(Extent::first(size)));
            *state = if all { State::Sent } else { self.send_queued()? };
        }
        match &mut *state {
            State::Sending(upload, queue) => {
                *queue = None;
                let ended = upload.end().await;
                *state = match &ended {
                    Ok(()) => State::Sent,
                    Err(error) => State::Failed(bare(error, &self.name()), error.sort()),
                };
                ended
            }
            State::Failed(reason, sort) => Err(self.again(reason, *sort)),
            State::Idle | State::Sent => Ok(()),
        }
    }

    /// The permissions that are to be set, once.
    fn mode_to_set(&self) -> Option<Mode> {
        self.mode.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Makes sure that what has its name now is what was compared, where others may have given it another while it had none.
    async fn is_what_came(&self, size: u64) -> Result<(), Error> {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(expected) = told else {
            return match self.remote.look(&self.key).await?.size {
                Some(there) if there != size => {
                    let reason = format!("the server has {there} bytes of it now, and {size} were sent");
                    Err(Error::Store { name: self.name(), reason, sort: Sort::Verification })
                }
                _ => Ok(()),
            };
        };
        let found = self.remote.checksum(&self.key, &self.name(), expected.algorithm(), None, size).await?;
        if found == expected { Ok(()) } else { Err(Error::Mismatch { name: self.name(), expected, found }) }
    }

    fn complete(&self, size: u64) -> Result<(), Error> {
        let missing = self.given.ranges().missing(Extent::first(size)).total();
        if missing > 0 { Err(Error::Incomplete { name: self.name(), missing, size }) } else { Ok(()) }
    }
}

impl Draft for RemoteDraft {
    fn name(&self) -> String {
        self.label()
    }

    fn kept(&self) -> Ranges {
        self.kept.clone()
    }

    fn is_ordered(&self) -> bool {
        self.streams.is_none()
    }

    fn fetch<'a>(
        &'a self,
        object: &'a dyn Object,
        missing: &'a Ranges,
        moved: &'a (dyn Fn(u64) + Send + Sync),
    ) -> Fallible<'a, bool> {
        Box::pin(async move {
            let Some(object) = object.as_any().and_then(|any| any.downcast_ref::<RemoteObject>()) else {
                return Ok(false);
            };
            if let Some(marks) = self.marks.as_ref().filter(|_| self.kept.is_empty()) {
                marks.remove();
            }
            if !third::fetch(self, object, missing, moved).await? {
                return Ok(false);
            }
            self.given.has(missing);
            *self.state.lock().await = State::Sent;
            Ok(true)
        })
    }

    fn takes_lent(&self) -> bool {
        self.remote.plan().is_plain()
    }

    fn is_resumable(&self) -> bool {
        self.marks.is_some() || is_resumable(&self.remote, &self.spec, self.streams)
    }

    fn drain(&self, flow: &Arc<dyn Flow>, moved: &Arc<AtomicU64>) -> Option<Fallible<'_, ()>> {
        let flow = Arc::new(Noted::of(flow.clone(), self.given.clone()));
        let moved = moved.clone();
        Some(Box::pin(async move {
            {
                let mut state = self.state.lock().await;
                let State::Idle = &*state else {
                    return Err(Error::Beyond { name: self.name(), extent: Extent::first(u64::MAX) });
                };
                *state = State::Sending(self.send(flow.clone(), moved)?, None);
            }
            tokio::select! {
                biased;
                taken = flow.taken() => taken,
                // Before all was taken it can only have failed; or it lacks something, which is found in the end.
                ended = self.finish() => ended,
            }
        }))
    }

    fn write(&self, block: Block) -> Fallible<'_, ()> {
        Box::pin(async move {
            let queue = {
                let mut state = self.state.lock().await;
                if matches!(*state, State::Idle) {
                    *state = self.send_queued()?;
                }
                match &*state {
                    State::Sending(_, Some(queue)) => queue.clone(),
                    State::Failed(reason, sort) => return Err(self.again(reason, *sort)),
                    _ => {
                        let extent = block.extent().unwrap_or(Extent::first(u64::MAX));
                        return Err(Error::Beyond { name: self.name(), extent });
                    }
                }
            };
            if !self.given.note(&block)? {
                return Ok(());
            }
            match queue.send(block).await {
                Ok(()) => Ok(()),
                // The upload has ended before all was given, and says why.
                Err(_) => {
                    drop(queue);
                    self.finish().await?;
                    Err(passing(&self.name(), "the server took no more before all was sent"))
                }
            }
        })
    }

    fn flush(&self) -> Fallible<'_, ()> {
        Box::pin(self.finish())
    }

    fn checkpoint(&self) -> Fallible<'_, Ranges> {
        Box::pin(async {
            let mut safe = self.kept.clone();
            safe.extend(self.safe.lock().unwrap_or_else(PoisonError::into_inner).iter());
            Ok(safe)
        })
    }

    fn given(&self, size: u64) -> Option<Sum> {
        Some(&self.given).filter(|_| self.kept.is_empty())?.total(size)
    }

    fn checksum(&self, algorithm: Algorithm) -> Fallible<'_, Sum> {
        Box::pin(async move {
            self.finish().await?;
            self.summed.store(true, Ordering::Relaxed);
            let size = self.given.ranges().total();
            // What its owner may not read has no checksum: that comes after it.
            let mode = {
                let mut set = self.mode.lock().unwrap_or_else(PoisonError::into_inner);
                let mode = set.map(Mode::readable);
                set.take_if(|set| Some(*set) == mode);
                mode
            };
            let sum = self.remote.checksum_with(&self.part, &self.key, mode, algorithm, size).await?;
            *self.told.lock().unwrap_or_else(PoisonError::into_inner) = Some(sum.clone());
            Ok(sum)
        })
    }

    fn publish(&self, size: u64) -> Fallible<'_, ()> {
        Box::pin(async move {
            self.complete(size)?;
            self.finish().await?;
            let bytes = size;
            // A checksum says more than a size, and a device has none.
            let size = Some(size).filter(|_| !self.device && !self.summed.load(Ordering::Relaxed));
            let set = (self.mode_to_set(), self.spec.attributes.modified);
            self.remote.finish(&self.part, &self.key, set, size).await?;
            if let Some(marks) = &self.marks {
                marks.remove();
            }
            if self.part == self.key {
                self.remote.forget(&self.key);
                self.remote.0.new_in_place.forget(&self.key);
                return Ok(());
            }
            if !self.spec.replace {
                self.remote.must_be_free(&self.key).await?;
            }
            let (part, key, spec) = (self.part.clone(), self.key.clone(), self.spec.clone());
            let sum = self.given.total(bytes).filter(|_| self.kept.is_empty());
            let one = Unsure { part, key, spec, size: bytes, before: self.before, sum };
            let named = self.remote.give_name(one).await;
            let unsure = named.as_ref().is_err_and(|error| error.sort() == Sort::Passing);
            self.unsure.store(unsure, Ordering::Relaxed);
            if let Some(begun) = self.begun.as_ref().filter(|_| named.is_ok()) {
                begun.end(&self.part);
            }
            named?;
            if self.remote.may_be_anybodys(&self.part.parent()) { self.is_what_came(bytes).await } else { Ok(()) }
        })
    }

    fn abandon(&self, keep: bool) -> Boxed<'_, ()> {
        Box::pin(async move {
            let before = {
                let mut state = self.state.lock().await;
                std::mem::replace(&mut *state, State::Failed("it was given up".to_owned(), Sort::Other))
            };
            let begun = !matches!(before, State::Idle);
            if self.part != self.key {
                self.remote.0.partial_dirs.forget(&self.part.parent());
            }
            // What is under way is cut, once the server has said what it has.
            if let State::Sending(upload, _) = before
                && keep
                && self.marks.is_some()
            {
                upload.stop(LAST_WORDS).await;
            }
            // A server that was cut off may still be about to give it its name.
            if self.unsure.load(Ordering::Relaxed)
                || (keep && self.is_resumable())
                || (!begun && !self.made && self.kept.is_empty())
            {
                return;
            }
            if let Some(marks) = &self.marks {
                marks.remove();
            }
            if self.device {
                return;
            }
            // What is left behind is in nobody's way but that of a listing of hidden names.
            let removed = timeout(FAREWELL, self.remote.remove(&self.part)).await;
            if let Some(begun) = self.begun.as_ref().filter(|_| removed.is_ok_and(|removed| removed.is_ok())) {
                begun.end(&self.part);
            }
        })
    }
}
