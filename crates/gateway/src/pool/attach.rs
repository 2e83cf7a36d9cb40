//! Further connections of a hop. Each asks the peer to join a session that the first has opened
//! (`docs/protocol/session.md` §6.7).

use super::selection::Selection;
use super::{Pool, PooledConnection};
use crate::bundle::{BundleMembers, JoinedConnection, ReturnHandle};
use crate::handshake::Asking;
use crate::refusal::Refusal;
use phoebus_proto::session::auth::anonymous;
use phoebus_proto::session::initiator::State;
use phoebus_proto::session::message::{Attach, Auth};
use phoebus_proto::session::{Mode, SessionId};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::timeout;
use tracing::debug;

impl Pool {
    /// Adds connections in the background, up to `streams` together with the first one, `opened`. Omits those that
    /// cannot be made.
    pub(crate) fn attach(self: &Arc<Self>, opened: &PooledConnection, streams: u16) -> Option<Arc<BundleMembers>> {
        let selection = opened.selection.clone();
        let opened = opened.opened().filter(|_| streams > 1)?;
        let token: Arc<[u8]> = opened.token.into();
        let members = BundleMembers::new(streams - 1);
        for index in 1..streams {
            let (pool, members) = (self.clone(), members.clone());
            let place =
                JoinRequest { session: opened.session, token: token.clone(), index, selection: selection.clone() };
            tokio::spawn(async move {
                let limit = pool.limits.greeting;
                let why = match timeout(limit, pool.attach_one(&place, &members)).await {
                    Ok(Ok(())) => return,
                    Ok(Err(refusal)) => refusal.reason,
                    Err(_) => "no answer in time".to_owned(),
                };
                members.expect_one_less();
                debug!(peer = pool.peer.name, session = %place.session, index, "a hop has a connection less: {why}");
            });
        }
        Some(members)
    }

    async fn attach_one(self: &Arc<Self>, place: &JoinRequest, members: &Arc<BundleMembers>) -> Result<(), Refusal> {
        let late = || Refusal::new(phoebus_proto::session::Code::NoSession, "the session was over before");
        if self.chosen().is_like(&place.selection)
            && let Some(mut connection) = self.take()
        {
            let Some(seat) = members.seat() else {
                self.keep(connection);
                return Err(late());
            };
            let padding = connection.manner(JoinRequest::STREAMS).padding;
            connection.asking.attach(&place.attach(padding)).map_err(|e| self.cannot_ask(&e))?;
            match self.hear(&mut connection, Duration::MAX).await {
                Ok(()) => {
                    self.counts.reused.fetch_add(1, Ordering::Relaxed);
                    return self.joined(connection).map(|newcomer| seat.take(newcomer));
                }
                Err(unheard) if !unheard.dead => return Err(unheard.refusal),
                Err(_) => self.counts.stale.fetch_add(1, Ordering::Relaxed),
            };
        }
        let in_use = self.demand.begin();
        let stream = self.dial(&place.selection, Duration::MAX).await?;
        let Some(seat) = members.seat() else {
            // Without a greeting, the connection is of no use to another session.
            stream.close();
            return Err(late());
        };
        let mut connection = match self.own.logins.is_some() {
            // Greeting first, since a password takes several messages.
            true => {
                let mut connection = self.greet_on(stream, &place.selection, &self.own.hello()).await?;
                connection.asking.attach(&place.attach(0)).map_err(|e| self.cannot_ask(&e))?;
                connection
            }
            false => {
                let (hello, contact) = (self.own.hello(), self.own.contact.as_deref());
                let auth = contact.map(|contact| Auth { mechanism: anonymous::NAME, data: contact.as_bytes() });
                let asking = Asking::join(Vec::new(), Vec::new(), &hello, auth.as_ref(), &place.attach(0));
                let asking = asking.map_err(|e| self.cannot_ask(&e))?;
                PooledConnection::new(stream, asking, Mode::Framed, place.selection.clone())
            }
        }
        .lent(in_use);
        self.hear(&mut connection, Duration::MAX).await.map_err(|unheard| unheard.refusal)?;
        self.joined(connection).map(|newcomer| seat.take(newcomer))
    }

    /// Handles the answer to ATTACH.
    fn joined(self: &Arc<Self>, connection: PooledConnection) -> Result<JoinedConnection, Refusal> {
        if connection.asking.state() != State::Opened {
            let refusal = self.refused(&connection);
            if connection.asking.state() == State::Refused && super::stays_usable(refusal.code) {
                self.keep(connection);
            }
            return Err(refusal);
        }
        // What follows belongs to the stream.
        connection.stream.unprotect().map_err(|error| self.failed(&error.into()))?;
        let (stream, detached) = connection.parts();
        let pool = self.clone();
        let give_back = move |stream| pool.put_back(detached.plug(stream));
        Ok(JoinedConnection { stream, lender: ReturnHandle::new(give_back) })
    }
}

/// A place in a bundle.
struct JoinRequest {
    session: SessionId,
    token: Arc<[u8]>,
    index: u16,
    /// The settings of the first connection.
    selection: Arc<Selection>,
}

impl JoinRequest {
    /// A bundle has at least two connections.
    const STREAMS: u16 = 2;

    fn attach(&self, padding: u16) -> Attach<'_> {
        Attach { session: self.session, token: &self.token, index: self.index, padding }
    }
}
