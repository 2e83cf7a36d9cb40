//! A flow that a test sends, and the bytes that the other end receives.

use super::PATIENCE;
use phoebus_files::block::{Block, Pool};
use phoebus_files::store::{BytesFlow, Fallible, Flow};
use phoebus_files::{Error, ErrorKind};
use phoebus_gridftp::data::{Channel, Intake, Mode};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use tokio::time::timeout;

/// Blocks in order; it may fail at its end.
#[derive(Debug)]
pub struct Given {
    blocks: Mutex<VecDeque<Block>>,
    whole: bool,
}

impl Given {
    /// `content` in blocks of this size, followed by its end, or by a failure if not `whole`.
    pub fn of(content: &[u8], block: usize, whole: bool) -> Arc<dyn Flow> {
        let blocks = content.chunks(block).enumerate();
        let blocks = blocks.map(|(i, bytes)| Block::new((i * block) as u64, bytes.to_vec()));
        Arc::new(Self { blocks: Mutex::new(blocks.collect()), whole })
    }
}

impl Flow for Given {
    fn next(&self) -> Fallible<'_, Option<Block>> {
        let next = self.blocks.lock().unwrap().pop_front();
        let lost = || Error::Store { name: "x".into(), reason: "lost".into(), kind: ErrorKind::Passing };
        Box::pin(async move { if next.is_none() && !self.whole { Err(lost()) } else { Ok(next) } })
    }
}

/// Collects the blocks that arrive over `channel`. `expected` is the size, if it is known.
pub async fn receive(channel: &Channel, mode: Mode, expected: Option<u64>) -> Result<Vec<u8>, Error> {
    let intake = Intake { pool: Pool::new(1 << 18, 16), from: 0, expected, into: None };
    let (flow, mut content) = (BytesFlow::over(channel.receive(mode, intake)), Vec::new());
    while let Some(block) = timeout(PATIENCE, flow.next()).await.unwrap()? {
        let (at, bytes) = (block.offset as usize, &block.body);
        content.resize(content.len().max(at + bytes.len()), 0);
        content[at..at + bytes.len()].copy_from_slice(bytes);
    }
    Ok(content)
}
