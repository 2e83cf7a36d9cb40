//! Errors of security contexts.

use super::{MAX_TOKEN, MAX_TOKENS};
use crate::proxy::issue::IssueError;
use crate::proxy::request::RequestError;
use crate::proxy::verify::ChainError;

/// The reason why a context was not established, or a message on it cannot be read.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum HandshakeError {
    /// The peer's certificate chain is not valid.
    #[error("the peer is not trusted: {0}")]
    Chain(#[from] ChainError),
    /// The peer is another host than expected.
    #[error("the peer is {identity}, which is not a certificate of host {host}")]
    OtherHost {
        /// The peer's identity.
        identity: String,
        /// The expected host.
        host: String,
    },
    /// The peer presented a proxy where a host's own certificate is required.
    #[error("the peer presents a proxy of {identity}; the certificate of host {host} itself was expected")]
    ProxyAsHost {
        /// The peer's identity.
        identity: String,
        /// The expected host.
        host: String,
    },
    /// The peer has another identity than expected.
    #[error("the peer is {identity}; {expected} was expected")]
    OtherSubject {
        /// The peer's identity.
        identity: String,
        /// The expected identity.
        expected: String,
    },
    /// TLS failed; an alert tells the peer's reason.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// The input is not TLS records.
    #[error("what the peer sent is not a TLS record")]
    NotTls,
    /// A token exceeds [`MAX_TOKEN`].
    #[error("a token of {0} bytes; at most {MAX_TOKEN} are read")]
    TokenTooLong(usize),
    /// The number of tokens exceeds [`MAX_TOKENS`].
    #[error("the context is not established after {MAX_TOKENS} tokens")]
    TooManyTokens,
    /// The delegation flag is neither `0` nor `D`.
    #[error("the peer sent {0}; expected one byte, 0 or D, that says whether it delegates its rights")]
    Flag(String),
    /// The request for a proxy was not made or is not valid.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// Issuing the proxy for the peer failed.
    #[error("the rights were not delegated: {0}")]
    Issue(#[from] IssueError),
    /// The proxy from the peer is not valid.
    #[error("the delegated proxy is not valid: {0}")]
    Delegated(String),
    /// A record is truncated or empty.
    #[error("the token holds no message")]
    NoMessage,
    /// The context was used after its end.
    #[error("the context has ended")]
    Over,
}
