//! Accepts connections. A stranger gets one task, and must complete its transport's handshake in time.
//!
//! A stranger costs one task, one descriptor and a few hundred bytes, for at most the handshake time-out and within the
//! limits on pending handshakes. If there are too many, those that wait longest give way.

use crate::connection::Accepted;
use crate::counters::count;
use crate::entry;
use crate::handshake_slots::HandshakeSlot;
use crate::listener_settings::ListenerSettings;
use crate::origin;
use crate::session::REFUSED;
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
use tracing::{debug, info};

/// Serves `pending` until it ends, unless a limit on handshakes is reached.
pub(crate) fn take_in(
    shared: &Arc<Shared>,
    mut pending: Box<dyn Pending>,
    from: SocketAddr,
    settings: Arc<ListenerSettings>,
) {
    count(&shared.counters.connections);
    let setup = shared.setup();
    let gives_way = Arc::new(Notify::new());
    // The clients of a relay are many. Each counts for itself once it is known.
    let is_behind = settings.is_behind(from.ip());
    let slot = match is_behind {
        true => shared.admission.handshake(&setup.config.limits, from.ip(), true, Some(gives_way.clone())),
        false => setup.handshake_slot(shared, from, Some(gives_way.clone())),
    };
    let slot = match slot {
        Ok(slot) => slot,
        Err(full) => return turn_away(shared, from, full),
    };
    let Some(counted) = shared.admission.connection(from.ip()) else { return };
    let place = shared.data.workers.place();
    let shedding = shared.clone();
    let (shared, deadline) = (shared.clone(), Instant::now() + setup.config.limits.handshake_timeout.0);
    // The handshake runs on the thread that will serve the connection, so that this thread's poller watches it.
    let again = gives_way.clone();
    let serve = move |place| async move {
        let (mut from, mut slot) = (from, slot);
        if is_behind {
            // Boxed, so that others reserve no memory for it.
            let client = Box::pin(client(&shared, &settings, &mut *pending, (from, slot, again), deadline));
            let Some(known) = client.await else { return };
            (from, slot) = known;
        }
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

/// The client of a relay's connection from this address, and the client's slot in place of the relay's.
async fn client(
    shared: &Arc<Shared>,
    settings: &ListenerSettings,
    pending: &mut dyn Pending,
    (from, slot, gives_way): (SocketAddr, HandshakeSlot, Arc<Notify>),
    deadline: Instant,
) -> Option<(SocketAddr, HandshakeSlot)> {
    let named = timeout_at(deadline.into(), origin::of_connection(settings, pending, from)).await;
    // Otherwise the connection would count twice.
    drop(slot);
    match named.unwrap_or_else(|_| Err("its PROXY header did not come in time".to_owned())) {
        Ok(client) => match shared.setup().handshake_slot(shared, client, Some(gives_way)) {
            Ok(slot) => Some((client, slot)),
            Err(full) => {
                turn_away(shared, client, full);
                None
            }
        },
        Err(why) => {
            count(&shared.counters.handshakes_failed);
            info!(target: REFUSED, %from, "connection refused: {why}");
            None
        }
    }
}

/// Notes that a connection found no slot.
fn turn_away(shared: &Shared, from: SocketAddr, full: Full) {
    count(&shared.counters.handshakes_shed);
    let limit = if full == Full::Total { "handshakes" } else { "handshakes_per_source" };
    debug!(%from, "turned away: limits.{limit} is reached");
}
