//! Several objects read as one.

use super::Layout;
use crate::block::Block;
use crate::error::Error;
use crate::range::{Extent, Ranges};
use crate::store::{Fallible, Flow, Kind, Meta, Object, Shape};
use crate::sum::{Algorithm, Hasher, Sum, Tally};
use bytes::{Bytes, BytesMut};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Parts from which a flow reads at once.
const WIDTH: usize = 4;

/// Bytes per read, for checksums that cannot be combined.
const STEP: u64 = 1 << 20;

/// A range of an object.
#[derive(Debug, Clone)]
pub struct Part {
    /// The object.
    pub object: Arc<dyn Object>,
    /// The range.
    pub extent: Extent,
}

/// Ranges of objects, one after the other.
#[derive(Debug, Clone)]
pub struct Container {
    name: String,
    parts: Arc<[Part]>,
    layout: Layout,
    meta: Meta,
}

impl Container {
    /// `parts` as one object, which errors call `name`.
    ///
    /// # Errors
    /// A part exceeds its object.
    pub fn new(name: impl Into<String>, parts: Vec<Part>) -> Result<Self, Error> {
        let name = name.into();
        for part in &parts {
            if part.object.meta().size.is_some_and(|size| part.extent.end() > size) {
                return Err(Error::Beyond { name: part.object.name(), extent: part.extent });
            }
        }
        let layout = Layout::new(parts.iter().map(|part| part.extent.len())).ok_or_else(|| Error::Limit {
            name: name.clone(),
            what: "the length of all parts",
            limit: u64::MAX,
        })?;
        let modified = parts.iter().map(|part| part.object.meta().modified).max().flatten();
        let meta =
            Meta { kind: Kind::File, size: Some(layout.size()), modified, mode: None, sparse: false, identity: None };
        Ok(Self { name, parts: parts.into(), layout, meta })
    }

    /// The ranges `wanted` of the whole, in the offsets of each part's object.
    fn split(&self, wanted: &Ranges) -> BTreeMap<usize, Ranges> {
        let mut by_part = BTreeMap::<usize, Ranges>::new();
        for (part, extent) in wanted.iter().flat_map(|extent| self.layout.split(extent)) {
            by_part.entry(part).or_default().extend(self.in_object(part, extent));
        }
        by_part
    }

    /// A range of a part, in the offsets of its object.
    fn in_object(&self, part: usize, extent: Extent) -> Option<Extent> {
        Extent::new(self.parts[part].extent.start() + extent.start(), extent.len())
    }

    fn check(&self, extent: Extent) -> Result<(), Error> {
        let there = extent.end() <= self.layout.size();
        if there { Ok(()) } else { Err(Error::Beyond { name: self.name.clone(), extent }) }
    }
}

impl Object for Container {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn flow(&self, wanted: Ranges, shape: Shape) -> Fallible<'_, Arc<dyn Flow>> {
        Box::pin(async move {
            wanted.iter().try_for_each(|extent| self.check(extent))?;
            let queue: VecDeque<(usize, Ranges)> = self.split(&wanted).into_iter().collect();
            let width = if shape.ordered { 1 } else { WIDTH.min(queue.len()) };
            let queue = Arc::new(Mutex::new(queue));
            let (sender, blocks) = mpsc::channel(2);
            let mut tasks = JoinSet::new();
            for _ in 0..width {
                tasks.spawn(run(self.clone(), queue.clone(), shape.clone(), sender.clone()));
            }
            Ok(Arc::new(ContainerFlow { blocks: tokio::sync::Mutex::new(blocks), _tasks: tasks }) as _)
        })
    }

    fn read<'a>(&'a self, wanted: &'a [Extent]) -> Fallible<'a, Vec<Bytes>> {
        Box::pin(async move {
            // One call for each part, whatever number of ranges it has.
            let mut by_part = BTreeMap::<usize, (Vec<usize>, Vec<Extent>)>::new();
            for (i, extent) in wanted.iter().enumerate() {
                for (part, extent) in self.layout.split(*extent) {
                    let (places, extents) = by_part.entry(part).or_default();
                    places.push(i);
                    extents.extend(self.in_object(part, extent));
                }
            }
            let mut answers = vec![BytesMut::new(); wanted.len()];
            for (part, (places, extents)) in by_part {
                let bytes = self.parts[part].object.read(&extents).await?;
                for ((place, extent), bytes) in places.into_iter().zip(extents).zip(bytes) {
                    if (bytes.len() as u64) < extent.len() {
                        let name = self.parts[part].object.name();
                        return Err(Error::Short {
                            name,
                            at: extent.start() + bytes.len() as u64,
                            expected: extent.end(),
                        });
                    }
                    answers[place].extend_from_slice(&bytes);
                }
            }
            Ok(answers.into_iter().map(BytesMut::freeze).collect())
        })
    }

    fn checksum(&self, algorithm: Algorithm, extent: Extent) -> Fallible<'_, Sum> {
        Box::pin(async move {
            self.check(extent)?;
            let Some(how) = algorithm.combining() else {
                let mut hasher = Hasher::new(algorithm);
                for step in extent.blocks(STEP) {
                    self.read(&[step]).await?.iter().for_each(|bytes| hasher.update(bytes));
                }
                return Ok(hasher.finish());
            };
            let mut tally = Tally::new(how);
            let mut at = 0;
            for (part, extent) in self.layout.split(extent) {
                let object = &self.parts[part].object;
                let wanted = self.in_object(part, extent).unwrap_or(extent);
                let sum = object.checksum(algorithm, wanted).await?;
                let place = Extent::new(at, extent.len()).zip(sum.combined_value());
                let added = place.is_some_and(|(place, value)| tally.add(place, value).is_ok());
                if !added {
                    let reason = format!("it answered {sum:?} when asked for {algorithm}");
                    return Err(Error::Unverifiable { name: object.name(), reason });
                }
                at += extent.len();
            }
            // The parts were added in order.
            Ok(tally.total(at).unwrap_or_else(|| Hasher::new(algorithm).finish()))
        })
    }

    fn unchanged(&self) -> Fallible<'_, ()> {
        Box::pin(async move {
            for part in self.parts.iter() {
                part.object.unchanged().await?;
            }
            Ok(())
        })
    }
}

/// Takes parts from the queue, and passes on their blocks.
async fn run(
    container: Container,
    queue: Arc<Mutex<VecDeque<(usize, Ranges)>>>,
    shape: Shape,
    blocks: mpsc::Sender<Result<Block, Error>>,
) {
    loop {
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let Some((part, wanted)) = next else { return };
        // A part does not know its offset in the whole.
        let shape = Shape { into: None, ..shape.clone() };
        let flow = match container.parts[part].object.flow(wanted, shape).await {
            Ok(flow) => flow,
            Err(error) => return drop(blocks.send(Err(error)).await),
        };
        let (begin, start) = (container.layout.start(part), container.parts[part].extent.start());
        while let Some(block) = flow.next().await.transpose() {
            let failed = block.is_err();
            let moved = block.map(|block| Block { offset: begin + block.offset.saturating_sub(start), ..block });
            if blocks.send(moved).await.is_err() || failed {
                return;
            }
        }
    }
}

struct ContainerFlow {
    blocks: tokio::sync::Mutex<mpsc::Receiver<Result<Block, Error>>>,
    /// End with it.
    _tasks: JoinSet<()>,
}

impl Flow for ContainerFlow {
    fn next(&self) -> Fallible<'_, Option<Block>> {
        Box::pin(async move { self.blocks.lock().await.recv().await.transpose() })
    }
}

impl fmt::Debug for ContainerFlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContainerFlow").finish_non_exhaustive()
    }
}
