//! The accepting side of a session, without sockets (S5): reads, judges and answers the request of the connecting
//! peer.
//!
//! ```text
//!   Speaking ── OPEN in, OPENED sent ──► Done
//!      │ OPEN that cannot be, a fault, the deadline
//!      ▼
//!   Closing ── REFUSED sent ──► Failed
//! ```
//!
//! The last gateway sends such a request if the session is for an aware destination
//! ([`Demands::aware`](crate::Demands)). The caller owns the connection, so the stream goes over it raw. Time is an
//! argument, counted from any origin.

use crate::opening::Step;
use crate::report::{Hop, Report};
use phoebus_net::transport::Security;
use phoebus_proto::session::acceptor::{Acceptor, Request};
use phoebus_proto::session::auth::anonymous;
use phoebus_proto::session::message::{Open, Opened, Refused, Requirements};
use phoebus_proto::session::{Code, List, Mode, ProtocolError};
use phoebus_proto::units::Span;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// The terms on which sessions are accepted.
#[derive(Debug, Clone)]
pub struct AcceptOptions {
    /// The name of this end.
    pub name: String,
    /// The peer's address, if it is known.
    pub from: Option<SocketAddr>,
    /// Whether the peer may open sessions; otherwise it is refused.
    pub admitted: bool,
    /// The longest wait for the peer's request.
    pub limit: Duration,
}

/// Why no session was accepted.
#[derive(Debug, thiserror::Error)]
pub enum AcceptError {
    /// The peer broke the protocol, or speaks another one.
    #[error("{from} did not ask for a session: {source}")]
    Protocol {
        /// The peer.
        from: String,
        /// What the peer did.
        source: ProtocolError,
    },
    /// This end refused the request.
    #[error("{from} requested a session that this end cannot provide: {reason}")]
    Refused {
        /// The peer.
        from: String,
        /// The reason, as a code.
        code: Code,
        /// The reason, as text.
        reason: &'static str,
    },
    /// The connection failed before a session was accepted.
    #[error("{from} did not ask for a session: the connection failed: {}", phoebus_net::reason(source))]
    Lost {
        /// The peer.
        from: String,
        /// How the connection failed.
        source: io::Error,
    },
    /// The peer sent no request in time.
    #[error("{from} did not ask for a session within {limit}")]
    Timeout {
        /// The peer.
        from: String,
        /// How long this end waited.
        limit: Span,
    },
}

impl AcceptError {
    /// The reason, as a code.
    pub fn code(&self) -> Code {
        match self {
            Self::Protocol { .. } => Code::Protocol,
            Self::Refused { code, .. } => *code,
            Self::Lost { source, .. } => phoebus_net::code_of(source),
            Self::Timeout { .. } => Code::HandshakeTimeout,
        }
    }

    /// The peer of the connection.
    pub fn hop(&self) -> &str {
        match self {
            Self::Protocol { from, .. }
            | Self::Refused { from, .. }
            | Self::Lost { from, .. }
            | Self::Timeout { from, .. } => from,
        }
    }
}

/// A session that is being accepted. See the module.
#[derive(Debug)]
pub struct Accepting {
    acceptor: Acceptor,
    terms: AcceptOptions,
    begun: Duration,
    stage: Stage,
    /// The session's parameters, once it is granted.
    granted: Option<(Report, String)>,
}

#[derive(Debug)]
enum Stage {
    Speaking,
    /// Failed, but a last message remains to be sent.
    Closing(AcceptError),
    Done,
    Failed(AcceptError),
}

impl Accepting {
    /// For a connection that was accepted at `now`.
    pub fn new(terms: AcceptOptions, now: Duration) -> Self {
        Self { acceptor: Acceptor::new(&terms.name), terms, begun: now, stage: Stage::Speaking, granted: None }
    }

    /// The deadline; `None` if it waits for nothing.
    pub fn deadline(&self) -> Option<Duration> {
        let waits = matches!(self.stage, Stage::Speaking | Stage::Closing(_));
        waits.then(|| self.begun.saturating_add(self.terms.limit))
    }

    /// Consumes the part of `input` that belongs to the handshake, and writes the bytes to send into `out`, which
    /// must not be empty. Returns the next step and the number of consumed bytes: all of them, if they were no more
    /// than the last step wanted.
    pub fn step(&mut self, now: Duration, input: &[u8], out: &mut [u8]) -> (usize, Step) {
        let taken = if matches!(self.stage, Stage::Speaking) { self.receive(now, input) } else { 0 };
        let n = self.acceptor.outgoing().len().min(out.len());
        if n > 0 && matches!(self.stage, Stage::Speaking | Stage::Closing(_)) {
            out[..n].copy_from_slice(&self.acceptor.outgoing()[..n]);
            self.acceptor.sent(n);
            return (taken, Step::Write(n));
        }
        self.stage = match std::mem::replace(&mut self.stage, Stage::Done) {
            Stage::Closing(error) => Stage::Failed(error),
            Stage::Speaking if self.granted.is_none() => {
                if self.deadline_is_over(now) {
                    let error = self.timeout();
                    self.part(Code::HandshakeTimeout, "no request arrived in time", error);
                    return (taken, self.step(now, &[], out).1);
                }
                self.stage = Stage::Speaking;
                return (taken, Step::Read(self.acceptor.want()));
            }
            Stage::Speaking => Stage::Done,
            stage => stage,
        };
        (taken, if matches!(self.stage, Stage::Done) { Step::Done } else { Step::Failed })
    }

    /// Reports that the connection failed; the kind `UnexpectedEof` means that the peer closed it.
    pub fn lost(&mut self, source: io::Error) {
        let from = self.from();
        self.fail(AcceptError::Lost { from, source });
    }

    /// Reports that the deadline has passed.
    pub fn expire(&mut self) {
        let error = self.timeout();
        self.fail(error);
    }

    /// Why there is no session.
    pub fn error(&self) -> Option<&AcceptError> {
        if let Stage::Failed(error) = &self.stage { Some(error) } else { None }
    }

    /// What this end knows of the session.
    pub fn report(&mut self) -> Option<&mut Report> {
        match (&self.stage, &mut self.granted) {
            (Stage::Done, Some((report, _))) => Some(report),
            _ => None,
        }
    }

    /// The client's address as the hops report it; it is not authenticated.
    pub fn origin(&self) -> Option<&str> {
        self.granted.as_ref().map(|(_, origin)| origin.as_str())
    }

    fn from(&self) -> String {
        self.terms.from.map_or_else(|| "whoever has connected".to_owned(), |from| from.to_string())
    }

    fn timeout(&self) -> AcceptError {
        AcceptError::Timeout { from: self.from(), limit: Span(self.terms.limit) }
    }

    fn deadline_is_over(&self, now: Duration) -> bool {
        now >= self.begun.saturating_add(self.terms.limit)
    }

    fn fail(&mut self, error: AcceptError) {
        self.stage = match std::mem::replace(&mut self.stage, Stage::Done) {
            Stage::Speaking => Stage::Failed(error),
            // The earlier fault is the reason.
            Stage::Closing(before) => Stage::Failed(before),
            stage => stage,
        };
    }

    /// Sends a refusal, and fails with `error` once it is sent.
    fn part(&mut self, code: Code, reason: &str, error: AcceptError) {
        self.acceptor.refuse_because(code, reason);
        self.stage = Stage::Closing(error);
    }

    fn receive(&mut self, now: Duration, input: &[u8]) -> usize {
        let mut taken = 0;
        while taken < input.len() && matches!(self.stage, Stage::Speaking) {
            match fill(&mut self.acceptor, &input[taken..]) {
                Ok(0) => break,
                Ok(n) => taken += n,
                Err(source) => {
                    // The acceptor itself answers this fault.
                    self.stage = Stage::Closing(AcceptError::Protocol { from: self.from(), source });
                    return input.len();
                }
            }
            self.decide(now);
        }
        taken
    }

    /// Answers the request, if it has arrived.
    fn decide(&mut self, now: Duration) {
        let answer = match self.acceptor.request() {
            None => return,
            // An e-mail address, which is not required here, and is harmless.
            Some(Request::Auth(auth)) if auth.mechanism == anonymous::NAME => {
                // An AUTH without an answer can always be accepted.
                let _ = self.acceptor.accept_auth(None);
                return;
            }
            Some(Request::Auth(_)) => Err((Code::AuthFailed, "only anonymous authentication is known here")),
            Some(Request::Attach(_)) => Err((Code::NoSession, "there is no session here that a connection may join")),
            Some(Request::Unsupported(_)) => Err((Code::Feature, "it requires features that are not known here")),
            Some(Request::Open(open)) => self.judge(&open).map(|()| (open.session, self.new_report(now, &open))),
        };
        let answered = match answer {
            Ok((session, granted)) => {
                self.granted = Some(granted);
                self.acceptor.opened(&Opened::new(session, Mode::Raw, List::default()))
            }
            Err((code, reason)) => {
                let name = self.terms.name.clone();
                let refused = Refused { code, reason, hop: &name, limits: Requirements::default(), redirect: None };
                self.stage = Stage::Closing(AcceptError::Refused { from: self.from(), code, reason });
                self.acceptor.refuse(&refused)
            }
        };
        if let Err(source) = answered {
            (self.granted, self.stage) = (None, Stage::Closing(AcceptError::Protocol { from: self.from(), source }));
        }
    }

    fn judge(&self, open: &Open) -> Result<(), (Code, &'static str)> {
        if !self.terms.admitted {
            return Err((Code::NotAllowed, "its configuration does not allow sessions from there"));
        }
        if open.path.iter().next().is_some() {
            return Err((Code::NoRoute, "it is a destination, and no path leads through it"));
        }
        match (open.mode, open.resumable) {
            (Mode::Raw, false) => Ok(()),
            (Mode::Framed, _) => {
                Err((Code::Requirement, "its program owns the connection, so frames are not available"))
            }
            (Mode::Raw, true) => Err((Code::Requirement, "a raw hop cannot be resumed")),
        }
    }

    /// What is known of the path at the end of a session, and the client's address.
    fn new_report(&self, now: Duration, open: &Open) -> (Report, String) {
        let from = self.from();
        let last = Hop {
            from: open.visited.iter().last().map_or_else(|| from.clone(), str::to_owned),
            to: self.terms.name.clone(),
            transport: "tcp".to_owned(),
            security: Security::None.name().to_owned(),
            streams: 1,
            ..Hop::default()
        };
        let report = Report {
            session: open.session.to_string(),
            destination: open.destination.to_string(),
            hops: vec![last],
            opened_in_us: now.saturating_sub(self.begun).as_micros() as u64,
            ..Report::default()
        };
        (report, open.origin.map_or(from, |origin| origin.to_string()))
    }
}

/// Passes `input` to the acceptor, and returns the number of bytes that it consumed.
fn fill(acceptor: &mut Acceptor, input: &[u8]) -> Result<usize, ProtocolError> {
    let space = acceptor.space()?;
    let n = space.len().min(input.len());
    space[..n].copy_from_slice(&input[..n]);
    acceptor.received(n).map(|()| n)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use super::*;
    use phoebus_proto::endpoint::Endpoint;
    use phoebus_proto::session::message::Auth;
    use phoebus_proto::session::message::{Hello, feature};
    use phoebus_proto::session::{Initiator, SessionId, initiator};

    type Asking = Initiator<Vec<u8>, Vec<u8>>;

    fn accepting(admitted: bool) -> Accepting {
        let from = Some("10.0.0.3:5006".parse().unwrap());
        let terms = AcceptOptions { name: "dst".to_owned(), from, admitted, limit: Duration::from_secs(10) };
        Accepting::new(terms, Duration::from_secs(1))
    }

    /// Runs both ends until neither has anything to send, this one with buffers of `room` bytes; `more`
    /// follows the request. Returns the final step and the unconsumed bytes.
    fn talk(accepting: &mut Accepting, asking: &mut Asking, more: &[u8], room: usize) -> (Step, Vec<u8>) {
        let (mut out, mut input) = (vec![0; room], Vec::new());
        let mut wire = asking.outgoing().to_vec();
        asking.sent(wire.len());
        wire.extend_from_slice(more);
        loop {
            let (taken, step) = accepting.step(Duration::from_secs(2), &input, &mut out);
            assert_eq!(taken, input.len(), "all of what was wanted is taken");
            input.clear();
            match step {
                Step::Write(n) => {
                    let mut rest = &out[..n];
                    while !rest.is_empty() && !asking.space().unwrap().is_empty() {
                        let space = asking.space().unwrap();
                        let n = space.len().min(rest.len());
                        space[..n].copy_from_slice(&rest[..n]);
                        asking.received(n).unwrap();
                        rest = &rest[n..];
                    }
                }
                Step::Read(want) => {
                    assert!(want > 0 && !wire.is_empty(), "{want} bytes are wanted");
                    let n = want.min(wire.len()).min(room);
                    input = wire.drain(..n).collect();
                }
                end => return (end, wire),
            }
        }
    }

    fn asking(change: impl FnOnce(&mut Open<'_>)) -> Asking {
        let destination: Endpoint = "dst.example:50001".parse().unwrap();
        let visited = ["pg1", "pg2"];
        let origin: Endpoint = "192.0.2.7:40000".parse().unwrap();
        let mut open = Open {
            visited: List::new(&visited),
            origin: Some(origin.as_ref()),
            required: feature::AWARE,
            ..Open::new(SessionId([7; 16]), destination.as_ref())
        };
        change(&mut open);
        let auth = Auth { mechanism: anonymous::NAME, data: b"ada@example.org" };
        Asking::connect(vec![0; 4096], Vec::new(), &Hello::of("pg2"), Some(&auth), &open).unwrap()
    }

    #[test]
    fn accepting_consumes_the_handshake_and_no_byte_of_the_stream() {
        for room in [1, 3, 4096] {
            let (mut accepting, mut asking) = (accepting(true), asking(|_| {}));
            let (end, rest) = talk(&mut accepting, &mut asking, b"first bytes", room);
            assert_eq!((end, rest.as_slice()), (Step::Done, &b"first bytes"[..]));
            assert_eq!(asking.state(), initiator::State::Opened);
            let report = accepting.report().unwrap();
            assert_eq!((report.destination.as_str(), report.opened_in_us), ("dst.example:50001", 1_000_000));
            assert_eq!((report.hops[0].from.as_str(), report.hops[0].to.as_str()), ("pg2", "dst"));
            assert_eq!(accepting.origin(), Some("192.0.2.7:40000"));
            assert_eq!((accepting.deadline(), accepting.error().is_none()), (None, true));
        }
    }

    #[test]
    fn accepting_refuses_unmet_demands_with_the_reason() {
        let path: Endpoint = "pg3:5006".parse().unwrap();
        let path = [path.as_ref()];
        type Change<'a> = &'a dyn Fn(&mut Open<'_>);
        let framed: Change = &|open| open.mode = Mode::Framed;
        let resumed: Change = &|open| open.resumable = true;
        let plain: Change = &|_| {};
        for (admitted, change, code) in
            [(true, framed, Code::Requirement), (true, resumed, Code::Requirement), (false, plain, Code::NotAllowed)]
        {
            let (mut accepting, mut asking) = (accepting(admitted), asking(change));
            assert_eq!(talk(&mut accepting, &mut asking, b"", 4096).0, Step::Failed);
            assert_eq!(accepting.error().unwrap().code(), code);
            assert_eq!(asking.refused().unwrap().code, code);
            assert_eq!(asking.refused().unwrap().hop, "dst");
        }
        let destination: Endpoint = "dst:7".parse().unwrap();
        let open = Open { path: List::new(&path), ..Open::new(SessionId([7; 16]), destination.as_ref()) };
        let mut asking = Asking::connect(vec![0; 4096], Vec::new(), &Hello::of("pg2"), None, &open).unwrap();
        let mut accepting = accepting(true);
        assert_eq!(talk(&mut accepting, &mut asking, b"", 4096).0, Step::Failed);
        assert_eq!(asking.refused().unwrap().code, Code::NoRoute);
    }

    #[test]
    fn accepting_answers_other_protocols_with_an_error() {
        let mut accepting = accepting(true);
        let mut out = [0; 4096];
        let (_, Step::Read(want)) = accepting.step(Duration::from_secs(1), &[], &mut out) else { panic!() };
        let (taken, step) = accepting.step(Duration::from_secs(1), &b"GET / HTTP/1.1\r\n"[..want], &mut out);
        assert_eq!((taken, matches!(step, Step::Write(_))), (want, true));
        assert_eq!(accepting.step(Duration::from_secs(1), &[], &mut out).1, Step::Failed);
        let error = accepting.error().unwrap();
        assert_eq!((error.code(), error.hop()), (Code::Protocol, "10.0.0.3:5006"));
        assert!(error.to_string().starts_with("10.0.0.3:5006 did not ask for a session: "), "{error}");
    }

    #[test]
    fn accepting_reports_an_expired_deadline() {
        let mut accepting = accepting(true);
        let mut out = [0; 4096];
        assert_eq!(accepting.deadline(), Some(Duration::from_secs(11)));
        assert!(matches!(accepting.step(Duration::from_secs(10), &[], &mut out).1, Step::Read(_)));
        assert!(matches!(accepting.step(Duration::from_secs(11), &[], &mut out).1, Step::Write(_)));
        assert_eq!(accepting.step(Duration::from_secs(11), &[], &mut out).1, Step::Failed);
        assert_eq!(accepting.error().unwrap().to_string(), "10.0.0.3:5006 did not ask for a session within 10s");
        let mut accepting = self::accepting(true);
        accepting.lost(io::ErrorKind::UnexpectedEof.into());
        assert!(matches!(accepting.error().unwrap(), AcceptError::Lost { .. }));
    }
}
