//! The TCP connection beside a hop over UDP, whose reset lets the peer be suspected at once of having died: the kernel resets
//! what a dead process had over TCP, and nobody does so for the rest (`docs/protocol/session.md` §6.6). The beacon is then lit
//! again, and tells which process is there.

use super::{Pool, Way, lock};
use crate::ear::{Dead, is_believed};
use crate::refusal::Refusal;
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

/// Pause before a beacon that has ended is lit again.
const AGAIN: Duration = Duration::from_secs(1);
/// Longest pause between attempts.
const AGAIN_MAX: Duration = Duration::from_secs(30);

/// Pause before the next attempt where an opening waits for what comes of it.
const AGAIN_WANTED: Duration = Duration::from_millis(200);

/// A beacon that the peer has answered.
#[derive(Debug)]
struct Beacon {
    stream: Arc<Stream>,
    /// Which process of its name the peer is; 0 if it does not say.
    instance: u64,
}

/// Why no beacon is lit.
struct Unlit {
    reason: String,
    /// Nobody listens at any of the peer's addresses.
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
    /// Whose it was; 0 if it did not say.
    pub(crate) instance: u64,
    /// Which it was of those that the peer has lit, or of those lit here: the first is 1.
    pub(crate) number: u64,
    /// What protected it.
    pub(crate) security: Security,
}

/// Which of the processes that ever had the peer's name was at the other end of the latest beacon.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shown {
    /// 0: none, or it did not say.
    pub(crate) instance: u64,
    /// How the beacon was protected.
    pub(crate) by: Security,
    /// When that process was first seen so.
    pub(crate) since: Instant,
    /// Beacons so far: those that the peer has lit, and those lit here.
    pub(crate) counts: [u64; 2],
}

/// How a beacon ended.
enum Out {
    /// It was reset: the peer's process is gone, or someone says so.
    Reset,
    /// The peer let the connection go, for reasons of its own.
    Closed,
    /// Nothing is heard any more, which may be the path's fault.
    Silent(io::Error),
}

/// Pauses after beacons that are reset one after the other.
#[derive(Debug, Default)]
struct Resets(Duration);

impl Resets {
    /// The pause after the reset of one that was lit for so long. Which process answers is to be seen at once; but somebody may reset
    /// each beacon as soon as it is lit.
    fn pause(&mut self, lit: Duration) -> Duration {
        let pause = if lit < AGAIN { self.0 } else { Duration::ZERO };
        self.0 = (2 * pause).clamp(AGAIN_WANTED, AGAIN_MAX);
        pause
    }
}

impl Pool {
    /// Keeps a beacon at the peer until the pool is closed. When it is reset, `suspect` is told.
    pub(crate) async fn watch(self: Arc<Self>, suspect: impl Fn(Lost) + Send) {
        let Some(beside) = &self.beside else { return };
        let (mut pause, mut said, mut resets) = (AGAIN, false, Resets::default());
        let mut chosen = self.chosen.subscribe();
        // Once it was needed it stays: sessions may go on by a way that is no longer in force.
        tokio::select! {
            _ = chosen.wait_for(|chosen| !shows_death(&self.way(chosen).transport)) => {}
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
                        // Another takes its place at once.
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

    /// What to say of a hop that should have a beacon and has none.
    pub(crate) fn unwatched(&self) -> Option<&'static str> {
        let missing = self.beside.is_some() && !self.has_beacon.load(Ordering::Relaxed);
        missing.then_some("no TCP connection beside it tells of the peer's death")
    }

    /// Has no connection more be used that was idle and is one of the `dead`: the peer has died, as is known by a beacon of this
    /// protection.
    pub(crate) fn give_up(&self, beacon: Security, dead: &Dead<'_>) {
        let is_dead = |warm: &super::Warm| dead.has(&warm.stream, warm.since);
        lock(&self.idle).retain(|warm| !is_dead(warm) || !is_believed(beacon, warm.stream.security()));
    }

    /// The pulses of connections with the peer that are idle or shared, and about which a beacon of this protection is believed.
    pub(crate) fn pulses(&self, beacon: Security) -> Vec<Box<dyn Pulse>> {
        let idle = lock(&self.idle);
        let idle = idle.iter().filter(|warm| is_believed(beacon, warm.stream.security()));
        let mut pulses: Vec<_> = idle.filter_map(|warm| warm.stream.pulse()).collect();
        // Shared connections are all protected, QUIC's.
        if is_believed(beacon, Security::Encrypt) {
            pulses.extend(self.ways.iter().flat_map(|way| way.over.pulses(&self.peer.name)));
        }
        pulses
    }

    /// The peer's process `instance` has lit a beacon here, or has answered one of our own. Returns the number of that beacon.
    pub(crate) fn shows_itself(&self, instance: u64, by: Security, is_own: bool) -> u64 {
        let mut number = 0;
        // Told before those wake who wait for it: what a suspicion says of that next says more.
        let was = self.shown.borrow().instance;
        if ![0, instance].contains(&was) && instance != 0 {
            self.may_have_died(None, by);
        }
        self.shown.send_modify(|shown| {
            let since = if shown.instance == instance { shown.since } else { Instant::now() };
            let mut counts = shown.counts;
            counts[usize::from(is_own)] += 1;
            number = counts[usize::from(is_own)];
            *shown = Shown { instance, by, since, counts };
        });
        number
    }

    /// Tells whenever a process of the peer's name [shows itself](Self::shows_itself).
    pub(crate) fn shown(&self) -> watch::Receiver<Shown> {
        self.shown.subscribe()
    }

    /// Whether the peer's port refused the last attempt to light a beacon.
    pub(crate) fn is_refused(&self) -> bool {
        self.refused.borrow().is_some()
    }

    /// Has another attempt to light the beacon be made soon, one for all who ask, and waits for it. Returns how long the peer's
    /// port took to refuse it, if it did.
    pub(super) async fn try_beacon(&self) -> Option<Duration> {
        let mut refused = self.refused.subscribe();
        self.beacon_wanted.notify_one();
        // The sender lives as long as `self`.
        let _ = refused.changed().await;
        *refused.borrow()
    }

    async fn light(&self, beside: &Way) -> Result<Beacon, Unlit> {
        let by = self.chosen();
        let unreached = |error: Error| Unlit { is_refused: error.is_refused(), ..self.unreached(&error).into() };
        let stream = self.reach(beside, &self.profile_beside(), self.limits.greeting).await.map_err(unreached)?;
        let hello = Hello { beacon: true, ..self.own.hello() };
        let warm = self.greet_on(stream, &by, &hello).await?;
        Ok(Beacon { instance: warm.asking.hello().map_or(0, |hello| hello.instance), stream: warm.stream })
    }

    /// Settings of TCP connections beside hops of the peer's profile, whose congestion control may be one that TCP does not have.
    pub(super) fn profile_beside(&self) -> Profile {
        Profile { congestion_control: CongestionControl::Auto, ..Profile::clone(&self.peer.profile) }
    }

    /// What the beacon is beside of.
    pub(super) fn hidden(&self) -> String {
        let ways = self.ways.iter().map(|way| &*way.transport).filter(|transport| !shows_death(transport));
        ways.collect::<Vec<_>>().join(" and ")
    }

    /// Does what the end of a beacon calls for. Returns the pause before the next attempt.
    fn heed(&self, out: &Out) -> Duration {
        let peer = &self.peer.name;
        match out {
            // What that calls for is to be found out.
            Out::Reset => {}
            Out::Closed => {
                // It is going, and has no more use for the others.
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

/// Waits until the beacon is out.
async fn out(stream: &Stream) -> Out {
    loop {
        let read = match stream.readable().await {
            Ok(()) => stream.try_read(&mut [0; 64]),
            Err(error) => Err(error),
        };
        return match read {
            // Or a refusal, which comes before an end.
            Ok(_) => Out::Closed,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) if is_reset(&error) => Out::Reset,
            Err(error) => Out::Silent(error),
        };
    }
}

/// Whether a beacon that fails so was reset, as by the kernel of a host whose process has died.
pub(crate) fn is_reset(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ConnectionReset
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beacons_that_are_reset_at_once_are_lit_ever_less_often() {
        let mut resets = Resets::default();
        let mut pauses = |lit| resets.pause(Duration::from_millis(lit)).as_millis();
        assert_eq!([pauses(5), pauses(5), pauses(5), pauses(5)], [0, 200, 400, 800]);
        for _ in 0..10 {
            assert!(pauses(5) <= AGAIN_MAX.as_millis());
        }
        assert_eq!([pauses(5000), pauses(5)], [0, 200]);
    }
}
