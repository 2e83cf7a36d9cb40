//! What a transfer receives.

use phoebus_files::block::Pool;
use phoebus_files::store::DirectWriter;
use std::sync::Arc;

/// What to receive.
#[derive(Debug, Clone)]
pub struct Intake {
    /// The buffers. Blocks are no longer than those. Each connection fills one at a time.
    pub pool: Pool,
    /// Offset of the first byte of a stream, which is also added to the offsets of blocks.
    pub from: u64,
    /// Expected length of a stream, if known: neither more nor less is accepted. Extended blocks mark their own end.
    pub expected: Option<u64>,
    /// Direct writer of the destination, used if connections are plain. Then the blocks of the flow have no bytes.
    pub into: Option<Arc<dyn DirectWriter>>,
}
