//! The end of a hop that is asked: it reads HELLO, AUTH and OPEN, and its owner decides (`docs/protocol/session.md` §5).
//!
//! ```text
//!            HELLO in            OPEN or ATTACH in           opened
//!   Greeting ────────► Greeted ───────────────────► Asked ──────────► Opened
//!                       ▲  │ AUTH in                  │                 │
//!                       │  ▼                 refuse   │    next_session │
//!                       │ Asked ── challenge ──► Challenged (all but AUTH is skipped)
//!                       └── accept_auth ──────────────┴─────────────────┘
//! ```
//!
//! The caller moves bytes and owns the deadline, as for the [initiator](super::initiator).

use super::inbox::Inbox;
use super::initiator::check_hello;
use super::message::{Attach, Auth, Challenge, Hello, Message, Open, Opened, Refused, Requirements, feature};
use super::wire::{MESSAGE_MAX, PREFACE, PREFIX_LEN, ProtocolError};
use super::{Code, Mode};

/// Where the handshake stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Waiting for the peer's HELLO.
    Greeting,
    /// Waiting for AUTH, OPEN or ATTACH.
    Greeted,
    /// A challenge was sent; all but AUTH is skipped.
    Challenged,
    /// [`Acceptor::request`] waits for a decision.
    Asked,
    /// The session is open; the next byte belongs to the stream.
    Opened(Mode),
}

/// Most messages that are skipped behind one challenge. 16: a peer sends OPEN along with the AUTH that is not enough, and not many
/// times, as it has to wait for the challenge first.
const SKIPPED_MAX: u8 = 16;
/// Most bytes that may wait to be sent when one more message is added: a greeting and two answers, whatever their length.
const OUTGOING_MAX: usize = 2 * (PREFIX_LEN + MESSAGE_MAX);

/// What the peer asks for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Request<'a> {
    /// To be believed who it is.
    Auth(Auth<'a>),
    /// A session.
    Open(Open<'a>),
    /// To join a session.
    Attach(Attach<'a>),
    /// A session that requires features which this version does not know: these bits of [`Open::required`]. It can only be
    /// refused, with [`Code::Feature`].
    Unsupported(u64),
}

/// The acceptor's side of the handshake.
#[derive(Debug)]
pub struct Acceptor {
    inbox: Inbox<Vec<u8>>,
    out: Vec<u8>,
    sent: usize,
    state: State,
    name: Box<str>,
    peer_name: Box<str>,
    peer_features: u64,
    peer_is_beacon: bool,
    peer_instance: u64,
    /// Messages skipped since the last challenge.
    skipped: u8,
    instance: u64,
}

impl Acceptor {
    /// Waits for a peer's greeting; `name` is what this end calls itself.
    pub fn new(name: &str) -> Self {
        Self {
            inbox: Inbox::new(Vec::new()),
            out: Vec::new(),
            sent: 0,
            state: State::Greeting,
            name: name.into(),
            peer_name: "".into(),
            peer_features: 0,
            peer_is_beacon: false,
            peer_instance: 0,
            skipped: 0,
            instance: 0,
        }
    }

    /// The same, by the process of that name which is this one ([`Hello::instance`]). To be said before the greeting.
    #[must_use]
    pub fn with_instance(self, instance: u64) -> Self {
        Self { instance, ..self }
    }

    /// Where the handshake stands.
    pub fn state(&self) -> State {
        self.state
    }

    /// What the peer calls itself; empty for a client. Not proven by anything.
    pub fn peer_name(&self) -> &str {
        &self.peer_name
    }

    /// Features that the peer and this end have in common.
    pub fn peer_features(&self) -> u64 {
        self.peer_features
    }

    /// Whether the peer has called this connection a beacon ([`Hello::beacon`]).
    pub fn peer_is_beacon(&self) -> bool {
        self.peer_is_beacon
    }

    /// Which process of its name the peer is; 0 if it has not said ([`Hello::instance`]).
    pub fn peer_instance(&self) -> u64 {
        self.peer_instance
    }

    /// What is still to be sent.
    pub fn outgoing(&self) -> &[u8] {
        &self.out[self.sent..]
    }

    /// Says that the first `n` bytes of [`Acceptor::outgoing`] were sent.
    pub fn sent(&mut self, n: usize) {
        self.sent += n.min(self.out.len() - self.sent);
        if self.sent == self.out.len() {
            (self.out, self.sent) = (Vec::new(), 0);
        }
    }

    /// How many bytes may be read next; 0 while a decision is due or a session is open.
    pub fn want(&self) -> usize {
        if self.waiting() { self.inbox.want() } else { 0 }
    }

    /// Where to read the next bytes to; empty when nothing is expected.
    ///
    /// # Errors
    /// None today; kept for storages that are bounded.
    pub fn space(&mut self) -> Result<&mut [u8], ProtocolError> {
        if self.waiting() { self.inbox.space() } else { Ok(&mut []) }
    }

    /// Says that `n` bytes were read into [`Acceptor::space`]; look at [`Acceptor::state`] afterwards.
    ///
    /// # Errors
    /// What the peer did wrong. A REFUSED that says so is among [`Acceptor::outgoing`]; send it and close.
    pub fn received(&mut self, n: usize) -> Result<(), ProtocolError> {
        if !self.waiting() {
            return Ok(());
        }
        self.process(n).inspect_err(|error| {
            let code = match error {
                ProtocolError::Version { .. } => Code::Version,
                ProtocolError::Feature(_) => Code::Feature,
                _ => Code::Protocol,
            };
            self.refuse_because(code, &error.to_string());
        })
    }

    /// What is to be decided, in state [`State::Asked`].
    pub fn request(&self) -> Option<Request<'_>> {
        if self.state != State::Asked {
            return None;
        }
        match self.inbox.message() {
            Ok(Some(Message::Auth(auth))) => Some(Request::Auth(auth)),
            Ok(Some(Message::Open(open))) => Some(match open.required & !feature::KNOWN {
                0 => Request::Open(open),
                unknown => Request::Unsupported(unknown),
            }),
            Ok(Some(Message::Attach(attach))) => Some(Request::Attach(attach)),
            _ => None,
        }
    }

    /// Takes the peer's word in AUTH.
    pub fn accept_auth(&mut self) {
        if matches!(self.request(), Some(Request::Auth(_))) {
            self.inbox.next();
            self.state = State::Greeted;
        }
    }

    /// Asks for (another) AUTH. What was sent along with the one before is skipped.
    ///
    /// # Errors
    /// [`ProtocolError::Unexpected`] when nothing was asked, [`ProtocolError::NoRoom`] when the challenge is too long.
    pub fn challenge(&mut self, challenge: &Challenge) -> Result<(), ProtocolError> {
        self.decide()?;
        self.queue(Message::Challenge(*challenge))?;
        (self.state, self.skipped) = (State::Challenged, 0);
        Ok(())
    }

    /// Grants the session.
    ///
    /// # Errors
    /// [`ProtocolError::Unexpected`] when nothing was asked, [`ProtocolError::Feature`] for [`Request::Unsupported`],
    /// [`ProtocolError::NoRoom`] when the report is too long.
    pub fn opened(&mut self, opened: &Opened) -> Result<(), ProtocolError> {
        if let Some(Request::Unsupported(unknown)) = self.request() {
            return Err(ProtocolError::Feature(unknown));
        }
        self.decide()?;
        self.queue(Message::Opened(*opened))?;
        self.state = State::Opened(opened.mode);
        Ok(())
    }

    /// Refuses what was asked; the peer may ask for something else.
    ///
    /// # Errors
    /// [`ProtocolError::Unexpected`] when nothing was asked, [`ProtocolError::NoRoom`] when the reason is too long.
    pub fn refuse(&mut self, refused: &Refused) -> Result<(), ProtocolError> {
        self.decide()?;
        self.queue(Message::Refused(*refused))?;
        self.state = State::Greeted;
        Ok(())
    }

    /// Says that a framed session has ended on both sides and the connection is free ([`super::frame::Exchange::reusable`]).
    ///
    /// # Errors
    /// [`ProtocolError::Unexpected`] when no framed session was open.
    pub fn next_session(&mut self) -> Result<(), ProtocolError> {
        if self.state != State::Opened(Mode::Framed) {
            return Err(ProtocolError::Unexpected { got: "the end of a session", expected: "a framed session" });
        }
        self.state = State::Greeted;
        Ok(())
    }

    /// Says to the peer that this connection ends, whatever the state: a time-out, say, or a broken protocol.
    pub fn refuse_because(&mut self, code: Code, reason: &str) {
        if self.state == State::Greeting && self.out.is_empty() {
            self.out.extend_from_slice(&PREFACE);
        }
        let name = self.name.clone();
        let refused = Refused { code, reason, hop: &name, limits: Requirements::default(), redirect: None };
        // A reason that does not fit is left out rather than the refusal.
        if self.queue(Message::Refused(refused)).is_err() {
            let _ = self.queue(Message::Refused(Refused { reason: "", ..refused }));
        }
    }

    fn waiting(&self) -> bool {
        matches!(self.state, State::Greeting | State::Greeted | State::Challenged)
    }

    fn process(&mut self, n: usize) -> Result<(), ProtocolError> {
        self.inbox.filled(n)?;
        let Some(message) = self.inbox.message()? else { return Ok(()) };
        let unexpected = |expected| Err(ProtocolError::Unexpected { got: message.name(), expected });
        match (self.state, message) {
            (State::Greeting, Message::Hello(hello)) => {
                self.peer_features = check_hello(&hello)?;
                self.peer_name = hello.name.into();
                self.peer_is_beacon = hello.beacon;
                self.peer_instance = hello.instance;
                self.inbox.next();
                self.state = State::Greeted;
                self.greet()
            }
            (State::Greeting, _) => unexpected("HELLO"),
            (State::Greeted | State::Challenged, Message::Auth(_)) => {
                self.state = State::Asked;
                Ok(())
            }
            (State::Challenged, Message::Open(_) | Message::Attach(_)) if self.skipped < SKIPPED_MAX => {
                self.skipped += 1;
                self.inbox.next();
                Ok(())
            }
            (State::Challenged, _) => unexpected("AUTH"),
            (_, Message::Open(_) | Message::Attach(_)) => {
                self.state = State::Asked;
                Ok(())
            }
            _ => unexpected("AUTH, OPEN or ATTACH"),
        }
    }

    fn decide(&mut self) -> Result<(), ProtocolError> {
        if self.state != State::Asked {
            return Err(ProtocolError::Unexpected { got: "a decision", expected: "a request first" });
        }
        self.inbox.next();
        Ok(())
    }

    fn greet(&mut self) -> Result<(), ProtocolError> {
        self.out.extend_from_slice(&PREFACE);
        let name = self.name.clone();
        self.queue(Message::Hello(Hello { instance: self.instance, ..Hello::of(&name) }))
    }

    fn queue(&mut self, message: Message) -> Result<(), ProtocolError> {
        let start = self.out.len();
        if start - self.sent > OUTGOING_MAX {
            return Err(ProtocolError::NoRoom(start - self.sent));
        }
        let mut room = 1024;
        loop {
            self.out.resize(start + room, 0);
            match message.encode(&mut self.out[start..]) {
                Ok(len) => {
                    self.out.truncate(start + len);
                    self.out.shrink_to_fit();
                    return Ok(());
                }
                Err(error) if room >= PREFIX_LEN + MESSAGE_MAX => {
                    self.out.truncate(start);
                    return Err(error);
                }
                Err(_) => room = PREFIX_LEN + MESSAGE_MAX,
            }
        }
    }
}
