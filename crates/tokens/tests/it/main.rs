//! Tests of tokens.

mod attacks;
mod claims;
mod keys;
mod signer;
