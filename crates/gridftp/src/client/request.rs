//! A request to retrieve a file, and its destination.

use crate::block_channel::BlockResult;
use phoebus_files::Error;
use phoebus_files::range::Ranges;
use phoebus_files::store::DirectWriter;
use phoebus_files::sum::Combining;
use std::sync::Arc;
use tokio::sync::mpsc;

/// The destination of blocks.
pub(super) type Sender = mpsc::Sender<BlockResult<Error>>;

/// What to retrieve.
#[derive(Debug, Clone)]
pub(super) struct ReadRequest {
    /// Name in errors.
    pub(super) name: String,
    /// Path on the server.
    pub(super) path: Vec<u8>,
    /// Size of the file.
    pub(super) size: u64,
    /// Wanted ranges.
    pub(super) ranges: Ranges,
    /// Checksum to compute for each block.
    pub(super) sum: Option<Combining>,
    /// Whether blocks must come in order.
    pub(super) ordered: bool,
    /// Whether the file is longer than [`Self::size`], so that the server must be told the wanted part (ERET).
    pub(super) endless: bool,
    /// Writes directly to the destination, if the connections allow it.
    pub(super) into: Option<Arc<dyn DirectWriter>>,
}
