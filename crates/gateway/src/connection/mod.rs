//! One accepted connection: its handshake, its sessions one after another, its end.
//!
//! Only a peer, or a client that is kept, may keep a connection idle for longer than the handshake time-out.

mod answer;
mod authenticate;
mod close;
mod reuse;

use crate::audit::{Claimed, Line};
use crate::handshake::{HandshakeError, greeting, next_request};
use crate::handshake_slots::HandshakeSlot;
use crate::listener_settings::ListenerSettings;
use crate::mechanisms::Exchange;
use crate::refusal::Refusal;
use crate::request::Arrival;
use crate::session::{self, Opening, Ready};
use crate::shared::{Phase, Setup, Shared};
use crate::slots::Slot;
use crate::workers::WorkerSlot;
use authenticate::{Asked, UserLogin};
use close::CloseReason;
use phoebus_net::Stream;
use phoebus_proto::entry::Entry;
use phoebus_proto::session::Mode;
use phoebus_proto::session::acceptor::{Acceptor, State};
use reuse::ReusableConnection;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::timeout_at;
use tracing::info;

/// Refusals and challenges before a connection is closed. Programs retry, but not for ever.
const REFUSALS_MAX: u32 = 32;
/// Life of a beacon: keep-alive probes detect when its sender's host is gone.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// A connection after its transport's handshake.
pub(crate) struct Accepted {
    pub(crate) stream: Stream,
    pub(crate) from: SocketAddr,
    pub(crate) settings: Arc<ListenerSettings>,
    /// Held for the life of the connection.
    pub(crate) counted: Slot,
    /// The worker that serves it.
    pub(crate) place: WorkerSlot,
    /// Held until the first request.
    pub(crate) slot: HandshakeSlot,
    /// Deadline of the first request.
    pub(crate) deadline: Instant,
}

/// Serves a connection until it ends. `first` is its first byte, if that was read.
pub(crate) async fn serve(shared: Arc<Shared>, accepted: Accepted, first: Option<u8>) {
    let Accepted { stream, from, settings, counted, place, slot, deadline } = accepted;
    if !stream.is_current() {
        return close::turn_away(&stream, from);
    }
    let setup = shared.setup();
    let mut acceptor = Acceptor::new(&setup.config.name).with_instance(setup.instance);
    drop(setup);
    let begun = first.map_or(Ok(()), |first| acceptor.begin(first));
    // A stream of a connection on which another has authenticated.
    let login = stream.connection_note().and_then(|note| note.get::<UserLogin>());
    let login = login.map(|login| Box::new((*login).clone()));
    let connection = Connection {
        acceptor,
        shared,
        stream: Arc::new(stream),
        from,
        settings,
        counted,
        place: Some(place),
        slot: Some(slot),
        kept: None,
        deadline,
        login,
        exchange: None,
        tried: None,
        left: REFUSALS_MAX,
        beacon: 0,
    };
    let connection = Box::new(connection);
    match begun {
        Ok(()) => connection.serve().await,
        Err(error) => Box::pin(connection.part(HandshakeError::from(error).into())).await,
    }
}

struct Connection {
    shared: Arc<Shared>,
    stream: Arc<Stream>,
    acceptor: Acceptor,
    from: SocketAddr,
    settings: Arc<ListenerSettings>,
    /// Held for the life of the connection.
    counted: Slot,
    /// Held while it is active.
    place: Option<WorkerSlot>,
    /// Held before the first request, and after a refused one.
    slot: Option<HandshakeSlot>,
    /// Held by a client whose connection stays between sessions.
    kept: Option<Slot>,
    /// Deadline of a stranger's request.
    deadline: Instant,
    /// Who has authenticated by AUTH.
    login: Option<Box<UserLogin>>,
    /// An exchange that has begun.
    exchange: Option<Exchange>,
    /// The mechanism and the user of a login that has failed, until it is written to the audit.
    tried: Option<Box<(&'static str, String)>>,
    /// Remaining refusals and challenges.
    left: u32,
    /// Number of the peer's beacon. 0: no beacon.
    beacon: u64,
}

impl Connection {
    /// Each stage is boxed, so that a session reserves no memory for earlier ones.
    async fn serve(mut self: Box<Self>) {
        loop {
            if let Err(parting) = Box::pin(self.next_request()).await {
                self.heed(&parting);
                return Box::pin(self.part(parting)).await;
            }
            if !self.stream.is_current() {
                return close::turn_away(&self.stream, self.from);
            }
            let setup = self.shared.setup();
            let refusal = match self.asked(&setup) {
                Asked::Again => None,
                Asked::Refuse(refusal) => {
                    let (code, reason) = (refusal.code.number(), &refusal.reason);
                    info!(target: session::REFUSED, from = %self.from, code, reason, "request refused");
                    self.audit(&setup, &refusal);
                    self.tried = None;
                    Some(refusal)
                }
                Asked::Session(_) if self.place.is_none() => match self.shared.data.workers.place() {
                    here if here.is_here() => {
                        self.place = Some(here);
                        continue;
                    }
                    there => return self.move_to(there),
                },
                Asked::Session(request) => {
                    // From here on it counts as a session, and not as a pending handshake.
                    self.slot = None;
                    let shared = self.shared.clone();
                    match Box::pin(session::open(&shared, &setup, unboxed(request), &mut *self)).await {
                        Opening::Open(ready) => match Box::pin(self.carry(setup, ready)).await {
                            Some(again) => self = again,
                            None => return,
                        },
                        Opening::Refused => {}
                        Opening::Ended => return Box::pin(self.part(CloseReason::Draining)).await,
                        Opening::Gone => return,
                    }
                    continue;
                }
                Asked::Join(session, permit) => {
                    self.slot = None;
                    match Box::pin(self.join(setup, session, permit)).await {
                        Some(again) => self = again,
                        None => return,
                    }
                    continue;
                }
            };
            if !Box::pin(self.answer(&setup, refusal)).await {
                return Box::pin(self.part(CloseReason::Draining)).await;
            }
        }
    }

    /// Writes to the audit that this connection may not ask for a session.
    fn audit(&self, setup: &Setup, refusal: &Refusal) {
        if self.shared.audit.is_on() {
            let arrival = Arrival::of(&self.settings, &self.stream);
            let (method, user) = self.tried.as_deref().map_or(("", ""), |(method, user)| (method, user));
            let at = (self.from.ip(), Entry::Session, &arrival);
            let line = Line::connection(&setup.config.name, at, Claimed::new(method, user), refusal);
            self.shared.audit.add_of_stranger(self.from.ip(), &line);
        }
    }

    /// Moves to a less busy worker.
    fn move_to(mut self: Box<Self>, place: WorkerSlot) {
        WorkerSlot::spawn(place, move |place| async move {
            self.place = Some(place);
            // While status reads the stream, it cannot be moved. It is then served across threads, which is only
            // slower.
            self.stream = match Arc::try_unwrap(self.stream).map(Stream::move_to_runtime) {
                Ok(Ok(stream)) => Arc::new(stream),
                Ok(Err(_)) => return,
                Err(shared) => shared,
            };
            self.serve().await;
        });
    }

    /// Waits for a request: of a stranger, and of anyone before the greeting, until the deadline; of a peer, and of a
    /// client that may stay, longer.
    async fn next_request(&mut self) -> Result<(), CloseReason> {
        let (shared, stream) = (self.shared.clone(), self.stream.clone());
        let request = async {
            let late = |_| CloseReason::Late;
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
                // A peer opens connections ahead of need, and keeps them between sessions.
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
            () = shared.reached(Phase::Draining) => Err(CloseReason::Draining),
            () = stream.lapsed() => Err(CloseReason::Lapsed),
        }
    }

    /// Carries the session. Returns the connection if it may carry another.
    async fn carry(self: Box<Self>, setup: Arc<Setup>, ready: Box<Ready>) -> Option<Box<Self>> {
        let Self { shared, stream, acceptor, from, settings, counted, kept, place, login, .. } = unboxed(self);
        // State for further sessions is dropped for a raw session, which may be idle for hours.
        let next = (ready.mode == Mode::Framed).then(|| Box::new((acceptor, login)));
        let stream = ready.carry(&shared, &setup, stream).await?;
        drop(place);
        let (acceptor, login) = *next?;
        ReusableConnection { shared, acceptor, from, settings, counted, kept, login }.again(&setup, stream)
    }
}

/// The content of `boxed`, whose memory is freed at once. A box whose content is moved out by `*boxed` keeps its memory
/// until the end of the scope, which in an open session may be hours away.
#[expect(clippy::boxed_local, reason = "the box is what is freed")]
fn unboxed<T>(boxed: Box<T>) -> T {
    *boxed
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
        // Thousands of sessions may be idle, so growth here is multiplied.
        assert!(size(Connection::serve) <= 1024, "{} bytes", size(Connection::serve));
        assert!(size(carry) <= 1536, "{} bytes", size(carry));
    }
}
