//! QUIC between real sockets: what a relay may rely on, who is let in, and what has to be survived.

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
