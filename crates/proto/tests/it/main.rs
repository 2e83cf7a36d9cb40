//! The integration tests of this crate, in one program: linking one program is faster than linking many.

#![allow(clippy::unwrap_used, unreachable_pub, reason = "a panic fails the test; no other crate links tests")]

mod bundle;
mod bundle_rates;
mod frames;
mod handshake;
mod object;
mod udt;
