//! One session at this gateway, from OPEN to its line in the log.

use crate::counters::count;
use crate::hop::{self, Hop};
use crate::live::{Facts, Listed, Live};
use crate::quota::{Full, Slot};
use crate::record::Record;
use crate::refusal::Refusal;
use crate::relay::{End, Relay};
use crate::request::Request;
use crate::shared::{Phase, Setup, Shared};
use phoebus_net::Stream;
use phoebus_proto::session::frame::Role;
use phoebus_proto::session::{Code, Mode};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A session that has its next hop, and is about to be told so to whoever asked.
pub(crate) struct Ready {
    pub(crate) hop: Hop,
    request: Request,
    slot: Slot,
    opening: Duration,
}

/// Admits `request` and connects its next hop.
pub(crate) async fn prepare(shared: &Shared, setup: &Setup, request: Request) -> Result<Ready, Refusal> {
    let asked = Instant::now();
    let slot = admit(shared, setup, &request)?;
    let hop = hop::open(setup, &request, setup.buffer).await?;
    Ok(Ready { hop, request, slot, opening: asked.elapsed() })
}

fn admit(shared: &Shared, setup: &Setup, request: &Request) -> Result<Slot, Refusal> {
    if shared.phase() != Phase::Open {
        return Err(Refusal::new(Code::Draining, "the gateway is shutting down and takes no new sessions"));
    }
    let most = setup.config.limits.remembered_sessions.get() as usize;
    if !shared.seen.is_new(request.session, most) {
        return Err(Refusal::new(Code::Duplicate, "a session with this identifier was seen before"));
    }
    // A peer asks for many; each client counts for itself.
    let source = match request.origin.host {
        phoebus_proto::endpoint::Host::Addr(addr) if request.peer.is_some() => addr,
        _ => request.from.ip(),
    };
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
    pub(crate) fn mode(&self) -> Mode {
        self.request.mode
    }

    pub(crate) fn session(&self) -> phoebus_proto::session::SessionId {
        self.request.session
    }

    /// Carries the session to its end and logs it. Returns the connection that asked for it, if that is free for another.
    pub(crate) async fn carry(
        self,
        shared: &Arc<Shared>,
        setup: &Setup,
        first: Arc<Stream>,
        first_timeout: Duration,
    ) -> Option<Arc<Stream>> {
        let Self { hop, request, slot, opening } = self;
        let framed = request.mode == Mode::Framed;
        let live = Live::new(facts(&request, &hop, opening), [&first, &hop.stream], [first_timeout, hop.user_timeout]);
        drop(request);
        let listed = shared.sessions.list(live);
        count(&shared.counters.opened);
        let start = Box::new([first.stats().unwrap_or_default(), hop.stats]);
        let (second, lent) = (hop.stream, hop.lent);
        let ends = (
            if framed { End::framed(first.clone(), Role::Acceptor) } else { End::raw(first.clone()) },
            if lent.is_some() { End::framed(second.clone(), Role::Initiator) } else { End::raw(second.clone()) },
        );
        let mut relay = Relay::new(ends.0, ends.1, shared.pipes.clone(), setup.config.hold());
        let ended = relay.run(&listed).await;
        let now = [&first, &second].map(|stream| stream.stats().unwrap_or_default());
        let [first_now, second_now] = now;
        let record = Record::new(&listed, &ended, [first_now.since(&start[0]), second_now.since(&start[1])]);
        record.log();
        let refusal = record.refusal();
        finish(shared, &listed, ended.is_ok());
        drop((listed, slot));
        if let Err(broken) = ended {
            // Nothing but the relay may keep the connections open any longer.
            drop((first, second, lent));
            relay.reset(&refusal.message(&setup.config.name), broken.side).await;
            return None;
        }
        match lent {
            Some((pool, warm)) => pool.put_back(warm),
            None => second.disarm(),
        }
        if !framed {
            first.disarm();
            return None;
        }
        Some(first)
    }
}

fn facts(request: &Request, hop: &Hop, opening: Duration) -> Facts {
    Facts {
        session: request.session,
        from: request.peer.clone().unwrap_or_else(|| request.from.to_string()),
        origin: request.origin.to_string(),
        identity: request.identity.clone(),
        destination: request.destination.to_string(),
        visited: request.visited.join(","),
        next: hop.to.clone(),
        warm: hop.is_warm(),
        note: hop.stream.note().unwrap_or_default().to_owned(),
        opening,
    }
}

fn finish(shared: &Shared, live: &Listed, clean: bool) {
    use std::sync::atomic::Ordering::Relaxed;
    let counters = &shared.counters;
    let (up, down) = live.bytes();
    counters.bytes_up.fetch_add(up, Relaxed);
    counters.bytes_down.fetch_add(down, Relaxed);
    count(if clean { &counters.clean } else { &counters.failed });
}
