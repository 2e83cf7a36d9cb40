//! Whether a session may be, and which way it goes: allow rules, requirements, routes (P9–P11, P38, invariant 5).
//!
//! Names and addresses are judged apart. A destination that is a name passes by a rule that names it, or, where it is
//! resolved, by rules about the addresses it leads to; and whatever let it pass, the addresses are looked at again once
//! they are known, so that a name cannot lead where an address would have been refused.
//!
//! Addresses of the gateway's own host are refused unless a range names them. Which they are the kernel says, at each request.

use crate::config::{Config, Pattern, Route, Rule, Source, addresses_reached, is_local};
use crate::refusal::Refusal;
use crate::request::Request;
use crate::shared::Setup;
use phoebus_net::reason;
use phoebus_net::route::{self, Routes};
use phoebus_proto::agent::AGENT;
use phoebus_proto::endpoint::{Endpoint, Host, HostRef};
use phoebus_proto::session::Code;
use phoebus_proto::session::message::{Requirements, Security};
use phoebus_proto::units::BitRate;
use std::io;
use std::net::{IpAddr, SocketAddr};

/// The next hop of a session.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Next<'a> {
    /// The gateway of this name.
    Peer(&'a str),
    /// The destination itself, by this route; `None` where no route names it.
    Direct(Option<&'a Route>),
}

/// Which way `request` goes.
pub(crate) fn route<'a>(setup: &'a Setup, request: &Request) -> Result<Next<'a>, Refusal> {
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

/// Whether the configuration lets `request` have its destination, as far as can be said before names are resolved.
pub(crate) fn allowed(config: &Config, request: &Request, next: Next<'_>) -> Result<(), Refusal> {
    let destination = request.destination.as_ref();
    let mut own = false;
    let admitted = match destination.host {
        HostRef::Addr(addr) => {
            own = is_own(config, next, addr, &mut |addr| route::is_own(addr))?;
            rules(config, request).any(|rule| rule.to.iter().any(|to| to.admits(addr, own)))
        }
        HostRef::Name(_) if by_name(config, request).next().is_some() => true,
        // Its addresses will be judged; only the gateway that resolves it can say.
        HostRef::Name(_) if matches!(next, Next::Direct(_)) => {
            rules(config, request).any(|rule| rule.to.iter().any(|to| matches!(to, Pattern::Net(_))))
        }
        HostRef::Name(_) => false,
    };
    if admitted { Ok(()) } else { Err(not_allowed(request, &destination.to_string(), own)) }
}

/// Those of `addresses` that `request`'s destination, a name that this gateway has resolved to connect to it, may lead to.
pub(crate) fn allowed_addresses(
    config: &Config,
    request: &Request,
    addresses: Vec<SocketAddr>,
) -> Result<Vec<SocketAddr>, Refusal> {
    let mut routes = Routes::default();
    allowed_of(config, request, addresses, |addr| routes.is_own(addr))
}

/// The same, where `is_hosts` says which addresses are the host's. An address of which it cannot say so is refused, and the others are
/// not.
fn allowed_of(
    config: &Config,
    request: &Request,
    addresses: Vec<SocketAddr>,
    mut is_hosts: impl FnMut(IpAddr) -> io::Result<bool>,
) -> Result<Vec<SocketAddr>, Refusal> {
    let (mut allowed, mut refused) = (Vec::new(), None);
    for addr in addresses {
        let ip = addr.ip();
        let own = match is_own(config, Next::Direct(None), ip, &mut is_hosts) {
            Ok(own) => own,
            Err(refusal) => {
                refused.get_or_insert(refusal);
                continue;
            }
        };
        let may = by_name(config, request).any(|to| to.name_may_lead_to(ip, own))
            || rules(config, request)
                .any(|rule| rule.to.iter().any(|to| matches!(to, Pattern::Net(_)) && to.admits(ip, own)));
        if may {
            allowed.push(addr);
        } else {
            let what = || format!("{}, which resolves to {ip},", request.destination);
            refused.get_or_insert_with(|| not_allowed(request, &what(), own));
        }
    }
    match refused {
        Some(refusal) if allowed.is_empty() => Err(refusal),
        _ => Ok(allowed),
    }
}

/// Whether `addr` is an address of this host or its links. Those of interfaces, which `is_hosts` tells, count where this gateway
/// connects itself: for the next gateway they are another host's.
fn is_own(
    config: &Config,
    next: Next<'_>,
    addr: IpAddr,
    is_hosts: &mut dyn FnMut(IpAddr) -> io::Result<bool>,
) -> Result<bool, Refusal> {
    if is_local(addr) {
        return Ok(true);
    }
    // A process that is the destination itself connects to nothing.
    if config.inlet.is_some() || !matches!(next, Next::Direct(_)) {
        return Ok(false);
    }
    for addr in addresses_reached(addr) {
        let own = is_hosts(addr).map_err(|error| {
            let why = reason(&error);
            Refusal::new(Code::Internal, format!("cannot find out whether {addr} is an address of the gateway: {why}"))
        })?;
        if own {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether any rule is for a client that connects from `from` with a certificate for `proved`.
pub(crate) fn may_ask(config: &Config, from: IpAddr, proved: &[String]) -> bool {
    let fits = |source: &Source| match source {
        Source::Net(net) => net.contains(from),
        Source::Peer(_) => false,
        Source::Certificate(certificate) => certificate.fits(proved),
    };
    config.rules.iter().any(|rule| rule.from.iter().any(fits))
}

/// Whether this gateway can give what `request` needs of the hop to `next`. What it cannot is refused and not passed over in
/// silence; `available` is the most that it buffers of one direction. The hop to the destination carries what the program
/// sends as it is, and protects nothing.
pub(crate) fn requirements(config: &Config, request: &Request, next: Next<'_>, available: u64) -> Result<(), Refusal> {
    let wanted = request.requirements;
    let protected = match next {
        Next::Peer(name) => config.peers.get(name).map_or(Security::None, |peer| as_told(peer.security)),
        Next::Direct(_) => Security::None,
    };
    let profile = match next {
        Next::Peer(name) => config.peers.get(name).map(|peer| &peer.profile),
        Next::Direct(route) => Some(route.map_or(&config.direct, |route| &route.profile)),
    };
    let rate = profile.and_then(|profile| config.rates.get(&profile.name)).map(|rate| rate.0);
    let limits = Requirements {
        rate,
        buffer: Some(available),
        streams: Some(config.limits.streams.get()),
        security: Some(protected),
        ..Requirements::default()
    };
    let refuse = |reason: String| Err(Refusal { limits: Box::new(limits), ..Refusal::new(Code::Requirement, reason) });
    match wanted {
        Requirements { buffer: Some(bytes), .. } if bytes > available => {
            refuse(format!("a buffer of {bytes} bytes was asked for; at most {available} can be had"))
        }
        Requirements { duration: Some(_), .. } => {
            refuse("a time was asked for, but what is promised here lasts as long as its session".to_owned())
        }
        // An agent has nothing to promise: its user's programs are alone on its hop, and its gateway decides.
        Requirements { rate: Some(wanted), .. } if config.name != AGENT && rate.is_none_or(|rate| wanted > rate) => {
            let wanted = BitRate(wanted);
            let has = rate.map_or_else(|| "has no rate".to_owned(), |rate| format!("carries {}", BitRate(rate)));
            refuse(format!("{wanted} was asked for, but the hop to {} {has}", next_name(next, request)))
        }
        Requirements { rate: Some(0), .. } => refuse("a bandwidth of 0 was asked for".to_owned()),
        Requirements { streams: Some(streams), .. } if streams > config.limits.streams.get() => {
            let most = config.limits.streams;
            refuse(format!(
                "{streams} connections for each hop were asked for; at most {most} can be had (limits.streams)"
            ))
        }
        Requirements { security: Some(security), .. } if security > protected => {
            let to = next_name(next, request);
            refuse(format!("protected hops were asked for, but the hop to {to} is not protected so"))
        }
        _ if request.resumable => {
            refuse("a resumable session was asked for, but no hop of this gateway can resume".to_owned())
        }
        _ => Ok(()),
    }
}

fn next_name(next: Next<'_>, request: &Request) -> String {
    match next {
        Next::Peer(name) => name.to_owned(),
        Next::Direct(_) => format!("the destination, {}", request.destination),
    }
}

fn as_told(security: phoebus_net::transport::Security) -> Security {
    use phoebus_net::transport::Security as Has;
    match security {
        Has::None => Security::None,
        Has::Auth => Security::Auth,
        Has::Encrypt => Security::Encrypt,
    }
}

/// The peer that an entry of a path means: by its address as configured, by its name, or by an address that its configured
/// host name resolves to. What the configuration says comes before what a name server does.
fn peer_at<'a>(setup: &'a Setup, hop: &Endpoint) -> Result<&'a str, Refusal> {
    let peers = &setup.config.peers;
    let by_address = peers.values().find(|peer| peer.address == *hop).map(|peer| peer.name.as_str());
    let otherwise = || match &hop.host {
        Host::Name(name) => peers.get(name).map(|peer| peer.name.as_str()),
        Host::Addr(addr) => {
            let at = SocketAddr::new(*addr, hop.port);
            let leads = || setup.peers.values().find(|pool| pool.leads_to(at)).map(|pool| pool.peer.name.as_str());
            // An agent calls its gateway by the address that its user has for it.
            leads().or_else(|| peers.get(&addr.to_string()).map(|peer| peer.name.as_str()))
        }
    };
    by_address.or_else(otherwise).ok_or_else(|| {
        let reason = format!("{hop}, the next gateway of the path, is no peer of this gateway");
        Refusal::new(Code::NoRoute, reason)
    })
}

/// The route that fits the destination most closely; the first of equals.
fn by_route<'a>(config: &'a Config, host: HostRef<'_>) -> Next<'a> {
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

/// The rules for whoever asks, on the destination's port.
fn rules<'a>(config: &'a Config, request: &'a Request) -> impl Iterator<Item = &'a Rule> {
    let from = |source: &Source| match source {
        Source::Net(net) => net.contains(request.from.ip()),
        Source::Peer(name) => request.peer.as_ref() == Some(name),
        Source::Certificate(proved) => proved.fits(&request.proved),
    };
    let port = request.destination.port;
    config.rules.iter().filter(move |rule| {
        rule.from.iter().any(from) && (rule.ports.is_empty() || rule.ports.iter().any(|ports| ports.contains(&port)))
    })
}

/// The patterns that let the destination's name pass.
fn by_name<'a>(config: &'a Config, request: &'a Request) -> impl Iterator<Item = &'a Pattern> {
    let host = request.destination.host.as_ref();
    let names = matches!(host, HostRef::Name(_));
    rules(config, request).flat_map(|rule| &rule.to).filter(move |to| names && to.fit(host).is_some())
}

/// `own`: what was asked for is the gateway's own host or link, which a rule for everything does not mean.
fn not_allowed(request: &Request, what: &str, own: bool) -> Refusal {
    let who = request.peer.clone().unwrap_or_else(|| request.from.ip().to_canonical().to_string());
    let hint = if own {
        " (it is an address of the gateway's own host or links; only a rule that names it by address covers it)"
    } else {
        ""
    };
    Refusal::new(Code::NotAllowed, format!("{what} is not allowed to {who}{hint}"))
}

fn looped(reason: String) -> Refusal {
    Refusal::new(Code::Loop, reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use phoebus_proto::session::SessionId;
    use phoebus_proto::session::message::Open;

    #[test]
    fn an_address_of_which_nothing_can_be_found_out_is_refused_alone() {
        let text = "name = \"pg\"\n[[listen]]\naddress = \"127.0.0.1:5006\"\n\
                    [[allow]]\nfrom = [\"0.0.0.0/0\"]\nto = [\"*\"]\n";
        let config = Config::parse(text, "pg.toml".as_ref()).unwrap();
        let to: Endpoint = "host.example:7".parse().unwrap();
        let open = Open::new(SessionId([1; 16]), to.as_ref());
        let request = Request::new(&open, ([192, 0, 2, 9], 5).into(), None, "");
        let [six, four] = ["[2001:db8::1]:7", "192.0.2.1:7"].map(|addr| addr.parse::<SocketAddr>().unwrap());
        let is_hosts = |ip: IpAddr| if ip.is_ipv6() { Err(io::ErrorKind::PermissionDenied.into()) } else { Ok(false) };
        let allowed = |addresses| allowed_of(&config, &request, addresses, is_hosts);
        assert_eq!(allowed(vec![six, four]).unwrap(), [four]);
        let refusal = allowed(vec![six]).unwrap_err();
        assert_eq!(refusal.code, Code::Internal);
        assert!(refusal.reason.contains("2001:db8::1"), "{refusal:?}");
    }
}
