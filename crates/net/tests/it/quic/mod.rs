//! QUIC between real sockets: guarantees to a relay, authentication, and robustness.

mod batches;
mod ends;
mod flood;
mod gaps;
mod path;
mod place;
mod rates;
mod streams;
mod survival;
mod trust;
