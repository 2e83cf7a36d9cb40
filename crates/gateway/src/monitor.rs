//! Checks all sessions once a second: measures their rates, for `phoebus status`, and ends those that were idle for too
//! long. Looks for new revocation lists once a minute.

use crate::failure::Side;
use crate::sessions::ActiveSession;
use crate::shared::{Phase, Setup, Shared};
use phoebus_proto::session::Code;
use phoebus_proto::units::Span;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

const LOOK: Duration = Duration::from_secs(1);
/// Checks between two kernel queries about each connection: user time-outs are minutes.
const RARELY: u32 = 5;
/// Pause between two searches of `[grid]`'s directory for revocation lists. They come every few hours.
const LISTS: Duration = Duration::from_secs(60);
/// Pause between two warnings about certificates.
const DAILY: Duration = Duration::from_secs(24 * 3600);

/// Watches until the gateway ends.
pub(crate) async fn watch_sessions(shared: Arc<Shared>) {
    let mut ticks = tokio::time::interval(LOOK);
    let mut turn: u32 = 0;
    let mut warned: Option<(Instant, Weak<Setup>)> = None;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = shared.reached(Phase::Ending) => break,
        }
        turn = turn.wrapping_add(1);
        let setup = shared.setup();
        let idle = setup.config.limits.idle_timeout.0;
        let now = Instant::now();
        // After a reload, warn at once: the administrator may have just replaced certificates.
        let as_before = |(at, before): &(Instant, Weak<Setup>)| {
            now.saturating_duration_since(*at) <= DAILY && before.ptr_eq(&Arc::downgrade(&setup))
        };
        if !warned.as_ref().is_some_and(as_before)
            && let Some(warning) = setup.transports.expiry()
        {
            tracing::warn!("{warning}");
            warned = Some((now, Arc::downgrade(&setup)));
        }
        for live in shared.sessions.all() {
            let sample = live.look(now);
            if !idle.is_zero() && now.saturating_duration_since(sample.moved) > idle {
                live.end(Code::Idle, format!("no byte has passed for {}", Span(idle)));
            } else if turn.is_multiple_of(RARELY) {
                check_peers(&setup, &live);
            }
        }
    }
    for live in shared.sessions.all() {
        live.end(Code::Terminated, "the gateway has shut down");
    }
}

/// Looks for new revocation lists of Grid authorities until the gateway ends.
pub(crate) async fn watch_revocations(shared: Arc<Shared>) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(LISTS) => {}
            () = shared.reached(Phase::Ending) => return,
        }
        let judge = shared.setup().transports.grid.clone();
        // A slow disk holds no connection up.
        let _ = tokio::task::spawn_blocking(move || judge.look()).await;
    }
}

/// Ends a session if one of its neighbours is silent although it owes an acknowledgement. Records measurements of the
/// two segments.
fn check_peers(setup: &Setup, live: &ActiveSession) {
    let sides = [(Side::First, &live.facts.from), (Side::Second, &live.facts.next)];
    for ((side, name), limit) in sides.into_iter().zip(live.user_timeouts) {
        let stats: Vec<_> = live.streams(side).iter().filter_map(|stream| stream.stats().ok()).collect();
        if !limit.is_zero() && stats.iter().any(|stats| stats.unheard() > limit) {
            live.end(Code::TimedOut, format!("{name} has acknowledged nothing for {}", Span(limit)));
        }
        // The first connection represents the others.
        if let Some(first) = stats.first() {
            live.teach(setup.peers.get(name), side, first);
        }
    }
}
