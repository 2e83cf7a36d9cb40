//! Records which blocks an upload has taken: that each comes once and, for a stream, in order; and the checksum of all.

use phoebus_files::block::{Block, Content};
use phoebus_files::range::{Extent, Ranges};
use phoebus_files::store::{Fallible, Flow};
use phoebus_files::sum::{Combining, Sum, Tally};
use phoebus_files::{Error, ErrorKind};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{mpsc, watch};

/// Most blocks that wait to be sent.
const QUEUE: usize = 4;

/// The ledger of an upload. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct UploadLedger(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    /// Name in errors.
    name: String,
    ranges: Ranges,
    tally: Option<Tally>,
    /// Offset of the next block of a stream; `None` for extended blocks.
    next: Option<u64>,
}

impl UploadLedger {
    /// Starts with the ranges that the server has `kept`. Errors name `name`; `sum` selects the checksum.
    pub(super) fn beyond(name: String, kept: Ranges, ordered: bool, sum: Option<Combining>) -> Self {
        let next = ordered.then(|| kept.iter().next_back().map_or(0, Extent::end));
        Self(Arc::new(Mutex::new(Inner { name, ranges: kept, tally: sum.map(Tally::new), next })))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Name in errors.
    pub(super) fn ranges(&self) -> Ranges {
        self.inner().ranges.clone()
    }

    /// Records `ranges` that the server got from elsewhere.
    pub(super) fn has(&self, ranges: &Ranges) {
        self.inner().ranges.extend(ranges.iter());
    }

    /// The checksum of all `size` bytes, if one is computed and all blocks came through here.
    pub(super) fn total(&self, size: u64) -> Option<Sum> {
        self.inner().tally.as_ref()?.total(size)
    }

    /// Records `block`. Returns whether it is new.
    ///
    /// # Errors
    /// It is out of order, or overlaps partly with recorded bytes.
    pub(super) fn note<B: Content>(&self, block: &Block<B>) -> Result<bool, Error> {
        let mut inner = self.inner();
        let beyond = |extent| Error::Beyond { name: inner.name.clone(), extent };
        let extent = block.extent().ok_or_else(|| beyond(Extent::first(u64::MAX)))?;
        if inner.next.is_some_and(|next| next != extent.start()) {
            return Err(beyond(extent));
        }
        match inner.ranges.missing(extent).total() {
            // A block that was sent twice stays as it was first.
            0 => return Ok(false),
            missing if missing < extent.len() => return Err(beyond(extent)),
            _ => {}
        }
        inner.ranges.insert(extent);
        inner.next = inner.next.map(|_| extent.end());
        if let Some(tally) = &mut inner.tally {
            let Some(sum) = block.sum_by(tally.combining()) else {
                let what = "a checksum of bytes that are still in a file";
                return Err(Error::Unsupported { name: inner.name.clone(), what });
            };
            // The check above found it new.
            let _ = tally.add(extent, sum);
        }
        Ok(true)
    }
}

/// A flow that records its blocks as they are taken.
pub(super) struct Noted {
    flow: Arc<dyn Flow>,
    given: UploadLedger,
    failed: Mutex<Option<Error>>,
    ended: watch::Sender<bool>,
}

impl Noted {
    pub(super) fn of(flow: Arc<dyn Flow>, given: UploadLedger) -> Self {
        Self { flow, given, failed: Mutex::default(), ended: watch::Sender::new(false) }
    }

    /// Waits until all blocks were taken. Cancel safe.
    ///
    /// # Errors
    /// The first error of the source.
    pub(super) async fn taken(&self) -> Result<(), Error> {
        // The sender lives as long as `self`.
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map_or(Ok(()), |error| Err(error.again()))
    }

    async fn new_one(&self) -> Result<Option<Block>, Error> {
        while let Some(block) = self.flow.next().await? {
            if self.given.note(&block)? {
                return Ok(Some(block));
            }
        }
        Ok(None)
    }
}

impl Flow for Noted {
    fn next(&self) -> Fallible<'_, Option<Block>> {
        Box::pin(async {
            let error = match self.new_one().await {
                Ok(Some(block)) => return Ok(Some(block)),
                Ok(None) => {
                    self.ended.send_replace(true);
                    return Ok(None);
                }
                Err(error) => error,
            };
            // The waiting side reports the error. Here the upload is only cut.
            let cut = Error::Store { name: "upload".to_owned(), reason: error.to_string(), kind: ErrorKind::Other };
            self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            self.ended.send_replace(true);
            Err(cut)
        })
    }
}

impl fmt::Debug for Noted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Noted").field(&self.flow).finish()
    }
}

/// A flow of blocks that come one by one. It ends when the sender is dropped.
pub(super) struct Queue(tokio::sync::Mutex<mpsc::Receiver<Block>>);

impl Queue {
    pub(super) fn new() -> (mpsc::Sender<Block>, Self) {
        let (queue, blocks) = mpsc::channel(QUEUE);
        (queue, Self(tokio::sync::Mutex::new(blocks)))
    }
}

impl Flow for Queue {
    fn next(&self) -> Fallible<'_, Option<Block>> {
        Box::pin(async { Ok(self.0.lock().await.recv().await) })
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[derive(Debug)]
    struct Blocks(Mutex<Vec<Result<Block, Error>>>);

    impl Flow for Blocks {
        fn next(&self) -> Fallible<'_, Option<Block>> {
            let next = self.0.lock().unwrap().pop().transpose();
            Box::pin(async { next })
        }
    }

    fn block(offset: u64) -> Block {
        Block::new(offset, Bytes::from_static(b"0123456789"))
    }

    #[test]
    fn blocks_are_new_once_and_streams_are_ordered() {
        let kept: Ranges = Extent::first(10).into();
        let apart = UploadLedger::beyond("x".to_owned(), kept.clone(), false, None);
        assert!(!apart.note(&block(0)).unwrap() && apart.note(&block(30)).unwrap());
        assert!(apart.note(&block(10)).unwrap() && !apart.note(&block(10)).unwrap());
        assert!(matches!(apart.note(&block(15)), Err(Error::Beyond { .. })), "half of it is there");
        assert_eq!(apart.ranges().total(), 30);
        let stream = UploadLedger::beyond("x".to_owned(), kept, true, None);
        assert!(matches!(stream.note(&block(20)), Err(Error::Beyond { .. })));
        assert!(stream.note(&block(10)).unwrap() && stream.note(&block(20)).unwrap());
    }

    #[tokio::test]
    async fn first_failure_of_a_flow_reaches_its_waiter() {
        let gone = Error::NotFound { name: "source".to_owned() };
        let flow = Blocks(Mutex::new(vec![Err(gone), Ok(block(0)), Ok(block(0))]));
        let given = UploadLedger::beyond("x".to_owned(), Ranges::new(), false, None);
        let noted = Noted::of(Arc::new(flow), given.clone());
        assert_eq!(noted.next().await.unwrap().unwrap().offset, 0);
        let cut = noted.next().await.unwrap_err();
        assert!(cut.to_string().contains("source does not exist"), "{cut}");
        assert!(matches!(noted.taken().await, Err(Error::NotFound { name }) if name == "source"));
        assert_eq!(given.ranges().total(), 10);
        assert!(noted.next().await.unwrap().is_none());
        assert!(matches!(noted.taken().await, Err(Error::NotFound { .. })));
    }
}
