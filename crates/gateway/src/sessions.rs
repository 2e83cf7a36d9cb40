//! Open sessions: the facts about each, its byte counts, and how to end it.

use crate::config::RulePlace;
use crate::failure::{Failure, Side};
use crate::liveness::{DeadConnections, is_believed};
use crate::path_metrics::CounterSnapshot;
use crate::pool::Pool;
use crate::reserve::{Bounds, CannotHold, Reservation, Reservations};
use crate::slots::Slot;
use crate::transports::shows_death;
use phoebus_net::datagram_relay::{Relayed, RelayedFlow};
use phoebus_net::transport::{Pulse, Security};
use phoebus_net::{Stats, Stream};
use phoebus_proto::entry::Entry;
use phoebus_proto::session::{Code, Principal, SessionId};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// The facts about a session.
#[derive(Debug)]
pub(crate) struct SessionInfo {
    pub(crate) session: SessionId,
    /// The requester: a peer's name, or the address of the other end of the connection.
    pub(crate) from: String,
    /// The client, as the first gateway saw it.
    pub(crate) origin: String,
    /// The way by which it was requested.
    pub(crate) entry: Entry,
    /// On whose behalf it was opened.
    pub(crate) principal: Principal,
    /// The requesting process, if it is a client's agent; otherwise 0.
    pub(crate) instance: u64,
    pub(crate) destination: String,
    /// Names of the gateways before this one, separated by commas.
    pub(crate) visited: String,
    /// Where the next hop leads: a peer's name or an address.
    pub(crate) next: String,
    /// The transports of the hop towards the client and of the next hop.
    pub(crate) transports: [Box<str>; 2],
    /// Whether the next hop's connection had carried a session before.
    pub(crate) warm: bool,
    /// The rule that allows it.
    pub(crate) rule: Option<RulePlace>,
    /// Requests that were not fulfilled.
    pub(crate) note: String,
    /// From OPEN to OPENED.
    pub(crate) opening: Duration,
}

#[cfg(test)]
impl Default for SessionInfo {
    fn default() -> Self {
        Self {
            session: SessionId([0; 16]),
            from: String::new(),
            origin: String::new(),
            entry: Entry::Session,
            principal: Principal::default(),
            instance: 0,
            destination: String::new(),
            visited: String::new(),
            next: String::new(),
            transports: ["tcp".into(), "tcp".into()],
            warm: false,
            rule: None,
            note: String::new(),
            opening: Duration::ZERO,
        }
    }
}

/// A neighbour of this gateway.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Neighbour {
    /// The peer of this name.
    Peer(String),
    /// The client's agent with this process number.
    Client(u64),
}

/// One open session.
#[derive(Debug)]
pub(crate) struct ActiveSession {
    pub(crate) facts: SessionInfo,
    pub(crate) since: Instant,
    /// The connections. Weak, since only the relay keeps them open.
    pub(crate) first: Weak<Stream>,
    pub(crate) second: Weak<Stream>,
    /// How many connections have joined the first hop and the second.
    further: [AtomicUsize; 2],
    /// How long each peer may leave sent data unacknowledged.
    pub(crate) user_timeouts: [Duration; 2],
    up: AtomicU64,
    down: AtomicU64,
    /// What bounds the connections on either side: rates that it shares with other sessions; and its parts of those rates,
    /// until it is over.
    bounds: [Bounds; 2],
    held: Mutex<Holding>,
    reservations: OnceLock<Arc<Reservations>>,
    sample: Mutex<Sample>,
    /// The counters of the two connections at the last check.
    marks: Mutex<[CounterSnapshot; 2]>,
    end: OnceLock<(Code, String)>,
    wake: Notify,
    datagrams: Mutex<Option<Box<SessionDatagrams>>>,
}

/// The datagrams beside a session, relayed until this is dropped.
#[derive(Debug)]
pub(crate) struct SessionDatagrams {
    flow: RelayedFlow,
    /// The right to the flow's descriptor.
    _slot: Slot,
}

impl SessionDatagrams {
    pub(crate) fn new(flow: RelayedFlow, slot: Slot) -> Self {
        Self { flow, _slot: slot }
    }
}

#[derive(Debug, Default)]
struct Holding {
    parts: [Option<Reservation>; 2],
    further: Vec<Further>,
    /// Whether the first connection of each hop has failed while others continue.
    first_lost: [bool; 2],
    /// The session is over, and holds no rates any more.
    is_over: bool,
}

/// A connection of a bundle other than the first.
#[derive(Debug)]
struct Further {
    side: Side,
    stream: Weak<Stream>,
    part: Option<Reservation>,
}

/// The session's counters at the last check.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    at: Instant,
    up: u64,
    down: u64,
    /// When a byte last passed.
    pub(crate) moved: Instant,
    /// Bytes per second between the last two checks.
    pub(crate) rate_up: f64,
    pub(crate) rate_down: f64,
}

impl ActiveSession {
    pub(crate) fn new(
        facts: SessionInfo,
        streams: [&Arc<Stream>; 2],
        bounds: [Bounds; 2],
        user_timeouts: [Duration; 2],
    ) -> Arc<Self> {
        let now = Instant::now();
        Arc::new(Self {
            facts,
            since: now,
            first: Arc::downgrade(streams[0]),
            second: Arc::downgrade(streams[1]),
            further: Default::default(),
            reservations: OnceLock::new(),
            user_timeouts,
            bounds,
            held: Mutex::default(),
            up: AtomicU64::new(0),
            down: AtomicU64::new(0),
            sample: Mutex::new(Sample { at: now, up: 0, down: 0, moved: now, rate_up: 0.0, rate_down: 0.0 }),
            marks: Mutex::default(),
            end: OnceLock::new(),
            wake: Notify::new(),
            datagrams: Mutex::default(),
        })
    }

    /// Limits its connections to their parts of the rates that bound it, where that is not done yet; to `booked` on
    /// both sides, if a bandwidth was requested.
    pub(crate) fn hold(&self, reservations: &Arc<Reservations>, booked: Option<u64>) -> Result<(), CannotHold> {
        let _ = self.reservations.set(reservations.clone());
        let mut held = self.held();
        if held.is_over {
            return Ok(());
        }
        let sides = [&self.first, &self.second].into_iter().zip(&self.bounds);
        for (part, (stream, bounds)) in held.parts.iter_mut().zip(sides) {
            if part.is_none()
                && let Some(stream) = stream.upgrade()
            {
                *part = reservations.hold(bounds, &stream, booked)?;
            }
        }
        for Further { side, stream, part } in &mut held.further {
            if part.is_none()
                && let Some(stream) = stream.upgrade()
            {
                *part = reservations.hold(&self.bounds[*side as usize], &stream, None)?;
            }
        }
        Ok(())
    }

    /// Has datagrams relayed beside it until it is over.
    pub(crate) fn relay_datagrams(&self, datagrams: Option<SessionDatagrams>) {
        *self.datagrams.lock().unwrap_or_else(PoisonError::into_inner) = datagrams.map(Box::new);
    }

    /// Ends the session if it has datagrams beside it and is held to a rate now, which these would not keep to.
    pub(crate) fn end_if_datagrams_pass_a_rate_by(&self) {
        let has_datagrams = self.datagrams.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        if has_datagrams && self.held().parts.iter().any(Option::is_some) {
            self.end(
                Code::Terminated,
                "a rate was configured, to which the datagrams beside the session would not keep",
            );
        }
    }

    /// Releases its parts of rates and its datagrams, because the session is over.
    pub(crate) fn release(&self) {
        self.relay_datagrams(None);
        let held = std::mem::replace(&mut *self.held(), Holding { is_over: true, ..Holding::default() });
        drop(held);
    }

    fn held(&self) -> MutexGuard<'_, Holding> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection that has joined a hop. It shares the hop's rate like a connection of another session.
    pub(crate) fn joined(&self, side: Side, stream: &Arc<Stream>) {
        let mut held = self.held();
        if held.is_over {
            return;
        }
        let hold = |reservations: &Arc<Reservations>| {
            // Without a booked bandwidth, this cannot be too much.
            reservations.hold(&self.bounds[side as usize], stream, None).ok().flatten()
        };
        let part = self.reservations.get().and_then(hold);
        held.further.push(Further { side, stream: Arc::downgrade(stream), part });
        self.further[side as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Removes a connection that has failed, while its hop continues.
    pub(crate) fn left(&self, side: Side, stream: &Arc<Stream>) {
        let mut held = self.held();
        let is_it = |other: &Weak<Stream>| std::ptr::eq(other.as_ptr(), Arc::as_ptr(stream));
        if is_it(self.first_of(side)) {
            held.first_lost[side as usize] = true;
        } else {
            held.further.retain(|further| !is_it(&further.stream));
        }
    }

    fn first_of(&self, side: Side) -> &Weak<Stream> {
        if side == Side::First { &self.first } else { &self.second }
    }

    /// The connections that carry a hop, the first one first.
    pub(crate) fn streams(&self, side: Side) -> Vec<Arc<Stream>> {
        let held = self.held();
        let first = Some(self.first_of(side)).filter(|_| !held.first_lost[side as usize]);
        let further = held.further.iter().filter(|further| further.side == side).map(|further| &further.stream);
        first.into_iter().chain(further).filter_map(Weak::upgrade).collect()
    }

    /// Whether the reset of a beacon with this protection can show that the hop at this side is dead.
    fn dies_with(&self, side: Side, beacon: Security) -> bool {
        let hidden = !shows_death(&self.facts.transports[side as usize]);
        hidden && self.streams(side).iter().all(|stream| is_believed(beacon, stream.security()))
    }

    /// The sides with a hop to `neighbour` that [dies with](Self::dies_with) such a beacon.
    fn hidden_with(&self, neighbour: &Neighbour, beacon: Security) -> impl Iterator<Item = Side> {
        let SessionInfo { from, next, instance, .. } = &self.facts;
        let is_with = match neighbour {
            Neighbour::Peer(peer) => [from == peer, next == peer],
            Neighbour::Client(own) => [*own != 0 && own == instance, false],
        };
        let sides = [Side::First, Side::Second].into_iter().zip(is_with);
        sides.filter_map(move |(side, is_with)| (is_with && self.dies_with(side, beacon)).then_some(side))
    }

    /// How many connections a hop has had in total.
    pub(crate) fn stream_count(&self, side: Side) -> usize {
        1 + self.further[side as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn count_up(&self, bytes: usize) {
        self.up.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn count_down(&self, bytes: usize) {
        self.down.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Bytes forwarded to the destination, and to the client, those of datagrams included.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        let [up, down] = self.datagrams().unwrap_or_default();
        (self.up.load(Ordering::Relaxed) + up.bytes, self.down.load(Ordering::Relaxed) + down.bytes)
    }

    /// The datagrams relayed beside it to the destination, and to the client, if there are any.
    pub(crate) fn datagrams(&self) -> Option<[Relayed; 2]> {
        let datagrams = self.datagrams.lock().unwrap_or_else(PoisonError::into_inner);
        datagrams.as_ref().map(|datagrams| datagrams.flow.relayed())
    }

    /// Ends the session. Only the first reason counts.
    pub(crate) fn end(&self, code: Code, reason: impl Into<String>) {
        if self.end.set((code, reason.into())).is_ok() {
            self.wake.notify_one();
        }
    }

    /// Waits until the session must end. Only its relay may wait.
    pub(crate) async fn ended(&self) -> Failure {
        loop {
            if let Some((code, reason)) = self.end.get() {
                return Failure::Local { code: *code, reason: reason.clone() };
            }
            self.wake.notified().await;
        }
    }

    /// Samples the session now.
    pub(crate) fn look(&self, now: Instant) -> Sample {
        let (up, down) = self.bytes();
        let mut sample = self.sample.lock().unwrap_or_else(PoisonError::into_inner);
        let seconds = now.saturating_duration_since(sample.at).as_secs_f64();
        if seconds > 0.0 {
            let moved = if (up, down) == (sample.up, sample.down) { sample.moved } else { now };
            let rate = |new: u64, old: u64| new.saturating_sub(old) as f64 / seconds;
            *sample =
                Sample { at: now, up, down, moved, rate_up: rate(up, sample.up), rate_down: rate(down, sample.down) };
        }
        *sample
    }

    /// Records the counters of the connection at this side before this session.
    pub(crate) fn mark(&self, side: Side, stats: &Stats) {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)[side as usize] = CounterSnapshot::of(stats);
    }

    /// Passes the counters of the first connection at this side to the pool of the peer there, if it is a peer.
    pub(crate) fn teach(&self, pool: Option<&Arc<Pool>>, side: Side, stats: &Stats) {
        let side = side as usize;
        let Some(pool) = pool else { return };
        let mut marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        pool.learn(&self.facts.transports[side], &mut marks[side], stats);
    }

    /// The last sample.
    pub(crate) fn last_look(&self) -> Sample {
        *self.sample.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All open sessions.
#[derive(Debug, Default)]
pub(crate) struct Sessions(Mutex<HashMap<usize, Arc<ActiveSession>>>);

/// A session's entry among the open ones, removed on drop.
#[derive(Debug)]
pub(crate) struct SessionGuard {
    sessions: Arc<Sessions>,
    live: Arc<ActiveSession>,
}

impl Sessions {
    pub(crate) fn list(self: &Arc<Self>, live: Arc<ActiveSession>) -> SessionGuard {
        self.lock().insert(Arc::as_ptr(&live).addr(), live.clone());
        SessionGuard { sessions: self.clone(), live }
    }

    pub(crate) fn all(&self) -> Vec<Arc<ActiveSession>> {
        self.lock().values().cloned().collect()
    }

    /// Ends the sessions of a `neighbour` that has died: those whose connections with it are all `dead`, use a
    /// transport that does not show death, and have no more protection than the beacon can speak for. Returns how many
    /// there were.
    pub(crate) fn died(&self, neighbour: &Neighbour, beacon: Security, dead: &DeadConnections<'_>) -> usize {
        let reason = match neighbour {
            Neighbour::Peer(peer) => format!("{peer} has died"),
            Neighbour::Client(_) => "the client's agent has died".to_owned(),
        };
        let is_dead = |live: &ActiveSession, side| live.streams(side).iter().all(|stream| dead.has(stream, live.since));
        let hit = |live: &&Arc<ActiveSession>| live.hidden_with(neighbour, beacon).any(|side| is_dead(live, side));
        let all = self.all();
        all.iter().filter(hit).map(|live| live.end(Code::Reset, &*reason)).count()
    }

    /// The pulses of the connections with `neighbour` of sessions that [`Sessions::died`] could end.
    pub(crate) fn pulses_with(&self, neighbour: &Neighbour, beacon: Security) -> Vec<Box<dyn Pulse>> {
        let of = |live: &Arc<ActiveSession>| -> Vec<_> {
            let streams = live.hidden_with(neighbour, beacon).flat_map(|side| live.streams(side));
            streams.filter_map(|stream| stream.pulse()).collect()
        };
        self.all().iter().flat_map(of).collect()
    }

    /// Whether there are such sessions, with or without a pulse.
    pub(crate) fn any_with(&self, neighbour: &Neighbour, beacon: Security) -> bool {
        self.all().iter().any(|live| live.hidden_with(neighbour, beacon).next().is_some())
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<usize, Arc<ActiveSession>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for SessionGuard {
    fn drop(&mut self) {
        self.live.release();
        self.sessions.lock().remove(&Arc::as_ptr(&self.live).addr());
    }
}

impl std::ops::Deref for SessionGuard {
    type Target = Arc<ActiveSession>;

    fn deref(&self) -> &Arc<ActiveSession> {
        &self.live
    }
}
