//! Receiving a flow.

use super::arrive::Arrivals;
use super::both;
use super::channel::{Channel, Inner};
use super::connection::Connection;
use super::error::Error;
use super::land::{self, Arriving, land};
use super::settings::Mode;
use super::turn::Carriers;
use crate::handed::{Given, Handed};
use phoebus_files::block::{Block, Pool};
use phoebus_files::store::{Fallible, Flow, Landing};
use phoebus_proto::gridftp::block::{self, BlockError, HEADER, Said, Tally, Wants};
use std::fmt;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until};

/// How many strangers may come and go without a word before a stream that is expected to bring something.
const SCANS: usize = 100;

/// What is to be received.
#[derive(Debug, Clone)]
pub struct Intake {
    /// Its buffers: blocks are no longer than they are. Each connection fills one at a time.
    pub pool: Pool,
    /// Where the first byte of a stream belongs, and what is added to where blocks say that they do.
    pub from: u64,
    /// How many bytes a stream has to bring, if that is known: then neither fewer nor more are taken for it. Blocks say
    /// where they end.
    pub expected: Option<u64>,
    /// Where it is to be put straight away, if the connections are plain: then there are no bytes in the blocks of the flow.
    pub into: Option<Arc<dyn Landing>>,
}

/// A flow that comes over a data channel. It ends ([`Flow::next`] gives none) only when all has come that was sent. Dropped,
/// it cuts the transfer.
pub struct Incoming {
    blocks: Handed<Error>,
    work: JoinHandle<()>,
}

/// To whoever takes the blocks; none says that all have come.
pub(super) type Sender = mpsc::Sender<Given<Error>>;

impl Channel {
    /// Receives what the other end sends, from now on.
    pub fn receive(&self, mode: Mode, intake: Intake) -> Arc<Incoming> {
        let (sender, blocks) = Handed::new();
        let inner = self.0.clone();
        let work = tokio::spawn(async move {
            let received = match mode {
                Mode::Stream => stream(&inner, intake, &sender).await,
                Mode::Extended => extended(&inner, intake, &sender).await,
                Mode::ExtendedBoth => both::receive(&inner, intake, &sender).await,
            };
            // Whoever hears of the end may want to listen at the same port.
            drop(inner);
            // Whoever has gone does not want to know.
            let _ = sender.send(received.map(|()| None)).await;
        });
        Arc::new(Incoming { blocks, work })
    }
}

impl Flow for Incoming {
    fn next(&self) -> Fallible<'_, Option<Block>> {
        // Nobody has said that this is the end.
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
    let mut arrivals = Arrivals::of(inner, true);
    // One that goes without a word where something is to come is none of the transfer's, if anybody may connect.
    let mut scans = 0;
    loop {
        let connection = arrivals.one().await?;
        let strange = inner.may_be_stranger() && !connection.is_proved();
        match one_stream(inner, connection, intake.clone(), blocks).await {
            Err(Error::Short { came: 0, .. }) if strange && scans < SCANS => scans += 1,
            other => return other,
        }
    }
}

async fn one_stream(inner: &Inner, mut connection: Connection, intake: Intake, blocks: &Sender) -> Result<(), Error> {
    if let Some(landing) = intake.into.filter(|_| connection.is_bulk()) {
        let bytes = land::Bytes::new(Arriving::new(landing, intake.from), intake.expected);
        (connection, _) = land(connection, bytes, (blocks, &inner.settings.carriers), None).await?;
        let _ = connection.finish(inner.settings.stall).await;
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
            // Some wait for this end to say goodbye, too; others have gone.
            let _ = connection.leave(inner.settings.stall).await;
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
        let ways = (blocks.clone(), inner.settings.carriers.clone());
        readers.spawn(read(connection, intake.clone(), ways, (stopped.clone(), false)));
    }
    let (mut tally, mut arrivals) = (Tally::new(), Arrivals::of(inner, true));
    let mut came = readers.len();
    let patience = inner.settings.patience;
    let give_up = Instant::now() + patience;
    while !tally.is_complete() {
        tokio::select! {
            arrived = arrivals.next() => {
                came += 1;
                if came > inner.settings.most {
                    return Err(Error::TooMany(inner.settings.most));
                }
                let ways = (blocks.clone(), inner.settings.carriers.clone());
                let connection = arrived?;
                let strange = inner.may_be_stranger() && !connection.is_proved();
                readers.spawn(read(connection, intake.clone(), ways, (stopped.clone(), strange)));
            }
            ended = readers.join_next(), if !readers.is_empty() => came -= count(inner, ended, &mut tally)?,
            () = sleep_until(give_up), if came == 0 => return Err(arrivals.nobody(patience)),
        }
    }
    // Who has not agreed by now is nobody whose bytes were to come.
    drop(arrivals);
    // Connections that this transfer did not need are kept, too.
    let _ = stop.send(true);
    while let Some(ended) = readers.join_next().await {
        count(inner, Some(ended), &mut tally)?;
    }
    Ok(())
}

/// How a connection's part of a transfer ended.
struct Ended {
    connection: Connection,
    said: Vec<Said>,
    /// Whether it went without a word, and may have been a stranger's.
    gone: bool,
}

/// Counts what a connection said, and whether it was a stranger's.
fn count(
    inner: &Inner,
    ended: Option<Result<Result<Ended, Error>, tokio::task::JoinError>>,
    tally: &mut Tally,
) -> Result<usize, Error> {
    let Some(ended) = ended else { return Ok(0) };
    let Ended { connection, said, gone } = ended.map_err(|_| Error::GivenUp)??;
    let closed = said.iter().any(|said| matches!(said, Said::End { kept: false }));
    said.into_iter().try_for_each(|said| tally.count(said))?;
    if closed || gone {
        connection.close()
    } else {
        inner.keep(connection)
    }
    Ok(usize::from(gone))
}

/// Reads one connection to the end of its part, or until it is not needed. It may be `strange`, and go without a word.
async fn read(
    mut connection: Connection,
    intake: Intake,
    (blocks, carriers): (Sender, Carriers),
    (mut stopped, mut strange): (watch::Receiver<bool>, bool),
) -> Result<Ended, Error> {
    if let Some(landing) = intake.into.clone().filter(|_| connection.is_bulk()) {
        let work = land::Blocks::new(Arriving::new(landing, intake.from), strange);
        let (connection, work) = land(connection, work, (&blocks, &carriers), Some(stopped)).await?;
        return Ok(Ended { connection, said: work.said, gone: work.gone });
    }
    let (mut channel, mut said) = (block::Channel::new(), Vec::new());
    loop {
        match channel.wants() {
            Wants::Nothing => return Ok(Ended { connection, said, gone: false }),
            Wants::Header(wanted) => {
                let mut header = [0; HEADER];
                // Only between blocks can it be left alone.
                let idle = wanted == HEADER && said.is_empty();
                let len = tokio::select! {
                    biased;
                    read = connection.read(&mut header[..wanted]) => read?,
                    _ = stopped.wait_for(|stopped| *stopped), if idle => return Ok(Ended { connection, said, gone: false }),
                };
                if len == 0 {
                    return if strange {
                        Ok(Ended { connection, said, gone: true })
                    } else {
                        Err(BlockError::Cut.into())
                    };
                }
                strange = false;
                said.extend(channel.header(&header[..len])?.1);
            }
            Wants::Data { offset, len } => {
                let len = take(&mut connection, &intake, (offset, len), &blocks).await?.ok_or(BlockError::Cut)?;
                said.extend(channel.took(len));
            }
        }
    }
}

/// Takes some of a block of `len` bytes that belong at `offset`, as they come, and gives how many it was; none at the end of what the
/// connection carries.
pub(super) async fn take(
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

pub(super) async fn give(blocks: &Sender, block: Block) -> Result<(), Error> {
    blocks.send(Ok(Some(block))).await.map_err(|_| Error::GivenUp)
}

#[cfg(test)]
mod tests {
    use super::super::settings::Settings;
    use super::*;
    use std::io::Write;
    use std::net::{Ipv4Addr, TcpStream};

    #[tokio::test]
    async fn what_comes_slowly_is_handed_on_before_a_block_is_full() {
        let channel = Channel::listening(Ipv4Addr::LOCALHOST.into(), Settings::default()).unwrap();
        let intake = Intake { pool: Pool::new(1 << 20, 4), from: 7, expected: None, into: None };
        let incoming = channel.receive(Mode::Stream, intake);
        let mut sender = TcpStream::connect(channel.local_addr().unwrap()).unwrap();
        for (at, text) in [(7, "slow"), (11, "ly")] {
            sender.write_all(text.as_bytes()).unwrap();
            let block = incoming.next().await.unwrap().unwrap();
            assert_eq!((block.offset, &block.bytes().unwrap()[..]), (at, text.as_bytes()));
        }
        drop(sender);
        assert!(incoming.next().await.unwrap().is_none());
    }
}
