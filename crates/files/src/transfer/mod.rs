//! Transfers one object between stores: carries what is missing, verifies it, publishes it.
//!
//! A flow gives blocks, carriers pass them on, a draft writes them. Only the buffers of a pool are in between, so
//! reading, sending and writing overlap, and memory is bounded (L8, R3, P22). Meanwhile checkpoints are made and
//! progress is watched. At the end both ends' checksums are compared; only then is the object published.

mod carry;
mod progress;
mod stop;
mod stream;
mod throttle;
mod verify;

pub use carry::carry;
pub use progress::Progress;
pub use stop::Stop;
pub use stream::{drain, pour};
pub use throttle::Throttle;
pub use verify::{Check, Side, Verify};

use crate::block::{Block, Pool};
use crate::error::Error;
use crate::key::Key;
use crate::range::{Extent, Ranges};
use crate::store::{Attributes, Begun, Capabilities, Draft, Kind, Meta, Object, Shape, Spec, Store};
use crate::sum::Sum;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Most bytes of a local file that are copied by one read and one write. More are read and written by several tasks at a
/// time.
const AT_ONCE: u64 = 1 << 20;

/// Options of transfers. Clones share buffers, limits and counters.
#[derive(Debug, Clone)]
pub struct TransferOptions {
    /// The buffers of all transfers.
    pub pool: Pool,
    /// Blocks of an object that are read from a disk at a time.
    pub readers: usize,
    /// Blocks of an object that are written at a time.
    pub writers: usize,
    /// How content is verified.
    pub verify: Verify,
    /// Longest time until written bytes would survive power loss.
    pub checkpoint: Duration,
    /// Most bytes that are written until then.
    pub checkpoint_bytes: u64,
    /// Longest time without progress.
    pub stall_timeout: Duration,
    /// Rate limit of all transfers.
    pub throttle: Option<Throttle>,
    /// Progress counters.
    pub progress: Arc<Progress>,
    /// Bytes to copy of a device, which has no end. `None`: devices are not copied.
    pub length: Option<u64>,
    /// Whether times of modification are preserved.
    pub times: bool,
    /// Whether permissions are preserved.
    pub modes: bool,
    /// Permissions of an object that has none itself, if known.
    pub known_mode: Option<u32>,
    /// Whether existing objects are replaced.
    pub replace: bool,
    /// The request to stop.
    pub stop: Stop,
}

impl Default for TransferOptions {
    /// Verified in flight, with 32 MiB of buffers.
    fn default() -> Self {
        Self {
            // Long enough that system calls and wake-ups cost little, short enough that several are in flight.
            pool: Pool::new(1 << 20, 32),
            readers: 4,
            writers: 4,
            verify: Verify::default(),
            checkpoint: Duration::from_secs(2),
            checkpoint_bytes: 256 << 20,
            // Longer than a path usually takes to recover.
            stall_timeout: Duration::from_secs(60),
            throttle: None,
            progress: Arc::default(),
            length: None,
            times: true,
            modes: true,
            known_mode: None,
            replace: true,
            stop: Stop::default(),
        }
    }
}

/// The result of a transfer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done {
    /// Size of the object in bytes.
    pub size: u64,
    /// Bytes carried by this attempt.
    pub moved: u64,
    /// The verified checksum. `None` if none was requested, or an earlier attempt had verified it.
    pub verified: Option<Sum>,
}

/// Transfers the object `from` of `source` to `to` in `dest`. It is durable once `dest` is settled ([`Store::settle`]).
///
/// # Errors
/// Any [`Error`]. Carried bytes are kept for another attempt, except if the ends differ or the source changed.
pub async fn transfer(
    source: &dyn Store,
    from: &Key,
    dest: &dyn Store,
    to: &Key,
    how: &TransferOptions,
) -> Result<Done, Error> {
    let object = source.open(from).await?;
    let meta = *object.meta();
    let Some(size) = size_of(&meta, how) else {
        return Err(Error::Unsupported { name: object.name(), what: "copying an object of unknown size" });
    };
    // A device gives other bytes each time, and its metadata do not describe them.
    let is_file = meta.kind == Kind::File;
    let mode = meta.mode.or(how.known_mode).filter(|_| is_file);
    let check = Check::choose(how.verify, &source.into(), &dest.into())
        .map_err(|reason| Error::Unverifiable { name: object.name(), reason })?;
    let spec = Spec {
        size: Some(size),
        // Without a time of modification, the source may be another one by the next attempt.
        source: meta.modified.filter(|_| is_file).map(|time| (format!("{}/{from}", source.name()), Some(time))),
        sum: check.as_ref().and_then(Check::kept),
        attributes: Attributes {
            mode: mode.filter(|_| how.modes),
            modified: meta.modified.filter(|_| how.times && is_file),
        },
        at_most: mode.filter(|_| !how.modes),
        replace: how.replace,
        sparse: meta.sparse,
        held: false,
    };
    match dest.create(to, spec).await? {
        Begun::Done => {
            how.progress.kept(size);
            Ok(Done { size, moved: 0, verified: None })
        }
        Begun::Draft(draft) => fill(&object, &draft, check, how).await,
    }
}

/// Carries what `draft` lacks of `object`, verifies it by `check`, and publishes it: also for objects and drafts
/// outside any store, such as containers. The draft keeps the checksum that [`Check::kept`] names. When asked to stop
/// ([`TransferOptions::stop`]), syncs what there is.
///
/// # Errors
/// As [`transfer`].
pub async fn fill(
    object: &Arc<dyn Object>,
    draft: &Arc<dyn Draft>,
    check: Option<Check>,
    how: &TransferOptions,
) -> Result<Done, Error> {
    let Some(size) = object.meta().size.or_else(|| size_of(object.meta(), how)) else {
        return Err(Error::Unsupported { name: object.name(), what: "copying an object of unknown size" });
    };
    let missing = draft.kept().missing(Extent::first(size));
    let moved = missing.total();
    how.progress.kept(size - moved);
    let _under_way = how.stop.begin();
    let filled = async {
        carry_ranges(object, draft, missing, check, how).await?;
        draft.flush().await?;
        object.unchanged().await?;
        let verified = match check {
            Some(check) => Some(check.compare(&**object, &**draft, size).await?),
            None => None,
        };
        draft.publish(size).await?;
        Ok(verified)
    };
    let filled = tokio::select! {
        filled = filled => filled,
        () = how.stop.asked() => Err(Error::Stopped { name: draft.name() }),
    };
    match filled {
        Ok(verified) => Ok(Done { size, moved, verified }),
        Err(error) => {
            // If the two differ, nobody knows which bytes are wrong; and an object that is gone cannot be resumed.
            let lost = matches!(error, Error::Changed { .. } | Error::Short { .. } | Error::NotFound { .. });
            let keep = !lost && !matches!(error, Error::Mismatch { .. });
            draft.abandon(keep).await;
            Err(error)
        }
    }
}

/// Bytes to carry of it.
fn size_of(meta: &Meta, how: &TransferOptions) -> Option<u64> {
    match meta.kind {
        Kind::File => meta.size,
        Kind::Device => how.length,
        _ => None,
    }
}

/// Copies the bytes `missing` of a local file without other tasks: they are few.
async fn copy_at_once(
    object: &Arc<dyn Object>,
    draft: &Arc<dyn Draft>,
    missing: &Ranges,
    how: &TransferOptions,
) -> Result<(), Error> {
    let extents: Vec<Extent> = missing.iter().collect();
    for (extent, bytes) in extents.iter().zip(object.read(&extents).await?) {
        let got = bytes.len() as u64;
        if got < extent.len() {
            return Err(Error::Short { name: object.name(), at: extent.start() + got, expected: extent.end() });
        }
        draft.write(Block { offset: extent.start(), body: bytes, sum: None }).await?;
        how.progress.moved(got);
    }
    Ok(())
}

async fn carry_ranges(
    object: &Arc<dyn Object>,
    draft: &Arc<dyn Draft>,
    missing: Ranges,
    check: Option<Check>,
    how: &TransferOptions,
) -> Result<(), Error> {
    if missing.is_empty() {
        return Ok(());
    }
    let told = AtomicU64::new(0);
    let moved = |bytes: u64| how.progress.moved(bytes.saturating_sub(told.fetch_max(bytes, Ordering::Relaxed)));
    let Capabilities { ordered, file_ranges, holes, direct_writer, fetch, .. } = draft.capabilities();
    // Transfers between servers cannot be throttled here.
    if let Some(fetch) = fetch.filter(|_| how.throttle.is_none())
        && fetch.fetch(&**object, &missing, &moved).await?
    {
        how.progress.between(missing.total());
        return Ok(());
    }
    let is_plain = object.file().is_some() && direct_writer.is_some() && how.throttle.is_none();
    if is_plain && missing.total() <= AT_ONCE {
        return copy_at_once(object, draft, &missing, how).await;
    }
    let shape = Shape {
        pool: how.pool.clone(),
        readers: how.readers,
        ordered,
        sum: check.as_ref().and_then(Check::kept),
        // A throttle needs bytes in memory, in small pieces.
        lend: how.throttle.is_none() && file_ranges.is_some(),
        holes: holes.is_some(),
        into: direct_writer.filter(|_| how.throttle.is_none()),
    };
    let writers = if ordered { 1 } else { how.writers };
    let flow = object.flow(missing, shape).await?;
    carry(flow, draft.clone(), &TransferOptions { writers, ..how.clone() }, drop).await
}
