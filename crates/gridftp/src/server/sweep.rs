//! Removes drafts that nobody has gone on with for long (`drafts.keep`), so that they do not fill disks and quotas for ever.
//!
//! It is done as the user in whose directory they are. A draft that is being written is locked; one that was touched in any way since is
//! left, whatever its time of modification says, since a client sets that before it gives its upload a name.

use super::current::{Current, Shared};
use super::users::Served;
use super::work::quoted;
use phoebus_files::key::Key;
use phoebus_files::store::Time;
use phoebus_files::{Cleaning, Error, Fate, Found};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Between two sweeps at the most: they read every directory.
const EVERY: Duration = Duration::from_secs(24 * 3600);

/// How long after its start a server sweeps first, at the most: one that is started every day is to sweep, too.
const FIRST: Duration = Duration::from_secs(600);

/// Between two looks at the configuration, which may change.
const LOOK: Duration = Duration::from_secs(60);

/// The part of `drafts.keep` that passes between two sweeps, so that nothing stays for much longer than that.
const PARTS: u32 = 7;

/// For how many times as long as it took sweeping rests: it costs a disk a tenth of its time at most.
const REST: u32 = 9;

/// Sweeps for as long as it is polled.
pub(super) async fn sweep(current: Arc<Mutex<Current>>) {
    let mut last: Option<(Instant, Duration)> = None;
    let begun = Instant::now();
    loop {
        let shared = current.lock().unwrap_or_else(PoisonError::into_inner).shared.clone();
        let keep = shared.config.drafts.keep.0;
        let every = EVERY.min(keep / PARTS);
        let due = match last {
            None => begun + every.min(FIRST),
            Some((at, took)) => at + every.max(took.saturating_mul(REST)),
        };
        let now = Instant::now();
        if keep.is_zero() || now < due {
            drop(shared);
            let wait = if keep.is_zero() { LOOK } else { (due - now).min(LOOK) };
            tokio::time::sleep(wait).await;
            continue;
        }
        sweep_all(&shared, keep).await;
        let ended = Instant::now();
        last = Some((ended, ended - now));
    }
}

/// Sweeps the directories of all users who may write.
async fn sweep_all(shared: &Shared, keep: Duration) {
    let before = SystemTime::now().checked_sub(keep).unwrap_or(SystemTime::UNIX_EPOCH);
    for served in shared.users.writers(&shared.config) {
        sweep_one(&served, before.into()).await;
    }
}

async fn sweep_one(served: &Served, before: Time) {
    let user = served.account.name.as_str();
    let mut failed: Option<(u64, Error)> = None;
    let mut told = |found: Result<Found<'_>, Error>| match found {
        Ok(Found { key, meta, fate: Fate::Removed }) => {
            tracing::info!(user, name = quoted(key), bytes = meta.size, "removed a draft that nobody has gone on with");
        }
        Ok(_) => {}
        Err(error) => failed = Some(failed.take().map_or((1, error), |(count, first)| (count + 1, first))),
    };
    Cleaning { before: Some(before), remove: true }.run(&*served.store, &Key::ROOT, &mut told).await;
    if let Err(error) = served.store.settle().await {
        told(Err(error));
    }
    if let Some((count, error)) = failed {
        tracing::warn!(user, count, %error, "drafts could not be looked for everywhere, or not be removed");
    }
}
