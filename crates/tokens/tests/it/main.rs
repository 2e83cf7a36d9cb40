//! All integration tests of this crate in one program, since linking one is faster than linking many.

#![allow(clippy::unwrap_used, unreachable_pub, reason = "a test that cannot go on has failed; nobody links a test")]

mod attacks;
mod claims;
mod keys;
mod signer;
