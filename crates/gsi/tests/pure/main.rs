//! Both ends are this crate's: rules of chains, tokens however they are cut, and bytes that are wrong.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod chains;
mod hostile;
mod tokens;
mod world;
