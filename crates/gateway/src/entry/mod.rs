//! The ways into a gateway: the session protocol, SOCKS5 and HTTP CONNECT, told apart by the first byte of a connection, also inside
//! TLS. Each yields a request, and is told whether the session is open.

mod access;
mod proxy;

use crate::connection::{self, Accepted};
use crate::counters::count;
use crate::session::REFUSED;
use crate::shared::{Phase, Shared};
use phoebus_net::Stream;
use phoebus_proto::entry::Entry;
use std::io;
use std::sync::Arc;
use tokio::time::timeout_at;
use tracing::info;

/// Serves a connection until it ends.
pub(crate) async fn serve(shared: Arc<Shared>, accepted: Accepted) {
    let settings = accepted.settings.clone();
    let entries = &settings.entries;
    if **entries == [Entry::Session] {
        return connection::serve(shared, accepted, None).await;
    }
    let first = tokio::select! {
        first = timeout_at(accepted.deadline.into(), first_byte(&accepted.stream)) => first,
        () = shared.reached(Phase::Draining) => return accepted.stream.close(),
    };
    let Ok(Ok(Some(first))) = first else {
        count(&shared.counters.handshakes_failed);
        info!(target: REFUSED, from = %accepted.from, "nothing was asked");
        return accepted.stream.close();
    };
    match Entry::of(first) {
        entry if entry != Entry::Session && entries.contains(&entry) => {
            Box::pin(proxy::serve(shared, accepted, entry, first)).await;
        }
        // It refuses what is none of its own.
        _ if entries.contains(&Entry::Session) => connection::serve(shared, accepted, Some(first)).await,
        entry => {
            count(&shared.counters.handshakes_failed);
            info!(target: REFUSED, from = %accepted.from, "the listener does not take {entry}");
        }
    }
}

/// The first byte; `None` at the end of the stream.
async fn first_byte(stream: &Stream) -> io::Result<Option<u8>> {
    let mut first = [0];
    loop {
        match stream.try_read(&mut first) {
            Ok(n) => return Ok((n > 0).then_some(first[0])),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => stream.readable().await?,
            Err(error) => return Err(error),
        }
    }
}
