//! The next hop of a session: by the client's path, or by the configured routes (P9, P11, P38).

use crate::config::{Config, Route};
use crate::refusal::Refusal;
use crate::request::Request;
use crate::shared::Setup;
use phoebus_proto::endpoint::{Endpoint, Host, HostRef};
use phoebus_proto::session::Code;
use std::net::SocketAddr;

/// The next hop of a session.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Next<'a> {
    /// The gateway of this name.
    Peer(&'a str),
    /// The destination itself, by this route; `None` if no route names it.
    Direct(Option<&'a Route>),
}

/// The next hop of `request`.
pub(crate) fn next_hop<'a>(setup: &'a Setup, request: &Request) -> Result<Next<'a>, Refusal> {
    let config = &setup.config;
    if request.visited.contains(&config.name) {
        return Err(looped(format!("this gateway, {}, was visited already", config.name)));
    }
    let own = |hop: &&Endpoint| matches!(&hop.host, Host::Name(name) if *name == config.name);
    if let Some(hop) = request.path.iter().find(own) {
        return Err(looped(format!("the path comes back to this gateway ({hop})")));
    }
    let next = match request.path.first() {
        Some(hop) => Next::Peer(peer_at(setup, hop)?),
        None => by_route(config, request.destination.host.as_ref()),
    };
    match next {
        Next::Peer(peer)
            if request.visited.iter().any(|name| name == peer) || request.peer.as_deref() == Some(peer) =>
        {
            Err(looped(format!("the next hop, {peer}, was visited already")))
        }
        Next::Peer(_) if request.visited.len() + 1 > phoebus_proto::endpoint::PATH_MAX => {
            Err(looped("the path has too many gateways".to_owned()))
        }
        next => Ok(next),
    }
}

/// The peer that a path entry means: by its configured address, by its name, or by an address that its configured host
/// name resolves to. The configuration takes precedence over name servers.
fn peer_at<'a>(setup: &'a Setup, hop: &Endpoint) -> Result<&'a str, Refusal> {
    let peers = &setup.config.peers;
    let by_address = peers.values().find(|peer| peer.address == *hop).map(|peer| peer.name.as_str());
    let otherwise = || match &hop.host {
        Host::Name(name) => peers.get(name).map(|peer| peer.name.as_str()),
        Host::Addr(addr) => {
            let at = SocketAddr::new(*addr, hop.port);
            let leads = || setup.peers.values().find(|pool| pool.leads_to(at)).map(|pool| pool.peer.name.as_str());
            // An agent names its gateway by the address that its user gave.
            leads().or_else(|| peers.get(&addr.to_string()).map(|peer| peer.name.as_str()))
        }
    };
    by_address.or_else(otherwise).ok_or_else(|| {
        let reason = format!("{hop}, the next gateway of the path, is no peer of this gateway");
        Refusal::new(Code::NoRoute, reason)
    })
}

/// The route that fits the destination most closely; the first of equals.
pub(crate) fn by_route<'a>(config: &'a Config, host: HostRef<'_>) -> Next<'a> {
    let mut best: Option<(usize, &Route)> = None;
    for route in &config.routes {
        if let Some(fit) = route.to.fit(host)
            && best.is_none_or(|(fitted, _)| fit > fitted)
        {
            best = Some((fit, route));
        }
    }
    match best {
        Some((_, Route { via: Some(peer), .. })) => Next::Peer(peer),
        direct => Next::Direct(direct.map(|(_, route)| route)),
    }
}

fn looped(reason: String) -> Refusal {
    Refusal::new(Code::Loop, reason)
}
