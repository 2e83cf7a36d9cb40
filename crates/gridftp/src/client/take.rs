//! Passes on the wanted blocks of a server's data, each byte once.

use super::request::{ReadRequest, Sender};
use phoebus_files::block::Block;
use phoebus_files::range::Ranges;
use phoebus_files::store::{DirectWriter, claimed_by};
use std::sync::Arc;

/// A direct writer for the `wanted` ranges only.
pub(super) fn only(direct_writer: Arc<dyn DirectWriter>, wanted: Ranges) -> Arc<dyn DirectWriter> {
    claimed_by(direct_writer, move |direct_writer, extent| {
        let mut mine = Ranges::new();
        for part in wanted.iter().filter_map(|wanted| wanted.common(extent)) {
            mine.extend(direct_writer.claim(part)?.iter());
        }
        Ok(mine)
    })
}

/// The destination of blocks.
pub(super) trait Sink: Send {
    /// Passes on `block`. False if the receiver is gone.
    fn take(&mut self, block: Block) -> impl Future<Output = bool> + Send;
}

/// Passes on everything.
pub(super) struct All<'a>(pub(super) &'a Sender);

impl Sink for All<'_> {
    async fn take(&mut self, block: Block) -> bool {
        self.0.send(Ok(Some(block))).await.is_ok()
    }
}

/// Passes on the wanted parts.
pub(super) struct Give<'a> {
    sender: &'a Sender,
    wanted: &'a ReadRequest,
    given: Ranges,
}

impl<'a> Give<'a> {
    pub(super) fn to(sender: &'a Sender, wanted: &'a ReadRequest) -> Self {
        Self { sender, wanted, given: Ranges::new() }
    }

    /// Wanted bytes that have not come.
    pub(super) fn missing(&self) -> u64 {
        self.wanted.ranges.iter().map(|extent| self.given.missing(extent).total()).sum()
    }
}

impl Sink for Give<'_> {
    /// Passes on the wanted and new parts of `block`.
    async fn take(&mut self, block: Block) -> bool {
        let Some(extent) = block.extent() else { return true };
        if block.is_written() {
            // The rest was not wanted.
            self.given.insert(extent);
            return self.sender.send(Ok(Some(block))).await.is_ok();
        }
        for part in self.wanted.ranges.iter().filter_map(|wanted| wanted.common(extent)) {
            for new in self.given.missing(part).iter() {
                let whole = new == extent;
                let Some(mut piece) = (if whole { Some(block.clone()) } else { block.part(new) }) else { continue };
                piece.sum = self.wanted.sum.and_then(|how| piece.sum_by(how));
                self.given.insert(new);
                if self.sender.send(Ok(Some(piece))).await.is_err() {
                    return false;
                }
            }
        }
        true
    }
}
