//! A connection beyond its first request: lent to a session that another has opened, and back for the next.

use super::{Connection, PATIENCE, Terms, greeting_slot};
use crate::bundle::{Lender, Newcomer, Seat};
use crate::quota::Slot;
use crate::shared::{Setup, Shared};
use phoebus_net::Stream;
use phoebus_net::transport::Security;
use phoebus_proto::session::acceptor::Acceptor;
use phoebus_proto::session::message::Opened;
use phoebus_proto::session::{List, Mode, SessionId};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::oneshot;

impl Connection {
    /// Becomes a connection of a session that another has opened. Returns the connection when it may carry another.
    pub(super) async fn join(
        mut self: Box<Self>,
        setup: Arc<Setup>,
        session: SessionId,
        seat: Seat,
    ) -> Option<Box<Self>> {
        self.acceptor.opened(&Opened::new(session, Mode::Framed, List::default())).ok()?;
        self.stream.widen();
        self.send(&setup).await.ok()?;
        // What follows is the stream's.
        self.stream.unprotect().ok()?;
        self.terms.share_buffers(&self.stream, seat.streams());
        let Self { shared, stream, acceptor, from, terms, counted, kept, identity, authenticated, .. } = *self;
        let standing = Box::new(Standing { shared, acceptor, from, terms, counted, kept, identity, authenticated });
        let (caller, free) = oneshot::channel();
        seat.take(Newcomer { stream, lender: Lender::Caller(caller) });
        let stream = free.await.ok()?;
        // It was watched by the session's thread.
        let stream = match Arc::try_unwrap(stream).map(Stream::rehome) {
            Ok(stream) => Arc::new(stream.ok()?),
            Err(shared) => shared,
        };
        standing.again(&setup, stream)
    }
}

/// What a connection keeps from one session to the next.
pub(super) struct Standing {
    pub(super) shared: Arc<Shared>,
    pub(super) acceptor: Acceptor,
    pub(super) from: SocketAddr,
    pub(super) terms: Arc<Terms>,
    pub(super) counted: Slot,
    pub(super) kept: Option<Slot>,
    pub(super) identity: String,
    pub(super) authenticated: bool,
}

impl Standing {
    /// The connection, with `stream`, whose session is over.
    pub(super) fn again(self, setup: &Setup, stream: Arc<Stream>) -> Option<Box<Connection>> {
        let Self { shared, mut acceptor, from, terms, counted, kept, identity, authenticated } = self;
        if stream.security() == Security::Auth {
            // The next request would be unprotected.
            stream.disarm();
            return None;
        }
        acceptor.next_session().ok()?;
        let deadline = Instant::now() + setup.config.limits.handshake_timeout.0;
        let slot = Some(greeting_slot(&shared, setup, from).ok()?);
        let (place, left) = (None, PATIENCE);
        Some(Box::new(Connection {
            shared,
            stream,
            acceptor,
            from,
            terms,
            counted,
            place,
            slot,
            kept,
            deadline,
            identity,
            authenticated,
            left,
            beacon: 0,
        }))
    }
}
