//! Plans a job: from names, patterns and lists, through filters, compared with the destination.
//!
//! - [`list`] reads lists of sources and destinations.
//! - [`expand`] finds the matches of a pattern.
//! - [`Walk`] walks a tree in batches, so that trees of millions of files need little memory.
//! - [`Filter`] leaves names out.
//! - [`Existing`] decides whether an existing object suffices.

mod compare;
mod expand;
mod filter;
pub mod list;
mod walk;

pub use compare::{By, Decision, Existing, Reason};
pub use expand::{Pattern, expand, is_pattern};
pub use filter::{Bounds, Filter, PatternError};
pub(crate) use walk::with_mode;
pub use walk::{Found, Walk};
