//! Connections to one peer, kept ready: greeted ahead of need, and reused after each session with the congestion window
//! that the last one left (S22). Opening a session across the WAN then costs one round trip, and a short transfer
//! starts at full speed.

mod attach;
mod backoff;
mod beacon;
mod choosing;
mod death;
mod demand;
mod dial;
mod keep;
mod knock;
mod own_login;
mod pooled;
mod selection;

pub(crate) use beacon::{Lost, Shown, is_reset};
pub use choosing::ChoiceStatus;
pub(crate) use keep::IDLE_BURST_MAX;
pub(crate) use pooled::PooledConnection;

use crate::config::Peer;
use crate::handshake::{HandshakeError, answer};
use crate::path_metrics::{PathMetrics, SegmentStatus};
use crate::refusal::Refusal;
use crate::request::{HopOptions, Request};
use crate::transports::{TransportOption, shows_death};
use death::Death;
use demand::Demand;
use dial::Unheard;
use knock::silence;
use own_login::{Kept, OwnLogin};
use phoebus_config::bearer::BearerPlaces;
use phoebus_net::transport::Security;
use phoebus_proto::endpoint::Endpoint;
use phoebus_proto::session::Code;
use phoebus_proto::session::initiator::State;
use phoebus_proto::session::message::Hello;
use selection::Selection;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;
use tracing::debug;

/// The connections to one peer.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) peer: Peer,
    /// The transports to the peer; at least one, the preferred one first.
    transports: Vec<TransportOption>,
    /// The settings of new connections.
    chosen: watch::Sender<Arc<Selection>>,
    /// What was measured of the segment.
    pub(crate) metrics: Arc<PathMetrics>,
    /// Whether this process may use bbr, as of the last check.
    may_bbr: AtomicBool,
    /// Whether there is reason to doubt that the current transport still reaches the peer.
    doubted: AtomicBool,
    /// The transport of the beacon, where some transport does not show the peer's death.
    beside: Option<TransportOption>,
    has_beacon: AtomicBool,
    /// Whether there ever was a beacon.
    had_beacon: AtomicBool,
    /// How long the peer's port took to refuse the last beacon attempt, if it refused it.
    refused: watch::Sender<Option<Duration>>,
    /// Notified when someone waits for the next beacon attempt.
    beacon_wanted: Notify,
    shown: Arc<watch::Sender<Shown>>,
    /// The last time that a process of the peer's name was found to have died or to have been replaced.
    deaths: Arc<watch::Sender<Option<Death>>>,
    /// The name that the peer has to prove.
    target: Arc<str>,
    own: LocalIdentity,
    limits: Timeouts,
    /// In the order in which they became idle.
    idle: Mutex<Vec<PooledConnection>>,
    /// The login that the last session has found, and how often it has changed.
    last_login: Mutex<Option<Kept>>,
    logins: AtomicU64,
    demand: Arc<Demand>,
    /// How many times `pool.max` connections may be idle for a moment.
    idle_burst: AtomicU32,
    /// Whether the peer has closed a connection shortly after its greeting, and whether it has opened a session, since
    /// [`Pool::maintain`] has looked.
    closed_early: AtomicBool,
    has_opened: AtomicBool,
    /// The peer's addresses, as last resolved.
    addresses: Mutex<Vec<SocketAddr>>,
    wanted: Notify,
    ended: Notify,
    closed: AtomicBool,
    advised: AtomicBool,
    misnamed: AtomicBool,
    counts: Counts,
}

/// How this gateway identifies itself.
#[derive(Debug, Clone)]
pub(crate) struct LocalIdentity {
    pub(crate) name: String,
    /// An e-mail address.
    pub(crate) contact: Option<String>,
    /// The file with the passwords of an agent's user, and the gateway as the user names it.
    pub(crate) logins: Option<(PathBuf, Endpoint)>,
    /// Where the token of an agent's user is.
    pub(crate) bearer: Option<BearerPlaces>,
    /// Whether the peer has asked for a token before: then it gets one without being asked.
    pub(crate) is_asked_for_token: Arc<AtomicBool>,
    /// Identifies this process among all that ever had the name.
    pub(crate) instance: u64,
}

impl LocalIdentity {
    pub(super) fn hello(&self) -> Hello<'_> {
        Hello { instance: self.instance, ..Hello::of(&self.name) }
    }
}

/// Time limits for reaching a peer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timeouts {
    /// For a connection and its greeting.
    pub(crate) greeting: Duration,
    /// From OPEN to its answer, including the greeting.
    pub(crate) opening: Duration,
    /// For resolving the peer's name.
    pub(crate) resolving: Duration,
    /// For one transport of several; then (`retry`) how long a failed transport is not tried again.
    pub(crate) transport: Duration,
    pub(crate) retry: Duration,
    /// Interval between probes of an idle segment.
    pub(crate) probe: Duration,
    /// The longest silence of a live peer.
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
    /// The transport of new sessions to it.
    pub transport: String,
    /// The reason, if `auto` chose it.
    pub choice: Option<ChoiceStatus>,
    /// What was measured of the segment.
    pub segment: SegmentStatus,
    /// The minimum protection of connections to it.
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
    /// A pool of connections to `peer` over one of these transports (at least one), with a beacon over `beside`. It
    /// takes over what `before`, a pool of a peer with the same name and address, has measured, however the settings
    /// differ.
    pub(crate) fn new(
        peer: Peer,
        (transports, beside): (Vec<TransportOption>, Option<TransportOption>),
        before: Option<&Self>,
        own: LocalIdentity,
        limits: Timeouts,
    ) -> Arc<Self> {
        let shown = || Shown { instance: 0, security: Security::None, since: Instant::now(), counts: [0; 2] };
        let pool = Arc::new(Self {
            metrics: before.map(|pool| pool.metrics.clone()).unwrap_or_default(),
            shown: before.map_or_else(|| Arc::new(watch::Sender::new(shown())), |pool| pool.shown.clone()),
            deaths: before.map(|pool| pool.deaths.clone()).unwrap_or_default(),
            target: peer.name.as_str().into(),
            chosen: watch::Sender::new(Arc::new(Selection::configured(peer.profile.clone()))),
            peer,
            transports,
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
            demand: Demand::new(Instant::now()),
            idle_burst: AtomicU32::new(1),
            closed_early: AtomicBool::new(false),
            has_opened: AtomicBool::new(false),
            addresses: Mutex::default(),
            last_login: Mutex::default(),
            logins: AtomicU64::new(0),
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

    /// The number of connections that make up a hop to the peer.
    pub(crate) fn streams(&self) -> u16 {
        self.chosen().profile.streams
    }

    /// Asks the peer for the session of `request` on `streams` connections, and returns the first of them: a ready
    /// connection if there is one.
    ///
    /// A ready connection may have died unnoticed. If no byte of an answer has arrived, the request is then repeated
    /// once on a new connection. That is safe: no stream byte was sent yet, and a peer that did receive the first
    /// request refuses the second one as a duplicate.
    pub(crate) async fn open(&self, request: &Request, streams: u16) -> Result<PooledConnection, Refusal> {
        let limit = self.limits.opening;
        match timeout(limit, self.open_without_limit(request, streams)).await {
            Ok(result) => result,
            Err(_) => {
                let reason = format!("{} did not answer within {}", self.peer.name, phoebus_proto::units::Span(limit));
                Err(Refusal::at(&self.peer.name, Code::TimedOut, reason))
            }
        }
    }

    /// Tries the current transport. If it does not reach the peer, tries the others, even if all have failed before.
    async fn open_without_limit(&self, request: &Request, streams: u16) -> Result<PooledConnection, Refusal> {
        let (mut first, mut failed): (Option<Refusal>, _) = (None, Vec::new());
        for left in (0..self.transports.len()).rev() {
            let selection = self.selection_after(&failed);
            let time_limit = self.time_limit().filter(|_| left > 0).unwrap_or(Duration::MAX);
            match self.open_over(&selection, time_limit, request, streams).await {
                Ok(connection) => return Ok(connection),
                Err(Unheard { refusal, dead: true, .. }) => {
                    self.fall_back(&selection, &refusal);
                    failed.push((self.transport_option(&selection).transport.to_string(), refusal.reason.clone()));
                    first.get_or_insert(refusal);
                }
                Err(unheard) => return Err(unheard.refusal),
            }
        }
        self.nowhere();
        Err(first.unwrap_or_else(|| Refusal::new(Code::Internal, "there is no way to the peer")))
    }

    /// Tries one transport, over which the peer must acknowledge within `time_limit`.
    async fn open_over(
        &self,
        selection: &Arc<Selection>,
        time_limit: Duration,
        request: &Request,
        streams: u16,
    ) -> Result<PooledConnection, Unheard> {
        self.heed_login().await.map_err(|error| Unheard::heard(self.cannot_log_in(&error)))?;
        let (name, mut is_repeated) = (&self.own.name, false);
        if let Some(mut connection) = self.take() {
            let manner = connection.manner(streams);
            let asked = request.onward(name, manner, |open| connection.asking.open(open));
            asked.map_err(|e| Unheard::heard(self.cannot_ask(&e)))?;
            match self.hear(&mut connection, time_limit).await {
                Ok(()) => {
                    self.counts.reused.fetch_add(1, Ordering::Relaxed);
                    return self.answered(connection, request, manner).await.map_err(Unheard::heard);
                }
                Err(unheard) if !unheard.dead || unheard.silent => return Err(unheard),
                Err(_) => debug!(peer = self.peer.name, "a connection that seemed ready was dead; asking on a new one"),
            }
            self.counts.stale.fetch_add(1, Ordering::Relaxed);
            is_repeated = true;
        }
        let deaths = self.deaths();
        let (mut connection, mut manner) = self.ask_on_new_connection(selection, time_limit, request, streams).await?;
        let mut heard = self.hear(&mut connection, time_limit).await;
        let is_old = connection.is_multiplexed() || deaths.has_changed().unwrap_or(false);
        if matches!(heard, Err(Unheard { dead: true, silent: false, .. })) && is_old {
            // The underlying connection had died unnoticed or accepts no more streams, or the process at its other end
            // has died.
            self.counts.stale.fetch_add(1, Ordering::Relaxed);
            is_repeated = true;
            (connection, manner) = self.ask_on_new_connection(selection, time_limit, request, streams).await?;
            heard = self.hear(&mut connection, time_limit).await;
        }
        heard?;
        let answered = self.answered(connection, request, manner).await;
        answered.map_err(|refusal| match refusal.code {
            // The peer did receive the request before its connection broke. The client may ask for a new session.
            Code::Duplicate if is_repeated => Unheard::heard(self.failed(&HandshakeError::Closed)),
            _ => Unheard::heard(refusal),
        })
    }

    /// Waits for the peer's answer. The peer must acknowledge what was sent within `time_limit`; the answer itself may
    /// take as long as the destination takes.
    async fn hear(&self, connection: &mut PooledConnection, time_limit: Duration) -> Result<(), Unheard> {
        let mut heard = false;
        let (stream, since) = (connection.stream.clone(), connection.since);
        let is_hidden = !shows_death(self.transport_of(connection));
        // For a connection over TCP, the kernel reports whether the peer is there.
        let gone = async {
            match stream.pulse() {
                Some(pulse) => self.no_gateway_running(Some(pulse)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            result = answer(&stream, &mut connection.asking, &mut heard) => result.map_err(|error| {
                connection.retire_if_unauthenticated(&error);
                let dead = !heard && matches!(error, HandshakeError::Closed | HandshakeError::Io(_)) && !drains(&error);
                Unheard { refusal: self.failed(&error), dead, silent: false }
            }),
            () = silence(&stream, time_limit) => {
                Err(Unheard { silent: true, ..Unheard::dead(self.unanswered(time_limit)) })
            }
            refusal = gone => Err(Unheard::heard(refusal)),
            () = self.peer_process_died(&stream, is_hidden, since) => Err(Unheard::dead(self.failed(&HandshakeError::Closed))),
        }
    }

    /// Makes a new connection, whose request follows the greeting immediately.
    async fn ask_on_new_connection(
        &self,
        selection: &Arc<Selection>,
        time_limit: Duration,
        request: &Request,
        streams: u16,
    ) -> Result<(PooledConnection, HopOptions), Unheard> {
        let in_use = self.demand.begin();
        let stream = tokio::select! {
            biased;
            stream = self.dial(selection, time_limit) => stream.map_err(Unheard::dead)?,
            refusal = self.no_gateway_running(None) => return Err(Unheard::heard(refusal)),
        };
        let manner = HopOptions { mode: pooled::mode_on(&stream, streams), streams, padding: 0 };
        let hello = self.own.hello();
        let mut login = OwnLogin::on(&stream, &self.own).await.map_err(|e| Unheard::heard(self.cannot_log_in(&e)))?;
        let asking = request.onward(&self.own.name, manner, |open| login.connect(&hello, open));
        let asking = asking.map_err(|e| Unheard::heard(self.cannot_ask(&e)))?;
        let mut connection = PooledConnection::new(stream, asking, manner.mode, selection.clone());
        connection.logins = self.logins.load(Ordering::Relaxed);
        Ok((connection.lent(in_use).with_login(login), manner))
    }

    /// Closes connections on which the agent's user has logged in as somebody else than now, or not at all, or has logged out since.
    async fn heed_login(&self) -> std::io::Result<()> {
        if self.own.logins.is_none() && self.own.bearer.is_none() {
            return Ok(());
        }
        let now = Kept::now(&self.own).await?;
        let has_changed = {
            let mut last = lock(&self.last_login);
            let has_changed = last.as_ref().is_some_and(|last| *last != now);
            *last = Some(now);
            has_changed
        };
        if has_changed {
            self.logins.fetch_add(1, Ordering::Relaxed);
            lock(&self.idle).drain(..).for_each(|connection| connection.stream.disarm());
            self.retire();
        }
        Ok(())
    }

    /// Takes back a connection whose session is over on both sides.
    pub(crate) fn put_back(&self, mut connection: PooledConnection) {
        if connection.logins != self.logins.load(Ordering::Relaxed) {
            return connection.stream.disarm();
        }
        if connection.stream.security() == Security::Auth {
            // The next request would be unprotected.
            return connection.stream.disarm();
        }
        if connection.asking.next_session().is_err() {
            return;
        }
        connection.sessions += 1;
        self.spare(connection);
    }

    /// Keeps an unused connection for the next session.
    fn spare(&self, connection: PooledConnection) {
        if connection.is_multiplexed() {
            // Another stream costs nothing. This one is closed once the peer has received everything and has closed it
            // too.
            tokio::spawn(timeout(self.limits.greeting, connection.leave()));
        } else {
            self.keep(connection);
        }
    }

    /// Checks the idle connections now: the credentials that they were made with may have been replaced.
    pub(crate) fn check_idle(&self) {
        self.wanted.notify_one();
    }

    /// Sends all new sessions with the peer over new connections, because its settings have changed.
    pub(crate) fn retire(&self) {
        self.transports.iter().for_each(|option| option.over.retire(&self.peer.name));
    }

    /// Closes idle connections, and from now on those that are returned.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.wanted.notify_one();
        self.ended.notify_one();
        lock(&self.idle).drain(..).for_each(|connection| connection.stream.disarm());
    }

    pub(crate) fn status(&self) -> PoolStatus {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let idle = lock(&self.idle);
        PoolStatus {
            peer: self.peer.name.clone(),
            address: self.peer.address.to_string(),
            transport: self.transport_option(&self.chosen()).transport.to_string(),
            choice: self.choice(),
            segment: self.metrics.status(Instant::now()),
            security: self.peer.security.name().to_owned(),
            idle: idle.len(),
            dialled: get(&self.counts.dialled),
            reused: get(&self.counts.reused),
            stale: get(&self.counts.stale),
            failed: get(&self.counts.failed),
            rtt_us: idle.last().and_then(|connection| connection.stream.stats().ok()).map_or(0, |stats| stats.rtt_us),
        }
    }

    /// Handles the answer to OPEN.
    async fn answered(
        &self,
        mut connection: PooledConnection,
        request: &Request,
        manner: HopOptions,
    ) -> Result<PooledConnection, Refusal> {
        let (mut login, manner) = (connection.login.take(), HopOptions { padding: 0, ..manner });
        while matches!(connection.asking.state(), State::Challenged | State::Proved) {
            // A kept connection is authenticated, but the peer may want that anew since a reload.
            let login = match &mut login {
                Some(login) => login,
                none => {
                    let made = OwnLogin::on(&connection.stream, &self.own).await;
                    none.insert(Box::new(made.map_err(|e| self.cannot_log_in(&e))?))
                }
            };
            let goes_on =
                request.onward(&self.own.name, manner, |open| login.go_on(&mut connection.asking, Some(open)));
            if !goes_on.map_err(|error| self.not_authenticated(&error))? {
                break;
            }
            answer(&connection.stream, &mut connection.asking, &mut false)
                .await
                .map_err(|error| self.failed(&error))?;
        }
        match connection.asking.state() {
            State::Opened => {
                // What follows belongs to the stream.
                connection.stream.unprotect().map_err(|error| self.failed(&error.into()))?;
                self.has_opened.store(true, Ordering::Relaxed);
                self.look_at(&connection);
                Ok(connection)
            }
            _ => {
                let refusal = self.refused(&connection);
                // The refusal leaves the connection usable.
                if connection.asking.state() == State::Refused && stays_usable(refusal.code) {
                    self.spare(connection);
                }
                Err(refusal)
            }
        }
    }
}

/// Whether the peer has ended a stream because it is draining.
fn drains(error: &HandshakeError) -> bool {
    matches!(error, HandshakeError::Io(error) if phoebus_net::code_of(error) == Code::Draining)
}

fn stays_usable(code: Code) -> bool {
    !matches!(code, Code::Protocol | Code::Version | Code::Feature | Code::HandshakeTimeout)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
