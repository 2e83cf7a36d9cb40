//! QUIC between real sockets: what a relay may rely on, who is let in, and what has to be survived.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod ends;
mod gaps;
mod path;
mod place;
mod streams;
mod survival;
mod trust;
