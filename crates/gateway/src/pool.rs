//! Connections to one peer, kept ready: greeted ahead of need, used again after each session with the congestion window
//! that the last one left (S22; opening a session across the WAN then costs one round trip of it, and a short transfer
//! starts at full speed).

use crate::config::Peer;
use crate::handshake::{Asking, HandshakeError, answer};
use crate::refusal::Refusal;
use crate::request::Request;
use phoebus_net::host::Host;
use phoebus_net::{Error, Stream, code_of, dial, tcp};
use phoebus_proto::endpoint::Host as HostName;
use phoebus_proto::session::Code;
use phoebus_proto::session::initiator::State;
use phoebus_proto::session::message::{Auth, Hello, Open};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::{Handle, Id};
use tokio::sync::Notify;
use tokio::time::timeout;
use tracing::{debug, info, warn};

/// Room for what is sent to a peer at once: HELLO, AUTH, and an OPEN with a path, names of ordinary length, and padding.
const OUT_SIZE: usize = 4096 + Open::PADDING_MAX as usize;
/// The longest that a connection is idle before its next request is padded.
const FRESH: Duration = Duration::from_secs(1);
/// Pause between two looks at the idle connections.
const LOOK: Duration = Duration::from_secs(1);
/// Longest pause between attempts to reach a peer that does not answer.
const RETRY_MAX: Duration = Duration::from_secs(30);
/// How often a peer's name is resolved again.
const RESOLVE_AGAIN: Duration = Duration::from_secs(60);

/// The connections to one peer.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) peer: Peer,
    /// What this gateway calls itself, and the e-mail address that it gives.
    name: String,
    contact: Option<String>,
    limits: Timeouts,
    idle: Mutex<Vec<Warm>>,
    /// The peer's addresses, as last resolved.
    addresses: Mutex<Vec<SocketAddr>>,
    wanted: Notify,
    closed: AtomicBool,
    advised: AtomicBool,
    misnamed: AtomicBool,
    counts: Counts,
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

/// A greeted connection without a session.
#[derive(Debug)]
pub(crate) struct Warm {
    pub(crate) stream: Arc<Stream>,
    asking: Asking,
    /// Sessions that it has carried.
    pub(crate) sessions: u32,
    since: Instant,
    /// The runtime whose poller watches it.
    home: Id,
}

impl Pool {
    pub(crate) fn new(peer: Peer, name: &str, contact: Option<&str>, limits: Timeouts) -> Arc<Self> {
        Arc::new(Self {
            peer,
            name: name.to_owned(),
            contact: contact.map(str::to_owned),
            limits,
            idle: Mutex::default(),
            addresses: Mutex::default(),
            wanted: Notify::new(),
            closed: AtomicBool::new(false),
            advised: AtomicBool::new(false),
            misnamed: AtomicBool::new(false),
            counts: Counts::default(),
        })
    }

    /// Whether connections from `addr` are the peer's.
    pub(crate) fn is_at(&self, addr: IpAddr) -> bool {
        let addr = addr.to_canonical();
        self.peer.from.iter().any(|net| net.contains(addr))
            || matches!(self.peer.address.host, HostName::Addr(own) if own.to_canonical() == addr)
            || lock(&self.addresses).iter().any(|own| own.ip().to_canonical() == addr)
    }

    /// Whether `addr` is one of the peer's own, as last resolved.
    pub(crate) fn leads_to(&self, addr: SocketAddr) -> bool {
        let same = |own: &SocketAddr| own.port() == addr.port() && own.ip().to_canonical() == addr.ip().to_canonical();
        lock(&self.addresses).iter().any(same)
    }

    /// Asks the peer for the session of `request`, on a connection that is ready if there is one.
    ///
    /// A ready connection may have died unnoticed. Then, and only if not a byte of an answer has come, the request is made
    /// once more on a new connection. That is safe: nothing of the stream was sent yet, and a peer that has seen the
    /// request after all refuses the second one as a duplicate.
    pub(crate) async fn open(&self, request: &Request) -> Result<Warm, Refusal> {
        let limit = self.limits.opening;
        match timeout(limit, self.open_unhurried(request)).await {
            Ok(result) => result,
            Err(_) => {
                let reason = format!("{} did not answer within {}", self.peer.name, phoebus_proto::units::Span(limit));
                Err(Refusal::at(&self.peer.name, Code::TimedOut, reason))
            }
        }
    }

    async fn open_unhurried(&self, request: &Request) -> Result<Warm, Refusal> {
        if let Some(mut warm) = self.take() {
            let padding = warm.padding();
            request.onward(&self.name, padding, |open| warm.asking.open(open)).map_err(|e| self.cannot_ask(&e))?;
            let mut heard = false;
            match answer(&warm.stream, &mut warm.asking, &mut heard).await {
                Ok(()) => {
                    self.counts.reused.fetch_add(1, Ordering::Relaxed);
                    return self.answered(warm, request).await;
                }
                Err(HandshakeError::Closed | HandshakeError::Io(_)) if !heard => {
                    self.counts.stale.fetch_add(1, Ordering::Relaxed);
                    debug!(peer = self.peer.name, "a connection that seemed ready was dead; asking on a new one");
                }
                Err(error) => return Err(self.failed(&error)),
            }
        }
        let stream = self.dial().await?;
        let asking = request.onward(&self.name, 0, |open| {
            Asking::connect(vec![0; OUT_SIZE], Vec::new(), &Hello::of(&self.name), self.auth().as_ref(), open)
        });
        let asking = asking.map_err(|e| self.cannot_ask(&e))?;
        let mut warm =
            Warm { stream: Arc::new(stream), asking, sessions: 0, since: Instant::now(), home: Handle::current().id() };
        answer(&warm.stream, &mut warm.asking, &mut false).await.map_err(|error| self.failed(&error))?;
        self.answered(warm, request).await
    }

    /// Takes a connection back whose session is over on both sides.
    pub(crate) fn put_back(&self, mut warm: Warm) {
        if warm.asking.next_session().is_err() {
            return;
        }
        warm.sessions += 1;
        self.keep(warm);
    }

    /// Keeps connections ready until the pool is closed: replaces dead ones, fills up to the minimum, closes old ones.
    pub(crate) async fn maintain(self: Arc<Self>) {
        let mut retry = LOOK;
        let mut resolved: Option<Instant> = None;
        while !self.closed.load(Ordering::Relaxed) {
            if resolved.is_none_or(|at| at.elapsed() > RESOLVE_AGAIN) {
                match self.resolve().await {
                    Ok(_) => resolved = Some(Instant::now()),
                    Err(error) => warn!(peer = self.peer.name, "{error}"),
                }
            }
            self.sweep();
            let mut pause = LOOK;
            while lock(&self.idle).len() < self.peer.pool.min as usize && !self.closed.load(Ordering::Relaxed) {
                match timeout(self.limits.greeting, self.greet()).await {
                    Ok(Ok(warm)) => {
                        retry = LOOK;
                        self.keep(warm);
                    }
                    failed => {
                        let why = match failed {
                            Ok(Err(refusal)) => refusal.reason,
                            _ => format!("{} did not answer in time", self.peer.name),
                        };
                        self.counts.failed.fetch_add(1, Ordering::Relaxed);
                        warn!(peer = self.peer.name, retry_s = retry.as_secs(), "no connection is ready: {why}");
                        pause = retry;
                        retry = (retry * 2).min(RETRY_MAX);
                        break;
                    }
                }
            }
            let _ = timeout(pause, self.wanted.notified()).await;
        }
    }

    /// Closes what is idle, and from now on what is given back.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.wanted.notify_one();
        lock(&self.idle).drain(..).for_each(|warm| warm.stream.disarm());
    }

    pub(crate) fn status(&self) -> PoolStatus {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let idle = lock(&self.idle);
        PoolStatus {
            peer: self.peer.name.clone(),
            address: self.peer.address.to_string(),
            idle: idle.len(),
            dialled: get(&self.counts.dialled),
            reused: get(&self.counts.reused),
            stale: get(&self.counts.stale),
            failed: get(&self.counts.failed),
            rtt_us: idle.last().and_then(|warm| warm.stream.stats().ok()).map_or(0, |stats| stats.rtt_us),
        }
    }

    /// The connection used last: its window is the freshest.
    fn take(&self) -> Option<Warm> {
        loop {
            let warm = lock(&self.idle).pop()?;
            if lock(&self.idle).len() < self.peer.pool.min as usize {
                self.wanted.notify_one();
            }
            match warm.stream.is_quiet() {
                Ok(true) => return warm.rehomed(),
                _ => self.counts.stale.fetch_add(1, Ordering::Relaxed),
            };
        }
    }

    fn keep(&self, mut warm: Warm) {
        warm.since = Instant::now();
        let mut idle = lock(&self.idle);
        if self.closed.load(Ordering::Relaxed) || idle.len() >= self.peer.pool.max as usize {
            warm.stream.disarm();
        } else {
            idle.push(warm);
        }
    }

    /// Drops idle connections that have died, and those above the minimum that are too old.
    fn sweep(&self) {
        let mut idle = lock(&self.idle);
        let before = idle.len();
        idle.retain(|warm| matches!(warm.stream.is_quiet(), Ok(true)));
        if idle.len() < before {
            info!(peer = self.peer.name, lost = before - idle.len(), "idle connections were closed by the peer");
        }
        // The one unused for longest stands first.
        while idle.len() > self.peer.pool.min as usize
            && idle.first().is_some_and(|warm| warm.since.elapsed() > self.peer.pool.idle.0)
        {
            idle.remove(0).stream.disarm();
        }
    }

    async fn resolve(&self) -> Result<Vec<SocketAddr>, Error> {
        let port = self.peer.address.port;
        let found = match &self.peer.address.host {
            HostName::Addr(addr) => vec![SocketAddr::new(*addr, port)],
            HostName::Name(name) => dial::resolve(name, port, self.limits.resolving).await?,
        };
        lock(&self.addresses).clone_from(&found);
        Ok(found)
    }

    async fn dial(&self) -> Result<Stream, Refusal> {
        let refused = |error: Error| Refusal::at(&self.peer.name, error.code(), error.to_string());
        let mut addresses = lock(&self.addresses).clone();
        if addresses.is_empty() {
            addresses = self.resolve().await.map_err(refused)?;
        }
        let profile = &self.peer.profile;
        let stream = match addresses[..] {
            // The SYN can carry the greeting only where there is no other address to fall back to.
            [only] => tcp::connect_with_data(only, profile, self.limits.greeting).await,
            _ => dial::connect(&addresses, profile, self.limits.greeting).await,
        };
        let stream = stream.map_err(refused)?;
        self.counts.dialled.fetch_add(1, Ordering::Relaxed);
        if let Some(note) = stream.note() {
            debug!(peer = self.peer.name, "{note}");
        }
        Ok(stream)
    }

    async fn greet(&self) -> Result<Warm, Refusal> {
        let stream = self.dial().await?;
        let hello = Hello::of(&self.name);
        let asking = Asking::greet(vec![0; OUT_SIZE], Vec::new(), &hello, self.auth().as_ref());
        let asking = asking.map_err(|e| self.cannot_ask(&e))?;
        let mut warm =
            Warm { stream: Arc::new(stream), asking, sessions: 0, since: Instant::now(), home: Handle::current().id() };
        answer(&warm.stream, &mut warm.asking, &mut false).await.map_err(|error| self.failed(&error))?;
        self.look_at(&warm);
        if let Some(hello) = warm.asking.hello()
            && hello.name != self.peer.name
            && !self.misnamed.swap(true, Ordering::Relaxed)
        {
            let calls = hello.name;
            warn!(peer = self.peer.name, "it calls itself \"{calls}\"; where names differ, loops are found late");
        }
        match warm.asking.state() {
            State::Ready => Ok(warm),
            _ => Err(self.refused(&warm)),
        }
    }

    /// What came back for an OPEN.
    async fn answered(&self, mut warm: Warm, request: &Request) -> Result<Warm, Refusal> {
        if warm.asking.state() == State::Challenged
            && let Some(auth) = self.auth()
            && warm.asking.challenge().is_some_and(|c| c.mechanisms.iter().any(|name| name == Auth::ANONYMOUS))
        {
            request
                .onward(&self.name, 0, |open| warm.asking.authenticate(&auth, open))
                .map_err(|e| self.cannot_ask(&e))?;
            answer(&warm.stream, &mut warm.asking, &mut false).await.map_err(|error| self.failed(&error))?;
        }
        match warm.asking.state() {
            State::Opened => {
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

    fn refused(&self, warm: &Warm) -> Refusal {
        match (warm.asking.refused(), warm.asking.state()) {
            (Some(refused), _) => Refusal::passed_on(&refused),
            (None, State::Challenged) => {
                let reason = format!("{} wants authentication, for which nothing is configured here", self.peer.name);
                Refusal::at(&self.peer.name, Code::AuthRequired, reason)
            }
            (None, _) => Refusal::at(&self.peer.name, Code::Protocol, "the peer's answer makes no sense"),
        }
    }

    fn auth(&self) -> Option<Auth<'_>> {
        self.contact.as_deref().map(|contact| Auth { mechanism: Auth::ANONYMOUS, data: contact.as_bytes() })
    }

    fn failed(&self, error: &HandshakeError) -> Refusal {
        let code = match error {
            HandshakeError::Closed => Code::Reset,
            HandshakeError::Io(error) => code_of(error),
            HandshakeError::Protocol(_) => Code::Protocol,
        };
        let name = &self.peer.name;
        Refusal::at(name, code, format!("no session through {name} ({}): {error}", self.peer.address))
    }

    fn cannot_ask(&self, error: &phoebus_proto::session::ProtocolError) -> Refusal {
        Refusal::new(Code::Internal, format!("the request cannot be passed to {}: {error}", self.peer.name))
    }

    /// Once: what the host's settings cost on the way to this peer.
    fn look_at(&self, warm: &Warm) {
        if self.advised.swap(true, Ordering::Relaxed) {
            return;
        }
        if let Ok(stats) = warm.stream.stats() {
            for advice in Host::read().advice_for_peer(&self.peer.profile, &stats) {
                warn!(peer = self.peer.name, "{advice}");
            }
        }
        if let Some(note) = warm.stream.note() {
            warn!(peer = self.peer.name, "{note}");
        }
    }
}

impl Warm {
    /// On the caller's runtime, whose thread will relay it.
    fn rehomed(mut self) -> Option<Self> {
        let here = Handle::current().id();
        if self.home == here {
            return Some(self);
        }
        // Status may be looking at it; then it is served across threads, which is only slower.
        match Arc::try_unwrap(self.stream).map(Stream::rehome) {
            Ok(Ok(stream)) => (self.stream, self.home) = (Arc::new(stream), here),
            Ok(Err(_)) => return None,
            Err(shared) => self.stream = shared,
        }
        Some(self)
    }

    /// How much longer than need be a request must be to fill a segment, on a connection that has been idle.
    ///
    /// After 10 s without a good sample of the round trip, bbr measures it anew, for which it sends next to nothing for
    /// 200 ms and more: at full speed, that is a gap which the rest of a transfer does not make up. It takes a sample from
    /// the first acknowledgement after idleness instead, unless that may have been delayed, as for less than a segment.
    fn padding(&self) -> u16 {
        if self.since.elapsed() < FRESH {
            return 0;
        }
        // What does not fit the room for requests is of no use.
        let segment = self.stream.stats().map_or(0, |stats| stats.segment_size);
        u16::try_from(segment).ok().filter(|segment| *segment <= Open::PADDING_MAX).unwrap_or(0)
    }

    /// All but the stream, which someone else is to hold alone.
    pub(crate) fn unplugged(self) -> Unplugged {
        Unplugged { asking: self.asking, sessions: self.sessions, home: self.home }
    }

    /// The peer's OPENED.
    pub(crate) fn opened(&self) -> Option<phoebus_proto::session::message::Opened<'_>> {
        self.asking.opened()
    }
}

/// A [`Warm`] without its stream.
pub(crate) struct Unplugged {
    asking: Asking,
    sessions: u32,
    home: Id,
}

impl Unplugged {
    /// With its stream again.
    pub(crate) fn plug(self, stream: Arc<Stream>) -> Warm {
        let Self { asking, sessions, home } = self;
        Warm { stream, asking, sessions, since: Instant::now(), home }
    }
}

fn stays_usable(code: Code) -> bool {
    !matches!(code, Code::Protocol | Code::Version | Code::Feature | Code::HandshakeTimeout)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
