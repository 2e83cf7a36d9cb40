//! Retrieves files and listings (RFC 959, section 5.3; RFC 3659, section 5; GFD.20, sections 3.2 and 3.4).
//!
//! Each retrieval is a task that feeds a flow. The flow ends only after all requested bytes and the server's 226: a cut
//! connection looks like a complete one.

use super::carrier::Carrier;
use super::data::DataPlan;
use super::error::passing;
use super::remote::Remote;
use super::request::{ReadRequest, Sender};
use super::session::Session;
use super::take::{All, Give};
use super::task::{SPEAK, Task};
use crate::block_channel::BlockChannel;
use crate::data::{Intake, Mode};
use phoebus_files::Error;
use phoebus_files::block::{Block, Pool};
use phoebus_files::range::{Extent, Ranges};
use phoebus_files::store::{Fallible, Flow};
use phoebus_proto::gridftp::marker::{MAX_RANGES, Restart};
use std::fmt;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

/// Longest list of ranges in REST, in characters. Servers accept lines of some kilobytes.
const MAX_REST: usize = 2000;

/// A retrieval in progress. Dropping it cuts the transfer.
pub(super) struct Retrieval {
    blocks: BlockChannel<Error>,
    work: JoinHandle<()>,
    name: String,
}

impl Retrieval {
    /// Starts to retrieve a file.
    pub(super) fn of_file(remote: Remote, wanted: ReadRequest, pool: Pool) -> Self {
        let name = wanted.name.clone();
        Self::spawn(name, Some(remote.clone()), move |sender| async move {
            let instead = match as_object(&remote, &wanted, &pool, &sender).await {
                Ok(done) => return done,
                Err(instead) => instead,
            };
            over_connections(&remote, &wanted, pool, &sender).await?;
            remote.note_carrier(instead);
            Ok(())
        })
    }

    /// Starts to retrieve the listing of `command`, over a prepared session.
    pub(super) fn of_listing(remote: Remote, mut session: Session, name: String, command: Vec<u8>) -> Self {
        Self::spawn(name.clone(), None, move |sender| async move {
            let pool = Pool::new(64 << 10, 4);
            let plan = remote.plan();
            plan.enter_to_list(&mut session).await?;
            let channel = plan.passive(&mut session).await?;
            let intake = Intake { pool, from: 0, expected: None, into: None };
            let mut sink = All(&sender);
            let task = Task { remote: &remote, name: &name, act: "list", enough: None };
            task.receive(&mut session, &command, &channel, Mode::Stream, intake, &mut sink).await?;
            remote.keep(session);
            Ok(())
        })
    }

    /// Keeps the idle connections of `remote` alive while the receiver is slow.
    fn spawn<F: Future<Output = Result<(), Error>> + Send>(
        name: String,
        remote: Option<Remote>,
        work: impl FnOnce(Sender) -> F + Send + 'static,
    ) -> Self {
        let (sender, blocks) = BlockChannel::new();
        let last = sender.clone();
        let work = tokio::spawn(async move {
            let done = work(sender).await;
            // An error means that the receiver is gone.
            let end = last.send(done.map(|()| None));
            let Some(remote) = remote else { return drop(end.await) };
            tokio::pin!(end);
            let mut is_sent = false;
            // Until the retrieval is dropped.
            loop {
                tokio::select! {
                    _ = &mut end, if !is_sent => is_sent = true,
                    () = sleep(SPEAK) => remote.speak(),
                }
            }
        });
        Self { blocks, work, name }
    }
}

impl Flow for Retrieval {
    fn next(&self) -> Fallible<'_, Option<Block>> {
        // The task ended without reporting completion.
        Box::pin(self.blocks.next(|| passing(&self.name, "the transfer was given up")))
    }
}

impl Drop for Retrieval {
    fn drop(&mut self) {
        self.work.abort();
    }
}

impl fmt::Debug for Retrieval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Retrieval").field(&self.name).finish()
    }
}

/// Retrieves over as many connections as there are `parts`, as streams: this end connects, unlike with extended blocks,
/// where the server does.
async fn in_parts(
    remote: &Remote,
    wanted: &ReadRequest,
    parts: u32,
    pool: Pool,
    sender: &Sender,
    first: Option<Session>,
) -> Result<(), Error> {
    remote.used(parts);
    let (mut work, mut first) = (JoinSet::new(), first);
    for ranges in divided(&wanted.ranges, parts) {
        let (remote, wanted) = (remote.clone(), ReadRequest { ranges, ..wanted.clone() });
        let (pool, sender, session) = (pool.clone(), sender.clone(), first.take());
        work.spawn(async move {
            let session = match session {
                Some(session) => session,
                None => remote.session().await?,
            };
            whole(&remote, &wanted, session, None, pool, &sender).await
        });
    }
    // The first error ends all parts: dropping them cuts them.
    while let Some(done) = work.join_next().await {
        done.map_err(|_| passing(&wanted.name, "the transfer was given up"))??;
    }
    Ok(())
}

/// Divides `ranges` into `parts` equal parts.
fn divided(ranges: &Ranges, parts: u32) -> Vec<Ranges> {
    let each = ranges.total().div_ceil(u64::from(parts.max(1))).max(1);
    let (mut all, mut part) = (Vec::new(), Ranges::new());
    for extent in ranges.iter() {
        let mut from = extent.start();
        while from < extent.end() {
            let len = (each - part.total()).min(extent.end() - from);
            part.extend(Extent::new(from, len));
            from += len;
            if part.total() == each {
                all.push(std::mem::take(&mut part));
            }
        }
    }
    all.extend(Some(part).filter(|part| !part.is_empty()));
    all
}

/// Retrieves everything as streams or extended blocks.
async fn over_connections(remote: &Remote, wanted: &ReadRequest, pool: Pool, sender: &Sender) -> Result<(), Error> {
    let parts = remote.parts_to_read(wanted.ranges.total()).filter(|_| !wanted.ordered);
    if let Some(parts) = parts {
        return in_parts(remote, wanted, parts, pool, sender, None).await;
    }
    let session = remote.session().await?;
    let streams = remote.streams().filter(|_| !wanted.ordered);
    match streams.filter(|_| session.data.is_some() && remote.has("ERET") && !remote.has_objects()) {
        // With MODE E, the server's connections would bypass the gateways. Those of objects are this end's.
        Some(parts) => in_parts(remote, wanted, parts, pool, sender, Some(session)).await,
        None => whole(remote, wanted, session, streams, pool, sender).await,
    }
}

/// Retrieves everything as an object, if this end so chooses. Otherwise, or if objects do not come and nothing has, returns what
/// carries it instead, if that was left to this end.
async fn as_object(
    remote: &Remote,
    wanted: &ReadRequest,
    pool: &Pool,
    sender: &Sender,
) -> Result<Result<(), Error>, Option<Carrier>> {
    let (bytes, in_order) = (wanted.ranges.total(), wanted.ordered || wanted.endless);
    let chosen = match remote.carrier_to_read(bytes) {
        Some(chosen) if chosen.is_object && in_order => {
            return Err(Some(Carrier { is_object: false, why: "they are read in order".into() }));
        }
        Some(chosen) if chosen.is_object => chosen,
        other => return Err(other),
    };
    let mut given = Give::to(sender, wanted);
    let done = async {
        let mut session = remote.session().await?;
        remote.agree_on_objects(&mut session).await?;
        blocks(remote, &mut session, wanted, (remote.plan().by_objects(), 1), pool.clone(), &mut given).await?;
        remote.keep_after(session).await;
        Ok(())
    };
    let done = done.await.and_then(|()| all_of(&given, wanted));
    let Err(error) = done else {
        remote.note_carrier(Some(chosen));
        return Ok(Ok(()));
    };
    match remote.instead_of_object(remote.carrier_to_read(bytes), &error, &wanted.name) {
        Some(instead) if given.missing() == bytes => Err(Some(instead)),
        _ => Ok(Err(error)),
    }
}

/// Checks that everything has come.
fn all_of(given: &Give<'_>, wanted: &ReadRequest) -> Result<(), Error> {
    match given.missing() {
        0 => Ok(()),
        missing => Err(Error::Short { name: wanted.name.clone(), at: wanted.size - missing, expected: wanted.size }),
    }
}

/// Retrieves everything over `session`: as extended blocks over `streams` connections, or as a stream.
async fn whole(
    remote: &Remote,
    wanted: &ReadRequest,
    mut session: Session,
    streams: Option<u32>,
    pool: Pool,
    sender: &Sender,
) -> Result<(), Error> {
    let mut given = Give::to(sender, wanted);
    let give = &mut given;
    match streams {
        Some(streams) => {
            blocks(remote, &mut session, wanted, (remote.plan(), streams), pool, give).await?;
        }
        None => {
            for extent in wanted.ranges.iter() {
                loop {
                    let left = stream(remote, &mut session, wanted, extent, &pool, give).await?;
                    if left == Left::InStep {
                        break;
                    }
                    // A stopped transfer may leave a reply to read.
                    drop(session);
                    session = remote.session().await?;
                    if left == Left::OutOfStep {
                        break;
                    }
                }
            }
        }
    }
    remote.keep_after(session).await;
    all_of(&given, wanted)
}

/// The state of a session after a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    /// It can be used again.
    InStep,
    /// It cannot be used again.
    OutOfStep,
    /// It cannot be used again, and nothing was retrieved: the server sends whole files only, as is now known.
    Refused,
}

/// Retrieves `extent` as a stream.
async fn stream(
    remote: &Remote,
    session: &mut Session,
    wanted: &ReadRequest,
    extent: Extent,
    pool: &Pool,
    give: &mut Give<'_>,
) -> Result<Left, Error> {
    let plan = remote.plan();
    plan.enter(session, Mode::Stream).await?;
    let channel = plan.passive(session).await?;
    let to_end = !wanted.endless && extent.end() == wanted.size;
    let (mut from, mut expected) = (extent.start(), Some(extent.len()));
    let mut command = [b"RETR ", &wanted.path[..]].concat();
    if !to_end && session.has("ERET") {
        command = [format!("ERET P {} {} ", extent.start(), extent.len()).as_bytes(), &wanted.path].concat();
    } else {
        // The rest is not wanted.
        expected = expected.filter(|_| to_end);
        if extent.start() > 0 && remote.begins_amid() {
            let reply = session.ask(format!("REST {}", extent.start())).await?;
            if reply.code != 350 {
                // Some servers have closed the data connection by now, and answer the next command with the reply to
                // this one.
                remote.begin_reading_afresh();
                return Ok(Left::Refused);
            }
        } else if extent.start() > 0 {
            // A server that cannot begin in the middle sends everything.
            (from, expected) = (0, Some(wanted.size).filter(|_| to_end));
        }
    }
    let intake = Intake { pool: pool.clone(), from, expected, into: wanted.into.clone() };
    let enough = (!to_end && expected.is_none()).then_some(extent.end());
    let task = Task { remote, name: &wanted.name, act: "read", enough };
    let all = task.receive(session, &command, &channel, Mode::Stream, intake, give).await?;
    Ok(if all { Left::InStep } else { Left::OutOfStep })
}

/// Retrieves everything as extended blocks.
async fn blocks(
    remote: &Remote,
    session: &mut Session,
    wanted: &ReadRequest,
    (plan, streams): (DataPlan<'_>, u32),
    pool: Pool,
    give: &mut Give<'_>,
) -> Result<(), Error> {
    plan.enter(session, Mode::Extended).await?;
    plan.parallel(session, streams).await?;
    remote.used(streams);
    // This end may be behind address translation, so it connects where it can.
    let has_objects = session.stack.as_ref().is_some_and(|stack| stack.objects.is_some());
    let channel = if has_objects { plan.passive(session).await? } else { plan.active(session).await? };
    let mut command = [b"RETR ", &wanted.path[..]].concat();
    let mut from = 0;
    if wanted.endless {
        // Offsets then begin at 0.
        from = wanted.ranges.iter().next().map_or(0, Extent::start);
        let len = wanted.size - from;
        command = [format!("ERET P {from} {len} ").as_bytes(), &wanted.path].concat();
    } else if let Some(rest) = without(wanted.ranges.missing(Extent::first(wanted.size))) {
        session.must(format!("REST {rest}"), &wanted.name, "go on with").await?;
    }
    let intake = Intake { pool, from, expected: None, into: wanted.into.clone() };
    let task = Task { remote, name: &wanted.name, act: "read", enough: None };
    task.receive(session, &command, &channel, Mode::Extended, intake, give).await.map(drop)
}

/// The argument of REST that makes the server omit `there`; of too many gaps, the longest ranges.
pub(super) fn without(there: Ranges) -> Option<Restart> {
    let mut parts: Vec<Extent> = there.iter().collect();
    parts.sort_by_key(|extent| std::cmp::Reverse(extent.len()));
    parts.truncate(MAX_RANGES);
    while !parts.is_empty() {
        let rest = Restart::Without(parts.iter().copied().collect());
        if rest.to_string().len() <= MAX_REST {
            return Some(rest);
        }
        parts.truncate(parts.len() / 2);
    }
    None
}
