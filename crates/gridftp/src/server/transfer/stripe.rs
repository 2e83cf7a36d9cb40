//! Receives and sends for a front end, as a data node (`session::node`): some blocks of a file that other nodes write
//! too.

use super::super::failure::Failure;
use super::super::session::task::{Stripe, Transfer};
use super::super::worker::{TaskClient, Worker};
use super::flow::CountedFlow;
use super::markers::{perf, ranges};
use crate::data::{Intake, Mode};
use bytes::Bytes;
use phoebus_files::block::Block;
use phoebus_files::key::Key;
use phoebus_files::local::UserFile;
use phoebus_files::range::{Extent, Ranges};
use phoebus_files::store::{Boxed, Capabilities, DirectWriter, Draft, Fallible};
use phoebus_files::sum::{Algorithm, Sum};
use phoebus_files::{Error, TransferOptions, carry};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most ranges in one marker. Blocks of other nodes lie between them.
const RANGES: usize = 500;

impl Worker {
    /// Receives blocks into the front end's file `key`, and reports what is synced.
    pub(super) async fn receive_stripe(
        &mut self,
        transfer: &Transfer,
        key: &Key,
        (from, inode): (u64, u64),
        client: &TaskClient,
    ) -> Result<u64, Failure> {
        let channel = self.channel_of(transfer)?;
        let store = self.store()?;
        // A missing file must not be created: it would be another file than the front end's.
        store.stat(key).await?;
        let place = store
            .edit(key)
            .await?
            .capabilities()
            .direct_writer
            .ok_or_else(|| Failure::say(451, "this is no file of this machine"))?;
        shared(place.file(), inode)?;
        let draft = Arc::new(Written { name: format!("/{key}"), place, state: Mutex::default() });
        let data = &self.server.config.data;
        let pool = self.pool(data.streams as usize);
        let how = TransferOptions {
            pool,
            writers: self.server.config.data.writers,
            stall_timeout: data.stall_timeout.0,
            ..TransferOptions::default()
        };
        Self::begin(&channel, None, client).await;
        let incoming =
            channel.receive(Mode::Extended, Intake { pool: how.pool.clone(), from, expected: None, into: None });
        let (flow, seen) = CountedFlow::over(incoming);
        let markers = async {
            loop {
                client.send(perf(seen.bytes())).await;
                tokio::time::sleep(data.markers.0).await;
                told(&draft, client).await;
            }
        };
        tokio::select! {
            carried = carry(flow, draft.clone(), &how, drop) => carried?,
            () = client.stopped() => return Err(Failure::Stopped),
            () = markers => return Err(Failure::Stopped),
        }
        draft.checkpoint().await?;
        told(&draft, client).await;
        client.send(perf(seen.bytes())).await;
        Ok(seen.bytes())
    }
}

/// Whether the open file is the front end's. On a file system that is not shared, another file may have the name.
pub(super) fn shared(file: &UserFile, inode: u64) -> Result<(), Failure> {
    match file.act(File::metadata) {
        Ok(there) if there.ino() == inode => Ok(()),
        _ => Err(Failure::say(451, "this is another file than the front end's; they have to share a file system")),
    }
}

/// The part of `wanted`, in offsets of a part of the file, that belongs to this stripe.
pub(super) fn own(wanted: &Ranges, stripe: Stripe) -> Ranges {
    let mut own = Ranges::new();
    for extent in wanted.iter() {
        let (first, last) = (extent.start() / stripe.unit, extent.end().saturating_sub(1) / stripe.unit);
        let skip = (stripe.index + stripe.count - first % stripe.count) % stripe.count;
        let mut at = first.saturating_add(skip);
        while at <= last {
            let (start, end) = (at * stripe.unit, (at + 1).saturating_mul(stripe.unit));
            if let Some(piece) = Extent::between(start.max(extent.start()), end.min(extent.end())) {
                own.insert(piece);
            }
            at += stripe.count;
        }
    }
    own
}

async fn told(draft: &Written, client: &TaskClient) {
    let synced = std::mem::take(&mut draft.state().synced);
    let all: Vec<Extent> = synced.iter().collect();
    for some in all.chunks(RANGES) {
        client.send(ranges(&some.iter().copied().collect())).await;
    }
}

/// A file that several nodes write. Ranges are forgotten once reported, because their number is unbounded.
#[derive(Debug)]
struct Written {
    name: String,
    place: Arc<dyn DirectWriter>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    written: Ranges,
    synced: Ranges,
}

impl Written {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(
        &self,
        act: &'static str,
        call: impl FnOnce(&File) -> std::io::Result<()> + Send + 'static,
    ) -> Fallible<'_, ()> {
        let place = self.place.clone();
        Box::pin(async move {
            let done = tokio::task::spawn_blocking(move || place.file().act(call)).await;
            let error = |source| Error::Io { name: self.name.clone(), act, source };
            done.unwrap_or_else(|_| Err(std::io::ErrorKind::Interrupted.into())).map_err(error)
        })
    }

    fn unsupported<T>(&self, what: &'static str) -> Result<T, Error> {
        Err(Error::Unsupported { name: self.name.clone(), what })
    }
}

impl Draft for Written {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn kept(&self) -> Ranges {
        Ranges::new()
    }

    fn capabilities(&self) -> Capabilities<'_> {
        Capabilities::default()
    }

    fn write(&self, block: Block<Bytes>) -> Fallible<'_, ()> {
        Box::pin(async move {
            let Some(extent) = block.extent().filter(|extent| extent.end() <= i64::MAX as u64) else {
                return Err(Error::Beyond { name: self.name.clone(), extent: Extent::first(u64::MAX) });
            };
            self.run("write", move |file| file.write_all_at(&block.body, block.offset)).await?;
            self.state().written.insert(extent);
            Ok(())
        })
    }

    fn flush(&self) -> Fallible<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn checkpoint(&self) -> Fallible<'_, Ranges> {
        Box::pin(async move {
            let written = std::mem::take(&mut self.state().written);
            self.run("sync", File::sync_data).await?;
            self.state().synced.extend(written.iter());
            Ok(written)
        })
    }

    fn written_sum(&self, _size: u64) -> Option<Sum> {
        None
    }

    fn checksum(&self, _algorithm: Algorithm) -> Fallible<'_, Sum> {
        Box::pin(async { self.unsupported("a checksum of a part of what others write") })
    }

    fn publish(&self, _size: u64) -> Fallible<'_, ()> {
        Box::pin(async { self.unsupported("publishing what the front end does") })
    }

    fn abandon(&self, _keep: bool) -> Boxed<'_, ()> {
        Box::pin(async {})
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Sharing;

    #[test]
    fn stripes_partition_all_blocks() {
        let wanted: Ranges =
            [(0, 95), (120, 1), (200, 57)].iter().filter_map(|&(at, len)| Extent::new(at, len)).collect();
        for (count, unit) in [(1, 10), (2, 10), (3, 7), (5, 1), (7, 1000)] {
            let mut all = Ranges::new();
            let mut total = 0;
            for index in 0..count {
                let own = own(&wanted, Stripe { index, count, unit, inode: 0, sharing: Sharing::default() });
                assert!(
                    own.iter().all(|extent| extent.start() / unit % count == index || count == 1),
                    "{count} {unit}"
                );
                total += own.total();
                all.extend(own.iter());
            }
            assert_eq!((&all, total), (&wanted, wanted.total()), "{count} {unit}");
        }
    }
}
