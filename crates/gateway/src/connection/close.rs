//! Closes a connection without a session: with a message if there is one, and without a reset if the peer has received
//! it.

use super::Connection;
use crate::counters::count;
use crate::handshake::{HandshakeError, send_outgoing};
use crate::pool::{Lost, is_reset};
use crate::sessions::Neighbour;
use crate::suspicion::Reset;
use phoebus_net::Stream;
use phoebus_proto::session::Code;
use phoebus_proto::session::acceptor::State;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::time::timeout;
use tracing::debug;

/// Longest wait for a refused peer to read the reason.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Why a connection without a session ends.
pub(super) enum CloseReason {
    Failed(HandshakeError),
    Late,
    Draining,
    /// The peer's credentials are no longer valid.
    Lapsed,
}

impl From<HandshakeError> for CloseReason {
    fn from(error: HandshakeError) -> Self {
        Self::Failed(error)
    }
}

/// Ends `stream` without a reply, so that the peer connects anew and authenticates again (`docs/protocol/session.md`
/// §6.5).
pub(super) fn turn_away(stream: &Stream, from: SocketAddr) {
    debug!(%from, "certificates were replaced or have expired since this connection was made");
    stream.set_reset_code(Code::AuthRequired);
}

impl Connection {
    /// Reports a reset beacon, whose sender may have died.
    pub(super) fn heed(&self, why: &CloseReason) {
        let setup = self.shared.setup();
        if let CloseReason::Failed(HandshakeError::Io(error)) = why
            && self.acceptor.peer_is_beacon()
            && is_reset(error)
        {
            let (pool, instance) = (self.caller(&setup).peer(), self.acceptor.peer_instance());
            let neighbour = match pool {
                Some(pool) => Neighbour::Peer(pool.peer.name.clone()),
                None => Neighbour::Client(instance),
            };
            debug!(from = %self.from, ?neighbour, "a beacon was reset");
            self.shared.suspects.look_into(Reset {
                neighbour,
                pool: pool.cloned(),
                beacon: Lost { instance, number: self.beacon, security: self.stream.security() },
                is_own: false,
                silence: setup.config.limits.silence_timeout.0,
            });
        }
    }

    /// Sends the reason, if there is one, and closes the connection.
    pub(super) async fn part(mut self: Box<Self>, why: CloseReason) {
        // A beacon that ends for renewal is no sign of death.
        let in_peace = matches!(why, CloseReason::Lapsed);
        // Connections that have made a request may end at any pace. Others count until their descriptor is closed.
        let slot = self.slot.take();
        let stranger = slot.is_some();
        match why {
            // The refusal is in the queue to be sent.
            CloseReason::Failed(HandshakeError::Protocol(error)) => {
                count(&self.shared.counters.handshakes_failed);
                debug!(from = %self.from, "{error}");
            }
            CloseReason::Late if stranger => {
                count(&self.shared.counters.handshakes_failed);
                self.acceptor.refuse_because(Code::HandshakeTimeout, "no request arrived in time");
            }
            CloseReason::Draining if stranger => {
                self.acceptor.refuse_because(Code::Draining, "the gateway takes no more")
            }
            CloseReason::Failed(_) if self.acceptor.state() == State::Greeting => {
                count(&self.shared.counters.handshakes_failed);
            }
            CloseReason::Failed(_) | CloseReason::Late | CloseReason::Draining | CloseReason::Lapsed => {}
        }
        let words = async {
            send_outgoing(&self.stream, &mut self.acceptor).await?;
            match self.stream.shutdown_write() {
                Err(error) if error.kind() == ErrorKind::Unsupported => {}
                ended => ended?,
            }
            self.stream.delivered(Duration::MAX).await
        };
        // A peer that does not read is reset.
        if let (_, true) | (Ok(Ok(())), _) = (timeout(LAST_WORDS, words).await, in_peace) {
            self.stream.disarm();
        }
    }
}
