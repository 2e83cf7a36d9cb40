//! The handshake with the first hop, in the clear or inside TLS that ends with it (`auth`): bytes in, bytes out.

use phoebus_net::tls::AuthClient;
use phoebus_proto::session::auth::scram::Binding;
use phoebus_proto::session::auth::{AuthError, Credential, Exchange};
use phoebus_proto::session::initiator::State;
use phoebus_proto::session::login::{self, LoginError, Random};
use phoebus_proto::session::message::{Challenge, Hello, Open, Opened, Refused};
use phoebus_proto::session::{Initiator, ProtocolError};
use std::io;

/// How the handshake failed.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The peer broke the protocol.
    Protocol(ProtocolError),
    /// The gateway has not proved itself, or breaks the rules of authentication.
    Login(AuthError),
    /// TLS failed.
    Tls(io::Error),
}

impl From<LoginError> for Broken {
    fn from(error: LoginError) -> Self {
        match error {
            LoginError::Protocol(ProtocolError::Unproved(_)) => Self::Login(AuthError::Unproved),
            LoginError::Protocol(error) => Self::Protocol(error),
            LoginError::Auth(error) => Self::Login(error),
        }
    }
}

impl From<ProtocolError> for Broken {
    fn from(error: ProtocolError) -> Self {
        LoginError::Protocol(error).into()
    }
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        Self::Tls(error)
    }
}

/// The state of the handshake.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NextStep {
    /// There are bytes to send.
    Send,
    /// At least this many of the next bytes belong to the handshake.
    Receive(usize),
    /// The peer has answered. If the answer is OPENED, the next byte belongs to the stream.
    Over,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Talk {
    initiator: Initiator<Vec<u8>, Vec<u8>>,
    exchange: Option<Exchange>,
    tls: Option<AuthClient>,
    /// Whether the peer has sent anything.
    heard: bool,
}

impl Talk {
    /// Requests a session at once, inside `tls` if there is one.
    pub(crate) fn new(
        tls: Option<AuthClient>,
        login: Option<(&Credential, Random)>,
        open: &Open,
    ) -> Result<Self, LoginError> {
        let (initiator, exchange) = login::connect((Vec::new(), Vec::new()), &Hello::of(""), login, open)?;
        Ok(Self { initiator, exchange, tls, heard: false })
    }

    /// What binds a proof to the connection, if there is TLS whose handshake is complete.
    pub(crate) fn binding(&self) -> Option<Binding> {
        self.tls.as_ref()?.channel_binding()
    }

    /// Goes on with authentication after [`NextStep::Over`]; `open` is requested again. Returns whether there is more to do.
    pub(crate) fn go_on(&mut self, credential: Option<&Credential>, open: &Open) -> Result<bool, Broken> {
        let goes_on = login::go_on(&mut self.initiator, self.exchange.as_mut(), credential, Some(open))?;
        if goes_on {
            self.pass()?;
        }
        Ok(goes_on)
    }

    pub(crate) fn has_heard(&self) -> bool {
        self.heard
    }

    /// The bytes to send, after a failure too.
    pub(crate) fn outgoing(&self) -> &[u8] {
        self.tls.as_ref().map_or_else(|| self.initiator.outgoing(), AuthClient::outgoing)
    }

    pub(crate) fn sent(&mut self, n: usize) {
        match &mut self.tls {
            Some(tls) => tls.sent(n),
            None => self.initiator.sent(n),
        }
    }

    /// What the caller does next.
    pub(crate) fn turn(&mut self) -> Result<NextStep, Broken> {
        if !self.outgoing().is_empty() {
            return Ok(NextStep::Send);
        }
        let Some(tls) = &mut self.tls else {
            return Ok(match self.initiator.want() {
                0 => NextStep::Over,
                want => NextStep::Receive(want),
            });
        };
        Ok(match tls.want() {
            _ if self.initiator.state() != State::Opened && is_answered(&self.initiator) => NextStep::Over,
            0 => NextStep::Over,
            want => NextStep::Receive(want),
        })
    }

    /// Consumes the bytes that belong to the handshake, and returns their number.
    pub(crate) fn receive(&mut self, input: &[u8]) -> Result<usize, Broken> {
        self.heard |= !input.is_empty();
        let mut taken = 0;
        while taken < input.len() {
            let rest = &input[taken..];
            let n = match &mut self.tls {
                Some(tls) => tls.receive(rest)?,
                None => {
                    let space = self.initiator.space()?;
                    let n = space.len().min(rest.len());
                    space[..n].copy_from_slice(&rest[..n]);
                    self.initiator.received(n)?;
                    n
                }
            };
            if n == 0 {
                break;
            }
            taken += n;
            self.pass()?;
        }
        Ok(taken)
    }

    /// Moves bytes between the handshake and the TLS around it.
    fn pass(&mut self) -> Result<(), Broken> {
        let Some(tls) = self.tls.as_mut().filter(|tls| tls.is_ready()) else { return Ok(()) };
        while !self.initiator.outgoing().is_empty() {
            match tls.write(self.initiator.outgoing())? {
                0 => break,
                n => self.initiator.sent(n),
            }
        }
        while !is_answered(&self.initiator) {
            match tls.read(self.initiator.space()?)? {
                Some(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Some(n) => self.initiator.received(n)?,
                None => return Ok(()),
            }
        }
        if self.initiator.state() == State::Opened {
            // Each side ends its TLS after the last message that it protects.
            if !tls.is_closed() {
                tls.close()?;
            }
            if tls.read(&mut [0])?.is_some_and(|n| n > 0) {
                let (got, expected) = ("more within TLS", "its end behind OPENED");
                return Err(ProtocolError::Unexpected { got, expected }.into());
            }
        }
        Ok(())
    }

    pub(crate) fn opened(&self) -> Option<Opened<'_>> {
        self.initiator.opened().filter(|_| self.initiator.state() == State::Opened)
    }

    pub(crate) fn refused(&self) -> Option<Refused<'_>> {
        self.initiator.refused()
    }

    pub(crate) fn challenge(&self) -> Option<Challenge<'_>> {
        self.initiator.challenge()
    }
}

fn is_answered(initiator: &Initiator<Vec<u8>, Vec<u8>>) -> bool {
    !matches!(initiator.state(), State::Greeting | State::Opening)
}
