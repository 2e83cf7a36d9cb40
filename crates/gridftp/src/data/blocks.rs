//! Delivers received blocks to the reader of a flow.

use super::error::Error;
use crate::block_channel::BlockResult;
use phoebus_files::block::Block;
use tokio::sync::mpsc;

/// Sends blocks to the reader of a flow. `None` marks completion.
pub(super) type Sender = mpsc::Sender<BlockResult<Error>>;

/// Sends one block.
///
/// # Errors
/// The reader is gone.
pub(super) async fn give(blocks: &Sender, block: Block) -> Result<(), Error> {
    blocks.send(Ok(Some(block))).await.map_err(|_| Error::GivenUp)
}
