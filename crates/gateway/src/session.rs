//! A session at this gateway, from OPEN to its line in the log.

use crate::admit;
use crate::audit::{Decision, Line, Outcome};
use crate::bundle::{Offer, Owner};
use crate::config::RulePlace;
use crate::counters::count;
use crate::datagrams;
use crate::dial::{self, Hop};
use crate::failure::Side;
use crate::listener_settings::ListenerSettings;
use crate::quota::{self, Taken};
use crate::record::Record;
use crate::refusal::Refusal;
use crate::relay::{Broken, End, Means, Relay};
use crate::request::{Arrival, Request};
use crate::requirements;
use crate::reserve::{Bounds, CannotHold, Neighbour, Segment};
use crate::route;
use crate::sessions::{ActiveSession, SessionDatagrams, SessionGuard, SessionInfo};
use crate::shared::{Phase, Setup, Shared};
use crate::slots::Slot;
use phoebus_net::{Stats, Stream};
use phoebus_proto::session::datagrams::{DatagramGrant, NO_DATAGRAMS};
use phoebus_proto::session::frame::Role;
use phoebus_proto::session::message::Requirements;
use phoebus_proto::session::{Code, Mode, SessionId};
use phoebus_proto::units::BitRate;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Log target of `info` lines about refused sessions, which clients can cause without limit.
pub const REFUSED: &str = "phoebus::refused";

/// A session with a connected next hop, about to be reported as open. Dropping it ends it.
pub(crate) struct Ready {
    pub(crate) hop: Hop,
    /// Slots for further connections of the requester.
    pub(crate) offer: Option<Offer>,
    pub(crate) mode: Mode,
    /// Where the requester may send datagrams beside the session.
    pub(crate) datagrams: Option<DatagramGrant>,
    /// Registered as open before the requester is told so.
    listed: SessionGuard,
    /// What it is counted as: among all sessions, and for its accounts.
    slot: (Slot, Taken),
}

/// A way into the gateway: a requester on a connection. The session protocol is one ([`crate::connection`]); agents
/// speak it like gateways and clients. SOCKS and HTTP are others ([`crate::entry`]). Each implements this trait and calls
/// [`open`].
pub(crate) trait WayIn: Send {
    /// The connection that the session will use.
    fn stream(&self) -> &Arc<Stream>;

    /// The settings of its listener.
    fn settings(&self) -> &Arc<ListenerSettings>;

    /// Returns when the requester is gone. Polled while the next hop is being connected.
    fn abandoned(&mut self) -> impl Future<Output = ()> + Send;

    /// Reports that the session is open; the rest of the connection belongs to the session. False if that failed.
    fn granted(&mut self, setup: &Setup, ready: &Ready) -> impl Future<Output = bool> + Send;

    /// Reports that there is no session, and why. False if the connection ends with that.
    fn refused(&mut self, setup: &Setup, refusal: Refusal) -> impl Future<Output = bool> + Send;
}

/// The result of a request.
pub(crate) enum Opening {
    /// The session is open, and the requester knows.
    Open(Box<Ready>),
    /// It was refused, and the requester may ask again.
    Refused,
    /// It was refused, and the connection ends.
    Ended,
    /// The requester is gone.
    Gone,
}

/// Opens the session that `way` requests, and reports the result to it.
pub(crate) async fn open(shared: &Shared, setup: &Setup, mut request: Request, way: &mut impl WayIn) -> Opening {
    let (first, settings) = (way.stream().clone(), way.settings().clone());
    request.arrival = Arrival::of(&settings, &first);
    let mut allowed = None;
    let prepared = tokio::select! {
        biased;
        prepared = prepare(shared, setup, &request, (&first, &settings), &mut allowed) => prepared,
        () = way.abandoned() => {
            audit(shared, setup, &request, allowed, Outcome::Abandoned, None);
            return Opening::Gone;
        }
        () = shared.reached(Phase::Ending) => Err(Refusal::new(Code::Draining, "the gateway has shut down")),
    };
    match prepared {
        Ok(mut ready) => {
            let rule = Some(ready.listed.facts.rule);
            let knows = way.granted(setup, &ready).await;
            let outcome = if knows { Outcome::Opened } else { Outcome::Abandoned };
            audit(shared, setup, &request, rule, outcome, None);
            if !knows {
                return Opening::Gone;
            }
            ready.slot.1.opened();
            Opening::Open(ready)
        }
        Err(refusal) => {
            audit(shared, setup, &request, allowed, Outcome::Refused, Some(&refusal));
            log_refused(setup, &request, &refusal);
            match way.refused(setup, refusal).await {
                true => Opening::Refused,
                false => Opening::Ended,
            }
        }
    }
}

/// Logs a refused session: requester, request, and the refusing hop.
fn log_refused(setup: &Setup, request: &Request, refusal: &Refusal) {
    tracing::info!(
        target: REFUSED,
        session = %request.session,
        from = %request.origin,
        entry = request.entry.name(),
        via = request.peer.as_deref().unwrap_or_default(),
        principal = request.principal.to_string(),
        destination = %request.destination,
        code = refusal.code.number(),
        hop = if refusal.hop.is_empty() { &setup.config.name } else { &refusal.hop },
        reason = refusal.reason,
        rule = refusal.rule.map(|rule| rule.to_string()).unwrap_or_default(),
        "session refused",
    );
}

/// Writes a decision to the audit. `allowed`: the request passed all checks that come before the next hop, by this rule if one
/// has decided already.
fn audit(
    shared: &Shared,
    setup: &Setup,
    request: &Request,
    allowed: Option<Option<RulePlace>>,
    outcome: Outcome,
    refusal: Option<&Refusal>,
) {
    if !shared.audit.is_on() {
        return;
    }
    // An address of the name may be refused although the name was allowed, and a bandwidth although a rule allows the session.
    let denies = [Code::NotAllowed, Code::Requirement, Code::NoDatagrams];
    let is_own = |refusal: &Refusal| refusal.hop.is_empty() && denies.contains(&refusal.code);
    let decision = match (allowed, refusal) {
        (_, Some(refusal)) if refusal.redirect.is_some() => (Decision::Redirect, refusal.rule),
        (Some(_), Some(refusal)) if is_own(refusal) => (Decision::Deny, refusal.rule),
        (Some(rule), _) => (Decision::Allow, rule),
        (None, refusal) => (Decision::Deny, refusal.and_then(|refusal| refusal.rule)),
    };
    shared.audit.add(&Line::session(&setup.config.name, request, decision, (outcome, refusal)));
}

/// Takes `request`, which came on `first`, through all steps up to a connected next hop. Sets `allowed` to the rule that allows it,
/// if one has decided, as soon as nothing but the next hop is missing.
async fn prepare(
    shared: &Shared,
    setup: &Setup,
    request: &Request,
    (first, settings): (&Arc<Stream>, &ListenerSettings),
    allowed: &mut Option<Option<RulePlace>>,
) -> Result<Box<Ready>, Refusal> {
    let asked = Instant::now();
    let slot = admit::session(shared, setup, request)?;
    let next = route::next_hop(setup, request)?;
    let rule = admit::allowed(&setup.config, request, next)?;
    requirements::check(&setup.config, request, next, setup.buffer)?;
    let memory = setup.config.buffer().map_or(0, |one_way| 2 * one_way);
    let taken = shared.accounts.take(quota::accounts_of(&setup.config, request), memory, asked)?;
    *allowed = Some(rule);
    let mut hop = dial::connect(shared, setup, request, next).await?;
    let offer = offer(shared, setup, request, first, settings);
    let came_by = came_by(request, settings);
    let accounts = taken.accounts();
    let bounds =
        [Bounds::new(came_by, Side::First, &accounts), Bounds::new(hop.segment.clone(), Side::Second, &accounts)];
    let datagrams = datagrams(shared, setup, request, first, (&bounds, &mut hop))?;
    let mut facts = facts(request, &hop, settings, asked.elapsed());
    facts.rule = hop.rule.or(rule);
    if datagrams.is_some() {
        let separator = if facts.note.is_empty() { "" } else { "; " };
        facts.note.push_str(&format!("{separator}datagrams are relayed beside the session"));
    }
    let onward = bounds[1].clone();
    let live = ActiveSession::new(facts, [first, &hop.stream], bounds, [settings.user_timeout, hop.user_timeout]);
    live.mark(Side::Second, &hop.stats);
    let (grant, datagrams) = datagrams.unzip();
    live.relay_datagrams(datagrams);
    // From here on, a reload finds it.
    let listed = shared.sessions.list(live);
    let booked = request.requirements.rate;
    let reservations = &shared.data.reservations;
    listed.hold(reservations, booked).map_err(|why| cannot_hold(request, why))?;
    hop.rate = booked.or_else(|| reservations.rate(&onward));
    Ok(Box::new(Ready { hop, offer, mode: request.mode, datagrams: grant, listed, slot: (slot, taken) }))
}

/// Offers the requester further connections, within limits. A promised bandwidth is held on one connection.
fn offer(
    shared: &Shared,
    setup: &Setup,
    request: &Request,
    first: &Stream,
    settings: &ListenerSettings,
) -> Option<Offer> {
    let most = setup.config.limits.streams.get();
    let further = request.streams.min(most).saturating_sub(1);
    if further == 0 || request.mode != Mode::Framed || request.requirements.rate.is_some() {
        return None;
    }
    let slots = shared.additional_connections(setup, request.source(), further);
    let owner = Owner::of(request.peer.as_deref(), request.from, &request.principal);
    let offer = shared.bundles.offer(request.session, owner, slots)?;
    // If memory is limited and the connections cannot share it, there is one.
    settings.share_buffers(first, offer.streams).then_some(offer)
}

/// Relays datagrams beside the session, if the requester wants any. If there are none, a note of the hop says why.
fn datagrams(
    shared: &Shared,
    setup: &Setup,
    request: &Request,
    first: &Stream,
    (bounds, hop): (&[Bounds; 2], &mut Hop),
) -> Result<Option<(DatagramGrant, SessionDatagrams)>, Refusal> {
    if !request.datagrams {
        return Ok(None);
    }
    match datagrams::relay(shared, setup, request, first, (bounds, hop)) {
        Ok(relayed) => Ok(Some(relayed)),
        Err(why) if request.requires_datagrams() => {
            Err(Refusal::new(Code::NoDatagrams, format!("datagrams beside the session were asked for, but {why}")))
        }
        Err(why) => {
            let separator = if hop.note.is_empty() { "" } else { "; " };
            hop.note.push_str(&format!("{separator}{NO_DATAGRAMS}{why}"));
            Ok(None)
        }
    }
}

/// The segment of the requester's connection, for shared rates.
fn came_by(request: &Request, settings: &ListenerSettings) -> Segment {
    let neighbour = match &request.peer {
        Some(name) => Neighbour::Peer(name.as_str().into()),
        None => Neighbour::Host(request.from.ip().to_canonical()),
    };
    Segment { profile: settings.profile.clone(), neighbour }
}

/// The refusal if others hold the requested bandwidth, or a transport holds none.
fn cannot_hold(request: &Request, why: CannotHold) -> Refusal {
    let (free, account) = match why {
        CannotHold::Insufficient { free, account } => (free, account),
        CannotHold::Transport(account) => {
            let reason =
                format!("the bandwidth of {account} is limited, and a transport of this session cannot hold it");
            return Refusal::new(Code::Requirement, reason);
        }
    };
    let (wanted, free) = (BitRate(request.requirements.rate.unwrap_or(0)), BitRate(free));
    let of = account.map(|account| format!(" of {account}")).unwrap_or_default();
    let reason = format!("{wanted} was requested, but only {free}{of} is not reserved yet");
    let limits = Requirements { rate: Some(free.0), ..Requirements::default() };
    Refusal { limits: Box::new(limits), ..Refusal::new(Code::Requirement, reason) }
}

impl Ready {
    pub(crate) fn session(&self) -> SessionId {
        self.listed.facts.session
    }

    /// Carries the session to its end, and logs it. Returns the requester's connection if it may carry another.
    pub(crate) async fn carry(
        self: Box<Self>,
        shared: &Shared,
        setup: &Setup,
        first: Arc<Stream>,
    ) -> Option<Arc<Stream>> {
        if shared.phase() == Phase::Ending {
            // A shutdown before this session was registered has not seen it.
            self.listed.end(Code::Terminated, "the gateway has shut down");
        }
        count(&shared.counters.opened);
        let framed = self.mode == Mode::Framed;
        let ends = self.ends(&first, setup.config.limits.control_frames.get());
        // A raw connection carries only this session. Boxed, so that the session's task reserves no memory for it.
        let start = framed.then(|| Box::new(first.stats().unwrap_or_default()));
        if let Some(start) = &start {
            self.listed.mark(Side::First, start);
        }
        let means = Means {
            pool: shared.data.pipes.clone(),
            hold: setup.config.hold(),
            receive_coalescing: setup.config.limits.receive_coalescing.0,
        };
        let mut relay = Relay::new(ends.0, ends.1, means);
        let ended = relay.run(&self.listed).await;
        let refusal = self.account(shared, &ended, &first, start.as_deref(), &relay);
        let Self { hop, offer, listed, slot, .. } = *self;
        if let Err(broken) = ended {
            // The session is over. Its descriptors count until they are closed.
            drop(listed);
            let code = broken.failure.code();
            [&first, &hop.stream].into_iter().for_each(|stream| stream.set_reset_code(code));
            // From here on, only the relay may keep the connections open.
            let lent = hop.lent.map(|(pool, connection)| (pool, connection.detached()));
            let held = Arc::new((slot, offer.map(Offer::into_slots), hop.slots));
            drop((first, hop.stream));
            let parted = async move { relay.pass_reset_on(&refusal.message(&setup.config.name), &broken, &held).await };
            let [first, second] = Box::pin(parted).await;
            if let (Some((pool, detached)), Some(stream)) = (lent, second) {
                pool.put_back(detached.plug(stream));
            }
            return first;
        }
        relay.give_back();
        match hop.lent {
            Some((pool, connection)) if connection.mode() == Mode::Framed => {
                // The next session's thread can take over the connection only if nobody else holds it.
                drop(hop.stream);
                pool.put_back(connection);
            }
            _ => hop.stream.disarm(),
        }
        // Only now, so that whoever sees the end of the session finds its connection in the pool.
        drop(listed);
        if !framed {
            first.disarm();
            return None;
        }
        Some(first)
    }

    /// Both ends for the relay, with connections that will join them.
    fn ends(&self, first: &Arc<Stream>, control_frames: u32) -> (End, End) {
        let second = &self.hop.stream;
        let members = self.hop.lent.as_ref().and_then(|(pool, connection)| pool.attach(connection, self.hop.streams));
        let first = match (self.mode, &self.offer) {
            (Mode::Framed, Some(offer)) => {
                End::bundle(first.clone(), Role::Acceptor, offer.members.clone(), control_frames)
            }
            (Mode::Framed, None) => End::framed(first.clone(), Role::Acceptor, control_frames),
            (Mode::Raw, _) => End::raw(first.clone()),
        };
        let second = match (self.hop.mode(), members) {
            (Mode::Framed, Some(members)) => End::bundle(second.clone(), Role::Initiator, members, control_frames),
            (Mode::Framed, None) => End::framed(second.clone(), Role::Initiator, control_frames),
            (Mode::Raw, _) => End::raw(second.clone()),
        };
        (first, second)
    }

    /// Logs and counts an ended session. Returns the message for other hops if it failed.
    fn account(
        &self,
        shared: &Shared,
        ended: &Result<(), Broken>,
        first: &Stream,
        start: Option<&Stats>,
        relay: &Relay,
    ) -> Refusal {
        let all = |stats: Stats, end: &End| match end.lanes() {
            Some(lanes) => stats.with(&lanes.stats()),
            None => stats,
        };
        let now = first.stats().unwrap_or_default();
        let first = all(
            match start {
                Some(start) => now.since(start),
                None => now,
            },
            &relay.first,
        );
        let second = self.hop.stream.stats().unwrap_or_default();
        let pool = self.hop.lent.as_ref().map(|(pool, _)| pool);
        self.listed.teach(pool, Side::Second, &second);
        if let (Some(pool), Err(broken)) = (pool, ended)
            && broken.side == Some(Side::Second)
            && broken.failure.code() == Code::TimedOut
        {
            pool.doubt(&self.hop.transport);
        }
        let second = all(second.since(&self.hop.stats), &relay.second);
        let record = Record::new(&self.listed, ended, [first, second]);
        record.log();
        let counters = &shared.counters;
        let (up, down) = self.listed.bytes();
        counters.bytes_up.fetch_add(up, Relaxed);
        counters.bytes_down.fetch_add(down, Relaxed);
        count(if ended.is_ok() { &counters.clean } else { &counters.failed });
        record.refusal()
    }
}

fn facts(request: &Request, hop: &Hop, settings: &ListenerSettings, opening: Duration) -> SessionInfo {
    SessionInfo {
        session: request.session,
        from: request.peer.clone().unwrap_or_else(|| request.from.to_string()),
        origin: request.origin.to_string(),
        entry: request.entry,
        principal: request.principal.clone(),
        instance: request.instance,
        destination: request.destination.to_string(),
        visited: request.visited.join(","),
        next: hop.to.clone(),
        transports: [settings.transport.clone(), hop.transport.clone()],
        warm: hop.is_warm(),
        rule: None,
        note: hop.note.clone(),
        opening,
    }
}
