//! Sending a flow.

use super::channel::{Channel, Inner};
use super::connection::Connection;
use super::error::Error;
use super::settings::Mode;
use phoebus_files::store::Flow;
use phoebus_proto::gridftp::block::{Ending, Header};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::task::JoinSet;

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
            Mode::Stream => stream(&self.0, flow, moved).await,
            Mode::Extended => extended(&self.0, streams, flow, moved).await,
        }
    }
}

async fn stream(inner: &Inner, flow: Arc<dyn Flow>, moved: &AtomicU64) -> Result<u64, Error> {
    let mut connection = inner.one().await?;
    let (mut at, mut sent) = (None, 0);
    while let Some(block) = flow.next().await? {
        let len = block.bytes.len() as u64;
        if at.is_some_and(|at| at != block.offset) {
            return Err(Error::Order);
        }
        at = Some(block.offset.checked_add(len).ok_or(Error::Endless)?);
        connection.write(&block.bytes, false, inner.settings.stall).await?;
        moved.fetch_add(len, Ordering::Relaxed);
        sent += len;
    }
    connection.finish(inner.settings.stall).await?;
    Ok(sent)
}

async fn extended(inner: &Arc<Inner>, streams: u32, flow: Arc<dyn Flow>, moved: &Arc<AtomicU64>) -> Result<u64, Error> {
    let connections = inner.all(streams).await?;
    let mut carriers = JoinSet::new();
    for connection in connections {
        carriers.spawn(carry(connection, flow.clone(), moved.clone(), inner.settings.stall));
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
        let mut ending = Ending::new(stripe.len() as u64);
        for connection in stripe {
            if let Some(header) = ending.next(true) {
                connection.write(&header.encode(), false, inner.settings.stall).await?;
            }
        }
    }
    connections.into_iter().for_each(|connection| inner.keep(connection));
    Ok(sent)
}

/// Sends blocks over one connection while there are any.
async fn carry(
    mut connection: Connection,
    flow: Arc<dyn Flow>,
    moved: Arc<AtomicU64>,
    stall: std::time::Duration,
) -> Result<(Connection, u64), Error> {
    let mut sent = 0;
    while let Some(block) = flow.next().await? {
        let len = block.bytes.len() as u64;
        connection.write(&Header::data(block.offset, len).encode(), true, stall).await?;
        connection.write(&block.bytes, false, stall).await?;
        moved.fetch_add(len, Ordering::Relaxed);
        sent += len;
    }
    Ok((connection, sent))
}
