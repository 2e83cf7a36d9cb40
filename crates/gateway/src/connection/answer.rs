//! Replies to a requester: the session is open, or why not.

use super::Connection;
use crate::handshake::{HandshakeError, send_outgoing, send_what_fits};
use crate::listener_settings::ListenerSettings;
use crate::refusal::Refusal;
use crate::session::{Ready, WayIn};
use crate::shared::Setup;
use phoebus_net::Stream;
use phoebus_proto::session::acceptor::State;
use phoebus_proto::session::message::Opened;
use phoebus_proto::session::{List, ProtocolError};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};
use tracing::debug;

/// How long the reply to a greeting may wait, to go together with the reply to the request that came with it.
const TOGETHER: Duration = Duration::from_millis(1);

impl WayIn for Connection {
    fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    fn settings(&self) -> &Arc<ListenerSettings> {
        &self.settings
    }

    async fn abandoned(&mut self) {
        // On a short path, the replies to greeting and request go together.
        sleep(TOGETHER).await;
        send_what_fits(&self.stream, &mut self.acceptor);
        let _ = self.stream.failed().await;
    }

    async fn granted(&mut self, setup: &Setup, ready: &Ready) -> bool {
        self.grant(setup, ready).await.is_ok()
    }

    async fn refused(&mut self, setup: &Setup, refusal: Refusal) -> bool {
        self.answer(setup, Some(refusal)).await
    }
}

impl Connection {
    /// Replies to a request that has not become a session, and counts it. False if the connection ends with that reply.
    pub(super) async fn answer(&mut self, setup: &Setup, refusal: Option<Refusal>) -> bool {
        self.left = self.left.saturating_sub(1);
        // A stream of a shared connection ends with its refusal, and counts no longer than it lasts.
        let spent = refusal.is_some() && self.stream.has_authenticated_close();
        if spent {
            self.slot = None;
        }
        // Before any wait: a connection without a slot is not counted.
        let may_stay = !spent && self.wait_again(setup) && self.left > 0;
        // Of accepted AUTHs, only some have a reply: it goes with the reply to the request, or as soon as nothing more is there.
        let has_answer = refusal.is_some() || self.acceptor.state() == State::Challenged;
        if let Some(refusal) = refusal
            && self.refuse(setup, &refusal).is_err()
        {
            return false;
        }
        if may_stay && has_answer && self.send(setup).await.is_err() {
            return false;
        }
        // A requester with several requests lets others have their turn.
        yield_now().await;
        may_stay
    }

    /// Tells the requester that the session is open.
    async fn grant(&mut self, setup: &Setup, ready: &Ready) -> Result<(), HandshakeError> {
        let reports = ready.hop.reports(&setup.config.name);
        let mut opened = Opened::new(ready.session(), ready.mode, List::new(&reports));
        if let Some(offer) = &ready.offer {
            (opened.streams, opened.token) = (offer.streams, &offer.token);
        }
        opened.datagrams = ready.datagrams;
        self.acceptor.opened(&opened)?;
        self.stream.widen();
        self.send(setup).await?;
        // The rest belongs to the session's stream.
        Ok(self.stream.unprotect()?)
    }

    /// Queues a refusal.
    fn refuse(&mut self, setup: &Setup, refusal: &Refusal) -> Result<(), ProtocolError> {
        self.shared.counters.refused(refusal.code);
        debug!(from = %self.from, code = refusal.code.number(), hop = refusal.hop, "refused: {}", refusal.reason);
        self.acceptor.refuse(&refusal.message(&setup.config.name))
    }

    /// After a refusal, the peer counts as a stranger again, if there is room.
    fn wait_again(&mut self, setup: &Setup) -> bool {
        if self.slot.is_none() {
            self.slot = setup.handshake_slot(&self.shared, self.from, None).ok();
            self.deadline = Instant::now() + setup.config.limits.handshake_timeout.0;
        }
        self.slot.is_some()
    }

    pub(super) async fn send(&mut self, setup: &Setup) -> Result<(), HandshakeError> {
        let limit = setup.config.limits.handshake_timeout.0;
        match timeout(limit, send_outgoing(&self.stream, &mut self.acceptor)).await {
            Ok(sent) => Ok(sent?),
            Err(_) => Err(HandshakeError::Closed),
        }
    }
}
