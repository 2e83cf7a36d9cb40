//! One object from one store to another: what is missing of it, verified, published.
//!
//! A flow gives blocks, carriers take them, a draft writes them; between are only buffers of a pool, so that reading, sending
//! and writing go on at once and memory is bounded (L8, R3, P22). Meanwhile checkpoints are made, and somebody watches that
//! bytes move. In the end the checksums of both ends are compared, and only then does the object get its name.

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

use crate::block::Pool;
use crate::error::Error;
use crate::key::Key;
use crate::range::{Extent, Ranges};
use crate::store::{Attributes, Begun, Draft, Kind, Meta, Object, Shape, Spec, Store};
use crate::sum::Sum;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How objects are transferred. Clones share buffers, limits and counters.
#[derive(Debug, Clone)]
pub struct How {
    /// The buffers of all transfers together.
    pub pool: Pool,
    /// How many blocks of an object are read from a disk at once.
    pub readers: usize,
    /// How many blocks of an object are written at once.
    pub writers: usize,
    /// How it is made sure that the bytes are the same.
    pub verify: Verify,
    /// How long it takes at most until what was written would survive a loss of power.
    pub checkpoint: Duration,
    /// How much is written at most until then.
    pub checkpoint_bytes: u64,
    /// How long nothing may move before the transfer is given up.
    pub stall: Duration,
    /// What all transfers together may carry.
    pub throttle: Option<Throttle>,
    /// What was carried, for whoever shows it.
    pub progress: Arc<Progress>,
    /// How many bytes are carried of a device, which has no end of its own; without, none is carried.
    pub length: Option<u64>,
    /// Whether modification times are preserved.
    pub times: bool,
    /// Whether permissions are preserved.
    pub modes: bool,
    /// Whether an object takes the place of what has its name.
    pub replace: bool,
    /// By what they are asked to end.
    pub stop: Stop,
}

impl Default for How {
    /// Verified in flight, with 32 MiB of buffers.
    fn default() -> Self {
        Self {
            // Long enough that calls and wake-ups do not count, short enough that a few are in flight at once.
            pool: Pool::new(1 << 20, 32),
            readers: 4,
            writers: 4,
            verify: Verify::default(),
            checkpoint: Duration::from_secs(2),
            checkpoint_bytes: 256 << 20,
            // Longer than a path that was cut and heals takes to be found again.
            stall: Duration::from_secs(60),
            throttle: None,
            progress: Arc::default(),
            length: None,
            times: true,
            modes: true,
            replace: true,
            stop: Stop::default(),
        }
    }
}

/// What a transfer came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done {
    /// How many bytes the object has.
    pub size: u64,
    /// How many of them were carried by this attempt; the others were there.
    pub moved: u64,
    /// The checksum that both ends agreed on; none if none was asked for, or an earlier attempt had done so.
    pub verified: Option<Sum>,
}

/// Carries the object `from` of `source` to `to` in `dest`. It is durable once `dest` has settled ([`Store::settle`]).
///
/// # Errors
/// Any of [`Error`]. What was carried is kept for another attempt, except where the ends differ or the source changed.
pub async fn transfer(source: &dyn Store, from: &Key, dest: &dyn Store, to: &Key, how: &How) -> Result<Done, Error> {
    let object = source.open(from).await?;
    let meta = *object.meta();
    let Some(size) = size_of(&meta, how) else {
        return Err(Error::Unsupported { name: object.name(), what: "carrying all of what has no size" });
    };
    // What a device gives a second time is not what it gave before, and what is said of it is not of its bytes.
    let is_file = meta.kind == Kind::File;
    let check = Check::choose(how.verify, &source.into(), &dest.into())
        .map_err(|reason| Error::Unverifiable { name: object.name(), reason })?;
    let spec = Spec {
        size: Some(size),
        // Where nobody knows when the source was modified, it may be another one by the next attempt.
        source: meta.modified.filter(|_| is_file).map(|time| (format!("{}/{from}", source.name()), Some(time))),
        sum: check.as_ref().and_then(Check::kept),
        attributes: Attributes {
            mode: meta.mode.filter(|_| how.modes && is_file),
            modified: meta.modified.filter(|_| how.times && is_file),
        },
        at_most: meta.mode.filter(|_| !how.modes && is_file),
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

/// Carries what `draft` does not have of `object`, verifies it as `check` says and publishes it: for objects and drafts
/// that are in no one store, as containers are. The draft keeps the checksum that [`Check::kept`] names. Asked to end
/// ([`How::stop`]), it makes safe what there is.
///
/// # Errors
/// As [`transfer`].
pub async fn fill(
    object: &Arc<dyn Object>,
    draft: &Arc<dyn Draft>,
    check: Option<Check>,
    how: &How,
) -> Result<Done, Error> {
    let Some(size) = object.meta().size.or_else(|| size_of(object.meta(), how)) else {
        return Err(Error::Unsupported { name: object.name(), what: "carrying all of what has no size" });
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
            // Where the two differ nobody knows which bytes are wrong, and nobody goes on with what is not there any more.
            let lost = matches!(error, Error::Changed { .. } | Error::Short { .. } | Error::NotFound { .. });
            let keep = !lost && !matches!(error, Error::Mismatch { .. });
            draft.abandon(keep).await;
            Err(error)
        }
    }
}

/// How much there is to carry of what is such.
fn size_of(meta: &Meta, how: &How) -> Option<u64> {
    match meta.kind {
        Kind::File => meta.size,
        Kind::Device => how.length,
        _ => None,
    }
}

async fn carry_ranges(
    object: &Arc<dyn Object>,
    draft: &Arc<dyn Draft>,
    missing: Ranges,
    check: Option<Check>,
    how: &How,
) -> Result<(), Error> {
    if missing.is_empty() {
        return Ok(());
    }
    let told = AtomicU64::new(0);
    let moved = |bytes: u64| how.progress.moved(bytes.saturating_sub(told.fetch_max(bytes, Ordering::Relaxed)));
    // What goes from one server to another cannot be held up here.
    if how.throttle.is_none() && draft.fetch(&**object, &missing, &moved).await? {
        how.progress.between(missing.total());
        return Ok(());
    }
    let shape = Shape {
        pool: how.pool.clone(),
        readers: how.readers,
        ordered: draft.is_ordered(),
        sum: check.as_ref().and_then(Check::kept),
        // Whoever is held up has to have the bytes at hand, in small pieces.
        lend: how.throttle.is_none() && draft.takes_lent(),
        holes: draft.takes_holes(),
        into: if how.throttle.is_none() { draft.landing() } else { None },
    };
    let writers = if draft.is_ordered() { 1 } else { how.writers };
    let flow = object.flow(missing, shape).await?;
    carry(flow, draft.clone(), &How { writers, ..how.clone() }, drop).await
}
