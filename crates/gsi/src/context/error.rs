//! Why a context did not come about.

use super::{MAX_TOKEN, MAX_TOKENS};
use crate::proxy::issue::IssueError;
use crate::proxy::request::RequestError;
use crate::proxy::verify::ChainError;

/// Why a context did not come about, or what came over it cannot be read.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum HandshakeError {
    /// The peer's certificates do not hold.
    #[error("the peer is not believed: {0}")]
    Chain(#[from] ChainError),
    /// Another host.
    #[error("the peer is {identity}, which is not a certificate of host {host}")]
    OtherHost {
        /// Who it is.
        identity: String,
        /// Who was asked for.
        host: String,
    },
    /// A proxy where a host's own certificate was expected.
    #[error("the peer presents a proxy of {identity}; the certificate of host {host} itself was expected")]
    ProxyAsHost {
        /// Who it is.
        identity: String,
        /// Who was asked for.
        host: String,
    },
    /// Another person.
    #[error("the peer is {identity}; {expected} was expected")]
    OtherSubject {
        /// Who it is.
        identity: String,
        /// Who was expected.
        expected: String,
    },
    /// TLS itself; an alert is the peer's reason.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// Not TLS records.
    #[error("what the peer sent is not a TLS record")]
    NotTls,
    /// Beyond [`MAX_TOKEN`].
    #[error("a token of {0} bytes; at most {MAX_TOKEN} are read")]
    TokenTooLong(usize),
    /// Beyond [`MAX_TOKENS`].
    #[error("the context is not there after {MAX_TOKENS} tokens")]
    TooManyTokens,
    /// Not `0`, not `D`.
    #[error("the peer sent {0} where one byte was expected, 0 or D, to say whether it lends its rights")]
    Flag(String),
    /// The request for a proxy.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// No proxy could be made for the peer.
    #[error("the rights were not lent: {0}")]
    Issue(#[from] IssueError),
    /// The proxy that the peer made.
    #[error("the proxy that was lent is not one: {0}")]
    Delegated(String),
    /// A record that was cut short, or one without content.
    #[error("the token holds no message")]
    NoMessage,
    /// A step after the end.
    #[error("the context has ended")]
    Over,
}
