//! `token`: a bearer token (RFC 6750). Whoever has it can use it, so that it is shown only to a gateway that has proved itself, inside
//! TLS or QUIC. What tokens say, and who may issue them, is not this crate's matter.

/// The mechanism's name.
pub const NAME: &str = "token";
