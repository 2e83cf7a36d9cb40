//! QUIC between real sockets: what a relay may rely on, who is let in, and what has to be survived.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod batches;
mod ends;
mod flood;
mod gaps;
#[path = "../support/namespace.rs"]
mod namespace;
mod path;
mod place;
mod rates;
mod streams;
mod survival;
mod trust;
