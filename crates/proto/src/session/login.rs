//! An initiator that authenticates: its exchange of a mechanism, driven by the messages of the handshake.

use super::auth::{AuthError, Credential, Exchange, Room, scram};
use super::initiator::{Initiator, State};
use super::message::{Challenge, Hello, Open};
use super::storage::Storage;
use super::wire::ProtocolError;

/// Random bytes for an exchange, which must not be used twice.
pub type Random = [u8; scram::NONCE_LEN];

/// Why an initiator could not authenticate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LoginError {
    /// The peer broke the session protocol, or a message does not fit.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// The exchange failed.
    #[error(transparent)]
    Auth(#[from] AuthError),
}

/// Begins a handshake that asks for a session at once ([`Initiator::connect`]).
///
/// # Errors
/// A message that does not fit.
pub fn connect<O: Storage, B: Storage>(
    (out, inbox): (O, B),
    hello: &Hello,
    login: Option<(&Credential, Random)>,
    open: &Open,
) -> Result<(Initiator<O, B>, Option<Exchange>), LoginError> {
    let Some((credential, random)) = login else {
        return Ok((Initiator::connect(out, inbox, hello, None, open)?, None));
    };
    let (exchange, mut room): (_, Room) = (Exchange::new(credential, random), [0; _]);
    let auth = exchange.first(credential, &mut room)?;
    let mut initiator = Initiator::connect(out, inbox, hello, Some(&auth), open)?;
    if exchange.awaits_proof() {
        initiator.demand_proof();
    }
    Ok((initiator, Some(exchange)))
}

/// Begins a handshake that prepares a connection for later sessions ([`Initiator::greet`]).
///
/// # Errors
/// A message that does not fit.
pub fn greet<O: Storage, B: Storage>(
    (out, inbox): (O, B),
    hello: &Hello,
    login: Option<(&Credential, Random)>,
) -> Result<(Initiator<O, B>, Option<Exchange>), LoginError> {
    let Some((credential, random)) = login else { return Ok((Initiator::greet(out, inbox, hello, None)?, None)) };
    let (exchange, mut room): (_, Room) = (Exchange::new(credential, random), [0; _]);
    let auth = exchange.first(credential, &mut room)?;
    let mut initiator = Initiator::greet(out, inbox, hello, Some(&auth))?;
    if exchange.awaits_proof() {
        initiator.demand_proof();
    }
    Ok((initiator, Some(exchange)))
}

/// Begins an exchange on a connection that did without so far, after a CHALLENGE. `open` is sent again, if it was sent before. `None`
/// if the acceptor does not offer the mechanism.
///
/// # Errors
/// A message that does not fit.
pub fn begin<O: Storage, B: Storage>(
    initiator: &mut Initiator<O, B>,
    (credential, random): (&Credential, Random),
    open: Option<&Open>,
) -> Result<Option<Exchange>, LoginError> {
    let (exchange, mut room): (_, Room) = (Exchange::new(credential, random), [0; _]);
    let auth = exchange.first(credential, &mut room)?;
    let is_offered = |challenge: Challenge| {
        challenge.data.is_empty() && challenge.mechanisms.iter().any(|mechanism| mechanism == auth.mechanism)
    };
    if !initiator.challenge().is_some_and(is_offered) {
        return Ok(None);
    }
    initiator.authenticate(&auth, open)?;
    if exchange.awaits_proof() {
        initiator.demand_proof();
    }
    Ok(Some(exchange))
}

/// Goes on after CHALLENGE or PROVED, where the exchange can. `open` is sent again after a CHALLENGE, if it was sent before. Returns
/// whether the handshake goes on; if not, its state tells the answer.
///
/// # Errors
/// The peer has not proved itself, or has broken the rules of the mechanism.
pub fn go_on<O: Storage, B: Storage>(
    initiator: &mut Initiator<O, B>,
    exchange: Option<&mut Exchange>,
    credential: Option<&Credential>,
    open: Option<&Open>,
) -> Result<bool, LoginError> {
    let (Some(exchange), Some(credential)) = (exchange, credential) else { return Ok(false) };
    match (initiator.state(), initiator.challenge(), initiator.proved()) {
        (State::Challenged, Some(challenge), _) => {
            let mut room: Room = [0; _];
            match exchange.answer(credential, &challenge, &mut room) {
                Ok(auth) => initiator.authenticate(&auth, open)?,
                Err(AuthError::NotTaken) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        (State::Proved, _, Some(proved)) => {
            exchange.conclude(&proved)?;
            initiator.accept_proof();
        }
        _ => return Ok(false),
    }
    Ok(true)
}
