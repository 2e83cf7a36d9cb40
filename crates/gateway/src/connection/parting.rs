//! How a connection ends that carries no session: with a word, where there is one to say, and in peace, where that was heard.

use super::Connection;
use crate::counters::count;
use crate::handshake::{HandshakeError, send_outgoing};
use crate::pool::is_death;
use phoebus_proto::session::Code;
use phoebus_proto::session::acceptor::State;
use std::io::ErrorKind;
use std::time::Duration;
use tokio::time::timeout;
use tracing::{debug, warn};

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
    /// A beacon that was reset tells of its sender's death.
    pub(super) fn heed(&self, why: &Parting) {
        let setup = self.shared.setup();
        if let Parting::Failed(HandshakeError::Io(error)) = why
            && self.acceptor.peer_is_beacon()
            && is_death(error)
        {
            let Some(pool) = self.caller(&setup).peer() else {
                let instance = self.acceptor.peer_instance();
                let sessions = self.shared.sessions.client_died(instance, self.stream.security());
                return debug!(from = %self.from, sessions, "a client's agent has died: its beacon was reset");
            };
            let peer = &pool.peer.name;
            let sessions = self.shared.sessions.peer_died(peer, self.stream.security());
            pool.give_up(&self.stream);
            warn!(peer, sessions, "the peer has died: its beacon was reset");
        }
    }

    /// Says why the connection ends, if there is anything to say, and ends it.
    pub(super) async fn part(mut self: Box<Self>, why: Parting) {
        // It is no sign of death when a beacon goes that is to be lit anew.
        let in_peace = matches!(why, Parting::Lapsed);
        // Those who have left the stage of strangers may go as they please.
        let stranger = self.slot.take().is_some();
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
