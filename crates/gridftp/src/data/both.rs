//! MODE X (GFD.47, section 2): extended blocks where either end may connect, and the receiver says when blocks may come over a
//! connection and when its last one has.
//!
//! It is for clients that can neither be connected to nor listen at the side that sends. Everything goes through memory here, and
//! connections are not kept for another transfer; MODE E has the kernel's ways.

use super::arrive::Arrivals;
use super::channel::Inner;
use super::connection::Connection;
use super::error::Error;
use super::receive::{Intake, Sender, take};
use phoebus_files::block::Body;
use phoebus_files::store::Flow;
use phoebus_proto::gridftp::block::Wants;
use phoebus_proto::gridftp::xblock::{Channel, HEADER, Header, MAX_LINE, Word, Words, XError};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

/// How long one that has come, and has not said that it is ready, is given for it when there is nothing more to send.
const LATE: Duration = Duration::from_secs(5);

/// Receives over connections that come, or over as many as the settings say that this end makes.
pub(super) async fn receive(inner: &Arc<Inner>, intake: Intake, blocks: &Sender) -> Result<(), Error> {
    let mut readers = JoinSet::new();
    let read_from = |readers: &mut JoinSet<_>, connection| {
        readers.spawn(read(connection, intake.clone(), blocks.clone(), inner.settings.stall));
    };
    let mut over = false;
    if !inner.is_listening() {
        for connection in inner.all(inner.settings.streams).await? {
            read_from(&mut readers, connection);
        }
        while let Some(ended) = readers.join_next().await {
            over |= finished(ended)?;
        }
        return if over { Ok(()) } else { Err(XError::Unfinished.into()) };
    }
    let mut arrivals = Arrivals::of(inner, false);
    let (patience, mut came) = (inner.settings.patience, 0);
    let mut give_up = Instant::now() + patience;
    // After EOF nobody is told READY, and all who were have to come to their end: what a sender has begun is waited for.
    while !over || !readers.is_empty() {
        tokio::select! {
            arrived = arrivals.next(), if !over => {
                came += 1;
                if came > inner.settings.most {
                    return Err(Error::TooMany(inner.settings.most));
                }
                read_from(&mut readers, arrived?);
            }
            Some(ended) = readers.join_next(), if !readers.is_empty() => {
                over |= finished(ended)?;
                give_up = Instant::now() + patience;
            }
            () = sleep_until(give_up), if readers.is_empty() => {
                return Err(if came == 0 { arrivals.nobody(patience) } else { XError::Unfinished.into() });
            }
        }
    }
    Ok(())
}

fn finished(ended: Result<Result<bool, Error>, JoinError>) -> Result<bool, Error> {
    ended.map_err(|_| Error::GivenUp)?
}

/// Reads one connection to its end; whether it said that this is the end of all.
async fn read(mut connection: Connection, intake: Intake, blocks: Sender, stall: Duration) -> Result<bool, Error> {
    connection.write(Word::Ready.line().as_bytes(), false, stall).await?;
    let mut channel = Channel::new();
    loop {
        match channel.wants() {
            Wants::Nothing => break,
            Wants::Header(wanted) => {
                let mut header = [0; HEADER];
                let len = connection.read(&mut header[..wanted]).await?;
                if len == 0 {
                    return Err(XError::Cut.into());
                }
                channel.header(&header[..len])?;
            }
            Wants::Data { offset, len } => {
                let len = take(&mut connection, &intake, (offset, len), &blocks).await?.ok_or(XError::Cut)?;
                channel.took(len);
            }
        }
    }
    // The sender may have closed the connection with its EOD, and not wait for this.
    if connection.write(Word::Bye.line().as_bytes(), false, stall).await.is_ok() {
        let _ = connection.leave(stall).await;
    }
    Ok(channel.is_over())
}

/// What the connections of a sender share.
struct Sending {
    flow: Arc<dyn Flow>,
    moved: Arc<AtomicU64>,
    /// How many are ready and have not come to their end.
    open: AtomicUsize,
    stall: Duration,
}

/// How a connection of a sender's ended.
enum Ended {
    /// All has been sent.
    Over,
    /// The receiver wanted no more over this one.
    Closed,
}

/// Sends over as many `streams` to each address, or over those that come; how many bytes it was.
pub(super) async fn send(
    inner: &Arc<Inner>,
    streams: u32,
    flow: Arc<dyn Flow>,
    moved: &Arc<AtomicU64>,
) -> Result<u64, Error> {
    let (moved, stall) = (moved.clone(), inner.settings.stall);
    let sending = Arc::new(Sending { flow, moved, open: AtomicUsize::new(0), stall });
    let (mut greeted, mut senders) = (JoinSet::new(), JoinSet::new());
    let patience = inner.settings.patience;
    let greet = |greeted: &mut JoinSet<_>, connection| greeted.spawn(ready(connection, patience));
    let mut arrivals = None;
    if inner.is_listening() {
        arrivals = Some(Arrivals::of(inner, true));
    } else {
        for connection in inner.all(streams).await? {
            greet(&mut greeted, connection);
        }
    }
    let (mut over, mut sent, mut came, mut why) = (false, 0, 0, None);
    let mut give_up = Instant::now() + patience;
    loop {
        // A receiver that connects takes one that is reset for one that was cut, so that all that are to come are told of the end.
        let more = arrivals.is_some() && came < streams as usize;
        if over && senders.is_empty() && greeted.is_empty() && !more {
            return Ok(sent);
        }
        if arrivals.is_none() && senders.is_empty() && greeted.is_empty() {
            return Err(why.unwrap_or_else(|| XError::Cut.into()));
        }
        tokio::select! {
            biased;
            Some(ended) = senders.join_next(), if !senders.is_empty() => {
                let (ended, bytes): (Ended, u64) = ended.map_err(|_| Error::GivenUp)??;
                sent += bytes;
                if matches!(ended, Ended::Over) && !over {
                    over = true;
                    give_up = Instant::now() + LATE.min(patience);
                }
            }
            Some(ready) = greeted.join_next(), if !greeted.is_empty() => match ready.map_err(|_| Error::GivenUp)? {
                Ok((connection, words)) => {
                    sending.open.fetch_add(1, Ordering::Relaxed);
                    senders.spawn(write(connection, words, sending.clone()));
                }
                // A receiver may close what it does not need before it has said READY.
                Err(error) => why = Some(error),
            },
            arrived = next(&mut arrivals), if !over || more => {
                came += 1;
                if came > inner.settings.most {
                    return Err(Error::TooMany(inner.settings.most));
                }
                greet(&mut greeted, arrived?);
            }
            () = sleep_until(give_up), if senders.is_empty() => {
                if over {
                    return Ok(sent);
                }
                let nobody = arrivals.as_mut().map(|arrivals| arrivals.nobody(patience));
                return Err(why.or(nobody).unwrap_or(Error::Silent(patience)));
            }
        }
    }
}

async fn next(arrivals: &mut Option<Arrivals>) -> Result<Connection, Error> {
    match arrivals {
        Some(arrivals) => arrivals.next().await,
        None => std::future::pending().await,
    }
}

/// Waits until the receiver says that it is ready.
async fn ready(mut connection: Connection, patience: Duration) -> Result<(Connection, Words), Error> {
    let (mut words, until) = (Words::default(), Instant::now() + patience);
    loop {
        match words.take() {
            Some(Word::Ready) => return Ok((connection, words)),
            Some(other) => return Err(unexpected(&other, "READY")),
            None => {}
        }
        let heard = timeout_at(until, hear(&mut connection, &mut words)).await;
        heard.unwrap_or(Err(Error::Silent(patience)))?;
    }
}

/// Takes more of what the receiver says. Cancel safe.
async fn hear(connection: &mut Connection, words: &mut Words) -> Result<(), Error> {
    let mut room = [0; MAX_LINE];
    match connection.read(&mut room).await? {
        0 => Err(XError::Cut.into()),
        len => Ok(words.push(&room[..len])?),
    }
}

fn unexpected(word: &Word, expected: &'static str) -> Error {
    match word {
        Word::Resend => XError::Resend.into(),
        other => XError::Word(other.line().trim_end().to_owned(), expected).into(),
    }
}

/// Sends blocks over one connection while there are any, and the receiver wants them over this one.
async fn write(mut connection: Connection, mut words: Words, sending: Arc<Sending>) -> Result<(Ended, u64), Error> {
    let (stall, mut sent, mut asked) = (sending.stall, 0, false);
    let ended = loop {
        // What was said by now; nobody is waited for.
        let heard = std::pin::pin!(hear(&mut connection, &mut words)).poll(&mut Context::from_waker(Waker::noop()));
        if let Poll::Ready(heard) = heard {
            heard?;
        }
        while let Some(word) = words.take() {
            match word {
                Word::Close => asked = true,
                other => return Err(unexpected(&other, "CLOSE")),
            }
        }
        let others = |open: usize| (open > 1).then(|| open - 1);
        if asked && sending.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, others).is_ok() {
            break Ended::Closed;
        }
        let Some(block) = sending.flow.next().await? else { break Ended::Over };
        let Body::Bytes(bytes) = &block.body else { return Err(Error::Order) };
        connection.write(&Header::data(block.offset, block.len()).encode(), true, stall).await?;
        connection.write(bytes, false, stall).await?;
        sending.moved.fetch_add(block.len(), Ordering::Relaxed);
        sent += block.len();
    };
    connection.write(&Header::end(matches!(ended, Ended::Over)).encode(), false, stall).await?;
    farewell(&mut connection, &mut words, stall).await?;
    connection.close();
    Ok((ended, sent))
}

/// Waits until the receiver says that it has all, as long as it takes more within each `stall`.
async fn farewell(connection: &mut Connection, words: &mut Words, stall: Duration) -> Result<(), Error> {
    let mut least = usize::MAX;
    loop {
        match words.take() {
            Some(Word::Bye) => return Ok(()),
            // It has come to its end.
            Some(Word::Close) => {}
            Some(other) => return Err(unexpected(&other, "BYE")),
            None => match timeout(stall, hear(connection, words)).await {
                Ok(heard) => heard?,
                Err(_) => {
                    let left = connection.unacknowledged()?;
                    if left >= least {
                        return Err(Error::Stalled(stall));
                    }
                    least = left;
                }
            },
        }
    }
}
