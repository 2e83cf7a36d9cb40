//! Sends a flow.
//!
//! Blocks that are ranges of a file go over a plain connection by `sendfile`, in time slices of a thread. All others
//! are written.

use super::acceptor::Acceptor;
use super::channel::{Channel, Inner};
use super::connection::Connection;
use super::error::Error;
use super::settings::Mode;
use super::time_slice::{IoThreads, Step, Why, Work, turn};
use phoebus_files::block::{Block, Body, FileRange};
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

/// Bytes of a device that are read at once: few system calls, and in the processor's cache when sent.
const READ: usize = 256 << 10;

impl Channel {
    /// Sends all of `flow`, adds sent bytes to `moved`, and returns their number. In stream mode the flow must be in
    /// order. In extended block mode it goes over `streams` connections to each address (S11), which are kept for the
    /// next transfer. Dropping the future resets connections, so that the peer sees a cut.
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
        }
    }

    /// The same in extended block mode, as one of several senders to the same addresses.
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

/// Senders to one address, each over the same number of connections (S11). If the receiver counts all ends, one sender
/// announces their number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sharing {
    /// Number of senders, including this one.
    pub senders: u64,
    /// Index of this sender. The first, 0, announces.
    pub place: u64,
}

impl Default for Sharing {
    /// A single sender.
    fn default() -> Self {
        Self { senders: 1, place: 0 }
    }
}

async fn stream(inner: &Arc<Inner>, flow: Arc<dyn Flow>, moved: Arc<AtomicU64>) -> Result<u64, Error> {
    let connection = Acceptor::of(inner, false).one().await?;
    let how = (inner.settings.io_threads.clone(), inner.settings.stall_timeout);
    let (connection, sent) = carry(connection, Outgoing::new(Mode::Stream, flow, moved), how).await?;
    connection.count(inner.losses());
    connection.finish(inner.settings.stall_timeout).await?;
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
        // The announced number assumes the requested connections of each sender. Further kept ones stay unused.
        connections.sort_by_key(|connection| connection.to);
        let mut have = (usize::MAX, 0);
        let spare = |connection: &mut Connection| {
            have = (connection.to, if have.0 == connection.to { have.1 + 1 } else { 1 });
            have.1 > streams.max(1)
        };
        connections.extract_if(.., spare).for_each(|connection| inner.keep(connection));
    }
    let mut tasks = JoinSet::new();
    for connection in connections {
        let outgoing = Outgoing::new(Mode::Extended, flow.clone(), moved.clone());
        tasks.spawn(carry(connection, outgoing, (inner.settings.io_threads.clone(), inner.settings.stall_timeout)));
    }
    let (mut connections, mut sent) = (Vec::new(), 0);
    // The first error ends all: dropped connections are reset.
    while let Some(carried) = tasks.join_next().await {
        let (connection, bytes) = carried.map_err(|_| Error::GivenUp)??;
        connections.push(connection);
        sent += bytes;
    }
    // Each address counts its ends, since a stripe does not know the others.
    connections.sort_by_key(|connection| connection.to);
    for stripe in connections.chunk_by_mut(|a, b| a.to == b.to) {
        let own = stripe.len() as u64;
        let mut ending = Ending::of_one_sender(own, (sharing.place == 0).then_some(own * sharing.senders.max(1)));
        for connection in stripe {
            if let Some(header) = ending.next(true) {
                connection.write(&header.encode(), false, inner.settings.stall_timeout).await?;
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
    (threads, stall_timeout): (IoThreads, Duration),
) -> Result<(Connection, u64), Error> {
    loop {
        let Some(block) = outgoing.flow.next().await? else { return Ok((connection, outgoing.sent)) };
        outgoing.begin(block)?;
        if matches!(&outgoing.going, Some(Going { body: Body::FileRange(_), .. })) && connection.is_bulk() {
            let done;
            (connection, outgoing, done) = lend(connection, outgoing, (&threads, stall_timeout)).await?;
            if done {
                return Ok((connection, outgoing.sent));
            }
        } else {
            outgoing.write(&mut connection, stall_timeout).await?;
        }
    }
}

/// Moves `connection` to threads while there is something to send. Returns whether that was all.
async fn lend(
    connection: Connection,
    mut outgoing: Outgoing,
    (threads, stall_timeout): (&IoThreads, Duration),
) -> Result<(Connection, Outgoing, bool), Error> {
    let mut loose = connection.loosen()?;
    loop {
        let why;
        (loose, outgoing, why) = turn(loose, outgoing, threads).await?;
        match why {
            Why::Over => {}
            Why::Waits => {
                let connection = loose.settle()?;
                connection.room(stall_timeout).await?;
                loose = connection.loosen()?;
            }
            Why::Starved => return Ok((loose.settle()?, outgoing, false)),
            Why::Done => return Ok((loose.settle()?, outgoing, true)),
        }
    }
}

/// The sending state of one connection.
struct Outgoing {
    mode: Mode,
    flow: Arc<dyn Flow>,
    going: Option<Going>,
    /// Offset of the next block of a stream.
    at: Option<u64>,
    sent: u64,
    moved: Arc<AtomicU64>,
    /// Bytes that were read of a device, and the range still to send.
    buffer: Vec<u8>,
    held: std::ops::Range<usize>,
}

/// A block in progress.
struct Going {
    header: [u8; HEADER],
    /// Bytes of the header still to send.
    left: usize,
    body: Body,
    done: u64,
    len: u64,
}

impl Outgoing {
    fn new(mode: Mode, flow: Arc<dyn Flow>, moved: Arc<AtomicU64>) -> Self {
        Self { mode, flow, going: None, at: None, sent: 0, moved, buffer: Vec::new(), held: 0..0 }
    }

    /// Starts `block`.
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

    /// Sends the block in progress.
    async fn write(&mut self, connection: &mut Connection, stall_timeout: Duration) -> Result<(), Error> {
        let Some(going) = self.going.take() else { return Ok(()) };
        connection.write(&going.header[HEADER - going.left..], true, stall_timeout).await?;
        match going.body {
            Body::FileRange(lent) => {
                let mut done = 0;
                while done < going.len {
                    let bytes = read(lent.clone(), done).await?;
                    connection.write(&bytes, false, stall_timeout).await?;
                    done += bytes.len() as u64;
                }
            }
            Body::Bytes(bytes) => connection.write(&bytes, false, stall_timeout).await?,
            Body::Written(_) | Body::Hole(_) => return Err(Error::Order),
        }
        self.count(going.len);
        Ok(())
    }
}

impl Work for Outgoing {
    fn user(&self) -> Option<Arc<Identity>> {
        match &self.going {
            Some(Going { body: Body::FileRange(lent), .. }) => lent.file.user().cloned(),
            _ => None,
        }
    }

    /// Takes the next block if it is ready. Waiting happens without a thread.
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
            Body::FileRange(lent) if lent.regular => {
                let rest = usize::try_from(going.len - going.done).unwrap_or(usize::MAX);
                match lent.file.act(|file| bulk.send_file(file, lent.at + going.done, rest)) {
                    Ok(0) if rest > 0 => return Err(Error::Store(lent.short(going.done))),
                    // Some file systems support only reads.
                    Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                        lent.regular = false;
                        return Ok(Step::More);
                    }
                    sent => sent?,
                }
            }
            Body::FileRange(lent) => {
                if self.held.is_empty() && going.done < going.len {
                    self.buffer.resize(READ, 0);
                    self.held = 0..lent.read(going.done, &mut self.buffer)?;
                }
                let sent = bulk.write(&self.buffer[self.held.clone()], false)?;
                self.held.start += sent;
                sent
            }
            Body::Bytes(bytes) => bulk.write(bytes.get(going.done as usize..).unwrap_or_default(), false)?,
            Body::Written(_) | Body::Hole(_) => return Err(Error::Order),
        };
        going.done += sent as u64;
        if going.done >= going.len {
            self.going = None;
        }
        self.count(sent as u64);
        Ok(Step::More)
    }
}

/// Reads a part of a file, for connections that need the bytes.
async fn read(lent: FileRange, from: u64) -> Result<Vec<u8>, Error> {
    let read = tokio::task::spawn_blocking(move || {
        let mut bytes = vec![0; READ];
        let len = lent.read(from, &mut bytes)?;
        bytes.truncate(len);
        Ok(bytes)
    });
    read.await.unwrap_or(Err(Error::GivenUp))
}
