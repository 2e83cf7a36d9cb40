//! An upload in progress: a file on the server under a hidden name, until it is complete and verified.
//!
//! The name has a tag of the source, its modification time, its size, this machine, its user, and the destination. So a
//! repeated command finds its draft, and no other command takes it for its own. A lock on this machine keeps two runs of
//! one command apart.

use super::begun::Begun;
use super::error::{bare, passing};
use super::known::EarlyRefusal;
use super::ledger::{Queue, UploadLedger};
use super::modes::{Mode, keeps_own};
use super::remote::Remote;
use super::resume::{is_long, kept, marks_of, way};
use super::store::{Sending, Upload};
use super::upload_journal::UploadJournal;
use super::upload_lock::UploadLock;
use phoebus_files::block::Block;
use phoebus_files::key::Key;
use phoebus_files::range::{Extent, Ranges};
use phoebus_files::store::{Attributes, Draft, Flow, Kind, Meta, Spec};
use phoebus_files::sum::Sum;
use phoebus_files::{Error, ErrorKind};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::mpsc;

/// Files up to this size are sent without first asking about an earlier draft.
const BLIND: u64 = 1 << 20;

/// An upload in progress.
pub(super) struct RemoteDraft {
    pub(super) remote: Remote,
    pub(super) key: Key,
    /// Name until it is complete.
    pub(super) part: Key,
    pub(super) spec: Spec,
    /// Connections for extended blocks; `None` for a stream.
    pub(super) streams: Option<u32>,
    pub(super) kept: Ranges,
    pub(super) safe: Arc<Mutex<Ranges>>,
    pub(super) marks: Option<UploadJournal>,
    /// Record that it was begun.
    pub(super) begun: Option<Begun>,
    pub(super) given: UploadLedger,
    pub(super) state: tokio::sync::Mutex<State>,
    /// Whether the destination is a device, about which queries make no sense.
    pub(super) device: bool,
    /// Whether a checksum of the whole was requested. Without it, only sizes are compared.
    pub(super) summed: AtomicBool,
    /// Checksum that the server computed.
    pub(super) told: Mutex<Option<Sum>>,
    /// Metadata of the destination, if they were read.
    pub(super) before: Option<Option<Meta>>,
    /// Permissions that are still to be set.
    pub(super) mode: Mutex<Option<Mode>>,
    /// Whether a rename may have succeeded although its reply was lost. Then the bytes may be under the final name.
    pub(super) unsure: AtomicBool,
    /// Whether the draft may hold bytes that did not come through here, such as from another server.
    pub(super) is_made: AtomicBool,
    /// The server's refusal to make it private before its first byte.
    pub(super) open: EarlyRefusal,
    /// Held until the draft is dropped.
    _lock: Option<UploadLock>,
}

#[derive(Debug)]
pub(super) enum State {
    Idle,
    /// The queue of blocks that come one by one. `None` after the last, or if a flow is sent.
    Sending(Upload, Option<mpsc::Sender<Block>>),
    Sent,
    /// The failure, for later calls.
    Failed(String, ErrorKind),
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
        // Small files are sent without a look. The final rename still refuses to replace anything but a file.
        let mut before = None;
        let own = keeps_own(&spec) && !remote.options().in_place;
        let looks = own || !spec.replace || remote.options().in_place || spec.size.is_none_or(|size| size > BLIND);
        if looks {
            // Without permission to replace, the current state counts.
            let found = if spec.replace { remote.recall(&key).await } else { remote.look(&key).await };
            match found {
                // A device is not replaced, and keeps nothing that is written.
                Ok(meta) if meta.kind == Kind::Device => {
                    (device, spec.source, spec.attributes) = (true, None, Attributes::default());
                }
                Ok(meta) if !matches!(meta.kind, Kind::File | Kind::Link) => {
                    return Err(Error::Kind { name, is: meta.kind.described(), expected: "a file" });
                }
                Ok(_) if !spec.replace => return Err(Error::Exists { name }),
                Ok(meta) if own => before = Some(Some(remote.with_mode(&key, meta).await?)),
                Ok(meta) => before = Some(Some(meta)),
                Err(error) if error.kind() == ErrorKind::NotFound => before = Some(None),
                Err(error) => return Err(error),
            }
        }
        let (lock, (streams, part, marks)) = match device || remote.options().in_place {
            true => {
                let streams = remote.streams_to_write(spec.size);
                let marks = streams.and_then(|_| marks_of(&remote, &key, &spec));
                (if device { None } else { lock(&remote, &key, &key)? }, (streams, key.clone(), marks))
            }
            false => {
                let mut draft = way(&remote, &key, &spec, "").await?;
                let lock = lock(&remote, &key, &draft.1)?;
                if lock.is_none() {
                    // Without a lock, another run could write to a draft of that name. This one's are its own.
                    draft = way(&remote, &key, &spec, &remote.0.run).await?;
                }
                if remote.options().partial_dir.is_some() {
                    remote.make_partial_dir(&draft.1.parent()).await?;
                }
                (lock, draft)
            }
        };
        let kept = kept(&remote, &part, &spec, streams, marks.as_ref()).await?;
        let begun = match Begun::of_draft(&remote, &key, &spec).filter(|_| part != key) {
            Some(begun) if is_long(&spec) => {
                begun.begin(&remote, &part).await;
                Some(begun)
            }
            // The source may have been longer when a draft was cut.
            Some(begun) => {
                begun.clear(&remote, &part).await;
                None
            }
            None => None,
        };
        if part == key {
            before = remote.0.new_in_place.before(&key, before);
        }
        let mode = Mode::of(&spec, before, part == key);
        let given = UploadLedger::beyond(name, kept.clone(), streams.is_none(), spec.sum);
        let state = tokio::sync::Mutex::new(State::Idle);
        let (safe, summed, unsure) = (Arc::default(), AtomicBool::new(false), AtomicBool::new(false));
        let draft = Self {
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
            is_made: AtomicBool::new(false),
            open: EarlyRefusal::default(),
            unsure,
            _lock: lock,
        };
        let made_private = draft.be_private(mode).await;
        if made_private.is_err() && draft.is_made.load(Ordering::Relaxed) {
            draft.abandon(false).await;
        }
        made_private.map(|()| draft)
    }

    pub(super) fn key(&self) -> &Key {
        &self.key
    }

    /// Whether the destination did not exist.
    pub(super) fn is_new(&self) -> bool {
        matches!(self.before, Some(None))
    }

    /// Whether this client created the file that it writes.
    pub(super) fn is_ours(&self) -> bool {
        self.part != self.key || self.is_new()
    }

    pub(super) fn remote(&self) -> &Remote {
        &self.remote
    }

    /// Name in errors.
    pub(super) fn label(&self) -> String {
        self.remote.label(&self.key)
    }

    /// Name until it is complete.
    pub(super) fn part(&self) -> &Key {
        &self.part
    }

    /// The same as a path of the server.
    pub(super) fn path(&self) -> Result<Vec<u8>, Error> {
        self.remote.path(&self.part)
    }

    /// Starts to send all of `flow`. Adds sent bytes to `moved`.
    pub(super) fn send(&self, flow: Arc<dyn Flow>, moved: Arc<AtomicU64>) -> Result<Upload, Error> {
        Ok(Upload::begin(self.remote.clone(), self.sending()?, flow, moved))
    }

    /// The upload, from here or from another server.
    pub(super) fn sending(&self) -> Result<Sending, Error> {
        // A name that cannot be sent fails as the file's error.
        self.remote.path(&self.key)?;
        Ok(Sending {
            name: self.name(),
            path: self.remote.path(&self.part)?,
            size: self.spec.size,
            streams: self.streams,
            as_object: false,
            kept: self.kept.clone(),
            safe: self.safe.clone(),
            marks: self.marks.clone(),
            is_stopped: Arc::default(),
            no_data: Arc::default(),
            refused: Arc::default(),
            private_line: self.private_line_at_begin(*self.mode.lock().unwrap_or_else(PoisonError::into_inner))?,
            open: self.open.clone(),
        })
    }

    /// Starts an upload of blocks that follow one by one.
    pub(super) fn send_queued(&self) -> Result<State, Error> {
        let (queue, blocks) = Queue::new();
        Ok(State::Sending(self.send(Arc::new(blocks), Arc::default())?, Some(queue)))
    }

    /// The failure, for a repeated call.
    pub(super) fn again(&self, reason: &str, kind: ErrorKind) -> Error {
        Error::Store { name: self.name(), reason: reason.to_owned(), kind }
    }

    /// The error of a draft that is no longer there: another transfer to the same name has published or removed it, and
    /// a new attempt may succeed.
    pub(super) fn gone(&self, error: Error) -> Error {
        if error.kind() != ErrorKind::NotFound {
            return error;
        }
        let reason = "its draft is gone; another transfer to the same name may have published or removed it";
        passing(&self.name(), reason)
    }

    /// Waits until the server has everything.
    pub(super) async fn finish(&self) -> Result<(), Error> {
        let mut state = self.state.lock().await;
        if matches!(*state, State::Idle) {
            // The file is empty, or the server had all of it.
            let all = self.spec.size.is_some_and(|size| size > 0 && self.kept.covers(Extent::first(size)));
            *state = if all { State::Sent } else { self.send_queued()? };
        }
        match &mut *state {
            State::Sending(upload, queue) => {
                *queue = None;
                let ended = upload.end().await;
                *state = match &ended {
                    Ok(()) => State::Sent,
                    Err(error) => State::Failed(bare(error, &self.name()), error.kind()),
                };
                ended
            }
            State::Failed(reason, kind) => Err(self.again(reason, *kind)),
            State::Idle | State::Sent => Ok(()),
        }
    }

    /// The permissions to set, once.
    pub(super) fn mode_to_set(&self) -> Option<Mode> {
        self.mode.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Verifies that the published file is the one that was compared, if others could replace it after the rename.
    pub(super) async fn is_what_came(&self, size: u64) -> Result<(), Error> {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(expected) = told else {
            return match self.remote.look(&self.key).await?.size {
                Some(there) if there != size => {
                    let reason = format!("the server has {there} bytes of it now, and {size} were sent");
                    Err(Error::Store { name: self.name(), reason, kind: ErrorKind::Verification })
                }
                _ => Ok(()),
            };
        };
        let found = self.remote.checksum(&self.key, &self.name(), expected.algorithm(), None, size).await?;
        if found == expected { Ok(()) } else { Err(Error::Mismatch { name: self.name(), expected, found }) }
    }

    pub(super) fn complete(&self, size: u64) -> Result<(), Error> {
        let missing = self.given.ranges().missing(Extent::first(size)).total();
        if missing > 0 { Err(Error::Incomplete { name: self.name(), missing, size }) } else { Ok(()) }
    }
}

/// The lock of the draft `part` of `key`. `None` if this machine keeps no records, or cannot.
///
/// # Errors
/// [`Error::Busy`]: another upload of this machine has the draft.
fn lock(remote: &Remote, key: &Key, part: &Key) -> Result<Option<UploadLock>, Error> {
    let Some(dir) = &remote.options().state else { return Ok(None) };
    match UploadLock::take(dir, &remote.label(part)) {
        Ok(Some(lock)) => Ok(Some(lock)),
        Ok(None) => Err(Error::Busy { name: remote.label(key) }),
        Err(error) => {
            tracing::debug!(dir = %dir.display(), %error, "an upload cannot be locked");
            Ok(None)
        }
    }
}
