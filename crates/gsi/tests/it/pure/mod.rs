//! Tests with this crate at both ends: chain rules, tokens split anywhere, and malformed input.

mod chains;
mod hostile;
mod tokens;
mod world;
