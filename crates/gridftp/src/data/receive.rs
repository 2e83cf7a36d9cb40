//! Receives a flow.

use super::acceptor::Acceptor;
use super::blocks::{Sender, give};
use super::channel::{Channel, Inner};
use super::connection::Connection;
use super::error::Error;
use super::settings::Mode;
use super::time_slice::IoThreads;
use super::write::{self, Arriving, write_blocks};
use crate::block_channel::BlockChannel;
use phoebus_files::block::{Block, Pool};
use phoebus_files::store::{DirectWriter, Fallible, Flow};
use phoebus_proto::gridftp::block::{self, BlockError, Event, HEADER, Tally, Wants};
use std::fmt;
use std::sync::Arc;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until};

/// Most strangers that come and go without data before a stream.
const SCANS: usize = 100;

/// What to receive.
#[derive(Debug, Clone)]
pub struct Intake {
    /// The buffers. Blocks are no longer than those. Each connection fills one at a time.
    pub pool: Pool,
    /// Offset of the first byte of a stream, which is also added to the offsets of blocks.
    pub from: u64,
    /// Expected length of a stream, if known: neither more nor less is accepted. Extended blocks mark their own end.
    pub expected: Option<u64>,
    /// Direct writer of the destination, used if connections are plain. Then the blocks of the flow have no bytes.
    pub into: Option<Arc<dyn DirectWriter>>,
}

/// A flow that comes over a data channel. It ends ([`Flow::next`] returns `None`) only after everything has come.
/// Dropping it cuts the transfer.
pub struct Incoming {
    blocks: BlockChannel<Error>,
    work: JoinHandle<()>,
}

impl Channel {
    /// Starts to receive.
    pub fn receive(&self, mode: Mode, intake: Intake) -> Arc<Incoming> {
        let (sender, blocks) = BlockChannel::new();
        let inner = self.0.clone();
        let work = tokio::spawn(async move {
            let received = match mode {
                Mode::Stream => stream(&inner, intake, &sender).await,
                Mode::Extended => extended(&inner, intake, &sender).await,
            };
            // The receiver may want to listen on the same port next.
            drop(inner);
            // An error means that the reader is gone.
            let _ = sender.send(received.map(|()| None)).await;
        });
        Arc::new(Incoming { blocks, work })
    }
}

impl Flow for Incoming {
    fn next(&self) -> Fallible<'_, Option<Block>> {
        // The task ended without reporting completion.
        Box::pin(self.blocks.next(|| Error::GivenUp.into()))
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.work.abort();
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming").finish_non_exhaustive()
    }
}

async fn stream(inner: &Arc<Inner>, intake: Intake, blocks: &Sender) -> Result<(), Error> {
    let mut acceptor = Acceptor::of(inner, true);
    // A connection without data does not belong to the transfer, if anybody may connect.
    let mut scans = 0;
    loop {
        let connection = acceptor.one().await?;
        let strange = inner.may_be_stranger() && !connection.is_proved();
        match one_stream(inner, connection, intake.clone(), blocks).await {
            Err(Error::Short { came: 0, .. }) if strange && scans < SCANS => scans += 1,
            other => return other,
        }
    }
}

async fn one_stream(inner: &Inner, mut connection: Connection, intake: Intake, blocks: &Sender) -> Result<(), Error> {
    if let Some(direct_writer) = intake.into.filter(|_| connection.is_bulk()) {
        let bytes = write::Bytes::new(Arriving::new(direct_writer, intake.from), intake.expected);
        (connection, _) = write_blocks(connection, bytes, (blocks, &inner.settings.io_threads), None).await?;
        let _ = connection.finish(inner.settings.stall_timeout).await;
        return Ok(());
    }
    let mut came = 0u64;
    loop {
        connection.readable().await?;
        let mut buffer = intake.pool.take().await;
        let (len, ended) = connection.fill(buffer.room()).await?;
        let offset = intake.from.checked_add(came).ok_or(Error::Endless)?;
        came = came.checked_add(len as u64).ok_or(Error::Endless)?;
        if intake.expected.is_some_and(|expected| came > expected) {
            return Err(Error::Long(intake.expected.unwrap_or_default()));
        }
        if len > 0 {
            give(blocks, Block::new(offset, buffer.freeze(len))).await?;
        }
        if ended {
            break;
        }
    }
    match intake.expected {
        None if connection.is_doubtful() => Err(Error::Doubtful),
        Some(expected) if came < expected => Err(Error::Short { came, expected }),
        _ => {
            // Some senders wait for this end to close too; others are gone.
            let _ = connection.leave(inner.settings.stall_timeout).await;
            Ok(())
        }
    }
}

async fn extended(inner: &Arc<Inner>, intake: Intake, blocks: &Sender) -> Result<(), Error> {
    if !inner.is_listening() {
        return Err(Error::Direction("PASV, EPSV or SPAS has to come before what is received"));
    }
    let (stop, stopped) = watch::channel(false);
    let mut readers = JoinSet::new();
    for connection in inner.take_kept() {
        let ways = (blocks.clone(), inner.settings.io_threads.clone());
        // The sender or a firewall may have ended it since the last transfer. The sender then uses others.
        readers.spawn(read(connection, intake.clone(), ways, (stopped.clone(), true)));
    }
    let (mut tally, mut acceptor) = (Tally::new(), Acceptor::of(inner, true));
    let mut came = readers.len();
    let reply_timeout = inner.settings.reply_timeout;
    let give_up = Instant::now() + reply_timeout;
    while !tally.is_complete() {
        tokio::select! {
            arrived = acceptor.next() => {
                came += 1;
                if came > inner.settings.most {
                    return Err(Error::TooMany(inner.settings.most));
                }
                let ways = (blocks.clone(), inner.settings.io_threads.clone());
                let connection = arrived?;
                let strange = inner.may_be_stranger() && !connection.is_proved();
                readers.spawn(read(connection, intake.clone(), ways, (stopped.clone(), strange)));
            }
            ended = readers.join_next(), if !readers.is_empty() => came -= count(inner, ended, &mut tally)?,
            () = sleep_until(give_up), if came == 0 => return Err(acceptor.nobody(reply_timeout)),
        }
    }
    // A handshake that is unfinished now belongs to no sender.
    drop(acceptor);
    // Connections that this transfer did not need are kept.
    let _ = stop.send(true);
    while let Some(ended) = readers.join_next().await {
        count(inner, Some(ended), &mut tally)?;
    }
    Ok(())
}

/// How the part of a connection ended.
struct Ended {
    connection: Connection,
    said: Vec<Event>,
    /// Whether it ended without data, and belongs to no part of the transfer.
    gone: bool,
}

/// Counts the ends of a connection, and connections without data.
fn count(
    inner: &Inner,
    ended: Option<Result<Result<Ended, Error>, tokio::task::JoinError>>,
    tally: &mut Tally,
) -> Result<usize, Error> {
    let Some(ended) = ended else { return Ok(0) };
    let Ended { connection, said, gone } = ended.map_err(|_| Error::GivenUp)??;
    let closed = said.iter().any(|said| matches!(said, Event::End { kept: false }));
    said.into_iter().try_for_each(|said| tally.count(said))?;
    if closed || gone {
        connection.close()
    } else {
        inner.keep(connection)
    }
    Ok(usize::from(gone))
}

/// Reads one connection to the end of its part, or until it is not needed. With `optional`, it may end or fail before its
/// first byte: it is a stranger's, or was kept from an earlier transfer.
async fn read(
    mut connection: Connection,
    intake: Intake,
    (blocks, io_threads): (Sender, IoThreads),
    (mut stopped, mut optional): (watch::Receiver<bool>, bool),
) -> Result<Ended, Error> {
    if let Some(direct_writer) = intake.into.clone().filter(|_| connection.is_bulk()) {
        let work = write::Blocks::new(Arriving::new(direct_writer, intake.from), optional);
        let (connection, work) = write_blocks(connection, work, (&blocks, &io_threads), Some(stopped)).await?;
        return Ok(Ended { connection, said: work.said, gone: work.gone });
    }
    let (mut channel, mut said) = (block::Channel::new(), Vec::new());
    loop {
        match channel.wants() {
            Wants::Nothing => return Ok(Ended { connection, said, gone: false }),
            Wants::Header(wanted) => {
                let mut header = [0; HEADER];
                // It can only be kept between blocks.
                let idle = wanted == HEADER && said.is_empty();
                let len = tokio::select! {
                    biased;
                    read = connection.read(&mut header[..wanted]) => read.or_else(|error| if optional { Ok(0) } else { Err(error) })?,
                    _ = stopped.wait_for(|stopped| *stopped), if idle => return Ok(Ended { connection, said, gone: false }),
                };
                if len == 0 {
                    return if optional {
                        Ok(Ended { connection, said, gone: true })
                    } else {
                        Err(BlockError::Cut.into())
                    };
                }
                optional = false;
                said.extend(channel.header(&header[..len])?.1);
            }
            Wants::Data { offset, len } => {
                let len = take(&mut connection, &intake, (offset, len), &blocks).await?.ok_or(BlockError::Cut)?;
                said.extend(channel.took(len));
            }
        }
    }
}

/// Reads a part of a block of `len` bytes at `offset`, and returns its length. `None` at the end of the
/// connection.
async fn take(
    connection: &mut Connection,
    intake: &Intake,
    (offset, len): (u64, u64),
    blocks: &Sender,
) -> Result<Option<u64>, Error> {
    connection.readable().await?;
    let mut buffer = intake.pool.take().await;
    let offset = intake.from.checked_add(offset).ok_or(Error::Endless)?;
    let room = buffer.room().len().min(usize::try_from(len).unwrap_or(usize::MAX));
    let (len, ended) = connection.fill(&mut buffer.room()[..room]).await?;
    if ended {
        return Ok(None);
    }
    give(blocks, Block::new(offset, buffer.freeze(len))).await?;
    Ok(Some(len as u64))
}

#[cfg(test)]
mod tests {
    use super::super::settings::Settings;
    use super::*;
    use std::io::Write;
    use std::net::{Ipv4Addr, TcpStream};

    #[tokio::test]
    async fn slow_data_is_passed_on_before_a_block_is_full() {
        let channel = Channel::listening(Ipv4Addr::LOCALHOST.into(), Settings::default()).unwrap();
        let intake = Intake { pool: Pool::new(1 << 20, 4), from: 7, expected: None, into: None };
        let incoming = channel.receive(Mode::Stream, intake);
        let mut sender = TcpStream::connect(channel.local_addr().unwrap()).unwrap();
        for (at, text) in [(7, "slow"), (11, "ly")] {
            sender.write_all(text.as_bytes()).unwrap();
            let block = incoming.next().await.unwrap().unwrap();
            assert_eq!(block, Block::new(at, text));
        }
        drop(sender);
        assert!(incoming.next().await.unwrap().is_none());
    }
}
