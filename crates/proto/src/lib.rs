//! Pure state machines and codecs of Phoebus: no socket, no clock, no file.
//!
//! Time, randomness and bytes are arguments, so the same code runs in production and in virtual-time simulation.
//!
//! - [`units`]: durations, sizes, rates and probabilities as people write them.

pub mod units;
