//! A program that comes by SOCKS or HTTP: who it is, what it asks for, and the answer.
//!
//! It costs what a stranger costs until its request is complete: a slot among the pending handshakes, and some kilobytes until the
//! deadline. The session is raw, on the program's own connection. No byte beyond the request is read before it is open.

use super::access::{access, path_for};
use crate::audit::{Claimed, Line};
use crate::config::{Grid, Mechanism};
use crate::connection::Accepted;
use crate::counters::count;
use crate::handshake_slots::HandshakeSlot;
use crate::listener_settings::ListenerSettings;
use crate::passwords::Claim;
use crate::refusal::Refusal;
use crate::request::{Arrival, Request};
use crate::session::{self, Opening, REFUSED, Ready, WayIn};
use crate::shared::{Phase, Setup, Shared};
use phoebus_config::users::is_name;
use phoebus_net::Stream;
use phoebus_proto::endpoint::Endpoint;
use phoebus_proto::entry::{self, Entry, Login, Proxy, Step};
use phoebus_proto::session::auth::scram::Verifier;
use phoebus_proto::session::message::Requirements;
use phoebus_proto::session::{Code, Mode, Principal, SessionId};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::yield_now;
use tokio::time::{timeout, timeout_at};
use tracing::{debug, info};

/// The method of a principal whose password has come as it is.
const PASSWORD: &str = "password";
/// The method of a principal who has shown a certificate.
const CERTIFICATE: &str = "certificate";
/// Longest wait for a refused program to read the answer.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Most bytes that are read and dropped meanwhile: unread ones would reset the connection, and the answer with it.
const DROPPED_MAX: usize = 256 << 10;
/// Consecutive reads before other tasks get a turn.
const READS: u32 = 16;

/// A program on a connection.
struct Program {
    shared: Arc<Shared>,
    stream: Arc<Stream>,
    from: SocketAddr,
    settings: Arc<ListenerSettings>,
    entry: Entry,
    proxy: Proxy,
    /// Who has shown a password, and its verifier at that time.
    user: Option<(Principal, Verifier)>,
    /// The gateways to visit, which programs of an agent name.
    path: Vec<Endpoint>,
    /// Held before the request, and after it was refused.
    slot: Option<HandshakeSlot>,
}

/// Why there is no request.
enum NoRequest {
    /// The program is gone.
    Failed,
    /// It has an answer, or is not to get one.
    Answered(String),
    /// Not in time, or not any more.
    Refuse(Code, &'static str),
}

impl From<io::Error> for NoRequest {
    fn from(_: io::Error) -> Self {
        Self::Failed
    }
}

/// Serves a connection by `entry`, whose first byte has been read.
pub(super) async fn serve(shared: Arc<Shared>, accepted: Accepted, entry: Entry, first: u8) {
    let Accepted { stream, from, settings, counted, place, slot, deadline } = accepted;
    let access = access(&settings, &stream, from);
    let Some(mut proxy) = Proxy::new(entry, &shared.setup().config.name, access) else { return };
    if let Some(room) = proxy.space().first_mut() {
        *room = first;
        proxy.received(1);
    }
    let stream = Arc::new(stream);
    let (user, path, slot) = (None, Vec::new(), Some(slot));
    let shared_by = shared.clone();
    let mut program = Box::new(Program { shared: shared_by, stream, from, settings, entry, proxy, user, path, slot });
    // Boxed, so that an open session reserves no memory for what came before.
    let opened = Box::pin(program.open(deadline)).await;
    let stream = program.stream.clone();
    drop(program);
    if let Some((ready, setup)) = opened {
        Box::pin(ready.carry(&shared, &setup, stream)).await;
    }
    drop((counted, place));
}

impl WayIn for Program {
    fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    fn settings(&self) -> &Arc<ListenerSettings> {
        &self.settings
    }

    async fn abandoned(&mut self) {
        let _ = self.stream.failed().await;
    }

    async fn granted(&mut self, setup: &Setup, _: &Ready) -> bool {
        self.proxy.opened();
        self.stream.widen();
        matches!(timeout(setup.config.limits.handshake_timeout.0, self.send()).await, Ok(Ok(())))
    }

    async fn refused(&mut self, setup: &Setup, refusal: Refusal) -> bool {
        self.shared.counters.refused(refusal.code);
        debug!(from = %self.from, code = refusal.code.number(), hop = refusal.hop, "refused: {}", refusal.reason);
        let hop = if refusal.hop.is_empty() { &setup.config.name } else { &refusal.hop };
        self.proxy.refused(entry::Refusal { code: refusal.code, hop, reason: &refusal.reason });
        self.slot = setup.handshake_slot(&self.shared, self.from, None).ok();
        self.close().await;
        false
    }
}

impl Program {
    /// Reads the request, until `deadline`, and opens the session. `None` if there is none, and the program knows.
    async fn open(&mut self, deadline: Instant) -> Option<(Box<Ready>, Arc<Setup>)> {
        let (request, setup) = match self.request(deadline).await {
            Ok(request) => request,
            Err(why) => {
                count(&self.shared.counters.handshakes_failed);
                self.part(why).await;
                return None;
            }
        };
        // From here on it counts as a session, and not as a pending handshake.
        self.slot = None;
        let shared = self.shared.clone();
        match session::open(&shared, &setup, request, self).await {
            Opening::Open(ready) => Some((ready, setup)),
            Opening::Refused | Opening::Ended | Opening::Gone => None,
        }
    }

    /// Reads the request, until `deadline`.
    async fn request(&mut self, deadline: Instant) -> Result<(Request, Arc<Setup>), NoRequest> {
        let (shared, stream) = (self.shared.clone(), self.stream.clone());
        if !stream.is_current() {
            return Err(NoRequest::Failed);
        }
        let to = tokio::select! {
            biased;
            to = timeout_at(deadline.into(), self.destination()) => {
                let late = NoRequest::Refuse(Code::HandshakeTimeout, "no request arrived in time");
                to.map_err(|_| late)??
            }
            () = shared.reached(Phase::Draining) => {
                return Err(NoRequest::Refuse(Code::Draining, "the gateway takes no more"));
            }
            () = stream.lapsed() => return Err(NoRequest::Failed),
        };
        let setup = self.shared.setup();
        let user = match self.user.take() {
            // A reload has taken the user away meanwhile.
            Some((principal, verifier)) if setup.config.users.verifier(&principal.user) != verifier => {
                return Err(NoRequest::Refuse(Code::AuthFailed, "the user or the password is wrong"));
            }
            user => user.map(|(principal, _)| principal),
        };
        let mut session = [0; 16];
        let no_random = |_| NoRequest::Refuse(Code::Internal, "the gateway has no random numbers");
        getrandom::fill(&mut session).map_err(no_random)?;
        let identity = self.stream.identity();
        let proved = identity.map_or_else(Vec::new, |identity| identity.names.clone());
        let subject = identity.and_then(|identity| identity.subject.as_deref());
        let grid = || subject.map(|subject| Grid::principal(setup.config.grid.as_deref(), subject));
        let certificate = || proved.first().map(|name| Principal::new(CERTIFICATE, name));
        let request = Request {
            session: SessionId(session),
            destination: to,
            path: std::mem::take(&mut self.path),
            visited: Vec::new(),
            origin: self.from.into(),
            principal: user.or_else(certificate).or_else(grid).unwrap_or_default(),
            mode: Mode::Raw,
            requirements: Requirements::default(),
            resumable: false,
            required: 0,
            streams: 1,
            datagrams: false,
            asks_for_datagrams: false,
            entry: self.entry,
            from: self.from,
            peer: None,
            proved,
            instance: 0,
            arrival: Arrival::of(&self.settings, &self.stream),
        };
        Ok((request, setup))
    }

    /// Converses until the program has asked for a session.
    async fn destination(&mut self) -> Result<Endpoint, NoRequest> {
        let mut reads: u32 = 0;
        loop {
            match self.proxy.step() {
                // The answer is sent by `close`, which waits for it to be read.
                Step::Close(why) => return Err(NoRequest::Answered(why.to_owned())),
                Step::Open(to) => return Ok(to.clone()),
                Step::Read => {}
                Step::Login { .. } => {
                    self.log_in().await;
                    continue;
                }
            }
            self.send().await?;
            reads = reads.wrapping_add(1);
            if reads.is_multiple_of(READS) {
                // No other await yields while bytes keep arriving.
                yield_now().await;
            }
            match self.stream.try_read(self.proxy.space()) {
                Ok(0) => return Err(NoRequest::Failed),
                Ok(n) => self.proxy.received(n),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.stream.readable().await?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Checks the password that the program has sent.
    async fn log_in(&mut self) {
        let Step::Login { user, password } = self.proxy.step() else { return };
        let secret = self.settings.auth.iter().find_map(|way| match way {
            Mechanism::Agent(secret) => Some(*secret),
            _ => None,
        });
        if let Some(secret) = secret {
            let path = path_for(secret, user, password);
            let login = if path.is_some() { Login::Right } else { Login::Wrong };
            self.path = path.unwrap_or_default();
            return self.proxy.login(login);
        }
        // Others are nobody's, and cost as much.
        let user = std::str::from_utf8(user).ok().filter(|user| is_name(user)).unwrap_or_default();
        let setup = self.shared.setup();
        let config = &setup.config;
        let claim = Claim { from: self.from.ip(), user, password };
        let (passwords, guesses) = (&self.shared.passwords, &self.shared.guesses);
        let login = passwords.check(&config.users, guesses, config.limits.password_checks, claim).await;
        if login == Login::Right {
            let groups = config.users.get(user).map(|user| user.groups.clone()).unwrap_or_default();
            let principal = Principal { user: user.to_owned(), groups, ..Principal::new(PASSWORD, user) };
            self.user = Some((principal, config.users.verifier(user)));
        } else {
            let (code, why) = match login {
                Login::Wrong => (Code::AuthFailed, "the user or the password is wrong"),
                _ => (Code::Limit, "too many were wrong"),
            };
            self.shared.counters.refused(code);
            info!(target: REFUSED, from = %self.from, entry = self.entry.name(), user, "authentication failed: {why}");
            let user = user.to_owned();
            self.audit(&setup.config.name, Claimed::new(PASSWORD, &user), &Refusal::new(code, why));
        }
        self.proxy.login(login);
    }

    /// Writes to the audit that this connection may not ask for a session.
    fn audit(&self, gateway: &str, claim: Claimed<'_>, refusal: &Refusal) {
        if self.shared.audit.is_on() {
            let (from, arrival) = (self.from.ip(), Arrival::of(&self.settings, &self.stream));
            let line = Line::connection(gateway, (from, self.entry, &arrival), claim, refusal);
            self.shared.audit.add_of_stranger(from, &line);
        }
    }

    /// Sends the proxy's output.
    async fn send(&mut self) -> io::Result<()> {
        while !self.proxy.outgoing().is_empty() {
            match self.stream.try_write(self.proxy.outgoing(), false) {
                Ok(n) => self.proxy.sent(n),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.stream.writable().await?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Ends a connection without a session.
    async fn part(&mut self, why: NoRequest) {
        match why {
            NoRequest::Failed => {
                debug!(from = %self.from, entry = self.entry.name(), "the program has gone");
                self.stream.disarm();
            }
            NoRequest::Answered(why) => {
                info!(target: REFUSED, from = %self.from, entry = self.entry.name(), "request refused: {why}");
                self.close().await;
            }
            NoRequest::Refuse(code, reason) => {
                info!(target: REFUSED, from = %self.from, entry = self.entry.name(), "request refused: {reason}");
                let setup = self.shared.setup();
                self.audit(&setup.config.name, Claimed::default(), &Refusal::new(code, reason));
                drop(setup);
                self.proxy.refused(entry::Refusal { code, hop: "", reason });
                self.close().await;
            }
        }
    }

    /// Sends the answer and closes the connection. A program that does not take it is reset, and so is one that has no slot to
    /// wait in.
    async fn close(&mut self) {
        let limit = if self.slot.is_some() { LAST_WORDS } else { Duration::ZERO };
        let words = async {
            self.send().await?;
            self.stream.shutdown_write()?;
            tokio::select! {
                delivered = self.stream.delivered(Duration::MAX) => delivered,
                Err(error) = drop_rest(&self.stream) => Err(error),
            }
        };
        if let Ok(Ok(())) = timeout(limit, words).await {
            self.stream.disarm();
        }
    }
}

/// Reads what the program still sends, within bounds.
async fn drop_rest(stream: &Stream) -> io::Result<()> {
    let (mut room, mut dropped) = (vec![0; 4096], 0);
    while dropped < DROPPED_MAX {
        match stream.try_read(&mut room) {
            Ok(0) => break,
            Ok(n) => dropped += n,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => stream.readable().await?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size<F: Future>(_: impl FnOnce(Arc<Shared>, Accepted, Entry, u8) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn an_open_session_is_a_small_task() {
        // Thousands of sessions may be idle.
        assert!(size(serve) <= 512, "{} bytes", size(serve));
    }
}
