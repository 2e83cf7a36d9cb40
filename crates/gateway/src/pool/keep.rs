//! Connections that wait: greeted ahead of need, looked after, lent and taken back.

use super::{Pool, Warm, lock};
use crate::refusal::Refusal;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::time::timeout;
use tracing::{info, warn};

/// Pause between two looks at the idle connections.
const LOOK: Duration = Duration::from_secs(1);
/// Longest pause between attempts to reach a peer that does not answer.
const RETRY_MAX: Duration = Duration::from_secs(30);
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
            let mut pause = LOOK;
            // Ways that lead nowhere one after the other: then it is the peer that is not there.
            let mut lost = 0;
            while lock(&self.idle).len() < self.least() && !self.closed.load(Ordering::Relaxed) {
                let by = self.chosen();
                let limit = self.patience().unwrap_or(self.limits.greeting);
                match timeout(limit, self.greet(&by, limit)).await {
                    Ok(Ok(warm)) => {
                        retry = LOOK;
                        self.keep(warm);
                    }
                    failed => {
                        let refusal = match failed {
                            Ok(Err(refusal)) => refusal,
                            _ => self.unanswered(limit),
                        };
                        self.fall_back(&by, &refusal);
                        lost += 1;
                        if lost < self.ways.len() {
                            continue;
                        }
                        let why = refusal.reason;
                        self.counts.failed.fetch_add(1, Ordering::Relaxed);
                        warn!(peer = self.peer.name, retry_s = retry.as_secs(), "no connection is ready: {why}");
                        pause = retry;
                        retry = (retry * 2).min(RETRY_MAX);
                        break;
                    }
                }
            }
            self.reconsider().await;
            let _ = timeout(pause, self.wanted.notified()).await;
        }
    }

    /// Makes a connection ahead of need, now: whether the peer can be had shows.
    pub(crate) async fn try_peer(&self) -> Result<(), Refusal> {
        let mut first: Option<Refusal> = None;
        for left in (0..self.ways.len()).rev() {
            let by = self.chosen();
            let limit = self.patience().filter(|_| left > 0).unwrap_or(self.limits.greeting);
            match timeout(limit, self.greet(&by, limit)).await.unwrap_or_else(|_| Err(self.unanswered(limit))) {
                Ok(warm) => {
                    self.keep(warm);
                    return Ok(());
                }
                Err(refusal) => {
                    self.fall_back(&by, &refusal);
                    first.get_or_insert(refusal);
                }
            }
        }
        first.map_or(Ok(()), Err)
    }

    /// The connection used last: its window is the freshest.
    pub(super) fn take(&self) -> Option<Warm> {
        if self.has_streams() {
            return None;
        }
        loop {
            let warm = lock(&self.idle).pop()?;
            if lock(&self.idle).len() < self.least() {
                self.wanted.notify_one();
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
        let outdated = !warm.by.is_like(&self.chosen());
        if outdated || self.closed.load(Ordering::Relaxed) || idle.len() >= self.most() {
            warm.stream.disarm();
        } else {
            idle.push(warm);
        }
    }

    /// Drops idle connections that have died, and those above the minimum that are too old.
    fn sweep(&self) {
        let mut idle = lock(&self.idle);
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

    /// How many are kept ready: enough for so many hops. Where sessions are streams of one connection, one of them keeps it up, and
    /// shows when it dies.
    fn least(&self) -> usize {
        self.for_hops(self.peer.pool.min)
    }

    fn most(&self) -> usize {
        self.for_hops(self.peer.pool.max)
    }

    fn for_hops(&self, hops: u32) -> usize {
        let hops = hops as usize;
        if self.has_streams() { hops.min(1) } else { hops * usize::from(self.streams()) }
    }

    /// Whether sessions by the way in force are streams of one connection, as far as was seen.
    fn has_streams(&self) -> bool {
        self.way(&self.chosen()).has_streams.load(Ordering::Relaxed)
    }
}
