//! Admission of sessions: limits on their number, and the allow rules (P10, P25, invariant 5).
//!
//! Names and addresses are judged separately. A destination name passes if a rule names it or, where it is resolved, if
//! rules admit the addresses that it resolves to. In either case the addresses are checked again once they are known,
//! so that a name cannot lead where an address would be refused.
//!
//! Addresses of the gateway's own host are refused unless a range names them. The kernel is asked for them at each
//! request.

use crate::config::{ANY, Config, Pattern, Peer, Rule, Source, addresses_reached, is_local};
use crate::refusal::Refusal;
use crate::request::Request;
use crate::route::Next;
use crate::shared::{Phase, Setup, Shared};
use crate::slots::{Full, Slot};
use phoebus_net::reason;
use phoebus_net::route::{self, Routes};
use phoebus_proto::endpoint::HostRef;
use phoebus_proto::session::{Code, Principal};
use std::io;
use std::net::{IpAddr, SocketAddr};

/// Counts the session of `request`. Fails if the gateway takes no more sessions, or has seen this one before.
pub(crate) fn session(shared: &Shared, setup: &Setup, request: &Request) -> Result<Slot, Refusal> {
    if shared.phase() != Phase::Open {
        return Err(Refusal::new(Code::Draining, "the gateway is shutting down and takes no new sessions"));
    }
    let most = setup.config.limits.remembered_sessions.get() as usize;
    if !shared.admission.seen.is_new(request.session, most) {
        return Err(Refusal::new(Code::Duplicate, "a session with this identifier was seen before"));
    }
    let source = request.source();
    shared.admission.sessions.take(source, setup.sessions, setup.sessions_per_source).map_err(|full| {
        let reason = match full {
            Full::Total => format!("all {} sessions of the gateway are in use (limits.sessions)", setup.sessions),
            Full::Source => {
                format!("{source} has its {} sessions in use (limits.sessions_per_source)", setup.sessions_per_source)
            }
        };
        Refusal::new(Code::Limit, reason)
    })
}

/// Whether the configuration allows `request` its destination, as far as known before names are resolved.
pub(crate) fn allowed(config: &Config, request: &Request, next: Next<'_>) -> Result<(), Refusal> {
    let destination = request.destination.as_ref();
    let mut only_own = false;
    let admitted = match destination.host {
        HostRef::Addr(addr) => {
            let own = is_own(config, next, addr, &mut |addr| route::is_own(addr))?;
            let admits = |own| rules(config, request).any(|rule| rule.to.iter().any(|to| to.admits(addr, own)));
            let admitted = admits(own);
            only_own = !admitted && admits(false);
            admitted
        }
        HostRef::Name(_) if patterns_for_name(config, request).next().is_some() => true,
        // Its addresses will be judged later, and only the gateway that resolves the name can do that.
        HostRef::Name(_) if matches!(next, Next::Direct(_)) => {
            rules(config, request).any(|rule| rule.to.iter().any(|to| matches!(to, Pattern::Net(_))))
        }
        HostRef::Name(_) => false,
    };
    if admitted { Ok(()) } else { Err(not_allowed(request, &destination.to_string(), only_own)) }
}

/// The `addresses` that are allowed for the destination of `request`, a name that this gateway has resolved to connect
/// to.
pub(crate) fn allowed_addresses(
    config: &Config,
    request: &Request,
    addresses: Vec<SocketAddr>,
) -> Result<Vec<SocketAddr>, Refusal> {
    let mut routes = Routes::default();
    allowed_addresses_by(config, request, addresses, |addr| routes.is_own(addr))
}

/// Like [`allowed_addresses`], where `is_hosts` tells which addresses belong to the host. If it fails for an address,
/// only that address is refused.
fn allowed_addresses_by(
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
        let may = |own| {
            patterns_for_name(config, request).any(|to| to.name_may_lead_to(ip, own))
                || rules(config, request)
                    .any(|rule| rule.to.iter().any(|to| matches!(to, Pattern::Net(_)) && to.admits(ip, own)))
        };
        if may(own) {
            allowed.push(addr);
        } else {
            let what = || format!("{}, which resolves to {ip},", request.destination);
            refused.get_or_insert_with(|| not_allowed(request, &what(), own && may(false)));
        }
    }
    match refused {
        Some(refusal) if allowed.is_empty() => Err(refusal),
        _ => Ok(allowed),
    }
}

/// Whether `addr` is an address of this host or its links. Interface addresses, which `is_hosts` recognizes, count only
/// where this gateway connects itself: for the next gateway, they belong to another host.
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

/// Whether any rule applies to a client that connects from `from` with a certificate for `proved`, as this principal.
pub(crate) fn may_ask(config: &Config, from: IpAddr, proved: &[String], principal: &Principal) -> bool {
    let fits = |source: &Source| match source {
        Source::Net(net) => net.contains(from),
        Source::Peer(_) => false,
        Source::Certificate(certificate) => certificate.fits(proved),
        Source::User(_) | Source::Group(_) => is_of(config, source, principal),
    };
    config.rules.iter().any(|rule| rule.from.iter().any(fits))
}

/// Whether a rule for a user or group is for this principal, which has proved itself here, or to a peer that may speak for it (P12).
fn is_of(config: &Config, source: &Source, principal: &Principal) -> bool {
    let by = &principal.spoken_for_by;
    let speaks = |peer: &Peer| peer.speaks_for.iter().any(|whom| whom.covers(principal));
    let is_believed = by.is_empty() || config.peers.get(by).is_some_and(speaks);
    let is_it = match source {
        Source::User(name) => name == ANY || *name == principal.user,
        Source::Group(name) => principal.groups.contains(name),
        _ => false,
    };
    is_it && is_believed && !principal.user.is_empty()
}

/// The rules for the requester and the destination's port.
fn rules<'a>(config: &'a Config, request: &'a Request) -> impl Iterator<Item = &'a Rule> {
    let from = |source: &Source| match source {
        Source::Net(net) => net.contains(request.from.ip()),
        Source::Peer(name) => request.peer.as_ref() == Some(name),
        Source::Certificate(proved) => proved.fits(&request.proved),
        Source::User(_) | Source::Group(_) => is_of(config, source, &request.principal),
    };
    let port = request.destination.port;
    config.rules.iter().filter(move |rule| {
        rule.from.iter().any(from) && (rule.ports.is_empty() || rule.ports.iter().any(|ports| ports.contains(&port)))
    })
}

/// The patterns that admit the destination's name.
fn patterns_for_name<'a>(config: &'a Config, request: &'a Request) -> impl Iterator<Item = &'a Pattern> {
    let host = request.destination.host.as_ref();
    let names = matches!(host, HostRef::Name(_));
    rules(config, request).flat_map(|rule| &rule.to).filter(move |to| names && to.fit(host).is_some())
}

/// `only_own`: rules for the requester would cover the destination if it were not the gateway's own host or link.
fn not_allowed(request: &Request, what: &str, only_own: bool) -> Refusal {
    let from = || request.from.ip().to_canonical().to_string();
    let own = Some(&request.principal).filter(|principal| !principal.user.is_empty() && request.peer.is_none());
    let who = match (&request.peer, own) {
        (Some(peer), _) => peer.clone(),
        (None, Some(principal)) => format!("{} from {}", principal.user, from()),
        (None, None) => from(),
    };
    let hint = if only_own {
        " (it is an address of the gateway's own host or links; only a rule that names it by address covers it)"
    } else {
        ""
    };
    Refusal::new(Code::NotAllowed, format!("{what} is not allowed to {who}{hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use phoebus_proto::endpoint::Endpoint;
    use phoebus_proto::session::SessionId;
    use phoebus_proto::session::message::Open;

    #[test]
    fn address_that_cannot_be_checked_is_refused_alone() {
        let text = "name = \"pg\"\n[[listen]]\naddress = \"127.0.0.1:5006\"\n\
                    [[allow]]\nfrom = [\"0.0.0.0/0\"]\nto = [\"*\"]\n";
        let config = Config::parse(text, "pg.toml".as_ref()).unwrap();
        let to: Endpoint = "host.example:7".parse().unwrap();
        let open = Open::new(SessionId([1; 16]), to.as_ref());
        let request = Request::new(&open, ([192, 0, 2, 9], 5).into(), None, Principal::default());
        let [six, four] = ["[2001:db8::1]:7", "192.0.2.1:7"].map(|addr| addr.parse::<SocketAddr>().unwrap());
        let is_hosts = |ip: IpAddr| if ip.is_ipv6() { Err(io::ErrorKind::PermissionDenied.into()) } else { Ok(false) };
        let allowed = |addresses| allowed_addresses_by(&config, &request, addresses, is_hosts);
        assert_eq!(allowed(vec![six, four]).unwrap(), [four]);
        let refusal = allowed(vec![six]).unwrap_err();
        assert_eq!(refusal.code, Code::Internal);
        assert!(refusal.reason.contains("2001:db8::1"), "{refusal:?}");
    }
}
