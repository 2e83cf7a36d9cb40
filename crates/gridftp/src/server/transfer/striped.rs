//! Transfers that data nodes carry out for this server (`stripes`): assigns the work, and combines their replies.

use super::super::failure::Failure;
use super::super::session::task::{Operation, Transfer};
use super::super::worker::{TaskClient, Worker};
use super::markers::ranges;
use super::receive::{Target, publish, target};
use super::retrieve::{part_of, wanted};
use crate::data::{Mode, Sharing};
use phoebus_files::Error;
use phoebus_files::key::Key;
use phoebus_files::local::UserFile;
use phoebus_files::range::{Extent, Ranges};
use phoebus_files::store::DirectWriter;
use phoebus_proto::gridftp::marker::{Perf, Restart, find_ranges};
use phoebus_proto::gridftp::reply::Reply;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use tokio::time::{MissedTickBehavior, interval};

/// Most pieces that a file is divided into.
const PIECES: u64 = 1 << 16;

impl Worker {
    /// Has the nodes send a file or a part: each to its own addresses, or several to one address if there are too few.
    pub(super) async fn send_striped(
        &mut self,
        transfer: &Transfer,
        key: &Key,
        part: Option<(u64, u64)>,
        client: &TaskClient,
    ) -> Result<u64, Failure> {
        let object = self.store()?.open(key).await?;
        let part = part_of(object.meta(), part)?;
        let wanted = wanted(part.len(), transfer.restart.as_ref(), Mode::Extended)?.total();
        let inode = inode(object.file())?;
        let data = &self.server.config.data;
        let (block, stall_timeout, every) = (data.block.0, data.stall_timeout.0, data.markers.0.as_secs().clamp(1, 60));
        let mut stripes = self
            .stripes_of((transfer.generation, &transfer.aim), &transfer.settings, transfer.security.as_ref())
            .await?;
        let (streams, count) = (transfer.settings.streams, stripes.len() as u64);
        let every = transfer.settings.markers.map_or(every, |asked| every.min(asked.into()));
        stripes.command(|_| format!("OPTS RETR Parallelism={streams},{streams},{streams};markers={every};")).await?;
        let skipped = match &transfer.restart {
            None => None,
            Some(Restart::At(at)) => Some(at.to_string()),
            Some(Restart::Without(there)) => Some(there.to_string()),
        };
        if let Some(skipped) = skipped {
            stripes.command(|_| format!("REST {skipped}")).await?;
        }
        // Longer files have longer pieces, which bounds the lists of ranges.
        let unit = block.max(part.len().div_ceil(PIECES).next_multiple_of(block));
        let sharing = stripes.sharing();
        let begin = |index: usize| {
            let Sharing { senders, place } = sharing[index];
            let head =
                format!("XSEND {index} {count} {unit} {} {} {inode} {senders} {place} /", part.start(), part.len());
            [head.as_bytes(), key.as_bytes()].concat()
        };
        let mut work = stripes.begin(stall_timeout, begin).await?;
        client.send(Reply::new(150, "the transfer begins")).await;
        let shown = transfer.settings.markers.is_some();
        loop {
            let said = tokio::select! {
                said = work.next() => said,
                () = client.stopped() => return Err(work.why(Failure::Stopped).await),
            };
            let Some(said) = said else { break };
            let (index, reply) = work.good(said).await?;
            if reply.code == 112 && shown {
                client.send(perf_of(&reply, index, work.count).1).await;
            }
        }
        object.unchanged().await?;
        self.stripes = work.ended(transfer.generation).await;
        Ok(wanted)
    }

    /// Has the nodes receive a file.
    pub(super) async fn receive_striped(&mut self, transfer: &Transfer, client: &TaskClient) -> Result<u64, Failure> {
        let store = self.store()?;
        let target = target(&*store, transfer).await?;
        let received = self.receive_on_nodes(transfer, &target, client).await;
        let published = match received {
            Ok((moved, end)) => publish(&*store, &target, end, None, client).await.map(|()| (moved, end)),
            Err(failure) => Err(failure),
        };
        match published {
            Ok((moved, end)) => {
                client.send(ranges(&Extent::first(end.saturating_sub(target.from)).into())).await;
                Ok(moved)
            }
            Err(failure) => {
                target.draft.abandon(true).await;
                Err(failure)
            }
        }
    }

    /// Returns the bytes received, and the end of the last one.
    async fn receive_on_nodes(
        &mut self,
        transfer: &Transfer,
        target: &Target,
        client: &TaskClient,
    ) -> Result<(u64, u64), Failure> {
        let (Operation::Receive { key } | Operation::Adjust { key, .. }) = &transfer.what else {
            return Err(Failure::say(504, "data nodes store files by STOR and ESTO A"));
        };
        let place = match target.in_place {
            true => key.clone(),
            false => {
                let place = target.draft.capabilities().place;
                place.ok_or_else(|| Failure::say(451, "this is no file of this machine"))?
            }
        };
        let direct_writer = target.draft.capabilities().direct_writer;
        let inode = inode(direct_writer.as_deref().map(|direct_writer| direct_writer.file()))?;
        let (from, stall_timeout) = (target.from, self.server.config.data.stall_timeout.0);
        let stripes = self
            .stripes_of((transfer.generation, &transfer.aim), &transfer.settings, transfer.security.as_ref())
            .await?;
        let begin = |_| [format!("XRECV {from} {inode} /").as_bytes(), place.as_bytes()].concat();
        let mut work = stripes.begin(stall_timeout, begin).await?;
        client.send(Reply::new(150, "the transfer begins")).await;
        let mut moved = vec![0; work.count];
        let (mut told, mut end) = (target.kept.clone(), 0);
        let mut ticks = interval(self.server.config.data.markers.0);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let said = tokio::select! {
                said = work.next() => said,
                _ = ticks.tick(), if target.draft.capabilities().resumable => {
                    // The front end records what nodes have synced, so that it survives this process.
                    let safe = target.draft.checkpoint().await?;
                    let mut new = safe;
                    told.iter().for_each(|extent| new.remove(extent));
                    told.extend(new.iter());
                    let shifted: Ranges =
                        new.iter().filter_map(|e| Extent::between(e.start().checked_sub(from)?, e.end() - from)).collect();
                    if !shifted.is_empty() {
                        client.send(ranges(&shifted)).await;
                    }
                    continue;
                }
                () = client.stopped() => return Err(work.why(Failure::Stopped).await),
            };
            let Some(said) = said else { break };
            let (index, reply) = work.good(said).await?;
            match reply.code {
                111 => {
                    let synced = find_ranges(&reply.text()).map_err(|error| Failure::say(426, error.to_string()))?;
                    for extent in synced.iter() {
                        noted(direct_writer.as_deref(), extent)?;
                        end = end.max(extent.end());
                    }
                }
                112 => {
                    let (bytes, shown) = perf_of(&reply, index, work.count);
                    moved[index] = bytes.unwrap_or(moved[index]);
                    client.send(shown).await;
                }
                _ => {}
            }
        }
        self.stripes = work.ended(transfer.generation).await;
        Ok((moved.iter().sum(), end))
    }
}

/// Records that a node has written `extent`. Its checksum is not known here.
fn noted(direct_writer: Option<&dyn DirectWriter>, extent: Extent) -> Result<(), Error> {
    let Some(direct_writer) = direct_writer else { return Ok(()) };
    direct_writer.claim(extent)?.iter().try_for_each(|part| direct_writer.wrote(part, 0))
}

/// The inode, by which nodes verify that they see the same file.
fn inode(file: Option<&UserFile>) -> Result<u64, Failure> {
    let of = file.and_then(|file| file.act(File::metadata).ok()).map(|meta| meta.ino());
    of.ok_or_else(|| Failure::say(504, "data nodes move regular files only"))
}

/// Converts a node's performance marker to that of one of several stripes. Returns its bytes too.
fn perf_of(reply: &Reply, index: usize, count: usize) -> (Option<u64>, Reply) {
    let text = reply.text();
    match Perf::parse(text.lines()) {
        Ok(perf) => {
            let (stripe, stripes) = (u32::try_from(index).unwrap_or(0), u32::try_from(count).unwrap_or(1));
            (Some(perf.bytes), Reply::of_lines(112, Perf { stripe, stripes, ..perf }.lines()))
        }
        Err(_) => (None, reply.clone()),
    }
}
