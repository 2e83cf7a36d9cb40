//! The initiator of a hop: sends HELLO, AUTH and OPEN, and processes the answers (`docs/protocol/session.md` §5).
//!
//! ```text
//!            greet               HELLO in             open              OPENED in
//!   (new) ───────────► Greeting ──────────► Ready ───────────► Opening ──────────► Opened
//!     │                                       ▲                  │  ▲ │               │ next_session (framed)
//!     │ connect: HELLO, AUTH and OPEN at once │    REFUSED in    │  │ │ CHALLENGE in  ▼
//!     └───────────────────────────────────────┼──────────────────┘  │ ▼             Ready
//!                              (state Refused)┘       authenticate  Challenged
//! ```
//!
//! Where the acceptor has to prove itself as well ([`Initiator::demand_proof`]), PROVED comes before OPENED, or before a greeting
//! ends: the state is then [`State::Proved`] until the caller has checked it.
//!
//! The caller does the I/O: it sends [`Initiator::outgoing`], reads into [`Initiator::space`], and checks
//! [`Initiator::state`]. It also owns the deadline of the handshake.

use super::inbox::Inbox;
use super::message::{Attach, Auth, Challenge, Hello, Message, Open, Opened, Proved, Refused, feature};
use super::outbox::Outbox;
use super::storage::Storage;
use super::wire::ProtocolError;
use super::{Mode, SessionId, VERSION};

/// State of the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Waiting for the peer's HELLO; no session was requested yet.
    Greeting,
    /// The connection is idle: [`Initiator::open`] and [`Initiator::attach`] may be called.
    Ready,
    /// A session was requested; waiting for the answer.
    Opening,
    /// The peer requires authentication: see [`Initiator::challenge`].
    Challenged,
    /// The acceptor proves itself: see [`Initiator::proved`] and [`Initiator::accept_proof`].
    Proved,
    /// The session is connected: see [`Initiator::opened`]. The next byte belongs to the stream.
    Opened,
    /// The session was refused: see [`Initiator::refused`]. Another may be requested.
    Refused,
}

/// The initiator's side of the handshake. `O` holds outgoing bytes, `B` incoming ones.
#[derive(Debug)]
pub struct Initiator<O, B> {
    outbox: Outbox<O>,
    inbox: Inbox<B>,
    state: State,
    greeted: bool,
    /// Whether PROVED has to come first.
    demands_proof: bool,
    requested: Option<(SessionId, Mode)>,
    peer_features: u64,
}

impl<O: Storage, B: Storage> Initiator<O, B> {
    /// Sends HELLO, AUTH (if given) and OPEN in one flight.
    ///
    /// # Errors
    /// [`ProtocolError::NoRoom`] if `out` cannot hold the messages.
    pub fn connect(out: O, inbox: B, hello: &Hello, auth: Option<&Auth>, open: &Open) -> Result<Self, ProtocolError> {
        let mut initiator = Self::greet(out, inbox, hello, auth)?;
        initiator.outbox.add(&Message::Open(*open))?;
        initiator.requested = Some((open.session, open.mode));
        initiator.state = State::Opening;
        Ok(initiator)
    }

    /// Sends HELLO, AUTH (if given) and ATTACH in one flight. The answer is OPENED or REFUSED, as for OPEN.
    ///
    /// # Errors
    /// [`ProtocolError::NoRoom`] if `out` cannot hold the messages.
    pub fn join(out: O, inbox: B, hello: &Hello, auth: Option<&Auth>, attach: &Attach) -> Result<Self, ProtocolError> {
        let mut initiator = Self::greet(out, inbox, hello, auth)?;
        initiator.outbox.add(&Message::Attach(*attach))?;
        initiator.requested = Some((attach.session, Mode::Framed));
        initiator.state = State::Opening;
        Ok(initiator)
    }

    /// Sends HELLO and AUTH (if given) only, to prepare a connection for later sessions.
    ///
    /// # Errors
    /// [`ProtocolError::NoRoom`] if `out` cannot hold the messages.
    pub fn greet(out: O, inbox: B, hello: &Hello, auth: Option<&Auth>) -> Result<Self, ProtocolError> {
        let mut initiator = Self {
            outbox: Outbox::new(out),
            inbox: Inbox::new(inbox),
            state: State::Greeting,
            greeted: false,
            demands_proof: false,
            requested: None,
            peer_features: 0,
        };
        initiator.outbox.add_preface()?;
        initiator.outbox.add(&Message::Hello(*hello))?;
        if let Some(auth) = auth {
            initiator.outbox.add(&Message::Auth(*auth))?;
        }
        Ok(initiator)
    }

    /// From now on, neither a session nor a greeting is complete before PROVED. To be called right after the first AUTH was added.
    pub fn demand_proof(&mut self) {
        self.demands_proof = true;
    }

    /// Requests a session, in state [`State::Ready`] or [`State::Refused`].
    ///
    /// # Errors
    /// [`ProtocolError::Unexpected`] in another state, [`ProtocolError::NoRoom`] if OPEN does not fit.
    pub fn open(&mut self, open: &Open) -> Result<(), ProtocolError> {
        self.request(Message::Open(*open), (open.session, open.mode))
    }

    /// Requests to join a session's bundle, in state [`State::Ready`] or [`State::Refused`].
    ///
    /// # Errors
    /// As [`Initiator::open`].
    pub fn attach(&mut self, attach: &Attach) -> Result<(), ProtocolError> {
        self.request(Message::Attach(*attach), (attach.session, Mode::Framed))
    }

    /// Answers a challenge and sends OPEN again, if one was sent: the acceptor ignores every OPEN before a sufficient AUTH.
    ///
    /// # Errors
    /// [`ProtocolError::Unexpected`] without a challenge, [`ProtocolError::NoRoom`] if the messages do not fit.
    pub fn authenticate(&mut self, auth: &Auth, open: Option<&Open>) -> Result<(), ProtocolError> {
        if self.state != State::Challenged {
            return Err(ProtocolError::Unexpected { got: "credentials", expected: "CHALLENGE first" });
        }
        self.inbox.next();
        self.outbox.add(&Message::Auth(*auth))?;
        self.state = State::Greeting;
        if let Some(open) = open {
            self.outbox.add(&Message::Open(*open))?;
            self.requested = Some((open.session, open.mode));
            self.state = State::Opening;
        }
        Ok(())
    }

    /// Goes on after the caller has checked [`Initiator::proved`].
    pub fn accept_proof(&mut self) {
        if self.state == State::Proved {
            self.inbox.next();
            self.demands_proof = false;
            self.state = if self.requested.is_some() { State::Opening } else { State::Ready };
        }
    }

    /// Returns to [`State::Ready`] after a framed session: call it when [`super::frame::FrameState::reusable`] is true.
    ///
    /// # Errors
    /// [`ProtocolError::Unexpected`] if no framed session was open.
    pub fn next_session(&mut self) -> Result<(), ProtocolError> {
        if self.state != State::Opened || self.requested.is_none_or(|(_, mode)| mode != Mode::Framed) {
            return Err(ProtocolError::Unexpected { got: "the end of a session", expected: "a framed session" });
        }
        self.inbox.next();
        self.state = State::Ready;
        Ok(())
    }

    /// The state of the handshake.
    pub fn state(&self) -> State {
        self.state
    }

    /// Features that both ends support; 0 before the peer's HELLO.
    pub fn peer_features(&self) -> u64 {
        self.peer_features
    }

    /// Bytes to send next.
    pub fn outgoing(&self) -> &[u8] {
        self.outbox.outgoing()
    }

    /// Records that the first `n` bytes of [`Initiator::outgoing`] were sent.
    pub fn sent(&mut self, n: usize) {
        self.outbox.sent(n);
    }

    /// Number of bytes that may be read next. 0 if nothing is expected.
    pub fn want(&self) -> usize {
        if self.waiting() { self.inbox.want() } else { 0 }
    }

    /// The buffer for the next read. Empty if nothing is expected.
    ///
    /// # Errors
    /// [`ProtocolError::NoRoom`] if the storage cannot hold the peer's message.
    pub fn space(&mut self) -> Result<&mut [u8], ProtocolError> {
        if self.waiting() { self.inbox.space() } else { Ok(&mut []) }
    }

    /// Records that `n` bytes were read into [`Initiator::space`]. Check [`Initiator::state`] afterwards.
    ///
    /// # Errors
    /// How the peer broke the protocol. The connection cannot be used any more.
    pub fn received(&mut self, n: usize) -> Result<(), ProtocolError> {
        if !self.waiting() {
            return Ok(());
        }
        self.inbox.filled(n)?;
        let Some(message) = self.inbox.message()? else { return Ok(()) };
        if !self.greeted {
            return match message {
                Message::Hello(hello) => {
                    self.peer_features = check_hello(&hello)?;
                    self.greeted = true;
                    match self.state {
                        // HELLO stays readable until a session is requested.
                        State::Greeting if !self.demands_proof => self.state = State::Ready,
                        _ => self.inbox.next(),
                    }
                    Ok(())
                }
                // An acceptor without a common version sends REFUSED instead of HELLO.
                Message::Refused(_) => {
                    self.state = State::Refused;
                    Ok(())
                }
                other => Err(ProtocolError::Unexpected { got: other.name(), expected: "HELLO" }),
            };
        }
        self.state = match (message, self.requested) {
            (Message::Proved(_), _) if self.demands_proof => State::Proved,
            (Message::Opened(_), _) if self.demands_proof => return Err(ProtocolError::Unproved("OPENED")),
            (Message::Opened(opened), Some((session, mode))) => {
                if opened.session != session {
                    return Err(ProtocolError::WrongSession);
                }
                if opened.mode != mode {
                    return Err(ProtocolError::WrongMode);
                }
                State::Opened
            }
            (Message::Refused(_), _) => State::Refused,
            (Message::Challenge(_), _) => State::Challenged,
            (other, _) => return Err(ProtocolError::Unexpected { got: other.name(), expected: "OPENED or REFUSED" }),
        };
        Ok(())
    }

    /// The peer's HELLO, in state [`State::Ready`] before the first session.
    pub fn hello(&self) -> Option<Hello<'_>> {
        match self.inbox.message() {
            Ok(Some(Message::Hello(hello))) => Some(hello),
            _ => None,
        }
    }

    /// The peer's OPENED, in state [`State::Opened`].
    pub fn opened(&self) -> Option<Opened<'_>> {
        match self.inbox.message() {
            Ok(Some(Message::Opened(opened))) => Some(opened),
            _ => None,
        }
    }

    /// The peer's REFUSED, in state [`State::Refused`]. A peer that has still to prove itself names no better gateway.
    pub fn refused(&self) -> Option<Refused<'_>> {
        match self.inbox.message() {
            Ok(Some(Message::Refused(refused))) if self.demands_proof => Some(Refused { redirect: None, ..refused }),
            Ok(Some(Message::Refused(refused))) => Some(refused),
            _ => None,
        }
    }

    /// The peer's CHALLENGE, in state [`State::Challenged`].
    pub fn challenge(&self) -> Option<Challenge<'_>> {
        match self.inbox.message() {
            Ok(Some(Message::Challenge(challenge))) => Some(challenge),
            _ => None,
        }
    }

    /// The peer's PROVED, in state [`State::Proved`].
    pub fn proved(&self) -> Option<Proved<'_>> {
        match self.inbox.message() {
            Ok(Some(Message::Proved(proved))) => Some(proved),
            _ => None,
        }
    }

    fn request(&mut self, request: Message, requested: (SessionId, Mode)) -> Result<(), ProtocolError> {
        if !matches!(self.state, State::Ready | State::Refused) {
            return Err(ProtocolError::Unexpected { got: "another request", expected: "an idle connection" });
        }
        self.inbox.next();
        self.outbox.add(&request)?;
        self.requested = Some(requested);
        self.state = State::Opening;
        Ok(())
    }

    fn waiting(&self) -> bool {
        matches!(self.state, State::Greeting | State::Opening)
    }
}

/// Checks version and required features of the peer's HELLO, and returns the features that both ends support.
pub(super) fn check_hello(hello: &Hello) -> Result<u64, ProtocolError> {
    if !(hello.version_min..=hello.version_max).contains(&VERSION) {
        return Err(ProtocolError::Version { min: hello.version_min, max: hello.version_max });
    }
    match hello.required & !feature::KNOWN {
        0 => Ok(hello.features & feature::KNOWN),
        unknown => Err(ProtocolError::Feature(unknown)),
    }
}
