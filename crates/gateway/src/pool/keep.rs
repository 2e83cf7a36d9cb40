//! Idle connections: greeted ahead of need, checked, lent and taken back.

use super::backoff::{Backoff, EARLY, Seen};
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
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How many times `pool.max` connections may be idle for a moment, if there are descriptors for that.
pub(crate) const IDLE_BURST_MAX: u32 = 4;
/// Connections made concurrently.
const DIALS: usize = 8;
/// How often a peer's name is resolved again.
const RESOLVE_AGAIN: Duration = Duration::from_secs(60);

impl Pool {
    /// Keeps connections ready until the pool is closed: replaces dead ones, fills up to the minimum, closes old ones.
    pub(crate) async fn maintain(self: Arc<Self>) {
        let (mut backoff, mut is_down) = (Backoff::new(CHECK_INTERVAL), false);
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
            let has_opened = self.has_opened.swap(false, Ordering::Relaxed);
            let closed_early = self.closed_early.swap(false, Ordering::Relaxed);
            // Sessions that wake this task do not shorten the pause.
            if let Some(pause) = backoff.wait(Instant::now(), Seen { has_opened, closed_early }) {
                self.reconsider().await;
                let _ = timeout(pause, self.wanted.notified()).await;
                continue;
            }
            let pause = match self.fill().await {
                Ok(made) => {
                    backoff.filled(Instant::now(), made);
                    if is_down && !lock(&self.idle).is_empty() {
                        is_down = false;
                        info!(peer = self.peer.name, "connections are ready again");
                    }
                    CHECK_INTERVAL
                }
                Err(refusal) => {
                    is_down = true;
                    let pause = backoff.fail(Instant::now());
                    self.counts.failed.fetch_add(1, Ordering::Relaxed);
                    let why = refusal.reason;
                    warn!(peer = self.peer.name, retry_s = pause.as_secs(), "no connection is ready: {why}");
                    pause
                }
            };
            self.reconsider().await;
            let _ = timeout(pause, self.wanted.notified()).await;
        }
    }

    /// Makes as many connections as there should be ready, over the next transport where one fails. Returns how many it
    /// has made.
    async fn fill(self: &Arc<Self>) -> Result<usize, Refusal> {
        // Transports that failed in a row. When all have, the peer is down.
        let (mut lost, mut made) = (0, 0);
        while let Err((selection, refusal)) = self.fill_by_current(&mut made).await {
            self.fall_back(&selection, &refusal);
            lost += 1;
            if lost >= self.transports.len() {
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
            let selection = self.chosen();
            // The first connection shows whether sessions are streams of one connection, and thus whether more are
            // needed.
            let known = self.transport_option(&selection).has_streams.get().is_some();
            let most = if known { DIALS } else { 1 };
            let ready = lock(&self.idle).len();
            while dials.len() < most && ready + dials.len() < self.idle_target() {
                let (pool, selection) = (self.clone(), selection.clone());
                dials.spawn(async move {
                    let limit = pool.time_limit().unwrap_or(pool.limits.greeting);
                    let made = timeout(limit, pool.greet(&selection, limit)).await;
                    made.unwrap_or_else(|_| Err(pool.unanswered(limit))).map_err(|refusal| (selection, refusal))
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
        for left in (0..self.transports.len()).rev() {
            // `maintain` makes connections concurrently, and may have found out more.
            let selection = self.selection_after(&failed);
            let limit = self.time_limit().filter(|_| left > 0).unwrap_or(self.limits.greeting);
            match timeout(limit, self.greet(&selection, limit)).await.unwrap_or_else(|_| Err(self.unanswered(limit))) {
                Ok(connection) => {
                    self.keep(connection);
                    return Ok(());
                }
                Err(refusal) => {
                    self.fall_back(&selection, &refusal);
                    failed.push((self.transport_option(&selection).transport.to_string(), refusal.reason));
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
            let connection = {
                let mut idle = lock(&self.idle);
                let used = idle.iter().rposition(|connection| connection.sessions > 0);
                let taken = used.map(|place| idle.remove(place)).or_else(|| idle.pop());
                // Counted while the list is locked, so that nobody finds one connection too few and dials another.
                taken.map(|connection| connection.lent(self.demand.begin()))
            };
            if lock(&self.idle).len() < self.idle_target() {
                self.wanted.notify_one();
            }
            let connection = connection?;
            if !connection.stream.is_current() {
                connection.stream.disarm();
                continue;
            }
            match connection.stream.is_quiet() {
                Ok(true) => return connection.rehomed(),
                _ => self.counts.stale.fetch_add(1, Ordering::Relaxed),
            };
            self.note_early_close(&connection);
        }
    }

    pub(super) fn keep(&self, connection: PooledConnection) {
        let mut idle = lock(&self.idle);
        let connection = connection.returned();
        let outdated = !connection.selection.is_like(&self.chosen()) || !connection.stream.is_current();
        if outdated || self.closed.load(Ordering::Relaxed) || idle.len() >= self.idle_burst_max() {
            connection.stream.disarm();
        } else {
            idle.push(connection);
        }
    }

    /// Drops idle connections that have died, those whose credentials have lapsed, and those that were idle for too long.
    fn sweep(&self) {
        let mut idle = lock(&self.idle);
        let lapsed = idle.extract_if(.., |connection| !connection.stream.is_current());
        let lapsed = lapsed.inspect(|connection| connection.stream.disarm()).count();
        if lapsed > 0 {
            info!(
                peer = self.peer.name,
                lapsed, "certificates were replaced or have expired: connections are made anew"
            );
        }
        let before = idle.len();
        idle.retain(|connection| {
            let is_alive = matches!(connection.stream.is_quiet(), Ok(true));
            if !is_alive {
                self.note_early_close(connection);
            }
            is_alive
        });
        if idle.len() < before {
            info!(peer = self.peer.name, lost = before - idle.len(), "idle connections were closed by the peer");
        }
        // The connection idle for longest comes first.
        let (least, most) = (self.idle_target(), self.idle_max());
        let idle_for =
            |idle: &[PooledConnection]| idle.first().map_or(Duration::ZERO, |connection| connection.since.elapsed());
        while (idle.len() > most && idle_for(&idle) > CHECK_INTERVAL)
            || (idle.len() > least && idle_for(&idle) > self.peer.pool.idle.0)
        {
            idle.remove(0).stream.disarm();
        }
    }

    /// Records that the peer has closed an idle connection, if that was a short time after its greeting.
    fn note_early_close(&self, connection: &PooledConnection) {
        if connection.sessions == 0 && connection.since.elapsed() < EARLY {
            self.closed_early.store(true, Ordering::Relaxed);
        }
    }

    /// How many connections to keep ready. Where sessions are streams of one connection, one stream keeps it open and
    /// shows when it dies.
    fn idle_target(&self) -> usize {
        let (least, most) = (self.for_hops(self.peer.pool.min), self.idle_max());
        if self.has_streams() || least == 0 { least } else { target_of(least, most, self.peak_and_returning()) }
    }

    fn idle_max(&self) -> usize {
        self.for_hops(self.peer.pool.max)
    }

    /// How many connections may be idle for a moment. Where many short sessions follow each other, many are idle in one
    /// moment and needed in the next: if those above the maximum were closed at once, each would be dialled again. At most
    /// [`IDLE_BURST_MAX`] times the maximum, and no more than the gateway has descriptors for.
    fn idle_burst_max(&self) -> usize {
        let (most, least) = (self.idle_max(), self.for_hops(self.peer.pool.min));
        if self.has_streams() || least == 0 {
            most
        } else {
            burst_max_of((least, most), self.idle_burst(), self.peak_and_returning())
        }
    }

    /// How many connections sessions have used at the same time, and how many of those in use now will come back.
    fn peak_and_returning(&self) -> (usize, usize) {
        let (peak, in_use) = self.demand.peak_and_in_use(Instant::now(), self.peer.pool.idle.0);
        // Where only the handshake is protected, a connection serves one session.
        (peak, if self.peer.security == Security::Auth { 0 } else { in_use })
    }

    fn idle_burst(&self) -> usize {
        self.idle_burst.load(Ordering::Relaxed) as usize
    }

    /// Sets how many times `pool.max` connections may be idle for a moment.
    pub(crate) fn set_idle_burst(&self, factor: u32) {
        self.idle_burst.store(factor, Ordering::Relaxed);
    }

    fn for_hops(&self, hops: u32) -> usize {
        let hops = hops as usize;
        if self.has_streams() { hops.min(1) } else { hops * usize::from(self.streams()) }
    }

    /// Whether sessions over the current transport are streams of one connection, as far as known.
    pub(super) fn has_streams(&self) -> bool {
        self.transport_option(&self.chosen()).has_streams.get() == Some(&true)
    }
}

/// How many connections to keep ready: `least`, and beyond that as many as sessions have used at the same time lately, up
/// to `most`. Those in use that will come back count for all but `least`.
fn target_of(least: usize, most: usize, (peak, returning): (usize, usize)) -> usize {
    (least + peak).min(most).saturating_sub(returning).max(least.min(most))
}

/// How many connections may be idle for a moment.
fn burst_max_of((least, most): (usize, usize), factor: usize, (peak, returning): (usize, usize)) -> usize {
    (least + peak).saturating_sub(returning).clamp(most, most * factor.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_in_use_count_as_ready_beyond_the_minimum() {
        // A session that takes a connection makes none.
        assert_eq!([(0, 0), (1, 0), (1, 1)].map(|demanded| target_of(2, 8, demanded)), [2, 3, 2]);
        assert_eq!([(7, 0), (7, 1), (7, 6), (7, 7)].map(|demanded| target_of(2, 8, demanded)), [8, 7, 2, 2]);
        assert_eq!([(30, 0), (30, 1), (30, 30)].map(|demanded| target_of(2, 8, demanded)), [8, 7, 2]);
        // Long sessions leave the minimum to others.
        assert_eq!(target_of(2, 8, (100, 100)), 2);
        assert_eq!([target_of(1, 1, (5, 0)), target_of(1, 1, (5, 5)), target_of(3, 2, (0, 0))], [1, 1, 2]);
    }

    #[test]
    fn connections_that_may_be_needed_stay_for_a_moment() {
        assert_eq!([0, 7, 30, 31].map(|peak| burst_max_of((2, 8), 4, (peak, 0))), [8, 9, 32, 32]);
        assert_eq!(
            [burst_max_of((2, 8), 4, (30, 20)), burst_max_of((2, 8), 4, (30, 30)), burst_max_of((2, 0), 4, (3, 0))],
            [12, 8, 0]
        );
    }
}
