//! A file on a server, as an object of the file engine.

use super::remote::Remote;
use super::request::ReadRequest;
use super::retrieve::Retrieval;
use super::take::only;
use bytes::{Bytes, BytesMut};
use phoebus_files::Error;
use phoebus_files::block::Pool;
use phoebus_files::key::Key;
use phoebus_files::range::{Extent, Ranges};
use phoebus_files::store::{BytesFlow, Fallible, Flow, Kind, Meta, Object, Shape, Store};
use phoebus_files::sum::{Algorithm, Sum};
use std::any::Any;
use std::sync::Arc;

/// Most bytes of one [`Object::read`].
const MAX_READ: u64 = 256 << 20;

/// A file on a server.
#[derive(Debug)]
pub(super) struct RemoteObject {
    pub(super) remote: Remote,
    pub(super) key: Key,
    pub(super) meta: Meta,
}

impl RemoteObject {
    fn size(&self) -> u64 {
        self.meta.size.unwrap_or_default()
    }

    fn wanted(&self, ranges: Ranges, shape: &Shape) -> Result<ReadRequest, Error> {
        // A device has no size.
        let endless = self.meta.kind == Kind::Device;
        let size = if endless { ranges.iter().next_back().map_or(0, Extent::end) } else { self.size() };
        if let Some(extent) = ranges.iter().next_back().filter(|extent| extent.end() > size) {
            return Err(Error::Beyond { name: self.name(), extent });
        }
        let path = self.remote.path(&self.key)?;
        let into = shape.into.clone().map(|direct_writer| only(direct_writer, ranges.clone()));
        Ok(ReadRequest { name: self.name(), path, size, ranges, sum: shape.sum, ordered: shape.ordered, endless, into })
    }
}

impl Object for RemoteObject {
    fn name(&self) -> String {
        self.remote.label(&self.key)
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn flow(&self, wanted: Ranges, shape: Shape) -> Fallible<'_, Arc<dyn Flow>> {
        Box::pin(async move {
            let wanted = self.wanted(wanted, &shape)?;
            Ok(Arc::new(Retrieval::of_file(self.remote.clone(), wanted, shape.pool)) as _)
        })
    }

    fn read<'a>(&'a self, wanted: &'a [Extent]) -> Fallible<'a, Vec<Bytes>> {
        Box::pin(async move {
            let all = Extent::first(self.size());
            let ranges: Ranges = wanted.iter().filter_map(|extent| extent.common(all)).collect();
            if ranges.total() > MAX_READ {
                return Err(Error::Limit { name: self.name(), what: "what is read at once", limit: MAX_READ });
            }
            let mut parts: Vec<(Extent, BytesMut)> = Vec::new();
            for extent in ranges.iter() {
                // At most MAX_READ.
                parts.push((extent, BytesMut::zeroed(extent.len() as usize)));
            }
            if !parts.is_empty() {
                let flow = BytesFlow::of(self, ranges, Pool::new(256 << 10, 8), false).await?;
                while let Some(block) = flow.next().await? {
                    for (extent, bytes) in &mut parts {
                        if let Some(part) = block.part(*extent) {
                            let at = (part.offset - extent.start()) as usize;
                            bytes[at..at + part.body.len()].copy_from_slice(&part.body);
                        }
                    }
                }
            }
            let parts: Vec<(Extent, Bytes)> =
                parts.into_iter().map(|(extent, bytes)| (extent, bytes.freeze())).collect();
            let one = |extent: &Extent| {
                let found = extent.common(all).and_then(|extent| {
                    let (whole, bytes) = parts.iter().find(|(whole, _)| whole.common(extent) == Some(extent))?;
                    let from = (extent.start() - whole.start()) as usize;
                    Some(bytes.slice(from..from + extent.len() as usize))
                });
                found.unwrap_or_default()
            };
            Ok(wanted.iter().map(one).collect())
        })
    }

    fn checksum(&self, algorithm: Algorithm, extent: Extent) -> Fallible<'_, Sum> {
        Box::pin(async move {
            let whole = extent == Extent::first(self.size());
            self.remote.checksum(&self.key, &self.name(), algorithm, (!whole).then_some(extent), self.size()).await
        })
    }

    fn unchanged(&self) -> Fallible<'_, ()> {
        Box::pin(async move {
            let now = self.remote.stat(&self.key).await?;
            if (now.size, now.modified) == (self.meta.size, self.meta.modified) {
                return Ok(());
            }
            Err(Error::Changed { name: self.name() })
        })
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}
