//! Blocks that wait to be sent.

use bytes::Bytes;
use phoebus_files::block::Block;
use phoebus_files::store::{Fallible, Flow};
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// A stream of bytes in blocks.
#[derive(Debug, Default)]
pub(super) struct Queue {
    blocks: Mutex<VecDeque<Block>>,
    len: u64,
}

impl Queue {
    /// Adds `bytes` to the stream.
    pub(super) fn push(&mut self, bytes: Vec<u8>) {
        let block = Block { offset: self.len, body: Bytes::from(bytes), sum: None };
        self.len += block.len();
        self.blocks.get_mut().unwrap_or_else(PoisonError::into_inner).push_back(block.into());
    }

    /// Length of the stream.
    pub(super) fn len(&self) -> u64 {
        self.len
    }
}

impl Flow for Queue {
    fn next(&self) -> Fallible<'_, Option<Block>> {
        let next = self.blocks.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        Box::pin(async { Ok(next) })
    }
}
