//! The end of a hop that asks: HELLO, AUTH, OPEN, and what comes back (`docs/protocol/session.md` §5).
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
//! The caller moves bytes: it sends [`Initiator::outgoing`], reads into [`Initiator::space`], and looks at
//! [`Initiator::state`]. It owns the deadline.

use super::inbox::{Inbox, Storage};
use super::message::{Attach, Auth, Challenge, Hello, Message, Open, Opened, Refused, feature};
use super::wire::{PREFACE, ProtocolError};
use super::{Mode, SessionId, VERSION};

/// Where the handshake stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Waiting for the peer's HELLO, with no session asked for yet.
    Greeting,
    /// The peer has answered; [`Initiator::open`] may be called.
    Ready,
    /// A session was asked for.
    Opening,
    /// The peer wants authentication: see [`Initiator::challenge`].
    Challenged,
    /// The session is connected: see [`Initiator::opened`]. The next byte belongs to the stream.
    Opened,
    /// The session was refused: see [`Initiator::refused`]. Another may be asked for.
    Refused,
}

/// The initiator's side of the handshake. `O` holds outgoing bytes, `B` incoming ones.
#[derive(Debug)]
pub struct Initiator<O, B> {
    out: O,
    out_len: usize,
    sent: usize,
    inbox: Inbox<B>,
    state: State,
    greeted: bool,
    asked: Option<(SessionId, Mode)>,
    peer_features: u64,
}

impl<O: AsRef<[u8]> + AsMut<[u8]>, B: Storage> Initiator<O, B> {
    /// Greets the peer and asks for a session at once, in one flight.
    ///
    /// # Errors
    /// [`ProtocolError::NoRoom`] when `out` cannot hold the messages.
    pub fn connect(out: O, inbox: B, hello: &Hello, auth: Option<&Auth>, open: &Open) -> Result<Self, ProtocolError> {
        let mut initiator = Self::greet(out, inbox, hello, auth)?;
        initiator.queue(Message::Open(*open))?;
        initiator.asked = Some((open.session, open.mode));
        initiator.state = State::Opening;
        Ok(initiator)
    }

    /// Greets the peer and asks to join a session at once, in one flight. The answer is OPENED or REFUSED, as for OPEN.
    ///
    /// # Errors
    /// [`ProtocolError::NoRoom`] when `out` cannot hold the messages.
    pub fn join(out: O, inbox: B, hello: &Hello, auth: Option<&Auth>, attach: &Attach) -> Result<Self, ProtocolError> {
        let mut initiator = Self::greet(out, inbox, hello, auth)?;
        initiator.queue(Message::Attach(*attach))?;
        initiator.asked = Some((attach.session, Mode::Framed));
        initiator.state = State::Opening;
        Ok(initiator)
    }

    /// Only greets, to have a connection at hand for later sessions.
    ///
    /// # Errors
    /// [`ProtocolError::NoRoom`] when `out` cannot hold the messages.
    pub fn greet(mut out: O, inbox: B, hello: &Hello, auth: Option<&Auth>) -> Result<Self, ProtocolError> {
        let room = out.as_mut().get_mut(..PREFACE.len()).ok_or(ProtocolError::NoRoom(PREFACE.len()))?;
        room.copy_from_slice(&PREFACE);
        let mut initiator = Self {
            out,
            out_len: PREFACE.len(),
            sent: 0,
            inbox: Inbox::new(inbox),
            state: State::Greeting,
            greeted: false,
            asked: None,
            peer_features: 0,
        };
        initiator.queue(Message::Hello(*hello))?;
        if let Some(auth) = auth {
            initiator.queue(Message::Auth(*auth))?;
        }
        Ok(initiator)
    }

    /// Asks for a session on a connection that is [`State::Ready`] or has [`State::Refused`] one.
    ///
    /// # Errors
    /// [`ProtocolError::Unexpected`] in another state, [`ProtocolError::NoRoom`] when OPEN does not fit.
    pub fn open(&mut self, open: &Open) -> Result<(), ProtocolError> {
        self.ask(Message::Open(*open), (open.session, open.mode))
    }

    /// Asks to join a session, on a connection that is [`State::Ready`] or was [`State::Refused`] something.
    ///
    /// # Errors
    /// As [`Initiator::open`].
    pub fn attach(&mut self, attach: &Attach) -> Result<(), ProtocolError> {
        self.ask(Message::Attach(*attach), (attach.session, Mode::Framed))
    }

    /// Answers a challenge, and asks again for the session: what was sent before AUTH was not looked at.
    ///
    /// # Errors
    /// [`ProtocolError::Unexpected`] without a challenge, [`ProtocolError::NoRoom`] when the messages do not fit.
    pub fn authenticate(&mut self, auth: &Auth, open: &Open) -> Result<(), ProtocolError> {
        if self.state != State::Challenged {
            return Err(ProtocolError::Unexpected { got: "credentials", expected: "CHALLENGE first" });
        }
        self.inbox.next();
        self.queue(Message::Auth(*auth))?;
        self.queue(Message::Open(*open))?;
        self.asked = Some((open.session, open.mode));
        self.state = State::Opening;
        Ok(())
    }

    /// Says that a framed session has ended on both sides and the connection is free ([`super::frame::Exchange::reusable`]).
    ///
    /// # Errors
    /// [`ProtocolError::Unexpected`] when no framed session was open.
    pub fn next_session(&mut self) -> Result<(), ProtocolError> {
        if self.state != State::Opened || self.asked.is_none_or(|(_, mode)| mode != Mode::Framed) {
            return Err(ProtocolError::Unexpected { got: "the end of a session", expected: "a framed session" });
        }
        self.inbox.next();
        self.state = State::Ready;
        Ok(())
    }

    /// Where the handshake stands.
    pub fn state(&self) -> State {
        self.state
    }

    /// Features of the peer, known after its HELLO.
    pub fn peer_features(&self) -> u64 {
        self.peer_features
    }

    /// What is still to be sent.
    pub fn outgoing(&self) -> &[u8] {
        &self.out.as_ref()[self.sent..self.out_len]
    }

    /// Says that the first `n` bytes of [`Initiator::outgoing`] were sent.
    pub fn sent(&mut self, n: usize) {
        self.sent += n.min(self.out_len - self.sent);
    }

    /// How many bytes may be read next; 0 when nothing is expected.
    pub fn want(&self) -> usize {
        if self.waiting() { self.inbox.want() } else { 0 }
    }

    /// Where to read the next bytes to; empty when nothing is expected.
    ///
    /// # Errors
    /// [`ProtocolError::NoRoom`] when the storage cannot hold the peer's message.
    pub fn space(&mut self) -> Result<&mut [u8], ProtocolError> {
        if self.waiting() { self.inbox.space() } else { Ok(&mut []) }
    }

    /// Says that `n` bytes were read into [`Initiator::space`]; look at [`Initiator::state`] afterwards.
    ///
    /// # Errors
    /// What the peer did wrong. The connection is of no use any more.
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
                        // HELLO stays readable until a session is asked for.
                        State::Greeting => self.state = State::Ready,
                        _ => self.inbox.next(),
                    }
                    Ok(())
                }
                // A version that has nothing in common with ours says so before it could say HELLO.
                Message::Refused(_) => {
                    self.state = State::Refused;
                    Ok(())
                }
                other => Err(ProtocolError::Unexpected { got: other.name(), expected: "HELLO" }),
            };
        }
        self.state = match (message, self.asked) {
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

    /// The peer's HELLO, while the connection is [`State::Ready`] and has carried no session.
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

    /// The peer's REFUSED, in state [`State::Refused`].
    pub fn refused(&self) -> Option<Refused<'_>> {
        match self.inbox.message() {
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

    fn ask(&mut self, request: Message, asked: (SessionId, Mode)) -> Result<(), ProtocolError> {
        if !matches!(self.state, State::Ready | State::Refused) {
            return Err(ProtocolError::Unexpected { got: "another request", expected: "an idle connection" });
        }
        self.inbox.next();
        self.queue(request)?;
        self.asked = Some(asked);
        self.state = State::Opening;
        Ok(())
    }

    fn waiting(&self) -> bool {
        matches!(self.state, State::Greeting | State::Opening)
    }

    fn queue(&mut self, message: Message) -> Result<(), ProtocolError> {
        if self.sent == self.out_len {
            (self.sent, self.out_len) = (0, 0);
        }
        let room = &mut self.out.as_mut()[self.out_len..];
        self.out_len += message.encode(room)?;
        Ok(())
    }
}

/// The features of a peer whose HELLO we can live with.
pub(super) fn check_hello(hello: &Hello) -> Result<u64, ProtocolError> {
    if !(hello.version_min..=hello.version_max).contains(&VERSION) {
        return Err(ProtocolError::Version { min: hello.version_min, max: hello.version_max });
    }
    match hello.required & !feature::KNOWN {
        0 => Ok(hello.features & feature::KNOWN),
        unknown => Err(ProtocolError::Feature(unknown)),
    }
}
