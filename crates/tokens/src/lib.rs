//! Bearer tokens (P8): JSON Web Tokens (RFC 7519) as in the WLCG profile, in SciTokens 2, and in plain OpenID Connect. Pure: time and
//! bytes are arguments.
//!
//! - [`Issuer`]: who issues tokens, and what is demanded of them. [`Issuer::verify`] checks one.
//! - [`KeySet`]: the keys with which an issuer signs (RFC 7517). [`discovery`] tells where they are.
//! - [`Schedule`]: when an issuer's keys have to be fetched.
//!
//! Only asymmetric algorithms are known, and only keys that the issuer's own documents have: what a token's header says about keys
//! (`jku`, `jwk`, `x5u`, `x5c`) is never used (RFC 8725 §3.1, 3.5, 3.10).

mod claims;
mod crypto;
pub mod discovery;
mod error;
mod issuer;
mod keys;
mod schedule;
mod token;

pub use claims::{Claim, Verified};
pub use error::TokenError;
pub use issuer::{Issuer, RealmError};
pub use jsonwebtoken::Algorithm;
pub use keys::{KeySet, KeysError};
pub use schedule::Schedule;
pub use token::{TOKEN_MAX, Token};

/// The algorithms that are known, all of them asymmetric.
pub const ALGORITHMS: [Algorithm; 9] = [
    Algorithm::ES256,
    Algorithm::ES384,
    Algorithm::EdDSA,
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
];
