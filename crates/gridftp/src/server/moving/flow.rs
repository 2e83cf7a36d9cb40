//! What is put between a file and the data channel.

use phoebus_files::Error;
use phoebus_files::block::Block;
use phoebus_files::range::Extent;
use phoebus_files::store::{Fallible, Flow};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::{Mutex, mpsc};

/// A flow whose bytes belong elsewhere: so much further back.
#[derive(Debug)]
pub(super) struct Shifted {
    flow: Arc<dyn Flow>,
    back: u64,
}

impl Shifted {
    pub(super) fn back(flow: Arc<dyn Flow>, by: u64) -> Arc<dyn Flow> {
        if by == 0 { flow } else { Arc::new(Self { flow, back: by }) }
    }
}

impl Flow for Shifted {
    fn next(&self) -> Fallible<'_, Option<Block>> {
        Box::pin(async {
            let Some(block) = self.flow.next().await? else { return Ok(None) };
            let to = block.offset.checked_sub(self.back);
            let beyond = || Error::Beyond {
                name: "the transfer".to_owned(),
                extent: block.extent().unwrap_or(Extent::first(u64::MAX)),
            };
            Ok(Some(Block { offset: to.ok_or_else(beyond)?, ..block }))
        })
    }
}

/// A flow that is counted as it passes.
#[derive(Debug)]
pub(super) struct Watched {
    flow: Arc<dyn Flow>,
    seen: Arc<Seen>,
}

/// What has passed.
#[derive(Debug, Default)]
pub(super) struct Seen {
    bytes: AtomicU64,
    end: AtomicU64,
}

impl Seen {
    /// How many bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// After the last of them.
    pub(super) fn end(&self) -> u64 {
        self.end.load(Ordering::Relaxed)
    }
}

impl Watched {
    pub(super) fn over(flow: Arc<dyn Flow>) -> (Arc<dyn Flow>, Arc<Seen>) {
        let seen = Arc::<Seen>::default();
        (Arc::new(Self { flow, seen: seen.clone() }), seen)
    }
}

impl Flow for Watched {
    fn next(&self) -> Fallible<'_, Option<Block>> {
        Box::pin(async {
            let block = self.flow.next().await?;
            if let Some(block) = &block {
                let len = block.len();
                self.seen.bytes.fetch_add(len, Ordering::Relaxed);
                self.seen.end.fetch_max(block.offset.saturating_add(len), Ordering::Relaxed);
            }
            Ok(block)
        })
    }
}

/// A flow of what a program makes.
#[derive(Debug)]
pub(super) struct Made(Mutex<mpsc::Receiver<Result<Block, Error>>>);

impl Made {
    pub(super) fn pair() -> (mpsc::Sender<Result<Block, Error>>, Arc<dyn Flow>) {
        let (sender, receiver) = mpsc::channel(2);
        (sender, Arc::new(Self(Mutex::new(receiver))))
    }
}

impl Flow for Made {
    fn next(&self) -> Fallible<'_, Option<Block>> {
        Box::pin(async { self.0.lock().await.recv().await.transpose() })
    }
}
