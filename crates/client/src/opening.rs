//! The opening of a session without sockets: where to connect, what to say there, how long to wait, and what to do when that fails
//! (P8, P10, P18, P38, S26).
//!
//! ```text
//!              first_hop, and a connection             OPENED
//!   Waiting ────────────────────────────► Speaking ────────────► Done
//!      ▲ ▲             │ lost, failed         │
//!      │ └── again ── Failed ◄────────────────┘ REFUSED, a fault, the deadline
//!      └ a better gateway, the gateway in place of an agent, the destination itself
//! ```
//!
//! Time is an argument, counted from any origin. Random bytes come from the system, and so do the time of day and what is known of
//! agents and short paths, once, when the opening is made.

use crate::agent::Agents;
use crate::bypass;
use crate::error::{Error, RedirectEnd};
use crate::options::Options;
use crate::report::{Hop, Report};
use crate::talk::{Broken, Talk, Turn};
use phoebus_net::tls::AuthClient;
use phoebus_net::transport::Security;
use phoebus_proto::agent::Running;
use phoebus_proto::endpoint::{Endpoint, EndpointRef, Host};
use phoebus_proto::session::message::{Auth, Open, Requirements, feature};
use phoebus_proto::session::{Code, List, SessionId};
use phoebus_proto::units::Span;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

/// Where to connect, by TCP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FirstHop {
    /// To an agent on this host, at any of its addresses.
    Agent(Vec<SocketAddr>),
    /// To a gateway.
    Gateway(Endpoint),
    /// To the destination, without gateways.
    Destination(Endpoint),
}

/// What is to be done next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Send so many of the bytes that were given out, which is all of them.
    Write(usize),
    /// Receive at most so many bytes.
    Read(usize),
    /// The destination has connected: [`Opening::report`].
    Done,
    /// [`Opening::error`]; and see [`Opening::again`].
    Failed,
}

/// A session that is being opened. See the module.
#[derive(Debug)]
pub struct Opening {
    options: Options,
    destination: Endpoint,
    /// The gateways, the one that is asked first.
    path: Vec<Endpoint>,
    asked: Vec<Endpoint>,
    agent: Option<Running>,
    direct: bool,
    note: String,
    stage: Stage,
    begun: Duration,
    deadline: Option<Duration>,
    /// The time of day, for certificates.
    made: SystemTime,
}

#[derive(Debug)]
enum Stage {
    /// For a connection.
    Waiting,
    Speaking(Box<Talk>),
    /// Failed, but there is something to be sent before.
    Parting(Box<Talk>, Box<Error>),
    Done(Box<Report>),
    Failed(Box<Error>, Option<Next>),
}

/// What comes after a failure.
#[derive(Debug)]
enum Next {
    Path(Vec<Endpoint>),
    Gateway,
    Destination,
}

impl Opening {
    /// A session to `destination`, whose name is resolved by the last gateway. Without gateways, and where the path is known to be
    /// short, the connection is direct.
    pub fn new(options: Options, destination: Endpoint) -> Self {
        let agent = options.agents.as_ref().and_then(Agents::find);
        let short = if options.path.is_empty() { None } else { bypass::short(&options, &destination.host) };
        let direct = options.path.is_empty() || short.is_some();
        let note =
            short.map(|rtt| format!("direct: the path measured {}, below {}", Span(rtt), Span(options.bypass_rtt)));
        let mut opening = Self {
            path: options.path.clone(),
            options,
            destination,
            asked: Vec::new(),
            agent,
            direct,
            note: note.unwrap_or_default(),
            stage: Stage::Waiting,
            begun: Duration::ZERO,
            deadline: None,
            made: SystemTime::now(),
        };
        opening.check_agent();
        opening
    }

    /// A connection to `destination` itself, reported like a session with this note.
    pub fn direct(options: Options, destination: Endpoint, note: &str) -> Self {
        let options = Options { path: Vec::new(), agents: None, ..options };
        Self { note: note.to_owned(), ..Self::new(options, destination) }
    }

    /// Says where to connect, and that the time for it begins now. `None` where it is not waiting for that.
    pub fn first_hop(&mut self, now: Duration) -> Option<FirstHop> {
        if !matches!(self.stage, Stage::Waiting) {
            return None;
        }
        self.begun = now;
        self.deadline = Some(now.saturating_add(self.patience()));
        if let Some(gateway) = self.path.first().filter(|gateway| !self.direct && self.asked.last() != Some(gateway)) {
            self.asked.push(gateway.clone());
        }
        Some(match (&self.agent, self.path.first()) {
            _ if self.direct => FirstHop::Destination(self.destination.clone()),
            (Some(agent), _) => FirstHop::Agent(agent.addresses.into_iter().flatten().collect()),
            (None, Some(gateway)) => FirstHop::Gateway(gateway.clone()),
            (None, None) => FirstHop::Destination(self.destination.clone()),
        })
    }

    /// How long to wait for the connection.
    pub fn patience(&self) -> Duration {
        if self.direct { self.options.open_limit } else { self.options.connect_limit }
    }

    /// When it will have waited long enough; `None` where it waits for nothing.
    pub fn deadline(&self) -> Option<Duration> {
        self.deadline.filter(|_| matches!(self.stage, Stage::Waiting | Stage::Speaking(_)))
    }

    /// Goes on, on the connection that was made: takes of `input` what belongs to the handshake, and puts what is to be sent to
    /// `out`, which must not be empty. Gives how many bytes were taken: all, if they were no more than the last step wanted.
    pub fn step(&mut self, now: Duration, input: &[u8], out: &mut [u8]) -> (usize, Step) {
        if matches!(self.stage, Stage::Waiting) {
            self.speak(now);
        }
        let mut taken = 0;
        if let Stage::Speaking(talk) = &mut self.stage {
            let result = talk.receive(input).map(|n| taken = n).and_then(|()| talk.turn());
            match result {
                Ok(Turn::Send) => {}
                Ok(Turn::Receive(want)) => {
                    if self.deadline.is_none_or(|deadline| now < deadline) {
                        return (taken, Step::Read(want));
                    }
                    self.expire();
                }
                Ok(Turn::Over) => self.settle(now),
                Err(broken) => self.part(broken),
            }
        }
        (taken, self.give(out))
    }

    /// No connection came about, or it failed. Only while there is no session.
    pub fn failed(&mut self, error: Error) {
        if matches!(self.stage, Stage::Waiting | Stage::Speaking(_)) {
            self.fail(error);
        }
    }

    /// The same, said by an error of the connection to `at`, if that is known; one of the kind `UnexpectedEof` says that it has
    /// ended.
    pub fn lost(&mut self, at: Option<SocketAddr>, source: io::Error) {
        let heard = match &self.stage {
            Stage::Waiting => false,
            // With fast open the connection itself fails only here.
            Stage::Speaking(talk) => talk.has_heard() || !refuses(&source),
            _ => return,
        };
        let at = at.or_else(|| self.path.first().filter(|_| !self.direct)?.as_ref().socket_addr());
        self.fail(match (self.path.first().cloned().filter(|_| !self.direct), at) {
            (Some(gateway), _) if heard => Error::Lost { gateway, source },
            (Some(gateway), Some(to)) => Error::Gateway { gateway, source: phoebus_net::Error::Connect { to, source } },
            (Some(gateway), None) => Error::Unreachable { gateway, source },
            (None, Some(to)) => Error::Direct(phoebus_net::Error::Connect { to, source }),
            (None, None) => Error::Unreachable { gateway: self.destination.clone(), source },
        });
    }

    /// The deadline is over.
    pub fn expire(&mut self) {
        match &self.stage {
            Stage::Waiting => {
                let source =
                    |to: &Endpoint| phoebus_net::Error::Timeout { to: to.to_string(), limit: Span(self.patience()) };
                self.fail(match self.path.first().filter(|_| !self.direct) {
                    Some(gateway) => Error::Gateway { gateway: gateway.clone(), source: source(gateway) },
                    None => Error::Direct(source(&self.destination)),
                });
            }
            Stage::Speaking(_) => {
                if let Some(gateway) = self.path.first().cloned() {
                    let (destination, limit) = (self.destination.clone(), Span(self.options.open_limit));
                    self.fail(Error::Timeout { gateway, destination, limit });
                }
            }
            _ => {}
        }
    }

    /// Begins anew where there is something else to try after a failure.
    pub fn again(&mut self) -> bool {
        let Stage::Failed(error, next @ Some(_)) = &mut self.stage else { return false };
        match next.take() {
            Some(Next::Path(path)) => self.path = path,
            Some(Next::Gateway) => self.agent = None,
            Some(Next::Destination) => {
                self.note = format!("direct: {error}");
                self.direct = true;
            }
            None => return false,
        }
        self.stage = Stage::Waiting;
        true
    }

    /// Whether it goes to the destination itself.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// Why there is no session.
    pub fn error(&self) -> Option<&Error> {
        if let Stage::Failed(error, _) = &self.stage { Some(error) } else { None }
    }

    /// The same, for good.
    pub fn into_error(self) -> Error {
        match self.stage {
            Stage::Failed(error, _) => *error,
            _ => self.unfinished(),
        }
    }

    /// What the session got, without what only the owner of the connection knows ([`Report::describe`]).
    pub fn report(&mut self) -> Option<&mut Report> {
        if let Stage::Done(report) = &mut self.stage { Some(report) } else { None }
    }

    /// With what it was asked for.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Where it is to end.
    pub fn destination(&self) -> &Host {
        &self.destination.host
    }

    /// Fails it if an agent is demanded and none runs.
    fn check_agent(&mut self) {
        let demanded = self.options.agents.as_ref().and_then(Agents::demanded);
        if let (Some(first_hop), None, false, Some(gateway)) =
            (demanded, &self.agent, self.direct, self.options.path.first())
        {
            self.stage = Stage::Failed(Box::new(Error::NoAgent { gateway: gateway.clone(), first_hop }), None);
        }
    }

    /// There is a connection.
    fn speak(&mut self, now: Duration) {
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
        let Some(gateway) = self.path.first().cloned() else { return Err(self.unfinished().into()) };
        let agent = &self.agent;
        // What is to be visited after whoever is asked.
        let later = if agent.is_some() { &self.path[..] } else { &self.path[1..] };
        let later: Vec<EndpointRef> = later.iter().map(Endpoint::as_ref).collect();
        let mut session = [0; 16];
        getrandom::fill(&mut session).map_err(Error::Random)?;
        let demands = &self.options.demands;
        let requirements = Requirements {
            rate: self.options.bandwidth.map(|rate| rate.0),
            buffer: demands.buffer,
            streams: demands.streams,
            ..Requirements::default()
        };
        let destination = self.destination.as_ref();
        let required = if demands.aware { feature::AWARE } else { 0 };
        let open =
            Open { path: List::new(&later), requirements, required, ..Open::new(SessionId(session), destination) };
        let auth = match (agent, &self.options.user) {
            // It says itself who its user is.
            (Some(agent), _) => Some(Auth { mechanism: Auth::AGENT, data: &agent.secret.0 }),
            (None, Some(user)) => Some(Auth { mechanism: Auth::ANONYMOUS, data: user.as_bytes() }),
            (None, None) => None,
        };
        let tls = self.options.auth.as_ref().filter(|_| agent.is_none());
        let tls = tls.map(|credentials| AuthClient::new(credentials, &gateway.host.to_string(), self.made)).transpose();
        let tls = tls.map_err(|source| Error::Untrusted { gateway: gateway.clone(), source })?;
        Talk::new(tls, auth.as_ref(), &open).map_err(|source| Error::Protocol { gateway, source }.into())
    }

    /// What is said of an opening whose caller gave up on it.
    fn unfinished(&self) -> Error {
        let gateway = self.path.first().unwrap_or(&self.destination).clone();
        Error::Lost { gateway, source: io::ErrorKind::Interrupted.into() }
    }

    /// The other end has answered.
    fn settle(&mut self, now: Duration) {
        let Stage::Speaking(talk) = std::mem::replace(&mut self.stage, Stage::Waiting) else { return };
        let Some(gateway) = self.path.first() else { return };
        let Some(opened) = talk.opened() else {
            let error = refusal(&talk, gateway, &self.options);
            return self.fail(error);
        };
        let session = opened.session.to_string();
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
        if let [first, .., last] = &self.asked[..] {
            self.note = format!("redirected from {first} to {last}");
        } else if let Some(missing) =
            self.options.agents.as_ref().filter(|_| self.agent.is_none()).and_then(Agents::missing)
        {
            missing.clone_into(&mut self.note);
        }
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

    /// Fails once the other end has been told what TLS has to say to it.
    fn part(&mut self, broken: Broken) {
        let Some(gateway) = self.path.first().cloned() else { return };
        let error = match broken {
            Broken::Protocol(source) => Error::Protocol { gateway, source },
            Broken::Tls(source) if source.kind() == io::ErrorKind::PermissionDenied => {
                Error::Untrusted { gateway, source }
            }
            Broken::Tls(source) => Error::Lost { gateway, source },
        };
        if let Stage::Speaking(talk) = std::mem::replace(&mut self.stage, Stage::Waiting) {
            self.stage = Stage::Parting(talk, Box::new(error));
        }
    }

    /// Gives out what is to be sent, or says how it stands.
    fn give(&mut self, out: &mut [u8]) -> Step {
        if let Stage::Speaking(talk) | Stage::Parting(talk, _) = &mut self.stage {
            let n = talk.outgoing().len().min(out.len());
            if n > 0 {
                out[..n].copy_from_slice(&talk.outgoing()[..n]);
                talk.sent(n);
                return Step::Write(n);
            }
        }
        match std::mem::replace(&mut self.stage, Stage::Waiting) {
            Stage::Parting(_, error) => self.fail(*error),
            stage => self.stage = stage,
        }
        if matches!(self.stage, Stage::Done(_)) { Step::Done } else { Step::Failed }
    }

    fn fail(&mut self, error: Error) {
        let demanded = self.options.agents.as_ref().and_then(Agents::demanded);
        let (next, end) = self.next(&error);
        let error = match (end, demanded, self.path.first()) {
            (Some(end), ..) => Error::Redirected { last: Box::new(error), asked: self.asked.clone(), end },
            (None, Some(first_hop), Some(gateway)) if self.agent.is_some() && error.without_gateway() => {
                Error::NoAgent { gateway: gateway.clone(), first_hop }
            }
            _ => error,
        };
        self.stage = Stage::Failed(Box::new(error), next);
    }

    /// What there is to try after this error, and how a chain of gateways has come to its end if it has.
    fn next(&self, error: &Error) -> (Option<Next>, Option<RedirectEnd>) {
        if self.agent.is_some() && error.without_gateway() {
            let demanded = self.options.agents.as_ref().and_then(Agents::demanded).is_some();
            return ((!demanded).then_some(Next::Gateway), None);
        }
        let better = if let Error::Refused { redirect, .. } = error { redirect.as_ref() } else { None };
        let end = match better {
            Some(better) if self.asked.contains(better) => RedirectEnd::Circle,
            Some(_) if self.asked.len() > self.options.redirects.into() => RedirectEnd::Limit,
            Some(better) => {
                let mut path: Vec<Endpoint> = self.path.iter().skip(1).cloned().collect();
                // It may be the one that was to come next.
                if path.first() != Some(better) {
                    path.insert(0, better.clone());
                }
                return (Some(Next::Path(path)), None);
            }
            None => RedirectEnd::Failed,
        };
        match (self.asked.len(), end) {
            (0 | 1, RedirectEnd::Failed) if self.options.fallback && error.without_gateway() => {
                (Some(Next::Destination), None)
            }
            (0 | 1, RedirectEnd::Failed | RedirectEnd::Limit) => (None, None),
            _ => (None, Some(end)),
        }
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

/// Whether an error means that nobody accepted the connection.
fn refuses(error: &io::Error) -> bool {
    use Code::{HostUnreachable, NetworkUnreachable, Refused, TimedOut};
    matches!(phoebus_net::code_of(error), Refused | TimedOut | HostUnreachable | NetworkUnreachable)
}

/// The error of a handshake that did not end in OPENED.
fn refusal(talk: &Talk, gateway: &Endpoint, options: &Options) -> Error {
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
    let anonymous = mechanisms.contains(&Auth::ANONYMOUS) && options.user.is_none();
    let advice =
        if anonymous { "set PHOEBUS_USER to an e-mail address" } else { "this version has nothing else to offer" };
    Error::Authentication { gateway, mechanisms: mechanisms.join(", "), advice }
}
