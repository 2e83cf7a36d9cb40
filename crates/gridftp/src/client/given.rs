//! What a draft on a server is given, block by block: that it comes once and, where a stream takes it, in order; and the checksum of
//! all of it.

use phoebus_files::block::Block;
use phoebus_files::range::{Extent, Ranges};
use phoebus_files::store::{Fallible, Flow};
use phoebus_files::sum::{Combining, Sum, Tally};
use phoebus_files::{Error, Sort};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{mpsc, watch};

/// How many blocks wait to be sent where they come one by one.
const QUEUE: usize = 4;

/// What was given. Clones are the same.
#[derive(Debug, Clone)]
pub(super) struct Given(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    /// As errors name the draft.
    name: String,
    ranges: Ranges,
    tally: Option<Tally>,
    /// Where the next block of a stream belongs, if it is one.
    next: Option<u64>,
}

impl Given {
    /// Nothing but what the server has `kept`, for the draft that errors call `name`; its checksum is computed as `sum` says.
    pub(super) fn beyond(name: String, kept: Ranges, ordered: bool, sum: Option<Combining>) -> Self {
        let next = ordered.then(|| kept.iter().next_back().map_or(0, Extent::end));
        Self(Arc::new(Mutex::new(Inner { name, ranges: kept, tally: sum.map(Tally::new), next })))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it is.
    pub(super) fn ranges(&self) -> Ranges {
        self.inner().ranges.clone()
    }

    /// Notes that the server has `ranges`, which came from elsewhere.
    pub(super) fn has(&self, ranges: &Ranges) {
        self.inner().ranges.extend(ranges.iter());
    }

    /// The checksum of all `size` bytes, if one is computed and all came.
    pub(super) fn total(&self, size: u64) -> Option<Sum> {
        self.inner().tally.as_ref()?.total(size)
    }

    /// Notes `block`; whether it is new.
    ///
    /// # Errors
    /// It is out of order, or has some bytes that were given and some that were not.
    pub(super) fn note(&self, block: &Block) -> Result<bool, Error> {
        let mut inner = self.inner();
        let beyond = |extent| Error::Beyond { name: inner.name.clone(), extent };
        let extent = block.extent().ok_or_else(|| beyond(Extent::first(u64::MAX)))?;
        if inner.next.is_some_and(|next| next != extent.start()) {
            return Err(beyond(extent));
        }
        match inner.ranges.missing(extent).total() {
            // The first bytes stay.
            0 => return Ok(false),
            missing if missing < extent.len() => return Err(beyond(extent)),
            _ => {}
        }
        inner.ranges.insert(extent);
        inner.next = inner.next.map(|_| extent.end());
        if let Some(tally) = &mut inner.tally {
            let sum = block.sum_by(tally.combining())?;
            // It was seen above to be new.
            let _ = tally.add(extent, sum);
        }
        Ok(true)
    }
}

/// A flow whose blocks are noted as they are taken.
pub(super) struct Noted {
    flow: Arc<dyn Flow>,
    given: Given,
    failed: Mutex<Option<Error>>,
    ended: watch::Sender<bool>,
}

impl Noted {
    pub(super) fn of(flow: Arc<dyn Flow>, given: Given) -> Self {
        Self { flow, given, failed: Mutex::default(), ended: watch::Sender::new(false) }
    }

    /// Waits until all blocks were taken; cancel safe.
    ///
    /// # Errors
    /// Of where they come from: the first.
    pub(super) async fn taken(&self) -> Result<(), Error> {
        // It lives as long as this does.
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
            // Whoever waits for all to be taken tells it; the upload has to be cut, and no more.
            let cut = Error::Store { name: "upload".to_owned(), reason: error.to_string(), sort: Sort::Other };
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

/// Blocks that come one by one, as a flow. It ends when the sender is dropped.
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
    fn a_block_is_new_once_and_a_stream_has_an_order() {
        let kept: Ranges = Extent::first(10).into();
        let apart = Given::beyond("x".to_owned(), kept.clone(), false, None);
        assert!(!apart.note(&block(0)).unwrap() && apart.note(&block(30)).unwrap());
        assert!(apart.note(&block(10)).unwrap() && !apart.note(&block(10)).unwrap());
        assert!(matches!(apart.note(&block(15)), Err(Error::Beyond { .. })), "half of it is there");
        assert_eq!(apart.ranges().total(), 30);
        let stream = Given::beyond("x".to_owned(), kept, true, None);
        assert!(matches!(stream.note(&block(20)), Err(Error::Beyond { .. })));
        assert!(stream.note(&block(10)).unwrap() && stream.note(&block(20)).unwrap());
    }

    #[tokio::test]
    async fn the_first_failure_of_a_flow_is_told_to_who_waits_for_its_end() {
        let gone = Error::NotFound { name: "source".to_owned() };
        let flow = Blocks(Mutex::new(vec![Err(gone), Ok(block(0)), Ok(block(0))]));
        let given = Given::beyond("x".to_owned(), Ranges::new(), false, None);
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
