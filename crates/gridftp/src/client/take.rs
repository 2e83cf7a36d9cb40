//! What becomes of the blocks that a server sends: those that are wanted are handed on, each byte once.

use super::retrieve::{Sender, Wanted};
use phoebus_files::Error;
use phoebus_files::block::Block;
use phoebus_files::range::{Extent, Ranges};
use phoebus_files::store::Landing;
use phoebus_files::sum::Combining;
use std::fs::File;
use std::sync::Arc;

/// A landing for what is wanted, and for nothing else that a server sends.
#[derive(Debug)]
pub(super) struct Only {
    landing: Arc<dyn Landing>,
    wanted: Ranges,
}

impl Only {
    pub(super) fn of(landing: Arc<dyn Landing>, wanted: Ranges) -> Arc<dyn Landing> {
        Arc::new(Self { landing, wanted })
    }
}

impl Landing for Only {
    fn claim(&self, extent: Extent) -> Result<Ranges, Error> {
        let mut mine = Ranges::new();
        for part in self.wanted.iter().filter_map(|wanted| wanted.common(extent)) {
            mine.extend(self.landing.claim(part)?.iter());
        }
        Ok(mine)
    }

    fn file(&self) -> &File {
        self.landing.file()
    }

    fn sum(&self) -> Option<Combining> {
        self.landing.sum()
    }

    fn wrote(&self, extent: Extent, sum: u32) -> Result<(), Error> {
        self.landing.wrote(extent, sum)
    }

    fn failed(&self, error: std::io::Error) -> Error {
        self.landing.failed(error)
    }
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
