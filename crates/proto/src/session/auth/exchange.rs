//! The initiator's side of every mechanism. It does not allocate, so that the preload shim can run it.

use super::scram::{self, Login, NONCE_LEN};
use super::{AuthError, agent, anonymous, token};
use crate::session::message::{Auth, Challenge, Proved};
use std::fmt;

/// Room for the data of an AUTH, the longest of which is SCRAM's answer.
pub type Room = [u8; 1024];

/// What an initiator proves itself with. Debug output has no secret.
#[derive(Clone, Copy)]
pub enum Credential<'a> {
    /// The secret of an agent on this host.
    Agent(&'a [u8]),
    /// An e-mail address.
    Anonymous(&'a str),
    /// A user's password.
    Password(Login<'a>),
    /// A bearer token.
    Token(&'a str),
}

impl fmt::Debug for Credential<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Agent(_) => "Agent",
            Self::Anonymous(_) => "Anonymous",
            Self::Password(_) => "Password",
            Self::Token(_) => "Token",
        })
    }
}

/// The state of an exchange. Each call takes the same [`Credential`].
#[derive(Debug, Clone, Copy)]
pub struct Exchange {
    scram: Option<scram::Initiator>,
}

impl Exchange {
    /// An exchange with these random bytes, which must not be used twice.
    pub fn new(credential: &Credential, random: [u8; NONCE_LEN]) -> Self {
        let is_scram = matches!(credential, Credential::Password(_));
        Self { scram: is_scram.then(|| scram::Initiator::new(random)) }
    }

    /// The first AUTH.
    ///
    /// # Errors
    /// [`AuthError::NoRoom`].
    pub fn first<'r>(&self, credential: &Credential<'r>, room: &'r mut Room) -> Result<Auth<'r>, AuthError> {
        Ok(match (credential, &self.scram) {
            (Credential::Password(login), Some(scram)) => {
                Auth { mechanism: scram::Initiator::mechanism(login), data: scram.first(login, room)? }
            }
            (Credential::Agent(secret), _) => Auth { mechanism: agent::NAME, data: secret },
            (Credential::Anonymous(address), _) => Auth { mechanism: anonymous::NAME, data: address.as_bytes() },
            (Credential::Token(text), _) => Auth { mechanism: token::NAME, data: text.as_bytes() },
            (Credential::Password(_), None) => return Err(AuthError::Unexpected),
        })
    }

    /// The next AUTH.
    ///
    /// # Errors
    /// [`AuthError::NotTaken`] if the acceptor wants another mechanism, and the errors of the mechanism.
    pub fn answer<'r>(
        &mut self,
        credential: &Credential<'r>,
        challenge: &Challenge,
        room: &'r mut Room,
    ) -> Result<Auth<'r>, AuthError> {
        let (Credential::Password(login), Some(scram)) = (credential, &mut self.scram) else {
            return Err(AuthError::NotTaken);
        };
        let mechanism = scram::Initiator::mechanism(login);
        // An offer of several is no answer to the first message.
        if !challenge.mechanisms.iter().eq([mechanism]) || challenge.data.is_empty() {
            return Err(AuthError::NotTaken);
        }
        Ok(Auth { mechanism, data: scram.answer(login, challenge.data, room)? })
    }

    /// Checks what the acceptor says of itself.
    ///
    /// # Errors
    /// [`AuthError::Unproved`], [`AuthError::Unexpected`].
    pub fn conclude(&mut self, proved: &Proved) -> Result<(), AuthError> {
        self.scram.as_mut().ok_or(AuthError::Unexpected)?.conclude(proved.data)
    }

    /// Whether the acceptor has still to prove itself: it must not open a session before.
    pub fn awaits_proof(&self) -> bool {
        self.scram.as_ref().is_some_and(|scram| !scram.is_over())
    }
}
