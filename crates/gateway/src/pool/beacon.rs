//! The TCP connection beside a hop over UDP. Its reset raises the suspicion at once that the peer has died: the kernel
//! resets a dead process's TCP connections, and nothing does so for UDP (`docs/protocol/session.md` §6.6). The gateway
//! then opens the beacon again, and so learns which process is there.

use super::{Pool, lock};
use crate::liveness::{DeadConnections, is_believed};
use crate::refusal::Refusal;
use crate::transports::TransportOption;
use crate::transports::shows_death;
use phoebus_net::transport::{Pulse, Security};
use phoebus_net::{CongestionControl, Error, Profile, Stream};
use phoebus_proto::session::message::Hello;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

/// Pause before a beacon that has ended is opened again.
const AGAIN: Duration = Duration::from_secs(1);
/// Longest pause between attempts.
const AGAIN_MAX: Duration = Duration::from_secs(30);

/// Pause before the next attempt where an opening session waits for its result.
const AGAIN_WANTED: Duration = Duration::from_millis(200);

/// A beacon that the peer has answered.
#[derive(Debug)]
struct Beacon {
    stream: Arc<Stream>,
    /// The peer's process; 0 if it does not say.
    instance: u64,
}

/// Why there is no beacon.
struct Unlit {
    reason: String,
    /// None of the peer's addresses accepts connections.
    is_refused: bool,
}

impl From<Refusal> for Unlit {
    fn from(Refusal { reason, .. }: Refusal) -> Self {
        Self { reason, is_refused: false }
    }
}

/// A beacon that was reset.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lost {
    /// The peer's process at the other end; 0 if it did not say.
    pub(crate) instance: u64,
    /// The number of the beacon, counted from 1, among those opened by the peer or among those opened here.
    pub(crate) number: u64,
    /// Its protection.
    pub(crate) security: Security,
}

/// The process, among all that ever had the peer's name, at the other end of the latest beacon.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shown {
    /// 0 if there was no beacon yet, or the peer does not say.
    pub(crate) instance: u64,
    /// The protection of the beacon.
    pub(crate) security: Security,
    /// When a beacon first showed that process.
    pub(crate) since: Instant,
    /// Beacons so far: those opened by the peer, and those opened here.
    pub(crate) counts: [u64; 2],
}

/// How a beacon ended.
enum Out {
    /// It was reset: the peer's process has died, or someone forged a reset.
    Reset,
    /// The peer closed the connection in order.
    Closed,
    /// It fell silent, perhaps through a fault of the path.
    Silent(io::Error),
}

/// Pauses after consecutive resets of beacons.
#[derive(Debug, Default)]
struct Resets(Duration);

impl Resets {
    /// The pause after the reset of a beacon that lasted for `lit`. Normally there is none, to learn at once which
    /// process answers; but someone may reset each beacon as soon as it opens.
    fn pause(&mut self, lit: Duration) -> Duration {
        let pause = if lit < AGAIN { self.0 } else { Duration::ZERO };
        self.0 = (2 * pause).clamp(AGAIN_WANTED, AGAIN_MAX);
        pause
    }
}

impl Pool {
    /// Keeps a beacon at the peer until the pool is closed. Calls `suspect` when it is reset.
    pub(crate) async fn watch(self: Arc<Self>, suspect: impl Fn(Lost) + Send) {
        let Some(beside) = &self.beside else { return };
        let (mut pause, mut said, mut resets) = (AGAIN, false, Resets::default());
        let mut chosen = self.chosen.subscribe();
        // Once needed, the beacon stays: sessions may continue over a transport that is no longer current.
        tokio::select! {
            _ = chosen.wait_for(|chosen| !shows_death(&self.transport_option(chosen).transport)) => {}
            () = self.ended.notified() => return,
        }
        while !self.closed.load(Ordering::Relaxed) {
            let begun = Instant::now();
            let attempt = tokio::select! {
                attempt = timeout(self.limits.greeting, self.light(beside)) => attempt,
                () = self.ended.notified() => return,
            };
            let is_refused = matches!(&attempt, Ok(Err(Unlit { is_refused: true, .. })));
            self.refused.send_replace(is_refused.then(|| begun.elapsed()));
            match attempt {
                Ok(Ok(beacon)) => {
                    let lit = Instant::now();
                    said = false;
                    info!(peer = self.peer.name, "a beacon is lit beside {}", self.hidden());
                    let (instance, security) = (beacon.instance, beacon.stream.security());
                    let number = self.shows_itself(instance, security, true);
                    self.has_beacon.store(true, Ordering::Relaxed);
                    self.had_beacon.store(true, Ordering::Relaxed);
                    let out = tokio::select! {
                        out = out(&beacon.stream) => Some(out),
                        () = beacon.stream.lapsed() => None,
                        () = self.ended.notified() => return beacon.stream.disarm(),
                    };
                    let Some(out) = out else {
                        // Open another at once.
                        beacon.stream.disarm();
                        continue;
                    };
                    self.has_beacon.store(false, Ordering::Relaxed);
                    pause = self.heed(&out);
                    if matches!(out, Out::Reset) {
                        pause = resets.pause(lit.elapsed());
                        suspect(Lost { instance, number, security });
                    }
                }
                failed => {
                    self.has_beacon.store(false, Ordering::Relaxed);
                    let why = match failed {
                        Ok(Err(unlit)) => unlit.reason,
                        _ => format!("{} did not answer in time", self.peer.name),
                    };
                    if !std::mem::replace(&mut said, true) {
                        warn!(
                            peer = self.peer.name,
                            "no TCP connection beside {}: if {} dies, sessions fail only after its silence ({why})",
                            self.hidden(),
                            self.peer.name,
                        );
                    }
                    pause = (pause * 2).clamp(AGAIN, AGAIN_MAX);
                }
            }
            let wanted = async {
                sleep(AGAIN_WANTED).await;
                self.beacon_wanted.notified().await;
            };
            tokio::select! {
                () = sleep(pause) => {}
                () = wanted => {}
                () = self.ended.notified() => return,
            }
        }
    }

    /// The note on a hop that should have a beacon and has none.
    pub(crate) fn unwatched(&self) -> Option<&'static str> {
        let missing = self.beside.is_some() && !self.has_beacon.load(Ordering::Relaxed);
        missing.then_some("no TCP connection beside it tells of the peer's death")
    }

    /// Drops idle connections that are among the `dead`: a beacon with this protection has shown that the peer has
    /// died.
    pub(crate) fn give_up(&self, beacon: Security, dead: &DeadConnections<'_>) {
        let is_dead = |connection: &super::PooledConnection| dead.has(&connection.stream, connection.since);
        lock(&self.idle)
            .retain(|connection| !is_dead(connection) || !is_believed(beacon, connection.stream.security()));
    }

    /// The pulses of idle or shared connections with the peer for which a beacon with this protection is believed.
    pub(crate) fn pulses(&self, beacon: Security) -> Vec<Box<dyn Pulse>> {
        let idle = lock(&self.idle);
        let idle = idle.iter().filter(|connection| is_believed(beacon, connection.stream.security()));
        let mut pulses: Vec<_> = idle.filter_map(|connection| connection.stream.pulse()).collect();
        // All shared connections are encrypted: they are QUIC's.
        if is_believed(beacon, Security::Encrypt) {
            pulses.extend(self.transports.iter().flat_map(|option| option.over.pulses(&self.peer.name)));
        }
        pulses
    }

    /// Records that the peer's process `instance` has opened a beacon here, or has answered one opened here. Returns
    /// the number of that beacon.
    pub(crate) fn shows_itself(&self, instance: u64, security: Security, is_own: bool) -> u64 {
        let mut number = 0;
        // Before `shown` wakes its waiters: a suspicion then reports more about the death.
        let was = self.shown.borrow().instance;
        if ![0, instance].contains(&was) && instance != 0 {
            self.report_death(None, security);
        }
        self.shown.send_modify(|shown| {
            let since = if shown.instance == instance { shown.since } else { Instant::now() };
            let mut counts = shown.counts;
            counts[usize::from(is_own)] += 1;
            number = counts[usize::from(is_own)];
            *shown = Shown { instance, security, since, counts };
        });
        number
    }

    /// Notifies when a process of the peer's name [shows itself](Self::shows_itself).
    pub(crate) fn shown(&self) -> watch::Receiver<Shown> {
        self.shown.subscribe()
    }

    /// Whether the peer's port refused the last beacon attempt.
    pub(crate) fn is_refused(&self) -> bool {
        self.refused.borrow().is_some()
    }

    /// Requests a beacon attempt soon (one for all callers), and waits for it. Returns how long the peer's port took to
    /// refuse it, if it did.
    pub(super) async fn try_beacon(&self) -> Option<Duration> {
        let mut refused = self.refused.subscribe();
        self.beacon_wanted.notify_one();
        // The sender lives as long as `self`.
        let _ = refused.changed().await;
        *refused.borrow()
    }

    async fn light(&self, beside: &TransportOption) -> Result<Beacon, Unlit> {
        let selection = self.chosen();
        let unreached = |error: Error| Unlit { is_refused: error.is_refused(), ..self.unreached(&error).into() };
        let stream = self.reach(beside, &self.profile_beside(), self.limits.greeting).await.map_err(unreached)?;
        let hello = Hello { beacon: true, ..self.own.hello() };
        let connection = self.greet_on(stream, &selection, &hello).await?;
        Ok(Beacon { instance: connection.asking.hello().map_or(0, |hello| hello.instance), stream: connection.stream })
    }

    /// The settings of TCP connections beside hops with the peer's profile, whose congestion control TCP may lack.
    pub(super) fn profile_beside(&self) -> Profile {
        Profile { congestion_control: CongestionControl::Auto, ..Profile::clone(&self.peer.profile) }
    }

    /// The transports that need the beacon.
    pub(super) fn hidden(&self) -> String {
        let transports =
            self.transports.iter().map(|option| &*option.transport).filter(|transport| !shows_death(transport));
        transports.collect::<Vec<_>>().join(" and ")
    }

    /// Handles the end of a beacon. Returns the pause before the next attempt.
    fn heed(&self, out: &Out) -> Duration {
        let peer = &self.peer.name;
        match out {
            // `suspect` examines it.
            Out::Reset => {}
            Out::Closed => {
                // The peer is shutting down, and closes its idle connections too.
                lock(&self.idle).clear();
                debug!(peer, "the peer has put the beacon beside {} out", self.hidden());
            }
            Out::Silent(error) => {
                info!(peer, "the TCP connection beside {} has failed: {}", self.hidden(), phoebus_net::reason(error));
            }
        }
        AGAIN
    }
}

/// Waits until the beacon ends.
async fn out(stream: &Stream) -> Out {
    loop {
        let read = match stream.readable().await {
            Ok(()) => stream.try_read(&mut [0; 64]),
            Err(error) => Err(error),
        };
        return match read {
            // Bytes are a refusal, which precedes the close.
            Ok(_) => Out::Closed,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) if is_reset(&error) => Out::Reset,
            Err(error) => Out::Silent(error),
        };
    }
}

/// Whether this error is a reset, as sent by the kernel of a host whose process has died.
pub(crate) fn is_reset(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ConnectionReset
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_grows_while_beacons_are_reset_at_once() {
        let mut resets = Resets::default();
        let mut pauses = |lit| resets.pause(Duration::from_millis(lit)).as_millis();
        assert_eq!([pauses(5), pauses(5), pauses(5), pauses(5)], [0, 200, 400, 800]);
        for _ in 0..10 {
            assert!(pauses(5) <= AGAIN_MAX.as_millis());
        }
        assert_eq!([pauses(5000), pauses(5)], [0, 200]);
    }
}
