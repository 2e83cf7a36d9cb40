//! Sends files: RETR and ERET, with REST (RFC 3659, section 5; GFD.20, sections 3.2 and 5).

use super::super::drivers::Stack;
use super::super::failure::Failure;
use super::super::session::task::{Stripe, Transfer};
use super::super::worker::{TaskClient, Worker};
use super::ascii::Ascii;
use super::flow::OffsetFlow;
use super::markers::perf;
use super::stripe::{own, shared};
use crate::data::Mode;
use phoebus_files::block::Pool;
use phoebus_files::key::Key;
use phoebus_files::range::{Extent, Ranges};
use phoebus_files::store::{Kind, Meta, Shape};
use phoebus_proto::gridftp::marker::Restart;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

impl Worker {
    pub(super) async fn retrieve(
        &mut self,
        transfer: &Transfer,
        key: &Key,
        part: Option<(u64, u64)>,
        stripe: Option<Stripe>,
        client: &TaskClient,
    ) -> Result<u64, Failure> {
        let channel = self.channel_of(transfer)?;
        let object = self.store()?.open(key).await?;
        let part = part_of(object.meta(), part)?;
        let mode = transfer.settings.mode;
        let mut wanted = wanted(part.len(), transfer.restart.as_ref(), mode)?;
        if let Some(stripe) = stripe {
            let file = object.file().ok_or_else(|| Failure::say(451, "this is no file of this machine"))?;
            shared(file, stripe.inode)?;
            wanted = own(&wanted, stripe);
        }
        // Blocks and REST count offsets from the start of the part.
        let in_file = wanted.iter().filter_map(|extent| Extent::new(part.start() + extent.start(), extent.len()));
        let streams = transfer.settings.streams;
        // Blocks of objects stay in memory until they have arrived.
        let objects = transfer.settings.stack.as_ref().and_then(Stack::objects);
        let share = objects.map(|objects| {
            // What is sent needs no memory for parity: as of chunks with packets of one byte.
            let block = (u32::try_from(self.server.config.data.block.0).unwrap_or(u32::MAX), 1);
            (self.server.object_memory.share(block, objects.buffers), block, objects.buffers)
        });
        let pool = match &share {
            Some((share, block, buffers)) => {
                let (block, buffers) = share.fit(*block, *buffers);
                Pool::new(block as usize, buffers as usize)
            }
            None => self.pool(streams as usize),
        };
        let shape = Shape {
            pool,
            readers: self.server.config.data.readers,
            ordered: mode == Mode::Stream,
            sum: None,
            lend: channel.is_plain() && !transfer.settings.ascii,
            holes: false,
            into: None,
        };
        let flow = object.flow(in_file.collect(), shape).await?;
        let flow = OffsetFlow::back(flow, part.start());
        let flow = if transfer.settings.ascii { Ascii::to_wire(flow) } else { flow };
        Self::begin(&channel, None, client).await;
        let moved = Arc::<AtomicU64>::default();
        let markers = async {
            let Some(seconds) = transfer.settings.markers.filter(|_| mode != Mode::Stream) else {
                return std::future::pending::<()>().await;
            };
            loop {
                client.send(perf(moved.load(Ordering::Relaxed))).await;
                tokio::time::sleep(Duration::from_secs(seconds.into())).await;
            }
        };
        let sent = tokio::select! {
            sent = async { match stripe {
                Some(stripe) => channel.send_beside(streams, flow, &moved, stripe.sharing).await,
                None => channel.send(mode, streams, flow, &moved).await,
            } } => sent?,
            () = client.stopped() => return Err(Failure::Stopped),
            () = markers => return Err(Failure::Stopped),
        };
        object.unchanged().await?;
        Ok(sent)
    }
}

/// The bytes of an object that are requested: all, or a part.
pub(super) fn part_of(meta: &Meta, part: Option<(u64, u64)>) -> Result<Extent, Failure> {
    let size = match (meta.kind, meta.size) {
        (_, Some(size)) => size,
        (Kind::Device, None) if part.is_some() => i64::MAX as u64,
        _ => return Err(Failure::say(550, "it has no size; ERET P can say how much of it is wanted")),
    };
    let Some((offset, length)) = part else { return Ok(Extent::first(size)) };
    // A part may extend beyond the end, as with GCT.
    let start = offset.min(size);
    let end = offset.saturating_add(length).min(size);
    if offset > size {
        return Err(Failure::say(554, format!("there are only {size} bytes")));
    }
    Extent::between(start, end).ok_or_else(|| Failure::say(501, "a part of the file was expected"))
}

/// The ranges of `len` bytes that remain after REST.
pub(super) fn wanted(len: u64, restart: Option<&Restart>, mode: Mode) -> Result<Ranges, Failure> {
    let all = Extent::first(len);
    let wanted = match restart {
        None => Ranges::from(all),
        Some(Restart::At(at)) => match Extent::between(*at, len) {
            Some(rest) => rest.into(),
            None => return Err(Failure::say(554, format!("there are only {len} bytes"))),
        },
        Some(Restart::Without(there)) => there.missing(all),
    };
    if mode == Mode::Stream && wanted.count() > 1 {
        return Err(Failure::say(504, "MODE S cannot skip ranges of a file; MODE E can"));
    }
    Ok(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_missing_ranges_are_sent() {
        let wanted = |len, rest: &str, mode| {
            let restart = Restart::parse(rest).ok();
            wanted(len, restart.as_ref(), mode).map(|ranges| ranges.to_string()).map_err(|failure| failure.reply().code)
        };
        assert_eq!(wanted(10, "", Mode::Stream), Ok("0-10".into()));
        assert_eq!(wanted(10, "4", Mode::Stream), Ok("4-10".into()));
        assert_eq!(wanted(10, "10", Mode::Stream), Ok(String::new()));
        assert_eq!(wanted(10, "11", Mode::Stream), Err(554));
        assert_eq!(wanted(10, "0-4", Mode::Stream), Ok("4-10".into()));
        assert_eq!(wanted(10, "2-4", Mode::Stream), Err(504));
        assert_eq!(wanted(10, "2-4,8-20", Mode::Extended), Ok("0-2,4-8".into()));
    }
}
