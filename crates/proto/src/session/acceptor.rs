//! The acceptor of a hop: reads HELLO, AUTH, OPEN and ATTACH, and the caller decides (`docs/protocol/session.md` §5).
//!
//! ```text
//!            HELLO in            OPEN or ATTACH in           opened
//!   Greeting ────────► Greeted ───────────────────► Asked ──────────► Opened
//!                       ▲  │ AUTH in                  │                 │
//!                       │  ▼                 refuse   │    next_session │
//!                       │ Asked ── challenge ──► Challenged (OPEN and ATTACH are skipped)
//!                       └── accept_auth ──────────────┴─────────────────┘
//! ```
//!
//! The caller does the I/O and owns the deadline, as for the [initiator](super::initiator).

use super::inbox::Inbox;
use super::initiator::check_hello;
use super::message::{Attach, Auth, Challenge, Hello, Message, Open, Opened, Proved, Refused, Requirements, feature};
use super::outbox::Outbox;
use super::wire::{MESSAGE_MAX, PREFIX_LEN, ProtocolError};
use super::{Code, Mode};

/// State of the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Waiting for the peer's HELLO.
    Greeting,
    /// Waiting for AUTH, OPEN or ATTACH.
    Greeted,
    /// A challenge was sent; OPEN and ATTACH are skipped until AUTH arrives.
    Challenged,
    /// [`Acceptor::request`] waits for the caller's decision.
    Asked,
    /// The session is open; the next byte belongs to the stream.
    Opened(Mode),
}

/// Most messages skipped after one challenge. An initiator sends OPEN along with an insufficient AUTH, but only a few
/// such requests before it has to wait for the challenge.
const SKIPPED_MAX: u8 = 16;
/// Most bytes that may wait to be sent when one more message is queued: two messages of the maximum length.
const OUTGOING_MAX: usize = 2 * (PREFIX_LEN + MESSAGE_MAX);

/// A request of the peer, on which the caller decides.
#[derive(Debug, Clone, Copy, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "a view of a message, which lives for one decision")]
pub enum Request<'a> {
    /// The peer authenticates.
    Auth(Auth<'a>),
    /// The peer requests a session.
    Open(Open<'a>),
    /// The peer requests to join a session.
    Attach(Attach<'a>),
    /// The peer requests a session that requires unknown features: these bits of [`Open::required`]. The caller can
    /// only refuse it, with [`Code::Feature`].
    Unsupported(u64),
}

/// The acceptor's side of the handshake.
#[derive(Debug)]
pub struct Acceptor {
    inbox: Inbox<Vec<u8>>,
    outbox: Outbox<Vec<u8>>,
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
    /// An acceptor that expects a peer's HELLO. `name` is the name of this end in its own HELLO.
    pub fn new(name: &str) -> Self {
        Self {
            inbox: Inbox::new(Vec::new()),
            outbox: Outbox::new(Vec::new()),
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

    /// Sets this process's instance number ([`Hello::instance`]). Must be called before the peer's HELLO is processed.
    #[must_use]
    pub fn with_instance(self, instance: u64) -> Self {
        Self { instance, ..self }
    }

    /// Takes the first byte of a new connection, if the caller has read it to find out what it begins.
    ///
    /// # Errors
    /// [`ProtocolError::Preface`] for a byte that does not begin the protocol.
    pub fn begin(&mut self, first: u8) -> Result<(), ProtocolError> {
        if let Some(place) = self.space()?.first_mut() {
            *place = first;
        }
        self.received(1)
    }

    /// The state of the handshake.
    pub fn state(&self) -> State {
        self.state
    }

    /// The name in the peer's HELLO; empty for a client. The handshake does not verify it.
    pub fn peer_name(&self) -> &str {
        &self.peer_name
    }

    /// Features that both ends support; 0 before the peer's HELLO.
    pub fn peer_features(&self) -> u64 {
        self.peer_features
    }

    /// Whether the peer's HELLO declares this connection a beacon ([`Hello::beacon`]).
    pub fn peer_is_beacon(&self) -> bool {
        self.peer_is_beacon
    }

    /// The instance number of the peer's process ([`Hello::instance`]); 0 if not given.
    pub fn peer_instance(&self) -> u64 {
        self.peer_instance
    }

    /// Bytes to send next.
    pub fn outgoing(&self) -> &[u8] {
        self.outbox.outgoing()
    }

    /// Records that the first `n` bytes of [`Acceptor::outgoing`] were sent.
    pub fn sent(&mut self, n: usize) {
        self.outbox.sent(n);
    }

    /// Number of bytes that may be read next. 0 while a decision is pending or a session is open.
    pub fn want(&self) -> usize {
        if self.waiting() { self.inbox.want() } else { 0 }
    }

    /// The buffer for the next read. Empty if nothing is expected.
    ///
    /// # Errors
    /// None at present: the acceptor's buffer grows up to the longest message.
    pub fn space(&mut self) -> Result<&mut [u8], ProtocolError> {
        if self.waiting() { self.inbox.space() } else { Ok(&mut []) }
    }

    /// Records that `n` bytes were read into [`Acceptor::space`]. Check [`Acceptor::state`] afterwards.
    ///
    /// # Errors
    /// How the peer broke the protocol. [`Acceptor::outgoing`] then ends with a REFUSED; send it and close the
    /// connection.
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

    /// The request that waits for a decision, in state [`State::Asked`].
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

    /// Accepts the peer's AUTH. With `last`, PROVED tells the peer what the mechanism says of this end.
    ///
    /// # Errors
    /// [`ProtocolError::Unexpected`] without a pending AUTH, [`ProtocolError::NoRoom`] if `last` is too long.
    pub fn accept_auth(&mut self, last: Option<&[u8]>) -> Result<(), ProtocolError> {
        let Some(Request::Auth(auth)) = self.request() else {
            return Err(ProtocolError::Unexpected { got: "a decision", expected: "AUTH first" });
        };
        let mechanism = auth.mechanism.to_owned();
        self.inbox.next();
        self.state = State::Greeted;
        match last {
            Some(data) => self.queue(Message::Proved(Proved { mechanism: &mechanism, data })),
            None => Ok(()),
        }
    }

    /// Requests AUTH. The OPEN and ATTACH messages sent along with an insufficient AUTH are skipped.
    ///
    /// # Errors
    /// [`ProtocolError::Unexpected`] without a pending request, [`ProtocolError::NoRoom`] if the challenge is too long.
    pub fn challenge(&mut self, challenge: &Challenge) -> Result<(), ProtocolError> {
        self.take_request()?;
        self.queue(Message::Challenge(*challenge))?;
        (self.state, self.skipped) = (State::Challenged, 0);
        Ok(())
    }

    /// Grants the session.
    ///
    /// # Errors
    /// [`ProtocolError::Unexpected`] without a pending request, [`ProtocolError::Feature`] for
    /// [`Request::Unsupported`], [`ProtocolError::NoRoom`] if the hop reports are too long.
    pub fn opened(&mut self, opened: &Opened) -> Result<(), ProtocolError> {
        if let Some(Request::Unsupported(unknown)) = self.request() {
            return Err(ProtocolError::Feature(unknown));
        }
        self.take_request()?;
        self.queue(Message::Opened(*opened))?;
        self.state = State::Opened(opened.mode);
        Ok(())
    }

    /// Refuses the request. The peer may send another one.
    ///
    /// # Errors
    /// [`ProtocolError::Unexpected`] without a pending request, [`ProtocolError::NoRoom`] if the reason is too long.
    pub fn refuse(&mut self, refused: &Refused) -> Result<(), ProtocolError> {
        self.take_request()?;
        self.queue(Message::Refused(*refused))?;
        self.state = State::Greeted;
        Ok(())
    }

    /// Expects the next request after a framed session: call it when [`super::frame::FrameState::reusable`] is true.
    ///
    /// # Errors
    /// [`ProtocolError::Unexpected`] if no framed session was open.
    pub fn next_session(&mut self) -> Result<(), ProtocolError> {
        if self.state != State::Opened(Mode::Framed) {
            return Err(ProtocolError::Unexpected { got: "the end of a session", expected: "a framed session" });
        }
        self.state = State::Greeted;
        Ok(())
    }

    /// Queues a REFUSED in any state, before the caller closes the connection: after a time-out or a protocol error,
    /// for example.
    pub fn refuse_because(&mut self, code: Code, reason: &str) {
        if self.state == State::Greeting && self.outbox.outgoing().is_empty() {
            // A buffer that grows has room for it.
            let _ = self.outbox.add_preface();
        }
        let name = self.name.clone();
        let refused = Refused { code, reason, hop: &name, limits: Requirements::default(), redirect: None };
        // If the reason does not fit, the refusal is sent without it.
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

    /// Consumes the pending request.
    fn take_request(&mut self) -> Result<(), ProtocolError> {
        if self.state != State::Asked {
            return Err(ProtocolError::Unexpected { got: "a decision", expected: "a request first" });
        }
        self.inbox.next();
        Ok(())
    }

    fn greet(&mut self) -> Result<(), ProtocolError> {
        self.outbox.add_preface()?;
        let name = self.name.clone();
        self.queue(Message::Hello(Hello { instance: self.instance, ..Hello::of(&name) }))
    }

    fn queue(&mut self, message: Message) -> Result<(), ProtocolError> {
        let waiting = self.outbox.outgoing().len();
        if waiting > OUTGOING_MAX {
            return Err(ProtocolError::NoRoom(waiting));
        }
        self.outbox.add(&message)
    }
}
