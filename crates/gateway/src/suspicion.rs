//! Whether a neighbour whose beacon was reset has died (`docs/protocol/session.md` §6.6), whichever of the two had
//! opened the beacon.
//!
//! A reset is only a suspicion: anyone who sees a connection's packets can send one, with TLS or without. The neighbour
//! counts as dead only if another process has taken its place, or if its other connections have fallen silent as well.
//! It is probed on each of them for a sign of life, which over QUIC nobody else can give. A reset may arrive late, when
//! another process has long had connections of its own. Then only connections that do not answer count as the dead
//! process's.

use crate::liveness::{DeadConnections, LivenessProbe, ProbeResult, is_believed};
use crate::pool::{Lost, Pool, Shown};
use crate::sessions::{Neighbour, Sessions};
use phoebus_net::transport::Security;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};
use tokio::time::sleep;
use tracing::{debug, info, warn};

/// The target of `info` log lines about beacons that were reset. Neighbours, and anyone who sees their packets, can
/// cause such lines as often as they like.
pub const SUSPICION: &str = "phoebus::suspicion";

/// A beacon that was reset.
#[derive(Debug)]
pub(crate) struct Reset {
    pub(crate) neighbour: Neighbour,
    /// The connections to a peer.
    pub(crate) pool: Option<Arc<Pool>>,
    pub(crate) beacon: Lost,
    /// Whether this end had opened it, and will open it again.
    pub(crate) is_own: bool,
    /// The longest silence of a live neighbour.
    pub(crate) silence: Duration,
}

/// Neighbours that are currently suspected.
#[derive(Debug)]
pub(crate) struct Suspects {
    sessions: Arc<Sessions>,
    all: Mutex<HashMap<Neighbour, Suspect>>,
}

/// A suspected neighbour.
#[derive(Debug, Default)]
struct Suspect {
    /// The protection of the beacon whose reset is being examined.
    current: Security,
    /// A later reset, to be examined next.
    next: Option<Suspicion>,
    /// Notified of a later reset, if its beacon is at least as well protected as the current one.
    renewed: Arc<Notify>,
}

impl Suspect {
    /// Schedules this reset next, unless a reset of a better protected beacon is waiting, which says more.
    fn renew(&mut self, suspicion: Suspicion) {
        let security = |suspicion: &Suspicion| suspicion.reset.beacon.security;
        if self.next.as_ref().is_none_or(|next| security(next) <= security(&suspicion)) {
            let is_told = security(&suspicion) >= self.current;
            self.next = Some(suspicion);
            if is_told {
                self.renewed.notify_one();
            }
        }
    }
}

/// The evidence about a neighbour since a reset.
#[derive(Debug)]
struct Suspicion {
    reset: Reset,
    since: Instant,
    /// Listens on the connections of that moment, in use or idle.
    probe: LivenessProbe,
    /// Whether there was any connection or session to end.
    matters: bool,
    /// Receives which process of a peer shows itself.
    shown: Option<watch::Receiver<Shown>>,
}

/// The result of a suspicion.
enum Verdict {
    /// The process has died: it is silent.
    Silent,
    /// The process has died: another one has shown itself, for the first time at this time. The new one may have older
    /// connections.
    Replaced(Instant),
    /// The process lives, or there is no evidence of its death.
    Lives,
}

impl Suspects {
    /// For the neighbours of these sessions.
    pub(crate) fn of(sessions: Arc<Sessions>) -> Arc<Self> {
        Arc::new(Self { sessions, all: Mutex::default() })
    }

    /// Examines in the background whether the neighbour whose beacon was reset has died, and then ends its sessions.
    /// For a neighbour that is no configured peer, it does nothing if there is nothing to end: anyone can open a beacon
    /// here, and reset it.
    pub(crate) fn look_into(self: &Arc<Self>, reset: Reset) {
        let Reset { neighbour, pool, beacon, .. } = &reset;
        let mut pulses = self.sessions.pulses_with(neighbour, beacon.security);
        pulses.extend(pool.iter().flat_map(|pool| pool.pulses(beacon.security)));
        let (neighbour, probe) = (neighbour.clone(), LivenessProbe::at(pulses));
        let matters = !probe.is_empty() || self.sessions.any_with(&neighbour, beacon.security);
        if pool.is_none() && !matters {
            return;
        }
        let shown = pool.as_ref().map(|pool| pool.shown());
        let suspicion = Suspicion { reset, since: Instant::now(), probe, matters, shown };
        match self.lock().entry(neighbour) {
            Entry::Occupied(mut suspect) => {
                suspect.get_mut().renew(suspicion);
            }
            Entry::Vacant(place) => {
                let current = suspicion.reset.beacon.security;
                let renewed = place.insert(Suspect { current, ..Suspect::default() }).renewed.clone();
                tokio::spawn(self.clone().look(suspicion, renewed));
            }
        }
    }

    /// Reaches a verdict and acts on it, again for each later reset.
    async fn look(self: Arc<Self>, mut suspicion: Suspicion, renewed: Arc<Notify>) {
        loop {
            let verdict = suspicion.verdict(&renewed).await;
            self.act(&mut suspicion, &verdict).await;
            let neighbour = &suspicion.reset.neighbour;
            let mut all = self.lock();
            // Consume a notification about the reset that is examined next.
            std::pin::pin!(renewed.notified()).enable();
            let suspect = all.get_mut(neighbour);
            match suspect.and_then(|suspect| Some((suspect.next.take()?, &mut suspect.current))) {
                Some((next, current)) => {
                    *current = next.reset.beacon.security;
                    suspicion = next;
                }
                None => {
                    all.remove(neighbour);
                    return;
                }
            }
        }
    }

    async fn act(&self, suspicion: &mut Suspicion, verdict: &Verdict) {
        let Suspicion { reset, since, probe, matters, .. } = suspicion;
        // Opening sessions check for themselves at once.
        let told = |before| reset.pool.iter().for_each(|pool| pool.report_death(Some(before), reset.beacon.security));
        let (before, replaced, why) = match verdict {
            Verdict::Silent => {
                told(*since);
                (*since, None, "nothing more is heard of it")
            }
            Verdict::Replaced(shown) => {
                let before = (*shown).min(*since);
                told(before);
                probe.retain_silent(reset.silence).await;
                (before, Some(*shown), "another process has taken its place")
            }
            Verdict::Lives => {
                let said = "a beacon was reset, but nothing shows that the neighbour has died";
                match &reset.neighbour {
                    neighbour if !*matters => debug!(?neighbour, "{said}"),
                    Neighbour::Peer(peer) => info!(target: SUSPICION, peer, "{said}"),
                    Neighbour::Client(instance) => info!(target: SUSPICION, instance, "{said}"),
                }
                return;
            }
        };
        let dead = DeadConnections { probe, before, replaced };
        let sessions = self.sessions.died(&reset.neighbour, reset.beacon.security, &dead);
        probe.abandon(before);
        if let Some(pool) = &reset.pool {
            pool.give_up(reset.beacon.security, &dead);
        }
        match &reset.neighbour {
            Neighbour::Peer(peer) => warn!(peer, sessions, "the peer has died: its beacon was reset, and {why}"),
            Neighbour::Client(_) => {
                info!(target: SUSPICION, sessions, "a client's agent has died: its beacon was reset, and {why}");
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Neighbour, Suspect>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Suspicion {
    async fn verdict(&mut self, renewed: &Notify) -> Verdict {
        let Self { reset, probe, shown, .. } = self;
        debug!(neighbour = ?reset.neighbour, "a beacon was reset: is the neighbour still there?");
        let is_refused = || reset.is_own && reset.pool.as_ref().is_some_and(|pool| pool.is_refused());
        let who = async {
            match shown {
                Some(shown) => shows(shown, reset).await,
                None => std::future::pending().await,
            }
        };
        let mut who = std::pin::pin!(who);
        let heard = tokio::select! {
            biased;
            verdict = &mut who => return verdict,
            heard = probe.listen(reset.silence, is_refused) => heard,
        };
        match heard {
            ProbeResult::Silence => Verdict::Silent,
            ProbeResult::Life => Verdict::Lives,
            ProbeResult::NoConnection => tokio::select! {
                verdict = who => verdict,
                () = sleep(2 * reset.silence) => Verdict::Lives,
                () = renewed.notified() => Verdict::Lives,
            },
        }
    }
}

/// Waits for a beacon, at least as well protected, that shows whether the process whose beacon was reset is still
/// there: it has opened another beacon since, or another process has opened one. The order in which the reset and the
/// other beacon were noticed does not matter. If the process has died, its other beacon is reset as well, and examined
/// then.
async fn shows(shown: &mut watch::Receiver<Shown>, reset: &Reset) -> Verdict {
    let Lost { instance, number, security } = reset.beacon;
    let says = |shown: &Shown| instance != 0 && shown.instance != 0 && is_believed(shown.security, security);
    let newer = |shown: &Shown| shown.counts[usize::from(reset.is_own)] > number;
    // The pool lives as long as `reset`.
    let shown = shown.wait_for(|shown| says(shown) && (shown.instance != instance || newer(shown))).await;
    shown.map_or(Verdict::Lives, |shown| match shown.instance == instance {
        true => Verdict::Lives,
        false => Verdict::Replaced(shown.since),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reset(instance: u64, security: Security) -> Reset {
        Reset {
            neighbour: Neighbour::Client(instance),
            pool: None,
            beacon: Lost { instance, number: 0, security },
            is_own: false,
            silence: Duration::from_secs(3),
        }
    }

    #[test]
    fn reset_of_weaker_beacon_replaces_no_stronger_one() {
        let mut suspect = Suspect::default();
        for (number, security) in
            [(1, Security::None), (2, Security::Encrypt), (3, Security::None), (4, Security::Encrypt)]
        {
            let mut reset = reset(7, security);
            reset.beacon.number = number;
            suspect.renew(Suspicion {
                reset,
                since: Instant::now(),
                probe: LivenessProbe::at([]),
                matters: false,
                shown: None,
            });
            assert_eq!(suspect.next.as_ref().unwrap().reset.beacon.number, if number == 3 { 2 } else { number });
        }
    }

    #[tokio::test]
    async fn reset_of_weaker_beacon_ends_no_wait() {
        let suspicion = |security| {
            let reset = reset(7, security);
            Suspicion { reset, since: Instant::now(), probe: LivenessProbe::at([]), matters: false, shown: None }
        };
        for (security, is_told) in [(Security::None, false), (Security::Encrypt, true)] {
            let mut suspect = Suspect { current: Security::Encrypt, ..Suspect::default() };
            suspect.renew(suspicion(security));
            let told = std::pin::pin!(suspect.renewed.notified()).enable();
            assert_eq!((told, suspect.next.is_some()), (is_told, true), "{security:?}");
        }
    }

    #[tokio::test]
    async fn reset_beacons_of_strangers_leave_no_state() {
        let suspects = Suspects::of(Arc::default());
        for instance in 0..100 {
            suspects.look_into(reset(instance, Security::None));
        }
        assert_eq!(suspects.lock().len(), 0);
    }
}
