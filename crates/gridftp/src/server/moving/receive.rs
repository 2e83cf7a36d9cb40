//! Receiving files: STOR, STOU, APPE and ESTO, from wherever REST says.
//!
//! A file that is stored as a whole is a draft until all of it is there, and what was cut is kept for another attempt if that
//! can be known again (by ALLO's size and the user). Parts of a file that is there already (APPE, ESTO, REST beyond what a
//! draft has) change it where it stands.

use super::super::answer::Failure;
use super::super::session::task::{Transfer, What};
use super::super::work::{Tell, Worker, perf, ranges};
use super::AT_ONCE;
use super::ascii::Ascii;
use super::flow::{Seen, Watched};
use crate::data::{Intake, Mode};
use phoebus_files::key::Key;
use phoebus_files::range::{Extent, Ranges};
use phoebus_files::store::{Begun, Draft, Kind, Spec, Store};
use phoebus_files::{Error, How, Sort, carry, is_part};
use phoebus_proto::gridftp::marker::Restart;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// What is received goes to it.
pub(super) struct Target {
    pub(super) draft: Arc<dyn Draft>,
    /// What an earlier attempt left of it.
    pub(super) kept: Ranges,
    /// What a stream begins with, and what is added to where blocks belong.
    pub(super) from: u64,
    /// How many bytes it has to have, if that is known.
    size: Option<u64>,
    /// Whether it is a file that is changed where it stands, and not one that is to be published.
    pub(super) in_place: bool,
}

impl Worker {
    pub(super) async fn receive(&mut self, transfer: &Transfer, tell: &Tell) -> Result<u64, Failure> {
        let channel = self.channel_of(transfer)?;
        let store = self.store()?;
        let target = target(&*store, transfer).await?;
        let (mode, data) = (transfer.settings.mode, &self.server.config.data);
        let pool = self.pool(if mode == Mode::Stream { 1 } else { data.streams as usize });
        let how = How { pool, writers: AT_ONCE, stall: data.stall.0, ..How::default() };
        let unique = match &transfer.what {
            What::Unique { key } => Some(key),
            _ => None,
        };
        Self::begin(&channel, unique, tell).await;

        let expected = target.size.and_then(|size| size.checked_sub(target.from));
        // Lines become others on their way, and so are where they belong.
        let ascii = transfer.settings.ascii && mode == Mode::Stream;
        let (from, into) = if ascii { (0, None) } else { (target.from, target.draft.landing()) };
        let incoming = channel.receive(mode, Intake { pool: how.pool.clone(), from, expected, into });
        let flow = if ascii { Ascii::from_wire(incoming, target.from) } else { incoming };
        let (flow, seen) = Watched::over(flow);
        let (saved, safe) = watch::channel(Ranges::new());
        let carried = tokio::select! {
            carried = carry(flow, target.draft.clone(), &how, |ranges| drop(saved.send(ranges))) => carried.map_err(Failure::from),
            () = markers(&target, mode, data.markers.0, &seen, safe, tell) => Err(Failure::Stopped),
            () = tell.stopped() => Err(Failure::Stopped),
        };
        let published = match carried {
            Ok(()) => {
                let unsure = mode == Mode::Stream && target.size.is_none() && channel.ends_as_if_cut();
                publish(&*store, &target, seen.end(), unsure.then(Instant::now), tell).await
            }
            Err(failure) => Err(failure),
        };
        if let Err(failure) = published {
            // Who has stopped it is told from where it goes on.
            if matches!(failure, Failure::Stopped)
                && mode == Mode::Extended
                && target.draft.is_resumable()
                && let Ok(safe) = target.draft.checkpoint().await
            {
                tell.say(ranges(&shifted(&safe, target.from))).await;
            }
            // Nobody finds what is kept under a name that is never used again.
            target.draft.abandon(unique.is_none()).await;
            return Err(failure);
        }
        if mode != Mode::Stream {
            tell.say(perf(seen.bytes())).await;
            tell.say(ranges(&Extent::first(seen.end().saturating_sub(target.from)).into())).await;
        }
        Ok(seen.bytes())
    }
}

/// Gives what was received its name. Until here a client that dies has not stored anything. `doubted_since` is when the stream ended, if
/// nothing but the control connection tells whether its sender was killed.
pub(super) async fn publish(
    store: &dyn Store,
    target: &Target,
    end: u64,
    doubted_since: Option<Instant>,
    tell: &Tell,
) -> Result<(), Failure> {
    if doubted_since.is_some() && !target.in_place {
        // What takes long comes before the question: between the answer and the name there is as little as can be.
        target.draft.checkpoint().await?;
    }
    if !tell.is_client_there(doubted_since).await {
        // A stream whose sender was killed ends as one that was complete.
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

/// Says now and then what has arrived and what is safe, as long as anybody wants to know.
async fn markers(
    target: &Target,
    mode: Mode,
    every: Duration,
    seen: &Seen,
    mut safe: watch::Receiver<Ranges>,
    tell: &Tell,
) {
    if mode == Mode::Stream {
        return std::future::pending().await;
    }
    let mut told = target.kept.clone();
    loop {
        tell.say(perf(seen.bytes())).await;
        tokio::time::sleep(every).await;
        if !target.draft.is_resumable() {
            continue;
        }
        // Each marker says what came since the one before.
        let mut new = safe.borrow_and_update().clone();
        told.iter().for_each(|extent| new.remove(extent));
        if !new.is_empty() {
            told.extend(new.iter());
            tell.say(ranges(&shifted(&new, target.from))).await;
        }
    }
}

/// Ranges of a file as the sender counts them, whose first byte is that at `from`.
fn shifted(ranges: &Ranges, from: u64) -> Ranges {
    ranges.iter().filter_map(|extent| Extent::between(extent.start().checked_sub(from)?, extent.end() - from)).collect()
}

/// Begins, or goes on with, what a transfer writes to.
pub(super) async fn target(store: &dyn Store, transfer: &Transfer) -> Result<Target, Failure> {
    let skip = match &transfer.restart {
        None | Some(Restart::At(0)) => Ranges::new(),
        Some(Restart::At(at)) => Extent::first(*at).into(),
        Some(Restart::Without(there)) => there.clone(),
    };
    let stream_from = skip.iter().next_back().map_or(0, Extent::end);
    if transfer.settings.mode == Mode::Stream && !skip.is_empty() && !skip.covers(Extent::first(stream_from)) {
        return Err(Failure::say(504, "a stream cannot leave out what is amid it; MODE E can"));
    }
    let from = if transfer.settings.mode == Mode::Stream { stream_from } else { 0 };
    match &transfer.what {
        What::Append { key } => {
            let there = size(store, key).await?.unwrap_or(0);
            let from = there.checked_add(from).ok_or_else(|| Failure::say(554, "no file can have as many bytes"))?;
            edit(store, key, from).await
        }
        What::Adjust { key, offset } => match size(store, key).await? {
            None if *offset == 0 && skip.is_empty() => fresh(store, key, transfer).await,
            there => {
                let end = offset.saturating_add(skip.iter().next_back().map_or(0, Extent::end));
                enough(there.unwrap_or(0), &skip, end)?;
                edit(store, key, offset.saturating_add(from)).await
            }
        },
        What::Receive { key } if skip.is_empty() => fresh(store, key, transfer).await,
        What::Unique { key } => fresh(store, key, transfer).await,
        What::Receive { key } => match resumed(store, key, transfer, &skip, from).await? {
            Some(target) => Ok(target),
            None => {
                let there = size(store, key).await?.unwrap_or(0);
                enough(there, &skip, skip.iter().next_back().map_or(0, Extent::end))?;
                edit(store, key, from).await
            }
        },
        What::Send { .. } | What::List { .. } | What::Stripe { .. } => Err(Failure::say(451, "this receives nothing")),
    }
}

/// Whether `skip`, which the client says is there, can be.
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

/// A draft in which nothing is kept of whatever was there.
async fn fresh(store: &dyn Store, key: &Key, transfer: &Transfer) -> Result<Target, Failure> {
    let spec = spec(transfer);
    let size = spec.size;
    // The bytes that are there may be of another file: there is no way to know.
    for _ in 0..2 {
        match store.create(key, spec.clone()).await? {
            Begun::Draft(draft) if draft.kept().is_empty() => {
                return Ok(Target { draft, kept: Ranges::new(), from: 0, size, in_place: false });
            }
            Begun::Draft(draft) => draft.abandon(false).await,
            // What an earlier attempt had come to; this one begins again.
            Begun::Done => {}
        }
    }
    Err(Error::Busy { name: format!("/{key}") }.into())
}

/// The draft of an earlier attempt, if it has `skip`.
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

/// By what a draft is known again: whose it is, and how long it will be.
fn spec(transfer: &Transfer) -> Spec {
    Spec {
        size: transfer.allocated.filter(|_| !transfer.settings.ascii),
        source: Some((format!("stored by {}", transfer.user), None)),
        replace: !matches!(transfer.what, What::Unique { .. }),
        held: matches!(&transfer.what, What::Receive { key } | What::Adjust { key, .. } if is_part(key.name())),
        ..Spec::default()
    }
}

/// How many bytes the file `key` has, if there is one.
async fn size(store: &dyn Store, key: &Key) -> Result<Option<u64>, Failure> {
    match store.stat(key).await {
        Ok(meta) if meta.kind == Kind::File => Ok(meta.size),
        Ok(_) => Ok(Some(0)),
        Err(error) if error.sort() == Sort::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}
