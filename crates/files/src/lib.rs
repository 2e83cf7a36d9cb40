//! The file engine: moves ranges of bytes between stores, verifies them, and publishes files.
//!
//! ```text
//!   job ── plan ──► which objects        transfer ──► one object: flow ─► carriers ─► draft, verified, published
//!                                                       │                              │
//!   stores behind one trait (store):        local, container … and anything that has bytes at a distance
//! ```
//!
//! Read in this order:
//!
//! - [`store`]: the interface. Stores have objects; objects give flows of blocks, or bytes at random; drafts become
//!   objects.
//! - [`transfer()`]: carries what is missing of an object, verifies it as [`Verify`] says, and publishes it. [`pour`]
//!   and [`drain`] for streams.
//! - [`local`]: directories of this machine. `disk` keeps paths below their root; `draft` makes objects appear whole or
//!   not at all, and survives power loss; [`journal`] is its record.
//! - [`container`]: ranges of several objects as one, and one object as several.
//! - [`job`] and [`plan`]: trees, patterns, lists and filters, compared with the destination, several objects at a
//!   time.
//! - [`sum`], [`block`], [`key`], [`range`]: checksums, buffers, names and sets of bytes.
//!
//! Invariants (L2, L10, U6): a cut transfer never has the name of a complete file; bytes that a checkpoint reports
//! survive a crash of the machine; both ends' bytes are compared unless the user declined; pools bound memory; errors
//! name the file.

pub mod block;
mod clean;
pub mod container;
mod dir_nature;
mod disk;
mod draft;
mod error;
mod identity;
pub mod job;
pub mod journal;
pub mod key;
mod links;
pub mod local;
mod meta;
pub mod plan;
mod pool;
mod retry;
mod spawned;
pub mod store;
pub mod sum;
mod transfer;
mod user_file;

pub use clean::{Cleaning, Fate, Found};
pub use dir_nature::{DirNature, OwnDirs};
pub use disk::{Links, append_to};
pub use draft::{
    draft_home, draft_of, is_draft, is_engines, is_moved_cut, is_ours, is_part, moved_from, moved_name, moved_stem,
    part_of, random_tag,
};
pub use error::{Error, ErrorKind};
pub use links::{Doubts, NamedDirs, Next, begin_to_remove, own_dirs};
pub use phoebus_proto::range;
pub use retry::Retry;
pub use transfer::{
    Check, Done, Progress, Side, Stop, Throttle, TransferOptions, Verify, carry, drain, fill, pour, transfer,
};
