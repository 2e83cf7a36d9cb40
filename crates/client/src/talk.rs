//! The exchange of one handshake with the first hop, in the clear or within TLS that ends with it (`auth`): bytes in, bytes out.

use phoebus_net::tls::AuthClient;
use phoebus_proto::session::initiator::State;
use phoebus_proto::session::message::{Auth, Challenge, Hello, Open, Opened, Refused};
use phoebus_proto::session::{Initiator, ProtocolError};
use std::io;

/// Room for PREFACE, HELLO, AUTH and an OPEN with the longest path there is.
const OUT_SIZE: usize = 8 * 1024;

/// How the exchange went wrong.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The other end broke the protocol.
    Protocol(ProtocolError),
    /// TLS failed.
    Tls(io::Error),
}

impl From<ProtocolError> for Broken {
    fn from(error: ProtocolError) -> Self {
        Self::Protocol(error)
    }
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        Self::Tls(error)
    }
}

/// Where the exchange stands.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// There is something to send.
    Send,
    /// As many bytes surely belong to it, of those that come next.
    Receive(usize),
    /// The other end has answered, and the next byte is the stream's if the answer is OPENED.
    Over,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Talk {
    initiator: Initiator<Vec<u8>, Vec<u8>>,
    tls: Option<AuthClient>,
    /// Whether the other end has said anything.
    heard: bool,
}

impl Talk {
    /// Asks for a session at once, inside `tls` if there is one.
    pub(crate) fn new(tls: Option<AuthClient>, auth: Option<&Auth>, open: &Open) -> Result<Self, ProtocolError> {
        let initiator = Initiator::connect(vec![0; OUT_SIZE], Vec::new(), &Hello::of(""), auth, open)?;
        Ok(Self { initiator, tls, heard: false })
    }

    pub(crate) fn has_heard(&self) -> bool {
        self.heard
    }

    /// What is to be sent; also after a failure.
    pub(crate) fn outgoing(&self) -> &[u8] {
        self.tls.as_ref().map_or_else(|| self.initiator.outgoing(), AuthClient::outgoing)
    }

    pub(crate) fn sent(&mut self, n: usize) {
        match &mut self.tls {
            Some(tls) => tls.sent(n),
            None => self.initiator.sent(n),
        }
    }

    /// What is to be done next.
    pub(crate) fn turn(&mut self) -> Result<Turn, Broken> {
        if !self.outgoing().is_empty() {
            return Ok(Turn::Send);
        }
        let Some(tls) = &mut self.tls else {
            return Ok(match self.initiator.want() {
                0 => Turn::Over,
                want => Turn::Receive(want),
            });
        };
        Ok(match tls.want() {
            _ if self.initiator.state() != State::Opened && is_answered(&self.initiator) => Turn::Over,
            0 => Turn::Over,
            want => Turn::Receive(want),
        })
    }

    /// Takes what belongs to the exchange, and says how many bytes that were.
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

    /// Moves what it can between the handshake and the TLS around it.
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
            // Each side ends its TLS behind the last message that it protects.
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
