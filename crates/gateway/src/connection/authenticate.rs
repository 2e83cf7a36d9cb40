//! Evaluates a request: the peer's identity, AUTH, and what is requested (P26, P27).

use super::Connection;
use crate::bundle::{JoinPermit, Owner};
use crate::config::{Grid, Mechanism, TokenIssuer};
use crate::issuers;
use crate::mechanisms::Exchange;
use crate::peer_identity::PeerIdentity;
use crate::refusal::Refusal;
use crate::request::{Arrival, Request};
use crate::rules;
use crate::session::REFUSED;
use crate::shared::Setup;
use crate::slots::Slot;
use phoebus_net::transport::Security;
use phoebus_proto::endpoint::Endpoint;
use phoebus_proto::session::acceptor;
use phoebus_proto::session::auth::scram::Verifier;
use phoebus_proto::session::auth::{AuthError, Proven, Verdict, Vouched, anonymous, scram};
use phoebus_proto::session::message::{Challenge, Open};
use phoebus_proto::session::{Code, List, Principal, ProtocolError, SessionId};
use std::io;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use tracing::info;

/// The method of a principal who has shown a certificate.
const CERTIFICATE: &str = "certificate";

/// The result of a request, decided as far as possible at once.
pub(super) enum Asked {
    /// A credential was accepted, or is required.
    Again,
    Session(Box<Request>),
    /// Join a session as a further connection.
    Join(SessionId, JoinPermit),
    Refuse(Refusal),
}

impl Connection {
    /// The names in the peer's certificate.
    pub(super) fn proved(&self) -> &[String] {
        self.stream.identity().map_or(&[], |identity| &identity.names)
    }

    pub(super) fn caller<'a>(&self, setup: &'a Setup) -> PeerIdentity<'a> {
        PeerIdentity::of(setup, self.acceptor.peer_name(), self.from.ip(), &self.stream)
    }

    /// The subject of the peer's Grid certificate.
    fn grid_subject(&self) -> Option<&str> {
        self.stream.identity()?.subject.as_deref()
    }

    /// On whose behalf requests come: who has authenticated by a password; else the name or the subject in the certificate; else the
    /// address that was given.
    pub(super) fn principal(&self, setup: &Setup) -> Principal {
        let named = self.login.as_ref().map(|login| &login.principal).filter(|principal| !principal.is_nobody());
        let of_subject = |subject| Grid::principal(setup.config.grid.as_deref(), subject);
        let certificate = self.proved().first().map(|name| Principal::new(CERTIFICATE, name));
        match (named, certificate.or_else(|| self.grid_subject().map(of_subject))) {
            (Some(principal), Some(shown)) if principal.method == anonymous::NAME => shown,
            (Some(principal), _) => principal.clone(),
            (None, shown) => shown.unwrap_or_default(),
        }
    }

    /// Whether the listener wants more of this connection before it may request sessions.
    fn must_authenticate(&self, caller: &PeerIdentity<'_>) -> bool {
        let auth = &self.settings.auth;
        let is_taken = |method: &str| auth.iter().any(|mechanism| mechanism.on(&self.stream) == Some(method));
        // An address that was given for the log is no proof.
        let has_authenticated = self.login.as_ref().is_some_and(|login| is_taken(&login.principal.method));
        // A peer's certificate is enough, but where an address is all that is asked for.
        let is_peers = caller.peer().is_some() && **auth != [Mechanism::Anonymous];
        let has_certificate = !self.proved().is_empty() && (auth.contains(&Mechanism::Certificate) || is_peers);
        let is_of_grid = self.grid_subject().is_some() && auth.contains(&Mechanism::Grid);
        !auth.is_empty() && !has_authenticated && !has_certificate && !is_of_grid
    }

    /// Brings the user up to date: who is gone, or has another password since, or whose token has expired, or has an issuer who no
    /// longer counts, is nobody until they log in again.
    fn look_up_user(&mut self, setup: &Setup) {
        let Some(login) = &mut self.login else { return };
        let counts = match &login.proof {
            LastingProof::Always => true,
            LastingProof::Password(before) => match setup.config.users.get(&login.principal.user) {
                Some(user) if user.verifier == **before => {
                    login.principal.groups.clone_from(&user.groups);
                    true
                }
                _ => false,
            },
            LastingProof::Token { expires, issuer } => issuers::now() < *expires && setup.issuers.has(issuer),
        };
        if !counts {
            self.login = None;
        }
    }

    /// A slot for a client to stay between sessions: its connection is protected, a rule applies to it, and there is
    /// room.
    pub(super) fn keep(&self, setup: &Setup) -> Option<Slot> {
        let (limits, addr) = (&setup.config.limits, self.from.ip());
        let stranger = matches!(self.caller(setup), PeerIdentity::Stranger);
        let protected = self.stream.security() > Security::None && self.stream.security() >= self.settings.security;
        let welcome = stranger
            && protected
            && !self.must_authenticate(&self.caller(setup))
            && rules::may_ask(&setup.config, &self.possible_request(setup));
        if welcome { self.shared.admission.client(limits, addr) } else { None }
    }

    /// A request as the client could send it, to nowhere in particular.
    fn possible_request(&self, setup: &Setup) -> Request {
        let nowhere = Endpoint::from(self.from);
        let open = Open::new(SessionId([0; 16]), nowhere.as_ref());
        Request {
            proved: self.proved().to_vec(),
            arrival: Arrival::of(&self.settings, &self.stream),
            ..Request::new(&open, self.from, None, self.principal(setup))
        }
    }

    pub(super) fn asked(&mut self, setup: &Setup) -> Asked {
        self.look_up_user(setup);
        let request = match self.acceptor.request() {
            Some(request) => request,
            None => return Asked::Refuse(Refusal::new(Code::Internal, "nothing was asked")),
        };
        let caller = self.caller(setup);
        if let Some(refusal) = caller.refusal(self.settings.security, &self.stream) {
            return Asked::Refuse(refusal);
        }
        match request {
            _ if self.acceptor.peer_is_beacon() => {
                Asked::Refuse(Refusal::new(Code::Protocol, "nothing can be asked for on a beacon"))
            }
            acceptor::Request::Auth(_) => self.check(setup),
            acceptor::Request::Open(_) | acceptor::Request::Attach(_) | acceptor::Request::Unsupported(_)
                if self.must_authenticate(&caller) =>
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
                    asks_for_datagrams: self.shared.data.datagrams.is_some(),
                    ..Request::new(&open, self.from, peer, self.principal(setup))
                }))
            }
            acceptor::Request::Unsupported(unknown) => {
                Asked::Refuse(Refusal::new(Code::Feature, ProtocolError::Feature(unknown).to_string()))
            }
            acceptor::Request::Attach(attach) => {
                let peer = caller.peer().map(|pool| pool.peer.name.as_str());
                let owner = Owner::of(peer, self.from, &self.principal(setup));
                match self.shared.bundles.claim(&attach, &owner) {
                    Ok(permit) => Asked::Join(attach.session, permit),
                    Err(refusal) => Asked::Refuse(refusal),
                }
            }
        }
    }

    /// Continues, or begins, the exchange of an AUTH.
    fn check(&mut self, setup: &Setup) -> Asked {
        let Some(acceptor::Request::Auth(auth)) = self.acceptor.request() else {
            return Asked::Refuse(Refusal::new(Code::Internal, "there is no AUTH"));
        };
        let begun = self.exchange.take().filter(|begun| begun.mechanism == auth.mechanism);
        let is_password = [scram::PLAIN, scram::PLUS].contains(&auth.mechanism);
        let exchange = match begun {
            // Before each message: many exchanges may have begun at once.
            _ if is_password && let Some(wait) = self.guesses_wait(begun.as_ref()) => {
                let reason = format!("too many wrong passwords; the next one counts in {} s", wait.as_secs() + 1);
                let user = begun.as_ref().map_or("", |begun| begun.check.claimed()).to_owned();
                let mechanism = if auth.mechanism == scram::PLUS { scram::PLUS } else { scram::PLAIN };
                self.tried = Some(Box::new((mechanism, user)));
                return Asked::Refuse(Refusal::new(Code::Limit, reason));
            }
            Some(begun) => Ok(Some(begun)),
            None => self.begin(setup, auth.mechanism),
        };
        let mut exchange = match exchange {
            Ok(Some(exchange)) => exchange,
            Ok(None) => return self.challenge(),
            Err(error) => return Asked::Refuse(Refusal::new(Code::Internal, phoebus_net::reason(&error))),
        };
        let done = match exchange.check.receive(auth.data) {
            Verdict::Continue(data) => {
                let mechanism = [exchange.mechanism];
                self.exchange = Some(exchange);
                self.acceptor.challenge(&Challenge { mechanisms: List::new(&mechanism), data: &data })
            }
            Verdict::Proven(Proven { subject, vouched, last }) => {
                match UserLogin::new(setup, &exchange, subject, vouched) {
                    Some(login) => {
                        if is_password {
                            self.shared.guesses.succeeded(Instant::now(), self.from.ip(), &login.principal.user);
                        }
                        if let Some(note) = self.stream.connection_note() {
                            note.set(login.clone());
                        }
                        self.login = Some(Box::new(login));
                        self.acceptor.accept_auth(last.as_deref())
                    }
                    // A reload has taken the user away meanwhile.
                    None => {
                        self.tried = Some(Box::new((exchange.mechanism, exchange.check.claimed().to_owned())));
                        return Asked::Refuse(Refusal::new(Code::AuthFailed, AuthError::Wrong.to_string()));
                    }
                }
            }
            Verdict::Declined(reason) => {
                let mechanism = exchange.mechanism;
                self.tried = Some(Box::new((mechanism, exchange.check.claimed().to_owned())));
                info!(target: REFUSED, from = %self.from, mechanism, "authentication failed: {reason}");
                return Asked::Refuse(Refusal::new(Code::AuthFailed, reason));
            }
            Verdict::Refused(error) => {
                if error == AuthError::Wrong && is_password {
                    self.shared.guesses.failed(Instant::now(), self.from.ip(), exchange.check.claimed());
                }
                let (mechanism, user) = (exchange.mechanism, exchange.check.claimed());
                info!(target: REFUSED, from = %self.from, mechanism, user, "authentication failed: {error}");
                self.tried = Some(Box::new((mechanism, user.to_owned())));
                let reason = match error {
                    AuthError::Malformed | AuthError::Unexpected | AuthError::Nonce => {
                        "the message of authentication is malformed, or belongs to another exchange".to_owned()
                    }
                    other => other.to_string(),
                };
                return Asked::Refuse(Refusal::new(Code::AuthFailed, reason));
            }
        };
        match done {
            Ok(()) => Asked::Again,
            Err(error) => Asked::Refuse(Refusal::new(Code::Internal, error.to_string())),
        }
    }

    /// For how long nobody may prove themselves here: too much was wrong that came from this source, or for this user.
    fn guesses_wait(&self, begun: Option<&Exchange>) -> Option<Duration> {
        let (now, from) = (Instant::now(), self.from.ip());
        let user = begun.map(|begun| begun.check.claimed()).filter(|user| !user.is_empty());
        let guesses = &self.shared.guesses;
        guesses.wait(now, from).or_else(|| guesses.user_wait(now, from, user?))
    }

    /// Begins an exchange of the mechanism with this name, if the listener takes it on this connection.
    fn begin(&self, setup: &Setup, name: &str) -> io::Result<Option<Exchange>> {
        let wanted = |mechanism: &&Mechanism| mechanism.on(&self.stream) == Some(name);
        match self.settings.auth.iter().find(wanted) {
            Some(mechanism) => mechanism.begin(setup, &self.stream),
            // An address is harmless, and welcome for the log.
            None if name == anonymous::NAME && !self.must_authenticate(&self.caller(setup)) => {
                Mechanism::Anonymous.begin(setup, &self.stream)
            }
            None => Ok(None),
        }
    }

    /// Asks for AUTH by one of the mechanisms that the listener takes on this connection.
    fn challenge(&mut self) -> Asked {
        let mut wanted: Vec<&str> =
            self.settings.auth.iter().filter_map(|mechanism| mechanism.on(&self.stream)).collect();
        if self.settings.auth.is_empty() {
            wanted.push(anonymous::NAME);
        }
        if wanted.is_empty() {
            let expected: Vec<&str> = self.settings.auth.iter().filter_map(Mechanism::advice).collect();
            let reason = format!("this listener wants {}", expected.join(", or "));
            return Asked::Refuse(Refusal::new(Code::AuthRequired, reason));
        }
        match self.acceptor.challenge(&Challenge { mechanisms: List::new(&wanted), data: &[] }) {
            Ok(()) => Asked::Again,
            Err(error) => Asked::Refuse(Refusal::new(Code::Internal, error.to_string())),
        }
    }
}

/// Who has authenticated by AUTH.
#[derive(Debug, Clone)]
pub(super) struct UserLogin {
    principal: Principal,
    proof: LastingProof,
}

/// How long a login counts.
#[derive(Debug, Clone)]
enum LastingProof {
    /// As long as the connection.
    Always,
    /// As long as the user's password has this verifier.
    Password(Box<Verifier>),
    /// As long as the token does, and its issuer.
    Token {
        /// In seconds since 1970.
        expires: u64,
        issuer: Arc<TokenIssuer>,
    },
}

impl UserLogin {
    /// `None` if the mechanism is for users of the file, and the subject is none, or not with the password that was proved.
    fn new(setup: &Setup, exchange: &Exchange, subject: String, vouched: Option<Vouched>) -> Option<Self> {
        let mut principal = Principal::new(exchange.mechanism, &subject);
        if let Some(Vouched { user, groups, expires }) = vouched {
            let issuer = exchange.issuer.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
            (principal.user, principal.groups) = (user, groups);
            return setup
                .issuers
                .has(&issuer)
                .then_some(Self { principal, proof: LastingProof::Token { expires, issuer } });
        }
        if ![scram::PLAIN, scram::PLUS].contains(&exchange.mechanism) {
            return Some(Self { principal, proof: LastingProof::Always });
        }
        let user = setup.config.users.get(&subject)?;
        if exchange.users.get(&subject).is_none_or(|proved| proved.verifier != user.verifier) {
            return None;
        }
        // Only the file's users have a name that rules know.
        (principal.user, principal.groups) = (subject, user.groups.clone());
        Some(Self { principal, proof: LastingProof::Password(Box::new(user.verifier)) })
    }
}
