//! Sending a flow.
//!
//! Blocks that are places in a file go over a plain connection by `sendfile`, in turns of a thread; all others are written.

use super::arrive::Arrivals;
use super::both;
use super::channel::{Channel, Inner};
use super::connection::Connection;
use super::error::Error;
use super::settings::Mode;
use super::turn::{Carriers, Step, Why, Work, turn};
use phoebus_files::block::{Block, Body, Lent};
use phoebus_files::local::Identity;
use phoebus_files::store::Flow;
use phoebus_net::bulk::Bulk;
use phoebus_proto::gridftp::block::{Ending, HEADER, Header};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::task::JoinSet;

/// How much of a device is read at once: few system calls, and little enough to be in a processor's cache when it is sent.
const READ: usize = 256 << 10;

impl Channel {
    /// Sends all of `flow`, adding to `moved` what went, and returns how many bytes it was. In stream mode the flow has to
    /// be in order; in extended block mode it goes over so many `streams` to each address (S11), which are kept for another
    /// transfer. The future may be dropped at any
    /// time: then connections are reset, and the other end sees that the transfer was cut.
    ///
    /// # Errors
    /// Of connections, and of the flow ([`Error::Store`]).
    pub async fn send(
        &self,
        mode: Mode,
        streams: u32,
        flow: Arc<dyn Flow>,
        moved: &Arc<AtomicU64>,
    ) -> Result<u64, Error> {
        match mode {
            Mode::Stream => stream(&self.0, flow, moved.clone()).await,
            Mode::Extended => extended(&self.0, streams, flow, moved, Sharing::default()).await,
            Mode::ExtendedBoth => both::send(&self.0, streams, flow, moved).await,
        }
    }

    /// The same in extended block mode, as one of several that send to the same addresses.
    ///
    /// # Errors
    /// As above.
    pub async fn send_beside(
        &self,
        streams: u32,
        flow: Arc<dyn Flow>,
        moved: &Arc<AtomicU64>,
        sharing: Sharing,
    ) -> Result<u64, Error> {
        extended(&self.0, streams, flow, moved, sharing).await
    }
}

/// How many send to the same address, each over the same number of connections (S11): where the receiver counts the ends of all, one
/// of them says how many those are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sharing {
    /// How many, this one among them.
    pub senders: u64,
    /// Which of them this one is; the first, 0, says it.
    pub place: u64,
}

impl Default for Sharing {
    /// One alone.
    fn default() -> Self {
        Self { senders: 1, place: 0 }
    }
}

async fn stream(inner: &Arc<Inner>, flow: Arc<dyn Flow>, moved: Arc<AtomicU64>) -> Result<u64, Error> {
    let connection = Arrivals::of(inner, false).one().await?;
    let how = (inner.settings.carriers.clone(), inner.settings.stall);
    let (connection, sent) = carry(connection, Outgoing::new(Mode::Stream, flow, moved), how).await?;
    connection.count(inner.losses());
    connection.finish(inner.settings.stall).await?;
    Ok(sent)
}

async fn extended(
    inner: &Arc<Inner>,
    streams: u32,
    flow: Arc<dyn Flow>,
    moved: &Arc<AtomicU64>,
    sharing: Sharing,
) -> Result<u64, Error> {
    let mut connections = inner.all(streams).await?;
    if sharing.senders > 1 {
        // Who counts for the others takes it that each has as many as were asked for. What is kept beyond them is left alone.
        connections.sort_by_key(|connection| connection.to);
        let mut have = (usize::MAX, 0);
        let spare = |connection: &mut Connection| {
            have = (connection.to, if have.0 == connection.to { have.1 + 1 } else { 1 });
            have.1 > streams.max(1)
        };
        connections.extract_if(.., spare).for_each(|connection| inner.keep(connection));
    }
    let mut carriers = JoinSet::new();
    for connection in connections {
        let outgoing = Outgoing::new(Mode::Extended, flow.clone(), moved.clone());
        carriers.spawn(carry(connection, outgoing, (inner.settings.carriers.clone(), inner.settings.stall)));
    }
    let (mut connections, mut sent) = (Vec::new(), 0);
    // The first error ends all: what is dropped is reset.
    while let Some(carried) = carriers.join_next().await {
        let (connection, bytes) = carried.map_err(|_| Error::GivenUp)??;
        connections.push(connection);
        sent += bytes;
    }
    // The ends are counted at each address, since a stripe knows of no others.
    connections.sort_by_key(|connection| connection.to);
    for stripe in connections.chunk_by_mut(|a, b| a.to == b.to) {
        let own = stripe.len() as u64;
        let mut ending = Ending::among(own, (sharing.place == 0).then_some(own * sharing.senders.max(1)));
        for connection in stripe {
            if let Some(header) = ending.next(true) {
                connection.write(&header.encode(), false, inner.settings.stall).await?;
            }
        }
    }
    connections.iter().for_each(|connection| connection.count(inner.losses()));
    connections.into_iter().for_each(|connection| inner.keep(connection));
    Ok(sent)
}

/// Sends blocks over one connection while there are any.
async fn carry(
    mut connection: Connection,
    mut outgoing: Outgoing,
    (threads, stall): (Carriers, Duration),
) -> Result<(Connection, u64), Error> {
    loop {
        let Some(block) = outgoing.flow.next().await? else { return Ok((connection, outgoing.sent)) };
        outgoing.begin(block)?;
        if matches!(&outgoing.going, Some(Going { body: Body::Lent(_), .. })) && connection.is_bulk() {
            let done;
            (connection, outgoing, done) = lend(connection, outgoing, (&threads, stall)).await?;
            if done {
                return Ok((connection, outgoing.sent));
            }
        } else {
            outgoing.write(&mut connection, stall).await?;
        }
    }
}

/// Lends `connection` to threads while there is something to send; whether that was all.
async fn lend(
    connection: Connection,
    mut outgoing: Outgoing,
    (threads, stall): (&Carriers, Duration),
) -> Result<(Connection, Outgoing, bool), Error> {
    let mut loose = connection.loosen()?;
    loop {
        let why;
        (loose, outgoing, why) = turn(loose, outgoing, threads).await?;
        match why {
            Why::Over => {}
            Why::Waits => {
                let connection = loose.settle()?;
                connection.room(stall).await?;
                loose = connection.loosen()?;
            }
            Why::Starved => return Ok((loose.settle()?, outgoing, false)),
            Why::Done => return Ok((loose.settle()?, outgoing, true)),
        }
    }
}

/// What one connection sends.
struct Outgoing {
    mode: Mode,
    flow: Arc<dyn Flow>,
    going: Option<Going>,
    /// Where the next block of a stream has to begin.
    at: Option<u64>,
    sent: u64,
    moved: Arc<AtomicU64>,
    /// What was read of a device, and which of it is still to be sent.
    buffer: Vec<u8>,
    held: std::ops::Range<usize>,
}

/// A block that is being sent.
struct Going {
    header: [u8; HEADER],
    /// How many of the header's bytes are still to be sent.
    left: usize,
    body: Body,
    done: u64,
    len: u64,
}

impl Outgoing {
    fn new(mode: Mode, flow: Arc<dyn Flow>, moved: Arc<AtomicU64>) -> Self {
        Self { mode, flow, going: None, at: None, sent: 0, moved, buffer: Vec::new(), held: 0..0 }
    }

    /// Begins with `block`.
    fn begin(&mut self, block: Block) -> Result<(), Error> {
        let len = block.len();
        let end = block.offset.checked_add(len).ok_or(Error::Endless)?;
        if self.mode == Mode::Stream && self.at.replace(end).is_some_and(|at| at != block.offset) {
            return Err(Error::Order);
        }
        let left = if self.mode == Mode::Extended { HEADER } else { 0 };
        self.going =
            Some(Going { header: Header::data(block.offset, len).encode(), left, body: block.body, done: 0, len });
        Ok(())
    }

    fn count(&mut self, len: u64) {
        self.moved.fetch_add(len, Ordering::Relaxed);
        self.sent += len;
    }

    /// Writes the block that was begun.
    async fn write(&mut self, connection: &mut Connection, stall: Duration) -> Result<(), Error> {
        let Some(going) = self.going.take() else { return Ok(()) };
        connection.write(&going.header[HEADER - going.left..], true, stall).await?;
        match going.body {
            Body::Lent(lent) => {
                let mut done = 0;
                while done < going.len {
                    let bytes = read(lent.clone(), done).await?;
                    connection.write(&bytes, false, stall).await?;
                    done += bytes.len() as u64;
                }
            }
            _ => connection.write(Block { offset: 0, body: going.body, sum: None }.bytes()?, false, stall).await?,
        }
        self.count(going.len);
        Ok(())
    }
}

impl Work for Outgoing {
    fn user(&self) -> Option<Arc<Identity>> {
        match &self.going {
            Some(Going { body: Body::Lent(lent), .. }) => lent.file.user().cloned(),
            _ => None,
        }
    }

    /// Takes the next block if it is there at once; others are waited for without a thread.
    fn prepare(&mut self) -> Result<Step, Error> {
        let next = self.flow.next().as_mut().poll(&mut Context::from_waker(Waker::noop()));
        match next {
            Poll::Ready(Ok(Some(block))) => self.begin(block).map(|()| Step::More),
            Poll::Ready(Ok(None)) => Ok(Step::Done),
            Poll::Ready(Err(error)) => Err(error.into()),
            Poll::Pending => Ok(Step::Starved),
        }
    }

    fn step(&mut self, bulk: &Bulk) -> Result<Step, Error> {
        let Some(going) = &mut self.going else { return Ok(Step::Prepare) };
        if going.left > 0 {
            going.left -= bulk.write(&going.header[HEADER - going.left..], true)?;
            return Ok(Step::More);
        }
        let sent = match &mut going.body {
            Body::Lent(lent) if lent.regular => {
                let rest = usize::try_from(going.len - going.done).unwrap_or(usize::MAX);
                match lent.file.act(|file| bulk.send_file(file, lent.at + going.done, rest)) {
                    Ok(0) if rest > 0 => return Err(Error::Store(lent.short(going.done))),
                    // Some file systems can only be read from.
                    Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                        lent.regular = false;
                        return Ok(Step::More);
                    }
                    sent => sent?,
                }
            }
            Body::Lent(lent) => {
                if self.held.is_empty() && going.done < going.len {
                    self.buffer.resize(READ, 0);
                    self.held = 0..lent.read(going.done, &mut self.buffer)?;
                }
                let sent = bulk.write(&self.buffer[self.held.clone()], false)?;
                self.held.start += sent;
                sent
            }
            Body::Bytes(bytes) => bulk.write(bytes.get(going.done as usize..).unwrap_or_default(), false)?,
            Body::Landed(_) | Body::Hole(_) => return Err(Error::Order),
        };
        going.done += sent as u64;
        if going.done >= going.len {
            self.going = None;
        }
        self.count(sent as u64);
        Ok(Step::More)
    }
}

/// Some of what lies in a file, for connections that need the bytes.
async fn read(lent: Lent, from: u64) -> Result<Vec<u8>, Error> {
    let read = tokio::task::spawn_blocking(move || {
        let mut bytes = vec![0; READ];
        let len = lent.read(from, &mut bytes)?;
        bytes.truncate(len);
        Ok(bytes)
    });
    read.await.unwrap_or(Err(Error::GivenUp))
}
