//! Extended block mode (MODE E, GFD.20, section 3.4): blocks with offsets over several connections, which are kept for the
//! next transfer. The sender connects.

use super::super::acceptor::Acceptor;
use super::super::blocks::{Sender, give};
use super::super::channel::Inner;
use super::super::connection::Connection;
use super::super::error::Error;
use super::super::intake::Intake;
use super::super::outgoing::{Outgoing, carry};
use super::super::time_slice::IoThreads;
use super::super::write::{self, Arriving, write_blocks};
use super::{Sending, TransferMode, Transferred};
use phoebus_files::block::Block;
use phoebus_proto::gridftp::block::{self, BlockError, Ending, Event, HEADER, Tally, Wants};
use std::sync::Arc;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

#[derive(Debug)]
pub(super) struct ExtendedBlockMode;

impl TransferMode for ExtendedBlockMode {
    fn send(&self, inner: Arc<Inner>, sending: Sending) -> Transferred<u64> {
        Box::pin(async move { send(&inner, sending).await })
    }

    fn receive(&self, inner: Arc<Inner>, intake: Intake, blocks: Sender) -> Transferred<()> {
        Box::pin(async move { receive(&inner, intake, &blocks).await })
    }
}

async fn send(inner: &Arc<Inner>, sending: Sending) -> Result<u64, Error> {
    let Sending { flow, moved, streams, sharing } = sending;
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
        let outgoing = Outgoing::new(true, flow.clone(), moved.clone());
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

async fn receive(inner: &Arc<Inner>, intake: Intake, blocks: &Sender) -> Result<(), Error> {
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
