//! Objects that are being written.

use super::direct::DirectWriter;
use super::object::{Flow, Object};
use super::{Attributes, Boxed, Fallible, Time};
use crate::block::{Block, FileRange};
use crate::key::Key;
use crate::range::{Extent, Ranges};
use crate::sum::{Algorithm, Combining, Sum};
use bytes::Bytes;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// The result of [`Store::create`](super::Store::create).
#[derive(Debug)]
pub enum Begun {
    /// There is something to do, at least the last step.
    Draft(Arc<dyn Draft>),
    /// An earlier attempt had published the object before it was interrupted.
    Done,
}

/// An object that is being written. Several tasks may write.
///
/// No method has a default, so that wrappers must decide about each.
pub trait Draft: Debug + Send + Sync {
    /// Name in errors: the final name.
    fn name(&self) -> String;

    /// Ranges that an earlier attempt left.
    fn kept(&self) -> Ranges;

    /// Capabilities beyond [`Self::write`].
    fn capabilities(&self) -> Capabilities<'_>;

    /// Writes a block, or queues it. Bytes that the draft has are not written again; the first ones stay.
    fn write(&self, block: Block<Bytes>) -> Fallible<'_, ()>;

    /// Waits until lent blocks are no longer read.
    fn flush(&self) -> Fallible<'_, ()>;

    /// Makes written bytes survive a crash of either end, and returns their ranges.
    fn checkpoint(&self) -> Fallible<'_, Ranges>;

    /// The checksum of all bytes, including earlier attempts, if the draft has `size` bytes and keeps one.
    fn written_sum(&self, size: u64) -> Option<Sum>;

    /// The checksum of the stored bytes, computed where they are: read again, not remembered.
    fn checksum(&self, algorithm: Algorithm) -> Fallible<'_, Sum>;

    /// Publishes the object with times and modes, if all of `size` bytes are there. Before, the name never belongs to
    /// an incomplete object; afterwards it is durable, or will be after [`Store::settle`](super::Store::settle).
    fn publish(&self, size: u64) -> Fallible<'_, ()>;

    /// Gives the draft up. With `keep`, a later attempt can resume it, if the store supports that.
    fn abandon(&self, keep: bool) -> Boxed<'_, ()>;
}

/// Capabilities of a draft beyond blocks in any order by [`Draft::write`]. None by default.
#[derive(Debug, Default)]
pub struct Capabilities<'a> {
    /// Name of the bytes in the store before publication, if it differs: for others on the same disk.
    pub place: Option<Key>,
    /// A later attempt can resume at the last checkpoint.
    pub resumable: bool,
    /// Blocks must come in ascending order, without the ranges of [`Draft::kept`].
    pub ordered: bool,
    /// It accepts bytes that are still in a file ([`Shape::lend`](super::Shape::lend)).
    pub file_ranges: Option<Box<dyn TakeFileRange + 'a>>,
    /// It accepts holes ([`Shape::holes`](super::Shape::holes)).
    pub holes: Option<Box<dyn TakeHole + 'a>>,
    /// It supports direct writing: for receiving without copies, and for hashing while bytes are in the cache.
    pub direct_writer: Option<Arc<dyn DirectWriter>>,
    /// It can take all blocks of a flow in tasks of its own.
    pub drain: Option<&'a dyn Drain>,
    /// It can have another server send to it.
    pub fetch: Option<&'a dyn Fetch>,
}

/// Accepts bytes that are still in a file.
pub trait TakeFileRange: Debug + Send + Sync {
    /// As [`Draft::write`]. The file is read until [`Draft::flush`] returns.
    fn write_file_range(&self, block: Block<FileRange>) -> Fallible<'_, ()>;
}

/// Accepts holes.
pub trait TakeHole: Debug + Send + Sync {
    /// Writes the hole `extent`. `sum` is its checksum, if it was computed.
    fn write_hole(&self, extent: Extent, sum: Option<u32>) -> Fallible<'_, ()>;
}

/// Takes all blocks of a flow in tasks of its own.
pub trait Drain: Debug + Send + Sync {
    /// Takes all blocks of `flow`, and adds sent bytes to `moved`. When it returns, some may still be in flight
    /// ([`Draft::flush`]). After dropping the future, the draft must be abandoned.
    fn drain(&self, flow: &Arc<dyn Flow>, moved: &Arc<AtomicU64>) -> Fallible<'_, ()>;
}

/// A draft on a server to which other servers can send.
pub trait Fetch: Debug + Send + Sync {
    /// Has the bytes `missing` of `object` sent directly between the servers, if they can. Returns whether that was
    /// done; if not, nothing was. Adds sent bytes to `moved`.
    fn fetch<'a>(
        &'a self,
        object: &'a dyn Object,
        missing: &'a Ranges,
        moved: &'a (dyn Fn(u64) + Send + Sync),
    ) -> Fallible<'a, bool>;
}

/// What is to be written. An earlier attempt is resumed only if all of this is equal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Spec {
    /// Final size, if known.
    pub size: Option<u64>,
    /// The source: its name without credentials, and its time of modification; without a time if somebody else
    /// guarantees that it is the same, such as a server's client. `None` if it cannot be read again, or may change.
    pub source: Option<(String, Option<Time>)>,
    /// The algorithm of block checksums.
    pub sum: Option<Combining>,
    /// Attributes of the published object.
    pub attributes: Attributes,
    /// Permissions of the source, if they are not preserved: a new object gets none beyond these.
    pub at_most: Option<u32>,
    /// Whether an existing object may be replaced.
    pub replace: bool,
    /// Whether holes are kept, if the store can. Then no space is reserved.
    pub sparse: bool,
    /// Whether it is a client's draft ([`is_part`](crate::is_part)), with further steps before it gets its final name.
    /// It is private until permissions are set, or until a rename to a final name gives it those of a new object.
    pub held: bool,
}
