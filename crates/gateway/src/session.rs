//! One session at this gateway, from OPEN to its line in the log.

use crate::bundle::{Offer, Owner};
use crate::connection::Terms;
use crate::counters::count;
use crate::hop::{self, Hop};
use crate::live::{Facts, Listed, Live};
use crate::quota::{Full, Slot};
use crate::record::Record;
use crate::refusal::Refusal;
use crate::relay::{Broken, End, Relay, Side};
use crate::request::Request;
use crate::reserve::{Neighbour, Segment, TooMuch};
use crate::shared::{Phase, Setup, Shared};
use phoebus_net::{Stats, Stream};
use phoebus_proto::session::frame::Role;
use phoebus_proto::session::message::Requirements;
use phoebus_proto::session::{Code, Mode, SessionId};
use phoebus_proto::units::BitRate;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// A session that has its next hop, and is about to be told so to whoever asked. Dropped, it is no more.
pub(crate) struct Ready {
    pub(crate) hop: Hop,
    /// What whoever asked may bring connections for, beside the one on which it asked.
    pub(crate) offer: Option<Offer>,
    pub(crate) mode: Mode,
    /// Among the open ones already: whoever is told that it is open finds it there.
    listed: Listed,
    slot: Slot,
}

/// Admits `request`, which came on `first`, and connects its next hop.
pub(crate) async fn prepare(
    shared: &Shared,
    setup: &Setup,
    request: Request,
    first: &Arc<Stream>,
    terms: &Terms,
) -> Result<Box<Ready>, Refusal> {
    let asked = Instant::now();
    let slot = admit(shared, setup, &request)?;
    let mut hop = hop::open(shared, setup, &request).await?;
    let offer = offer(shared, setup, &request, first, terms);
    let facts = facts(&request, &hop, terms, asked.elapsed());
    let segments = [came_by(&request, terms), hop.segment.clone()];
    let live = Live::new(facts, [first, &hop.stream], segments, [terms.user_timeout, hop.user_timeout]);
    live.mark(Side::Second, &hop.stats);
    // A reload finds it from here on.
    let listed = shared.sessions.list(live);
    let booked = request.requirements.rate;
    listed.hold(&shared.reservations, booked).map_err(|too_much| taken(&request, too_much))?;
    hop.rate = booked.or_else(|| shared.reservations.free(&hop.segment).map(|[rate, _]| rate));
    Ok(Box::new(Ready { hop, offer, mode: request.mode, listed, slot }))
}

/// Lets whoever asks bring the connections that it would have, as many as may be. A bandwidth that is promised is held on one.
fn offer(shared: &Shared, setup: &Setup, request: &Request, first: &Stream, terms: &Terms) -> Option<Offer> {
    let most = setup.config.limits.streams.get();
    let further = request.streams.min(most).saturating_sub(1);
    if further == 0 || request.mode != Mode::Framed || request.requirements.rate.is_some() {
        return None;
    }
    let slots = shared.lanes(setup, request.source(), further);
    let owner = Owner::of(request.peer.as_deref(), request.from, &request.identity);
    let offer = shared.bundles.offer(request.session, owner, slots)?;
    // Where memory is bounded, and the connections cannot share it, there is one.
    terms.share_buffers(first, offer.streams).then_some(offer)
}

/// What the connection that asked shares a rate with.
fn came_by(request: &Request, terms: &Terms) -> Segment {
    let neighbour = match &request.peer {
        Some(name) => Neighbour::Peer(name.as_str().into()),
        None => Neighbour::Host(request.from.ip().to_canonical()),
    };
    Segment { profile: terms.profile.clone(), neighbour }
}

/// The bandwidth that was asked for has been promised to others.
fn taken(request: &Request, too_much: TooMuch) -> Refusal {
    let (wanted, free) = (BitRate(request.requirements.rate.unwrap_or(0)), BitRate(too_much.free));
    let reason = format!("{wanted} was asked for, of which {free} is promised to nobody yet");
    let limits = Requirements { rate: Some(free.0), ..Requirements::default() };
    Refusal { limits: Box::new(limits), ..Refusal::new(Code::Requirement, reason) }
}

fn admit(shared: &Shared, setup: &Setup, request: &Request) -> Result<Slot, Refusal> {
    if shared.phase() != Phase::Open {
        return Err(Refusal::new(Code::Draining, "the gateway is shutting down and takes no new sessions"));
    }
    let most = setup.config.limits.remembered_sessions.get() as usize;
    if !shared.seen.is_new(request.session, most) {
        return Err(Refusal::new(Code::Duplicate, "a session with this identifier was seen before"));
    }
    let source = request.source();
    shared.admitted.take(source, setup.sessions, setup.sessions_per_source).map_err(|full| {
        let reason = match full {
            Full::Total => format!("all {} sessions of the gateway are in use (limits.sessions)", setup.sessions),
            Full::Source => {
                format!("{source} has its {} sessions in use (limits.sessions_per_source)", setup.sessions_per_source)
            }
        };
        Refusal::new(Code::Limit, reason)
    })
}

impl Ready {
    pub(crate) fn session(&self) -> SessionId {
        self.listed.facts.session
    }

    /// Carries the session to its end and logs it. Returns the connection that asked for it, if that is free for another.
    pub(crate) async fn carry(
        self: Box<Self>,
        shared: &Shared,
        setup: &Setup,
        first: Arc<Stream>,
    ) -> Option<Arc<Stream>> {
        if shared.phase() == Phase::Ending {
            // Those who were to be ended were so before this one could be seen.
            self.listed.end(Code::Terminated, "the gateway has shut down");
        }
        count(&shared.counters.opened);
        let framed = self.mode == Mode::Framed;
        let ends = self.ends(&first, setup.config.limits.control_frames.get());
        // A raw connection carries this session alone.
        let start = if framed { first.stats().unwrap_or_default() } else { Stats::default() };
        // Boxed before it is lent, or the session's task would keep room for it.
        let start = Box::new(start);
        self.listed.mark(Side::First, &start);
        let mut relay = Relay::new(ends.0, ends.1, shared.pipes.clone(), setup.config.hold());
        let ended = relay.run(&self.listed).await;
        let refusal = self.account(shared, &ended, &first, &start, &relay);
        let Self { hop, offer, listed, slot, .. } = *self;
        // The session is over; its descriptors are counted as long as they are in use.
        drop(listed);
        if let Err(broken) = ended {
            let code = broken.failure.code();
            [&first, &hop.stream].into_iter().for_each(|stream| stream.blame(code));
            // Nothing but the relay may keep the connections open any longer.
            let lent = hop.lent.map(|(pool, warm)| (pool, warm.unplugged()));
            let held = Arc::new((slot, offer.map(Offer::into_slots), hop.slots));
            drop((first, hop.stream));
            let parted = async move { relay.part(&refusal.message(&setup.config.name), &broken, &held).await };
            let [first, second] = Box::pin(parted).await;
            if let (Some((pool, unplugged)), Some(stream)) = (lent, second) {
                pool.put_back(unplugged.plug(stream));
            }
            return first;
        }
        relay.give_back();
        match hop.lent {
            Some((pool, warm)) if warm.mode() == Mode::Framed => pool.put_back(warm),
            _ => hop.stream.disarm(),
        }
        if !framed {
            first.disarm();
            return None;
        }
        Some(first)
    }

    /// Both connections as a relay has them, with those that are to join them.
    fn ends(&self, first: &Arc<Stream>, control_frames: u32) -> (End, End) {
        let second = &self.hop.stream;
        let roster = self.hop.lent.as_ref().and_then(|(pool, warm)| pool.attach(warm, self.hop.streams));
        let first = match (self.mode, &self.offer) {
            (Mode::Framed, Some(offer)) => {
                End::bundle(first.clone(), Role::Acceptor, offer.roster.clone(), control_frames)
            }
            (Mode::Framed, None) => End::framed(first.clone(), Role::Acceptor, control_frames),
            (Mode::Raw, _) => End::raw(first.clone()),
        };
        let second = match (self.hop.mode(), roster) {
            (Mode::Framed, Some(roster)) => End::bundle(second.clone(), Role::Initiator, roster, control_frames),
            (Mode::Framed, None) => End::framed(second.clone(), Role::Initiator, control_frames),
            (Mode::Raw, _) => End::raw(second.clone()),
        };
        (first, second)
    }

    /// Logs and counts a session that has ended; what the other hops are told if it failed.
    fn account(
        &self,
        shared: &Shared,
        ended: &Result<(), Broken>,
        first: &Stream,
        start: &Stats,
        relay: &Relay,
    ) -> Refusal {
        let all = |stats: Stats, end: &End| match end.lanes() {
            Some(lanes) => stats.with(&lanes.stats()),
            None => stats,
        };
        let first = all(first.stats().unwrap_or_default().since(start), &relay.first);
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

fn facts(request: &Request, hop: &Hop, terms: &Terms, opening: Duration) -> Facts {
    Facts {
        session: request.session,
        from: request.peer.clone().unwrap_or_else(|| request.from.to_string()),
        origin: request.origin.to_string(),
        identity: request.identity.clone(),
        instance: request.instance,
        destination: request.destination.to_string(),
        visited: request.visited.join(","),
        next: hop.to.clone(),
        transports: [terms.transport.clone(), hop.transport.clone()],
        warm: hop.is_warm(),
        note: hop.note.clone(),
        opening,
    }
}
