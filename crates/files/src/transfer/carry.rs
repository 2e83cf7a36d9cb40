//! Carriers: tasks that take blocks from a flow and give them to a draft, until there are none left or something fails. A draft that
//! takes them by itself needs none: what is left is to watch it.

use super::How;
use crate::error::Error;
use crate::range::Ranges;
use crate::store::{Draft, Fallible, Flow};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::task::{JoinError, JoinHandle, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval};

/// How often it is looked for whether a checkpoint is due or nothing moves, at least.
const LOOK: Duration = Duration::from_millis(100);

/// Carries all of `flow` to `draft`, with checkpoints on the way, and tells `saved` what is safe after each of them. The draft
/// is then to be published or abandoned. The future may be dropped at any time.
///
/// # Errors
/// The first of what the flow, the draft or a checkpoint report, and [`Error::Stalled`].
pub async fn carry(
    flow: Arc<dyn Flow>,
    draft: Arc<dyn Draft>,
    how: &How,
    mut saved: impl FnMut(Ranges),
) -> Result<(), Error> {
    let counts = Arc::new(Counts::default());
    let mut carriers = JoinSet::new();
    // Whoever is held up takes a block when it is let.
    let draining = if how.throttle.is_none() { draft.drain(&flow, &counts.moved) } else { None };
    let (to, taken) = (&draft, &counts.taken);
    let mut draining = draining.map(|draining| -> Fallible<'_, ()> {
        Box::pin(async move {
            draining.await?;
            taken.store(true, Ordering::Relaxed);
            // What was taken and is on its way is counted when it goes.
            to.flush().await
        })
    });
    if draining.is_none() {
        for _ in 0..how.writers.max(1) {
            carriers.spawn(run(flow.clone(), draft.clone(), how.clone(), counts.clone()));
        }
    }
    let mut watch = Watch { saved: 0, saved_at: Instant::now(), seen: 0, seen_at: Instant::now(), told: 0 };
    let mut saving: Option<JoinHandle<Result<Ranges, Error>>> = None;
    let mut ticks = interval((how.checkpoint.min(how.stall) / 4).clamp(Duration::from_millis(1), LOOK));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let result = loop {
        tokio::select! {
            ended = drained(&mut draining) => break ended,
            ended = carriers.join_next(), if draining.is_none() => match ended {
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
                // A checkpoint may hold writers up, those whom the throttle holds move when it lets them, and a draft that has taken all
                // knows by itself how long it waits.
                let waits = counts.held.load(Ordering::Relaxed) > 0 || taken.load(Ordering::Relaxed);
                let busy = saving.is_some() || waits;
                if watch.stalled(now, how, busy) {
                    break Err(Error::Stalled { name: draft.name(), after: how.stall });
                }
                if saving.is_none() && watch.due(now, how) {
                    let draft = draft.clone();
                    saving = Some(tokio::spawn(async move { draft.checkpoint().await }));
                }
            }
        }
    };
    drop(draining);
    carriers.shutdown().await;
    watch.tell(&counts, how);
    if let Some(saving) = saving {
        // One that fails after all has been carried fails at publication, too.
        let _ = saving.await;
    }
    result
}

/// What the carriers of a transfer are doing.
#[derive(Default)]
struct Counts {
    /// Bytes that were carried.
    moved: Arc<AtomicU64>,
    /// Carriers that the throttle holds.
    held: AtomicUsize,
    /// Whether a draft that takes blocks by itself has taken all.
    taken: AtomicBool,
}

/// One carrier.
async fn run(flow: Arc<dyn Flow>, draft: Arc<dyn Draft>, how: How, counts: Arc<Counts>) -> Result<(), Error> {
    while let Some(block) = flow.next().await? {
        let len = block.len();
        // What is nowhere loads nothing.
        if let Some(throttle) = how.throttle.as_ref().filter(|_| !block.is_hole()) {
            counts.held.fetch_add(1, Ordering::Relaxed);
            throttle.wait_for(len).await;
            counts.held.fetch_sub(1, Ordering::Relaxed);
        }
        if !block.has_landed() {
            draft.write(block).await?;
        }
        counts.moved.fetch_add(len, Ordering::Relaxed);
    }
    Ok(())
}

/// When a checkpoint was last begun, and when bytes were last seen to move.
struct Watch {
    saved: u64,
    saved_at: Instant,
    seen: u64,
    seen_at: Instant,
    /// How many of them whoever shows progress was told of.
    told: u64,
}

impl Watch {
    /// Tells whoever shows progress how many bytes have moved, and returns it.
    fn tell(&mut self, counts: &Counts, how: &How) -> u64 {
        let now = counts.moved.load(Ordering::Relaxed);
        how.progress.moved(now.saturating_sub(self.told));
        self.told = now;
        now
    }

    /// Whether nothing has moved for too long, now that `moved` bytes have, unless it is known why.
    fn stalled(&mut self, moved: u64, how: &How, busy: bool) -> bool {
        if moved != self.seen || busy {
            (self.seen, self.seen_at) = (moved, Instant::now());
        }
        self.seen_at.elapsed() >= how.stall
    }

    /// Whether it is time for a checkpoint, and if so, notes that one begins.
    fn due(&mut self, moved: u64, how: &How) -> bool {
        let waiting = moved - self.saved;
        let due = waiting >= how.checkpoint_bytes || (waiting > 0 && self.saved_at.elapsed() >= how.checkpoint);
        if due || waiting == 0 {
            (self.saved, self.saved_at) = (moved, Instant::now());
        }
        due
    }
}

/// The end of `draining`; never, if there is none.
async fn drained(draining: &mut Option<Fallible<'_, ()>>) -> Result<(), Error> {
    match draining {
        Some(draining) => draining.await,
        None => std::future::pending().await,
    }
}

/// The end of the task in `saving`; never, if there is none.
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
    use crate::block::Block;
    use crate::store::Boxed;
    use crate::sum::{Algorithm, Sum};

    /// A draft that takes all at once, of which half has gone when it is flushed and the rest goes then.
    #[derive(Debug, Default)]
    struct Late(AtomicBool);

    const LEN: u64 = 1000;

    impl Draft for Late {
        fn name(&self) -> String {
            "late".to_owned()
        }

        fn kept(&self) -> Ranges {
            Ranges::new()
        }

        fn drain(&self, _flow: &Arc<dyn Flow>, moved: &Arc<AtomicU64>) -> Option<Fallible<'_, ()>> {
            let moved = moved.clone();
            moved.store(LEN / 2, Ordering::Relaxed);
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(300)).await;
                moved.store(LEN, Ordering::Relaxed);
            });
            Some(Box::pin(async { Ok(()) }))
        }

        fn write(&self, _block: Block) -> Fallible<'_, ()> {
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

        fn given(&self, _size: u64) -> Option<Sum> {
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
        let (draft, how) = (Arc::new(Late::default()), How::default());
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
