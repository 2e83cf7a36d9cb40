//! Accepts data connections, and selects those of the transfer.
//!
//! If only known addresses may connect, others are reset, and any failure fails the transfer. If anybody may connect
//! ([`Peers::Anyone`]: the peer is unknown, or authenticates itself), strangers do not disturb the transfer: a
//! connection that fails to authenticate, stays silent or closes without data is dropped. Handshakes run concurrently,
//! so that a silent connection delays nobody.
//! A stream whose length nobody has announced is the exception: a connection that closes without data is an empty one.

use super::channel::{Direction, Inner};
use super::connection::Connection;
use super::error::Error;
use super::settings::Peers;
use phoebus_net::transport::Pending;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

/// Most concurrent handshakes, if the transfer has fewer connections. Beyond that, the oldest is reset: the real peer
/// needs a few round trips, and a flood drives out only itself.
const AT_ONCE: usize = 64;

/// Most strangers in one transfer. Each costs a handshake.
const STRANGERS: u32 = 1000;

/// Connections that arrive during one transfer. Dropping it resets those that were not returned.
pub(super) struct Acceptor {
    inner: Arc<Inner>,
    /// Whether the peer must send something before its connection counts, if anybody may connect.
    speaks: bool,
    agreeing: JoinSet<(Result<Connection, Error>, SocketAddr)>,
    handles: VecDeque<AbortHandle>,
    refused: Option<IpAddr>,
    strangers: u32,
    last: Option<Error>,
}

impl Acceptor {
    /// For a listening channel. `speaks`: the peer sends first.
    pub(super) fn of(inner: &Arc<Inner>, speaks: bool) -> Self {
        let (agreeing, handles) = (JoinSet::new(), VecDeque::new());
        Self { inner: inner.clone(), speaks, agreeing, handles, refused: None, strangers: 0, last: None }
    }

    /// The connection of a stream: connects, or accepts the next one.
    ///
    /// # Errors
    /// Connecting fails, or no permitted peer connects.
    pub(super) async fn one(&mut self) -> Result<Connection, Error> {
        let inner = self.inner.clone();
        match &inner.way {
            Direction::Connect(to) => {
                let first = to.first().ok_or(Error::Direction("there is no address to connect to"))?;
                inner.connect(*first, 0).await
            }
            Direction::Listen { .. } => {
                let waited = inner.settings.reply_timeout;
                let came = timeout(waited, self.next()).await;
                came.unwrap_or_else(|_| Err(self.nobody(waited)))
            }
        }
    }

    /// The next accepted connection. Cancel safe.
    ///
    /// # Errors
    /// Listening fails, a required peer fails its handshake, or too many strangers came.
    pub(super) async fn next(&mut self) -> Result<Connection, Error> {
        let inner = self.inner.clone();
        let Direction::Listen { listener, .. } = &inner.way else {
            return Err(Error::Direction("PASV, EPSV or SPAS has to come before what is received"));
        };
        loop {
            tokio::select! {
                biased;
                Some(agreed) = self.agreeing.join_next() => match agreed {
                    Ok((Ok(connection), from)) => {
                        tracing::debug!(%from, "a data connection is taken");
                        return Ok(connection);
                    }
                    Ok((Err(error), from)) if inner.settings.from != Peers::Anyone => {
                        tracing::warn!(%from, %error, "a data connection is refused");
                        return Err(error);
                    }
                    Ok((Err(error), from)) => {
                        tracing::warn!(%from, %error, "a data connection is left out, since it may be a stranger's");
                        self.strangers += 1;
                        if self.strangers > STRANGERS {
                            return Err(Error::Strangers { count: self.strangers, last: Box::new(error) });
                        }
                        self.last = Some(error);
                    }
                    // Reset in favour of a newer one.
                    Err(_) => {}
                },
                accepted = listener.accept() => {
                    let (pending, from) = accepted?;
                    if inner.settings.from.allow(from.ip()) {
                        self.agree(pending, from);
                    } else {
                        tracing::warn!(%from, "a data connection was refused, since another than the control connection's peer made it");
                        self.refused = Some(from.ip());
                    }
                }
            }
        }
    }

    fn agree(&mut self, pending: Box<dyn Pending>, from: SocketAddr) {
        self.handles.retain(|handle| !handle.is_finished());
        if self.handles.len() >= self.inner.settings.most.max(AT_ONCE)
            && let Some(oldest) = self.handles.pop_front()
        {
            oldest.abort();
        }
        let (inner, silent) = (self.inner.clone(), self.speaks && self.inner.settings.from == Peers::Anyone);
        self.handles.push_back(self.agreeing.spawn(async move {
            let agreed = match inner.accepted(pending).await {
                // No handshake has completed yet.
                Ok(connection) if silent && !connection.is_proved() => {
                    connection.spoken().await.map(|()| connection).map_err(Error::from)
                }
                agreed => agreed,
            };
            (agreed, from)
        }));
    }

    /// The error after a wait in which no permitted peer connected.
    pub(super) fn nobody(&mut self, waited: Duration) -> Error {
        match (self.last.take(), self.refused) {
            (Some(last), _) => Error::Strangers { count: self.strangers, last: Box::new(last) },
            (None, Some(from)) => Error::Stranger { from, waited },
            (None, None) => Error::Nobody(waited),
        }
    }
}

impl Inner {
    /// Performs the handshake with a new connection.
    async fn accepted(&self, pending: Box<dyn Pending>) -> Result<Connection, Error> {
        let (security, reply_timeout) = (self.settings.security.as_ref(), self.settings.reply_timeout);
        let stream = timeout(reply_timeout, pending.handshake()).await.map_err(|_| Error::Silent(reply_timeout))??;
        stream.widen();
        Connection::up(stream, 0, security, false, reply_timeout).await
    }

    /// Whether a connection that closed without data may have been a stranger's.
    pub(super) fn may_be_stranger(&self) -> bool {
        self.settings.from == Peers::Anyone && matches!(self.way, Direction::Listen { .. })
    }
}
