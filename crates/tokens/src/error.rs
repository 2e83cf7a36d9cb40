//! Why a token is not accepted.

/// Why a token is not accepted. The text says nothing of it that its holder does not know.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It is no JSON Web Token.
    #[error("the token is no signed JSON Web Token: {0}")]
    Malformed(&'static str),
    /// No `[[issuer]]` has issued it.
    #[error("tokens of \"{0}\" are not accepted here")]
    UnknownIssuer(String),
    /// The issuer's keys were not fetched yet, or too long ago.
    #[error("the keys of the token's issuer are not known now; try again later")]
    NoKeys,
    /// No key of the issuer has the identifier, or several may have signed it.
    #[error("the token is signed with a key that its issuer has not published")]
    UnknownKey,
    /// The algorithm is not one of those that the issuer may use.
    #[error("the token's algorithm is not accepted; expected {0}")]
    Algorithm(String),
    /// The signature is wrong.
    #[error("the token's signature is wrong")]
    Signature,
    /// A claim is missing, or has a value of another type.
    #[error("the token's claim \"{0}\" is missing or malformed; expected {1}")]
    Claim(String, &'static str),
    /// It has expired.
    #[error("the token has expired {0} s ago; get a new one")]
    Expired(u64),
    /// It is not valid yet.
    #[error("the token counts only in {0} s; is a clock wrong?")]
    NotYet(u64),
    /// It is for another service.
    #[error("the token is for another audience; expected {0}")]
    Audience(String),
    /// It lacks a scope.
    #[error("the token lacks the scope \"{0}\"")]
    Scope(String),
    /// A list is too long.
    #[error("the token names {0} groups; expected at most {1}")]
    Groups(usize, usize),
}
