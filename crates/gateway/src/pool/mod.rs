//! Connections to one peer, kept ready: greeted ahead of need, used again after each session with the congestion window
//! that the last one left (S22; opening a session across the WAN then costs one round trip of it, and a short transfer
//! starts at full speed).

mod attach;
mod beacon;
mod death;
mod dial;
mod keep;
mod knock;
mod spare;
mod warm;
mod way;

pub(crate) use beacon::{Lost, Shown, is_reset};
pub(crate) use warm::{Unplugged, Warm};
pub use way::ChoiceStatus;
pub(crate) use way::Way;

use crate::config::Peer;
use crate::handshake::{Asking, HandshakeError, answer};
use crate::refusal::Refusal;
use crate::request::{Manner, Request};
use crate::survey::{SegmentStatus, Survey};
use crate::transports::shows_death;
use death::Death;
use dial::Unheard;
use knock::silence;
use phoebus_net::transport::Security;
use phoebus_proto::session::Code;
use phoebus_proto::session::initiator::State;
use phoebus_proto::session::message::{Auth, Hello, Open};
use serde::{Deserialize, Serialize};
use spare::Spare;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;
use tracing::debug;
use way::Chosen;

/// Room for what is sent to a peer at once: HELLO, AUTH, and an OPEN with a path, names of ordinary length, and padding.
const OUT_SIZE: usize = 4096 + Open::PADDING_MAX as usize;

/// The connections to one peer.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) peer: Peer,
    /// At least one; the preferred one first.
    ways: Vec<Way>,
    /// How new connections are made.
    chosen: watch::Sender<Arc<Chosen>>,
    /// What is known of the segment.
    pub(crate) survey: Arc<Survey>,
    /// Whether this process may send by bbr, as last tried.
    may_bbr: AtomicBool,
    /// Whether somebody doubts that the way in force still leads there.
    doubted: AtomicBool,
    /// What tells of the peer's death, where some way does not.
    beside: Option<Way>,
    has_beacon: AtomicBool,
    /// Whether it was ever lit.
    had_beacon: AtomicBool,
    /// How long the peer's port took to refuse the last attempt, if it did.
    refused: watch::Sender<Option<Duration>>,
    /// Somebody waits for the next attempt.
    beacon_wanted: Notify,
    shown: Arc<watch::Sender<Shown>>,
    /// When a process of its name was last found to have died, or to be another.
    deaths: Arc<watch::Sender<Option<Death>>>,
    /// What the peer has to prove to be.
    target: Arc<str>,
    own: Own,
    limits: Timeouts,
    /// In the order in which they became so.
    idle: Mutex<Vec<Warm>>,
    spare: Spare,
    /// The peer's addresses, as last resolved.
    addresses: Mutex<Vec<SocketAddr>>,
    wanted: Notify,
    ended: Notify,
    closed: AtomicBool,
    advised: AtomicBool,
    misnamed: AtomicBool,
    counts: Counts,
}

/// What this gateway says of itself.
#[derive(Debug, Clone)]
pub(crate) struct Own {
    pub(crate) name: String,
    /// An e-mail address.
    pub(crate) contact: Option<String>,
    /// Which process of that name it is.
    pub(crate) instance: u64,
}

impl Own {
    pub(super) fn hello(&self) -> Hello<'_> {
        Hello { instance: self.instance, ..Hello::of(&self.name) }
    }
}

/// Bounds on reaching a peer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timeouts {
    /// A connection and its greeting.
    pub(crate) greeting: Duration,
    /// From OPEN to its answer, the greeting included.
    pub(crate) opening: Duration,
    /// A name.
    pub(crate) resolving: Duration,
    /// A way of several, and for how long one is left alone that failed.
    pub(crate) transport: Duration,
    pub(crate) retry: Duration,
    /// From one look at an idle segment to the next.
    pub(crate) probe: Duration,
    /// The longest silence of a peer that lives.
    pub(crate) silence: Duration,
}

#[derive(Debug, Default)]
struct Counts {
    dialled: AtomicU64,
    reused: AtomicU64,
    stale: AtomicU64,
    failed: AtomicU64,
}

/// The state of a pool at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PoolStatus {
    /// The peer.
    pub peer: String,
    /// Its address, as configured.
    pub address: String,
    /// What carries new sessions to it.
    pub transport: String,
    /// Why, where that was chosen.
    pub choice: Option<ChoiceStatus>,
    /// What is known of the segment.
    pub segment: SegmentStatus,
    /// The least protection of connections to it.
    pub security: String,
    /// Connections ready now.
    pub idle: usize,
    /// Connections made since the start.
    pub dialled: u64,
    /// Sessions that went over a connection that was ready.
    pub reused: u64,
    /// Connections that were found dead when they were needed.
    pub stale: u64,
    /// Attempts to connect that failed.
    pub failed: u64,
    /// Smoothed round-trip time of an idle connection, in microseconds; 0 if there is none.
    pub rtt_us: u64,
}

impl Pool {
    /// Of connections to `peer` by one of these ways, of which there is one at least, with a beacon `beside` them. What was known
    /// `before` of a peer of that name and address stays true, however it is to be used.
    pub(crate) fn new(
        peer: Peer,
        (ways, beside): (Vec<Way>, Option<Way>),
        before: Option<&Self>,
        own: Own,
        limits: Timeouts,
    ) -> Arc<Self> {
        let shown = || Shown { instance: 0, by: Security::None, since: Instant::now(), counts: [0; 2] };
        let pool = Arc::new(Self {
            survey: before.map(|pool| pool.survey.clone()).unwrap_or_default(),
            shown: before.map_or_else(|| Arc::new(watch::Sender::new(shown())), |pool| pool.shown.clone()),
            deaths: before.map(|pool| pool.deaths.clone()).unwrap_or_default(),
            target: peer.name.as_str().into(),
            chosen: watch::Sender::new(Arc::new(Chosen::configured(peer.profile.clone()))),
            peer,
            ways,
            may_bbr: AtomicBool::new(false),
            doubted: AtomicBool::new(false),
            beside,
            has_beacon: AtomicBool::new(false),
            had_beacon: AtomicBool::new(false),
            refused: watch::Sender::new(None),
            beacon_wanted: Notify::new(),
            own,
            limits,
            idle: Mutex::default(),
            spare: Spare::default(),
            addresses: Mutex::default(),
            wanted: Notify::new(),
            ended: Notify::new(),
            closed: AtomicBool::new(false),
            advised: AtomicBool::new(false),
            misnamed: AtomicBool::new(false),
            counts: Counts::default(),
        });
        pool.begin();
        pool
    }

    /// Connections of which hops to the peer are to consist.
    pub(crate) fn streams(&self) -> u16 {
        self.chosen().profile.streams
    }

    /// Asks the peer for the session of `request` on `streams` connections, the first of which is returned: one that is ready if
    /// there is one.
    ///
    /// A ready connection may have died unnoticed. Then, and only if not a byte of an answer has come, the request is made
    /// once more on a new connection. That is safe: nothing of the stream was sent yet, and a peer that has seen the
    /// request after all refuses the second one as a duplicate.
    pub(crate) async fn open(&self, request: &Request, streams: u16) -> Result<Warm, Refusal> {
        let limit = self.limits.opening;
        match timeout(limit, self.open_unhurried(request, streams)).await {
            Ok(result) => result,
            Err(_) => {
                let reason = format!("{} did not answer within {}", self.peer.name, phoebus_proto::units::Span(limit));
                Err(Refusal::at(&self.peer.name, Code::TimedOut, reason))
            }
        }
    }

    /// By the way in force; if that does not lead to the peer, by the next, even where all were found to fail at some time.
    async fn open_unhurried(&self, request: &Request, streams: u16) -> Result<Warm, Refusal> {
        let (mut first, mut failed): (Option<Refusal>, _) = (None, Vec::new());
        for left in (0..self.ways.len()).rev() {
            let by = self.next_after(&failed);
            let patience = self.patience().filter(|_| left > 0).unwrap_or(Duration::MAX);
            match self.open_by(&by, patience, request, streams).await {
                Ok(warm) => return Ok(warm),
                Err(Unheard { refusal, dead: true, .. }) => {
                    self.fall_back(&by, &refusal);
                    failed.push((self.way(&by).transport.to_string(), refusal.reason.clone()));
                    first.get_or_insert(refusal);
                }
                Err(unheard) => return Err(unheard.refusal),
            }
        }
        self.nowhere();
        Err(first.unwrap_or_else(|| Refusal::new(Code::Internal, "there is no way to the peer")))
    }

    /// By this way, of which the peer has to be heard within `patience`.
    async fn open_by(
        &self,
        by: &Arc<Chosen>,
        patience: Duration,
        request: &Request,
        streams: u16,
    ) -> Result<Warm, Unheard> {
        let name = &self.own.name;
        if let Some(mut warm) = self.take() {
            let manner = warm.manner(streams);
            let asked = request.onward(name, manner, |open| warm.asking.open(open));
            asked.map_err(|e| Unheard::heard(self.cannot_ask(&e)))?;
            match self.hear(&mut warm, patience).await {
                Ok(()) => {
                    self.counts.reused.fetch_add(1, Ordering::Relaxed);
                    return self.answered(warm, request, manner).await.map_err(Unheard::heard);
                }
                Err(unheard) if !unheard.dead || unheard.silent => return Err(unheard),
                Err(_) => debug!(peer = self.peer.name, "a connection that seemed ready was dead; asking on a new one"),
            }
            self.counts.stale.fetch_add(1, Ordering::Relaxed);
        }
        let deaths = self.deaths();
        let (mut warm, mut manner) = self.ask_anew(by, patience, request, streams).await?;
        let mut heard = self.hear(&mut warm, patience).await;
        let is_old = warm.is_one_of_many() || deaths.has_changed().unwrap_or(false);
        if matches!(heard, Err(Unheard { dead: true, .. })) && is_old {
            // The connection that this was to be a stream of had died unnoticed, or gets no more streams; or the process at its other
            // end has died.
            self.counts.stale.fetch_add(1, Ordering::Relaxed);
            (warm, manner) = self.ask_anew(by, patience, request, streams).await?;
            heard = self.hear(&mut warm, patience).await;
        }
        heard?;
        self.answered(warm, request, manner).await.map_err(Unheard::heard)
    }

    /// Waits for the peer's answer. What was sent has to be acknowledged within `patience`; the answer itself may take as long
    /// as it takes the destination.
    async fn hear(&self, warm: &mut Warm, patience: Duration) -> Result<(), Unheard> {
        let mut heard = false;
        let (stream, since) = (warm.stream.clone(), warm.since);
        let is_hidden = !shows_death(self.transport_of(warm));
        // Of a connection over TCP the kernel says whether anybody is there.
        let gone = async {
            match stream.pulse() {
                Some(pulse) => self.is_gone(Some(pulse)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            result = answer(&stream, &mut warm.asking, &mut heard) => result.map_err(|error| {
                warm.turned_away(&error);
                let dead = !heard && matches!(error, HandshakeError::Closed | HandshakeError::Io(_)) && !drains(&error);
                Unheard { refusal: self.failed(&error), dead, silent: false }
            }),
            () = silence(&stream, patience) => {
                Err(Unheard { silent: true, ..Unheard::dead(self.unanswered(patience)) })
            }
            refusal = gone => Err(Unheard::heard(refusal)),
            () = self.is_left_behind(&stream, is_hidden, since) => Err(Unheard::dead(self.failed(&HandshakeError::Closed))),
        }
    }

    /// A connection on which the peer is asked as soon as it has greeted.
    async fn ask_anew(
        &self,
        by: &Arc<Chosen>,
        patience: Duration,
        request: &Request,
        streams: u16,
    ) -> Result<(Warm, Manner), Unheard> {
        let stream = tokio::select! {
            biased;
            stream = self.dial(by, patience) => stream.map_err(Unheard::dead)?,
            refusal = self.is_gone(None) => return Err(Unheard::heard(refusal)),
        };
        let manner = Manner { mode: warm::mode_on(&stream, streams), streams, padding: 0 };
        let hello = self.own.hello();
        let asking = request.onward(&self.own.name, manner, |open| {
            Asking::connect(vec![0; OUT_SIZE], Vec::new(), &hello, self.auth().as_ref(), open)
        });
        let asking = asking.map_err(|e| Unheard::heard(self.cannot_ask(&e)))?;
        Ok((Warm::new(stream, asking, manner.mode, by.clone()), manner))
    }

    /// Takes a connection back whose session is over on both sides.
    pub(crate) fn put_back(&self, mut warm: Warm) {
        if warm.stream.security() == Security::Auth {
            // The next request would be unprotected.
            return warm.stream.disarm();
        }
        if warm.asking.next_session().is_err() {
            return;
        }
        warm.sessions += 1;
        self.spare(warm);
    }

    /// Keeps a connection that is not in use any more for the next session.
    fn spare(&self, warm: Warm) {
        if warm.is_one_of_many() {
            // Another costs nothing. This one is left when the peer has heard all, and has ended it too.
            tokio::spawn(timeout(self.limits.greeting, warm.leave()));
        } else {
            self.keep(warm);
        }
    }

    /// Has the connections that wait looked at now: what they were made with may have been replaced.
    pub(crate) fn look_again(&self) {
        self.wanted.notify_one();
    }

    /// Has new sessions with the peer go over new connections, whoever asks for them: settings of this peer have changed.
    pub(crate) fn retire(&self) {
        self.ways.iter().for_each(|way| way.over.retire(&self.peer.name));
    }

    /// Closes what is idle, and from now on what is given back.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.wanted.notify_one();
        self.ended.notify_one();
        lock(&self.idle).drain(..).for_each(|warm| warm.stream.disarm());
    }

    pub(crate) fn status(&self) -> PoolStatus {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let idle = lock(&self.idle);
        PoolStatus {
            peer: self.peer.name.clone(),
            address: self.peer.address.to_string(),
            transport: self.way(&self.chosen()).transport.to_string(),
            choice: self.choice(),
            segment: self.survey.status(Instant::now()),
            security: self.peer.security.name().to_owned(),
            idle: idle.len(),
            dialled: get(&self.counts.dialled),
            reused: get(&self.counts.reused),
            stale: get(&self.counts.stale),
            failed: get(&self.counts.failed),
            rtt_us: idle.last().and_then(|warm| warm.stream.stats().ok()).map_or(0, |stats| stats.rtt_us),
        }
    }

    /// What came back for an OPEN.
    async fn answered(&self, mut warm: Warm, request: &Request, manner: Manner) -> Result<Warm, Refusal> {
        if warm.asking.state() == State::Challenged
            && let Some(auth) = self.auth()
            && warm.asking.challenge().is_some_and(|c| c.mechanisms.iter().any(|name| name == Auth::ANONYMOUS))
        {
            let manner = Manner { padding: 0, ..manner };
            request
                .onward(&self.own.name, manner, |open| warm.asking.authenticate(&auth, open))
                .map_err(|e| self.cannot_ask(&e))?;
            answer(&warm.stream, &mut warm.asking, &mut false).await.map_err(|error| self.failed(&error))?;
        }
        match warm.asking.state() {
            State::Opened => {
                // What follows is the stream's.
                warm.stream.unprotect().map_err(|error| self.failed(&error.into()))?;
                self.look_at(&warm);
                Ok(warm)
            }
            _ => {
                let refusal = self.refused(&warm);
                // The connection itself is as good as before.
                if warm.asking.state() == State::Refused && stays_usable(refusal.code) {
                    self.spare(warm);
                }
                Err(refusal)
            }
        }
    }
}

/// Whether the peer has ended a stream for the reason that it takes no more.
fn drains(error: &HandshakeError) -> bool {
    matches!(error, HandshakeError::Io(error) if phoebus_net::code_of(error) == Code::Draining)
}

fn stays_usable(code: Code) -> bool {
    !matches!(code, Code::Protocol | Code::Version | Code::Feature | Code::HandshakeTimeout)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
