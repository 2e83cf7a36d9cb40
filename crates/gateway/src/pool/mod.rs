//! Connections to one peer, kept ready: greeted ahead of need, used again after each session with the congestion window
//! that the last one left (S22; opening a session across the WAN then costs one round trip of it, and a short transfer
//! starts at full speed).

mod attach;
mod beacon;
mod dial;
mod keep;
mod warm;

pub(crate) use beacon::is_death;
pub(crate) use warm::{Unplugged, Warm};

use crate::config::Peer;
use crate::handshake::{Asking, HandshakeError, answer};
use crate::refusal::Refusal;
use crate::request::{Manner, Request};
use phoebus_net::transport::{Security, Transport};
use phoebus_proto::session::Code;
use phoebus_proto::session::initiator::State;
use phoebus_proto::session::message::{Auth, Hello, Open};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::timeout;
use tracing::debug;

/// Room for what is sent to a peer at once: HELLO, AUTH, and an OPEN with a path, names of ordinary length, and padding.
const OUT_SIZE: usize = 4096 + Open::PADDING_MAX as usize;
/// The connections to one peer.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) peer: Peer,
    transport: Arc<dyn Transport>,
    /// What tells of the peer's death, where that one does not.
    beside: Option<Arc<dyn Transport>>,
    has_beacon: AtomicBool,
    /// What the peer has to prove to be.
    target: Arc<str>,
    own: Own,
    limits: Timeouts,
    idle: Mutex<Vec<Warm>>,
    /// The peer's addresses, as last resolved.
    addresses: Mutex<Vec<SocketAddr>>,
    /// Whether sessions are streams of one connection, as far as was seen.
    has_streams: AtomicBool,
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
}

#[derive(Debug, Default)]
struct Counts {
    dialled: AtomicU64,
    reused: AtomicU64,
    stale: AtomicU64,
    failed: AtomicU64,
}

/// The state of a pool at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolStatus {
    /// The peer.
    pub peer: String,
    /// Its address, as configured.
    pub address: String,
    /// What carries sessions to it.
    pub transport: String,
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
    /// Of connections to `peer` by `transport`, with a beacon of another `beside` it.
    pub(crate) fn new(
        peer: Peer,
        (transport, beside): (Arc<dyn Transport>, Option<Arc<dyn Transport>>),
        own: Own,
        limits: Timeouts,
    ) -> Arc<Self> {
        Arc::new(Self {
            target: peer.name.as_str().into(),
            peer,
            transport,
            beside,
            has_beacon: AtomicBool::new(false),
            own,
            limits,
            idle: Mutex::default(),
            addresses: Mutex::default(),
            has_streams: AtomicBool::new(false),
            wanted: Notify::new(),
            ended: Notify::new(),
            closed: AtomicBool::new(false),
            advised: AtomicBool::new(false),
            misnamed: AtomicBool::new(false),
            counts: Counts::default(),
        })
    }

    /// Connections of which hops to the peer are to consist.
    pub(crate) fn streams(&self) -> u16 {
        self.peer.profile.streams
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

    async fn open_unhurried(&self, request: &Request, streams: u16) -> Result<Warm, Refusal> {
        let name = &self.own.name;
        if let Some(mut warm) = self.take() {
            let manner = warm.manner(streams);
            request.onward(name, manner, |open| warm.asking.open(open)).map_err(|e| self.cannot_ask(&e))?;
            match self.hear(&mut warm).await {
                Ok(()) => {
                    self.counts.reused.fetch_add(1, Ordering::Relaxed);
                    return self.answered(warm, request, manner).await;
                }
                Err(Unheard { refusal, dead: false }) => return Err(refusal),
                Err(_) => debug!(peer = self.peer.name, "a connection that seemed ready was dead; asking on a new one"),
            }
            self.counts.stale.fetch_add(1, Ordering::Relaxed);
        }
        let (mut warm, mut manner) = self.ask_anew(request, streams).await?;
        let mut heard = self.hear(&mut warm).await;
        if matches!(heard, Err(Unheard { dead: true, .. })) && warm.is_one_of_many() {
            // The connection that this was to be a stream of had died unnoticed.
            self.counts.stale.fetch_add(1, Ordering::Relaxed);
            (warm, manner) = self.ask_anew(request, streams).await?;
            heard = self.hear(&mut warm).await;
        }
        heard.map_err(|unheard| unheard.refusal)?;
        self.answered(warm, request, manner).await
    }

    /// Waits for the peer's answer.
    async fn hear(&self, warm: &mut Warm) -> Result<(), Unheard> {
        let mut heard = false;
        answer(&warm.stream, &mut warm.asking, &mut heard).await.map_err(|error| Unheard {
            refusal: self.failed(&error),
            dead: !heard && matches!(error, HandshakeError::Closed | HandshakeError::Io(_)),
        })
    }

    /// A connection on which the peer is asked as soon as it has greeted.
    async fn ask_anew(&self, request: &Request, streams: u16) -> Result<(Warm, Manner), Refusal> {
        let stream = self.dial().await?;
        let manner = Manner { mode: warm::mode_on(&stream, streams), streams, padding: 0 };
        let hello = self.own.hello();
        let asking = request.onward(&self.own.name, manner, |open| {
            Asking::connect(vec![0; OUT_SIZE], Vec::new(), &hello, self.auth().as_ref(), open)
        });
        Ok((Warm::new(stream, asking.map_err(|e| self.cannot_ask(&e))?, manner.mode), manner))
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
        if warm.is_one_of_many() {
            // Another costs nothing. This one is left when the peer has heard all, and has ended it too.
            tokio::spawn(timeout(self.limits.greeting, warm.leave()));
            return;
        }
        warm.sessions += 1;
        self.keep(warm);
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
            transport: self.peer.transport.clone(),
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
                    self.keep(warm);
                }
                Err(refusal)
            }
        }
    }
}

/// No answer.
struct Unheard {
    refusal: Refusal,
    /// The connection was closed or failed before a byte of one.
    dead: bool,
}

fn stays_usable(code: Code) -> bool {
    !matches!(code, Code::Protocol | Code::Version | Code::Feature | Code::HandshakeTimeout)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
