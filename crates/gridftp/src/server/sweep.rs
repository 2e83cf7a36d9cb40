//! Removes abandoned drafts (`drafts.keep`), so that they do not fill disks and quotas.
//!
//! The sweep runs as the user of each directory. A draft that is being written is locked. A draft whose inode changed
//! recently stays, whatever its modification time: clients set that before they rename an upload.

use super::current::{Current, Shared};
use super::names::quoted;
use phoebus_accounts::Served;
use phoebus_files::key::Key;
use phoebus_files::store::Time;
use phoebus_files::{Cleaning, Error, Fate, Found};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Longest interval between two sweeps, which read every directory.
const EVERY: Duration = Duration::from_secs(24 * 3600);

/// Longest delay of the first sweep, so that a server that restarts every day sweeps too.
const FIRST: Duration = Duration::from_secs(600);

/// Interval of checks whether the configuration has changed.
const LOOK: Duration = Duration::from_secs(60);

/// Sweeps per `drafts.keep`, which bounds how much longer than that a draft stays.
const PARTS: u32 = 7;

/// Pause after a sweep as a multiple of its duration: it uses a disk at most a tenth of the time.
const REST: u32 = 9;

/// Sweeps while it is polled.
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
    for served in shared.users.writers() {
        sweep_one(&served, before.into()).await;
    }
}

async fn sweep_one(served: &Served, before: Time) {
    let user = served.account.name.as_str();
    let mut failed: Option<(u64, Error)> = None;
    let mut told = |found: Result<Found<'_>, Error>| match found {
        Ok(Found { key, meta, fate: Fate::Removed }) => {
            tracing::info!(user, name = quoted(key), bytes = meta.size, "removed a draft that no client has resumed");
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
