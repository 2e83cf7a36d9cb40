//! Authentication of an initiator (`docs/protocol/session.md` §5.1; P8, P26, P27).
//!
//! A mechanism is a pair. The initiator's side writes the data of AUTH, and checks what the acceptor says of itself
//! ([`Exchange`]). The acceptor's side reads AUTH, and decides ([`Check`]).
//!
//! ```text
//!   Exchange::first  ── AUTH ──────►  Check::receive ─► Verdict::Continue
//!   Exchange::answer ◄─ CHALLENGE ──
//!                    ── AUTH ──────►  Check::receive ─► Verdict::Proven
//!   Exchange::conclude ◄─ PROVED ───
//! ```
//!
//! - [`agent`], [`anonymous`] and [`token`] take one message.
//! - [`scram`] takes two.

pub mod agent;
pub mod anonymous;
mod exchange;
pub mod scram;
pub mod token;

pub use exchange::{Credential, Exchange, Room};

/// The acceptor's side of one exchange.
pub trait Check: Send {
    /// Decides on the data of an AUTH.
    fn receive(&mut self, data: &[u8]) -> Verdict;

    /// Who the initiator has said to be so far, for the log.
    fn claimed(&self) -> &str {
        ""
    }
}

/// What an acceptor decides.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Send a CHALLENGE with these data; another AUTH of this mechanism has to follow.
    Continue(Vec<u8>),
    /// The initiator has proved itself.
    Proven(Proven),
    /// It has not.
    Refused(AuthError),
    /// It has not, for a reason that only the mechanism can tell.
    ///
    /// The reason is for the initiator and the log. It tells nothing that the initiator does not know.
    Declined(String),
}

/// Who an initiator has proved to be.
#[derive(Debug, PartialEq, Eq)]
pub struct Proven {
    /// The subject, in the mechanism's terms: a user's name, or an e-mail address; empty if it names none.
    pub subject: String,
    /// What a third party has said of the user, if the mechanism has one.
    pub vouched: Option<Vouched>,
    /// What PROVED says of the acceptor. `None`: no PROVED is sent.
    pub last: Option<Vec<u8>>,
}

/// What a third party, whom the acceptor believes, says of an initiator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vouched {
    /// The user's name; empty for none.
    pub user: String,
    /// The user's groups.
    pub groups: Vec<String>,
    /// Until when it counts, in seconds since 1970.
    pub expires: u64,
}

/// Why authentication failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// The other end broke the mechanism's rules.
    #[error("the other end's message of authentication is malformed")]
    Malformed,
    /// A message that is not allowed now.
    #[error("the other end went on with authentication where nothing was to follow")]
    Unexpected,
    /// The answer belongs to another exchange.
    #[error("the other end answered another exchange of authentication")]
    Nonce,
    /// The proof is not bound to this connection: somebody may be in between.
    #[error("the proof is not bound to this connection")]
    Unbound,
    /// A user who wants to act for another one.
    #[error("nobody acts for another user here")]
    ForAnother,
    /// The gateway salts the password in another way than the kept keys.
    #[error("the password at the gateway was changed, or the user was removed; phoebus login logs in again")]
    OtherSalt,
    /// The password, the user or the secret is wrong.
    #[error("the user or the password is wrong")]
    Wrong,
    /// The acceptor has not proved that it knows the user.
    #[error("the gateway has not proved that it knows the user's password")]
    Unproved,
    /// The acceptor does not take what this end has to offer.
    #[error("the gateway does not take this kind of proof")]
    NotTaken,
    /// Not an e-mail address.
    #[error("anonymous sessions need an e-mail address")]
    NoAddress,
    /// The message does not fit into the buffer.
    #[error("the message of authentication is too long")]
    NoRoom,
}
