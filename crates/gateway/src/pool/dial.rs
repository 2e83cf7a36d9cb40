//! Reaching a peer: its addresses, a connection, its greeting; and what is said when that fails.

use super::warm::mode_on;
use super::way::Chosen;
use super::{OUT_SIZE, Pool, Warm, Way, lock};
use crate::handshake::{Asking, HandshakeError, answer};
use crate::refusal::Refusal;
use crate::transports::shows_death;
use phoebus_net::host::Host;
use phoebus_net::transport::Target;
use phoebus_net::{Error, Profile, Stream, code_of, dial};
use phoebus_proto::agent::AGENT;
use phoebus_proto::endpoint::Host as HostName;
use phoebus_proto::session::initiator::State;
use phoebus_proto::session::message::{Auth, Hello};
use phoebus_proto::session::{Code, ProtocolError};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tracing::{debug, warn};

impl Pool {
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

    pub(super) async fn resolve(&self) -> Result<Vec<SocketAddr>, Error> {
        let port = self.peer.address.port;
        let found = match &self.peer.address.host {
            HostName::Addr(addr) => vec![SocketAddr::new(*addr, port)],
            HostName::Name(name) => dial::resolve(name, port, self.limits.resolving).await?,
        };
        lock(&self.addresses).clone_from(&found);
        Ok(found)
    }

    /// Connects for sessions, within `limit`.
    pub(super) async fn dial(&self, by: &Chosen, limit: Duration) -> Result<Stream, Refusal> {
        let way = self.way(by);
        let mut deaths = self.deaths();
        let reach = || self.reach(way, &by.profile, limit);
        let reached = tokio::select! {
            biased;
            // What was begun with the process that has died leads nowhere.
            _ = deaths.changed(), if !shows_death(&way.transport) => reach().await,
            reached = reach() => reached,
        };
        let stream = reached.map_err(|error| self.unreached(&error))?;
        let _ = way.has_streams.set(stream.has_true_ends());
        self.counts.dialled.fetch_add(1, Ordering::Relaxed);
        if let Some(note) = stream.note() {
            debug!(peer = self.peer.name, "{note}");
        }
        Ok(stream)
    }

    /// Connects to the peer by `way`, within `limit`.
    pub(super) async fn reach(&self, way: &Way, profile: &Profile, limit: Duration) -> Result<Stream, Error> {
        let mut addresses = lock(&self.addresses).clone();
        if addresses.is_empty() {
            addresses = self.resolve().await?;
        }
        if let Some(port) = way.port {
            addresses.iter_mut().for_each(|addr| addr.set_port(port));
        }
        let limit = limit.min(self.limits.greeting);
        match addresses[..] {
            // The greeting can go before there is an answer only where there is no other address to fall back to.
            [only] => {
                let target = Target { addr: only, name: self.target.clone(), early: true };
                way.over.connect(&target, profile, limit).await
            }
            _ => dial::connect_by(&way.over, &self.target, &addresses, profile, limit).await,
        }
    }

    pub(super) fn unreached(&self, error: &Error) -> Refusal {
        Refusal::at(&self.peer.name, error.code(), error.to_string())
    }

    /// A connection that is ready for sessions, reached within `limit`.
    pub(super) async fn greet(&self, by: &Arc<Chosen>, limit: Duration) -> Result<Warm, Refusal> {
        let hello = self.own.hello();
        let deaths = self.deaths();
        let warm = match self.greet_on(self.dial(by, limit).await?, by, &hello).await {
            // By a new connection, if it was a stream of one that gets no more, or one with a process that has died.
            Err(refusal)
                if (refusal.code == Code::AuthRequired && self.has_streams())
                    || deaths.has_changed().unwrap_or(false) =>
            {
                self.greet_on(self.dial(by, limit).await?, by, &hello).await?
            }
            greeted => greeted?,
        };
        self.survey.works(self.transport_of(&warm));
        if let Ok(stats) = warm.stream.stats() {
            self.survey.saw_stats(&stats, Instant::now());
        }
        self.look_at(&warm);
        Ok(warm)
    }

    /// Says `hello` on a new connection, and hears the peer's.
    pub(super) async fn greet_on(&self, stream: Stream, by: &Arc<Chosen>, hello: &Hello<'_>) -> Result<Warm, Refusal> {
        let asking = Asking::greet(vec![0; OUT_SIZE], Vec::new(), hello, self.auth().as_ref());
        let asking = asking.map_err(|e| self.cannot_ask(&e))?;
        let mode = mode_on(&stream, 1);
        let mut warm = Warm::new(stream, asking, mode, by.clone());
        // A beacon goes by TCP, whatever it is beside of.
        let is_hidden = !hello.beacon && !shows_death(self.transport_of(&warm));
        let (stream, since) = (warm.stream.clone(), warm.since);
        let mut heard = false;
        let answered = tokio::select! {
            biased;
            answered = answer(&stream, &mut warm.asking, &mut heard) => answered,
            () = self.is_left_behind(&stream, is_hidden, since) => Err(HandshakeError::Closed),
        };
        if let Err(error) = answered {
            warm.turned_away(&error);
            return Err(self.failed(&error));
        }
        drop(stream);
        if let Some(hello) = warm.asking.hello()
            && hello.name != self.peer.name
            // An agent knows its gateway by the name that its user has for it.
            && self.own.name != AGENT
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

    pub(super) fn refused(&self, warm: &Warm) -> Refusal {
        match (warm.asking.refused(), warm.asking.state()) {
            (Some(refused), _) => Refusal::passed_on(&refused),
            (None, State::Challenged) => {
                let reason = format!("{} wants authentication, for which nothing is configured here", self.peer.name);
                Refusal::at(&self.peer.name, Code::AuthRequired, reason)
            }
            (None, _) => Refusal::at(&self.peer.name, Code::Protocol, "the peer's answer makes no sense"),
        }
    }

    pub(super) fn auth(&self) -> Option<Auth<'_>> {
        self.own.contact.as_deref().map(|contact| Auth { mechanism: Auth::ANONYMOUS, data: contact.as_bytes() })
    }

    pub(super) fn failed(&self, error: &HandshakeError) -> Refusal {
        let code = match error {
            HandshakeError::Closed => Code::Reset,
            HandshakeError::Io(error) => code_of(error),
            HandshakeError::Protocol(_) => Code::Protocol,
        };
        let name = &self.peer.name;
        if code == Code::Draining {
            let address = &self.peer.address;
            return Refusal::at(name, code, format!("no session through {name} ({address}): it is shutting down"));
        }
        Refusal::at(name, code, format!("no session through {name} ({}): {error}", self.peer.address))
    }

    pub(super) fn cannot_ask(&self, error: &ProtocolError) -> Refusal {
        Refusal::new(Code::Internal, format!("the request cannot be passed to {}: {error}", self.peer.name))
    }

    /// Once: what the host's settings cost on the way to this peer.
    pub(super) fn look_at(&self, warm: &Warm) {
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

/// No answer.
pub(super) struct Unheard {
    pub(super) refusal: Refusal,
    /// There was no connection, or it was closed, failed or fell silent before a byte of one.
    pub(super) dead: bool,
    /// Another connection by the same way would not be heard either.
    pub(super) silent: bool,
}

impl Unheard {
    pub(super) fn dead(refusal: Refusal) -> Self {
        Self { refusal, dead: true, silent: false }
    }

    /// An answer after all, though not the one that was wanted.
    pub(super) fn heard(refusal: Refusal) -> Self {
        Self { refusal, dead: false, silent: false }
    }
}
