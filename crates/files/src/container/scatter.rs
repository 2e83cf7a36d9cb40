//! One object written as several.

use super::Layout;
use crate::block::Block;
use crate::error::Error;
use crate::range::{Extent, Ranges};
use crate::store::{Boxed, Capabilities, Draft, Fallible};
use crate::sum::{Algorithm, Sum, Tally};
use bytes::Bytes;
use std::sync::Arc;

/// Drafts that together hold one object, part by part. All are published once all are complete. If one publication
/// fails, earlier ones stay published.
#[derive(Debug)]
pub struct Scatter {
    name: String,
    parts: Vec<(Arc<dyn Draft>, u64)>,
    layout: Layout,
}

impl Scatter {
    /// The drafts `parts`, each with its size, as one that errors call `name`.
    ///
    /// # Errors
    /// The sum of sizes exceeds 64 bits.
    pub fn new(name: impl Into<String>, parts: Vec<(Arc<dyn Draft>, u64)>) -> Result<Self, Error> {
        let name = name.into();
        let layout = Layout::new(parts.iter().map(|&(_, size)| size)).ok_or_else(|| Error::Limit {
            name: name.clone(),
            what: "the length of all parts",
            limit: u64::MAX,
        })?;
        Ok(Self { name, parts, layout })
    }

    /// `ranges` of part number `part`, in offsets of the whole.
    fn in_whole<'a>(&self, part: usize, ranges: &'a Ranges) -> impl Iterator<Item = Extent> + 'a {
        let start = self.layout.start(part);
        ranges.iter().filter_map(move |extent| Extent::new(start.checked_add(extent.start())?, extent.len()))
    }

    /// The checksum of the whole, combined from its parts.
    fn joined(&self, sums: impl IntoIterator<Item = Sum>) -> Option<Sum> {
        let (mut tally, mut at) = (None, 0);
        for (sum, &(_, size)) in sums.into_iter().zip(&self.parts) {
            let how = sum.algorithm().combining()?;
            let tally = tally.get_or_insert_with(|| Tally::new(how));
            tally.add(Extent::new(at, size)?, sum.combined_value()?).ok()?;
            at += size;
        }
        tally?.total(self.layout.size())
    }
}

impl Draft for Scatter {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn kept(&self) -> Ranges {
        let mut all = Ranges::new();
        for (i, (draft, _)) in self.parts.iter().enumerate() {
            all.extend(self.in_whole(i, &draft.kept()));
        }
        all
    }

    fn capabilities(&self) -> Capabilities<'_> {
        let all: Vec<_> = self.parts.iter().map(|(draft, _)| draft.capabilities()).collect();
        // The bytes are in several places, and parts of lent blocks and holes would lack their checksums.
        Capabilities {
            resumable: all.iter().all(|part| part.resumable),
            ordered: all.iter().any(|part| part.ordered),
            ..Capabilities::default()
        }
    }

    fn write(&self, block: Block<Bytes>) -> Fallible<'_, ()> {
        Box::pin(async move {
            let whole = block.extent().unwrap_or(Extent::first(u64::MAX));
            if whole.end() > self.layout.size() {
                return Err(Error::Beyond { name: self.name.clone(), extent: whole });
            }
            for (part, extent) in self.layout.split(whole) {
                let place = Extent::new(self.layout.start(part) + extent.start(), extent.len());
                let piece = if place == Some(whole) { Some(block.clone()) } else { place.and_then(|p| block.part(p)) };
                // The parts are within the block's range.
                let Some(piece) = piece else { continue };
                self.parts[part].0.write(Block { offset: extent.start(), ..piece }).await?;
            }
            Ok(())
        })
    }

    fn flush(&self) -> Fallible<'_, ()> {
        Box::pin(async move {
            for (draft, _) in &self.parts {
                draft.flush().await?;
            }
            Ok(())
        })
    }

    fn checkpoint(&self) -> Fallible<'_, Ranges> {
        Box::pin(async move {
            let mut all = Ranges::new();
            for (i, (draft, _)) in self.parts.iter().enumerate() {
                all.extend(self.in_whole(i, &draft.checkpoint().await?));
            }
            Ok(all)
        })
    }

    fn written_sum(&self, size: u64) -> Option<Sum> {
        let sums: Option<Vec<_>> = self.parts.iter().map(|(draft, size)| draft.written_sum(*size)).collect();
        (size == self.layout.size()).then(|| self.joined(sums?))?
    }

    fn checksum(&self, algorithm: Algorithm) -> Fallible<'_, Sum> {
        Box::pin(async move {
            let mut sums = Vec::new();
            for (draft, _) in &self.parts {
                sums.push(draft.checksum(algorithm).await?);
            }
            let what = "a checksum whose parts cannot be put together";
            self.joined(sums).ok_or_else(|| Error::Unsupported { name: self.name.clone(), what })
        })
    }

    fn publish(&self, size: u64) -> Fallible<'_, ()> {
        Box::pin(async move {
            if size != self.layout.size() {
                let missing = size.abs_diff(self.layout.size());
                return Err(Error::Incomplete { name: self.name.clone(), missing, size });
            }
            for (draft, size) in &self.parts {
                draft.publish(*size).await?;
            }
            Ok(())
        })
    }

    fn abandon(&self, keep: bool) -> Boxed<'_, ()> {
        Box::pin(async move {
            for (draft, _) in &self.parts {
                draft.abandon(keep).await;
            }
        })
    }
}
