//! One accepted connection: its handshake, its sessions one after another, its end.
//!
//! A stranger costs one task, one descriptor and a few hundred bytes, for as long as the handshake time-out and within the
//! bounds on pending handshakes. Only a peer may keep a connection idle for longer.

mod again;
mod parting;

use crate::admit;
use crate::bundle::{Owner, Seat};
use crate::caller::Caller;
use crate::config::{Auth as WantedAuth, Config, Listen};
use crate::counters::count;
use crate::handshake::{HandshakeError, greeting, next_request, send_outgoing, send_what_fits};
use crate::quota::{Full, Slot};
use crate::refusal::Refusal;
use crate::request::Request;
use crate::session::{self, Ready};
use crate::shared::{Phase, Setup, Shared};
use crate::workers::Place;
use again::Standing;
use parting::Parting;
use phoebus_net::transport::{Change, Pending, Security};
use phoebus_net::{Stream, reason};
use phoebus_proto::session::acceptor::{self, Acceptor, State};
use phoebus_proto::session::message::{Auth, Challenge, Opened};
use phoebus_proto::session::{Code, List, Mode, ProtocolError, SessionId};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::yield_now;
use tokio::time::{timeout, timeout_at};
use tracing::debug;

/// What a listener demands of its connections.
#[derive(Debug)]
pub(crate) struct Terms {
    /// What carries them.
    pub(crate) transport: Box<str>,
    pub(crate) security: Security,
    pub(crate) auth: WantedAuth,
    pub(crate) user_timeout: Duration,
    /// The name of their profile.
    pub(crate) profile: Arc<str>,
    /// Buffers of its connections, to send and to receive, where the memory of a session is bounded.
    buffers: Option<[u64; 2]>,
}

impl Terms {
    pub(crate) fn of(listen: &Listen, config: &Config) -> Arc<Self> {
        let profile = &listen.profile;
        let buffers = profile.send_buffer.bytes().zip(profile.receive_buffer.bytes());
        Arc::new(Self {
            buffers: buffers.filter(|_| config.buffer().is_some()).map(|(send, receive)| [send, receive]),
            transport: listen.transport.as_str().into(),
            security: listen.security,
            auth: listen.auth,
            user_timeout: listen.profile.user_timeout.0,
            profile: listen.profile.name.clone(),
        })
    }

    /// Leaves `stream`, which is to be one of `streams`, its share of the memory of a session; false where that is bounded and
    /// cannot be shared. A connection of a bundle is hardly ever used alone afterwards, and keeps its share.
    pub(crate) fn share_buffers(&self, stream: &Stream, streams: u16) -> bool {
        let Some([send, receive]) = self.buffers else { return true };
        let share = |size: u64| size / u64::from(streams.max(1));
        let changes = [Change::SendBuffer(share(send)), Change::ReceiveBuffer(share(receive))];
        changes.into_iter().all(|change| stream.set(change).is_ok())
    }
}

/// Refusals and challenges on one connection before it is closed: programs try again, they do not try for ever.
const PATIENCE: u32 = 32;
/// How long a beacon is kept: keepalive finds out when its sender's host is gone.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);
/// How long the answer to a greeting may wait for the answer to the request that came with it.
const TOGETHER: Duration = Duration::from_millis(1);

/// Serves `accepted` until it ends, if there are not too many like it.
pub(crate) fn serve(shared: &Arc<Shared>, accepted: Box<dyn Pending>, from: SocketAddr, terms: Arc<Terms>) {
    count(&shared.counters.connections);
    let setup = shared.setup();
    let slot = match greeting_slot(shared, &setup, from) {
        Ok(slot) => slot,
        Err(full) => {
            count(&shared.counters.handshakes_shed);
            let limit = if full == Full::Total { "handshakes" } else { "handshakes_per_source" };
            debug!(%from, "turned away: limits.{limit} is reached");
            return;
        }
    };
    let Ok(counted) = shared.connected.take(from.ip(), u32::MAX, u32::MAX) else { return };
    let place = shared.workers.place();
    let (shared, deadline) = (shared.clone(), Instant::now() + setup.config.limits.handshake_timeout.0);
    // The poller that will watch it is that of the thread which serves it.
    let start = move |place| async move {
        let stream = match timeout_at(deadline.into(), accepted.handshake()).await {
            Ok(Ok(stream)) => stream,
            failed => {
                count(&shared.counters.handshakes_failed);
                let why = failed.map_or_else(|_| "nothing came in time".to_owned(), |result| said(result.err()));
                debug!(%from, transport = &*terms.transport, "no connection: {why}");
                return;
            }
        };
        if !stream.is_current() {
            return turn_away(&stream, from);
        }
        let connection = Connection {
            acceptor: Acceptor::new(&shared.setup().config.name).with_instance(shared.setup().instance),
            shared,
            stream: Arc::new(stream),
            from,
            terms,
            counted,
            place: Some(place),
            slot: Some(slot),
            kept: None,
            deadline,
            identity: String::new(),
            authenticated: false,
            left: PATIENCE,
            beacon: 0,
        };
        Box::new(connection).serve().await;
    };
    Place::spawn(place, start);
}

/// Has `stream` end unheard, so that whoever asks does so on a connection that proves anew who it is (`docs/protocol/session.md` §6.5).
fn turn_away(stream: &Stream, from: SocketAddr) {
    debug!(%from, "certificates were replaced or have expired since this connection was made");
    stream.blame(Code::AuthRequired);
}

fn said(error: Option<std::io::Error>) -> String {
    error.as_ref().map(reason).unwrap_or_default()
}

/// The right to be a connection that has asked for nothing yet. Peers open many, and are not counted one by one.
fn greeting_slot(shared: &Shared, setup: &Setup, from: SocketAddr) -> Result<Slot, Full> {
    let limits = &setup.config.limits;
    let peer = setup.peers.values().any(|pool| pool.is_at(from.ip()));
    let per_source = if peer { u32::MAX } else { limits.handshakes_per_source.get() };
    shared.greeting.take(from.ip(), limits.handshakes.get(), per_source)
}

struct Connection {
    shared: Arc<Shared>,
    stream: Arc<Stream>,
    acceptor: Acceptor,
    from: SocketAddr,
    terms: Arc<Terms>,
    /// As long as it lives.
    counted: Slot,
    /// While it has something to do.
    place: Option<Place>,
    /// Held while nothing was asked for, or what was asked for was refused.
    slot: Option<Slot>,
    /// Held by a client whose connection is kept between sessions.
    kept: Option<Slot>,
    /// Until when a stranger must have asked for something.
    deadline: Instant,
    /// The e-mail address of AUTH.
    identity: String,
    authenticated: bool,
    /// Refusals and challenges that it may still get.
    left: u32,
    /// Which one of the peer's beacons it is; 0 as long as it is none.
    beacon: u64,
}

/// What was asked, decided as far as it can be at once.
enum Asked {
    /// A credential was taken, or is wanted.
    Again,
    Session(Box<Request>),
    /// To be one more connection of a session.
    Join(SessionId, Seat),
    Refuse(Refusal),
}

impl Connection {
    /// Every stage is boxed, so that a session carries no room for the stages before it.
    async fn serve(mut self: Box<Self>) {
        loop {
            if let Err(parting) = Box::pin(self.next_request()).await {
                self.heed(&parting);
                return Box::pin(self.part(parting)).await;
            }
            if !self.stream.is_current() {
                return turn_away(&self.stream, self.from);
            }
            let setup = self.shared.setup();
            let refusal = match self.asked(&setup) {
                Asked::Again => None,
                Asked::Refuse(refusal) => Some(refusal),
                Asked::Session(_) if self.place.is_none() => match self.shared.workers.place() {
                    here if here.is_here() => {
                        self.place = Some(here);
                        continue;
                    }
                    there => return self.move_to(there),
                },
                Asked::Session(request) => {
                    // It is no slow stranger, and counted as a session from here on.
                    self.slot = None;
                    match Box::pin(self.prepare(&setup, *request)).await {
                        Some(Err(refusal)) => Some(refusal),
                        Some(Ok(ready)) => {
                            if Box::pin(self.grant(&setup, &ready)).await.is_err() {
                                return;
                            }
                            match Box::pin(self.carry(setup, ready)).await {
                                Some(again) => self = again,
                                None => return,
                            }
                            continue;
                        }
                        None => return,
                    }
                }
                Asked::Join(session, seat) => {
                    self.slot = None;
                    match Box::pin(self.join(setup, session, seat)).await {
                        Some(again) => self = again,
                        None => return,
                    }
                    continue;
                }
            };
            if !Box::pin(self.answer(&setup, refusal)).await {
                return Box::pin(self.part(Parting::Draining)).await;
            }
        }
    }

    /// Answers what has not become a session, and counts it. False when the connection ends with that answer.
    async fn answer(&mut self, setup: &Setup, refusal: Option<Refusal>) -> bool {
        self.left = self.left.saturating_sub(1);
        // A stream that others share a connection with ends with its refusal, and is not counted any longer than it lasts.
        let spent = refusal.is_some() && self.stream.has_true_ends();
        if spent {
            self.slot = None;
        }
        // Before anything is waited for: a connection without a slot is none that is counted.
        let may_stay = !spent && self.wait_again(setup) && self.left > 0;
        // An AUTH that was accepted has no answer of its own.
        let has_answer = refusal.is_some() || self.acceptor.state() == State::Challenged;
        if let Some(refusal) = refusal
            && self.refuse(setup, &refusal).is_err()
        {
            return false;
        }
        if may_stay && has_answer && self.send(setup).await.is_err() {
            return false;
        }
        // Whoever has more to ask for at once waits for everybody else's turn.
        yield_now().await;
        may_stay
    }

    /// Goes on at another place, where less is going on.
    fn move_to(mut self: Box<Self>, place: Place) {
        Place::spawn(place, move |place| async move {
            self.place = Some(place);
            // Status may be looking at the stream; then it is served across threads, which is only slower.
            self.stream = match Arc::try_unwrap(self.stream).map(Stream::rehome) {
                Ok(Ok(stream)) => Arc::new(stream),
                Ok(Err(_)) => return,
                Err(shared) => shared,
            };
            self.serve().await;
        });
    }

    /// Waits until something is asked for: a stranger, and anyone before its greeting, until the deadline; a peer, and a
    /// client that is kept, longer.
    async fn next_request(&mut self) -> Result<(), Parting> {
        let (shared, stream) = (self.shared.clone(), self.stream.clone());
        let request = async {
            let late = |_| Parting::Late;
            timeout_at(self.deadline.into(), greeting(&self.stream, &mut self.acceptor)).await.map_err(late)??;
            let setup = self.shared.setup();
            let peer = self.caller(&setup).peer();
            if let Some(pool) = peer.filter(|_| self.acceptor.peer_is_beacon()) {
                self.beacon = pool.shows_itself(self.acceptor.peer_instance(), self.stream.security(), false);
            }
            let is_peer = peer.is_some();
            if !is_peer && self.kept.is_none() && self.acceptor.state() != State::Asked {
                self.kept = self.keep(&setup);
            }
            if is_peer || self.kept.is_some() {
                // It opens connections ahead of need, and keeps them between sessions.
                self.slot = None;
                self.place = self.place.take().filter(|_| self.acceptor.state() == State::Asked);
                let idle =
                    if self.acceptor.peer_is_beacon() { FOREVER } else { setup.config.limits.peer_idle_timeout.0 };
                self.deadline = Instant::now() + idle;
            }
            drop(setup);
            timeout_at(self.deadline.into(), next_request(&self.stream, &mut self.acceptor)).await.map_err(late)??;
            Ok(())
        };
        tokio::select! {
            biased;
            result = request => result,
            () = shared.reached(Phase::Draining) => Err(Parting::Draining),
            () = stream.lapsed() => Err(Parting::Lapsed),
        }
    }

    /// The right of a client to stay between sessions: its connection is protected, some rule is for it, and there is room.
    fn keep(&self, setup: &Setup) -> Option<Slot> {
        let (limits, addr) = (&setup.config.limits, self.from.ip());
        let stranger = matches!(self.caller(setup), Caller::Stranger);
        let protected = self.stream.security() > Security::None && self.stream.security() >= self.terms.security;
        let welcome = stranger && protected && admit::may_ask(&setup.config, addr, self.proved());
        let slot = || self.shared.clients.take(addr, limits.clients, limits.clients_per_source).ok();
        if welcome { slot() } else { None }
    }

    /// The names that the other end's certificate is for.
    fn proved(&self) -> &[String] {
        self.stream.identity().map_or(&[], |identity| &identity.names)
    }

    fn caller<'a>(&self, setup: &'a Setup) -> Caller<'a> {
        Caller::of(setup, self.acceptor.peer_name(), self.from.ip(), &self.stream)
    }

    /// What is known of who asks: the name of the certificate, or else the address that was given.
    fn identity(&self) -> &str {
        self.proved().first().map_or(&self.identity, String::as_str)
    }

    fn asked(&mut self, setup: &Setup) -> Asked {
        let request = match self.acceptor.request() {
            Some(request) => request,
            None => return Asked::Refuse(Refusal::new(Code::Internal, "nothing was asked")),
        };
        let caller = self.caller(setup);
        if let Some(refusal) = caller.refusal(self.terms.security, &self.stream) {
            return Asked::Refuse(refusal);
        }
        match request {
            _ if self.acceptor.peer_is_beacon() => {
                Asked::Refuse(Refusal::new(Code::Protocol, "nothing can be asked for on a beacon"))
            }
            acceptor::Request::Auth(Auth { mechanism: Auth::AGENT, data }) => match self.terms.auth {
                WantedAuth::Secret(secret) if secret.is(data) => {
                    self.authenticated = true;
                    self.acceptor.accept_auth();
                    Asked::Again
                }
                _ => Asked::Refuse(Refusal::new(Code::AuthFailed, "that is not the secret of this agent")),
            },
            // A secret is what it is, and no address stands in for it.
            acceptor::Request::Auth(_) if matches!(self.terms.auth, WantedAuth::Secret(_)) => self.challenge(),
            acceptor::Request::Auth(Auth { mechanism: Auth::ANONYMOUS, data }) => match email(data) {
                Some(address) => {
                    self.identity = address.to_owned();
                    self.authenticated = true;
                    self.acceptor.accept_auth();
                    Asked::Again
                }
                None => Asked::Refuse(Refusal::new(Code::AuthFailed, "anonymous sessions need an e-mail address")),
            },
            acceptor::Request::Auth(_) => self.challenge(),
            acceptor::Request::Open(_) | acceptor::Request::Attach(_) | acceptor::Request::Unsupported(_)
                if self.terms.auth != WantedAuth::None && !self.authenticated =>
            {
                self.challenge()
            }
            acceptor::Request::Open(open) => {
                let peer = caller.peer().map(|pool| pool.peer.name.as_str());
                let proved = self.proved().to_vec();
                let instance = if peer.is_some() { 0 } else { self.acceptor.peer_instance() };
                Asked::Session(Box::new(Request {
                    proved,
                    instance,
                    ..Request::new(&open, self.from, peer, self.identity())
                }))
            }
            acceptor::Request::Unsupported(unknown) => {
                Asked::Refuse(Refusal::new(Code::Feature, ProtocolError::Feature(unknown).to_string()))
            }
            acceptor::Request::Attach(attach) => {
                let peer = caller.peer().map(|pool| pool.peer.name.as_str());
                let owner = Owner::of(peer, self.from, self.identity());
                match self.shared.bundles.claim(&attach, &owner) {
                    Ok(seat) => Asked::Join(attach.session, seat),
                    Err(refusal) => Asked::Refuse(refusal),
                }
            }
        }
    }

    fn challenge(&mut self) -> Asked {
        let wanted = [if let WantedAuth::Secret(_) = self.terms.auth { Auth::AGENT } else { Auth::ANONYMOUS }];
        let challenge = Challenge { mechanisms: List::new(&wanted), data: &[] };
        match self.acceptor.challenge(&challenge) {
            Ok(()) => Asked::Again,
            Err(error) => Asked::Refuse(Refusal::new(Code::Internal, error.to_string())),
        }
    }

    /// Connects the next hop, unless who asked goes away or the gateway ends meanwhile.
    async fn prepare(&mut self, setup: &Setup, request: Request) -> Option<Result<Box<Ready>, Refusal>> {
        let Self { shared, stream, acceptor, .. } = self;
        let mut prepared = pin!(session::prepare(shared, setup, request, stream, &self.terms));
        // On a short path the answer to the greeting goes with the answer to the request.
        if let Ok(result) = timeout(TOGETHER, &mut prepared).await {
            return Some(result);
        }
        send_what_fits(stream, acceptor);
        tokio::select! {
            result = prepared => Some(result),
            _ = stream.failed() => None,
            () = shared.reached(Phase::Ending) => {
                Some(Err(Refusal::new(Code::Draining, "the gateway has shut down")))
            }
        }
    }

    /// Tells whoever asked that the session is open.
    async fn grant(&mut self, setup: &Setup, ready: &Ready) -> Result<(), HandshakeError> {
        let reports = ready.hop.reports(&setup.config.name);
        let mut opened = Opened::new(ready.session(), ready.mode, List::new(&reports));
        if let Some(offer) = &ready.offer {
            (opened.streams, opened.token) = (offer.streams, &offer.token);
        }
        self.acceptor.opened(&opened)?;
        self.stream.widen();
        self.send(setup).await?;
        // What follows is the stream's.
        Ok(self.stream.unprotect()?)
    }

    /// Carries the session. Returns the connection, if it may carry another.
    async fn carry(self: Box<Self>, setup: Arc<Setup>, ready: Box<Ready>) -> Option<Box<Self>> {
        let Self { shared, stream, acceptor, from, terms, counted, kept, place, identity, authenticated, .. } = *self;
        // What only another session would need is not kept through a raw one, which may be idle for hours.
        let next = (ready.mode == Mode::Framed).then(|| Box::new((acceptor, identity)));
        let stream = ready.carry(&shared, &setup, stream).await?;
        drop(place);
        let (acceptor, identity) = *next?;
        Standing { shared, acceptor, from, terms, counted, kept, identity, authenticated }.again(&setup, stream)
    }

    /// Says no, as soon as it is sent.
    fn refuse(&mut self, setup: &Setup, refusal: &Refusal) -> Result<(), ProtocolError> {
        self.shared.counters.refused(refusal.code);
        debug!(from = %self.from, code = refusal.code.number(), hop = refusal.hop, "refused: {}", refusal.reason);
        self.acceptor.refuse(&refusal.message(&setup.config.name))
    }

    /// After a refusal it is a stranger again, if there is room for one.
    fn wait_again(&mut self, setup: &Setup) -> bool {
        if self.slot.is_none() {
            self.slot = greeting_slot(&self.shared, setup, self.from).ok();
            self.deadline = Instant::now() + setup.config.limits.handshake_timeout.0;
        }
        self.slot.is_some()
    }

    async fn send(&mut self, setup: &Setup) -> Result<(), HandshakeError> {
        let limit = setup.config.limits.handshake_timeout.0;
        match timeout(limit, send_outgoing(&self.stream, &mut self.acceptor)).await {
            Ok(sent) => Ok(sent?),
            Err(_) => Err(HandshakeError::Closed),
        }
    }
}

/// An e-mail address, or at least something like one (P26): it goes to the log.
fn email(data: &[u8]) -> Option<&str> {
    let address = std::str::from_utf8(data).ok()?;
    let (local, domain) = address.rsplit_once('@')?;
    let plain = !address.chars().any(|c| c.is_control() || c.is_whitespace());
    (plain && !local.is_empty() && !domain.is_empty() && address.len() <= 254).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size<F: Future>(_: impl FnOnce(Box<Connection>) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn an_open_session_is_a_small_task() {
        let carry = |connection: Box<Connection>| async move {
            let (setup, ready) = std::future::pending().await;
            connection.carry(setup, ready).await
        };
        // Thousands of them are idle at a time: what grows here is multiplied.
        assert!(size(Connection::serve) <= 1024, "{} bytes", size(Connection::serve));
        assert!(size(carry) <= 1536, "{} bytes", size(carry));
    }

    #[test]
    fn anonymous_means_an_address() {
        assert_eq!(email(b"user@example.org"), Some("user@example.org"));
        for text in ["", "user", "@example.org", "user@", "a b@c", "a@b\n", &format!("{}@b", "a".repeat(300))] {
            assert_eq!(email(text.as_bytes()), None, "{text}");
        }
        assert_eq!(email(&[0xff, b'@', b'x']), None);
    }
}
