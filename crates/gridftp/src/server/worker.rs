//! The worker of one session: its open resources, and its link to the client during a task. `work` has the tasks, and
//! `transfer` those that move data.

use super::current::Shared;
use super::failure::Failure;
use super::stripes::Stripes;
use crate::data::Channel;
use phoebus_accounts::Served;
use phoebus_accounts::count::Counted;
use phoebus_accounts::memory::Held;
use phoebus_files::store::Store;
use phoebus_proto::gridftp::reply::Reply;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::{mpsc, oneshot, watch};

/// Carries out the tasks of one session.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) server: Arc<Shared>,
    /// Both ends of the control connection.
    pub(super) peer: SocketAddr,
    pub(super) local: SocketAddr,
    /// Memory that a reply takes until it is sent.
    pub(super) held: Held,
    /// The user who is logged in.
    pub(super) served: Option<Served>,
    /// The open data channel, and the generation of the session's data endpoint that it belongs to.
    pub(super) channel: Option<(u64, Channel)>,
    /// The port that the data channel listens on. Other sessions of this server may connect to it.
    pub(super) listens: Option<Counted<u16>>,
    /// The data nodes that work for this session.
    pub(super) stripes: Option<Stripes>,
    /// Number of changed names that may not be synced to disk.
    pub(super) unsynced: u32,
    /// Bytes of a file that the last transfer sent.
    pub(super) sent: Option<u64>,
}

/// The client, as a task in progress sees it.
#[derive(Debug)]
pub(super) struct TaskClient {
    pub(super) replies: mpsc::Sender<Reply>,
    pub(super) questions: mpsc::Sender<PresenceQuestion>,
    pub(super) stop: watch::Receiver<bool>,
}

/// Asks whether the client is still there.
#[derive(Debug)]
pub(super) struct PresenceQuestion {
    pub(super) answer: oneshot::Sender<bool>,
    /// Since when the client may have been killed, so that the end of the control connection may be on its way. `None`
    /// asks for what is known now.
    pub(super) doubted_since: Option<Instant>,
}

impl TaskClient {
    /// Sends a preliminary reply.
    pub(super) async fn send(&self, reply: Reply) {
        // An error means that the client is gone.
        let _ = self.replies.send(reply).await;
    }

    /// Returns when the client stops the task or is gone.
    pub(super) async fn stopped(&self) {
        let mut stop = self.stop.clone();
        if stop.wait_for(|stop| *stop).await.is_err() {
            // The connection is gone, and drops this task.
            std::future::pending().await
        }
    }

    /// Whether the control connection is still open. With `doubted_since`, waits until the end would have arrived if
    /// the client had been killed then.
    pub(super) async fn is_client_there(&self, doubted_since: Option<Instant>) -> bool {
        let (answer, answered) = oneshot::channel();
        self.questions.send(PresenceQuestion { answer, doubted_since }).await.is_ok() && answered.await.unwrap_or(false)
    }
}

/// Number of changed names after which they are synced at the latest.
const UNSYNCED: u32 = 256;

impl Worker {
    /// Closes the data channel, with its port.
    pub(super) fn close_channel(&mut self) {
        (self.channel, self.listens) = (None, None);
    }

    /// Notes that the client has made, renamed or removed a name. Nobody is told that this is durable. It is synced on
    /// request, with the next file, after some more changes, or at the end of the connection.
    pub(super) async fn note_name_change(&mut self, store: &dyn Store) {
        self.unsynced += 1;
        if self.unsynced >= UNSYNCED {
            self.sync(store).await;
        }
    }

    /// Syncs what [`Self::note_name_change`] has noted, at the end of the connection.
    pub(super) async fn sync_rest(&mut self) {
        if self.unsynced > 0
            && let Ok(store) = self.store()
        {
            self.sync(&*store).await;
        }
    }

    async fn sync(&mut self, store: &dyn Store) {
        match store.settle().await {
            Ok(()) => self.unsynced = 0,
            Err(error) => tracing::warn!(peer = %self.peer, %error, "changed names are not synced to disk"),
        }
    }

    pub(super) fn store(&self) -> Result<Arc<dyn Store>, Failure> {
        let served = self.served.as_ref().map(|served| served.store.clone());
        served.ok_or_else(|| Failure::say(530, "log in first"))
    }
}
