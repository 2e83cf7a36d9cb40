//! Clients that show a Grid certificate or a proxy (RFC 3820): whether it counts. `crate::config::Grid` says whom it names.
//!
//! The handshakes of listeners with `auth = "grid"` ask [`GridJudge`], if the gateway's own authorities do not vouch for a client.
//! Revocation lists are replaced by other programs, which tell nobody, so `crate::monitor` looks for new ones.

use crate::config::Grid;
use phoebus_gsi::certificate::{Certificate, MAX_CHAIN};
use phoebus_gsi::credential::provider;
use phoebus_gsi::proxy::verify::{ChainError, verify};
use phoebus_net::credentials::{ClientJudge, Judged};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};
use tokio::sync::watch;
use tracing::{info, warn};

/// Longest subject that counts, in bytes: the most that a message of the session protocol carries.
const SUBJECT_MAX: usize = 1024;

/// Judges by the `[grid]` in force.
#[derive(Debug, Default)]
pub(crate) struct GridJudge {
    in_force: RwLock<Option<Arc<Grid>>>,
    /// How often it has come to trust others.
    changes: watch::Sender<u64>,
}

impl GridJudge {
    pub(crate) fn new(grid: Option<Arc<Grid>>) -> Self {
        Self { in_force: RwLock::new(grid), changes: watch::Sender::new(0) }
    }

    /// Judges by `grid` from now on. Clients that were accepted show their certificates anew, if it trusts others.
    pub(crate) fn replace(&self, grid: Option<Arc<Grid>>) {
        let mut in_force = self.in_force.write().unwrap_or_else(PoisonError::into_inner);
        let is_same = match (&*in_force, &grid) {
            (Some(old), Some(new)) => old.limited == new.limited && old.trust.trust().is_as(&new.trust.trust()),
            (old, new) => old.is_none() && new.is_none(),
        };
        *in_force = grid;
        drop(in_force);
        if !is_same {
            info!("other Grid certificates count: connections made with earlier ones take no new sessions");
            self.trusts_others();
        }
    }

    fn trusts_others(&self) {
        self.changes.send_modify(|number| *number += 1);
    }

    fn grid(&self) -> Option<Arc<Grid>> {
        self.in_force.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Looks for new revocation lists. It reads files.
    pub(crate) fn look(&self) {
        let Some(grid) = self.grid() else { return };
        let now = seconds(SystemTime::now());
        let looked = grid.trust.look(provider().signature_verification_algorithms.all, now);
        for error in looked.problems {
            warn!(%error, "a revocation list was replaced by one that cannot be used; the one before stays in force");
        }
        for path in &looked.taken {
            info!(path = %path.display(), "a revocation list was replaced, and counts");
        }
        if !looked.taken.is_empty() {
            self.trusts_others();
        }
    }
}

impl GridJudge {
    fn examine(&self, chain: &[&[u8]], now: SystemTime) -> Result<Judged, String> {
        let grid = self.grid().ok_or("its certificate is no longer taken here")?;
        if chain.len() > MAX_CHAIN {
            return Err(ChainError::TooLong(chain.len()).to_string());
        }
        let chain: Result<Vec<_>, _> = chain.iter().map(|der| Certificate::parse(der)).collect();
        let (chain, now) = (chain.map_err(|error| error.to_string())?, seconds(now));
        let verified = verify(chain, &grid.trust.trust(), &provider(), now).map_err(|error| error.to_string())?;
        let subject = verified.identity();
        if verified.is_limited() && !grid.limited {
            return Err(format!("the proxy of {subject} is limited, and [grid] has limited = false"));
        }
        if subject.len() > SUBJECT_MAX {
            return Err(format!(
                "the subject of its certificate has {} bytes; at most {SUBJECT_MAX} count",
                subject.len()
            ));
        }
        // Certificates that have expired already were superfluous.
        let ends = verified.chain().iter().map(Certificate::not_after).filter(|end| *end >= now);
        let last = ends.min().unwrap_or_else(|| verified.not_after());
        let until = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(last).unwrap_or(0).saturating_add(1));
        Ok(Judged { subject: subject.to_owned(), until })
    }
}

impl ClientJudge for GridJudge {
    /// The client learns only that it is refused, as TLS has it. The reason is for the log.
    fn judge(&self, chain: &[&[u8]], now: SystemTime) -> Result<Judged, String> {
        let judged = self.examine(chain, now);
        judged.inspect_err(|reason| info!("a client's Grid certificate is not accepted: {reason}"))
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}

fn seconds(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    i64::try_from(since).unwrap_or(i64::MAX)
}
