//! Reaching a peer: its addresses, a connection, its greeting, and the errors of each step.

use super::own_login::OwnLogin;
use super::pooled::mode_on;
use super::selection::Selection;
use super::{Pool, PooledConnection, lock};
use crate::handshake::{Asking, HandshakeError, OwnLoginError, answer};
use crate::refusal::{Refusal, tried_by};
use crate::transports::TransportOption;
use crate::transports::shows_death;
use phoebus_config::agent::AGENT;
use phoebus_net::host::Host;
use phoebus_net::transport::Target;
use phoebus_net::{Error, Profile, Stream, code_of, dial};
use phoebus_proto::endpoint::Host as HostName;
use phoebus_proto::session::Code;
use phoebus_proto::session::auth::{anonymous, scram, token};
use phoebus_proto::session::initiator::State;
use phoebus_proto::session::login::LoginError;
use phoebus_proto::session::message::Hello;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tracing::{debug, warn};

impl Pool {
    /// Whether connections from `addr` belong to the peer.
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
    pub(super) async fn dial(&self, selection: &Selection, limit: Duration) -> Result<Stream, Refusal> {
        let option = self.transport_option(selection);
        let mut deaths = self.deaths();
        let reach = || self.reach(option, &selection.profile, limit);
        let reached = tokio::select! {
            biased;
            // An attempt begun with the process that has died would fail.
            _ = deaths.changed(), if !shows_death(&option.transport) => reach().await,
            reached = reach() => reached,
        };
        let stream = reached.map_err(|error| self.unreached(&error))?;
        let _ = option.has_streams.set(stream.has_authenticated_close());
        self.counts.dialled.fetch_add(1, Ordering::Relaxed);
        if let Some(note) = stream.note() {
            debug!(peer = self.peer.name, "{note}");
        }
        Ok(stream)
    }

    /// Connects to the peer by `option`, within `limit`.
    pub(super) async fn reach(
        &self,
        option: &TransportOption,
        profile: &Profile,
        limit: Duration,
    ) -> Result<Stream, Error> {
        let mut addresses = lock(&self.addresses).clone();
        if addresses.is_empty() {
            addresses = self.resolve().await?;
        }
        if let Some(port) = option.port {
            addresses.iter_mut().for_each(|addr| addr.set_port(port));
        }
        let limit = limit.min(self.limits.greeting);
        match addresses[..] {
            // Sending the greeting early is possible only where there is no other address to fall back to.
            [only] => {
                let target = Target { addr: only, name: self.target.clone(), early: true };
                option.over.connect(&target, profile, limit).await
            }
            _ => dial::connect_by(&option.over, &self.target, &addresses, profile, limit).await,
        }
    }

    /// The refusal when the peer could not be reached.
    pub(super) fn unreached(&self, error: &Error) -> Refusal {
        // An agent is on the client's own host.
        let reason = if self.own.name == AGENT { error.to_string() } else { tried_by(&self.own.name, error) };
        Refusal::at(&self.peer.name, error.code(), reason)
    }

    /// A connection that is ready for sessions, reached within `limit`.
    pub(super) async fn greet(&self, selection: &Arc<Selection>, limit: Duration) -> Result<PooledConnection, Refusal> {
        let hello = self.own.hello();
        let deaths = self.deaths();
        let connection = match self.greet_on(self.dial(selection, limit).await?, selection, &hello).await {
            // Retry on a new connection: the old one accepts no more streams, or the process at its other end has died.
            Err(refusal)
                if (refusal.code == Code::AuthRequired && self.has_streams())
                    || deaths.has_changed().unwrap_or(false) =>
            {
                self.greet_on(self.dial(selection, limit).await?, selection, &hello).await?
            }
            greeted => greeted?,
        };
        self.metrics.record_success(self.transport_of(&connection));
        if let Ok(stats) = connection.stream.stats() {
            self.metrics.record_stats(&stats, Instant::now());
        }
        self.look_at(&connection);
        Ok(connection)
    }

    /// Sends `hello` on a new connection, and receives the peer's.
    pub(super) async fn greet_on(
        &self,
        stream: Stream,
        selection: &Arc<Selection>,
        hello: &Hello<'_>,
    ) -> Result<PooledConnection, Refusal> {
        // On a beacon nothing is requested, not even by AUTH.
        let mut login = match hello.beacon {
            true => OwnLogin::none(),
            false => OwnLogin::on(&stream, &self.own).await.map_err(|e| self.cannot_log_in(&e))?,
        };
        let asking = login.greet(hello).map_err(|e| self.cannot_ask(&e))?;
        let mode = mode_on(&stream, 1);
        let mut connection = PooledConnection::new(stream, asking, mode, selection.clone());
        connection.logins = self.logins.load(Ordering::Relaxed);
        // A beacon uses TCP, whatever the hop beside it uses.
        let is_hidden = !hello.beacon && !shows_death(self.transport_of(&connection));
        let (stream, since) = (connection.stream.clone(), connection.since);
        let mut heard = false;
        let answered = tokio::select! {
            biased;
            answered = authenticated(&stream, (&mut connection.asking, &mut login), &mut heard) => answered,
            () = self.peer_process_died(&stream, is_hidden, since) => Err(HandshakeError::Closed),
        };
        if let Err(error) = answered {
            connection.retire_if_unauthenticated(&error);
            return Err(self.failed(&error));
        }
        drop(stream);
        if let Some(hello) = connection.asking.hello()
            && hello.name != self.peer.name
            // An agent knows its gateway by the name that its user gave.
            && self.own.name != AGENT
            && !self.misnamed.swap(true, Ordering::Relaxed)
        {
            let calls = hello.name;
            warn!(peer = self.peer.name, "it calls itself \"{calls}\"; where names differ, loops are found late");
        }
        match connection.asking.state() {
            State::Ready => Ok(connection),
            _ => Err(self.refused(&connection)),
        }
    }

    pub(super) fn refused(&self, connection: &PooledConnection) -> Refusal {
        match (connection.asking.refused(), connection.asking.state()) {
            (Some(refused), _) => Refusal::passed_on(&refused),
            (None, State::Challenged) => {
                let wanted = connection.asking.challenge();
                let wanted: Vec<&str> = wanted.iter().flat_map(|challenge| challenge.mechanisms.iter()).collect();
                let ways = wanted.iter().filter_map(|name| match *name {
                    scram::PLUS | scram::PLAIN => Some("a password (phoebus login GATEWAY --user NAME keeps one)"),
                    token::NAME => Some("a bearer token (in the file that BEARER_TOKEN_FILE names)"),
                    anonymous::NAME => Some("an e-mail address (PHOEBUS_USER)"),
                    _ => None,
                });
                let ways: Vec<&str> = ways.collect();
                let reason = match &self.own.logins {
                    Some((_, gateway)) if !ways.is_empty() => {
                        let ways = ways.join(", or ").replace("GATEWAY", &gateway.to_string());
                        format!("{gateway} wants authentication by {ways}")
                    }
                    _ => format!("{} wants authentication, for which nothing is configured here", self.peer.name),
                };
                Refusal::at(&self.peer.name, Code::AuthRequired, reason)
            }
            (None, _) => Refusal::at(&self.peer.name, Code::Protocol, "the peer's answer makes no sense"),
        }
    }

    /// The refusal where this end cannot even begin to authenticate.
    pub(super) fn cannot_log_in(&self, error: &io::Error) -> Refusal {
        Refusal::new(Code::AuthFailed, format!("cannot log in at {}: {}", self.peer.name, phoebus_net::reason(error)))
    }

    /// The refusal where authentication has failed.
    pub(super) fn not_authenticated(&self, error: &OwnLoginError) -> Refusal {
        let code = match error {
            OwnLoginError::Exchange(LoginError::Protocol(_)) => Code::Protocol,
            OwnLoginError::Exchange(LoginError::Auth(_)) | OwnLoginError::Bearer(_) => Code::AuthFailed,
        };
        Refusal::at(
            &self.peer.name,
            code,
            format!("no session through {} ({}): {error}", self.peer.name, self.peer.address),
        )
    }

    pub(super) fn failed(&self, error: &HandshakeError) -> Refusal {
        let code = match error {
            HandshakeError::Closed => Code::Reset,
            HandshakeError::Io(error) => code_of(error),
            HandshakeError::Protocol(_) | HandshakeError::Login(OwnLoginError::Exchange(LoginError::Protocol(_))) => {
                Code::Protocol
            }
            HandshakeError::Login(_) => Code::AuthFailed,
        };
        let name = &self.peer.name;
        if code == Code::Draining {
            let address = &self.peer.address;
            return Refusal::at(name, code, format!("no session through {name} ({address}): it is shutting down"));
        }
        Refusal::at(name, code, format!("no session through {name} ({}): {error}", self.peer.address))
    }

    pub(super) fn cannot_ask(&self, error: &dyn std::error::Error) -> Refusal {
        Refusal::new(Code::Internal, format!("the request cannot be passed to {}: {error}", self.peer.name))
    }

    /// Logs once what the host's settings cost on the path to this peer.
    pub(super) fn look_at(&self, connection: &PooledConnection) {
        if self.advised.swap(true, Ordering::Relaxed) {
            return;
        }
        if let Ok(stats) = connection.stream.stats() {
            for advice in Host::read().advice_for_peer(&self.peer.profile, &stats) {
                warn!(peer = self.peer.name, "{advice}");
            }
        }
        if let Some(note) = connection.stream.note() {
            warn!(peer = self.peer.name, "{note}");
        }
    }
}

/// A request without an accepted answer.
pub(super) struct Unheard {
    pub(super) refusal: Refusal,
    /// There was no connection, or it was closed, failed or fell silent before the first byte of an answer.
    pub(super) dead: bool,
    /// Another connection over the same transport would be silent too.
    pub(super) silent: bool,
}

impl Unheard {
    pub(super) fn dead(refusal: Refusal) -> Self {
        Self { refusal, dead: true, silent: false }
    }

    /// An answer came, though not the wanted one.
    pub(super) fn heard(refusal: Refusal) -> Self {
        Self { refusal, dead: false, silent: false }
    }
}

/// Greets the peer, and authenticates where that takes more than the greeting.
async fn authenticated(
    stream: &Stream,
    (asking, login): (&mut Asking, &mut OwnLogin),
    heard: &mut bool,
) -> Result<(), HandshakeError> {
    loop {
        answer(stream, asking, heard).await?;
        if !login.go_on(asking, None)? {
            return Ok(());
        }
    }
}
