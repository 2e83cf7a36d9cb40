//! Both ends are this crate's: rules of chains, tokens however they are cut, and bytes that are wrong.

mod chains;
mod hostile;
mod tokens;
mod world;
