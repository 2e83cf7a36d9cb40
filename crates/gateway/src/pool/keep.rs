//! Connections that wait: greeted ahead of need, looked after, lent and taken back.

use super::way::Chosen;
use super::{Pool, Warm, lock};
use crate::refusal::Refusal;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{info, warn};

/// Pause between two looks at the idle connections.
const LOOK: Duration = Duration::from_secs(1);
/// Longest pause between attempts to reach a peer that does not answer.
const RETRY_MAX: Duration = Duration::from_secs(30);
/// Connections that are made at a time.
const DIALS: usize = 8;
/// How often a peer's name is resolved again.
const RESOLVE_AGAIN: Duration = Duration::from_secs(60);

impl Pool {
    /// Keeps connections ready until the pool is closed: replaces dead ones, fills up to the minimum, closes old ones.
    pub(crate) async fn maintain(self: Arc<Self>) {
        let mut retry = LOOK;
        let mut resolved: Option<Instant> = None;
        while !self.closed.load(Ordering::Relaxed) {
            if resolved.is_none_or(|at| at.elapsed() > RESOLVE_AGAIN) {
                self.look_at_host();
                match self.resolve().await {
                    Ok(_) => resolved = Some(Instant::now()),
                    Err(error) => warn!(peer = self.peer.name, "{error}"),
                }
            }
            self.sweep();
            if self.is_due() {
                self.prove().await;
            }
            let pause = match self.fill().await {
                Ok(()) => {
                    retry = LOOK;
                    LOOK
                }
                Err(refusal) => {
                    let pause = retry;
                    self.counts.failed.fetch_add(1, Ordering::Relaxed);
                    let why = refusal.reason;
                    warn!(peer = self.peer.name, retry_s = pause.as_secs(), "no connection is ready: {why}");
                    retry = (retry * 2).min(RETRY_MAX);
                    pause
                }
            };
            self.reconsider().await;
            let _ = timeout(pause, self.wanted.notified()).await;
        }
    }

    /// Has as many connections ready as there should be, by the next way where one leads nowhere.
    async fn fill(self: &Arc<Self>) -> Result<(), Refusal> {
        // Ways that lead nowhere one after the other: then it is the peer that is not there.
        let mut lost = 0;
        while let Err((by, refusal)) = self.fill_by_one().await {
            self.fall_back(&by, &refusal);
            lost += 1;
            if lost >= self.ways.len() {
                self.nowhere();
                return Err(refusal);
            }
        }
        Ok(())
    }

    /// The same by the way in force, several at once: each takes some round trips, and sessions may come in less.
    async fn fill_by_one(self: &Arc<Self>) -> Result<(), (Arc<Chosen>, Refusal)> {
        let mut dials = JoinSet::new();
        let mut woken = false;
        while !self.closed.load(Ordering::Relaxed) {
            let by = self.chosen();
            // Whether there is to be more than one may not be known before the first.
            let known = self.way(&by).has_streams.get().is_some();
            let most = if known { DIALS } else { 1 };
            let ready = lock(&self.idle).len();
            while dials.len() < most && ready + dials.len() < self.least() {
                let (pool, by) = (self.clone(), by.clone());
                dials.spawn(async move {
                    let limit = pool.patience().unwrap_or(pool.limits.greeting);
                    let made = timeout(limit, pool.greet(&by, limit)).await;
                    made.unwrap_or_else(|_| Err(pool.unanswered(limit))).map_err(|refusal| (by, refusal))
                });
            }
            tokio::select! {
                done = dials.join_next() => match done {
                    Some(Ok(made)) => self.keep(made?),
                    Some(Err(_)) => {}
                    None => break,
                },
                () = self.wanted.notified() => woken = true,
            }
        }
        if woken {
            // Whoever called may have wanted something else.
            self.wanted.notify_one();
        }
        Ok(())
    }

    /// Makes a connection ahead of need, now: whether the peer can be had shows. Tries each way once; those that led nowhere,
    /// and why, are the error.
    pub(crate) async fn try_peer(&self) -> Result<(), Vec<(String, String)>> {
        let mut failed = Vec::new();
        for left in (0..self.ways.len()).rev() {
            // Connections are made ready at the same time, which may have found out more than this.
            let by = self.next_after(&failed);
            let limit = self.patience().filter(|_| left > 0).unwrap_or(self.limits.greeting);
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

    /// The connection used last: its window is the freshest. One that was not used yet has none.
    pub(super) fn take(&self) -> Option<Warm> {
        if self.has_streams() {
            return None;
        }
        loop {
            let warm = {
                let mut idle = lock(&self.idle);
                let used = idle.iter().rposition(|warm| warm.sessions > 0);
                used.map(|place| idle.remove(place)).or_else(|| idle.pop())
            };
            if warm.is_none() && self.peer.pool.min > 0 {
                self.spare.missed(Instant::now(), self.most());
            }
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
        }
    }

    pub(super) fn keep(&self, mut warm: Warm) {
        warm.since = Instant::now();
        let mut idle = lock(&self.idle);
        let outdated = !warm.by.is_like(&self.chosen()) || !warm.stream.is_current();
        if outdated || self.closed.load(Ordering::Relaxed) || idle.len() >= self.most() {
            warm.stream.disarm();
        } else {
            idle.push(warm);
        }
    }

    /// Drops idle connections that have died, those whose proof has lapsed, and those above the minimum that are too old.
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
        idle.retain(|warm| matches!(warm.stream.is_quiet(), Ok(true)));
        if idle.len() < before {
            info!(peer = self.peer.name, lost = before - idle.len(), "idle connections were closed by the peer");
        }
        // The one unused for longest stands first.
        while idle.len() > self.least() && idle.first().is_some_and(|warm| warm.since.elapsed() > self.peer.pool.idle.0)
        {
            idle.remove(0).stream.disarm();
        }
    }

    /// How many are kept ready: enough for so many hops, and those that were missed lately. Where sessions are streams of one
    /// connection, one of them keeps it up, and shows when it dies.
    fn least(&self) -> usize {
        let least = self.for_hops(self.peer.pool.min);
        if self.has_streams() {
            return least;
        }
        (least + self.spare.wanted(Instant::now(), self.peer.pool.idle.0)).min(self.most())
    }

    fn most(&self) -> usize {
        self.for_hops(self.peer.pool.max)
    }

    fn for_hops(&self, hops: u32) -> usize {
        let hops = hops as usize;
        if self.has_streams() { hops.min(1) } else { hops * usize::from(self.streams()) }
    }

    /// Whether sessions by the way in force are streams of one connection, as far as is known.
    pub(super) fn has_streams(&self) -> bool {
        self.way(&self.chosen()).has_streams.get() == Some(&true)
    }
}
