//! What is to be carried: from names, patterns and lists, through filters, against what is there already.
//!
//! - [`list`] reads lists of sources and destinations.
//! - [`expand`] finds what a pattern names.
//! - [`Walk`] goes through a tree, some entries at a time, so that trees of millions of files need little memory.
//! - [`Filter`] says what of it is left out.
//! - [`Existing`] decides, for each object, whether what the destination has will do.

mod compare;
mod expand;
mod filter;
pub mod list;
mod walk;

pub use compare::{By, Decision, Existing, Reason};
pub use expand::{Pattern, expand, is_pattern};
pub use filter::{Bounds, Filter, PatternError};
pub use walk::{Found, Walk};
