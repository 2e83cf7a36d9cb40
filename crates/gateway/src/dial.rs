//! Connects the next hop of a session, and reports what it got (P17, P18, S13, S14).

use crate::admit;
use crate::aware;
use crate::config::{Route, RulePlace};
use crate::local_acceptor::{Guard, IncomingSession, LocalAcceptor};
use crate::origin::{self, Means};
use crate::pool::{Pool, PooledConnection};
use crate::refusal::{Refusal, text, tried_by};
use crate::request::Request;
use crate::reserve::{Neighbour, Segment};
use crate::route::Next;
use crate::shared::{Setup, Shared};
use crate::slots::{self, Slot};
use phoebus_net::datagram_relay::Onward;
use phoebus_net::{DatagramRoute, Error, Profile, Stats, Stream, dial};
use phoebus_proto::endpoint::Host;
use phoebus_proto::session::message::HopReport;
use phoebus_proto::session::{Code, Mode};
use phoebus_proto::units::Span;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// A connected hop, to a peer or to the destination.
pub(crate) struct Hop {
    pub(crate) stream: Arc<Stream>,
    /// A peer's name, or an address.
    pub(crate) to: String,
    /// Its transport.
    pub(crate) transport: Box<str>,
    pub(crate) user_timeout: Duration,
    /// The hops that it shares a rate with.
    pub(crate) segment: Segment,
    /// Its rate limit in bits per second.
    pub(crate) rate: Option<u64>,
    /// Notes: what was requested and not available, and what was chosen.
    pub(crate) note: String,
    /// The kernel's statistics at the start of the session.
    pub(crate) stats: Stats,
    /// The pool that the connection belongs to, for a hop to a peer.
    pub(crate) lent: Option<(Arc<Pool>, PooledConnection)>,
    /// Number of its connections.
    pub(crate) streams: u16,
    /// Slots for those beyond the first.
    pub(crate) slots: Vec<Slot>,
    /// Where datagrams beside the session go, if the next hop takes any.
    pub(crate) onward: Option<Onward>,
    /// The rule that allows the address that a name led to.
    pub(crate) rule: Option<RulePlace>,
    /// Tells this process, as the destination, that the session is over.
    _guard: Option<Guard>,
}

/// Connects the hop of `request` to `next`, which is allowed. If the destination's name is resolved here, its addresses
/// must be allowed too.
pub(crate) async fn connect(shared: &Shared, setup: &Setup, request: &Request, next: Next<'_>) -> Result<Hop, Refusal> {
    let config = &setup.config;
    if let (Next::Direct(_), Some(inlet)) = (next, &config.inlet) {
        return here(inlet.as_ref(), request);
    }
    match next {
        Next::Peer(name) => {
            let pool = setup.peers.get(name).ok_or_else(|| Refusal::new(Code::NoRoute, "the peer is gone"))?;
            let required = request.requirements.streams.unwrap_or(1);
            // A promised bandwidth is held on one connection.
            let asked = if request.requirements.rate.is_some() { 1 } else { pool.streams().max(required) };
            let mut slots = shared.additional_connections(setup, request.source(), asked.saturating_sub(1));
            let own = slots.len() + 1;
            let connection = pool.open(request, u16::try_from(own).unwrap_or(u16::MAX)).await?;
            // A peer cannot grant more than was requested.
            let streams = usize::from(connection.granted()).min(own);
            slots.truncate(streams - 1);
            if streams < required.into() {
                let reason =
                    format!("{required} connections for each hop were asked for, and {streams} are available now");
                return Err(Refusal::at(name, Code::Limit, reason));
            }
            let fewer = (streams < asked.into()).then(|| {
                let by = if streams < own { name } else { config.name.as_str() };
                format!("{asked} connections were asked for, and {by} grants {streams}")
            });
            let notes = [fewer.unwrap_or_default(), pool.note_of(&connection)];
            let grant = connection.opened().and_then(|opened| opened.datagrams);
            let gateway = connection.stream.peer_addr().ok();
            let onward = grant.zip(gateway).map(|(grant, gateway)| {
                Onward::Gateway(DatagramRoute { to: SocketAddr::new(gateway.ip(), grant.port), grant })
            });
            Ok(Hop {
                onward,
                streams: u16::try_from(streams).unwrap_or(u16::MAX),
                slots,
                rule: None,
                _guard: None,
                stream: connection.stream.clone(),
                to: name.to_owned(),
                transport: pool.transport_of(&connection).into(),
                user_timeout: connection.user_timeout(),
                segment: Segment { profile: pool.peer.profile.name.clone(), neighbour: Neighbour::Peer(name.into()) },
                rate: None,
                note: notes.iter().filter(|note| !note.is_empty()).map(String::as_str).collect::<Vec<_>>().join("; "),
                stats: connection.stream.stats().unwrap_or_default(),
                lent: Some((pool.clone(), connection)),
            })
        }
        Next::Direct(route) => {
            let profile = route.map_or(&config.direct, |route| &route.profile);
            let (stream, addr, rule) = direct(setup, request, route, profile).await?;
            if route.is_some_and(|route| route.proxy_header) {
                origin::announce(config, request, (&stream, addr), config.limits.handshake_timeout.0).await?;
            }
            if request.is_to_aware() {
                aware::ask(&config.name, request, &stream, config.limits.handshake_timeout.0).await?;
            }
            Ok(Hop {
                onward: Some(Onward::Destination(addr)),
                note: stream.note().unwrap_or_default().to_owned(),
                stats: stream.stats().unwrap_or_default(),
                stream: Arc::new(stream),
                to: addr.to_string(),
                transport: "tcp".into(),
                user_timeout: profile.user_timeout.0,
                segment: Segment {
                    profile: profile.name.clone(),
                    neighbour: Neighbour::Host(addr.ip().to_canonical()),
                },
                rate: None,
                lent: None,
                streams: 1,
                slots: Vec::new(),
                rule,
                _guard: None,
            })
        }
    }
}

impl Hop {
    /// Whether the connection has carried a session before.
    pub(crate) fn is_warm(&self) -> bool {
        self.lent.as_ref().is_some_and(|(_, connection)| connection.sessions > 0)
    }

    /// The mode of the session on it.
    pub(crate) fn mode(&self) -> Mode {
        self.lent.as_ref().map_or(Mode::Raw, |(_, connection)| connection.mode())
    }

    /// Reports of this hop, by the gateway `name`, and of the hops behind it.
    pub(crate) fn reports<'a>(&'a self, name: &'a str) -> Vec<HopReport<'a>> {
        let own = HopReport {
            from: name,
            to: text(&self.to),
            transport: text(&self.transport),
            congestion_control: text(&self.stats.congestion_control),
            security: self.stream.security().name(),
            rtt_us: self.stats.rtt_us,
            send_buffer: self.stats.send_buffer,
            receive_buffer: self.stats.receive_buffer,
            warm: self.is_warm(),
            note: text(&self.note),
            streams: self.streams,
            rate: self.rate.unwrap_or(0),
        };
        let opened = self.lent.as_ref().and_then(|(_, connection)| connection.opened());
        let rest = opened.map(|opened| opened.hops.iter().collect::<Vec<_>>()).unwrap_or_default();
        std::iter::once(own).chain(rest).collect()
    }
}

/// Delivers the session to this process, which is its destination.
fn here(inlet: &dyn LocalAcceptor, request: &Request) -> Result<Hop, Refusal> {
    let failed =
        |error: io::Error| Refusal::at(request.destination.to_string(), Code::Refused, phoebus_net::reason(&error));
    let arrival = IncomingSession {
        session: request.session,
        destination: request.destination.clone(),
        from: request.from,
        origin: request.origin.clone(),
        visited: request.visited.clone(),
        proved: request.proved.clone(),
        principal: request.principal.clone(),
    };
    let (end, guard) = inlet.take(arrival).map_err(failed)?;
    let stream = end.into_stream().map_err(failed)?;
    Ok(Hop {
        stats: stream.stats().unwrap_or_default(),
        stream: Arc::new(stream),
        to: request.destination.to_string(),
        transport: "local".into(),
        user_timeout: Duration::MAX,
        segment: Segment { profile: Arc::default(), neighbour: Neighbour::Host(request.from.ip().to_canonical()) },
        rate: None,
        note: String::new(),
        lent: None,
        streams: 1,
        slots: Vec::new(),
        onward: None,
        rule: None,
        _guard: Some(guard),
    })
}

/// Connects to the destination. Returns its address too, and the rule that allows it, if a name led there. Names are resolved
/// here, at the last gateway.
async fn direct(
    setup: &Setup,
    request: &Request,
    route: Option<&Route>,
    profile: &Profile,
) -> Result<(Stream, SocketAddr, Option<RulePlace>), Refusal> {
    let limits = &setup.config.limits;
    let limit = limits.connect_timeout.0;
    let deadline = Instant::now() + limit;
    let destination = &request.destination;
    let means = Means::of(route, request)?;
    let connect = |addresses: Vec<SocketAddr>, limit| {
        let transport = &means.transport;
        async move { dial::connect_by(transport, &Arc::default(), &addresses, profile, limit).await }
    };
    let refused = |error: Error| match &error {
        // The fault is this gateway's, which cannot resolve the name.
        Error::Resolve { .. } => Refusal::new(error.code(), error.to_string()),
        _ => Refusal::at(destination.to_string(), error.code(), tried_by(&setup.config.name, &error)),
    };
    let name = match &destination.host {
        Host::Addr(addr) => {
            let to = (*addr, destination.port).into();
            let stream = connect(means.reachable(vec![to])?, limit).await.map_err(refused)?;
            // Instead of the unspecified address, the kernel has connected to one of this host's.
            let to = if addr.to_canonical().is_unspecified() { stream.peer_addr().unwrap_or(to) } else { to };
            return Ok((stream, to, None));
        }
        Host::Name(name) => name,
    };
    let (source, resolving) = (slots::key(request.source()), limits.resolve_timeout.0.min(limit));
    let found = setup.names.resolve(source, name, destination.port, resolving).await.map_err(refused)?;
    let allowed = admit::allowed_addresses(&setup.config, request, found)?;
    let left = deadline.saturating_duration_since(Instant::now());
    let addresses = means.reachable(allowed.iter().map(|(addr, _)| *addr).collect())?;
    let stream = match timeout(left, connect(addresses, left)).await {
        Ok(result) => result.map_err(refused)?,
        Err(_) => return Err(refused(Error::Timeout { to: destination.to_string(), limit: Span(limit) })),
    };
    let to = stream.peer_addr().map_err(|e| Refusal::new(phoebus_net::code_of(&e), phoebus_net::reason(&e)))?;
    let rule = allowed.iter().find(|(addr, _)| addr.ip().to_canonical() == to.ip().to_canonical());
    Ok((stream, to, rule.and_then(|(_, rule)| *rule)))
}
