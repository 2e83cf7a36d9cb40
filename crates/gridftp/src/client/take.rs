//! What becomes of the blocks that a server sends: those that are wanted are handed on, each byte once.

use super::retrieve::{Sender, Wanted};
use phoebus_files::block::Block;
use phoebus_files::range::Ranges;
use phoebus_files::store::{Landing, claimed_by};
use std::sync::Arc;

/// A landing for what is wanted, and for nothing else that a server sends.
pub(super) fn only(landing: Arc<dyn Landing>, wanted: Ranges) -> Arc<dyn Landing> {
    claimed_by(landing, move |landing, extent| {
        let mut mine = Ranges::new();
        for part in wanted.iter().filter_map(|wanted| wanted.common(extent)) {
            mine.extend(landing.claim(part)?.iter());
        }
        Ok(mine)
    })
}

/// Where blocks go.
pub(super) trait Sink: Send {
    /// Hands on `block`; false if nobody takes it.
    fn take(&mut self, block: Block) -> impl Future<Output = bool> + Send;
}

/// Hands on all that comes.
pub(super) struct All<'a>(pub(super) &'a Sender);

impl Sink for All<'_> {
    async fn take(&mut self, block: Block) -> bool {
        self.0.send(Ok(Some(block))).await.is_ok()
    }
}

/// Hands on what is wanted of what comes.
pub(super) struct Give<'a> {
    sender: &'a Sender,
    wanted: &'a Wanted,
    given: Ranges,
}

impl<'a> Give<'a> {
    pub(super) fn to(sender: &'a Sender, wanted: &'a Wanted) -> Self {
        Self { sender, wanted, given: Ranges::new() }
    }

    /// How many of the bytes that are wanted have not come.
    pub(super) fn missing(&self) -> u64 {
        self.wanted.ranges.iter().map(|extent| self.given.missing(extent).total()).sum()
    }
}

impl Sink for Give<'_> {
    /// Hands on what of `block` is wanted and new.
    async fn take(&mut self, block: Block) -> bool {
        let Some(extent) = block.extent() else { return true };
        if block.has_landed() {
            // What was not wanted has not.
            self.given.insert(extent);
            return self.sender.send(Ok(Some(block))).await.is_ok();
        }
        for part in self.wanted.ranges.iter().filter_map(|wanted| wanted.common(extent)) {
            for new in self.given.missing(part).iter() {
                let whole = new == extent;
                let Some(mut piece) = (if whole { Some(block.clone()) } else { block.part(new) }) else { continue };
                piece.sum = self.wanted.sum.and_then(|how| piece.sum_by(how).ok());
                self.given.insert(new);
                if self.sender.send(Ok(Some(piece))).await.is_err() {
                    return false;
                }
            }
        }
        true
    }
}
