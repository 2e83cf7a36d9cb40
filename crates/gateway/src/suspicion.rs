//! Whether a neighbour whose beacon was reset has died (`docs/protocol/session.md` §6.6), whichever of both had lit the beacon.
//!
//! A reset is a suspicion: whoever sees a connection's packets can send one, TLS or not. The neighbour counts as dead only if
//! another process is there in its place, or if its other connections have fallen silent as well: it is asked on each of them
//! for a sign of life, which over QUIC nobody else can give. A reset may come late, when another process has long had
//! connections of its own: then only those count as the dead one's that do not answer.

use crate::ear::{Dead, Ear, Heard, is_believed};
use crate::live::{Neighbour, Sessions};
use crate::pool::{Lost, Pool, Shown};
use phoebus_net::transport::Security;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};
use tokio::time::sleep;
use tracing::{debug, info, warn};

/// A beacon that was reset.
#[derive(Debug)]
pub(crate) struct Reset {
    pub(crate) neighbour: Neighbour,
    /// The connections to a peer.
    pub(crate) pool: Option<Arc<Pool>>,
    pub(crate) beacon: Lost,
    /// Whether this end had lit it, and lights it again.
    pub(crate) is_own: bool,
    /// The longest silence of one that lives.
    pub(crate) silence: Duration,
}

/// Neighbours that are suspected at present.
#[derive(Debug)]
pub(crate) struct Suspects {
    sessions: Arc<Sessions>,
    all: Mutex<HashMap<Neighbour, Suspect>>,
}

/// A neighbour that is looked at.
#[derive(Debug, Default)]
struct Suspect {
    /// What protected the beacon whose reset is looked into.
    current: Security,
    /// Another reset since then, to be looked into next.
    next: Option<Suspicion>,
    /// Told of that, if it says as much as what is looked into.
    renewed: Arc<Notify>,
}

impl Suspect {
    /// Has this looked into next, unless what waits already is the reset of a beacon that was better protected: that says more.
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

/// What is known of a neighbour from the moment of a reset on.
#[derive(Debug)]
struct Suspicion {
    reset: Reset,
    since: Instant,
    /// At the connections that there were, used or not.
    ear: Ear,
    /// Whether there was anything that could end.
    matters: bool,
    /// Which process of a peer shows itself.
    shown: Option<watch::Receiver<Shown>>,
}

/// What became of a suspicion.
enum Verdict {
    /// The process has died: nothing more is heard of it.
    Silent,
    /// The same, since another has shown itself, for the first time then. It may have connections that are older.
    Replaced(Instant),
    /// It lives, or nothing shows that it does not.
    Lives,
}

impl Suspects {
    /// Who may have a part in these sessions.
    pub(crate) fn of(sessions: Arc<Sessions>) -> Arc<Self> {
        Arc::new(Self { sessions, all: Mutex::default() })
    }

    /// Looks in the background whether the neighbour whose beacon was reset has died, and then ends its sessions.
    /// Where nothing could end there is nothing to look at: anyone can have a beacon here, and reset it.
    pub(crate) fn look_into(self: &Arc<Self>, reset: Reset) {
        let Reset { neighbour, pool, beacon, .. } = &reset;
        let mut pulses = self.sessions.pulses_with(neighbour, beacon.security);
        pulses.extend(pool.iter().flat_map(|pool| pool.pulses(beacon.security)));
        let (neighbour, ear) = (neighbour.clone(), Ear::at(pulses));
        let matters = !ear.is_empty() || self.sessions.any_with(&neighbour, beacon.security);
        if pool.is_none() && !matters {
            return;
        }
        let shown = pool.as_ref().map(|pool| pool.shown());
        let suspicion = Suspicion { reset, since: Instant::now(), ear, matters, shown };
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

    /// Comes to a verdict, and does what that calls for, until there was no other reset meanwhile.
    async fn look(self: Arc<Self>, mut suspicion: Suspicion, renewed: Arc<Notify>) {
        loop {
            let verdict = suspicion.verdict(&renewed).await;
            self.act(&mut suspicion, &verdict).await;
            let neighbour = &suspicion.reset.neighbour;
            let mut all = self.lock();
            // Nobody is to be told any more of what is looked into next.
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
        let Suspicion { reset, since, ear, matters, .. } = suspicion;
        // What is being opened looks for itself, at once.
        let told = |before| reset.pool.iter().for_each(|pool| pool.may_have_died(Some(before), reset.beacon.security));
        let (before, replaced, why) = match verdict {
            Verdict::Silent => {
                told(*since);
                (*since, None, "nothing more is heard of it")
            }
            Verdict::Replaced(shown) => {
                let before = (*shown).min(*since);
                told(before);
                ear.keep_silent(reset.silence).await;
                (before, Some(*shown), "another process has taken its place")
            }
            Verdict::Lives => {
                let said = "a beacon was reset, but nothing shows that the neighbour has died";
                match matters {
                    true => info!(neighbour = ?reset.neighbour, "{said}"),
                    false => debug!(neighbour = ?reset.neighbour, "{said}"),
                }
                return;
            }
        };
        let dead = Dead { ear, before, replaced };
        let sessions = self.sessions.died(&reset.neighbour, reset.beacon.security, &dead);
        ear.abandon(before);
        if let Some(pool) = &reset.pool {
            pool.give_up(reset.beacon.security, &dead);
        }
        match &reset.neighbour {
            Neighbour::Peer(peer) => warn!(peer, sessions, "the peer has died: its beacon was reset, and {why}"),
            Neighbour::Client(_) => info!(sessions, "a client's agent has died: its beacon was reset, and {why}"),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Neighbour, Suspect>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Suspicion {
    async fn verdict(&mut self, renewed: &Notify) -> Verdict {
        let Self { reset, ear, shown, .. } = self;
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
            heard = ear.listen(reset.silence, is_refused) => heard,
        };
        match heard {
            Heard::Silence => Verdict::Silent,
            Heard::Life => Verdict::Lives,
            Heard::NoConnection => tokio::select! {
                verdict = who => verdict,
                () = sleep(2 * reset.silence) => Verdict::Lives,
                () = renewed.notified() => Verdict::Lives,
            },
        }
    }
}

/// Waits until it shows, with a beacon as well protected, whether the process is there whose beacon was reset: it has had another
/// beacon since that one was lit, or another process has had one. Which of both was noticed first, the reset or the other beacon, does
/// not matter. Where the process has died, the other beacon is reset as well, and looked into then.
async fn shows(shown: &mut watch::Receiver<Shown>, reset: &Reset) -> Verdict {
    let Lost { instance, number, security } = reset.beacon;
    let says = |shown: &Shown| instance != 0 && shown.instance != 0 && is_believed(shown.by, security);
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
    fn what_anyone_can_reset_takes_the_place_of_nothing_that_says_more() {
        let mut suspect = Suspect::default();
        for (number, security) in
            [(1, Security::None), (2, Security::Encrypt), (3, Security::None), (4, Security::Encrypt)]
        {
            let mut reset = reset(7, security);
            reset.beacon.number = number;
            suspect.renew(Suspicion { reset, since: Instant::now(), ear: Ear::at([]), matters: false, shown: None });
            assert_eq!(suspect.next.as_ref().unwrap().reset.beacon.number, if number == 3 { 2 } else { number });
        }
    }

    #[tokio::test]
    async fn what_anyone_can_reset_ends_no_wait_for_what_says_more() {
        let suspicion = |security| {
            let reset = reset(7, security);
            Suspicion { reset, since: Instant::now(), ear: Ear::at([]), matters: false, shown: None }
        };
        for (security, is_told) in [(Security::None, false), (Security::Encrypt, true)] {
            let mut suspect = Suspect { current: Security::Encrypt, ..Suspect::default() };
            suspect.renew(suspicion(security));
            let told = std::pin::pin!(suspect.renewed.notified()).enable();
            assert_eq!((told, suspect.next.is_some()), (is_told, true), "{security:?}");
        }
    }

    #[tokio::test]
    async fn strangers_whose_beacons_are_reset_leave_nothing() {
        let suspects = Suspects::of(Arc::default());
        for instance in 0..100 {
            suspects.look_into(reset(instance, Security::None));
        }
        assert_eq!(suspects.lock().len(), 0);
    }
}
