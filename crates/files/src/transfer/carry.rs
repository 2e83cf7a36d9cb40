//! Tasks that pass blocks from a flow to a draft, until the flow ends or something fails. A draft that reads the flow
//! itself is only watched.

use super::TransferOptions;
use crate::block::{Block, Body};
use crate::error::Error;
use crate::range::Ranges;
use crate::store::{Capabilities, Draft, Fallible, Flow, unasked};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::task::{JoinError, JoinHandle, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval};

/// Longest interval between checks for checkpoints and progress.
const LOOK: Duration = Duration::from_millis(100);

/// Carries all of `flow` to `draft`, with checkpoints, and reports synced ranges to `saved`. The draft is then to be
/// published or abandoned. The future may be dropped at any time.
///
/// # Errors
/// The first error of the flow, the draft or a checkpoint; or [`Error::Stalled`].
pub async fn carry(
    flow: Arc<dyn Flow>,
    draft: Arc<dyn Draft>,
    how: &TransferOptions,
    mut saved: impl FnMut(Ranges),
) -> Result<(), Error> {
    let counts = Arc::new(Counts::default());
    let mut tasks = JoinSet::new();
    // A throttled task takes a block when it is permitted.
    let drain = draft.capabilities().drain.filter(|_| how.throttle.is_none());
    let draining = drain.map(|drain| drain.drain(&flow, &counts.moved));
    let (to, taken) = (&draft, &counts.taken);
    let mut draining = draining.map(|draining| -> Fallible<'_, ()> {
        Box::pin(async move {
            draining.await?;
            taken.store(true, Ordering::Relaxed);
            // Bytes in flight are counted when they go.
            to.flush().await
        })
    });
    if draining.is_none() {
        for _ in 0..how.writers.max(1) {
            tasks.spawn(run(flow.clone(), draft.clone(), how.clone(), counts.clone()));
        }
    }
    let mut watch = Watch { saved: 0, saved_at: Instant::now(), seen: 0, seen_at: Instant::now(), told: 0 };
    let mut saving: Option<JoinHandle<Result<Ranges, Error>>> = None;
    let mut ticks = interval((how.checkpoint.min(how.stall_timeout) / 4).clamp(Duration::from_millis(1), LOOK));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let result = loop {
        tokio::select! {
            ended = drained(&mut draining) => break ended,
            ended = tasks.join_next(), if draining.is_none() => match ended {
                None => break Ok(()),
                Some(Ok(Ok(()))) => {}
                Some(Ok(Err(error))) => break Err(error),
                Some(Err(error)) => break Err(broken(&*draft, error)),
            },
            ended = finished(&mut saving) => {
                saving = None;
                match ended {
                    Ok(Ok(safe)) => saved(safe),
                    Ok(Err(error)) => break Err(error),
                    Err(error) => break Err(broken(&*draft, error)),
                }
            }
            _ = ticks.tick() => {
                let now = watch.tell(&counts, how);
                // Writers may wait for a checkpoint or the throttle, and a draft that has read everything limits its
                // own waits.
                let waits = counts.held.load(Ordering::Relaxed) > 0 || taken.load(Ordering::Relaxed);
                let busy = saving.is_some() || waits;
                if watch.stalled(now, how, busy) {
                    break Err(Error::Stalled { name: draft.name(), after: how.stall_timeout });
                }
                if saving.is_none() && watch.due(now, how) {
                    let draft = draft.clone();
                    saving = Some(tokio::spawn(async move { draft.checkpoint().await }));
                }
            }
        }
    };
    drop(draining);
    tasks.shutdown().await;
    watch.tell(&counts, how);
    if let Some(saving) = saving {
        // If it fails after everything was carried, the publication fails too.
        let _ = saving.await;
    }
    result
}

/// State that the tasks of a transfer share.
#[derive(Default)]
struct Counts {
    /// Carried bytes.
    moved: Arc<AtomicU64>,
    /// Tasks that wait for the throttle.
    held: AtomicUsize,
    /// Whether a draft that reads the flow itself has read everything.
    taken: AtomicBool,
}

/// One of the tasks.
async fn run(
    flow: Arc<dyn Flow>,
    draft: Arc<dyn Draft>,
    how: TransferOptions,
    counts: Arc<Counts>,
) -> Result<(), Error> {
    let Capabilities { file_ranges, holes, .. } = draft.capabilities();
    while let Some(block) = flow.next().await? {
        let len = block.len();
        // A hole costs nothing.
        if let Some(throttle) = how.throttle.as_ref().filter(|_| !block.is_hole()) {
            counts.held.fetch_add(1, Ordering::Relaxed);
            throttle.wait_for(len).await;
            counts.held.fetch_sub(1, Ordering::Relaxed);
        }
        let extent = block.extent();
        let Block { offset, body, sum } = block;
        match (body, &file_ranges, &holes, extent) {
            (Body::Bytes(body), ..) => draft.write(Block { offset, body, sum }).await?,
            (Body::Written(_), ..) => {}
            (Body::FileRange(body), Some(file_ranges), ..) => {
                file_ranges.write_file_range(Block { offset, body, sum }).await?
            }
            (Body::Hole(_), _, Some(holes), Some(extent)) => holes.write_hole(extent, sum).await?,
            (body, ..) => return Err(unasked(&body)),
        }
        counts.moved.fetch_add(len, Ordering::Relaxed);
    }
    Ok(())
}

/// Start of the last checkpoint, and time of the last progress.
struct Watch {
    saved: u64,
    saved_at: Instant,
    seen: u64,
    seen_at: Instant,
    /// Bytes that the progress display knows of.
    told: u64,
}

impl Watch {
    /// Updates the progress display. Returns the moved bytes.
    fn tell(&mut self, counts: &Counts, how: &TransferOptions) -> u64 {
        let now = counts.moved.load(Ordering::Relaxed);
        how.progress.moved(now.saturating_sub(self.told));
        self.told = now;
        now
    }

    /// Whether nothing has moved for too long, without a known reason.
    fn stalled(&mut self, moved: u64, how: &TransferOptions, busy: bool) -> bool {
        if moved != self.seen || busy {
            (self.seen, self.seen_at) = (moved, Instant::now());
        }
        self.seen_at.elapsed() >= how.stall_timeout
    }

    /// Whether a checkpoint is due. If so, records its start.
    fn due(&mut self, moved: u64, how: &TransferOptions) -> bool {
        let waiting = moved - self.saved;
        let due = waiting >= how.checkpoint_bytes || (waiting > 0 && self.saved_at.elapsed() >= how.checkpoint);
        if due || waiting == 0 {
            (self.saved, self.saved_at) = (moved, Instant::now());
        }
        due
    }
}

/// Waits for `draining`, or for ever without one.
async fn drained(draining: &mut Option<Fallible<'_, ()>>) -> Result<(), Error> {
    match draining {
        Some(draining) => draining.await,
        None => std::future::pending().await,
    }
}

/// Waits for the task in `saving`, or for ever without one.
async fn finished<T>(saving: &mut Option<JoinHandle<T>>) -> Result<T, JoinError> {
    match saving {
        Some(task) => task.await,
        None => std::future::pending().await,
    }
}

fn broken(draft: &dyn Draft, error: JoinError) -> Error {
    Error::Io { name: draft.name(), act: "go on with", source: std::io::Error::other(error) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Boxed, Drain};
    use crate::sum::{Algorithm, Sum};
    use bytes::Bytes;

    /// A draft that takes all at once, of which half has gone when it is flushed and the rest goes then.
    #[derive(Debug, Default)]
    struct Late(AtomicBool);

    const LEN: u64 = 1000;

    impl Drain for Late {
        fn drain(&self, _flow: &Arc<dyn Flow>, moved: &Arc<AtomicU64>) -> Fallible<'_, ()> {
            let moved = moved.clone();
            moved.store(LEN / 2, Ordering::Relaxed);
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(300)).await;
                moved.store(LEN, Ordering::Relaxed);
            });
            Box::pin(async { Ok(()) })
        }
    }

    impl Draft for Late {
        fn name(&self) -> String {
            "late".to_owned()
        }

        fn kept(&self) -> Ranges {
            Ranges::new()
        }

        fn capabilities(&self) -> Capabilities<'_> {
            Capabilities { drain: Some(self), ..Capabilities::default() }
        }

        fn write(&self, _block: Block<Bytes>) -> Fallible<'_, ()> {
            Box::pin(async { Ok(()) })
        }

        fn flush(&self) -> Fallible<'_, ()> {
            Box::pin(async {
                tokio::time::sleep(Duration::from_secs(600)).await;
                self.0.store(true, Ordering::Relaxed);
                Ok(())
            })
        }

        fn checkpoint(&self) -> Fallible<'_, Ranges> {
            Box::pin(async { Ok(Ranges::new()) })
        }

        fn written_sum(&self, _size: u64) -> Option<Sum> {
            None
        }

        fn checksum(&self, _algorithm: Algorithm) -> Fallible<'_, Sum> {
            Box::pin(async { Err(Error::NotFound { name: self.name() }) })
        }

        fn publish(&self, _size: u64) -> Fallible<'_, ()> {
            Box::pin(async { Ok(()) })
        }

        fn abandon(&self, _keep: bool) -> Boxed<'_, ()> {
            Box::pin(async {})
        }
    }

    #[derive(Debug)]
    struct Empty;

    impl Flow for Empty {
        fn next(&self) -> Fallible<'_, Option<Block>> {
            Box::pin(async { Ok(None) })
        }
    }

    /// The clock is the test's.
    #[tokio::test(start_paused = true)]
    async fn what_goes_after_all_was_taken_is_counted_when_it_goes_and_waited_for() {
        let (draft, how) = (Arc::new(Late::default()), TransferOptions::default());
        let carried = carry(Arc::new(Empty), draft.clone(), &how, drop);
        tokio::pin!(carried);
        // Longer than it takes to go, and far less than it takes to be confirmed.
        assert!(tokio::time::timeout(Duration::from_secs(2), &mut carried).await.is_err());
        assert_eq!(how.progress.bytes_moved(), LEN);
        assert!(!draft.0.load(Ordering::Relaxed));
        carried.await.unwrap();
        assert!(draft.0.load(Ordering::Relaxed) && how.progress.bytes_moved() == LEN);
    }
}
