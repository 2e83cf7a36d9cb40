//! Pure state machines and codecs of Phoebus: no socket, no clock, no file.
//!
//! Time, randomness and bytes are arguments, so the same code runs in production and in virtual-time simulation.
//!
//! - [`endpoint`]: a host and a port, and paths of them.
//! - [`session`]: the handshake and the framed mode of sessions.
//! - [`units`]: durations, sizes, rates and probabilities as people write them.

pub mod endpoint;
pub mod session;
pub mod units;
