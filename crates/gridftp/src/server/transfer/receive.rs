//! Receives files: STOR, STOU, APPE and ESTO, with REST.
//!
//! A whole file is a draft until it is complete. The draft of a cut transfer stays for the next attempt if it can be
//! recognized (by the size of ALLO and the user). APPE, ESTO and REST beyond a draft change an existing file in place.

use super::super::failure::Failure;
use super::super::session::task::{Operation, Transfer};
use super::super::worker::{TaskClient, Worker};
use super::ascii::Ascii;
use super::flow::{CountedFlow, FlowCounters};
use super::markers::{perf, ranges};
use crate::data::{Intake, Mode};
use phoebus_files::key::Key;
use phoebus_files::range::{Extent, Ranges};
use phoebus_files::store::{Begun, Draft, Kind, Spec, Store};
use phoebus_files::{Error, ErrorKind, TransferOptions, carry, is_part};
use phoebus_proto::gridftp::marker::Restart;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// The destination of a transfer.
pub(super) struct Target {
    pub(super) draft: Arc<dyn Draft>,
    /// What an earlier attempt has left in the draft.
    pub(super) kept: Ranges,
    /// First offset of a stream, which is also added to the offsets of blocks.
    pub(super) from: u64,
    /// Expected length, if known.
    size: Option<u64>,
    /// Whether an existing file is changed in place, so that nothing is published.
    pub(super) in_place: bool,
}

impl Worker {
    pub(super) async fn receive(&mut self, transfer: &Transfer, client: &TaskClient) -> Result<u64, Failure> {
        let channel = self.channel_of(transfer)?;
        let store = self.store()?;
        let target = target(&*store, transfer).await?;
        let (mode, data) = (transfer.settings.mode, &self.server.config.data);
        let pool = self.pool(if mode == Mode::Stream { 1 } else { data.streams as usize });
        let how = TransferOptions {
            pool,
            writers: self.server.config.data.writers,
            stall_timeout: data.stall_timeout.0,
            ..TransferOptions::default()
        };
        let unique = match &transfer.what {
            Operation::Unique { key } => Some(key),
            _ => None,
        };
        Self::begin(&channel, unique, client).await;

        let expected = target.size.and_then(|size| size.checked_sub(target.from));
        // TYPE A changes lengths, so offsets do not apply.
        let ascii = transfer.settings.ascii && mode == Mode::Stream;
        let (from, into) = if ascii { (0, None) } else { (target.from, target.draft.capabilities().direct_writer) };
        let incoming = channel.receive(mode, Intake { pool: how.pool.clone(), from, expected, into });
        let flow = if ascii { Ascii::from_wire(incoming, target.from) } else { incoming };
        let (flow, seen) = CountedFlow::over(flow);
        let (saved, safe) = watch::channel(Ranges::new());
        let carried = tokio::select! {
            carried = carry(flow, target.draft.clone(), &how, |ranges| drop(saved.send(ranges))) => carried.map_err(Failure::from),
            () = markers(&target, mode, data.markers.0, &seen, safe, client) => Err(Failure::Stopped),
            () = client.stopped() => Err(Failure::Stopped),
        };
        let published = match carried {
            Ok(()) => {
                let unsure = mode == Mode::Stream && target.size.is_none() && channel.ends_as_if_cut();
                publish(&*store, &target, seen.end(), unsure.then(Instant::now), client).await
            }
            Err(failure) => Err(failure),
        };
        if let Err(failure) = published {
            // After ABOR, a last marker tells the client where to resume.
            if matches!(failure, Failure::Stopped)
                && mode == Mode::Extended
                && target.draft.capabilities().resumable
                && let Ok(safe) = target.draft.checkpoint().await
            {
                client.send(ranges(&shifted(&safe, target.from))).await;
            }
            // A draft under a unique name would never be found again.
            target.draft.abandon(unique.is_none()).await;
            return Err(failure);
        }
        if mode != Mode::Stream {
            client.send(perf(seen.bytes())).await;
            client.send(ranges(&Extent::first(seen.end().saturating_sub(target.from)).into())).await;
        }
        Ok(seen.bytes())
    }
}

/// Publishes a received file. A client that dies before this has stored nothing. `doubted_since` is the end of the
/// stream, if only the control connection can show whether its sender was killed.
pub(super) async fn publish(
    store: &dyn Store,
    target: &Target,
    end: u64,
    doubted_since: Option<Instant>,
    client: &TaskClient,
) -> Result<(), Failure> {
    if doubted_since.is_some() && !target.in_place {
        // Slow steps come before the check of the client, so that little time passes between the check and the rename.
        target.draft.checkpoint().await?;
    }
    if !client.is_client_there(doubted_since).await {
        // In MODE S, the stream of a killed sender ends like a complete one.
        return Err(Failure::Stopped);
    }
    if target.in_place {
        target.draft.checkpoint().await?;
    } else {
        let kept = target.kept.iter().next_back().map_or(0, Extent::end);
        target.draft.publish(target.size.unwrap_or(kept.max(end))).await?;
    }
    Ok(store.settle().await?)
}

/// Reports what has arrived and what is synced, at intervals, until the transfer ends.
async fn markers(
    target: &Target,
    mode: Mode,
    every: Duration,
    seen: &FlowCounters,
    mut safe: watch::Receiver<Ranges>,
    client: &TaskClient,
) {
    if mode == Mode::Stream {
        return std::future::pending().await;
    }
    let mut told = target.kept.clone();
    loop {
        client.send(perf(seen.bytes())).await;
        tokio::time::sleep(every).await;
        if !target.draft.capabilities().resumable {
            continue;
        }
        // Each marker has the ranges since the previous one.
        let mut new = safe.borrow_and_update().clone();
        told.iter().for_each(|extent| new.remove(extent));
        if !new.is_empty() {
            told.extend(new.iter());
            client.send(ranges(&shifted(&new, target.from))).await;
        }
    }
}

/// Converts ranges of a file to the sender's offsets, which begin at `from`.
fn shifted(ranges: &Ranges, from: u64) -> Ranges {
    ranges.iter().filter_map(|extent| Extent::between(extent.start().checked_sub(from)?, extent.end() - from)).collect()
}

/// Opens the destination of a transfer, new or resumed.
pub(super) async fn target(store: &dyn Store, transfer: &Transfer) -> Result<Target, Failure> {
    let skip = match &transfer.restart {
        None | Some(Restart::At(0)) => Ranges::new(),
        Some(Restart::At(at)) => Extent::first(*at).into(),
        Some(Restart::Without(there)) => there.clone(),
    };
    let stream_from = skip.iter().next_back().map_or(0, Extent::end);
    if transfer.settings.mode == Mode::Stream && !skip.is_empty() && !skip.covers(Extent::first(stream_from)) {
        return Err(Failure::say(504, "MODE S cannot skip ranges of a file; MODE E can"));
    }
    let from = if transfer.settings.mode == Mode::Stream { stream_from } else { 0 };
    match &transfer.what {
        Operation::Append { key } => {
            let (draft, there) = store.append(key).await?;
            let from = there.checked_add(from).ok_or_else(|| Failure::say(554, "no file can have as many bytes"))?;
            Ok(Target { draft, kept: Ranges::new(), from, size: None, in_place: true })
        }
        Operation::Adjust { key, offset } => match size(store, key).await? {
            None if *offset == 0 && skip.is_empty() => fresh(store, key, transfer).await,
            there => {
                let end = offset.saturating_add(skip.iter().next_back().map_or(0, Extent::end));
                enough(there.unwrap_or(0), &skip, end)?;
                edit(store, key, offset.saturating_add(from)).await
            }
        },
        Operation::Receive { key } if skip.is_empty() => fresh(store, key, transfer).await,
        Operation::Unique { key } => fresh(store, key, transfer).await,
        Operation::Receive { key } => match resumed(store, key, transfer, &skip, from).await? {
            Some(target) => Ok(target),
            None => {
                let there = size(store, key).await?.unwrap_or(0);
                enough(there, &skip, skip.iter().next_back().map_or(0, Extent::end))?;
                edit(store, key, from).await
            }
        },
        Operation::Send { .. }
        | Operation::SendBatch { .. }
        | Operation::ReceiveBatch
        | Operation::List { .. }
        | Operation::Stripe { .. } => Err(Failure::say(451, "this receives nothing")),
    }
}

/// Whether the `skip` bytes that the client wants to omit can be there.
fn enough(there: u64, skip: &Ranges, end: u64) -> Result<(), Failure> {
    if skip.is_empty() || end <= there {
        return Ok(());
    }
    Err(Failure::say(
        554,
        format!("there are only {there} bytes, and nothing is kept of an earlier attempt of this size (ALLO)"),
    ))
}

async fn edit(store: &dyn Store, key: &Key, from: u64) -> Result<Target, Failure> {
    let draft = store.edit(key).await?;
    Ok(Target { draft, kept: Ranges::new(), from, size: None, in_place: true })
}

/// Makes a draft without anything of an earlier one.
async fn fresh(store: &dyn Store, key: &Key, transfer: &Transfer) -> Result<Target, Failure> {
    let spec = spec(transfer);
    let size = spec.size;
    // The bytes of an earlier draft may belong to another file, and nothing can tell.
    for _ in 0..2 {
        match store.create(key, spec.clone()).await? {
            Begun::Draft(draft) if draft.kept().is_empty() => {
                return Ok(Target { draft, kept: Ranges::new(), from: 0, size, in_place: false });
            }
            Begun::Draft(draft) => draft.abandon(false).await,
            // The draft of an earlier attempt is discarded.
            Begun::Done => {}
        }
    }
    Err(Error::Busy { name: format!("/{key}") }.into())
}

/// Opens the draft of an earlier attempt, if it has `skip` bytes.
async fn resumed(
    store: &dyn Store,
    key: &Key,
    transfer: &Transfer,
    skip: &Ranges,
    from: u64,
) -> Result<Option<Target>, Failure> {
    let spec = spec(transfer);
    let size = spec.size;
    if size.is_none() {
        return Ok(None);
    }
    let Begun::Draft(draft) = store.create(key, spec).await? else { return Ok(None) };
    let kept = draft.kept();
    if skip.iter().all(|extent| kept.covers(extent)) {
        return Ok(Some(Target { draft, kept, from, size, in_place: false }));
    }
    draft.abandon(!kept.is_empty()).await;
    Ok(None)
}

/// Identifies a draft: its user, and the expected length.
fn spec(transfer: &Transfer) -> Spec {
    Spec {
        size: transfer.allocated.filter(|_| !transfer.settings.ascii),
        source: Some((format!("stored by {}", transfer.user), None)),
        replace: !matches!(transfer.what, Operation::Unique { .. }),
        held: matches!(&transfer.what, Operation::Receive { key } | Operation::Adjust { key, .. } if is_part(key.name())),
        ..Spec::default()
    }
}

/// The size of the file `key`, if it exists.
async fn size(store: &dyn Store, key: &Key) -> Result<Option<u64>, Failure> {
    match store.stat(key).await {
        Ok(meta) if meta.kind == Kind::File => Ok(meta.size),
        Ok(_) => Ok(Some(0)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}
