//! Reuse of a connection after its first request: lent to a session that another connection has opened, and returned
//! for the next.

use super::authenticate::UserLogin;
use super::{Connection, REFUSALS_MAX};
use crate::bundle::{JoinPermit, JoinedConnection, ReturnHandle};
use crate::listener_settings::ListenerSettings;
use crate::shared::{Setup, Shared};
use crate::slots::Slot;
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
    /// Joins a session that another connection has opened. Returns the connection if it may carry another.
    pub(super) async fn join(
        mut self: Box<Self>,
        setup: Arc<Setup>,
        session: SessionId,
        permit: JoinPermit,
    ) -> Option<Box<Self>> {
        self.acceptor.opened(&Opened::new(session, Mode::Framed, List::default())).ok()?;
        self.stream.widen();
        self.send(&setup).await.ok()?;
        // The rest belongs to the session's stream.
        self.stream.unprotect().ok()?;
        self.settings.share_buffers(&self.stream, permit.streams());
        let Self { shared, stream, acceptor, from, settings, counted, kept, login, .. } = *self;
        let standing = Box::new(ReusableConnection { shared, acceptor, from, settings, counted, kept, login });
        let (caller, free) = oneshot::channel();
        // If the task is gone, the connection is reset.
        let give_back = move |stream| drop(caller.send(stream));
        permit.take(JoinedConnection { stream, lender: ReturnHandle::new(give_back) });
        let stream = free.await.ok()?;
        // The session's thread has watched it.
        let stream = match Arc::try_unwrap(stream).map(Stream::move_to_runtime) {
            Ok(stream) => Arc::new(stream.ok()?),
            Err(shared) => shared,
        };
        standing.again(&setup, stream)
    }
}

/// The state of a connection between sessions.
pub(super) struct ReusableConnection {
    pub(super) shared: Arc<Shared>,
    pub(super) acceptor: Acceptor,
    pub(super) from: SocketAddr,
    pub(super) settings: Arc<ListenerSettings>,
    pub(super) counted: Slot,
    pub(super) kept: Option<Slot>,
    pub(super) login: Option<Box<UserLogin>>,
}

impl ReusableConnection {
    /// The connection with `stream`, after a session.
    pub(super) fn again(self, setup: &Setup, stream: Arc<Stream>) -> Option<Box<Connection>> {
        let Self { shared, mut acceptor, from, settings, counted, kept, login } = self;
        if stream.security() == Security::Auth {
            // The next request would be unprotected.
            stream.disarm();
            return None;
        }
        let (Ok(()), Ok(slot)) = (acceptor.next_session(), setup.handshake_slot(&shared, from, None)) else {
            // The last session has ended well: its final acknowledgement is still delivered.
            stream.disarm();
            return None;
        };
        let deadline = Instant::now() + setup.config.limits.handshake_timeout.0;
        let slot = Some(slot);
        let (place, left) = (None, REFUSALS_MAX);
        Some(Box::new(Connection {
            shared,
            stream,
            acceptor,
            from,
            settings,
            counted,
            place,
            slot,
            kept,
            deadline,
            login,
            exchange: None,
            tried: None,
            left,
            beacon: 0,
        }))
    }
}
