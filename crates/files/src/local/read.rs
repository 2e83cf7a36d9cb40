//! Reads local files: at random, or as a flow with read-ahead (L8, R3).

use super::lending::Lending;
use super::{Local, UserFile, meta_of};
use crate::block::{Block, Body, FileRange};
use crate::disk::{DiskFile, LinuxFile, Stat};
use crate::error::Error;
use crate::key::Key;
use crate::range::{Extent, Ranges};
use crate::store::{Fallible, Flow, Kind, Meta, Object, Shape};
use crate::sum::{Algorithm, Sum};
use bytes::Bytes;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Largest share of a file in one block if blocks may go over several connections, except for short files.
const SHARE: u64 = 64;

/// Shorter blocks cost more than sharing gains.
const SHORTEST: u64 = 64 << 10;

/// Most bytes of one call for several ranges.
pub(super) const MAX_READ: u64 = 256 << 20;

/// An open file.
#[derive(Debug)]
pub(super) struct LocalObject {
    store: Local,
    key: Key,
    file: LinuxFile,
    /// The same for direct use.
    shared: UserFile,
    stat: Stat,
    meta: Meta,
}

impl LocalObject {
    pub(super) fn new(store: Local, key: Key, file: LinuxFile, stat: Stat) -> Self {
        let shared = store.user_file(&file);
        Self { store, key, file, shared, stat, meta: meta_of(&stat) }
    }

    /// Fails unless the object has all of `extent`. Devices have any range.
    fn check(&self, extent: Extent) -> Result<(), Error> {
        if self.stat.kind == Kind::File && extent.end() > self.stat.size {
            return Err(Error::Beyond { name: self.name(), extent });
        }
        Ok(())
    }
}

impl Object for LocalObject {
    fn name(&self) -> String {
        self.store.label(&self.key)
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn flow(&self, wanted: Ranges, shape: Shape) -> Fallible<'_, Arc<dyn Flow>> {
        Box::pin(async move {
            wanted.iter().try_for_each(|extent| self.check(extent))?;
            let block = block_of(&shape, wanted.total());
            if shape.lend && shape.sum.is_none() {
                let (file, name, regular) = (self.shared.clone(), self.name().into(), self.stat.kind == Kind::File);
                let whole = FileRange { file, name, regular, at: 0, len: 0 };
                return Ok(Arc::new(Lending::new(whole, wanted, block)) as _);
            }
            let blocks = wanted.iter().map(|extent| extent.len() / block + 2).sum::<u64>();
            let readers = if shape.ordered { 1 } else { (shape.readers.max(1) as u64).min(blocks) };
            let cursor = Arc::new(Mutex::new(Cursor { rest: wanted.iter().rev().collect(), block }));
            // A file without holes need not be asked for them.
            let shape = Shape { holes: shape.holes && self.stat.sparse, ..shape };
            let (sender, blocks) = mpsc::channel(2);
            let mut tasks = JoinSet::new();
            for _ in 0..readers {
                let reader = Reader { name: self.name(), store: self.store.clone(), file: self.file.clone() };
                tasks.spawn(reader.run(cursor.clone(), shape.clone(), sender.clone()));
            }
            Ok(Arc::new(LocalFlow { blocks: tokio::sync::Mutex::new(blocks), _tasks: tasks }) as _)
        })
    }

    fn read<'a>(&'a self, wanted: &'a [Extent]) -> Fallible<'a, Vec<Bytes>> {
        Box::pin(async move {
            let end = if self.stat.kind == Kind::File { self.stat.size } else { u64::MAX };
            let there = |e: &Extent| e.common(Extent::first(end)).unwrap_or(Extent::first(0));
            let wanted: Vec<Extent> = wanted.iter().map(there).collect();
            if wanted.iter().fold(0, |sum: u64, extent| sum.saturating_add(extent.len())) > MAX_READ {
                return Err(Error::Limit {
                    name: self.name(),
                    what: "the length of what is read at once",
                    limit: MAX_READ,
                });
            }
            let file = self.file.clone();
            let read = self.store.call(&self.key, "read", move |_, _| {
                let one = |extent: &Extent| {
                    let mut bytes = vec![0; extent.len() as usize];
                    let len = file.read_at(&mut bytes, extent.start())?;
                    bytes.truncate(len);
                    Ok(Bytes::from(bytes))
                };
                wanted.iter().map(one).collect()
            });
            read.await
        })
    }

    fn checksum(&self, algorithm: Algorithm, extent: Extent) -> Fallible<'_, Sum> {
        Box::pin(async move {
            self.check(extent)?;
            self.store.checksum((&self.name(), "read"), &self.file, algorithm, extent).await
        })
    }

    fn file(&self) -> Option<&UserFile> {
        Some(&self.shared)
    }

    fn unchanged(&self) -> Fallible<'_, ()> {
        Box::pin(async move {
            let file = self.file.clone();
            let now = self.store.call(&self.key, "look at", move |_, _| file.stat()).await?;
            let same = self.stat.kind != Kind::File || (now.size, now.modified) == (self.stat.size, self.stat.modified);
            if same { Ok(()) } else { Err(Error::Changed { name: self.name() }) }
        })
    }
}

/// Length of blocks: of a short file, each connection gets some.
fn block_of(shape: &Shape, total: u64) -> u64 {
    let most = shape.pool.size().max(1) as u64;
    if shape.ordered { most } else { most.min((total / SHARE).next_multiple_of(SHORTEST).max(SHORTEST)) }
}

/// The shared position of all readers of a flow.
struct Cursor {
    /// Ranges that nobody has begun; the first is the last element.
    rest: Vec<Extent>,
    /// Length of blocks.
    block: u64,
}

impl Cursor {
    /// The next block.
    fn next(&mut self) -> Option<Extent> {
        let end = self.rest.last()?.start().saturating_add(self.block);
        self.part(end)
    }

    /// The next range up to `end`. `None` if it begins later.
    fn part(&mut self, end: u64) -> Option<Extent> {
        let part = self.rest.pop_if(|part| part.start() < end)?;
        let cut = end.min(part.end());
        self.rest.extend(Extent::between(cut, part.end()).filter(|rest| !rest.is_empty()));
        Extent::between(part.start(), cut)
    }

    /// All following ranges up to `end`.
    fn parts(&mut self, end: u64) -> Vec<Extent> {
        std::iter::from_fn(|| self.part(end)).collect()
    }
}

/// The kind of a range.
enum Found {
    Block(Block),
    /// A hole, which ends here.
    Hole(u64),
}

struct Reader {
    name: String,
    store: Local,
    file: LinuxFile,
}

impl Reader {
    /// Reads blocks until none are left, one fails, or the receiver is gone.
    async fn run(self, cursor: Arc<Mutex<Cursor>>, shape: Shape, blocks: mpsc::Sender<Result<Block, Error>>) {
        loop {
            let next = cursor.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(extent) = next else { return };
            let block = match self.read(extent, &shape).await {
                Ok(Found::Block(block)) => Ok(block),
                Ok(Found::Hole(end)) => {
                    let more = cursor.lock().unwrap_or_else(PoisonError::into_inner).parts(end);
                    for extent in std::iter::once(extent).chain(more) {
                        let sum = shape.sum.map(|how| how.of_zeros(extent.len()));
                        if blocks.send(Ok(Block::hole(extent, sum))).await.is_err() {
                            return;
                        }
                    }
                    continue;
                }
                Err(error) => Err(error),
            };
            let failed = block.is_err();
            if blocks.send(block).await.is_err() || failed {
                return;
            }
        }
    }

    async fn read(&self, extent: Extent, shape: &Shape) -> Result<Found, Error> {
        let mut buffer = shape.pool.take().await;
        let (file, name, how, holes) = (self.file.clone(), self.name.clone(), shape.sum, shape.holes);
        let read = self.store.run(move |_| {
            // Blocks are no longer than the pool's buffers.
            let len = extent.len() as usize;
            if holes && let Some(rest) = Extent::between(extent.start(), u64::MAX) {
                let zeros = file.zeros_at(rest).map_err(|error| Error::io(&name, "look for holes in", error))?;
                if zeros >= extent.len() {
                    return Ok(Found::Hole(extent.start().saturating_add(zeros)));
                }
            }
            let got = file.read_at(&mut buffer.room()[..len], extent.start());
            let got = got.map_err(|error| Error::io(&name, "read", error))?;
            if got < len {
                return Err(Error::Short { name, at: extent.start() + got as u64, expected: extent.end() });
            }
            let bytes = buffer.freeze(len);
            let sum = how.map(|how| how.of(&bytes));
            Ok(Found::Block(Block { offset: extent.start(), sum, body: Body::Bytes(bytes) }))
        });
        read.await
    }
}

struct LocalFlow {
    blocks: tokio::sync::Mutex<mpsc::Receiver<Result<Block, Error>>>,
    /// End with it.
    _tasks: JoinSet<()>,
}

impl Flow for LocalFlow {
    fn next(&self) -> Fallible<'_, Option<Block>> {
        Box::pin(async move { self.blocks.lock().await.recv().await.transpose() })
    }
}

impl fmt::Debug for LocalFlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalFlow").finish_non_exhaustive()
    }
}
