//! The TCP connection beside a hop over UDP, whose reset lets the peer be suspected at once of having died: the kernel resets
//! what a dead process had over TCP, and nobody does so for the rest (`docs/protocol/session.md` §6.6). Whether it has died is then
//! looked into: the beacon is lit again, and tells which process is there.

use super::{Pool, Way, lock};
use crate::live::Sessions;
use crate::suspicion::{Ear, Neighbour, Silence};
use crate::transports::shows_death;
use phoebus_net::transport::Security;
use phoebus_net::{CongestionControl, Profile, Stream};
use phoebus_proto::session::Code;
use phoebus_proto::session::message::Hello;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

/// Pause before a beacon that has ended is lit again.
const AGAIN: Duration = Duration::from_secs(1);
/// Longest pause between attempts.
const AGAIN_MAX: Duration = Duration::from_secs(30);

/// A beacon that the peer has answered.
#[derive(Debug)]
struct Beacon {
    stream: Arc<Stream>,
    /// Which process of its name the peer is; 0 if it does not say.
    instance: u64,
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

/// What became of a suspicion.
enum Verdict {
    /// The peer's process has died, as this shows.
    Dead(&'static str),
    Lives,
}

impl Pool {
    /// Keeps a beacon at the peer until the pool is closed. When the peer is found to have died by it, the `sessions` that would not
    /// notice are ended.
    pub(crate) async fn watch(self: Arc<Self>, sessions: Arc<Sessions>) {
        let Some(beside) = &self.beside else { return };
        let (mut pause, mut said) = (AGAIN, false);
        let mut chosen = self.chosen.subscribe();
        // Once it was needed it stays: sessions may go on by a way that is no longer in force.
        tokio::select! {
            _ = chosen.wait_for(|chosen| !shows_death(&self.way(chosen).transport)) => {}
            () = self.ended.notified() => return,
        }
        let mut lit = None;
        while !self.closed.load(Ordering::Relaxed) {
            let attempt = match lit.take() {
                Some(beacon) => Ok(Ok(beacon)),
                None => timeout(self.limits.greeting, self.light(beside)).await,
            };
            match attempt {
                Ok(Ok(beacon)) => {
                    (pause, said) = (AGAIN, false);
                    info!(peer = self.peer.name, "a beacon is lit beside {}", self.hidden());
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
                    lit = tokio::select! {
                        lit = self.heed(out, &beacon, beside, &sessions) => lit,
                        () = self.ended.notified() => return,
                    };
                    if lit.is_some() {
                        continue;
                    }
                }
                failed => {
                    self.has_beacon.store(false, Ordering::Relaxed);
                    let why = match failed {
                        Ok(Err(refusal)) => refusal.reason,
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
                    pause = (pause * 2).min(AGAIN_MAX);
                }
            }
            tokio::select! {
                () = sleep(pause) => {}
                () = self.ended.notified() => return,
            }
        }
    }

    /// What to say of a hop that should have a beacon and has none.
    pub(crate) fn unwatched(&self) -> Option<&'static str> {
        let missing = self.beside.is_some() && !self.has_beacon.load(Ordering::Relaxed);
        missing.then_some("no TCP connection beside it tells of the peer's death")
    }

    /// Lets everything go that was connected, `before` that time, to a peer that has died, as is known by a beacon of this
    /// protection.
    pub(crate) fn give_up(&self, beacon: Security, before: Instant) {
        if beacon > Security::None {
            for way in &self.ways {
                way.over.abandon(&self.peer.name, before, Code::Reset, "the peer's process has died");
            }
        }
        lock(&self.idle).retain(|warm| warm.since > before || !is_believed(beacon, warm.stream.security()));
    }

    /// Idle connections that would not show the peer's death, and about which a beacon of this protection is believed.
    pub(crate) fn idle_beside(&self, beacon: Security) -> Vec<Arc<Stream>> {
        let beside =
            |warm: &&super::Warm| !shows_death(self.transport_of(warm)) && is_believed(beacon, warm.stream.security());
        lock(&self.idle).iter().filter(beside).map(|warm| warm.stream.clone()).collect()
    }

    /// A beacon of the peer's process `instance` is lit here.
    pub(crate) fn shows_itself(&self, instance: u64, beacon: Security) {
        self.shown.send_replace((instance, beacon));
    }

    /// Waits until another process than `instance`, which had a beacon of this protection, shows itself with one as well protected.
    pub(crate) async fn replaced(&self, instance: u64, beacon: Security) {
        let another =
            |(shown, by): &(u64, Security)| ![0, instance].contains(shown) && instance != 0 && is_believed(*by, beacon);
        // The sender lives as long as `self`.
        let _ = self.shown.subscribe().wait_for(another).await;
    }

    async fn light(&self, beside: &Way) -> Result<Beacon, crate::refusal::Refusal> {
        let by = self.chosen();
        let stream = self.reach(beside, &self.profile_beside(), self.limits.greeting).await?;
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

    /// Does what the end of `beacon` calls for. Returns the next one, if it is lit already.
    async fn heed(&self, out: Out, beacon: &Beacon, beside: &Way, sessions: &Sessions) -> Option<Beacon> {
        let peer = &self.peer.name;
        match out {
            Out::Reset => {
                let since = Instant::now();
                debug!(peer, "the beacon was reset: is the peer still there?");
                let (verdict, lit) = self.look_into(beacon, beside, sessions).await;
                match verdict {
                    Verdict::Dead(why) => {
                        let security = beacon.stream.security();
                        let ended = sessions.died(&Neighbour::Peer(peer.clone()), security, since);
                        self.give_up(security, since);
                        warn!(
                            peer,
                            sessions = ended,
                            "the peer has died: its TCP connection beside {} was reset, and {why}",
                            self.hidden()
                        );
                    }
                    Verdict::Lives => info!(peer, "the beacon was reset, but the peer lives"),
                }
                lit
            }
            Out::Closed => {
                // It is going, and has no more use for the others.
                lock(&self.idle).clear();
                debug!(peer, "the peer has put the beacon beside {} out", self.hidden());
                None
            }
            Out::Silent(error) => {
                info!(peer, "the TCP connection beside {} has failed: {}", self.hidden(), phoebus_net::reason(&error));
                None
            }
        }
    }

    /// Whether the peer, whose `beacon` was reset, has died. Lights another meanwhile, and says which process answers; where that
    /// does not decide it, the other connections to the peer do, by what is heard on them.
    async fn look_into(&self, beacon: &Beacon, beside: &Way, sessions: &Sessions) -> (Verdict, Option<Beacon>) {
        let security = beacon.stream.security();
        let mut streams = sessions.streams_with(&Neighbour::Peer(self.peer.name.clone()), security);
        streams.extend(self.idle_beside(security));
        let ear = Ear::at(&streams);
        let silent = ear.clone().falls_silent(Silence::alone(self.limits.silence));
        drop(streams);
        let mut silent = std::pin::pin!(silent);
        let by_silence = |silent| if silent { Verdict::Dead("nothing more is heard of it") } else { Verdict::Lives };
        let again = async {
            loop {
                match timeout(self.limits.greeting, self.light(beside)).await {
                    Ok(Ok(lit)) => return Some(lit),
                    // Nobody listens there any more, and no question is answered: programs are to hear of it at once.
                    Ok(Err(refusal))
                        if refusal.code == Code::Refused
                            && ear.clone().falls_silent(Silence::with_refusal(self.limits.silence)).await =>
                    {
                        return None;
                    }
                    _ => {}
                }
                sleep(AGAIN).await;
            }
        };
        tokio::select! {
            lit = again => {
                let Some(lit) = lit else { return (Verdict::Dead("its port refuses and nothing more is heard of it"), None) };
                let verdict = match (beacon.instance, lit.instance) {
                    // One of both is a neighbour that does not say.
                    (0, _) | (_, 0) => by_silence(silent.await),
                    (was, is) if was == is => Verdict::Lives,
                    _ => Verdict::Dead("another process has taken its place"),
                };
                (verdict, Some(lit))
            }
            silent = &mut silent => (by_silence(silent), None),
        }
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

/// Whether a beacon of this protection says anything about connections of that one. Whoever can send packets can reset one in the
/// clear, or light one under another's name; what nobody can forge does not end by it.
pub(crate) fn is_believed(beacon: Security, connection: Security) -> bool {
    beacon > Security::None || connection == Security::None
}

/// Whether a beacon that fails so was reset, as by the kernel of a host whose process has died.
pub(crate) fn is_reset(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ConnectionReset
}
