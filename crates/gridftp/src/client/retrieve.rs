//! What comes from a server: files and listings (RFC 959, section 5.3; RFC 3659, section 5; GFD.20, sections 3.2 and 3.4).
//!
//! A retrieval is a flow of its own task. It gives its end only once all bytes have come that were asked for and the server has
//! said that it sent all (226): a connection that was cut ends as one does that has brought all.

use super::error::passing;
use super::remote::Remote;
use super::session::Session;
use super::take::{All, Give};
use super::task::{SPEAK, Task};
use crate::data::{Intake, Mode};
use crate::handed::{Given, Handed};
use phoebus_files::Error;
use phoebus_files::block::{Block, Pool};
use phoebus_files::range::{Extent, Ranges};
use phoebus_files::store::{Fallible, Flow, Landing};
use phoebus_files::sum::Combining;
use phoebus_proto::gridftp::marker::{MAX_RANGES, Restart};
use std::fmt;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

/// How many characters of ranges one REST may have: servers take lines of some kilobytes.
const MAX_REST: usize = 2000;

/// Blocks on their way from a server. Dropped, it cuts the transfer.
pub(super) struct Retrieval {
    blocks: Handed<Error>,
    work: JoinHandle<()>,
    name: String,
}

/// To whoever takes what is retrieved.
pub(super) type Sender = mpsc::Sender<Given<Error>>;

/// What is to be retrieved.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    /// As errors name it.
    pub(super) name: String,
    /// As the server knows it.
    pub(super) path: Vec<u8>,
    /// How many bytes it has.
    pub(super) size: u64,
    /// Which of them are wanted.
    pub(super) ranges: Ranges,
    /// The checksum to compute of each block.
    pub(super) sum: Option<Combining>,
    /// Whether blocks have to come in order.
    pub(super) ordered: bool,
    /// Whether the server has more than [`Self::size`] says, so that it has to be told how much is wanted (ERET).
    pub(super) endless: bool,
    /// Where it is to be put straight away, where connections allow it.
    pub(super) into: Option<Arc<dyn Landing>>,
}

impl Retrieval {
    /// Begins to retrieve a file.
    pub(super) fn of_file(remote: Remote, wanted: Wanted, pool: Pool) -> Self {
        let name = wanted.name.clone();
        Self::spawn(name, Some(remote.clone()), move |sender| async move {
            let parts = remote.parts_to_read(wanted.ranges.total()).filter(|_| !wanted.ordered);
            if let Some(parts) = parts {
                return in_parts(&remote, &wanted, parts, pool, &sender, None).await;
            }
            let session = remote.session().await?;
            let streams = remote.streams().filter(|_| !wanted.ordered);
            match streams.filter(|_| session.data.is_some() && remote.has("ERET")) {
                // The server's connections would not go through gateways.
                Some(parts) => in_parts(&remote, &wanted, parts, pool, &sender, Some(session)).await,
                None => whole(&remote, &wanted, session, streams, pool, &sender).await,
            }
        })
    }

    /// Begins to retrieve what `command` lists, over a session that has been prepared for it.
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

    /// Where it takes long until what has come is taken, `remote` is told meanwhile that this end is not done.
    fn spawn<F: Future<Output = Result<(), Error>> + Send>(
        name: String,
        remote: Option<Remote>,
        work: impl FnOnce(Sender) -> F + Send + 'static,
    ) -> Self {
        let (sender, blocks) = Handed::new();
        let last = sender.clone();
        let work = tokio::spawn(async move {
            let done = work(sender).await;
            // Whoever has gone does not want to know.
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
        // Nobody has said that this is the end.
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

/// Retrieves what is wanted over as many connections at once as there are `parts` to be made of it: as streams, each of which this
/// end connects for, unlike extended blocks, for which the server connects.
async fn in_parts(
    remote: &Remote,
    wanted: &Wanted,
    parts: u32,
    pool: Pool,
    sender: &Sender,
    first: Option<Session>,
) -> Result<(), Error> {
    remote.used(parts);
    let (mut work, mut first) = (JoinSet::new(), first);
    for ranges in divided(&wanted.ranges, parts) {
        let (remote, wanted) = (remote.clone(), Wanted { ranges, ..wanted.clone() });
        let (pool, sender, session) = (pool.clone(), sender.clone(), first.take());
        work.spawn(async move {
            let session = match session {
                Some(session) => session,
                None => remote.session().await?,
            };
            whole(&remote, &wanted, session, None, pool, &sender).await
        });
    }
    // The first error ends all: what is dropped is cut.
    while let Some(done) = work.join_next().await {
        done.map_err(|_| passing(&wanted.name, "the transfer was given up"))??;
    }
    Ok(())
}

/// `ranges` as so many parts, as equal as can be.
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

/// Retrieves all that is wanted over `session`: as extended blocks over so many `streams`, or else as a stream.
async fn whole(
    remote: &Remote,
    wanted: &Wanted,
    mut session: Session,
    streams: Option<u32>,
    pool: Pool,
    sender: &Sender,
) -> Result<(), Error> {
    let mut given = Give::to(sender, wanted);
    let give = &mut given;
    match streams {
        Some(streams) => {
            blocks(remote, &mut session, wanted, streams, pool, give).await?;
        }
        None => {
            for extent in wanted.ranges.iter() {
                loop {
                    let left = stream(remote, &mut session, wanted, extent, &pool, give).await?;
                    if left == Left::InStep {
                        break;
                    }
                    // What was cut amid a file may leave a server with something to say.
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
    match given.missing() {
        0 => Ok(()),
        missing => Err(Error::Short { name: wanted.name.clone(), at: wanted.size - missing, expected: wanted.size }),
    }
}

/// How a stream leaves its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    /// It can be used for more.
    InStep,
    /// It cannot.
    OutOfStep,
    /// It cannot, and nothing was retrieved: the server begins with the first byte alone, which it is now known to do.
    Refused,
}

/// Retrieves `extent` as a stream.
async fn stream(
    remote: &Remote,
    session: &mut Session,
    wanted: &Wanted,
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
        // The rest of what comes then is not wanted.
        expected = expected.filter(|_| to_end);
        if extent.start() > 0 && remote.begins_amid() {
            let reply = session.ask(format!("REST {}", extent.start())).await?;
            if reply.code != 350 {
                // Some have let go of the data connection by now, and answer what comes next with what they had to say of this.
                remote.begin_reading_afresh();
                return Ok(Left::Refused);
            }
        } else if extent.start() > 0 {
            // A server that cannot begin amid a file sends all of it.
            (from, expected) = (0, Some(wanted.size).filter(|_| to_end));
        }
    }
    let intake = Intake { pool: pool.clone(), from, expected, into: wanted.into.clone() };
    let enough = (!to_end && expected.is_none()).then_some(extent.end());
    let task = Task { remote, name: &wanted.name, act: "read", enough };
    let all = task.receive(session, &command, &channel, Mode::Stream, intake, give).await?;
    Ok(if all { Left::InStep } else { Left::OutOfStep })
}

/// Retrieves all that is wanted as extended blocks.
async fn blocks(
    remote: &Remote,
    session: &mut Session,
    wanted: &Wanted,
    streams: u32,
    pool: Pool,
    give: &mut Give<'_>,
) -> Result<(), Error> {
    let plan = remote.plan();
    plan.enter(session, Mode::Extended).await?;
    plan.parallel(session, streams).await?;
    remote.used(streams);
    let channel = plan.active(session).await?;
    let mut command = [b"RETR ", &wanted.path[..]].concat();
    let mut from = 0;
    if wanted.endless {
        // Offsets begin at 0 then.
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

/// What REST has to say for the server to leave out `there`, or, of too many gaps, the longest of its ranges.
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
