//! Datagrams beside sessions (`docs/protocol/session.md` §6.8; S17): whether a session gets any, and their relay.

use crate::dial::Hop;
use crate::request::Request;
use crate::reserve::Bounds;
use crate::sessions::SessionDatagrams;
use crate::shared::{Setup, Shared};
use phoebus_net::Stream;
use phoebus_proto::session::datagrams::DatagramGrant;
use std::time::Duration;

/// Relays datagrams between the requester, on `first`, and the next hop. Returns what the requester is told.
///
/// # Errors
/// Why there are none, as the end of a sentence.
pub(crate) fn relay(
    shared: &Shared,
    setup: &Setup,
    request: &Request,
    first: &Stream,
    (bounds, hop): (&[Bounds; 2], &Hop),
) -> Result<(DatagramGrant, SessionDatagrams), String> {
    let name = &setup.config.name;
    let Some(relay) = &shared.data.datagrams else {
        return Err(format!("{name} relays none (datagrams.addresses)"));
    };
    // Datagrams would pass rates by.
    let has_rate = |bounds: &Bounds| shared.data.reservations.rate(bounds).is_some();
    if request.requirements.rate.is_some() || bounds.iter().any(has_rate) {
        return Err(format!("{name} holds the session to a rate"));
    }
    let Some(onward) = hop.onward else { return Err(format!("{} grants none", hop.to)) };
    let slot = shared.additional_connections(setup, request.source(), 1).pop();
    let slot = slot.ok_or_else(|| format!("{name} has no descriptor left for them"))?;
    let failed = |error: &std::io::Error| format!("{name} cannot relay any: {}", phoebus_net::reason(error));
    let own = first.local_addr().map_err(|error| failed(&error))?.ip();
    let towards = hop.stream.local_addr().map_err(|error| failed(&error))?.ip();
    let further = hop.lent.as_ref().and_then(|(_, connection)| connection.opened()).map_or(0, |opened| opened.rtt_us());
    let first_hop = first.stats().map_or(0, |stats| stats.rtt_us);
    let rtt = Duration::from_micros(first_hop.saturating_add(hop.stats.rtt_us).saturating_add(further));
    match relay.relay((request.from.ip(), own), towards, (onward, rtt)) {
        Ok(Some((grant, flow))) => Ok((grant, SessionDatagrams::new(flow, slot))),
        Ok(None) => Err(format!("{name} relays none at {own} (datagrams.addresses)")),
        Err(error) => Err(failed(&error)),
    }
}
