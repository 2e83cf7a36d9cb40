//! The TCP connection beside a hop over UDP, whose reset says at once that the peer's process has died: the kernel resets what
//! a dead process had over TCP, and nobody does so for the rest (`docs/protocol/session.md` §6.6).

use super::{Pool, Way, lock};
use crate::live::Sessions;
use crate::transports::shows_death;
use phoebus_net::Stream;
use phoebus_net::transport::Security;
use phoebus_proto::session::Code;
use phoebus_proto::session::message::Hello;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

/// Pause before a beacon that has ended is lit again.
const AGAIN: Duration = Duration::from_secs(1);
/// Longest pause between attempts.
const AGAIN_MAX: Duration = Duration::from_secs(30);

/// How a beacon ended.
enum Out {
    /// The peer's process is gone.
    Dead,
    /// The peer let the connection go, for reasons of its own.
    Closed,
    /// Nothing is heard any more, which may be the path's fault.
    Silent(io::Error),
}

impl Pool {
    /// Keeps a beacon at the peer until the pool is closed. When it shows that the peer has died, the `sessions` that would not
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
        while !self.closed.load(Ordering::Relaxed) {
            match timeout(self.limits.greeting, self.light(beside)).await {
                Ok(Ok(stream)) => {
                    (pause, said) = (AGAIN, false);
                    info!(peer = self.peer.name, "a beacon is lit beside {}", self.hidden());
                    self.has_beacon.store(true, Ordering::Relaxed);
                    let out = tokio::select! {
                        out = out(&stream) => Some(out),
                        () = stream.lapsed() => None,
                        () = self.ended.notified() => return stream.disarm(),
                    };
                    let Some(out) = out else {
                        // Another takes its place at once.
                        stream.disarm();
                        continue;
                    };
                    self.has_beacon.store(false, Ordering::Relaxed);
                    self.heed(&out, &stream, &sessions);
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

    /// Lets everything go that is connected to a peer that has died, as `beacon` says, which may be believed about that.
    pub(crate) fn give_up(&self, beacon: &Stream) {
        if beacon.security() > Security::None {
            for way in &self.ways {
                way.over.abandon(&self.peer.name, Code::Reset, "the peer's process has died");
            }
        }
        lock(&self.idle).retain(|warm| !is_believed(beacon.security(), warm.stream.security()));
    }

    async fn light(&self, beside: &Way) -> Result<Arc<Stream>, crate::refusal::Refusal> {
        let by = self.chosen();
        let stream = self.reach(beside, &self.peer.profile, self.limits.greeting).await?;
        let hello = Hello { beacon: true, ..self.own.hello() };
        Ok(self.greet_on(stream, &by, &hello).await?.stream)
    }

    /// What the beacon is beside of.
    fn hidden(&self) -> String {
        let ways = self.ways.iter().map(|way| &*way.transport).filter(|transport| !shows_death(transport));
        ways.collect::<Vec<_>>().join(" and ")
    }

    fn heed(&self, out: &Out, beacon: &Stream, sessions: &Sessions) {
        let peer = &self.peer.name;
        match out {
            Out::Dead => {
                let ended = sessions.peer_died(peer, beacon.security());
                self.give_up(beacon);
                warn!(
                    peer,
                    sessions = ended,
                    "the peer has died: its TCP connection beside {} was reset",
                    self.hidden()
                );
            }
            Out::Closed => {
                // It is going, and has no more use for the others.
                lock(&self.idle).clear();
                debug!(peer, "the peer has put the beacon beside {} out", self.hidden());
            }
            Out::Silent(error) => {
                info!(peer, "the TCP connection beside {} has failed: {}", self.hidden(), phoebus_net::reason(error));
            }
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
            Err(error) if is_death(&error) => Out::Dead,
            Err(error) => Out::Silent(error),
        };
    }
}

/// Whether a beacon of this protection says anything about connections of that one. Whoever can send packets can reset one in the
/// clear, or light one under another's name; what nobody can forge does not end by it.
pub(crate) fn is_believed(beacon: Security, connection: Security) -> bool {
    beacon > Security::None || connection == Security::None
}

/// Whether a beacon that fails so says that the process at its other end has died.
pub(crate) fn is_death(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ConnectionReset
}
