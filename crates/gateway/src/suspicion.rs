//! Whether a neighbour whose beacon was reset has died (`docs/protocol/session.md` §6.6).
//!
//! A reset is a suspicion: whoever sees a connection's packets can send one, TLS or not. The neighbour counts as dead only if
//! another process is there in its place, or if its other connections have fallen silent as well: it is asked on each of them
//! for a sign of life, which over QUIC nobody else can give.

use crate::pool::Pool;
use crate::shared::Shared;
use phoebus_net::Stream;
use phoebus_net::transport::Security;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

/// Longest pause between two questions to a suspect.
const LOOK: Duration = Duration::from_millis(100);
/// A suspect that does not answer for [`Silence::least`], and as many of its round trips as this, has fallen silent.
const TRIPS: u32 = 8;

/// How long a suspect has to be silent to count as dead.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Silence {
    /// Where it can be asked for signs of life, and the path is short: ten questions or so remain without an answer.
    pub(crate) least: Duration,
    /// Where it cannot be asked, and at most: what it says by itself has not come.
    pub(crate) most: Duration,
}

impl Silence {
    /// Where nothing else speaks for its death.
    pub(crate) fn alone(most: Duration) -> Self {
        Self { least: Duration::from_secs(1), most }
    }

    /// Where its port refuses connections as well.
    pub(crate) fn with_refusal(most: Duration) -> Self {
        Self { least: Duration::from_millis(200), most }
    }

    /// The time for connections whose longest round trip is known if they can be asked.
    fn limit(self, asked: Option<Duration>) -> Duration {
        asked.map_or(self.most, |rtt| (TRIPS * rtt).max(self.least).min(self.most))
    }
}

/// A neighbour that may have died.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Neighbour {
    /// The peer of this name.
    Peer(String),
    /// The client's agent that is this process.
    Client(u64),
}

/// Neighbours that are suspected at present.
#[derive(Debug, Default)]
pub(crate) struct Suspects(Mutex<HashSet<Neighbour>>);

/// One of them, until this is dropped.
struct Suspect<'a> {
    all: &'a Suspects,
    neighbour: Neighbour,
}

impl Suspects {
    /// `neighbour`, unless it is suspected already.
    fn enter(&self, neighbour: Neighbour) -> Option<Suspect<'_>> {
        let is_new = self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(neighbour.clone());
        is_new.then_some(Suspect { all: self, neighbour })
    }
}

impl Drop for Suspect<'_> {
    fn drop(&mut self) {
        self.all.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.neighbour);
    }
}

/// Looks in the background whether `neighbour` has died, whose beacon here, of the protection `beacon`, was reset, and then ends
/// its sessions. `pool` and `instance` are those of a peer: its connections, and the process whose beacon it was.
pub(crate) fn look_into(
    shared: &Arc<Shared>,
    neighbour: Neighbour,
    pool: Option<Arc<Pool>>,
    instance: u64,
    beacon: Security,
) {
    let (shared, since) = (shared.clone(), Instant::now());
    tokio::spawn(async move {
        let Some(suspect) = shared.suspects.enter(neighbour) else { return };
        let neighbour = &suspect.neighbour;
        let mut streams = shared.sessions.streams_with(neighbour, beacon);
        streams.extend(pool.iter().flat_map(|pool| pool.idle_beside(beacon)));
        if streams.is_empty() {
            return;
        }
        let replaced = async {
            match &pool {
                Some(pool) => pool.replaced(instance, beacon).await,
                None => std::future::pending().await,
            }
        };
        let silence = Silence::alone(shared.setup().config.limits.silence_timeout.0);
        let why = tokio::select! {
            () = replaced => Some("another process has taken its place"),
            silent = Ear::at(&streams).falls_silent(silence) => silent.then_some("nothing more is heard of it"),
        };
        drop(streams);
        let Some(why) = why else {
            return info!(?neighbour, "the beacon was reset, but its sender lives: its other connections are heard");
        };
        let sessions = shared.sessions.died(neighbour, beacon, since.into_std());
        if let Some(pool) = &pool {
            pool.give_up(beacon, since.into_std());
        }
        match neighbour {
            Neighbour::Peer(peer) => warn!(peer, sessions, "the peer has died: its beacon was reset, and {why}"),
            Neighbour::Client(_) => info!(sessions, "a client's agent has died: its beacon was reset, and {why}"),
        }
    });
}

/// Listens for signs of life on connections of one neighbour.
#[derive(Debug, Clone)]
pub(crate) struct Ear(Vec<(Weak<Stream>, u64)>);

impl Ear {
    /// On those of `streams` whose transport tells when something is heard.
    pub(crate) fn at(streams: &[Arc<Stream>]) -> Self {
        let listen = |stream: &Arc<Stream>| Some((Arc::downgrade(stream), stream.heard()?));
        Self(streams.iter().filter_map(listen).collect())
    }

    /// Whether something has come since this was last asked for.
    fn hears(&mut self) -> bool {
        let mut hears = false;
        for (stream, before) in &mut self.0 {
            if let Some(now) = stream.upgrade().and_then(|stream| stream.heard()) {
                hears |= now != *before;
                *before = now;
            }
        }
        hears
    }

    /// Asks for signs of life. Returns the longest round trip of the connections that can ask, if there are any.
    fn ask(&self) -> Option<Duration> {
        let streams = self.0.iter().filter_map(|(stream, _)| stream.upgrade());
        let asked = streams.filter(|stream| stream.probe());
        asked.map(|stream| Duration::from_micros(stream.stats().map_or(0, |stats| stats.rtt_us))).max()
    }

    /// Waits until nothing was heard for as long as `silence` says, which is true, or the neighbour is still heard after twice
    /// that time. It is asked meanwhile. What was on its way when a process died is heard for a moment after it. Without
    /// connections to listen on, nothing is known, and silence says nothing.
    pub(crate) async fn falls_silent(mut self, silence: Silence) -> bool {
        let begun = Instant::now();
        let mut heard = begun;
        loop {
            let limit = silence.limit(self.ask());
            sleep(LOOK.min(limit / 10)).await;
            let now = Instant::now();
            if self.hears() {
                heard = now;
            } else if !self.0.is_empty() && now - heard >= limit {
                return true;
            }
            if now - begun >= 2 * limit && (self.0.is_empty() || now - heard < limit / 2) {
                return false;
            }
        }
    }
}
