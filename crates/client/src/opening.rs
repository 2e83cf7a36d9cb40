//! The opening of a session without sockets: where to connect, what to send, how long to wait, and what to do after a
//! failure (P8, P10, P18, P38, S26).
//!
//! ```text
//!              first_hop, and a connection             OPENED
//!   Waiting ────────────────────────────► Speaking ────────────► Done
//!      ▲ ▲             │ lost, failed         │
//!      │ └── again ── Failed ◄────────────────┘ REFUSED, a fault, the deadline
//!      └ a better gateway, the gateway in place of an agent, the destination itself
//! ```
//!
//! Time is an argument, counted from any origin. Random bytes come from the system. So do the time of day, the
//! running agent and the short paths, which are read once, when the opening is created.

use crate::agent::Agents;
use crate::bypass;
use crate::error::Error;
use crate::options::Options;
use crate::report::{Hop, Report};
use crate::talk::{Broken, NextStep, Talk};
use phoebus_config::agent::Running;
use phoebus_config::logins::{Login, Logins};
use phoebus_net::tls::AuthClient;
use phoebus_net::transport::Security;
use phoebus_proto::endpoint::{Endpoint, EndpointRef, Host};
use phoebus_proto::session::auth::scram::{self, Binding};
use phoebus_proto::session::auth::{Credential, anonymous, token};
use phoebus_proto::session::datagrams::DatagramGrant;
use phoebus_proto::session::login::{LoginError, Random};
use phoebus_proto::session::message::{Open, Requirements, feature};
use phoebus_proto::session::plan::{self, Failure, Next, Plan, Policy};
use phoebus_proto::session::{Code, List, SessionId};
use phoebus_proto::units::Span;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

/// Where to connect, by TCP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FirstHop {
    /// To an agent on this host, at any of these addresses.
    Agent(Vec<SocketAddr>),
    /// To a gateway.
    Gateway(Endpoint),
    /// To the destination, without gateways.
    Destination(Endpoint),
}

/// What the caller does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Send this many bytes: all that were written to `out`.
    Write(usize),
    /// Receive at most so many bytes.
    Read(usize),
    /// The destination is connected: see [`Opening::report`].
    Done,
    /// The opening failed: see [`Opening::error`] and [`Opening::again`].
    Failed,
}

/// A session that is being opened. See the module.
#[derive(Debug)]
pub struct Opening {
    options: Options,
    destination: Endpoint,
    /// The login that is kept for the gateway.
    login: Option<Login>,
    /// The identifier of the session that is requested.
    session: [u8; 16],
    plan: Plan<Vec<Endpoint>>,
    agent: Option<Running>,
    direct: bool,
    note: String,
    stage: Stage,
    /// What the first hop has granted for datagrams.
    datagrams: Option<DatagramGrant>,
    begun: Duration,
    deadline: Option<Duration>,
    /// The time of day, for checking certificates.
    made: SystemTime,
}

#[derive(Debug)]
enum Stage {
    /// Waits for a connection.
    Waiting,
    Speaking(Box<Talk>),
    /// Failed, but a last message remains to be sent.
    Closing(Box<Talk>, Box<Error>),
    Done(Box<Report>),
    Failed(Box<Error>, Option<Next>),
}

impl Opening {
    /// A session to `destination`; the last gateway resolves its name. Without gateways, or if the path is known to
    /// be short, the connection is direct.
    pub fn new(options: Options, destination: Endpoint) -> Self {
        let agent = options.agents.as_ref().and_then(Agents::find);
        let short = if options.path.is_empty() { None } else { bypass::short(&options, &destination.host) };
        let direct = options.path.is_empty() || short.is_some();
        let note =
            short.map(|rtt| format!("direct: the path measured {}, below {}", Span(rtt), Span(options.bypass_rtt)));
        let policy = Policy { redirects: options.redirects, fallback: options.fallback };
        let mut opening = Self {
            plan: Plan::new(policy, options.path.first().cloned().into_iter().collect()),
            options,
            destination,
            login: None,
            session: [0; 16],
            agent,
            direct,
            note: note.unwrap_or_default(),
            stage: Stage::Waiting,
            datagrams: None,
            begun: Duration::ZERO,
            deadline: None,
            made: SystemTime::now(),
        };
        opening.check_agent();
        opening
    }

    /// A direct connection to `destination`, with this note in its report.
    pub fn direct(options: Options, destination: Endpoint, note: &str) -> Self {
        let options = Options { path: Vec::new(), agents: None, ..options };
        Self { note: note.to_owned(), ..Self::new(options, destination) }
    }

    /// Returns where to connect, and starts the time limit. `None` if the opening does not wait for a connection.
    pub fn first_hop(&mut self, now: Duration) -> Option<FirstHop> {
        if !matches!(self.stage, Stage::Waiting) {
            return None;
        }
        self.begun = now;
        self.deadline = Some(now.saturating_add(self.time_limit()));
        Some(match (&self.agent, self.gateway()) {
            _ if self.direct => FirstHop::Destination(self.destination.clone()),
            (Some(agent), _) => FirstHop::Agent(agent.addresses.into_iter().flatten().collect()),
            (None, Some(gateway)) => FirstHop::Gateway(gateway.clone()),
            (None, None) => FirstHop::Destination(self.destination.clone()),
        })
    }

    /// The longest wait for the connection.
    pub fn time_limit(&self) -> Duration {
        if self.direct { self.options.open_limit } else { self.options.connect_limit }
    }

    /// The deadline; `None` if it waits for nothing.
    pub fn deadline(&self) -> Option<Duration> {
        self.deadline.filter(|_| matches!(self.stage, Stage::Waiting | Stage::Speaking(_)))
    }

    /// Continues on the connection: consumes the part of `input` that belongs to the handshake, and writes the bytes
    /// to send into `out`, which must not be empty. Returns the next step and the number of consumed bytes: all of
    /// them, if they were no more than the last step wanted.
    pub fn step(&mut self, now: Duration, input: &[u8], out: &mut [u8]) -> (usize, Step) {
        if matches!(self.stage, Stage::Waiting) {
            self.start_handshake(now);
        }
        let mut taken = 0;
        if let Stage::Speaking(talk) = &mut self.stage {
            let mut result = talk.receive(input).map(|n| taken = n).and_then(|()| talk.turn());
            while let Ok(NextStep::Over) = result
                && let Some(goes_on) = self.authenticate()
            {
                let Stage::Speaking(talk) = &mut self.stage else { break };
                result = goes_on.and_then(|()| talk.turn());
            }
            match result {
                Ok(NextStep::Send) => {}
                Ok(NextStep::Receive(want)) => {
                    if self.deadline.is_none_or(|deadline| now < deadline) {
                        return (taken, Step::Read(want));
                    }
                    self.expire();
                }
                Ok(NextStep::Over) => self.handle_answer(now),
                Err(broken) => self.part(broken),
            }
        }
        (taken, self.next_step(out))
    }

    /// Reports that the connection could not be made, or failed. Only valid while there is no session.
    pub fn failed(&mut self, error: Error) {
        if matches!(self.stage, Stage::Waiting | Stage::Speaking(_)) {
            self.fail(error);
        }
    }

    /// Like `failed`, with an I/O error of the connection to `at`, if that is known; the kind `UnexpectedEof` means
    /// that the peer closed it.
    pub fn lost(&mut self, at: Option<SocketAddr>, source: io::Error) {
        let heard = match &self.stage {
            Stage::Waiting => false,
            // With TCP Fast Open, a failed connect shows only here.
            Stage::Speaking(talk) => talk.has_heard() || !refuses(&source),
            _ => return,
        };
        let at = at.or_else(|| self.gateway().filter(|_| !self.direct)?.as_ref().socket_addr());
        self.fail(match (self.gateway().cloned().filter(|_| !self.direct), at) {
            (Some(gateway), _) if heard => Error::Lost { gateway, source },
            (Some(gateway), Some(to)) => Error::Gateway { gateway, source: phoebus_net::Error::Connect { to, source } },
            (Some(gateway), None) => Error::Unreachable { gateway, source },
            (None, Some(to)) => Error::Direct(phoebus_net::Error::Connect { to, source }),
            (None, None) => Error::Unreachable { gateway: self.destination.clone(), source },
        });
    }

    /// Reports that the deadline has passed.
    pub fn expire(&mut self) {
        match &self.stage {
            Stage::Waiting => {
                let source =
                    |to: &Endpoint| phoebus_net::Error::Timeout { to: to.to_string(), limit: Span(self.time_limit()) };
                self.fail(match self.gateway().filter(|_| !self.direct) {
                    Some(gateway) => Error::Gateway { gateway: gateway.clone(), source: source(gateway) },
                    None => Error::Direct(source(&self.destination)),
                });
            }
            Stage::Speaking(_) => {
                if let Some(gateway) = self.gateway().cloned() {
                    let (destination, limit) = (self.destination.clone(), Span(self.options.open_limit));
                    self.fail(Error::Timeout { gateway, destination, limit });
                }
            }
            _ => {}
        }
    }

    /// Starts again if there is an alternative after a failure. Returns whether there is one.
    pub fn again(&mut self) -> bool {
        let Stage::Failed(error, next @ Some(_)) = &mut self.stage else { return false };
        match next.take() {
            Some(Next::Better) => {}
            Some(Next::Gateway) => self.agent = None,
            Some(Next::Destination) => {
                self.note = format!("direct: {error}");
                self.direct = true;
            }
            Some(Next::Over(_)) | None => return false,
        }
        self.stage = Stage::Waiting;
        true
    }

    /// Whether the connection goes directly to the destination.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// Why there is no session.
    pub fn error(&self) -> Option<&Error> {
        if let Stage::Failed(error, _) = &self.stage { Some(error) } else { None }
    }

    /// Why there is no session, by value.
    pub fn into_error(self) -> Error {
        match self.stage {
            Stage::Failed(error, _) => *error,
            _ => self.unfinished(),
        }
    }

    /// The session's report, without what only the owner of the connection knows ([`Report::describe`]).
    pub fn report(&mut self) -> Option<&mut Report> {
        if let Stage::Done(report) = &mut self.stage { Some(report) } else { None }
    }

    /// Remembers the round trip of the session's whole path, so that later connections may bypass gateways.
    pub fn remember(&self, rtt_us: u64) {
        if !self.direct {
            bypass::remember(&self.options, &self.destination.host, rtt_us);
        }
    }

    /// What the first hop has granted for datagrams beside the session.
    pub fn datagrams(&self) -> Option<DatagramGrant> {
        self.datagrams
    }

    /// The options of the opening.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The session's destination.
    pub fn destination(&self) -> &Host {
        &self.destination.host
    }

    /// Fails the opening if an agent is demanded and none runs.
    fn check_agent(&mut self) {
        let demanded = self.options.agents.as_ref().and_then(Agents::demanded);
        if let (Some(first_hop), None, false, Some(gateway)) =
            (demanded, &self.agent, self.direct, self.options.path.first())
        {
            self.stage = Stage::Failed(Box::new(Error::NoAgent { gateway: gateway.clone(), first_hop }), None);
        }
    }

    /// Handles the new connection.
    fn start_handshake(&mut self, now: Duration) {
        if self.direct && self.options.demands.aware {
            let reason =
                format!("{} is to take part in the session (aware), but the connection is direct", self.destination);
            return self.fail(Error::Requirement { hop: self.destination.to_string(), reason });
        }
        if self.direct {
            let hop = Hop { to: self.destination.to_string(), ..own_hop(Security::None) };
            self.stage = Stage::Done(Box::new(self.new_report(now, String::new(), vec![hop])));
            return;
        }
        self.deadline = Some(self.begun.max(now).saturating_add(self.options.open_limit));
        match self.talk() {
            Ok(talk) => self.stage = Stage::Speaking(Box::new(talk)),
            Err(error) => self.fail(*error),
        }
    }

    fn talk(&mut self) -> Result<Talk, Box<Error>> {
        let Some(gateway) = self.gateway().cloned() else { return Err(self.unfinished().into()) };
        getrandom::fill(&mut self.session).map_err(Error::Random)?;
        self.login = match self.options.logins.as_deref().filter(|_| self.agent.is_none()) {
            Some(file) => Logins::read(file).map_err(Error::Logins)?.at(gateway.as_ref()).cloned(),
            None => None,
        };
        let mut random: Random = [0; _];
        getrandom::fill(&mut random).map_err(Error::Random)?;
        let tls = self.options.auth.as_ref().filter(|_| self.agent.is_none());
        let tls = tls.map(|credentials| AuthClient::new(credentials, &gateway.host.to_string(), self.made)).transpose();
        let tls = tls.map_err(|source| Error::Untrusted { gateway: gateway.clone(), source })?;
        // Only the second message has the exported bytes, which are not known before TLS has connected.
        let binding = tls.as_ref().map(|_| Binding::default());
        let credential = self.credential(binding.as_ref());
        let login = credential.as_ref().map(|credential| (credential, random));
        let talk = self.with_open(|open| Talk::new(tls, login, open));
        talk.map_err(|error| match error {
            LoginError::Protocol(source) => Error::Protocol { gateway, source }.into(),
            LoginError::Auth(source) => Error::Login { gateway, source }.into(),
        })
    }

    /// Goes on with authentication, once the gateway has answered. `None` if its answer is another one.
    fn authenticate(&mut self) -> Option<Result<(), Broken>> {
        let Stage::Speaking(mut talk) = std::mem::replace(&mut self.stage, Stage::Waiting) else { return None };
        let binding = talk.binding();
        let credential = self.credential(binding.as_ref());
        let goes_on = self.with_open(|open| talk.go_on(credential.as_ref(), open));
        self.stage = Stage::Speaking(talk);
        match goes_on {
            Ok(true) => Some(Ok(())),
            Ok(false) => None,
            Err(broken) => Some(Err(broken)),
        }
    }

    /// What this end proves itself with; `binding` is what its TLS exports.
    fn credential<'a>(&'a self, binding: Option<&'a Binding>) -> Option<Credential<'a>> {
        let secret = self.agent.as_ref().map(|agent| &agent.secret.0[..]);
        // One that was made inside TLS is not shown without.
        let kept = self.login.as_ref().filter(|login| login.is_raw || binding.is_some());
        let login = kept.map(|login| scram::Login { user: &login.user, keys: &login.keys, binding });
        plan::credential(secret, login, self.options.user.as_deref())
    }

    /// Calls `then` with the request.
    fn with_open<R>(&self, then: impl FnOnce(&Open) -> R) -> R {
        let onward: Vec<EndpointRef> = self.plan.onward(&self.options.path, self.agent.is_some()).collect();
        let demands = &self.options.demands;
        let requirements = Requirements {
            rate: self.options.bandwidth.map(|rate| rate.0),
            buffer: demands.buffer,
            streams: demands.streams,
            ..Requirements::default()
        };
        then(&Open {
            path: List::new(&onward),
            requirements,
            required: if demands.aware { feature::AWARE } else { 0 },
            datagrams: demands.datagrams,
            ..Open::new(SessionId(self.session), self.destination.as_ref())
        })
    }

    /// The error for an opening whose caller gave up on it.
    fn unfinished(&self) -> Error {
        let gateway = self.gateway().unwrap_or(&self.destination).clone();
        Error::Lost { gateway, source: io::ErrorKind::Interrupted.into() }
    }

    /// Handles the answer of the first hop.
    fn handle_answer(&mut self, now: Duration) {
        let Stage::Speaking(talk) = std::mem::replace(&mut self.stage, Stage::Waiting) else { return };
        let Some(gateway) = self.gateway() else { return };
        let Some(opened) = talk.opened() else {
            let has_password = self.login.as_ref().map(|login| login.is_raw || self.options.auth.is_some());
            let error = refusal(&talk, gateway, &self.options, has_password);
            return self.fail(error);
        };
        let session = opened.session.to_string();
        let datagrams = opened.datagrams;
        let mut hops: Vec<Hop> = opened.hops.iter().map(Hop::from).collect();
        if let Some(reason) =
            self.options.demands.missing(gateway, &hops[usize::from(self.agent.is_some()).min(hops.len())..])
        {
            return self.fail(reason);
        }
        let security =
            if self.agent.is_none() && self.options.auth.is_some() { Security::Auth } else { Security::None };
        let next = hops.first().map_or_else(|| gateway.to_string(), |hop| hop.from.clone());
        hops.insert(0, Hop { to: next, ..own_hop(security) });
        if let Some((first, last)) = self.plan.redirected() {
            self.note = format!("redirected from {first} to {last}");
        } else if let Some(missing) =
            self.options.agents.as_ref().filter(|_| self.agent.is_none()).and_then(Agents::missing)
        {
            missing.clone_into(&mut self.note);
        }
        self.datagrams = datagrams;
        self.stage = Stage::Done(Box::new(self.new_report(now, session, hops)));
    }

    fn new_report(&self, now: Duration, session: String, hops: Vec<Hop>) -> Report {
        Report {
            session,
            destination: self.destination.to_string(),
            rtt_us: hops.iter().fold(0, |sum, hop| sum.saturating_add(hop.rtt_us)),
            hops,
            opened_in_us: now.saturating_sub(self.begun).as_micros() as u64,
            note: self.note.clone(),
        }
    }

    /// Fails once the TLS alert for the peer is sent.
    fn part(&mut self, broken: Broken) {
        let Some(gateway) = self.gateway().cloned() else { return };
        let error = match broken {
            Broken::Protocol(source) => Error::Protocol { gateway, source },
            Broken::Login(source) => Error::Login { gateway, source },
            Broken::Tls(source) if source.kind() == io::ErrorKind::PermissionDenied => {
                Error::Untrusted { gateway, source }
            }
            Broken::Tls(source) => Error::Lost { gateway, source },
        };
        if let Stage::Speaking(talk) = std::mem::replace(&mut self.stage, Stage::Waiting) {
            self.stage = Stage::Closing(talk, Box::new(error));
        }
    }

    /// Writes the bytes to send, or returns the current state.
    fn next_step(&mut self, out: &mut [u8]) -> Step {
        if let Stage::Speaking(talk) | Stage::Closing(talk, _) = &mut self.stage {
            let n = talk.outgoing().len().min(out.len());
            if n > 0 {
                out[..n].copy_from_slice(&talk.outgoing()[..n]);
                talk.sent(n);
                return Step::Write(n);
            }
        }
        match std::mem::replace(&mut self.stage, Stage::Waiting) {
            Stage::Closing(_, error) => self.fail(*error),
            stage => self.stage = stage,
        }
        if matches!(self.stage, Stage::Done(_)) { Step::Done } else { Step::Failed }
    }

    fn fail(&mut self, error: Error) {
        let demanded = self.options.agents.as_ref().and_then(Agents::demanded);
        let hop = match &self.agent {
            _ if self.direct => plan::Hop::Destination,
            Some(_) => plan::Hop::Agent { demanded: demanded.is_some() },
            None => plan::Hop::Gateway,
        };
        let failure = match &error {
            error if error.without_gateway() => Failure::Absent,
            Error::Refused { redirect, .. } => Failure::Refused(redirect.as_ref().map(Endpoint::as_ref)),
            _ => Failure::Broken,
        };
        let next = self.plan.failed(&self.options.path, hop, failure);
        let error = match (next, demanded, self.gateway()) {
            (Next::Over(Some(end)), ..) => {
                Error::Redirected { last: Box::new(error), asked: self.plan.asked().clone(), end }
            }
            (Next::Over(None), Some(first_hop), Some(gateway)) if self.agent.is_some() && error.without_gateway() => {
                Error::NoAgent { gateway: gateway.clone(), first_hop }
            }
            _ => error,
        };
        self.stage = Stage::Failed(Box::new(error), Some(next).filter(|next| !matches!(next, Next::Over(_))));
    }

    /// The gateway that is being asked.
    fn gateway(&self) -> Option<&Endpoint> {
        self.plan.asked().last()
    }
}

/// The hop from here, without what only the owner of its connection knows.
fn own_hop(security: Security) -> Hop {
    Hop {
        from: "client".to_owned(),
        transport: "tcp".to_owned(),
        security: security.name().to_owned(),
        streams: 1,
        ..Hop::default()
    }
}

/// Whether the error means that nobody accepted the connection.
fn refuses(error: &io::Error) -> bool {
    use Code::{HostUnreachable, NetworkUnreachable, Refused, TimedOut};
    matches!(phoebus_net::code_of(error), Refused | TimedOut | HostUnreachable | NetworkUnreachable)
}

/// The error of a handshake that did not end in OPENED.
fn refusal(talk: &Talk, gateway: &Endpoint, options: &Options, has_password: Option<bool>) -> Error {
    let gateway = gateway.clone();
    if let Some(refused) = talk.refused() {
        return Error::Refused {
            gateway,
            hop: refused.hop.to_owned(),
            code: refused.code,
            reason: refused.reason.to_owned(),
            redirect: refused.redirect.map(EndpointRef::to_owned),
        };
    }
    let mechanisms: Vec<_> = talk.challenge().iter().flat_map(|challenge| challenge.mechanisms.iter()).collect();
    let wants = |name| mechanisms.contains(&name);
    let login = format!("phoebus login {gateway} keeps a user and a password");
    let takes_passwords = wants(scram::PLUS) || wants(scram::PLAIN);
    let advice = if has_password == Some(true) && !takes_passwords {
        "a password is kept for it, which it does not take: is it the gateway that was meant?"
    } else if has_password == Some(false) {
        "a password is kept for connections with TLS, and this one has none: --first-hop tls gives it one"
    } else if wants(anonymous::NAME) && options.user.is_none() {
        "set PHOEBUS_USER to an e-mail address"
    } else if takes_passwords {
        &login
    } else if wants(token::NAME) {
        "an agent shows the bearer token that BEARER_TOKEN_FILE names: --first-hop tls starts one"
    } else {
        "this version has nothing else to offer"
    };
    let (mechanisms, advice) = (mechanisms.join(", "), advice.to_owned());
    Error::Authentication { gateway, mechanisms, advice }
}
