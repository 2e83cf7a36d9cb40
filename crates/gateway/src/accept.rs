//! Accepts connections. A stranger gets one task, and must complete its transport's handshake in time.
//!
//! A stranger costs one task, one descriptor and a few hundred bytes, for at most the handshake time-out and within the
//! limits on pending handshakes. If there are too many, those that wait longest give way.

use crate::connection::Accepted;
use crate::counters::count;
use crate::entry;
use crate::listener_settings::ListenerSettings;
use crate::shared::Shared;
use crate::slots::Full;
use crate::workers::WorkerSlot;
use phoebus_net::reason;
use phoebus_net::transport::Pending;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::Notify;
use tokio::time::timeout_at;
use tracing::debug;

/// Serves `pending` until it ends, unless a limit on handshakes is reached.
pub(crate) fn take_in(
    shared: &Arc<Shared>,
    pending: Box<dyn Pending>,
    from: SocketAddr,
    settings: Arc<ListenerSettings>,
) {
    count(&shared.counters.connections);
    let setup = shared.setup();
    let gives_way = Arc::new(Notify::new());
    let slot = match setup.handshake_slot(shared, from, Some(gives_way.clone())) {
        Ok(slot) => slot,
        Err(full) => {
            count(&shared.counters.handshakes_shed);
            let limit = if full == Full::Total { "handshakes" } else { "handshakes_per_source" };
            debug!(%from, "turned away: limits.{limit} is reached");
            return;
        }
    };
    let Some(counted) = shared.admission.connection(from.ip()) else { return };
    let place = shared.data.workers.place();
    let shedding = shared.clone();
    let (shared, deadline) = (shared.clone(), Instant::now() + setup.config.limits.handshake_timeout.0);
    // The handshake runs on the thread that will serve the connection, so that this thread's poller watches it.
    let serve = move |place| async move {
        let stream = match timeout_at(deadline.into(), pending.handshake()).await {
            Ok(Ok(stream)) => stream,
            failed => {
                count(&shared.counters.handshakes_failed);
                let why = match failed {
                    Err(_) => "nothing came in time".to_owned(),
                    Ok(result) => result.err().as_ref().map(reason).unwrap_or_default(),
                };
                debug!(%from, transport = &*settings.transport, "no connection: {why}");
                return;
            }
        };
        Box::pin(entry::serve(shared, Accepted { stream, from, settings, counted, place, slot, deadline })).await;
    };
    let start = move |place| async move {
        tokio::select! {
            biased;
            () = gives_way.notified() => {
                count(&shedding.counters.handshakes_shed);
                debug!(%from, "turned away: limits.handshakes is reached, and it has waited longest");
            }
            () = serve(place) => {}
        }
    };
    WorkerSlot::spawn(place, start);
}
