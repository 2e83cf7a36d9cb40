//! An upload as a draft of the file engine.

use super::draft::{RemoteDraft, State};
use super::error::passing;
use super::known::Unsure;
use super::ledger::Noted;
use super::modes::Mode;
use super::object::RemoteObject;
use super::resume::is_resumable;
use super::third;
use bytes::Bytes;
use phoebus_files::block::{Block, FileRange};
use phoebus_files::range::{Extent, Ranges};
use phoebus_files::store::{Boxed, Capabilities, Draft, Drain, Fallible, Fetch, Flow, Object, Store, TakeFileRange};
use phoebus_files::sum::{Algorithm, Sum};
use phoebus_files::{Error, ErrorKind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::time::timeout;

/// Time for the server to report what it has synced of an abandoned upload.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Time for removing an abandoned upload.
const FAREWELL: Duration = Duration::from_secs(10);

impl RemoteDraft {
    /// Queues one block.
    async fn queue(&self, block: Block) -> Result<(), Error> {
        let queue = {
            let mut state = self.state.lock().await;
            if matches!(*state, State::Idle) {
                *state = self.send_queued()?;
            }
            match &*state {
                State::Sending(_, Some(queue)) => queue.clone(),
                State::Failed(reason, kind) => return Err(self.again(reason, *kind)),
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
            // The upload has failed; its result has the reason.
            Err(_) => {
                drop(queue);
                self.finish().await?;
                Err(passing(&self.name(), "the server took no more before all was sent"))
            }
        }
    }

    fn is_resumable(&self) -> bool {
        self.marks.is_some() || is_resumable(&self.remote, &self.spec, self.streams)
    }
}

impl Fetch for RemoteDraft {
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
}

impl TakeFileRange for &RemoteDraft {
    fn write_file_range(&self, block: Block<FileRange>) -> Fallible<'_, ()> {
        Box::pin(self.queue(block.into()))
    }
}

impl Drain for RemoteDraft {
    fn drain(&self, flow: &Arc<dyn Flow>, moved: &Arc<AtomicU64>) -> Fallible<'_, ()> {
        let flow = Arc::new(Noted::of(flow.clone(), self.given.clone()));
        let moved = moved.clone();
        Box::pin(async move {
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
                // An upload that ends before all blocks are taken has failed, or lacks bytes, which `finish` notices.
                ended = self.finish() => ended,
            }
        })
    }
}

impl Draft for RemoteDraft {
    fn name(&self) -> String {
        self.label()
    }

    fn kept(&self) -> Ranges {
        self.kept.clone()
    }

    fn capabilities(&self) -> Capabilities<'_> {
        Capabilities {
            resumable: self.is_resumable(),
            ordered: self.streams.is_none(),
            // Objects are read by several readers at a time.
            file_ranges: (self.remote.plan().is_plain() && !self.remote.writes_object(self.spec.size))
                .then(|| Box::new(self) as _),
            drain: Some(self),
            fetch: Some(self),
            ..Capabilities::default()
        }
    }

    fn write(&self, block: Block<Bytes>) -> Fallible<'_, ()> {
        Box::pin(self.queue(block.into()))
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

    fn written_sum(&self, size: u64) -> Option<Sum> {
        Some(&self.given).filter(|_| self.kept.is_empty())?.total(size)
    }

    fn checksum(&self, algorithm: Algorithm) -> Fallible<'_, Sum> {
        Box::pin(async move {
            self.finish().await?;
            self.summed.store(true, Ordering::Relaxed);
            let size = self.given.ranges().total();
            // The checksum needs a readable file, so a mode without read permission follows later.
            let mode = {
                let mut set = self.mode.lock().unwrap_or_else(PoisonError::into_inner);
                let mode = set.map(Mode::readable);
                set.take_if(|set| Some(*set) == mode);
                mode
            };
            let sum = self.remote.checksum_with(&self.part, &self.key, (mode, self.is_ours()), algorithm, size).await?;
            *self.told.lock().unwrap_or_else(PoisonError::into_inner) = Some(sum.clone());
            Ok(sum)
        })
    }

    fn publish(&self, size: u64) -> Fallible<'_, ()> {
        Box::pin(async move {
            self.complete(size)?;
            self.finish().await?;
            let bytes = size;
            // A checksum includes the size, and a device has no size.
            let size = Some(size).filter(|_| !self.device && !self.summed.load(Ordering::Relaxed));
            let set = (self.mode_to_set(), self.spec.attributes.modified);
            let finished = self.remote.finish(&self.part, &self.key, set, size, self.is_ours()).await;
            finished.map_err(|error| self.gone(error))?;
            self.open.take().into_iter().for_each(|code| self.remote.note_not_private(code));
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
            let unsure = named.as_ref().is_err_and(|error| error.kind() == ErrorKind::Passing);
            self.unsure.store(unsure, Ordering::Relaxed);
            if let Some(begun) = self.begun.as_ref().filter(|_| named.is_ok()) {
                begun.end(&self.part);
            }
            named.map_err(|error| self.gone(error))?;
            if self.remote.may_be_anybodys(&self.part.parent()) { self.is_what_came(bytes).await } else { Ok(()) }
        })
    }

    fn abandon(&self, keep: bool) -> Boxed<'_, ()> {
        Box::pin(async move {
            let before = {
                let mut state = self.state.lock().await;
                std::mem::replace(&mut *state, State::Failed("it was given up".to_owned(), ErrorKind::Other))
            };
            let begun = !matches!(before, State::Idle);
            if self.part != self.key {
                self.remote.0.partial_dirs.forget(&self.part.parent());
            }
            // Cut the upload once the server has reported what it has.
            if let State::Sending(upload, _) = before
                && keep
                && self.marks.is_some()
            {
                upload.stop(LAST_WORDS).await;
            }
            // A server may still complete a rename after the connection was lost.
            if self.unsure.load(Ordering::Relaxed)
                || (keep && self.is_resumable())
                || (!begun && !self.is_made.load(Ordering::Relaxed) && self.kept.is_empty())
            {
                return;
            }
            if let Some(marks) = &self.marks {
                marks.remove();
            }
            if self.device {
                return;
            }
            // A leftover draft only shows in listings of hidden names.
            let removed = timeout(FAREWELL, self.remote.remove(&self.part)).await;
            if let Some(begun) = self.begun.as_ref().filter(|_| removed.is_ok_and(|removed| removed.is_ok())) {
                begun.end(&self.part);
            }
        })
    }
}
