//! Idle connections: greeted ahead of need, checked, lent and taken back.

use super::selection::Selection;
use super::{Pool, PooledConnection, lock};
use crate::refusal::Refusal;
use phoebus_net::transport::Security;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{info, warn};

/// Pause between two checks of the idle connections.
const LOOK: Duration = Duration::from_secs(1);
/// Longest pause between attempts to reach a peer that does not answer.
const RETRY_MAX: Duration = Duration::from_secs(30);
/// How many times `pool.max` connections may be idle for a moment.
pub(crate) const MOMENTARY: u32 = 4;
/// Connections made concurrently.
const DIALS: usize = 8;
/// How often a peer's name is resolved again.
const RESOLVE_AGAIN: Duration = Duration::from_secs(60);

impl Pool {
    /// Keeps connections ready until the pool is closed: replaces dead ones, fills up to the minimum, closes old ones.
    pub(crate) async fn maintain(self: Arc<Self>) {
        let (mut retry, mut is_down) = (LOOK, false);
        // When connections were last made ahead of need, and after a failure, when they are made again. Sessions that wake
        // this task do not shorten the pause.
        let (mut filled, mut again): (Option<Instant>, Option<Instant>) = (None, None);
        let mut resolved: Option<Instant> = None;
        while !self.closed.load(Ordering::Relaxed) {
            if resolved.is_none_or(|at| at.elapsed() > RESOLVE_AGAIN) {
                self.check_bbr();
                match self.resolve().await {
                    Ok(_) => resolved = Some(Instant::now()),
                    Err(error) => warn!(peer = self.peer.name, "{error}"),
                }
            }
            self.sweep();
            if self.is_due() {
                self.prove().await;
            }
            let now = Instant::now();
            if self.has_opened.swap(false, Ordering::Relaxed) {
                self.short_lived.store(false, Ordering::Relaxed);
                (retry, again) = (LOOK, None);
            } else if self.short_lived.swap(false, Ordering::Relaxed) {
                // A peer that greets and closes at once is not there for sessions either.
                if again.is_none() {
                    again = Some(now + retry);
                    retry = (retry * 2).min(RETRY_MAX);
                }
            } else if again.is_none() && filled.is_none_or(|at| now - at >= LOOK) {
                retry = LOOK;
            }
            if let Some(at) = again.filter(|at| *at > now) {
                self.reconsider().await;
                let _ = timeout(at - now, self.wanted.notified()).await;
                continue;
            }
            let pause = match self.fill().await {
                Ok(made) => {
                    if made > 0 {
                        filled = Some(Instant::now());
                    }
                    again = None;
                    if is_down && !lock(&self.idle).is_empty() {
                        is_down = false;
                        info!(peer = self.peer.name, "connections are ready again");
                    }
                    LOOK
                }
                Err(refusal) => {
                    is_down = true;
                    let pause = retry;
                    self.counts.failed.fetch_add(1, Ordering::Relaxed);
                    let why = refusal.reason;
                    warn!(peer = self.peer.name, retry_s = pause.as_secs(), "no connection is ready: {why}");
                    retry = (retry * 2).min(RETRY_MAX);
                    again = Some(Instant::now() + pause);
                    pause
                }
            };
            self.reconsider().await;
            let _ = timeout(pause, self.wanted.notified()).await;
        }
    }

    /// Makes as many connections as there should be ready, over the next transport where one fails. Returns how many that
    /// were.
    async fn fill(self: &Arc<Self>) -> Result<usize, Refusal> {
        // Transports that failed in a row. When all have, the peer is down.
        let (mut lost, mut made) = (0, 0);
        while let Err((by, refusal)) = self.fill_by_current(&mut made).await {
            self.fall_back(&by, &refusal);
            lost += 1;
            if lost >= self.ways.len() {
                self.nowhere();
                return Err(refusal);
            }
        }
        Ok(made)
    }

    /// The same over the current transport, several concurrently: each takes some round trips, and sessions may arrive
    /// faster.
    async fn fill_by_current(self: &Arc<Self>, count: &mut usize) -> Result<(), (Arc<Selection>, Refusal)> {
        let mut dials = JoinSet::new();
        let mut woken = false;
        while !self.closed.load(Ordering::Relaxed) {
            let by = self.chosen();
            // The first connection shows whether sessions are streams of one connection, and thus whether more are
            // needed.
            let known = self.way(&by).has_streams.get().is_some();
            let most = if known { DIALS } else { 1 };
            let ready = lock(&self.idle).len();
            while dials.len() < most && ready + dials.len() < self.least() {
                let (pool, by) = (self.clone(), by.clone());
                dials.spawn(async move {
                    let limit = pool.time_limit().unwrap_or(pool.limits.greeting);
                    let made = timeout(limit, pool.greet(&by, limit)).await;
                    made.unwrap_or_else(|_| Err(pool.unanswered(limit))).map_err(|refusal| (by, refusal))
                });
            }
            tokio::select! {
                done = dials.join_next() => match done {
                    Some(Ok(made)) => {
                        self.keep(made?);
                        *count += 1;
                    }
                    Some(Err(_)) => {}
                    None => break,
                },
                () = self.wanted.notified() => woken = true,
            }
        }
        if woken {
            // The notification may have been meant for another task.
            self.wanted.notify_one();
        }
        Ok(())
    }

    /// Makes a connection ahead of need now, to find out whether the peer is available. Tries each transport once. The
    /// error lists those that failed, and why.
    pub(crate) async fn try_peer(&self) -> Result<(), Vec<(String, String)>> {
        let mut failed = Vec::new();
        for left in (0..self.ways.len()).rev() {
            // `maintain` makes connections concurrently, and may have found out more.
            let by = self.selection_after(&failed);
            let limit = self.time_limit().filter(|_| left > 0).unwrap_or(self.limits.greeting);
            match timeout(limit, self.greet(&by, limit)).await.unwrap_or_else(|_| Err(self.unanswered(limit))) {
                Ok(warm) => {
                    self.keep(warm);
                    return Ok(());
                }
                Err(refusal) => {
                    self.fall_back(&by, &refusal);
                    failed.push((self.way(&by).transport.to_string(), refusal.reason));
                }
            }
        }
        self.nowhere();
        Err(failed)
    }

    /// Takes the connection that was used last, since its window is the freshest; one that was never used has none to
    /// offer.
    pub(super) fn take(&self) -> Option<PooledConnection> {
        if self.has_streams() {
            return None;
        }
        loop {
            let warm = {
                let mut idle = lock(&self.idle);
                let used = idle.iter().rposition(|warm| warm.sessions > 0);
                let taken = used.map(|place| idle.remove(place)).or_else(|| idle.pop());
                // Counted while the list is locked, so that nobody finds one connection too few and dials another.
                taken.map(|warm| warm.lent(self.demand.begin()))
            };
            if lock(&self.idle).len() < self.least() {
                self.wanted.notify_one();
            }
            let warm = warm?;
            if !warm.stream.is_current() {
                warm.stream.disarm();
                continue;
            }
            match warm.stream.is_quiet() {
                Ok(true) => return warm.rehomed(),
                _ => self.counts.stale.fetch_add(1, Ordering::Relaxed),
            };
            self.note_loss(&warm);
        }
    }

    pub(super) fn keep(&self, warm: PooledConnection) {
        let mut idle = lock(&self.idle);
        let warm = warm.returned();
        let outdated = !warm.by.is_like(&self.chosen()) || !warm.stream.is_current();
        if outdated || self.closed.load(Ordering::Relaxed) || idle.len() >= self.most_for_now() {
            warm.stream.disarm();
        } else {
            idle.push(warm);
        }
    }

    /// Drops idle connections that have died, those whose credentials have lapsed, and those that were idle for too long.
    fn sweep(&self) {
        let mut idle = lock(&self.idle);
        let lapsed = idle.extract_if(.., |warm| !warm.stream.is_current());
        let lapsed = lapsed.inspect(|warm| warm.stream.disarm()).count();
        if lapsed > 0 {
            info!(
                peer = self.peer.name,
                lapsed, "certificates were replaced or have expired: connections are made anew"
            );
        }
        let before = idle.len();
        idle.retain(|warm| {
            let is_alive = matches!(warm.stream.is_quiet(), Ok(true));
            if !is_alive {
                self.note_loss(warm);
            }
            is_alive
        });
        if idle.len() < before {
            info!(peer = self.peer.name, lost = before - idle.len(), "idle connections were closed by the peer");
        }
        // The connection idle for longest comes first.
        let (least, most) = (self.least(), self.most());
        let idle_for = |idle: &[PooledConnection]| idle.first().map_or(Duration::ZERO, |warm| warm.since.elapsed());
        while (idle.len() > most && idle_for(&idle) > LOOK)
            || (idle.len() > least && idle_for(&idle) > self.peer.pool.idle.0)
        {
            idle.remove(0).stream.disarm();
        }
    }

    /// Records that the peer has closed an idle connection, if that was a short time after its greeting.
    fn note_loss(&self, warm: &PooledConnection) {
        if warm.sessions == 0 && warm.since.elapsed() < 3 * LOOK {
            self.short_lived.store(true, Ordering::Relaxed);
        }
    }

    /// How many connections to keep ready. Where sessions are streams of one connection, one stream keeps it open and
    /// shows when it dies.
    fn least(&self) -> usize {
        let (least, most) = (self.for_hops(self.peer.pool.min), self.most());
        if self.has_streams() || least == 0 { least } else { ready(least, most, self.demanded()) }
    }

    fn most(&self) -> usize {
        self.for_hops(self.peer.pool.max)
    }

    /// How many connections may be idle for a moment. Where many short sessions follow each other, many are idle in one
    /// moment and needed in the next: if those above the maximum were closed at once, each would be dialled again. At most
    /// [`MOMENTARY`] times the maximum, which the gateway's descriptors suffice for.
    fn most_for_now(&self) -> usize {
        let (most, least) = (self.most(), self.for_hops(self.peer.pool.min));
        if self.has_streams() || least == 0 { most } else { for_now(least, most, self.demanded()) }
    }

    /// How many connections sessions have used at the same time, and how many of those in use now will come back.
    fn demanded(&self) -> (usize, usize) {
        let (peak, in_use) = self.demand.peak_and_in_use(Instant::now(), self.peer.pool.idle.0);
        // Where only the handshake is protected, a connection serves one session.
        (peak, if self.peer.security == Security::Auth { 0 } else { in_use })
    }

    fn for_hops(&self, hops: u32) -> usize {
        let hops = hops as usize;
        if self.has_streams() { hops.min(1) } else { hops * usize::from(self.streams()) }
    }

    /// Whether sessions over the current transport are streams of one connection, as far as known.
    pub(super) fn has_streams(&self) -> bool {
        self.way(&self.chosen()).has_streams.get() == Some(&true)
    }
}

/// How many connections to keep ready: `least`, and beyond that as many as sessions have used at the same time lately, up
/// to `most`. Those in use that will come back count for all but `least`.
fn ready(least: usize, most: usize, (peak, returning): (usize, usize)) -> usize {
    (least + peak).min(most).saturating_sub(returning).max(least.min(most))
}

/// How many connections may be idle for a moment.
fn for_now(least: usize, most: usize, (peak, returning): (usize, usize)) -> usize {
    (least + peak).saturating_sub(returning).clamp(most, most * MOMENTARY as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_in_use_count_as_ready_beyond_the_minimum() {
        // A session that takes a connection makes none.
        assert_eq!([(0, 0), (1, 0), (1, 1)].map(|demanded| ready(2, 8, demanded)), [2, 3, 2]);
        assert_eq!([(7, 0), (7, 1), (7, 6), (7, 7)].map(|demanded| ready(2, 8, demanded)), [8, 7, 2, 2]);
        assert_eq!([(30, 0), (30, 1), (30, 30)].map(|demanded| ready(2, 8, demanded)), [8, 7, 2]);
        // Long sessions leave the minimum to others.
        assert_eq!(ready(2, 8, (100, 100)), 2);
        assert_eq!([ready(1, 1, (5, 0)), ready(1, 1, (5, 5)), ready(3, 2, (0, 0))], [1, 1, 2]);
    }

    #[test]
    fn connections_that_may_be_needed_stay_for_a_moment() {
        assert_eq!([0, 7, 30, 31].map(|peak| for_now(2, 8, (peak, 0))), [8, 9, 32, 32]);
        assert_eq!([for_now(2, 8, (30, 20)), for_now(2, 8, (30, 30)), for_now(2, 0, (3, 0))], [12, 8, 0]);
    }
}
