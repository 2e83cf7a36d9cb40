//! Who comes to where this end listens, and who of them is taken.
//!
//! Where only known addresses may connect, others are reset as they come, and what fails between the two ends fails the transfer at
//! once. Where anybody may ([`Peers::Anyone`]: the other end is not known, or proves by itself who it is), a stranger is none of the
//! transfer's affair: one that does not prove who it is, or says nothing, or goes before it has said anything, is left out, and what
//! the others do goes on. All agree at the same time, so that nobody waits for who keeps silent. MODE X is another matter where nothing is proved:
//! its receiver knows of no number of ends, so that whoever was told READY and does not come to one ends the transfer.

use super::channel::{Inner, Way};
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

/// How many may be about to agree at a time, if a transfer does not have more connections than that. One that is more has the
/// oldest reset: who is meant agrees within some round trips, and who floods is as fast out as in.
const AT_ONCE: usize = 64;

/// How many strangers a transfer puts up with: each cost a handshake.
const STRANGERS: u32 = 1000;

/// Those who come during one transfer. Dropped, those that were not given out are reset.
pub(super) struct Arrivals {
    inner: Arc<Inner>,
    /// Whether the other end has to say something before it is taken for somebody, where anybody may come.
    speaks: bool,
    agreeing: JoinSet<(Result<Connection, Error>, SocketAddr)>,
    handles: VecDeque<AbortHandle>,
    refused: Option<IpAddr>,
    strangers: u32,
    last: Option<Error>,
}

impl Arrivals {
    /// Of a channel that listens. `speaks` says whether it is the other end that says something first.
    pub(super) fn of(inner: &Arc<Inner>, speaks: bool) -> Self {
        let (agreeing, handles) = (JoinSet::new(), VecDeque::new());
        Self { inner: inner.clone(), speaks, agreeing, handles, refused: None, strangers: 0, last: None }
    }

    /// The connection of a transfer in stream mode: one that this end makes, or the next of those who come.
    ///
    /// # Errors
    /// It cannot be made, or nobody comes who may.
    pub(super) async fn one(&mut self) -> Result<Connection, Error> {
        let inner = self.inner.clone();
        match &inner.way {
            Way::Connect(to) => {
                let first = to.first().ok_or(Error::Direction("there is no address to connect to"))?;
                inner.connect(*first, 0).await
            }
            Way::Listen { .. } => {
                let waited = inner.settings.patience;
                let came = timeout(waited, self.next()).await;
                came.unwrap_or_else(|_| Err(self.nobody(waited)))
            }
        }
    }

    /// The next that is taken. Cancel safe.
    ///
    /// # Errors
    /// Nobody can be listened for, one that has to be the other end did not agree, or too many others came.
    pub(super) async fn next(&mut self) -> Result<Connection, Error> {
        let inner = self.inner.clone();
        let Way::Listen { listener, .. } = &inner.way else {
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
                    // One that was reset for a newer one.
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
                // Nobody has agreed to anything yet.
                Ok(connection) if silent && !connection.is_proved() => {
                    connection.spoken().await.map(|()| connection).map_err(Error::from)
                }
                agreed => agreed,
            };
            (agreed, from)
        }));
    }

    /// The error for a wait of so long in which nobody came who may.
    pub(super) fn nobody(&mut self, waited: Duration) -> Error {
        match (self.last.take(), self.refused) {
            (Some(last), _) => Error::Strangers { count: self.strangers, last: Box::new(last) },
            (None, Some(from)) => Error::Stranger { from, waited },
            (None, None) => Error::Nobody(waited),
        }
    }
}

impl Inner {
    /// The connection of one who has come.
    async fn accepted(&self, pending: Box<dyn Pending>) -> Result<Connection, Error> {
        let (guard, patience) = (self.settings.guard.as_ref(), self.settings.patience);
        let stream = timeout(patience, pending.handshake()).await.map_err(|_| Error::Silent(patience))??;
        stream.widen();
        Connection::up(stream, 0, guard, false, patience).await
    }

    /// Whether one that has gone without a word may have been a stranger.
    pub(super) fn may_be_stranger(&self) -> bool {
        self.settings.from == Peers::Anyone && matches!(self.way, Way::Listen { .. })
    }
}
