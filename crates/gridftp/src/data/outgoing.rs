//! Sends blocks over one connection.
//!
//! Blocks that are ranges of a file go over a plain connection by `sendfile`, in time slices of a thread. All others
//! are written.

use super::connection::Connection;
use super::error::Error;
use super::time_slice::{IoThreads, Step, Why, Work, turn};
use phoebus_files::block::{Block, Body, FileRange};
use phoebus_files::local::Identity;
use phoebus_files::store::Flow;
use phoebus_net::bulk::Bulk;
use phoebus_proto::gridftp::block::{HEADER, Header};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Bytes of a device that are read at once: few system calls, and in the processor's cache when sent.
const READ: usize = 256 << 10;

/// Sends blocks over one connection while there are any.
pub(super) async fn carry(
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
pub(super) struct Outgoing {
    /// Whether each block has a header (extended blocks). Otherwise blocks have to be in order.
    has_headers: bool,
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
    pub(super) fn new(has_headers: bool, flow: Arc<dyn Flow>, moved: Arc<AtomicU64>) -> Self {
        Self { has_headers, flow, going: None, at: None, sent: 0, moved, buffer: Vec::new(), held: 0..0 }
    }

    /// Starts `block`.
    fn begin(&mut self, block: Block) -> Result<(), Error> {
        let len = block.len();
        let end = block.offset.checked_add(len).ok_or(Error::Endless)?;
        if !self.has_headers && self.at.replace(end).is_some_and(|at| at != block.offset) {
            return Err(Error::Order);
        }
        let left = if self.has_headers { HEADER } else { 0 };
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

/// Reads a part of a file, for what needs the bytes.
pub(super) async fn read(lent: FileRange, from: u64) -> Result<Vec<u8>, Error> {
    let read = tokio::task::spawn_blocking(move || {
        let mut bytes = vec![0; READ];
        let len = lent.read(from, &mut bytes)?;
        bytes.truncate(len);
        Ok(bytes)
    });
    read.await.unwrap_or(Err(Error::GivenUp))
}
