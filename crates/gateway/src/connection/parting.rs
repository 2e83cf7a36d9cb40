//! How a connection ends that carries no session: with a word, where there is one to say, and in peace, where that was heard.

use super::Connection;
use crate::counters::count;
use crate::handshake::{HandshakeError, send_outgoing};
use crate::live::Neighbour;
use crate::pool::{Lost, is_reset};
use crate::suspicion::Reset;
use phoebus_proto::session::Code;
use phoebus_proto::session::acceptor::State;
use std::io::ErrorKind;
use std::time::Duration;
use tokio::time::timeout;
use tracing::debug;

/// How long a peer that was refused may take to read why.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Why a connection ends while no session is on it.
pub(super) enum Parting {
    Failed(HandshakeError),
    Late,
    Draining,
    /// What its other end has proved counts no more.
    Lapsed,
}

impl From<HandshakeError> for Parting {
    fn from(error: HandshakeError) -> Self {
        Self::Failed(error)
    }
}

impl Connection {
    /// A beacon that was reset lets its sender be suspected of having died.
    pub(super) fn heed(&self, why: &Parting) {
        let setup = self.shared.setup();
        if let Parting::Failed(HandshakeError::Io(error)) = why
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

    /// Says why the connection ends, if there is anything to say, and ends it.
    pub(super) async fn part(mut self: Box<Self>, why: Parting) {
        // It is no sign of death when a beacon goes that is to be lit anew.
        let in_peace = matches!(why, Parting::Lapsed);
        // Those who have left the stage of strangers may go as they please. Who has not is counted as long as the descriptor is in use.
        let slot = self.slot.take();
        let stranger = slot.is_some();
        match why {
            // The refusal is among what is to be sent.
            Parting::Failed(HandshakeError::Protocol(error)) => {
                count(&self.shared.counters.handshakes_failed);
                debug!(from = %self.from, "{error}");
            }
            Parting::Late if stranger => {
                count(&self.shared.counters.handshakes_failed);
                self.acceptor.refuse_because(Code::HandshakeTimeout, "nothing was asked for in time");
            }
            Parting::Draining if stranger => self.acceptor.refuse_because(Code::Draining, "the gateway takes no more"),
            Parting::Failed(_) if self.acceptor.state() == State::Greeting => {
                count(&self.shared.counters.handshakes_failed);
            }
            Parting::Failed(_) | Parting::Late | Parting::Draining | Parting::Lapsed => {}
        }
        let words = async {
            send_outgoing(&self.stream, &mut self.acceptor).await?;
            match self.stream.shutdown_write() {
                Err(error) if error.kind() == ErrorKind::Unsupported => {}
                ended => ended?,
            }
            self.stream.delivered(Duration::MAX).await
        };
        // One who does not listen is reset.
        if let (_, true) | (Ok(Ok(())), _) = (timeout(LAST_WORDS, words).await, in_peace) {
            self.stream.disarm();
        }
    }
}
