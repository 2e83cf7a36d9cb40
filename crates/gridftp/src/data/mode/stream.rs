//! Stream mode (MODE S, RFC 959, section 3.4.1): plain bytes over one connection, whose end is the end of data.

use super::super::acceptor::Acceptor;
use super::super::blocks::{Sender, give};
use super::super::channel::Inner;
use super::super::connection::Connection;
use super::super::error::Error;
use super::super::intake::Intake;
use super::super::outgoing::{Outgoing, carry};
use super::super::write::{self, Arriving, write_blocks};
use super::{Sending, TransferMode, Transferred};
use phoebus_files::block::Block;
use std::sync::Arc;

/// Most strangers that come and go without data before a stream.
const SCANS: usize = 100;

#[derive(Debug)]
pub(super) struct StreamMode;

impl TransferMode for StreamMode {
    fn send(&self, inner: Arc<Inner>, sending: Sending) -> Transferred<u64> {
        Box::pin(async move { send(&inner, sending).await })
    }

    fn receive(&self, inner: Arc<Inner>, intake: Intake, blocks: Sender) -> Transferred<()> {
        Box::pin(async move { receive(&inner, intake, &blocks).await })
    }
}

async fn send(inner: &Arc<Inner>, sending: Sending) -> Result<u64, Error> {
    let connection = Acceptor::of(inner, false).one().await?;
    let how = (inner.settings.io_threads.clone(), inner.settings.stall_timeout);
    let (connection, sent) = carry(connection, Outgoing::new(false, sending.flow, sending.moved), how).await?;
    connection.count(inner.losses());
    connection.finish(inner.settings.stall_timeout).await?;
    Ok(sent)
}

async fn receive(inner: &Arc<Inner>, intake: Intake, blocks: &Sender) -> Result<(), Error> {
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
