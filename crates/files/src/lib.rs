//! The file engine: ranges of bytes of stores, moved, verified and published.
//!
//! ```text
//!   job ── plan ──► which objects        transfer ──► one object: flow ─► carriers ─► draft, verified, published
//!                                                       │                              │
//!   stores behind one trait (store):        local, container … and whatever has bytes at a distance
//! ```
//!
//! Read it in this order:
//!
//! - [`store`]: the seam. Stores have objects; objects give flows of blocks of any ranges, or bytes at random; drafts
//!   become objects.
//! - [`transfer()`]: what is missing of an object is carried, verified as [`Verify`] says, and published; [`pour`] and
//!   [`drain`] for streams.
//! - [`local`]: directories of this machine. `disk` keeps paths beneath their root; `draft` is how an object comes to be
//!   there without ever being there in part, and continues after a loss of power; [`journal`] is what it remembers by.
//! - [`container`]: ranges of several objects as one, and one object as several.
//! - [`job`] and [`plan`]: trees, patterns, lists and filters, against what is there already, several objects at a time.
//! - [`sum`], [`block`], [`key`], [`range`]: checksums, buffers, names and sets of bytes.
//!
//! What holds throughout (L2, L10, U6): nothing that was cut ever has the name of what is whole; what a checkpoint called
//! safe survives the machine; the bytes of both ends are compared unless somebody said not to; memory is bounded by the
//! buffers of a pool; and an error names the file.

pub mod block;
mod clean;
pub mod container;
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
mod own;
pub mod plan;
mod retry;
mod spawned;
pub mod store;
pub mod sum;
mod transfer;
mod user_file;

pub use clean::{Cleaning, Fate, Found};
pub use disk::{Links, append_to};
pub use draft::{
    draft_home, draft_of, is_draft, is_engines, is_moved_cut, is_ours, is_part, moved_from, moved_name, moved_stem,
    part_of, random_tag,
};
pub use error::{Error, Sort};
pub use links::{Doubts, NamedDirs, Next, begin_to_remove, own_dirs};
pub use own::{Own, OwnDirs};
pub use phoebus_proto::range;
pub use retry::Retry;
pub use transfer::{Check, Done, How, Progress, Side, Stop, Throttle, Verify, carry, drain, fill, pour, transfer};
